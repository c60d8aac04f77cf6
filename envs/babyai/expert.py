"""BabyAI's expert. It knows the whole grid but acts through the same text actions as the agent.

`_errand` returns the next errand: face one of a set of cells, then execute a primitive, the deed. `next_action` returns
the action towards it: it looks two actions ahead and takes the one after which the remaining path is shortest.
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
    Grid,
    code,
)
from envs.babyai.missions import And, Game, GoTo, Open, PickUp, PutNext, Sequence
from envs.babyai.text import CHECK, Sight, look

FACE = None  # the deed of an errand that is done once the cell is faced
REASONS = {
    FACE: "I have to stand in front of it.",
    PICKUP: "I need to pick it up.",
    DROP: "I need a free place to drop what I carry.",
    TOGGLE: "I have to stand in front of it and open it.",
    FORWARD: "The door is in the way.",
}
STRIDES = 8  # rough number of steps that one action replaces
RING = (1, MOVES[1] + 1, MOVES[1], MOVES[1] - 1, -1, MOVES[3] - 1, MOVES[3], MOVES[3] + 1)  # the 8 neighbours
Errand = tuple[set[int], int | None, dict[int, int]]  # (cells to face, deed, steps to them: see _flood)


class Stuck(Exception):
    """The mission can no longer be completed."""


def next_action(game: Game, sight: Sight) -> tuple[str, str]:
    """Return the expert's next action and its reason."""
    for spared in (_spared(game), set()):
        try:
            goals, deed, steps = _next_errand(game, spared)
            break
        except Stuck:
            continue
    else:
        return CHECK, "I do not see how this can still be done."
    grid = game.grid
    if grid.front in goals:
        return _deed(deed, sight), REASONS[deed]
    views = {}
    best, action = _best(grid, sight, goals, deed, steps, views)
    best = 1 + best / STRIDES if best else 0
    start = grid.pos, grid.dir
    for first in ("turn left", "turn right", "move forward") if best else ():
        if first in sight.actions:
            _walk(grid, sight.actions[first], views)
            if grid.front not in goals and (grid.pos, grid.dir) != start:
                then = 2 + _best(grid, look(grid, _view(grid, views)), goals, deed, steps, views)[0] / STRIDES
                if then < best:
                    best, action = then, first
            grid.pos, grid.dir = start
    return action, REASONS[deed]


def _deed(deed: int | None, sight: Sight) -> str:
    """Return the action that executes the deed in front of the goal."""
    wanted = {PICKUP: [PICKUP], DROP: [DROP], TOGGLE: [TOGGLE], FORWARD: [TOGGLE, FORWARD], FACE: [LEFT]}[deed]
    return next((action for action, way in sight.actions.items() if way == wanted), "turn left")


def _best(
    grid: Grid, sight: Sight, goals: set[int], deed: int | None, steps: dict[int, int], views: dict
) -> tuple[float, str]:
    """Return the path cost left after the best available action (0 if it executes the deed), and that action."""
    best, chosen = float("inf"), CHECK
    start = grid.pos, grid.dir
    for action, way in sight.actions.items():
        takes, passes = way[-1:] == [PICKUP], way[-2:] == [TOGGLE, FORWARD]
        moves = way[:-1] if takes else way[:-2] if passes else way
        if not way or moves in ([DROP], [TOGGLE]) or (takes and deed != PICKUP):
            continue
        _walk(grid, moves, views)
        front, there = grid.front, grid.front in goals
        if takes:
            left = 0 if there else float("inf")
        elif not passes:
            left = (0 if deed is FACE else 1) if there else _left(grid.pos, grid.dir, goals, steps)
        elif front not in steps or grid.cells[front] & 7 != DOOR or (there and deed == TOGGLE):
            left = float("inf")  # walking through a door that the mission wants open would not count
        else:
            left = 0 if there and deed == FORWARD else _left(front, grid.dir, goals, steps)
        grid.pos, grid.dir = start
        if left < best:
            best, chosen = left, action
    return best, chosen


