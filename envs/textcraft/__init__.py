"""TextCraft: craft a goal item with the recipes shown, some of which do not help.

Task.     `Goal: craft birch stairs.` A shuffled list shows the recipes of the goal and of everything that it is made
          of, and distractors that share an ingredient with one of them. A goal's depth is the length of its longest
          chain of recipes; `difficulty` lists depths.

Actions.  Matched at the start of the action, in this order; `get[2 oak log]`, `craft[...]` mean the plain form.
    craft [N] ITEM using N ITEM[, N ITEM ...]   one crafting; ingredients and counts must be exactly the recipe's, an
                                                item may stand for its tag, and the first N is read but ignored
    get N ITEM                                  any amount of an item that no recipe makes; after `get 0 coal` the
                                                inventory lists `[coal] (0)`
    inventory                                   list what the agent carries

Replies.  The three failures before the last line are checked in this order.
    Got 2 oak log
    Crafted 4 minecraft:oak_planks              the item's id, and the recipe's count
    Inventory: [oak log] (2) [coal] (1)         with a trailing space; or `Inventory: You are not carrying anything.`
    Could not find stick                        `get` of a craftable item, a tag or an unknown word
    Wrong item format: oak log                  an ingredient without its count
    Could not find enough items to craft minecraft:stick                       for a tag: None
    Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:stick'), count=4)
    Could not execute foo

Prompts.  native: instructions, an "OK.", the observation. A reply is `Thought:\\n...\\n\\nAction:\\n...`; the action is
          the line that follows `Action:`, reduced to letters, digits, commas and spaces. Without the marker it is
          empty; with several markers nothing is executed and the reply says so.
          short: one message, an instruction line and the observation; the action is the reply's first line.
          tools=native: one message and three tools, get, craft and inventory; a malformed call is answered by
          `Could not execute invalid tool call: ...`.

Reward.   1 when the goal is crafted, else 0. info["shaped"]: 0.15 the first time that an item of the goal's tree is got
          or crafted (alternatives for the same ingredient pay once), 1 on completion.

Tasks.    panel: the goals of our one recipe book. fresh: a book for each seed, with the trees and distractors of the
          panel's, and words and counts drawn anew; only the shown recipes and their base items exist.

Ending.   Terminated when the goal is crafted; truncated, outcome "timeout", after `max_turns` replies of any kind.

From ADaPT's TextCraft and AgentGym's server for it (both MIT), with these differences:
- The recipes are ours, not Minecraft's; each item has one recipe. A hash of the goal decides its split.
- The list shows only the members of a tag that the tree already contains, or else two: prompts stay short.
- The instructions are in our words. Only 400 characters of an action and six digits of a count are read, so that no
  reply can flood the context.
- Nothing depends on the order of files or on string hashing.
"""

import re
from dataclasses import dataclass
from random import Random

from envs import common
from envs.base import Configured, Step
from envs.common import SPLITS, split_of
from envs.textcraft.crafting import BOOK, PANEL, Recipe, depth, next_action, redrawn, shown, tree
from envs.tools import COUNT, TEXT, TEXTS, call_of, check_tools, function, known_call

GOALS: dict[tuple[str, int], list[str]] = {}  # (split, depth) -> goals
for _item in BOOK:
    GOALS.setdefault((split_of(f"textcraft:{_item}"), depth(_item)), []).append(_item)

INSTRUCTIONS = """\
You are given crafting commands and a goal. Work towards the goal one action at a time, and read the reply to each.
There are three actions:
get N ITEM: take N of an item that no crafting command makes.
craft N ITEM using N ITEM, N ITEM: apply one crafting command, with exactly its ingredients and counts. \
When an ingredient names a kind of item, such as planks, use one item of that kind.
inventory: list what you carry.
Not every crafting command is of use. Write each reply in this form, with exactly one action on one line:
Thought:
why this action is next

Action:
the action"""
AGREED = "OK. I'll follow your instructions and try my best to solve the task."
WITH_TOOLS = "Craft the goal with the crafting commands, not all of which are of use. Call one tool in each reply."
TOOLS = [
    function("get", "Take items that no crafting command makes.", count=COUNT, item=TEXT),
    function(
        "craft",
        "Apply one crafting command, with exactly its ingredients and counts. When an ingredient names a kind of item, "
        "use one item of that kind.",
        count=COUNT,
        item=TEXT,
        ingredients={**TEXTS, "description": "Each a count and an item, such as '2 oak log'."},
    ),
    function("inventory", "List what you carry."),
]
SHORT = "Reply with one command: get N ITEM, craft N ITEM using N ITEM, or inventory."
MAX_ACTION = 400  # characters read of an action
PROGRESS = 0.15  # shaped reward of a first-time step forward


