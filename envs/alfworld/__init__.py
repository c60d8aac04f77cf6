"""ALFWorld: household tasks in text. Find an object, clean, heat or cool it, and put it where it belongs.

Task.     One of six types, each in two wordings, over a room of receptacles and objects (`cabinet 2`, `mug 1`):
    place     put a mug in desk                       put some mug on desk
    look      look at book under the desklamp         examine the book with the desklamp
    clean     put a clean mug in desk                 clean some mug and put it in desk
    heat      put a hot mug in desk                   heat some mug and put it in desk
    cool      put a cool mug in desk                  cool some mug and put it in desk
    two       put two mug in desk                     find two mug and put them in desk
          Any mug and any desk will do; `two` needs both on the same one; `look` needs it in hand beside a lit lamp.
          A room is a kitchen, a bedroom, a living room or a bathroom. The levels of difficulty:
    1         2 receptacles, none of which opens, at most 3 objects and a lamp; place and look; 3 or 4 actions
    2         3 or 4 receptacles; all but two; an expert needs at most 8 actions
    3         6 to 9 receptacles; all types; an expert needs at most 15 actions
    original  8 to 40 receptacles and some 15 to 30 objects, as in the original; an expert needs at most 30 actions

Actions.  Spelled exactly, and only if possible now (Env.admissible lists these); otherwise `Nothing happens.`
    go to R                 R is not where the agent is; receptacles may share a place
    open R, close R         at R, which is a cabinet, drawer, fridge, microwave or safe
    take O from R           at R, R open, hands empty, O no lamp
    move O to R             O in hand, at R, R open and fit to hold O; also `put O in/on R`
    clean O with R          O in hand, at a sinkbasin; also cool at a fridge, heat at a microwave, which may be closed
    use O                   O is a lamp, and here
    slice O with K          K in hand, a knife or a butterknife; O is food of the kind that is sliced, and here
    examine R, examine O    at R, or with O in hand
    look, inventory, help
          dialect=0.3, that of AgentGym's server, has put O in/on R and neither move nor help.
          Brackets accept an incomplete name: `goto[table]`, `take[mug]`, `clean[mug]`, `put[mug]`. They mean the first
          possible action, by kind and number, whose object (or receptacle, if it has no object) is of that kind or of
          a kind that begins or ends with that word. Full names work too: `take[mug 1 from desk 1]`.

Replies.  You arrive at fridge 1. The fridge 1 is closed.         if the receptacle does not open:
    On the desk 1, you see a pen 2, a pen 1, and a mug 1.         two: `a pen 1, and a mug 1`; none: `nothing`
    You open the fridge 1. The fridge 1 is open. In it, you see a egg 1.
    You close the fridge 1.
    You pick up the mug 1 from the desk 1.
    You move the mug 1 to the desk 1.                             after put: You put the mug 1 in/on the desk 1.
          dialect=0.3: `go to` answers without `You arrive at fridge 1. ` (there `loc 7`, which the server removes).
    You clean the mug 1 using the sinkbasin 1.                    likewise heat and cool
    You turn on the desklamp 1.                                   it stays on; repeating says the same
    You sliced the egg 1 with the knife 1.
    You are facing the drawer 2, and drawer 1. Next to it, you see nothing.      receptacles that share a place also
                                                                  list objects moved from one to the other
    You are in the middle of a room. Looking quickly around you, you see nothing.      before the first go
    You are carrying: a mug 1.                                    or: You are not carrying anything.
    This is a hot and clean sliced egg 1.                         any combination; cool alone is `a cold`
    This is a normal mug 1. In it, you see nothing.               for bowls, boxes, cups, mugs, pans, plates, pots
    There's nothing special about pen 1.

Prompts.  native: instructions, an "OK.", and the room, the task and the possible actions. A reply is
          `Thought:\\n...\\n\\nAction:\\n...`; the action is everything after the last `Action:`, or empty without one.
          short: one message, an instruction line, the room and the task; the action is the reply's first line.

Tasks.    panel: the goals of the tables. fresh: such rooms, with one of three names for each kind, and drawn numbers.

Reward.   1 when the task is done, else 0. info["shaped"]: 0.2 the first time that each stage of the task is reached,
          1 on completion. The stages: an object of the task is seen; taken; at the tool; clean, hot or cool; at the
          target or the lamp; the target opened. `two` adds placing the first, and every stage for the second.

Ending.   Terminated when the task is done; truncated, outcome "timeout", after `max_turns` replies of any kind.

From ALFWorld's text games (MIT; the grammar and rules of 0.4) under AgentGym's server, with these differences:
- Rooms are random, not taken from simulated houses; the original's table says which receptacle may hold which object.
- Splits differ in goals (type, object and target), so that a held-out goal is never trained on, in any room.
- The original has `move` since 0.4, and `put` before, in the games of AgentGym's server (0.3.3). dialect=0.4 takes
  both, each with its own reply; dialect=0.3 is what that server speaks. The brackets are the guide's.
- Objects are only in receptacles. A lamp is never in a receptacle that opens.
- The instructions are in our words. Only 400 characters of an action are read.
"""

