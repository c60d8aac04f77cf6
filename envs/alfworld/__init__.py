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
          Brackets accept an incomplete name, `goto[table]`, `take[mug]`, `clean[mug]`, `put[mug]`. They stand for the
          first possible action, by kind and number, whose object, or else receptacle, is of that kind or of a kind
          that begins or ends so. Full names work too: `take[mug 1 from desk 1]`.

Replies.  You arrive at fridge 1. The fridge 1 is closed.         if the receptacle does not open:
    On the desk 1, you see a pen 2, a pen 1, and a mug 1.         two: `a pen 1, and a mug 1`; none: `nothing`
    You open the fridge 1. The fridge 1 is open. In it, you see a egg 1.
    You close the fridge 1.
    You pick up the mug 1 from the desk 1.
    You move the mug 1 to the desk 1.                             after put: You put the mug 1 in/on the desk 1.
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

Reward.   1 when the task is done, else 0. info["shaped"]: 0.2 the first time that each stage of the task is reached,
          1 on completion. The stages: an object of the task is seen; taken; at the tool; clean, hot or cool; at the
          target or the lamp; the target opened. `two` adds placing the first, and every stage for the second.

Ending.   Terminated when the task is done; truncated, outcome "timeout", after `max_turns` replies of any kind.

From ALFWorld's text games (MIT; the grammar and rules of 0.4) under AgentGym's server, with these differences:
- Rooms are random, not taken from simulated houses; the original's table says which object may lie where.
- Splits differ in goals (type, object and target), so that a held-out goal is never trained on, in any room.
- The original has `move`, its older games `put`: both work, each with its own reply. The brackets are the guide's.
- Objects lie in receptacles only. A lamp never lies in a receptacle that opens.
- The instructions are in our words. Only 400 characters of an action are read.
"""

import re
from dataclasses import dataclass
from random import Random

from envs import common
from envs.alfworld.rooms import (
    CONTAINS,
    KNIVES,
    LAMPS,
    LEVELS,
    OPENABLE,
    SLICEABLE,
    TEMPLATES,
    TOOLS,
    VESSELS,
    Goal,
    Room,
    canonical,
    draw,
    kind_of,
    order,
)
from envs.base import Environment, Step

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
AGREED = "OK. I'll follow your instructions and try my best to solve the task."
SHORT = "Reply with one command: go to R, open R, take X from R, move X to R, use X, or clean, heat or cool X with R."
HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""
NOTHING = "Nothing happens."
MAX_ACTION = 400  # characters read of an action
PROGRESS = 0.2  # shaped reward of a stage reached for the first time


@dataclass(frozen=True)
class Config:
    difficulty: str = "3"  # levels 1, 2, 3, original, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    max_turns: int = 30  # agent turns before the episode is truncated; every task fits in 30
    prompt: str = "native"  # "native": instructions and Thought/Action replies; "short": one message, bare actions

    def __post_init__(self):
        common.check_options(self, LEVELS)


class Env(Environment):
    """Play one episode at a time; the module's docstring is the specification."""

    def __init__(self, config: Config | None = None):
        self.config = config or Config()
        self.running = False

    @property
    def task(self) -> str:
        """The canonical task: the goal alone, so that a held-out goal is never seen in training."""
        return canonical(self.goal)

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"alfworld {split} {seed}")
        level = rng.choice(self.config.difficulty.split(","))
        while True:
            self.begin(*draw(rng, level, split))
            if self._expert_turns(LEVELS[level].turns) <= LEVELS[level].turns:
                break
        self.begin(self.goal, self.room)
        wording = rng.choice(TEMPLATES[self.goal.task]).format(kind=self.goal.kind, target=self.goal.target)
        around = f"You are in the middle of a room. Looking quickly around you, you see {_listed(self.room.spots)}."
        observation = f"{around}\nYour task is to: {wording}."
        if self.config.prompt == "native":
            observation += f"\nAVAILABLE ACTIONS: {','.join(self.admissible())}"
        return common.opening(self.config.prompt, observation, INSTRUCTIONS, AGREED, SHORT)

    def begin(self, goal: Goal, room: Room) -> None:
        """Start an episode with a given goal and room."""
        self.goal, self.room = goal, room
        self.inside = {place: list(objects) for place, objects in room.inside.items()}
        self.goes = {f"go to {place}": ("go to", "", place) for place in room.spots}
        self.homes = [place for place in room.spots if kind_of(place) == goal.target]
        self.near: list[str] = []  # the receptacles at the agent's place; none in the middle of the room
        self.held = ""
        self.opened: set[str] = set()
        self.states: set[tuple[str, str]] = set()  # (adjective, object): clean, hot, cool, sliced, on
        self.left: set[tuple[str, str]] = set()  # (object, the receptacle that it was taken from)
        self.seen: set[str] = set()  # receptacles whose contents the agent has seen
        self.paid: set[tuple] = set()  # stages that have paid their shaped reward
        self.turns = 0
        self.running = True

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        action = self._plain(self._read(action_text))
        old = re.fullmatch(r"put (.+) in/on (.+)", action)
        act = self._meant(f"move {old[1]} to {old[2]}" if old else action)
        observation = self._do(*act) if act else NOTHING
        if act and old:
            observation = f"You put the {old[1]} in/on the {old[2]}."
        won = self._done()
        shaped = 1.0 if won else self._progress(*act) if act else 0.0
        truncated = not won and self.turns >= self.config.max_turns
        self.running = not (won or truncated)
        info = common.step_info(won, won, truncated, act is not None, shaped)
        return Step(observation, float(won), won, truncated, info)

    def oracle(self) -> str:
        """Return the reply of an expert that knows only what the agent has seen, and searches for the rest."""
        common.check_running(self.running)
        action, reason = self._next()
        return common.as_reply(self.config.prompt, reason, action)

    def admissible(self) -> list[str]:
        """Return all possible commands, sorted as in the original."""
        return sorted(self.commands())

    def commands(self) -> dict[str, tuple[str, str, str]]:
        """Return all possible commands as {command: (verb, object, receptacle)}; "" where there is none."""
        return {text: act for text, act in self.goes.items() if act[2] not in self.near} | self._here()

    def _meant(self, command: str) -> tuple[str, str, str] | None:
        """Return `self.commands().get(command)` without listing every place to go to."""
        go = self.goes.get(command)
        return self._here().get(command) if go is None else None if go[2] in self.near else go

    def _here(self) -> dict[str, tuple[str, str, str]]:
        """Return the possible commands other than going elsewhere."""
        held = self.held
        found = {verb: (verb, "", "") for verb in ("look", "inventory", "help")}
        if held:
            found[f"examine {held}"] = ("examine", held, "")
        for place in self.near:
            kind = kind_of(place)
            found[f"examine {place}"] = ("examine", "", place)
            if kind in OPENABLE:
                verb = "close" if place in self.opened else "open"
                found[f"{verb} {place}"] = (verb, "", place)
            if held and self._open(place) and kind_of(held) in CONTAINS[kind]:
                found[f"move {held} to {place}"] = ("move", held, place)
            for thing in self.inside[place]:
                if kind_of(thing) in LAMPS:
                    found[f"use {thing}"] = ("use", thing, place)
                elif not held and self._open(place):
                    found[f"take {thing} from {place}"] = ("take", thing, place)
                elif held and kind_of(held) in KNIVES and kind_of(thing) in SLICEABLE:
                    found[f"slice {thing} with {held}"] = ("slice", thing, place)
            for verb, (tool, _, able) in TOOLS.items():
                if held and kind == tool and kind_of(held) in able:
                    found[f"{verb} {held} with {place}"] = (verb, held, place)
        return found

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
        for text, (found, thing, place) in self.commands().items():
            if found == verb and (fit := _fit(match[2], thing or place)):
                fitting.append((fit, text))
        if not fitting:
            return f"{match[1].replace('goto', 'go to')} {match[2].strip()}".strip()
        plain = min(fitting)[1]
        return re.sub("move (.*) to (.*)", r"put \1 in/on \2", plain) if match[1] == "put" else plain

    def _open(self, place: str) -> bool:
        return kind_of(place) not in OPENABLE or place in self.opened

    def _do(self, verb: str, thing: str, place: str) -> str:
        """Execute a possible action. Return the reply."""
        if verb == "go to":
            self.near = [name for name, spot in self.room.spots.items() if spot == self.room.spots[place]]
            return f"You arrive at {place}. {self._view(place)}"
        if verb == "open":
            self.opened.add(place)
            return f"You open the {place}. {self._view(place)}"
        if verb == "close":
            self.opened.remove(place)
            return f"You close the {place}."
        if verb == "take":
            self.inside[place].remove(thing)
            self.held = thing
            self.left.add((thing, place))
            return f"You pick up the {thing} from the {place}."
        if verb == "move":
            self.inside[place] = sorted([*self.inside[place], thing], key=order)
            self.held = ""
            self.left.discard((thing, place))
            return f"You move the {thing} to the {place}."
        if verb in TOOLS:
            self.states -= {("hot", thing), ("cool", thing)} if verb != "clean" else set()
            self.states.add((TOOLS[verb][1], thing))
            return f"You {verb} the {thing} using the {place}."
        if verb == "use":
            self.states.add(("on", thing))
            return f"You turn on the {thing}."
        if verb == "slice":
            self.states.add(("sliced", thing))
            return f"You sliced the {thing} with the {self.held}."
        if verb == "examine":
            return self._view(place) if place else self._nature(thing)
        if verb == "look":
            return self._around()
        if verb == "inventory":
            return f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."
        return HELP

    def _view(self, place: str) -> str:
        """Describe a receptacle and, if it is open, its contents."""
        if not self._open(place):
            return f"The {place} is closed."
        self.seen.add(place)
        where = f"The {place} is open. In it" if kind_of(place) in OPENABLE else f"On the {place}"
        return f"{where}, you see {_listed(self.inside[place])}."

    def _nature(self, thing: str) -> str:
        """Describe the object in hand."""
        if kind_of(thing) in VESSELS:
            return f"This is a normal {thing}. In it, you see nothing."
        hot, cool, clean, sliced = (
            (adjective, thing) in self.states for adjective in ("hot", "cool", "clean", "sliced")
        )
        if cool and not clean and not sliced:
            return f"This is a cold {thing}."
        treated = " and ".join(["hot"] * hot + ["cool"] * cool + ["clean"] * clean)
        words = " ".join(filter(None, [treated, "sliced" * sliced]))
        return f"This is a {words} {thing}." if words else f"There's nothing special about {thing}."

    def _around(self) -> str:
        if not self.near:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        things = sorted((thing for place in self.near for thing in self.inside[place]), key=order)
        loose = [thing for thing in things for place in self.near if (thing, place) in self.left]
        return f"You are facing the {_joined(self.near)}. Next to it, you see {_listed(loose)}."

    def _ready(self, thing: str) -> bool:
        """Return whether an object has the goal's kind and the goal's treatment (clean, hot, cool)."""
        task, kind, _ = self.goal
        return kind_of(thing) == kind and (task not in TOOLS or (TOOLS[task][1], thing) in self.states)

    def _done(self) -> bool:
        if self.goal.task == "look":
            lit = any(("on", lamp) in self.states for lamp in self._lamps(self.near))
            return bool(self.held) and kind_of(self.held) == self.goal.kind and lit
        return self._home()[1] >= 1 + (self.goal.task == "two")

    def _lamps(self, places) -> list[str]:
        return [thing for place in places for thing in self.inside[place] if kind_of(thing) == self.goal.target]

    def _home(self) -> tuple[str, int]:
        """Return the target receptacle and how many of the goal's objects it contains.

        Of the receptacles of the target kind: the one with most such objects; if none has any, the one where the agent
        stands, else an open one, else the first.
        """
        counts = {place: sum(map(self._ready, self.inside[place])) for place in self.homes}
        if any(counts.values()):
            home = max(counts, key=counts.get)
        else:
            home = max(counts, key=lambda place: (place in self.near, self._open(place)))
        return home, counts[home]

    def _progress(self, verb: str, thing: str, place: str) -> float:
        """Return the shaped reward of an action. Each stage pays once."""
        stage = self._stage(verb, thing, place)
        if stage is None or stage in self.paid:
            return 0.0
        self.paid.add(stage)
        return PROGRESS

    def _stage(self, verb: str, thing: str, place: str) -> tuple[str, int] | None:
        """Return the stage that an action has reached and the number of objects already placed; None for no stage."""
        task, kind, target = self.goal
        home, count = ("", 0) if task == "look" else self._home()
        ours = bool(self.held) and kind_of(self.held) == kind
        if not ours and verb in ("go to", "open", "examine"):
            shown = self.inside[place] if place in self.seen and self._open(place) else []
            away = [name for name in shown if kind_of(name) == kind and not (place == home and self._ready(name))]
            return ("seen", count) if away else None
        if ours and verb == "go to":
            if task == "look":
                return ("at the lamp", 0) if self._lamps(self.near) else None
            aim, stage = (target, "at the target") if self._ready(self.held) else (TOOLS[task][0], "at the tool")
            return (stage, count) if any(kind_of(name) == aim for name in self.near) else None
        if verb == "open":
            return ("opened", count) if self._ready(self.held) and kind_of(place) == target else None
        if thing and kind_of(thing) == kind and verb in ("take", task):
            return (verb, count)
        return ("placed", count) if verb == "move" and count else None

    def _next(self) -> tuple[str, str]:
        """Return an expert's next action and its reason."""
        task, kind, target = self.goal
        held = self.held
        if held and kind_of(held) != kind:
            places = [place for place in self.room.spots if kind_of(held) in CONTAINS[kind_of(place)]]
            place = max(places, key=lambda place: (place in self.near, self._open(place)))
            return self._reach(place) or (f"move {held} to {place}", f"I need my hands for a {kind}: I put this down.")
        if held and task == "look":
            for place in self.room.spots:
                if place in self.seen and (lamps := self._lamps([place])):
                    return self._reach(place) or (
                        f"use {lamps[0]}",
                        f"I hold the {kind} at the {target}: I turn it on.",
                    )
            return self._search(target, LAMPS[target])
        if held and not self._ready(held):
            tool = next(place for place in self.room.spots if kind_of(place) == TOOLS[task][0])
            go = f"go to {tool}", f"I {task} the {kind} at the {kind_of(tool)}."
            return (f"{task} {held} with {tool}", f"I am at the {kind_of(tool)}.") if tool in self.near else go
        home = self._home()[0] if task != "look" else ""
        if held:
            return self._reach(home) or (f"move {held} to {home}", f"This is the place for the {kind}: I put it here.")
        known = [
            (place, thing)
            for place in self.room.spots
            for thing in self.inside[place]
            if kind_of(thing) == kind and place in self.seen and not (place == home and self._ready(thing))
        ]
        if known:
            place, thing = max(known, key=lambda candidate: candidate[0] in self.near)
            return self._reach(place) or (f"take {thing} from {place}", f"There is a {kind}: I take it.")
        return self._search(
            kind, [place for place in CONTAINS if kind in CONTAINS[place] and (task, place) != ("place", target)]
        )

    def _reach(self, place: str) -> tuple[str, str] | None:
        """Return the next action towards a receptacle and its reason; None if the agent stands at it and it is open."""
        if place not in self.near:
            return f"go to {place}", f"I want to be at the {place}."
        return None if self._open(place) else (f"open {place}", f"The {place} is closed.")

    def _search(self, kind: str, places) -> tuple[str, str]:
        """Return the next action of a search in unseen receptacles of these kinds, near and open ones first."""
        unseen = [place for place in self.room.spots if place not in self.seen and kind_of(place) in places]
        place = max(unseen, key=lambda place: (place in self.near, self._open(place)))
        action, _ = self._reach(place) or (f"examine {place}", "")
        return action, f"There may be a {kind} in or on the {place}."

    def _expert_turns(self, most: int) -> int:
        """Play the expert to the end. Return its number of actions, or `most` + 1 if it needs more than `most`."""
        turns = 0
        while turns <= most and not self._done():
            self._do(*self._meant(self._next()[0]))
            turns += 1
        return turns


def _fit(words: str, name: str) -> tuple | None:
    """Return a sort key for how well the words of an action name an object (less is better); None if they do not."""
    if not name:
        return None
    sought = words.replace(" ", "").lower()
    kind, number = order(name)
    exact = sought in (kind, name.replace(" ", ""))
    part = len(sought) > 2 and (kind.startswith(sought) or kind.endswith(sought))
    return (not exact, kind, -number) if exact or part else None


def _joined(words) -> str:
    words = list(words)
    return ", ".join(words[:-1]) + ", and " + words[-1] if len(words) > 1 else "".join(words) or "nothing"


def _listed(names) -> str:
    return _joined(f"a {name}" for name in names)
