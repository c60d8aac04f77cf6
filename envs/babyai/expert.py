"""BabyAI's expert: it knows the whole grid, and acts through the text layer like everyone else.

`_errand` says what to do next: face one of a set of cells, then do something. `next_action` gets there in few turns: of
the offered actions it takes the one after which the least is left to walk, looking two actions ahead.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from envs.babyai.grid import (
    COLOURS,
    DOOR,
    DROP,
    EMPTY,
    FORWARD,
    FREE,
    KEY,
    LEFT,
    LOCKED,
    MOVES,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
    WALL,
    World,
    code,
)
from envs.babyai.missions import And, Game, GoTo, Open, PickUp, PutNext, Sequence
from envs.babyai.text import CHECK, Sight, look

FACE = None  # nothing is left to do once the cell is faced
REASONS = {
    FACE: "I have to stand in front of it.",
    PICKUP: "I need to pick it up.",
    DROP: "I need a free place to drop what I carry.",
    TOGGLE: "I have to stand in front of it and open it.",
    FORWARD: "The door is in the way.",
}
STRIDES = 8  # steps that one action replaces, about
RING = (1, MOVES[1] + 1, MOVES[1], MOVES[1] - 1, -1, MOVES[3] - 1, MOVES[3], MOVES[3] + 1)  # around a cell
Errand = tuple[set[int], int | None, dict[int, int]]  # the cells to face, what to do then, steps to them (see _flood)


class Stuck(Exception):
    """What the mission asks for cannot be done any more."""


def next_action(game: Game, sight: Sight) -> tuple[str, str]:
    """The expert's next action, and why."""
    for spared in (_spared(game), set()):
        try:
            goals, deed, steps = _next_errand(game, spared)
            break
        except Stuck:
            continue
    else:
        return CHECK, "I do not see how this can still be done."
    world = game.world
    if world.front in goals:
        return _deed(deed, sight), REASONS[deed]
    views = {}
    best, action = _best(world, sight, goals, deed, steps, views)
    best = 1 + best / STRIDES if best else 0
    start = world.pos, world.dir
    for first in ("turn left", "turn right", "move forward") if best else ():
        if first in sight.actions:
            _walk(world, sight.actions[first], views)
            if world.front not in goals and (world.pos, world.dir) != start:
                then = 2 + _best(world, look(world, _view(world, views)), goals, deed, steps, views)[0] / STRIDES
                if then < best:
                    best, action = then, first
            world.pos, world.dir = start
    return action, REASONS[deed]


def _deed(deed: int | None, sight: Sight) -> str:
    """The action that does it, right in front of the goal."""
    wanted = {PICKUP: [PICKUP], DROP: [DROP], TOGGLE: [TOGGLE], FORWARD: [TOGGLE, FORWARD], FACE: [LEFT]}[deed]
    return next((action for action, way in sight.actions.items() if way == wanted), "turn left")


def _best(
    world: World, sight: Sight, goals: set[int], deed: int | None, steps: dict[int, int], views: dict
) -> tuple[float, str]:
    """What is left after the best of the offered actions, and that action; nothing is left if it does the deed."""
    best, chosen = float("inf"), CHECK
    start = world.pos, world.dir
    for action, way in sight.actions.items():
        takes, passes = way[-1:] == [PICKUP], way[-2:] == [TOGGLE, FORWARD]
        moves = way[:-1] if takes else way[:-2] if passes else way
        if not way or moves in ([DROP], [TOGGLE]) or (takes and deed != PICKUP):
            continue
        _walk(world, moves, views)
        front, there = world.front, world.front in goals
        if takes:
            left = 0 if there else float("inf")
        elif not passes:
            left = (0 if deed is FACE else 1) if there else _left(world.pos, world.dir, goals, steps)
        elif front not in steps or world.cells[front] & 7 != DOOR or (there and deed == TOGGLE):
            left = float("inf")  # to go on through a door that is to be opened would not count
        else:
            left = 0 if there and deed == FORWARD else _left(front, world.dir, goals, steps)
        world.pos, world.dir = start
        if left < best:
            best, chosen = left, action
    return best, chosen


