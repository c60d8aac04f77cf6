"""Generate a BabyAI grid: rooms, doors between them, objects in them, and the agent.

Rooms form rows and columns and share walls. The sides of a room are 0 right, 1 down, 2 left, 3 up. Methods raise Redraw
if something does not fit; then the level is drawn again.
"""

from collections.abc import Iterable
from random import Random

from envs.babyai.grid import BALL, BOX, CLOSED, COLOURS, DOOR, EMPTY, KEY, LOCKED, MOVES, WALL, Grid, cell, code

SIDES = ((1, 0), (0, 1), (-1, 0), (0, -1))
Room = tuple[int, int]  # column and row
What = tuple[int, str]  # kind and colour


class Redraw(Exception):
    """This draw cannot be used."""


class Maze:
    """A grid under construction."""

    def __init__(self, rng: Random, room: int, rows: int, cols: int):
        self.rng = rng
        self.grid = Grid(room, rows, cols)
        self.rooms = [(i, j) for j in range(rows) for i in range(cols)]
        self.made = 0  # number of identities assigned
        self.doors: dict[tuple[Room, int], What | None] = {}  # (room, side) of both its rooms -> door; None: no wall
        self.spots: dict[tuple[Room, int], int] = {}  # (room, side) -> position of its door, or of a possible one
        self.locked: set[Room] = set()  # rooms with a locked door
        for i, j in self.rooms:
            for side in (0, 1):
                if self.neighbour((i, j), side):
                    along = rng.randrange(1, room - 1)
                    x, y = (self.grid.pitch, along) if side == 0 else (along, self.grid.pitch)
                    self.spots[(i, j), side] = cell(i * self.grid.pitch + x, j * self.grid.pitch + y)
                    self.spots[self.neighbour((i, j), side), side + 2] = self.spots[(i, j), side]

    def neighbour(self, room: Room, side: int) -> Room | None:
        """Return the room on a side; None if there is none."""
        beside = room[0] + SIDES[side][0], room[1] + SIDES[side][1]
        return beside if beside in self.rooms else None

    def colour(self) -> str:
        return self.rng.choice(COLOURS)

    def door(self, room: Room, side: int | None = None, colour: str | None = None, locked: bool | None = None) -> What:
        """Add a door on a side that has none yet. Return its kind and colour."""
        if side is None:
            side = self.rng.choice([s for s in range(4) if self.neighbour(room, s) and (room, s) not in self.doors])
        what = DOOR, colour or self.colour()
        if locked is None:
            locked = self.rng.random() < 0.5
        if locked:
            self.locked.add(room)
        self.grid.put(self.spots[room, side], code(*what, LOCKED if locked else CLOSED), self.identity())
        self.doors[room, side] = self.doors[self.neighbour(room, side), (side + 2) % 4] = what
        return what

    def open_wall(self, room: Room, side: int) -> None:
        """Remove the wall between two rooms."""
        x, y = (at * self.grid.pitch for at in room)
        for along in range(1, self.grid.pitch):
            dx, dy = ((self.grid.pitch, along), (along, self.grid.pitch), (0, along), (along, 0))[side]
            self.grid.put(cell(x + dx, y + dy), EMPTY)
        self.doors[room, side] = self.doors[self.neighbour(room, side), (side + 2) % 4] = None

    def add(self, room: Room | None = None, kind: int | None = None, colour: str | None = None, content=None) -> What:
        """Add an object to a room, not beside the agent. Return its kind and colour."""
        what = kind or self.rng.choice((KEY, BALL, BOX)), colour or self.colour()
        near = {self.grid.pos, *(self.grid.pos + move for move in MOVES)}
        position = self._empty(room or self.rng.choice(self.rooms), near)
        self.grid.put(position, code(*what), self.identity())
        if content:
            self.grid.contents[self.grid.things[position]] = self.identity(), code(*content)
        return what

    def scatter(self, count: int, room: Room | None = None, unique: bool = True) -> list[What]:
        """Add random objects; unique ones differ from all others. Return their kinds and colours."""
        there = {code(kind, colour) for kind in (KEY, BALL, BOX) for colour in COLOURS} & set(self.grid.cells)
        made = []
        while len(made) < count:
            what = self.rng.choice((KEY, BALL, BOX)), self.colour()
            if unique and code(*what) in there:
                continue
            there.add(code(*what))
            made.append(self.add(room, *what))
        return made

    def agent(self, room: Room | None = None) -> None:
        """Place the agent, facing a wall or an empty cell."""
        for _ in range(1000):
            self.grid.pos = self._empty(room or self.rng.choice(self.rooms))
            self.grid.dir = self.rng.randrange(4)
            if self.grid.cells[self.grid.front] in (EMPTY, WALL):
                return
        raise Redraw("no place for the agent")

    def connect(self, colours: Iterable[str] = COLOURS) -> None:
        """Add doors until every room can be reached from every other."""
        colours = list(colours)
        for _ in range(1000):
            reached = self._rooms_reached()
            if len(reached) == len(self.rooms):
                return
            room, side = self.rng.choice(self.rooms), self.rng.randrange(4)
            beside = self.neighbour(room, side)
            if beside and (room, side) not in self.doors and not {room, beside} & self.locked:
                self.door(room, side, self.rng.choice(colours), locked=False)
        raise Redraw("the rooms cannot be connected")

    def reachable(self) -> bool:
        """Return whether the agent can reach every object without moving any; every door counts as open."""
        cells, seen, ways = self.grid.cells, set(), [self.grid.pos]
        while ways:
            position = ways.pop()
            if position not in seen:
                seen.add(position)
                if cells[position] == EMPTY or cells[position] & 7 == DOOR:
                    ways += [position + move for move in MOVES]
        return seen >= self.grid.things.keys()

    def need_reachable(self) -> None:
        """Raise Redraw if the agent cannot reach every object."""
        if not self.reachable():
            raise Redraw("an object is blocked")

    def identity(self) -> int:
        """Return a new object's identity."""
        self.made += 1
        return self.made

    def _empty(self, room: Room, near: set[int] = frozenset()) -> int:
        x, y = (at * self.grid.pitch for at in room)
        for _ in range(1000):
            side = self.grid.pitch
            position = cell(x + self.rng.randrange(1, side), y + self.rng.randrange(1, side))
            if self.grid.cells[position] == EMPTY and position not in near:
                return position
        raise Redraw("the room is full")

    def _rooms_reached(self) -> set[Room]:
        reached, ways = set(), [self.rooms[0]]
        while ways:
            room = ways.pop()
            if room not in reached:
                reached.add(room)
                ways += [self.neighbour(room, side) for side in range(4) if (room, side) in self.doors]
        return reached
