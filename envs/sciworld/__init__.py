"""SciWorld: do an experiment of elementary science in a house of ten rooms.

Task.     Find a living thing and bring it to a box; boil, melt or freeze a substance; measure a temperature or a
          melting point; close a circuit; test conductivity; mix paints; compare slopes or life spans; name the stages
          of a life; grow a plant or a fruit; cross plants and find the dominant value of a trait. The 30 families are
          in tasks.py, the things in things.py, the actions in actions.py. The rooms, every connection with a door:
    hallway - kitchen, living room, bedroom, workshop, greenhouse, art studio; kitchen - bathroom, outside;
    greenhouse - outside; outside - foundry.

Actions.  Case and articles are ignored. OBJ is any name of a thing within reach, optionally with its container
          (`orange in bowl`, `thermometer in inventory`, `wood cup containing red paint`, `battery anode`).
    open OBJ, close OBJ                            a door or a lid
    activate | turn on OBJ, deactivate | turn off OBJ
    connect OBJ to | in | into OBJ, disconnect OBJ
    use OBJ on | with OBJ
    look | look around, look at | look on | examine OBJ, look in OBJ, read OBJ
    move | put OBJ to | in | into | on OBJ, pick up | get | take OBJ, put down | drop OBJ
    pour OBJ in | into | on | to OBJ, dunk OBJ in | into OBJ, mix | stir OBJ
    go | go to | go through | go into | walk to | walk through | move to | move through | move into OBJ
    eat | consume OBJ, flush OBJ, focus | focus on OBJ
    wait (ten iterations), wait1, inventory, task, reset task, help, objects; teleport [to] ROOM if simplified
          `take[cup]`, `goto[kitchen]`, `use[thermometer, water]` mean `take cup`, `go to kitchen`, `use thermometer on
          water`. The reply to an ambiguous action is a numbered list; the next action is a number of it, or cancels the
          choice.

Replies.  The door is now open. | The door is already open. | The door is not open. | The kitchen is not openable.
    You move to the kitchen.                       It's not clear how to get there from here.
    You move the orange to the inventory.          The sink is not moveable.
    The stove is now activated.                    The counter is not something that can be activated.
    You focus on the water.                        the thermometer measures a temperature of 28 degrees celsius
    anode on battery is now connected to terminal 1 on black wire
    Sodium chloride and water mix to produce salt water.
    Ambiguous request: Please enter the number for the action you intended (or blank to cancel):
    No known action matches that input.            and many more, all in actions.py

Time.     One iteration passes with each executed action, ten with `wait`, none with look around, inventory, task,
          reset task and teleport. In a device that is on, things get warmer or colder by a fixed step up to the
          device's temperature; other temperatures stay. An open tap fills a vessel in its sink; a block slides at a
          steady pace; a part is on while its anode connects to the cathode of a power source and its cathode to an
          anode.
          Animals and plants of a task about life grow in rooms to which open doors lead from the agent (life.py).
          There, in a task about pollination, bees leave an open hive, fly into a flower, take pollen, fly out and into
          the next flower. Three iterations after a flower has got pollen of another plant of its kind, it is a fruit,
          or a seed with one allele of each parent (genetics.py).

Prompts.  native: instructions, an "OK.", the task and a description of the room. A reply is `Thought:\\n...\\n\\n
          Action:\\n...`; the action is everything after the last `Action:`, or empty without one.
          short: one message, an instruction line, the task and the room; the action is the reply's first line.

Reward.   The change of the score: 100 * min(1, done / S + extras / (U * (S + 1))), rounded, for S ordered
          steps and U extras in any order; -100 for a task that has failed, by a focus on the wrong thing or by the
          wrong box. Goals that the first look meets pay nothing. info["score"]: the score. info["shaped"]: 0.15 for
          each goal that is met for the first time in the episode, at most six; 1 on completion.

Ending.   Terminated at score 100, outcome "correct", and by a failure, outcome "incorrect"; truncated, outcome
          "timeout", after `max_turns` replies of any kind.

Levels.   1  find and lifespan tasks in rooms that contain only the task's things, in the first room or the next one;
             the doors are open, and two to four actions are enough
          2  find, lifespan and mixing tasks in the furnished house, from any room, all doors open
          3  all families, from any room, all doors and lids open
          4  the same, with everything closed, as in the original

Fresh.    With `tasks=fresh` names that say nothing about the science are made up for each task: the colours of boxes,
          wires and light bulbs, fruits, nuts, salts and sugar; their own names are unknown there. Tasks about life
          spans draw from 48 animals, not 15. Rooms, substances to heat or cool and paints keep their names, because
          knowing them is part of the task: in the families of paint and of changes of state, fresh tasks differ in
          their houses alone. A hash of the whole house decides the split.

From AllenAI's ScienceWorld 1.2.3 and AgentGym's server for it (Apache-2.0 and MIT): the map, the grammar, the words,
the rule of ambiguity and the score are theirs. The differences:
- Melting points: water is no subject, and an unknown substance is solid at the start. Where a fruit is to be grown, the
  house has no other of its kind; the original pays for any.
- The tasks are drawn by our own generator, with fewer substances; every task can be solved within 30 turns.
- Heat follows the rule above and does not pass between things. Only some substances burn, and they keep burning.
  Nothing breaks or moves by itself, only the animals and plants of tasks about life grow, and none dies of thirst. Bees
  fly from flower to flower in turn instead of at random, stay in the greenhouse, and in tasks without pollination in
  their hive; a plant bears at most ten fruits or seeds. No task needs soil that has to be dug up. Book shelves are
  empty. Drains are not things; a sink's drain is always open.
- Things, and the readings of an ambiguous action, are listed by name or by the order within reach; the original has no
  particular order. At most 30 readings are listed.
- When the step that is due is not a focus, focusing on something else neither counts nor fails.
- The instructions are in our words. Only 300 characters of an action are read. The tasks' sentences are the original's,
  with its mistake: the task of a tertiary colour ends with `focus on the` secondary one, but the tertiary one counts.
"""