def _walk(world: World, moves: list[int], views: dict[tuple[int, int], bytes]) -> None:
    """Turn and go as an action does: it stops where the view stays as it was."""
    pose = world.pos, world.dir
    for move in moves:
        position, direction = pose
        if move != FORWARD:
            pose = position, (direction + (1 if move == RIGHT else -1)) % 4
        elif world.cells[position + MOVES[direction]] in FREE:
            pose = position + MOVES[direction], direction
        else:
            return
        before = _view(world, views)
        world.pos, world.dir = pose
        if _view(world, views) == before:
            return


def _view(world: World, views: dict[tuple[int, int], bytes]) -> bytes:
    """The view from where the agent is, kept for the next time."""
    pose = world.pos, world.dir
    if pose not in views:
        views[pose] = world.view()
    return views[pose]


def _left(position: int, direction: int, goals: set[int], steps: dict[int, int]) -> float:
    """About what is left to walk: three for a step, and one for each turn before the first."""
    if position not in steps:
        return float("inf")
    far = steps[position]
    on = [d for d, move in enumerate(MOVES) if steps.get(position + move, far) == (far - 1 if far else 1)]
    turns = min(((0, 1, 2, 1)[d - direction] for d in on), default=9)
    return 3 * (far or 2) + turns


def _flood(world: World, goals: Iterable[int], spared: set[int], with_key: bool = True, whole: bool = False):
    """Steps to the nearest goal, from wherever nothing but doors that can be opened is in the way.

    Unless the whole is wanted, cells that are farther from it than the agent by more than two are left out.
    """
    cells = world.cells
    key = world.held[1] if world.held and with_key else EMPTY
    fitting = code(DOOR, COLOURS[key >> 3 & 7], LOCKED) if key & 7 == KEY else None
    steps = dict.fromkeys(goals, 0)
    queue, reach = list(steps), len(cells)
    for position in queue:
        if position == world.pos and not whole:
            reach = steps[position] + 2
        if steps[position] > reach:
            break
        for move in MOVES:
            beside = position + move
            if beside not in steps:
                there = cells[beside]
                if there == EMPTY or (
                    there & 7 == DOOR and (there >> 6 != LOCKED or there == fitting) and beside not in spared
                ):
                    steps[beside] = steps[position] + 1
                    queue.append(beside)
    return steps


def _obstacles(world: World, start: int, goals: set[int]) -> tuple[list[int], list[int]]:
    """A path to a goal with few obstacles, and what is in the way on it: objects and locked doors."""
    costs, queue, came = {start: 0}, [(0, start)], {}
    while queue:
        cost, position = heappop(queue)
        if position in goals and position != start:
            path = [position]
            while path[-1] != start:
                path.append(came[path[-1]])
            inner = path[-2:0:-1]
            return path, [p for p in inner if world.cells[p] & 7 > DOOR or world.cells[p] >> 6 == LOCKED]
        for move in MOVES:
            beside = position + move
            there = world.cells[beside]
            if there == WALL:
                continue
            kind, locked = there & 7, there >> 6 == LOCKED
            more = 1 if beside in goals else 20 if kind > DOOR else 40 if kind == DOOR and locked else 1
            if cost + more < costs.get(beside, 10**6):
                costs[beside], came[beside] = cost + more, position
                heappush(queue, (cost + more, beside))
    raise Stuck


def _spared(game: Game) -> set[int]:
    """Doors to leave closed until it is their turn: an open one cannot be opened."""
    mission, world = game.mission, game.world
    if not isinstance(mission, Sequence) or mission.done:
        return set()
    later = mission.second
    instructions = (later.first, later.second) if isinstance(later, And) else (later,)
    meant = set().union(*(part.desc.meant for part in instructions if isinstance(part, Open)))
    return {position for position, identity in world.things.items() if identity in meant}


def _next_errand(game: Game, spared: set[int]) -> Errand:
    mission = game.mission
    if isinstance(mission, Sequence):
        mission = mission.second if mission.done else mission.first
    if not isinstance(mission, And):
        return _errand(game, mission, spared)
    left = [part for part, done in zip((mission.first, mission.second), mission.done, strict=True) if not done]
    for part in left:
        try:
            return _errand(game, part, spared)
        except Stuck:
            continue
    raise Stuck


