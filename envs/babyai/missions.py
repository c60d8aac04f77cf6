"""BabyAI's missions and their texts.

`verify` returns a mission's verdict after a primitive: True if it is done, False if it has failed, None if neither.
"""

from copy import deepcopy
from dataclasses import dataclass, field

from envs.babyai.grid import COLOURS, DOOR, DROP, KINDS, MOVES, OPEN, PICKUP, TOGGLE, Grid, turned, xy


@dataclass
class Desc:
    """A description of objects, and the objects that it matched when the mission began."""

    kind: int | None  # None matches any, "object"
    colour: str | None = None
    where: str | None = None  # one of PLACES, in the agent's first room
    meant: set[int] = field(default_factory=set)  # identities of the matching objects
    places: set[int] = field(default_factory=set)  # their positions at the start or at the last drop

    def fits(self, what: int) -> bool:
        """Return whether an object with this code fits the words, wherever it is."""
        return self.kind in (None, what & 7) and self.colour in (None, COLOURS[what >> 3 & 7])

    def bind(self, grid: Grid) -> "Desc":
        """Find the objects that the description matches in the initial grid. Return the description."""
        self.places = {p for p in grid.things if self.fits(grid.cells[p]) and self._is_where(p, grid)}
        self.meant = {grid.things[p] for p in self.places}
        return self

    def follow(self, grid: Grid) -> None:
        """Update the positions; a carried object has none."""
        self.places = {p for p, identity in grid.things.items() if identity in self.meant}

    def _is_where(self, position: int, grid: Grid) -> bool:
        if self.where is None:
            return True
        (x, y), (agent_x, agent_y) = xy(position), xy(grid.pos)
        ahead, right = turned(x - agent_x, y - agent_y, grid.dir)
        side = {"left": -right, "right": right, "front": ahead, "behind": -ahead}[self.where]
        return side > 0 and grid.in_room(position, grid.room(grid.pos))

    def __str__(self) -> str:
        words = f"{self.colour} " if self.colour else ""
        words += "object" if self.kind is None else KINDS[self.kind]
        words += {None: "", "front": " in front of you", "behind": " behind you"}.get(
            self.where, f" on your {self.where}"
        )
        several = len(self.meant) > 1 or (self.kind is None and self.colour in (None, "grey"))  # walls are grey objects
        return f"{'a' if several else 'the'} {words}"


@dataclass
class GoTo:
    desc: Desc
    walks: int = 1  # budget of the mission in areas of all rooms

    def verify(self, grid: Grid, primitive: int) -> bool | None:
        return True if grid.front in self.desc.places else None

    def __str__(self) -> str:
        return f"go to {self.desc}"


@dataclass
class Open:
    desc: Desc
    strict: bool = False  # toggling another door or closing the right one fails the mission
    walks: int = 1

    def verify(self, grid: Grid, primitive: int) -> bool | None:
        there = grid.cells[grid.front]
        if primitive != TOGGLE or there & 7 != DOOR:
            return None
        if grid.things[grid.front] in self.desc.meant and there >> 6 == OPEN:
            return True
        return False if self.strict else None

    def __str__(self) -> str:
        return f"open {self.desc}"


@dataclass
class PickUp:
    desc: Desc
    strict: bool = False  # picking up anything else fails the mission
    walks: int = 1
    before: int | None = None  # identity carried at the previous verdict

    def verify(self, grid: Grid, primitive: int) -> bool | None:
        before, self.before = self.before, grid.held and grid.held[0]
        if primitive != PICKUP:
            return None
        if before is None and self.before in self.desc.meant:
            return True
        return False if self.strict and grid.held else None

    def __str__(self) -> str:
        return f"pick up {self.desc}"


@dataclass
class PutNext:
    moved: Desc
    fixed: Desc
    walks: int = 2
    before: int | None = None

    def verify(self, grid: Grid, primitive: int) -> bool | None:
        before, self.before = self.before, grid.held and grid.held[0]
        if primitive != DROP or before not in self.moved.meant or self.before is not None:
            return None
        return True if self.adjacent(grid.front) else None  # the dropped object is ahead

    def adjacent(self, position: int) -> bool:
        return any(position + move in self.fixed.places for move in MOVES)

    def __str__(self) -> str:
        return f"put {self.moved} next to {self.fixed}"


@dataclass
class And:
    first: GoTo | Open | PickUp | PutNext
    second: GoTo | Open | PickUp | PutNext
    done: list[bool] = field(default_factory=lambda: [False, False])  # a finished part stays finished

    @property
    def walks(self) -> int:
        return self.first.walks + self.second.walks

    def verify(self, grid: Grid, primitive: int) -> bool | None:
        for i, part in enumerate((self.first, self.second)):
            self.done[i] = self.done[i] or part.verify(grid, primitive) is True
        return all(self.done) or None

    def __str__(self) -> str:
        return f"{self.first} and {self.second}"


@dataclass
class Sequence:
    first: GoTo | Open | PickUp | PutNext | And
    second: GoTo | Open | PickUp | PutNext | And
    after: bool = False  # the text names the second part first
    done: bool = False  # whether the first part is done

    @property
    def walks(self) -> int:
        return self.first.walks + self.second.walks

    def verify(self, grid: Grid, primitive: int) -> bool | None:
        if not self.done:
            verdict = self.first.verify(grid, primitive)
            if not verdict:
                return verdict
            self.done = True
        return self.second.verify(grid, primitive)

    def __str__(self) -> str:
        return f"{self.second} after you {self.first}" if self.after else f"{self.first}, then {self.second}"


Mission = GoTo | Open | PickUp | PutNext | And | Sequence


def parts(mission: Mission) -> list[GoTo | Open | PickUp | PutNext]:
    """Return the single instructions of a mission, in the order of execution."""
    return parts(mission.first) + parts(mission.second) if isinstance(mission, And | Sequence) else [mission]


def descs(mission: Mission) -> list[Desc]:
    """Return all descriptions in a mission."""
    return [
        desc
        for part in parts(mission)
        for desc in ((part.moved, part.fixed) if isinstance(part, PutNext) else (part.desc,))
    ]


@dataclass
class Game:
    """A grid and a mission in it."""

    grid: Grid
    mission: Mission
    max_steps: int  # number of primitives after which the reward has fallen to 0.1

    def act(self, primitive: int) -> bool | None:
        """Execute a primitive. Return the mission's verdict."""
        self.grid.act(primitive)
        if primitive == DROP:
            for desc in descs(self.mission):
                desc.follow(self.grid)
        return self.mission.verify(self.grid, primitive)

    def play(self, way: list[int]) -> bool | None:
        """Execute an action's primitives up to the first that does not change the view. Return the last verdict."""
        verdict, view = None, self.grid.view()
        for primitive in way:
            verdict = self.act(primitive)
            before, view = view, self.grid.view()
            if view == before:
                break
        return verdict

    @property
    def reward(self) -> float:
        """The reward if the mission is done now."""
        return 1 - 0.9 * self.grid.steps / self.max_steps

    def copy(self) -> "Game":
        return Game(self.grid.copy(), deepcopy(self.mission), self.max_steps)