import re
from dataclasses import dataclass
from random import Random

from envs import common
from envs.base import Configured, Step
from envs.common import split_of
from envs.names import MadeUp
from envs.refusal import Refusal
from envs.sciworld.actions import Refused
from envs.sciworld.goals import Progress, Task, expert, phrase
from envs.sciworld.house import EASY, SIMPLIFICATIONS, House
from envs.sciworld.labels import draw_labels, hash_of, relabel
from envs.sciworld.rooms import furnish
from envs.sciworld.tasks import FAMILIES, FRESH, NEAR, SHORT

LEVELS = {  # level: families, simplifications
    "1": (NEAR, ("openDoors",)),
    "2": (SHORT, ("openDoors",)),
    "3": (tuple(FAMILIES), ("openDoors", "openContainers")),
    "4": (tuple(FAMILIES), ()),
}
INSTRUCTIONS = """\
You are in a house and have a task of elementary science. Each round you read what happened and choose one action.
OBJ stands for a thing that you can see or carry, LOC for a room. The actions:
open OBJ, close OBJ: a door or a container
activate OBJ, deactivate OBJ: a device
connect OBJ to OBJ, disconnect OBJ: electrical parts, at their anode, cathode, terminal 1 or terminal 2
use OBJ on OBJ: a tool on a thing
look around: the room; look at OBJ: a thing in detail; look in OBJ: what a container holds; read OBJ: a recipe
move OBJ to OBJ, pick up OBJ, put down OBJ: carry things
pour OBJ into OBJ, dunk OBJ into OBJ, mix OBJ: liquids and the contents of a container
go to LOC: through an open door into the next room
eat OBJ, flush OBJ
focus on OBJ: say that this is the thing that the task is about; a wrong one fails the task
wait: let ten iterations pass; wait1: let one pass
task: the task again; inventory: what you carry
If an action is ambiguous, answer with the number of the one that you mean. Write each reply in this form:
Thought:
why this action is next

Action:
the action"""
CONNECT = "connect OBJ to OBJ, disconnect OBJ"
TELEPORT = "teleport to LOC: into any room at once\n"
AGREED = "OK. I'll follow your instructions and try my best to solve the task."
SHORT_PROMPT = "Reply with one action, such as: open door to X, go to X, pick up X, focus on X, move X to Y, wait."
REASONS = {
    "open": "It has to be open first.",
    "go": "What the task needs is further on.",
    "focus": "This is what the task is about.",
    "pick up": "I will need it elsewhere.",
    "move": "This is where it has to be.",
    "look at": "Now I can see how the experiment comes out.",
    "look around": "I have to see what is here.",
    "use": "I have to measure it.",
    "wait": "This takes some time.",
}
VERBS = {"goto": "go to", "pickup": "pick up", "lookat": "look at", "lookin": "look in", "putdown": "put down"}
BETWEEN = {"use": "on", "pour": "into", "dunk": "into"}  # verb[first, second]: the word between the two, if not "to"
MAX_ACTION = 300  # characters read of an action
PROGRESS, MOST = 0.15, 6  # shaped reward of a goal met for the first time, and how often it pays
TRIES = 1000  # tasks drawn before a split counts as empty


@dataclass(frozen=True)
class Config:
    difficulty: str = "2"  # levels 1 to 4, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    tasks: str = "panel"  # "panel": the things' own names; "fresh": made-up names for each seed where science permits
    families: str = ""  # of tasks, a comma list such as "boil,find-plant"; empty: all of the level
    simplifications: str = ""  # "easy", or a comma list of openDoors, teleportAction, ...; added to the level's own
    max_turns: int = 30  # agent turns before the episode is truncated; the expert needs at most 30
    prompt: str = "native"  # "native": instructions and Thought/Action replies; "short": one message, bare actions

    def __post_init__(self):
        common.check_options(self, LEVELS)
        if self.tasks.partition(",")[0] in FAMILIES:
            raise Refusal(f"tasks must be 'panel' or 'fresh'; families={self.tasks} draws from this family")
        common.set_fields(self, tasks=self.tasks or "panel")  # "" in settings saved before there was a choice
        common.check_tasks(self.tasks)
        plain = {name: str(getattr(self, name)).replace(" ", "") for name in ("families", "simplifications")}
        common.set_fields(self, **plain)
        for name, known in (("families", FAMILIES), ("simplifications", (*SIMPLIFICATIONS, "easy"))):
            for word in filter(None, getattr(self, name).split(",")):
                if word not in known:
                    raise Refusal(f"{name} must be from {', '.join(known)}; there is no {word!r}")
        for level in self.difficulty.split(","):
            if not self.families_at(level):
                raise Refusal(f"families must have one of level {level}: {', '.join(LEVELS[level][0])}")

    def families_at(self, level: str) -> list[str]:
        """Return the families to draw from at a level."""
        return [name for name in LEVELS[level][0] if not self.families or name in self.families.split(",")]

    def simplified(self, level: str) -> set[str]:
        """Return the simplifications at a level."""
        own = set(self.simplifications.split(",")) - {""}
        return (own - {"easy"}) | (set(EASY) if "easy" in own else set()) | set(LEVELS[level][1])


