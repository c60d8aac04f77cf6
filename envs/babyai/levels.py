"""BabyAI's 40 levels in AgentGym's numbering: rooms, objects, missions and the budget of steps.

Each family has a function that takes a maze of empty rooms, adds doors, objects and the agent, and returns the mission.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from envs.babyai.grid import BALL, BOX, COLOURS, DOOR, EMPTY, KEY, LOCKED, PLACES, Grid, code
from envs.babyai.maze import Maze, Redraw, Room
from envs.babyai.missions import And, Desc, Game, GoTo, Mission, Open, PickUp, PutNext, Sequence, descs, parts

CENTRE = (1, 1)  # the middle room of three by three


def go_to_red_ball(maze: Maze, others: int, grey: bool = False) -> Mission:
    maze.agent()
    maze.add(None, BALL, "red")
    for _ in range(others):
        maze.add(None, None, "grey" if grey else None)
    maze.need_reachable()
    return GoTo(Desc(BALL, "red"))


def go_to_red_blue_ball(maze: Maze) -> Mission:
    maze.agent()
    if {(BALL, "red"), (BALL, "blue")} & set(maze.scatter(7, unique=False)):
        raise Redraw("another red or blue ball")
    ball = maze.add(None, BALL, maze.rng.choice(("red", "blue")))
    maze.need_reachable()
    return GoTo(Desc(*ball))


def one_of_many(maze: Maze, instruct: Callable[[Desc], Mission], count: int, blocked: bool = False) -> Mission:
    """Place objects anywhere behind closed doors. Return the mission to go to one of them or to pick it up."""
    maze.agent()
    maze.connect()
    made = maze.scatter(count, unique=False)
    if maze.reachable() == blocked:
        raise Redraw("an object is blocked, or none is")
    return instruct(Desc(*maze.rng.choice(made)))


def go_to_door(maze: Maze, others: int = 0) -> Mission:
    maze.agent(CENTRE)
    made = maze.scatter(others, CENTRE, unique=False) + [maze.door(CENTRE) for _ in range(4)]
    maze.need_reachable()
    return GoTo(Desc(*maze.rng.choice(made)))


def open_any(maze: Maze) -> Mission:
    maze.agent()
    maze.connect()
    maze.scatter(18, unique=False)
    maze.need_reachable()
    return Open(Desc(*maze.rng.choice(list(maze.doors.values()))))


def open_red_door(maze: Maze) -> Mission:
    maze.door((0, 0), 0, "red", locked=False)
    maze.agent((0, 0))
    return Open(Desc(DOOR, "red"))


def open_door_by_place(maze: Maze) -> Mission:
    for side, colour in enumerate(maze.rng.sample(COLOURS, 4)):
        maze.door(CENTRE, side, colour, locked=False)
    maze.agent(CENTRE)
    return Open(Desc(DOOR, None, maze.rng.choice(PLACES)))


def open_red_then_blue(maze: Maze) -> Mission:
    maze.door(CENTRE, 2, "red", locked=False)
    maze.door(CENTRE, 0, "blue", locked=False)
    maze.agent(CENTRE)
    return Sequence(Open(Desc(DOOR, "red"), strict=True), Open(Desc(DOOR, "blue")))


def open_in_order(maze: Maze) -> Mission:
    doors = [maze.door(CENTRE, None, colour, locked=False) for colour in maze.rng.sample(COLOURS, 4)]
    maze.agent(CENTRE)
    one, two = (Open(Desc(*door), strict=True) for door in maze.rng.sample(doors, 2))
    return maze.rng.choice((one, Sequence(one, two), Sequence(two, one, after=True)))


def pick_up_by_part(maze: Maze) -> Mission:
    made = maze.scatter(5)
    maze.agent()
    kind, colour = maze.rng.choice(made)
    return PickUp(Desc(*maze.rng.choice(((kind, None), (None, colour), (kind, colour)))), strict=True)


def pick_up_above(maze: Maze) -> Mission:
    what = maze.add((1, 0))
    maze.door(CENTRE, 3, locked=False)
    maze.agent(CENTRE)
    maze.connect()
    return PickUp(Desc(*what))


def put_next(maze: Maze) -> Mission:
    maze.agent()
    made = maze.scatter(4)
    maze.need_reachable()
    one, two = maze.rng.sample(made, 2)
    return PutNext(Desc(*one), Desc(*two))


def put_across(maze: Maze, count: int, carrying: bool = False) -> Mission:
    """Join two rooms. Return the mission to move an object across; the agent may carry it from the start."""
    maze.agent((0, 0))
    left, right = (maze.scatter(count, room) for room in ((0, 0), (1, 0)))
    maze.open_wall((0, 0), 0)
    if not carrying:
        (one, four), (two, three) = maze.rng.sample(left, 2), maze.rng.sample(right, 2)
        return Sequence(PutNext(Desc(*one), Desc(*two)), PutNext(Desc(*three), Desc(*four)))
    moved, fixed = maze.rng.sample((maze.rng.choice(left), maze.rng.choice(right)), 2)
    return PutNext(Desc(*moved), Desc(*fixed))


def unlock(maze: Maze, inside: bool) -> Mission:
    """Lock a room and place its key elsewhere. Return the mission to open the door or go to the only object inside."""
    locked = maze.rng.choice(maze.rooms)
    door = maze.door(locked, locked=True)
    others = [room for room in maze.rooms if room != locked]
    maze.add(maze.rng.choice(others), KEY, door[1])
    only = not inside and maze.rng.random() < 0.5  # whether the door is the only one of its colour
    maze.connect([colour for colour in COLOURS if not (only and colour == door[1])])
    for room in others:
        maze.scatter(2 if inside else 3, room, unique=False)
    maze.agent(maze.rng.choice(others))
    maze.need_reachable()
    return GoTo(Desc(*maze.add(locked))) if inside else Open(Desc(*door))


def unlock_here(maze: Maze, boxed: bool) -> Mission:
    door = maze.door(CENTRE, locked=True)
    if boxed:
        maze.add(CENTRE, BOX, content=(KEY, door[1]))
    else:
        maze.add(CENTRE, KEY, door[1])
        maze.scatter(3, CENTRE)
    maze.agent(CENTRE)
    return Open(Desc(DOOR))


def unlock_pick_up(maze: Maze, blocked: bool) -> Mission:
    box = maze.add((1, 0), BOX)
    door = maze.door((0, 0), 0, locked=True)
    if blocked:
        maze.grid.put(maze.spots[(0, 0), 0] - 1, code(BALL, maze.colour()), maze.identity())
    maze.add((0, 0), KEY, door[1])
    if not blocked:
        maze.scatter(4)
    maze.agent((0, 0))
    return PickUp(Desc(BOX, None if blocked else box[1]))


def unlock_to_unlock(maze: Maze) -> Mission:
    one, two = maze.rng.sample(COLOURS, 2)
    maze.door((0, 0), 0, one, locked=True)
    maze.add((2, 0), KEY, one)
    maze.door((1, 0), 0, two, locked=True)
    maze.add((1, 0), KEY, two)
    maze.add((0, 0), BALL)
    maze.agent((1, 0))
    return PickUp(Desc(BALL))


def any_action(maze: Maze) -> Mission:
    made = maze.scatter(5, CENTRE) + [maze.door(CENTRE, locked=False) for _ in range(4)]
    maze.agent(CENTRE)
    what = maze.rng.choice(made)
    return maze.rng.choice((GoTo, Open if what[0] == DOOR else PickUp))(Desc(*what))


def find(maze: Maze) -> Mission:
    kind, _ = maze.add()
    maze.agent(CENTRE)
    maze.connect()
    return PickUp(Desc(kind))


def key_corridor(maze: Maze) -> Mission:
    maze.open_wall(CENTRE, 3)
    maze.open_wall((1, 2), 3)
    row = maze.rng.randrange(3)
    door = maze.door((2, row), 2, locked=True)
    maze.add((2, row), BALL)
    maze.add((0, maze.rng.randrange(3)), KEY, door[1])
    maze.agent(CENTRE)
    maze.connect()
    return PickUp(Desc(BALL))


def one_room(maze: Maze) -> Mission:
    maze.add(None, BALL)
    maze.agent()
    return PickUp(Desc(BALL))


def synth(
    maze: Maze,
    others: int = 18,
    locked: float = 0.5,
    places: bool = True,
    unblock: bool = True,
    through_locked: bool = True,
    actions: tuple = (GoTo, PickUp, Open, PutNext),
    shapes: tuple = ("single", "and", "sequence"),
) -> Mission:
    """Return a mission drawn from all forms.

    locked: probability of a locked room; places: whether to use words such as "on your left"; unblock: whether objects
    may block the path; through_locked: whether all matching objects may be behind the locked door.
    """
    rng = maze.rng
    vault = _lock(maze) if rng.random() < locked else None
    maze.connect()
    maze.scatter(others, unique=False)
    maze.agent(rng.choice([room for room in maze.rooms if room != vault]))
    if not unblock:
        maze.need_reachable()

    def describe(kinds: tuple) -> Desc:
        for _ in range(100):
            where = rng.choice(PLACES) if places and rng.random() < 0.5 else None
            desc = Desc(rng.choice(kinds), rng.choice((None, *COLOURS)), where).bind(maze.grid)
            outside = [p for p in desc.places if not (vault and maze.grid.in_room(p, vault))]
            if outside or (through_locked and desc.places):
                return desc
        raise Redraw("nothing fits any words")

    def instruct(shapes: tuple) -> Mission:
        shape = rng.choice(shapes)
        if shape == "and":
            return And(instruct(("single",)), instruct(("single",)))
        if shape == "sequence":
            one, two = instruct(("single", "and")), instruct(("single", "and"))
            return Sequence(one, two, after=rng.random() < 0.5)
        action = rng.choice(actions)
        if action is PutNext:
            return PutNext(describe((KEY, BALL, BOX)), describe((KEY, BALL, BOX, DOOR)))
        return action(describe({GoTo: (KEY, BALL, BOX, DOOR), PickUp: (KEY, BALL, BOX), Open: (DOOR,)}[action]))

    mission = instruct(shapes)
    if vault and unblock and any(set(_keys_of(maze.grid)) & desc.meant for desc in descs(mission)):
        raise Redraw("the key is needed elsewhere")
    return mission


def _lock(maze: Maze) -> Room:
    """Lock a room and place its key elsewhere. Return the room."""
    vault = maze.rng.choice(maze.rooms)
    door = maze.door(vault, locked=True)
    maze.add(maze.rng.choice([room for room in maze.rooms if room != vault]), KEY, door[1])
    return vault


def _keys_of(grid: Grid) -> list[int]:
    """Return the identities of the keys that fit a locked door."""
    fitting = {what & 0b111000 | KEY for what in grid.cells if what & 7 == DOOR and what >> 6 == LOCKED}
    return [identity for position, identity in grid.things.items() if grid.cells[position] in fitting]


@dataclass(frozen=True)
class Level:
    build: Callable[[Maze], Mission]
    room: int = 8  # width of a room, with its walls
    rows: int = 3
    cols: int = 3
    steps: int = 0  # budget of primitives; 0: the area of all rooms times the mission's walks
    carrying: bool = False  # the agent carries the object to move

    def draw(self, rng: Random) -> Game:
        """Draw a grid and a mission. Raise Redraw if they do not fit."""
        maze = Maze(rng, self.room, self.rows, self.cols)
        mission, grid = self.build(maze), maze.grid
        for desc in descs(mission):
            desc.bind(grid)
        for part in parts(mission):
            if isinstance(part, PutNext) and (
                part.moved.meant & part.fixed.meant or any(map(part.adjacent, part.moved.places))
            ):
                raise Redraw("the object is already next to its target")
        if self.carrying:
            (position,) = mission.moved.places
            grid.held = grid.things[position], grid.cells[position]
            grid.put(position, EMPTY)
        return Game(grid, mission, self.steps or mission.walks * self.room**2 * self.rows * self.cols)


LEVELS = {
    "GoToRedBallGrey": Level(partial(go_to_red_ball, others=7, grey=True), rows=1, cols=1),
    "GoToRedBall": Level(partial(go_to_red_ball, others=7), rows=1, cols=1),
    "GoToRedBallNoDists": Level(partial(go_to_red_ball, others=0), rows=1, cols=1),
    "GoToObjS6": Level(partial(one_of_many, instruct=GoTo, count=1), room=4, rows=1, cols=1),  # as AgentGym's registry
    "GoToLocalS8N7": Level(partial(one_of_many, instruct=GoTo, count=7), rows=1, cols=1),
    "GoToObjMazeS7": Level(partial(one_of_many, instruct=GoTo, count=1), room=7),
    "GoToImpUnlock": Level(partial(unlock, inside=True)),
    "GoToSeqS5R2": Level(
        partial(synth, others=4, locked=0, places=False, unblock=False, actions=(GoTo,)), room=5, rows=2, cols=2
    ),
    "GoToRedBlueBall": Level(go_to_red_blue_ball, rows=1, cols=1),
    "GoToDoor": Level(go_to_door, room=7),
    "GoToObjDoor": Level(partial(go_to_door, others=8)),
    "Open": Level(open_any),
    "OpenRedDoor": Level(open_red_door, room=5, rows=1, cols=2),
    "OpenDoorLoc": Level(open_door_by_place),
    "OpenRedBlueDoorsDebug": Level(open_red_then_blue, room=6, steps=20 * 6**2),
    "OpenDoorsOrderN4Debug": Level(open_in_order, room=6, steps=20 * 6**2),
    "Pickup": Level(partial(one_of_many, instruct=PickUp, count=18)),
    "UnblockPickup": Level(partial(one_of_many, instruct=PickUp, count=20, blocked=True)),
    "PickupLoc": Level(
        partial(synth, others=8, locked=0, unblock=False, actions=(PickUp,), shapes=("single",)), rows=1, cols=1
    ),
    "PickupDistDebug": Level(pick_up_by_part, room=7, rows=1, cols=1),
    "PickupAbove": Level(pick_up_above, room=6, steps=8 * 6**2),
    "PutNextLocalS6N4": Level(put_next, room=6, rows=1, cols=1),
    "PutNextS7N4Carrying": Level(
        partial(put_across, count=4, carrying=True), room=7, rows=1, cols=2, steps=8 * 7**2, carrying=True
    ),
    "Unlock": Level(partial(unlock, inside=False)),
    "UnlockLocalDist": Level(partial(unlock_here, boxed=False)),
    "KeyInBox": Level(partial(unlock_here, boxed=True)),
    "UnlockPickupDist": Level(partial(unlock_pick_up, blocked=False), room=6, rows=1, cols=2),
    "BlockedUnlockPickup": Level(partial(unlock_pick_up, blocked=True), room=6, rows=1, cols=2, steps=16 * 6**2),
    "UnlockToUnlock": Level(unlock_to_unlock, room=6, rows=1, cols=3, steps=30 * 6**2),
    "ActionObjDoor": Level(any_action, room=7),
    "FindObjS7": Level(find, room=7, steps=20 * 7**2),
    "KeyCorridorS6R3": Level(key_corridor, room=6, steps=30 * 6**2),
    "OneRoomS20": Level(one_room, room=20, rows=1, cols=1),
    "MoveTwoAcrossS8N9": Level(partial(put_across, count=9), rows=1, cols=2, steps=16 * 8**2),
    "SynthS5R2": Level(partial(synth, places=False, through_locked=False, shapes=("single",)), room=5, rows=2),
    "SynthLoc": Level(partial(synth, through_locked=False, shapes=("single",))),
    "SynthSeq": Level(partial(synth, through_locked=False)),
    "MiniBossLevel": Level(partial(synth, others=7, locked=0.25), room=5, rows=2, cols=2),
    "BossLevel": Level(synth),
    "BossLevelNoUnlock": Level(partial(synth, locked=0, through_locked=False)),
}
