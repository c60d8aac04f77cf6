"""BabyAI: carry out a mission in a grid of rooms, seen from where the agent stands.

Task.     `Your goal: put the red ball next to a blue key`. Rooms with walls and doors, and keys, balls and boxes in six
          colours. A locked door opens with a key of its colour. The agent sees the 7 x 7 cells in front of it, except
          behind walls and closed doors. Missions, with "the" if one object fits and "a" if several do:
    go to X                                     face it, one step away
    open D                                      toggle it open
    pick up X                                   with empty hands; X may be "the red object"; always "a grey object",
                                                since walls are grey objects too
    put X next to Y                             drop it on one of Y's four sides
    A and B                                     in any order; a finished part stays finished
    A, then B; B after you A                    in this order; the goal line says "and" in all three cases
          X may end in `in front of you`, `behind you`, `on your left`, `on your right`: as seen by the agent at the
          start, in its first room.

Actions.  Each is a list of primitives; execution stops at the first one that does not change the view.
    turn left, turn right, move forward
    go to red ball 1                            face it, by the shortest path within the view
    pickup red ball 1                           (one word) go there and take it
    drop                                        onto the cell ahead
    toggle                                      a closed door ahead, or a locked one with its key in hand
    go through red open door 1                  ends on the door's cell, as does the next
    toggle and go through red closed door 1     or `red locked door 1`, with its key in hand
    check available actions
          `goto[red ball 1]`, `pickup[...]` and so on mean the plain form. Objects of one name are numbered from near to
          far; `go to` and `pickup` number only objects that can be reached.

Replies.  The view in words; the native form adds a last line with all available actions.
    In front of you in this room, you can see several objects: There is a grey key 1 1 steps in front of you and 1 steps
    to your left.  There is a red ball 1 right in front of you 3 steps away.  The room has walls around you. You are
    facing a wall 6 steps away. You are not carrying anything.
    You cannot see any objects within sight.    if not even a wall is in view
     The task is completed.                     an extra line when the mission is done or failed
    You can take the following actions: turn left, turn right, ...
    No change in state.                         an empty action, or `go to` an object already faced
    There is a barrier in front of you, you can't move forward.
    You cannot drop the object, as you are not carrying anything.
    You cannot drop the object, as there is already an object in front of you.
    You cannot go to red ball 1, as there is no path leading to it.    likewise pickup, (toggle and) go through
    You cannot go through red closed door 1, as it is closed. You should toggle it first.
    You cannot toggle and go through red locked door 1, as you are not carrying a key.
    ... as the color of the key you are carrying does not match the color of door.
    The action is not recognized. Please check valid actions.

Prompts.  native: instructions, an "OK.", the observation. A reply is `Thought:\\n...\\n\\nAction:\\n...`; the action is
          the line that follows `Action:`, reduced to letters, digits, commas and spaces. Without the marker it is
          empty; with several markers nothing is executed and the reply says so.
          short: one message; the action is the reply's first line. The view has one line per object,
          `red ball 1: ahead 2 left 1`, and no list of actions.

Reward.   1 - 0.9 * primitives / budget when the mission is done. The budget is the level's own, or the area of all
          rooms for each walk that the mission takes (`put` takes two). info["shaped"]: 1 then, and nothing on the way.

Ending.   Terminated when the mission is done; truncated, outcome "timeout", after `max_turns` replies of any kind. An
          action's last primitive decides: `toggle and go through` a door that the mission wants open does not count,
          and leaves it open for good. A mission that is done for a reward of 0.5 or less, or has failed, reports that
          it is completed but goes on. Levels 15, 16 and 20 fail on a wrong door or object; in level 16, opening the
          first of two doors fails too, since it is not the second.

Levels.   The 40 of the original by number or name; `difficulty` groups them (see DIFFICULTY).
    1-11   GoToRedBallGrey, GoToRedBall, GoToRedBallNoDists, GoToObjS6, GoToLocalS8N7, GoToObjMazeS7, GoToImpUnlock,
           GoToSeqS5R2, GoToRedBlueBall, GoToDoor, GoToObjDoor
    12-16  Open, OpenRedDoor, OpenDoorLoc, OpenRedBlueDoorsDebug, OpenDoorsOrderN4Debug
    17-21  Pickup, UnblockPickup, PickupLoc, PickupDistDebug, PickupAbove
    22-23  PutNextLocalS6N4, PutNextS7N4Carrying
    24-29  Unlock, UnlockLocalDist, KeyInBox, UnlockPickupDist, BlockedUnlockPickup, UnlockToUnlock
    30-40  ActionObjDoor, FindObjS7, KeyCorridorS6R3, OneRoomS20, MoveTwoAcrossS8N9, SynthS5R2, SynthLoc, SynthSeq,
           MiniBossLevel, BossLevel, BossLevelNoUnlock
          With `tasks=fresh` each of the six colours has a made-up name for each task, which the goal, the observations
          and the actions use; its own name is unknown there.
          The room of GoToObjS6 has 4 x 4 cells, its walls included, as in AgentGym's Minigrid, and not 6 x 6.

From Farama's Minigrid (Apache-2.0) and AgentGym's server for it (MIT), with these differences:
- Layouts come from our own generator, not from Minigrid's seeds. A task is redrawn until the expert does it within
  `max_turns`, so the largest levels contain only the tasks that fit. A hash of the whole initial state decides the
  split.
- A box that holds a key can be toggled. In the original only doors can, and level 26 is impossible.
- The reward is paid once, at the end; the original repeats that of a late success with every later reply, and adds it
  to its score each time. env=http ends the episode at the first.
- The instructions are in our words. Like the original's they say `pick up`, while the action, as listed with every
  observation, is `pickup`. Only 400 characters of an action are read.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random

from envs import common
from envs.babyai.expert import next_action
from envs.babyai.grid import COLOURS, DOOR, cell, xy
from envs.babyai.levels import LEVELS
from envs.babyai.maze import Redraw
from envs.babyai.missions import Game
from envs.babyai.text import look
from envs.base import Configured, Step
from envs.common import split_of
from envs.names import MadeUp
from envs.refusal import Refusal

DIFFICULTY = {
    "1": (3, 4),  # go to the only object of one room
    "2": (1, 2, 5, 9, 19, 20, 22),  # one room with several objects: go to one, pick it up, put it next to another
    "3": (10, 11, 13, 14, 15, 16, 23, 30),  # doors around the room to go to or to open; two joined rooms
    "4": (6, 7, 8, 12, 17, 18, 21, 24, 25, 26, 27, 28, 29, 31, 32, 33),  # mazes, locks and keys
    "5": (34, 35, 36, 37, 38, 39, 40),  # missions of several parts in mazes
}
INSTRUCTIONS = """\
You explore a grid of rooms until you have done what your goal says. In each round you read what you see from where \
you stand and which actions are available, and you reply with a thought and one action.
The actions:
turn left
turn right
move forward
go to <obj> <id>: stand before an object or a door that you see.
pick up <obj> <id>: go to an object and take it. You can carry one.
drop: put what you carry down in front of you.
go through <door> <id>: the door must be open.
toggle and go through <door> <id>: the door may be closed, or locked if you carry a key of its colour.
toggle: open the closed door right in front of you, or the locked one that your key fits.
check available actions: list what you can do.
Write each reply in this form:
Thought:
why this action is next