def offered(house: House) -> str:
    """Return the instructions, with the actions that the simplifications leave and add."""
    lines = [
        line for line in INSTRUCTIONS.splitlines(keepends=True) if "connect" in house.grammar or CONNECT not in line
    ]
    after = 1 + next(i for i, line in enumerate(lines) if line.startswith("go to"))
    return "".join([*lines[:after], *[TELEPORT] * ("teleport" in house.grammar), *lines[after:]])


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config
    pays_below_0 = True

    @property
    def task(self) -> str:
        """The canonical task: its family, what it is about, and where the agent starts; of a fresh one all of it."""
        return self.key

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"sciworld {split} {seed}")
        level, self.labels = rng.choice(self.config.difficulty.split(",")), {}
        draws = FRESH if self.config.tasks == "fresh" else FAMILIES
        for _ in range(TRIES):
            family = rng.choice(self.config.families_at(level))
            task = draws[family](rng, level == "1")
            self.key = f"sciworld:{family}:{task.key}"
            if self.config.tasks == "fresh":
                self.labels = draw_labels(MadeUp(rng))
                self._start(rng, task, family, level)
                self.key = f"{relabel(self.key, self.labels)}:{hash_of(self.house, self.labels)}"
            if split_of(self.key) == split:
                break
        else:
            raise Refusal(f"no task of level {level} is in split {split}: there are too few")
        if self.config.tasks == "panel":
            self._start(rng, task, family, level)
        self.turns, self.paid = 0, 0
        self.running = True
        observation = relabel(f"{self.house.description}\n{self.house.room.look()}", self.labels)
        return common.opening(self.config.prompt, observation, offered(self.house), AGREED, SHORT_PROMPT)

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        valid, before = True, self.progress.score
        try:
            observation = self.house.act(relabel(self._read(action_text), self.labels))
            self._after_action()
        except Refused as refusal:
            observation, valid = str(refusal), False
        score, over = self.progress.score, self.progress.finished
        won = over and not self.progress.failed
        truncated = not over and self.turns >= self.config.max_turns
        self.running = not (over or truncated)
        shaped = 1.0 if won else self._shaped()
        info = {**common.step_info(won, over, truncated, valid, shaped), "score": score}
        return Step(relabel(observation, self.labels), float(score - before), over, truncated, info)

    def oracle(self) -> str:
        """Return an expert's reply in the current state."""
        common.check_running(self.running)
        action, *things = expert(self.progress, self.plan)
        text = relabel(phrase(self.house, action, *things), self.labels)
        return common.as_reply(self.config.prompt, REASONS.get(action, "This is the next thing to do."), text)

    def _start(self, rng: Random, task: Task, family: str, level: str) -> None:
        """Build the house of a task, put the agent into its room, and look around once."""
        simplified = self.config.simplified(level)
        if "power" in family or "conductivity" in family:
            simplified.discard("noElectricalAction")
        self.house = House(simplified)
        if level != "1":
            furnish(self.house.rooms, rng)
        steps, extras = task.place(self.house)
        self.house.ready()
        self.house.agent.put(self.house.rooms[task.start])
        self.house.description = f"Your task is to {task.description}"
        self.plan = task.plan
        self.progress = Progress(self.house, steps, extras, task.start)
        self.house.after = self.progress.update_steps
        self.progress.update_extras()
        self.progress.new()

    def _after_action(self) -> None:
        if self.house.event[0] == "reset task":
            self.progress.reset()
        self.progress.update_extras()

    def _shaped(self) -> float:
        new = min(self.progress.new(), MOST - self.paid) if not self.progress.failed else 0
        self.paid += new
        return PROGRESS * new

    def _read(self, reply: str) -> str:
        """Return the action in a reply."""
        if self.config.prompt == "short":
            action = common.first_line(reply, MAX_ACTION)
        else:
            action = common.last_action(reply, MAX_ACTION)
        if match := re.fullmatch(r"(\w+) ?\[(.*)\]", action):
            verb, things = match[1].lower(), match[2].replace(",", f" {BETWEEN.get(match[1].lower(), 'to')} ", 1)
            return f"{VERBS.get(verb, verb)} {things}"
        return action