@dataclass(frozen=True)
class Config:
    difficulty: str = "2"  # goal depths, 1 to 4, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    distractors: int = 10  # most distractor recipes shown; each shares an ingredient with the goal's tree
    max_turns: int = 20  # agent turns before the episode is truncated
    prompt: str = "native"  # "native": instructions and Thought/Action replies; "short": one message, bare actions
    tasks: str = "panel"  # "panel": goals of one recipe book; "fresh": a recipe book for each seed
    tools: str = "none"  # "native": actions are calls of tools in the checkpoint's own format; "none": text

    def __post_init__(self):
        common.check_options(self, "1234")
        common.check_tasks(self.tasks)
        check_tools(self.tools, self.prompt)
        common.check_count("distractors", self.distractors, 0)


class ActionFailed(Exception):
    """The action cannot be executed; the error's text is the observation."""


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config

    def __init__(self, config: Config | None = None):
        super().__init__(config)
        if self.config.tools == "native":
            self.tools, self.role = TOOLS, "tool"

    @property
    def task(self) -> str:
        """The canonical task: the goal alone, so that a held-out goal is never seen in training.

        A fresh task is the goal and the recipes of its tree.
        """
        needed = [item for item in sorted(self.roles) if item in self.book.recipes] if self.book is not PANEL else []
        return ": ".join([f"textcraft:{self.goal}", *(str(self.book.recipes[item]) for item in needed)])

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"textcraft {split} {seed}")
        commands = "\n".join(map(str, self._draw(rng, split)))
        self.inventory: dict[str, int] = {}
        self.paid: set[str] = set()
        self.turns = 0
        self.running = True
        observation = f"Crafting commands:\n{commands}\n\nGoal: craft {self.goal}."
        if self.tools:
            return [{"role": "user", "content": f"{WITH_TOOLS}\n{observation}", "tools": self.tools}]
        return common.opening(self.config.prompt, observation, INSTRUCTIONS, AGREED, SHORT)

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        shaped, valid, won = 0.0, True, False
        try:
            observation, item = self._act(self._read(action_text))
            won = item == self.goal
            shaped = 1.0 if won else self._progress(item)
        except ActionFailed as failure:
            observation, valid = str(failure), False
        truncated = not won and self.turns >= self.config.max_turns
        self.running = not (won or truncated)
        info = common.step_info(won, won, truncated, valid, shaped)
        return Step(observation, float(won), won, truncated, info)

    def oracle(self) -> str:
        """Return an expert's reply in the current state."""
        common.check_running(self.running)
        action, reason = next_action(self.book, self.goal, self.inventory, self.roles)
        return common.as_reply(common.form_of(self.config), reason, action)

    def action_of(self, content: str, calls: list[dict]) -> str:
        """Return the line of the short form that a call means. Raise Malformed for a wrong call."""
        name, given = known_call(calls, TOOLS)
        if name == "get":
            return f"get {given['count']} {given['item']}"
        if name == "craft":
            return f"craft {given['count']} {given['item']} using {', '.join(given['ingredients'])}"
        return name

    def calls_of(self, action: str) -> tuple[str, list[dict]]:
        """Return the call of an expert's line."""
        name, _, rest = action.partition(" ")
        if name == "inventory":
            return call_of(name)
        product, _, ingredients = rest.partition(" using ")
        count, _, item = product.partition(" ")
        more = {"ingredients": ingredients.split(", ")} if name == "craft" else {}
        return call_of(name, count=int(count), item=item, **more)

    def _draw(self, rng: Random, split: str) -> list[Recipe]:
        """Draw the goal, its tree and the book. Return the recipes to show."""
        level, fresh = int(rng.choice(self.config.difficulty.split(","))), self.config.tasks == "fresh"
        goals = [goal for part in (SPLITS if fresh else [split]) for goal in GOALS[part, level]]
        goal = rng.choice(goals)
        roles = tree(goal, rng)
        recipes = shown(roles, self.config.distractors, rng)
        if not fresh:
            self.book, self.goal, self.roles = PANEL, goal, roles
            return recipes
        while True:
            self.book, rename = redrawn(recipes, rng)
            self.goal, self.roles = rename(goal), {rename(item): role for item, role in roles.items()}
            if split_of(self.task) == split:
                return list(self.book.recipes.values())

    def _progress(self, item: str | None) -> float:
        """Return the shaped reward of an item. Each role in the tree pays once, whichever item fills it."""
        role = self.roles.get(item)
        if role is None or role in self.paid:
            return 0.0
        self.paid.add(role)
        return PROGRESS

    def _read(self, reply: str) -> str:
        """Return the action in a reply. Raise ActionFailed if the reply has several."""
        if common.form_of(self.config) == "short":
            return plain_action(common.first_line(reply, MAX_ACTION))
        action = common.only_action(reply, MAX_ACTION)
        if action is None:
            raise ActionFailed(common.SEVERAL)
        return common.plain_words(plain_action(action))

    def _act(self, action: str) -> tuple[str, str | None]:
        """Execute an action. Return the observation and the item that was got or crafted."""
        if match := re.match(r"craft (.*) using (.*)", action):
            return self._craft(*match.groups())
        if match := re.match(r"get ([0-9]{1,6}) (.*)", action):
            return self._get(int(match[1]), match[2])
        if action.startswith("inventory"):
            held = "".join(f"[{item}] ({count}) " for item, count in self.inventory.items())
            return f"Inventory: {held or 'You are not carrying anything.'}", None
        raise ActionFailed(f"Could not execute {action}")

    def _get(self, count: int, text: str) -> tuple[str, str | None]:
        """Execute `get`. Return the observation and the item; None if the count is 0."""
        item = text.replace("_", " ")
        if item not in self.book.base:
            raise ActionFailed(f"Could not find {text}")
        self.inventory[item] = self.inventory.get(item, 0) + count
        return f"Got {count} {text}", item if count else None

    def _craft(self, product: str, ingredients: str) -> tuple[str, str]:
        """Execute `craft`. Return the observation and the item."""
        item, count = _counted(product) or (product.replace("_", " "), 1)
        parts = []
        for text in ingredients.split(","):
            part = _counted(text.strip())
            if part is None:
                raise ActionFailed(f"Wrong item format: {text.strip()}")
            parts.append(part)
        tag, item_id = (_id(item), None) if item in self.book.tags else (None, _id(item))
        if any(name not in self.inventory or self.inventory[name] < n for name, n in parts):
            raise ActionFailed(f"Could not find enough items to craft {item_id}")
        recipe = self.book.recipes.get(item)
        if recipe is None or not self._matches(recipe.ingredients, parts):
            wanted = f"ItemTagWithCount(item_tag=ItemTag(tag={tag!r}, item_id={item_id!r}), count={count})"
            raise ActionFailed(f"Could not find a valid recipe for {wanted}")
        for name, n in parts:
            self.inventory[name] -= n
            if not self.inventory[name]:
                del self.inventory[name]
        self.inventory[item] = self.inventory.get(item, 0) + recipe.count
        return f"Crafted {recipe.count} {_id(item)}", item

    def _matches(self, ingredients: tuple[tuple[str, int], ...], parts: list[tuple[str, int]]) -> bool:
        """Return whether the parts are exactly the ingredients in any order. An item may replace its tag."""
        left = list(parts)
        for wanted, count in ingredients:
            part = next((p for p in left if p[0] == wanted or p[0] in self.book.tags.get(wanted, ())), None)
            if part is None or part[1] != count:
                return False
            left.remove(part)
        return not left


def plain_action(action: str) -> str:
    """Return `get[2 oak log]` as `get 2 oak log`; return any other action unchanged."""
    match = re.fullmatch(r"(get|craft) ?\[(.*)\]", action)
    return f"{match[1]} {match[2].strip()}" if match else action


def _counted(text: str) -> tuple[str, int] | None:
    """Return the item and the count of `2 oak log`; None for a text of another form."""
    match = re.match(r"([0-9]{1,6}) (.*)", text)
    return (match[2].replace("_", " "), int(match[1])) if match else None


def _id(item: str) -> str:
    """Return an item's id in Minecraft's form."""
    return "minecraft:" + item.replace(" ", "_")