def _walk(grid: Grid, moves: list[int], views: dict[tuple[int, int], bytes]) -> None:
    """Move the agent as an action does: stop at the first move that does not change the view."""
    pose = grid.pos, grid.dir
    for move in moves:
        position, direction = pose
        if move != FORWARD:
            pose = position, (direction + (1 if move == RIGHT else -1)) % 4
        elif grid.cells[position + MOVES[direction]] in FREE:
            pose = position + MOVES[direction], direction
        else:
            return
        before = _view(grid, views)
        grid.pos, grid.dir = pose
        if _view(grid, views) == before:
            return


def _view(grid: Grid, views: dict[tuple[int, int], bytes]) -> bytes:
    """Return the view from the agent's pose, cached in `views`."""
    pose = grid.pos, grid.dir
    if pose not in views:
        views[pose] = grid.view()
    return views[pose]


def _left(position: int, direction: int, goals: set[int], steps: dict[int, int]) -> float:
    """Estimate the remaining cost: 3 for each step, and 1 for each rotation before the first."""
    if position not in steps:
        return float("inf")
    far = steps[position]
    on = [d for d, move in enumerate(MOVES) if steps.get(position + move, far) == (far - 1 if far else 1)]
    rotations = min(((0, 1, 2, 1)[d - direction] for d in on), default=9)
    return 3 * (far or 2) + rotations


def _flood(grid: Grid, goals: Iterable[int], spared: set[int], with_key: bool = True, whole: bool = False):
    """Return {cell: steps to the nearest goal} for cells from which only doors that can be opened are in the way.

    Unless `whole`, leave out cells that are more than two steps farther away than the agent.
    """
    cells = grid.cells
    key = grid.held[1] if grid.held and with_key else EMPTY
    fitting = code(DOOR, COLOURS[key >> 3 & 7], LOCKED) if key & 7 == KEY else None
    steps = dict.fromkeys(goals, 0)
    queue, reach = list(steps), len(cells)
    for position in queue:
        if position == grid.pos and not whole:
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


def _obstacles(grid: Grid, start: int, goals: set[int]) -> tuple[list[int], list[int]]:
    """Return a path to a goal with few obstacles, and these obstacles (objects and locked doors)."""
    costs, queue, came = {start: 0}, [(0, start)], {}
    while queue:
        cost, position = heappop(queue)
        if position in goals and position != start:
            path = [position]
            while path[-1] != start:
                path.append(came[path[-1]])
            inner = path[-2:0:-1]
            return path, [p for p in inner if grid.cells[p] & 7 > DOOR or grid.cells[p] >> 6 == LOCKED]
        for move in MOVES:
            beside = position + move
            there = grid.cells[beside]
            if there == WALL:
                continue
            kind, locked = there & 7, there >> 6 == LOCKED
            more = 1 if beside in goals else 20 if kind > DOOR else 40 if kind == DOOR and locked else 1
            if cost + more < costs.get(beside, 10**6):
                costs[beside], came[beside] = cost + more, position
                heappush(queue, (cost + more, beside))
    raise Stuck


def _spared(game: Game) -> set[int]:
    """Return the doors that must stay closed for now, because a later part of the mission opens them."""
    mission, grid = game.mission, game.grid
    if not isinstance(mission, Sequence) or mission.done:
        return set()
    later = mission.second
    instructions = (later.first, later.second) if isinstance(later, And) else (later,)
    meant = set().union(*(part.desc.meant for part in instructions if isinstance(part, Open)))
    return {position for position, identity in grid.things.items() if identity in meant}