def _errand(game: Game, part: GoTo | Open | PickUp | PutNext, spared: set[int]) -> Errand:
    world = game.world
    chart = _Chart(world, spared)
    if isinstance(part, GoTo):
        return chart.reach(part.desc.places, FACE) if part.desc.places else chart.put_down()
    if isinstance(part, Open):
        doors = {p for p in chart.where(part.desc.meant) if world.cells[p] >> 6 != OPEN}
        locked = {p for p in doors if world.cells[p] >> 6 == LOCKED and not chart.has_key(p)}
        if doors - locked or not doors:
            return chart.reach(doors - locked, TOGGLE)
        return chart.unlock(min(locked))
    if isinstance(part, PickUp):
        there = chart.where(part.desc.meant)
        return chart.collect(there) if there or not world.held else chart.put_down()
    fixed = chart.where(part.fixed.meant)
    spots = {p + move for p in fixed for move in MOVES if world.cells[p + move] == EMPTY}
    if world.held and world.held[0] in part.moved.meant:
        return chart.reach(spots, DROP)
    return chart.fetch(chart.where(part.moved.meant), spots) if spots or not world.held else chart.put_down()


class _Chart:
    """Errands that must come first, so that another can be done."""

    def __init__(self, world: World, spared: set[int]):
        self.world, self.spared = world, spared
        self.depth = 0
        self.kept_free: set[int] = set()  # paths that nothing may be dropped on

    def where(self, identities: set[int]) -> set[int]:
        return {position for position, identity in self.world.things.items() if identity in identities}

    def has_key(self, door: int) -> bool:
        return bool(self.world.held) and self.world.held[1] == self.world.cells[door] & 0b111000 | KEY

    def reach(self, goals: set[int], deed: int | None) -> Errand:
        """Get to one of the goals, or first to what is in the way."""
        if not goals:
            raise Stuck
        steps = _flood(self.world, goals, self.spared)
        if self.world.pos in steps:
            return goals, deed, steps
        return self.clear(self.world.pos, goals)

    def clear(self, start: int, goals: set[int]) -> Errand:
        """Take away the first object on the way to a goal, or unlock the first door."""
        path, obstacles = _obstacles(self.world, start, goals)
        if not obstacles:
            raise Stuck
        self.kept_free |= set(path)
        obstacle = obstacles[0]
        if self.world.cells[obstacle] & 7 == DOOR:
            return self.unlock(obstacle)
        return self.collect({obstacle})

    def collect(self, goals: set[int]) -> Errand:
        """Pick up one of the goals, with empty hands: first what needs the key in them, then put it down."""
        if not goals:
            raise Stuck
        steps = _flood(self.world, goals, self.spared, with_key=False)
        if self.world.pos not in steps:
            return self.clear(self.world.pos, goals)
        return self.put_down() if self.world.held else (goals, PICKUP, steps)

    def unlock(self, door: int) -> Errand:
        self.depth += 1
        if self.depth > 6:
            raise Stuck
        if self.has_key(door):
            return self.reach({door}, FORWARD)
        key = self.world.cells[door] & 0b111000 | KEY
        keys = {p for p in self.world.things if self.world.cells[p] == key}
        if keys:
            return self.fetch(keys, {door})
        boxes = {identity for identity, (_, content) in self.world.hidden.items() if content == key}
        return self.reach(self.where(boxes), TOGGLE)

    def fetch(self, goals: set[int], to: set[int]) -> Errand:
        """Pick up one of the goals, once it can be carried to where it is needed: full hands clear nothing away."""
        if not goals or not to:
            raise Stuck
        steps = _flood(self.world, to, self.spared, with_key=False, whole=True)
        near = {goal for goal in goals if any(goal + move in steps for move in MOVES)}
        if not near:
            return self.clear(min(goals), to)
        return self.collect(near)

    def put_down(self) -> Errand:
        """Drop what is carried where it will not be in the way."""
        passable = FREE | {code(DOOR, colour, state) for colour in COLOURS for state in range(3)}
        cells, found = self.world.cells, set()
        seen, queue = {self.world.pos}, [self.world.pos]
        for position in queue:
            for move in MOVES:
                beside = position + move
                if beside not in seen and cells[beside] in FREE:
                    seen.add(beside)
                    queue.append(beside)
                    ring = [cells[beside + around] in passable for around in RING]
                    gaps = sum(ring[i] and not ring[i - 1] and not (i % 2 and not ring[(i + 1) % 8]) for i in range(8))
                    doors = any(cells[beside + side] & 7 == DOOR for side in MOVES)
                    if cells[beside] == EMPTY and beside not in self.kept_free and not doors and gaps <= 1:
                        found.add(beside)
            if len(found) > 5:
                break
        return self.reach(found, DROP)