import re
from dataclasses import dataclass
from random import Random

from envs import common
from envs.alfworld.expert import next_action, turns_needed
from envs.alfworld.house import House, listed
from envs.alfworld.rooms import LEVELS, TEMPLATES, TOOLS, Goal, Room, canonical, draw, kind_of, order, renamed
from envs.base import Configured, Step
from envs.common import split_of
from envs.refusal import Refusal

INSTRUCTIONS = """\
You are in a room of a house and have a task to do there. First you are told what stands around you, your task, and \
the actions that are possible at the start; after each action, what came of it. What is possible changes as you act. \
The actions, where X is an object and R a receptacle, each with its number:
go to R, open R, close R, examine R: walk to a receptacle, open or close it, look at what is in it.
take X from R, move X to R: pick up an object, put it down. You can carry one.
clean X with R, heat X with R, cool X with R: with what you carry, at a sinkbasin, a microwave or a fridge.
use X: turn on a lamp. slice X with K: with a knife K that you carry.
examine X, look, inventory, help: what you carry, where you are, and what you can say.
"Nothing happens." means that the action is not possible now: try another one. Write each reply in this form:
Thought:
why this action is next

Action:
the action"""
OLDER = {  # words of the prompts in 0.4 -> in 0.3
    "move X to R": "put X in/on R",
    "examine X, look, inventory, help: what you carry, where you are, and what you can say.": "examine X, look, "
    "inventory: what you carry and where you are.",
}
DIALECTS = ("0.4", "0.3")
AGREED = "OK. I'll follow your instructions and try my best to solve the task."
SHORT = "Reply with one command: go to R, open R, take X from R, move X to R, use X, or clean, heat or cool X with R."
NOTHING = "Nothing happens."
MAX_ACTION = 400  # characters read of an action
PROGRESS = 0.2  # shaped reward of a stage reached for the first time