Action:
the action"""
AGREED = "OK. I'll follow your instructions and try my best to solve the task."
SHORT = "Reply with one action: turn left, turn right, move forward, go to X, pickup X, drop, toggle, go through X, \
toggle and go through X."
UNKNOWN = "The action is not recognized. Please check valid actions."
LATE = 0.5  # a mission that is done for this reward or less does not end the episode
MAX_ACTION = 400  # characters read of an action
TRIES = 1000  # tasks drawn before a level counts as empty; the rarest level accepts one in 45


@dataclass(frozen=True)
class Config:
    difficulty: str = "2"  # 1 to 5, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    tasks: str = "panel"  # "panel": the six colours' own names; "fresh": made-up names of the colours for each seed
    level: str = ""  # levels of the original by number or name, a comma list such as 5,BossLevel; empty: by difficulty
    max_turns: int = 20  # agent turns before the episode is truncated; every task fits in them
    prompt: str = "native"  # "native": full sentences and Thought/Action replies; "short": few words, bare actions

    def __post_init__(self):
        common.check_options(self, DIFFICULTY)
        common.check_tasks(self.tasks)
        common.set_fields(self, level=str(self.level).replace(" ", ""))
        for name in self.level.split(",") if self.level else ():
            if name not in LEVELS and name not in map(str, range(1, len(LEVELS) + 1)):
                plain = {known.lower(): known for known in LEVELS}
                close = get_close_matches(name.lower(), plain, n=1)
                wrong = f"{name or self.level!r}" + (f"; did you mean {plain[close[0]]!r}?" if close else "")
                raise Refusal(f"level must be a comma list of numbers 1 to 40 or of names, not {wrong}")

    def draw_level(self, rng: Random) -> str:
        """Draw the name of a level."""
        names = list(LEVELS)
        if self.level:
            name = rng.choice(self.level.split(","))
            return name if name in LEVELS else names[int(name) - 1]
        return names[rng.choice(DIFFICULTY[rng.choice(self.difficulty.split(","))]) - 1]


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"babyai {split} {seed}")
        self.level = self.config.draw_level(rng)
        self.game, self.colours, self.task = self._draw(rng, split)
        self.sight = look(self.game.grid)
        self.turns = 0
        self.running = True
        goal = re.sub("then|after you", "and", str(self.game.mission))
        observation = f"Your goal: {goal}\n{self._said(self._seen())}"
        return common.opening(self.config.prompt, self._renamed(observation), INSTRUCTIONS, AGREED, SHORT)

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        action = self._read(action_text)
        observation, valid, reward = (
            (common.SEVERAL, False, 0.0) if action is None else self._act(self._renamed(action))
        )
        won = reward > 0
        truncated = not won and self.turns >= self.config.max_turns
        self.running = not (won or truncated)
        info = common.step_info(won, won, truncated, valid, float(won))
        return Step(self._renamed(observation), reward, won, truncated, info)

    def oracle(self) -> str:
        """Return an expert's reply in the current state."""
        common.check_running(self.running)
        action, reason = next_action(self.game, self.sight)
        return common.as_reply(self.config.prompt, self._renamed(reason), self._renamed(action))

    def _renamed(self, text: str) -> str:
        """Return a text in which the names of colours and a fresh task's own names of them have changed places."""
        return re.sub("[a-z]+", lambda found: self.colours.get(found[0], found[0]), text)

    def _draw(self, rng: Random, split: str) -> tuple[Game, dict[str, str], str]:
        """Draw a task of the split that the expert does within the turn limit.

        Return it, the names that change places (none unless it is fresh), and the canonical task.
        """
        for _ in range(TRIES):
            try:
                game = LEVELS[self.level].draw(rng)
            except Redraw:
                continue
            made_up = MadeUp(rng)
            names = {colour: made_up.word(colour) for colour in COLOURS} if self.config.tasks == "fresh" else {}
            task = canonical(game) + "".join(f"; {colour}: {names[colour]}" for colour in seen(game) if names)
            if split_of(task) == split and solvable(game, self.config.max_turns):
                return game, names | {name: colour for colour, name in names.items()}, task
        raise Refusal(f"no task of level {self.level} can be done in max_turns={self.config.max_turns}")

    def _read(self, reply: str) -> str | None:
        """Return the action in a reply; None if the reply has several."""
        if self.config.prompt == "short":
            return plain_action(common.first_line(reply, MAX_ACTION)).lower()
        action = common.only_action(reply, MAX_ACTION)
        return None if action is None else common.plain_words(plain_action(action)).lower()

    def _act(self, action: str) -> tuple[str, bool, float]:
        """Execute an action. Return the observation, whether it was valid, and the reward."""
        if "check" in action:
            return self._said(f"You can take the following actions: {', '.join(self.sight.actions)}"), True, 0.0
        way = self.sight.actions.get(action)
        if not way:
            refusal = UNKNOWN if action and way is None else "No change in state."
            return self._said(self.sight.refusals.get(action, refusal) if way is None else refusal), False, 0.0
        verdict = self.game.play(way)
        self.sight = look(self.game.grid)
        done = "" if verdict is None else "\n The task is completed."
        reward = self.game.reward if verdict else 0.0
        return self._said(self._seen() + done), True, reward if reward > LATE else 0.0

    def _seen(self) -> str:
        return self.sight.short() if self.config.prompt == "short" else self.sight.native()

    def _said(self, message: str) -> str:
        """Return the observation; the native form adds the available actions."""
        if self.config.prompt == "short":
            return message
        offered = ", ".join(f'"{action}"' for action in self.sight.actions)
        return f"{message}\nAvailable actions: [{offered}]"


