"""BabyAI's grid: its cells, the agent in it and its view, and the primitives that change it.

A position is an index into a padded grid with rows of STRIDE cells; a step adds one of MOVES. A cell's code packs
Minigrid's own numbers of kind, colour and state, so that tests compare views with Minigrid's byte by byte. Every object
has an identity, because a mission refers to the objects that matched its words when it began.
"""

from functools import cache

KINDS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
OPEN, CLOSED, LOCKED = range(3)
DOOR, KEY, BALL, BOX = range(4, 8)
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE = range(6)  # the primitives
PLACES = ("left", "right", "front", "behind")  # relative to the agent

PAD = 6  # cells of wall around the grid, as far as the view reaches
STRIDE = 22 + 2 * PAD  # the largest grid is 22 cells wide: three rooms of 8 that share their walls
MOVES = (1, STRIDE, -1, -STRIDE)  # facing right, down, left, up
VIEW = 7  # the view is 7 x 7 cells, the agent in the middle of the nearest row


def code(kind: int, colour: str, state: int = 0) -> int:
    """Return a cell's code."""
    return kind | COLOURS.index(colour) << 3 | state << 6


UNSEEN, EMPTY, WALL = 0, 1, code(2, "grey")
NAMES = {code(kind, colour): f"{colour} {KINDS[kind]}" for kind in (KEY, BALL, BOX) for colour in COLOURS}
NAMES |= {
    code(DOOR, colour, state): f"{colour} {('open', 'closed', 'locked')[state]} door"
    for colour in COLOURS
    for state in (OPEN, CLOSED, LOCKED)
}
FREE = frozenset([EMPTY, *(code(DOOR, colour, OPEN) for colour in COLOURS)])  # cells that the agent can stand on
_OPAQUE = {WALL, *(c for c, name in NAMES.items() if name.endswith(("closed door", "locked door")))}
_CLEAR = bytes(ord("0") if c in _OPAQUE else ord("1") for c in range(256))  # code -> "1" if light passes
_MASKS = [int.from_bytes(bytes(255 * (lit >> 6 - i & 1) for i in range(VIEW))) for lit in range(128)]


def cell(x: int, y: int) -> int:
    """Return the position of a column and a row."""
    return (y + PAD) * STRIDE + x + PAD


def xy(position: int) -> tuple[int, int]:
    """Return the column and the row of a position."""
    return position % STRIDE - PAD, position // STRIDE - PAD


class Grid:
    """The state of the grid and of the agent in it."""

    def __init__(self, room: int, rows: int, cols: int):
        self.pitch = room - 1  # distance between neighbouring rooms, which share a wall
        self.rows, self.cols = rows, cols
        self.cells = bytearray([WALL]) * (STRIDE * STRIDE)
        for y in range(rows * self.pitch):
            for x in range(cols * self.pitch):
                if x % self.pitch and y % self.pitch:
                    self.cells[cell(x, y)] = EMPTY
        self.things: dict[int, int] = {}  # position of an object or door -> its identity
        self.contents: dict[int, tuple[int, int]] = {}  # identity of a box -> identity and code of its content
        self.held: tuple[int, int] | None = None  # identity and code of what the agent carries
        self.pos = self.dir = self.steps = 0

    @property
    def front(self) -> int:
        """The position ahead of the agent."""
        return self.pos + MOVES[self.dir]

    def act(self, primitive: int) -> None:
        """Execute one of the six primitives. An impossible one changes only the count of steps."""
        self.steps += 1
        front = self.pos + MOVES[self.dir]
        there = self.cells[front]
        if primitive == FORWARD:
            if there in FREE:
                self.pos = front
        elif primitive == LEFT:
            self.dir = (self.dir - 1) % 4
        elif primitive == RIGHT:
            self.dir = (self.dir + 1) % 4
        elif primitive == PICKUP:
            if there & 7 > DOOR and self.held is None:
                self.held = self.things[front], there
                self.put(front, EMPTY)
        elif primitive == DROP:
            if there == EMPTY and self.held:
                self.put(front, self.held[1], self.held[0])
                self.held = None
        elif there & 7 == BOX:
            identity, content = self.contents.pop(self.things[front], (None, EMPTY))
            self.put(front, content, identity)
        elif there & 7 == DOOR:
            state, colour = there >> 6, COLOURS[there >> 3 & 7]
            if state != LOCKED or (self.held and self.held[1] == code(KEY, colour)):
                self.put(front, code(DOOR, colour, CLOSED if state == OPEN else OPEN), self.things[front])

    def put(self, position: int, what: int, identity: int | None = None) -> None:
        """Set a cell to a code, and the identity of the object there (None: no object)."""
        self.cells[position] = what
        if identity is None:
            self.things.pop(position, None)
        else:
            self.things[position] = identity

    def view(self) -> bytes:
        """Return the agent's view: 49 codes, the farthest row first, each row from left to right.

        The agent's own cell has the code of the object that it carries.
        Light starts at the agent and spreads from the nearest row to the farthest: see `_sweep`.
        """
        ahead, right = MOVES[self.dir], MOVES[(self.dir + 1) % 4]
        start, lit, rows = self.pos - 3 * right, 0b0001000, []
        for _ in range(VIEW):
            row = self.cells[start : start + VIEW * right : right]
            lit, beyond = _sweep(lit, int(row.translate(_CLEAR), 2))
            rows.append((int.from_bytes(row) & _MASKS[lit]).to_bytes(VIEW))
            start, lit = start + ahead, beyond
        near = bytearray(rows[0])
        near[3] = self.held[1] if self.held else EMPTY
        rows[0] = near
        return b"".join(reversed(rows))

    def room(self, position: int) -> tuple[int, int]:
        """Return the column and the row of the room of a position."""
        x, y = xy(position)
        return x // self.pitch, y // self.pitch

    def in_room(self, position: int, room: tuple[int, int]) -> bool:
        """Return whether a position is in a room, its walls included."""
        return all(0 <= at - side * self.pitch <= self.pitch for at, side in zip(xy(position), room, strict=True))

    def copy(self) -> "Grid":
        twin = object.__new__(Grid)
        twin.__dict__ |= self.__dict__
        twin.cells, twin.things, twin.contents = self.cells[:], self.things.copy(), self.contents.copy()
        return twin


@cache
def _sweep(lit: int, clear: int) -> tuple[int, int]:
    """Return the lit cells of a row and the cells that they light in the row beyond, as 7 bits, leftmost first.

    From left to right, then from right to left, a lit transparent cell lights its neighbour in that direction, the cell
    ahead of it, and the cell ahead of that neighbour.
    """
    beyond = 0
    for i in range(6, 0, -1):
        if lit & clear & 1 << i:
            lit |= 1 << i - 1
            beyond |= 0b11 << i - 1
    for i in range(6):
        if lit & clear & 1 << i:
            lit |= 1 << i + 1
            beyond |= 0b11 << i
    return lit, beyond


def turned(dx: int, dy: int, direction: int) -> tuple[int, int]:
    """Return an offset as steps (ahead, to the right) for an agent that faces this direction."""
    return ((dx, dy), (dy, -dx), (-dx, -dy), (-dy, dx))[direction]