@dataclass(frozen=True)
class Config:
    difficulty: str = "3"  # levels 1, 2, 3, original, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    max_turns: int = 30  # agent turns before the episode is truncated; every task fits in 30
    prompt: str = "native"  # "native": instructions and Thought/Action replies; "short": one message, bare actions
    dialect: str = "0.4"  # ALFWorld's grammar: "0.4": move X to R; "0.3": put X in/on R, as AgentGym's server has it
    tasks: str = "panel"  # "panel": the tables' names; "fresh": other names and numbers for each seed

    def __post_init__(self):
        common.check_options(self, LEVELS)
        common.check_tasks(self.tasks)
        if self.dialect not in DIALECTS:
            raise Refusal(f"dialect must be '0.4' or '0.3', not {self.dialect!r}")


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config

    @property
    def task(self) -> str:
        """The canonical task: the goal alone, so that a held-out goal is never seen in training.

        A fresh task is the goal and the room.
        """
        return canonical(self.goal, None if self.config.tasks == "panel" else self.room)

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"alfworld {split} {seed}")
        level = rng.choice(self.config.difficulty.split(","))
        while True:
            house = self._drawn(rng, level, split)
            if turns_needed(house, LEVELS[level].turns) <= LEVELS[level].turns:
                break
        self.begin(house.goal, house.room, house.words)
        kind, target = map(self.house.word, self.goal[1:])
        wording = rng.choice(TEMPLATES[self.goal.task]).format(kind=kind, target=target)
        around = f"You are in the middle of a room. Looking quickly around you, you see {listed(self.room.spots)}."
        observation = f"{around}\nYour task is to: {wording}."
        if self.config.prompt != "short":
            observation += f"\nAVAILABLE ACTIONS: {','.join(self.admissible())}"
        instructions, short = INSTRUCTIONS, SHORT
        if self.config.dialect == "0.3":
            for new, old in OLDER.items():
                instructions, short = instructions.replace(new, old), short.replace(new, old)
        return common.opening(self.config.prompt, observation, instructions, AGREED, short)

    def _drawn(self, rng: Random, level: str, split: str) -> House:
        """Draw a house of a split, which may need more turns than the level has."""
        if self.config.tasks == "panel":
            return House(*draw(rng, level, split))
        goal, room = draw(rng, level)
        while True:
            new, words = renamed(room, rng)
            if split_of(canonical(goal, new)) == split:
                return House(goal, new, words)

    def begin(self, goal: Goal, room: Room, words: dict[str, str] | None = None) -> None:
        """Start an episode with a given goal, room and aliases."""
        self.goal, self.room = goal, room
        self.house = House(goal, room, words)
        self.paid: set[tuple] = set()  # stages that have paid their shaped reward
        self.turns = 0
        self.running = True

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        action = self._plain(self._read(action_text))
        old = re.fullmatch(r"put (.+) in/on (.+)", action)
        act = self.house.meant(f"move {old[1]} to {old[2]}" if old else action)
        if act and not old and act[0] in self._missing:
            act = None
        observation = self.house.do(*act) if act else NOTHING
        if act and old:
            observation = f"You put the {old[1]} in/on the {old[2]}."
        elif act and act[0] == "go to" and self.config.dialect == "0.3":
            observation = observation.partition(". ")[2]
        won = self.house.done()
        shaped = 1.0 if won else self._progress(*act) if act else 0.0
        truncated = not won and self.turns >= self.config.max_turns
        self.running = not (won or truncated)
        info = common.step_info(won, won, truncated, act is not None, shaped)
        return Step(observation, float(won), won, truncated, info)

    def oracle(self) -> str:
        """Return the reply of an expert that knows only what the agent has seen, and searches for the rest."""
        common.check_running(self.running)
        action, reason = next_action(self.house)
        return common.as_reply(self.config.prompt, reason, self._spoken(action))

    def admissible(self) -> list[str]:
        """Return all possible commands, sorted as in the original."""
        if self.config.dialect == "0.4":
            return sorted(self.house.commands())
        return sorted(self._spoken(text) for text in self.house.commands() if text != "help")

    @property
    def _missing(self) -> tuple[str, ...]:
        """The verbs that the dialect does not have."""
        return ("move", "help") if self.config.dialect == "0.3" else ()

    def _spoken(self, command: str) -> str:
        """Return a command in the dialect."""
        return older(command) if self.config.dialect == "0.3" else command

    def _read(self, reply: str) -> str:
        """Return the action in a reply."""
        if self.config.prompt == "short":
            return common.first_line(reply, MAX_ACTION)
        return common.last_action(reply, MAX_ACTION)

    def _plain(self, action: str) -> str:
        """Return an action in brackets as the plain command; return any other action unchanged."""
        match = re.fullmatch(r"([a-z]+) ?\[([^][]*)\]", action)
        if not match:
            return action
        verb = {"goto": "go to", "put": "move"}.get(match[1], match[1])
        fitting = []
        for text, (found, thing, place) in self.house.commands().items():
            if found == verb and (fit := _fit(match[2], thing or place)):
                fitting.append((fit, text))
        if not fitting:
            return f"{match[1].replace('goto', 'go to')} {match[2].strip()}".strip()
        plain = min(fitting)[1]
        return older(plain) if match[1] == "put" else plain

    def _progress(self, verb: str, thing: str, place: str) -> float:
        """Return the shaped reward of an action. Each stage pays once."""
        stage = self._stage(verb, thing, place)
        if stage is None or stage in self.paid:
            return 0.0
        self.paid.add(stage)
        return PROGRESS

    def _stage(self, verb: str, thing: str, place: str) -> tuple[str, int] | None:
        """Return the stage that an action reaches and the number of objects already placed; None for no stage."""
        house, (task, kind, target) = self.house, self.goal
        home, count = ("", 0) if task == "look" else house.home()
        ours = bool(house.held) and kind_of(house.held) == kind
        if not ours and verb in ("go to", "open", "examine"):
            shown = house.inside[place] if place in house.seen and house.is_open(place) else []
            away = [name for name in shown if kind_of(name) == kind and not (place == home and house.ready(name))]
            return ("seen", count) if away else None
        if ours and verb == "go to":
            if task == "look":
                return ("at the lamp", 0) if house.lamps(house.near) else None
            aim, stage = (target, "at the target") if house.ready(house.held) else (TOOLS[task][0], "at the tool")
            return (stage, count) if any(kind_of(name) == aim for name in house.near) else None
        if verb == "open":
            return ("opened", count) if house.ready(house.held) and kind_of(place) == target else None
        if thing and kind_of(thing) == kind and verb in ("take", task):
            return (verb, count)
        return ("placed", count) if verb == "move" and count else None


def older(command: str) -> str:
    """Return a command as it was before 0.4."""
    return re.sub("move (.*) to (.*)", r"put \1 in/on \2", command)


def _fit(words: str, name: str) -> tuple | None:
    """Return a sort key for how well words name an object (less is better); None if they do not name it."""
    if not name:
        return None
    sought = words.replace(" ", "").lower()
    kind, number = order(name)
    exact = sought in (kind, name.replace(" ", ""))
    part = len(sought) > 2 and (kind.startswith(sought) or kind.endswith(sought))
    return (not exact, kind, -number) if exact or part else None
