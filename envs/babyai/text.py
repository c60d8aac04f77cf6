"""BabyAI's observations in words, and the available text actions, each a list of primitives.

Both are AgentGym's, quirks included. A path (`way`) treats unseen cells and closed doors as free, so an agent that
walks it stops short there. Among equally short paths, the choice is not the first one found.
"""

from dataclasses import dataclass
from operator import itemgetter

from envs.babyai.grid import (
    BALL,
    BOX,
    CLOSED,
    DOOR,
    DROP,
    FORWARD,
    KEY,
    KINDS,
    LEFT,
    LOCKED,
    NAMES,
    OPEN,
    PICKUP,
    RIGHT,
    TOGGLE,
    VIEW,
    WALL,
    Grid,
)

CHECK = "check available actions"
Way = list[int]


@dataclass(frozen=True)
class Sight:
    """The agent's observation and its available actions."""

    things: list[tuple[str, int, int, int]]  # (name, number, steps ahead, steps to the right), nearest first
    facing: tuple[str, int] | None  # "wall" or "box", and its distance
    nothing: bool  # nothing is in view, not even a wall
    held: str | None
    actions: dict[str, Way]
    refusals: dict[str, str]  # plausible but impossible action -> why it is impossible

    def native(self) -> str:
        """Return the observation in AgentGym's words."""
        text = "In front of you in this room, you can see several objects: "
        for name, number, ahead, right in self.things:
            where = f"{ahead} steps in front of you and {abs(right)} steps to your {'right' if right > 0 else 'left'}"
            if right == 0:
                where = f"right in front of you {ahead} steps away"
            text += f"There is a {name} {number} {where}.  "
        if self.nothing:
            text = "You cannot see any objects within sight."
        text += "The room has walls around you. "
        if self.facing:
            text += f"You are facing a {self.facing[0]} {self.facing[1]} steps away. "
        return text + (f"You are carrying a {self.held}." if self.held else "You are not carrying anything.")

    def short(self) -> str:
        """Return the observation in few words."""
        lines = []
        for name, number, ahead, right in self.things:
            aside = f" {'right' if right > 0 else 'left'} {abs(right)}" if right else ""
            lines.append(f"{name} {number}: ahead {ahead}{aside}")
        if self.facing:
            lines.append(f"{self.facing[0]}: ahead {self.facing[1]}")
        return "\n".join([*lines, f"carry {self.held or 'nothing'}"])


def look(grid: Grid, view: bytes | None = None) -> Sight:
    """Return what the agent sees and can do. Pass `view` if grid.view() is known already."""
    view = view or grid.view()
    seen = [spot for spot in zip(_NEAR_FIRST(view), _SPOTS, strict=True) if spot[0] in NAMES]
    column = view[_MIDDLE::-VIEW]  # cells straight ahead, near to far
    facing = next(((KINDS[c & 7], ahead) for ahead, c in enumerate(column, 1) if c == WALL or c & 7 == BOX), None)
    actions: dict[str, Way] = {"turn left": [LEFT], "turn right": [RIGHT]}
    refusals = {}
    if facing and facing[1] == 1:
        refusals["move forward"] = "There is a barrier in front of you, you can't move forward."
    else:
        actions["move forward"] = [FORWARD]

    things, count = [], {}
    ways = _Ways(view, grid.dir) if seen else None
    spots = []  # (name, code, number, path to face it, index in the view)
    for what, (place, ahead, right) in seen:
        name = NAMES[what]
        count[name] = count.get(name, 0) + 1
        things.append((name, count[name], ahead, right))
        spots.append((name, what, count[name], ways.facing(place), place))

    if grid.held is None:
        _offer("pickup", [PICKUP], [spot for spot in spots if spot[1] & 7 != DOOR], actions, refusals)
        refusals["drop"] = "You cannot drop the object, as you are not carrying anything."
    elif column[0] == WALL or column[0] & 7 > DOOR:
        refusals["drop"] = "You cannot drop the object, as there is already an object in front of you."
    else:
        actions["drop"] = [DROP]
    _offer_doors(spots, ways, grid.held, actions, refusals)
    if column[0] & 7 == BOX and grid.things[grid.front] in grid.contents:
        actions["toggle"] = [TOGGLE]  # a fix: in AgentGym, the level with a key in a box cannot be solved
    _offer("go to", [], spots, actions, refusals)
    actions[CHECK] = []
    held = NAMES[grid.held[1]] if grid.held else None
    return Sight(things, facing, not seen and WALL not in view, held, actions, refusals)


def _offer(verb: str, last: Way, spots: list, actions: dict, refusals: dict) -> None:
    """Offer an action per object. Its numbers skip unreachable objects, so they may differ from the description's."""
    reached = {}
    for name, _, _, way, _ in spots:
        number = reached.get(name, 0) + 1
        action = f"{verb} {name} {number}"
        if way is None:
            refusals[action] = f"You cannot {action}, as there is no path leading to it."
        else:
            actions[action] = way + last
            reached[name] = number