def canonical(game: Game) -> str:
    """Return a string that determines the whole initial state of a task."""
    grid = game.grid
    (x, y), carried = xy(grid.pos), grid.held and grid.held[1]
    contents = [content for _, content in grid.contents.values()]
    rows = [grid.cells[cell(0, y) : cell(grid.cols * grid.pitch + 1, y)] for y in range(grid.rows * grid.pitch + 1)]
    cells = "/".join(row.hex() for row in rows)
    return f"babyai:{game.mission}; at {x} {y} {grid.dir} with {carried}; {contents} in {cells}"


def seen(game: Game) -> list[str]:
    """Return the colours of all objects and doors at the start."""
    grid = game.grid
    codes = [grid.cells[position] for position in grid.things] + [content for _, content in grid.contents.values()]
    codes += [grid.held[1]] if grid.held else []
    return [
        colour for i, colour in enumerate(COLOURS) if any(what & 7 >= DOOR and what >> 3 & 7 == i for what in codes)
    ]


def solvable(game: Game, turns: int) -> bool:
    """Return whether the expert completes the mission within this many turns."""
    game = game.copy()
    for _ in range(turns):
        sight = look(game.grid)
        action, _ = next_action(game, sight)
        if not sight.actions[action]:
            return False
        if game.play(sight.actions[action]) and game.reward > LATE:
            return True
    return False


def plain_action(action: str) -> str:
    """Return `goto[red ball 1]` as `go to red ball 1`; return any other action unchanged."""
    match = re.fullmatch(r"([A-Za-z ]+?) ?\[([^\[\]]*)\]", action)
    if not match:
        return action
    verb, thing = match[1].lower(), match[2].strip()
    return f"{'go to' if verb == 'goto' else verb} {thing}".strip()