def _next_errand(game: Game, spared: set[int]) -> Errand:
    """Return the errand of the first unfinished part of the mission that is possible. Raise Stuck if none is."""
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
    """Return the next errand of a part. Raise Stuck if the part is not possible."""
    grid = game.grid
    chart = _Chart(grid, spared)
    if isinstance(part, GoTo):
        return chart.reach(part.desc.places, FACE) if part.desc.places else chart.put_down()
    if isinstance(part, Open):
        doors = {p for p in chart.where(part.desc.meant) if grid.cells[p] >> 6 != OPEN}
        locked = {p for p in doors if grid.cells[p] >> 6 == LOCKED and not chart.has_key(p)}
        if doors - locked or not doors:
            return chart.reach(doors - locked, TOGGLE)
        return chart.unlock(min(locked))
    if isinstance(part, PickUp):
        there = chart.where(part.desc.meant)
        return chart.collect(there) if there or not grid.held else chart.put_down()
    fixed = chart.where(part.fixed.meant)
    spots = {p + move for p in fixed for move in MOVES if grid.cells[p + move] == EMPTY}
    if grid.held and grid.held[0] in part.moved.meant:
        return chart.reach(spots, DROP)
    return chart.fetch(chart.where(part.moved.meant), spots) if spots or not grid.held else chart.put_down()


class _Chart:
    """Find the errand that must come first so that another one becomes possible."""

    def __init__(self, grid: Grid, spared: set[int]):
        self.grid, self.spared = grid, spared
        self.depth = 0
        self.kept_free: set[int] = set()  # cells of paths that must stay free of dropped objects

    def where(self, identities: set[int]) -> set[int]:
        """Return the positions of objects."""
        return {position for position, identity in self.grid.things.items() if identity in identities}

    def has_key(self, door: int) -> bool:
        """Return whether the agent carries a door's key."""
        return bool(self.grid.held) and self.grid.held[1] == self.grid.cells[door] & 0b111000 | KEY

    def reach(self, goals: set[int], deed: int | None) -> Errand:
        """Return the errand to reach one of the goals, or to clear what is in the way."""
        if not goals:
            raise Stuck
        steps = _flood(self.grid, goals, self.spared)
        if self.grid.pos in steps:
            return goals, deed, steps
        return self.clear(self.grid.pos, goals)

    def clear(self, start: int, goals: set[int]) -> Errand:
        """Return the errand to remove the first object on the path to a goal, or to unlock the first door."""
        path, obstacles = _obstacles(self.grid, start, goals)
        if not obstacles:
            raise Stuck
        self.kept_free |= set(path)
        obstacle = obstacles[0]
        if self.grid.cells[obstacle] & 7 == DOOR:
            return self.unlock(obstacle)
        return self.collect({obstacle})

    def collect(self, goals: set[int]) -> Errand:
        """Return the errand to pick up one of the goals, first emptying the hands."""
        if not goals:
            raise Stuck
        steps = _flood(self.grid, goals, self.spared, with_key=False)
        if self.grid.pos not in steps:
            return self.clear(self.grid.pos, goals)
        return self.put_down() if self.grid.held else (goals, PICKUP, steps)

    def unlock(self, door: int) -> Errand:
        """Return the errand to open a locked door, or to fetch its key first."""
        self.depth += 1
        if self.depth > 6:
            raise Stuck
        if self.has_key(door):
            return self.reach({door}, FORWARD)
        key = self.grid.cells[door] & 0b111000 | KEY
        keys = {p for p in self.grid.things if self.grid.cells[p] == key}
        if keys:
            return self.fetch(keys, {door})
        boxes = {identity for identity, (_, content) in self.grid.contents.items() if content == key}
        return self.reach(self.where(boxes), TOGGLE)

    def fetch(self, goals: set[int], to: set[int]) -> Errand:
        """Return the errand to pick up one of the goals after clearing its path `to` the place where it is needed."""
        if not goals or not to:
            raise Stuck
        steps = _flood(self.grid, to, self.spared, with_key=False, whole=True)
        near = {goal for goal in goals if any(goal + move in steps for move in MOVES)}
        if not near:
            return self.clear(min(goals), to)
        return self.collect(near)

    def put_down(self) -> Errand:
        """Return the errand to drop the carried object where it blocks nothing."""
        passable = FREE | {code(DOOR, colour, state) for colour in COLOURS for state in range(3)}
        cells, found = self.grid.cells, set()
        seen, queue = {self.grid.pos}, [self.grid.pos]
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