def _offer_doors(spots: list, ways: "_Ways", held: tuple[int, int] | None, actions: dict, refusals: dict) -> None:
    count = {}  # doors so far; the original prints this dict in one of its messages
    for name, what, number, way, place in spots:
        if what & 7 != DOOR:
            continue
        count[name] = number
        through = f"go through {name} {number}"
        toggle = f"toggle and {through}"
        if what >> 6 == OPEN:
            way = ways.onto(place)
            if way is None:
                refusals[through] = f"You cannot {through}, as there is no path leading to it."
            else:
                actions[through] = way
            continue
        if what >> 6 == LOCKED:
            if held is None or held[1] & 7 != KEY:
                refusals[toggle] = f"You cannot {toggle}, as you are not carrying a key."
                continue
            if held[1] & 0b111000 != what & 0b111000:
                reason = "the color of the key you are carrying does not match the color of door"
                refusals[toggle] = f"You cannot {toggle}, as {reason}."
                continue
        if way is None:
            refusals[toggle] = f"You cannot toggle and go through {name} {count}, as there is no path leading to it."
        else:
            actions[toggle] = [*way, TOGGLE, FORWARD]
            if not way:
                actions["toggle"] = [TOGGLE]
        if what >> 6 == CLOSED:
            refusals[through] = f"You cannot {through}, as it is closed. You should toggle it first."


# Paths are searched on a frame around the view: a border on the left and beyond the farthest row; on the right and
# behind the agent, a column and a row that are free in some directions (the original's ranges are one too wide there).
# A pose is 4 * cell of the frame + direction relative to the agent's: 0 ahead, 1 right, 2 back, 3 left.

_FRAME = VIEW + 2
_ROWS = VIEW + 3
_AHEAD = (-_FRAME, 1, _FRAME, -1)
_START = 4 * (VIEW * _FRAME + 4)
_BLOCKS = bytes(c == WALL or c & 7 in (KEY, BALL, BOX) for c in range(256))
_NEXT = [  # pose -> the cell ahead, and the poses after forward, left, right
    (cell + _AHEAD[d], pose + 4 * _AHEAD[d], 4 * cell + (d - 1) % 4, 4 * cell + (d + 1) % 4)
    for pose in range(4 * _FRAME * _ROWS)
    for cell, d in [divmod(pose, 4)]
]
_WIDER = (False, True, True, False)  # by the agent's direction: whether the column on the right is free
_BEHIND = (True, True, False, False)  # whether the row behind the agent is free

_MIDDLE = (VIEW - 2) * VIEW + 3  # index in the view of the cell ahead of the agent
_SPOTS = sorted(  # the other 48 cells: (index, steps ahead, steps to the right), nearest first
    ((j * VIEW + i, VIEW - 1 - j, i - 3) for j in range(VIEW) for i in range(VIEW) if (i, j) != (3, VIEW - 1)),
    key=lambda spot: spot[1] + abs(spot[2]),
)
_NEAR_FIRST = itemgetter(*(place for place, _, _ in _SPOTS))


class _Ways:
    """Shortest paths from the agent's pose."""

    def __init__(self, view: bytes, direction: int):
        blocked = view.translate(_BLOCKS)
        right = b"\0" if _WIDER[direction] else b"\1"
        behind = b"\1" + b"\0" * VIEW + right if _BEHIND[direction] else b"\1" * _FRAME
        rows = [b"\1" + blocked[j : j + VIEW] + right for j in range(0, VIEW * VIEW, VIEW)]
        self.blocked = b"\1" * _FRAME + b"".join(rows) + behind + b"\1" * _FRAME
        # Trying right, left, forward and keeping the first path to a pose equals the original, which tries forward,
        # left, right and keeps the last.
        self.came = _search(self.blocked, (3, 2, 1))
        self.order = None

    def facing(self, place: int) -> Way | None:
        """Return the path to a pose beside a cell and facing it; None if there is none."""
        cell = _framed(place)
        return self._way([4 * (cell - ahead) + d for d, ahead in enumerate(_AHEAD)])

    def onto(self, place: int) -> Way | None:
        """Return the path onto a cell; None if there is none."""
        cell = _framed(place)
        return self._way([4 * cell + d for d in range(4)])

    def _way(self, poses: list[int]) -> Way | None:
        """Return the shortest path to one of the poses; ties go to the pose that the original finds first."""
        ways = [(pose, self._back(pose)) for pose in poses if pose in self.came]
        if len(ways) > 1:
            least = min(len(way) for _, way in ways)
            ways = [(pose, way) for pose, way in ways if len(way) == least]
            if len(ways) > 1:
                self.order = self.order or {pose: i for i, pose in enumerate(_search(self.blocked, (1, 2, 3)))}
                ways.sort(key=lambda found: self.order[found[0]])
        return ways[0][1] if ways else None

    def _back(self, pose: int) -> Way:
        way = []
        while pose != _START:
            before = self.came[pose]
            turn = (pose - before) % 4
            way.append(FORWARD if not turn else RIGHT if turn == 1 else LEFT)
            pose = before
        return way[::-1]


def _framed(place: int) -> int:
    row, column = divmod(place, VIEW)
    return (row + 1) * _FRAME + column + 1


def _search(blocked: bytes, tries: tuple[int, int, int]) -> dict[int, int]:
    """Search breadth first. Return {pose: the pose before it} of all reachable poses, in order of discovery."""
    came = {_START: _START}
    queue = [_START]
    for pose in queue:
        following = _NEXT[pose]
        for i in tries:
            then = following[i]
            if then not in came and not (i == 1 and blocked[following[0]]):
                came[then] = pose
                queue.append(then)
    return came
