"""What a task of SciWorld asks for, how far an episode has come, and the tools of its expert.

A goal is a function of the progress: whether it is met now. The steps are met one after the other, the extras in any
order. The expert's tools look only at the state, so that it goes on from wherever the agent is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

from envs.sciworld.grammar import GRAMMAR, readings
from envs.sciworld.rules import World
from envs.sciworld.things import Thing, plain


@dataclass
class Task:
    """One task: its canonical string, its words, where the agent starts, how it is set up and how it is solved."""

    key: str
    description: str
    start: str
    place: Callable[[World], tuple[list, list]]  # puts its things into the house; returns the steps and the extras
    plan: Callable[["Progress"], tuple]  # the expert's next action and its things


@dataclass
class Progress:
    """How far an episode has come."""

    world: World
    steps: list
    extras: list
    start: str  # the room in which the agent started
    done: int = 0  # steps met
    met: set[int] = field(default_factory=set)  # extras met
    paid: set = field(default_factory=set)  # goals that were met once, whatever has been reset since
    log: list = field(default_factory=list)  # what the agent did: (action, things)
    learned: set = field(default_factory=set)  # looks at what says something about an experiment
    visited: set = field(default_factory=set)  # names of rooms
    seen: set = field(default_factory=set)  # names of rooms in which the agent has looked around
    failed: bool = False
    subject: Thing | None = None  # what the agent focused on as it should
    temperature: float = 0.0  # of the subject, when the agent focused on it
    state: str = ""  # likewise

    @property
    def score(self) -> int:
        """A hundred times the share of the steps, and for all extras together less than one step more."""
        if self.failed:
            return -100
        unit = 1 / (len(self.steps) + 1) / len(self.extras)
        return round(100 * min(1.0, self.done / len(self.steps) + sum(unit for _ in self.met)))

    @property
    def finished(self) -> bool:
        return self.failed or self.done == len(self.steps)

    def update_steps(self) -> None:
        """Meet the next steps, as many as are true now."""
        while not self.finished and self.steps[self.done](self):
            self.done += 1

    def update_extras(self) -> None:
        """Meet the extras that are true now, after an action."""
        self.visited.add(self.world.room.name)
        action, things = self.world.event
        if action:
            self.log.append((action, things))
        if action == "look around" or not self.log:
            self.seen.add(self.world.room.name)
        if action == "look at" and self._telling(things[0]):
            self.learned.add(things[0])
        for i, extra in enumerate(self.extras):
            if i not in self.met and extra(self):
                self.met.add(i)

    def new(self) -> int:
        """How many goals have been met that were not met before in this episode."""
        reached = {("step", i) for i in range(self.done)} | {("extra", i) for i in self.met}
        first = len(reached - self.paid)
        self.paid |= reached
        return first

    def reset(self) -> None:
        self.done, self.subject, self.met = 0, None, set()

    def _telling(self, thing: Thing) -> bool:
        """Whether a look at a thing says how an experiment comes out: a block on its way, a part in a circuit."""
        if thing.form == "plane":
            return any(each.number >= 20 for each in thing.inside)
        wired = thing.form == "part" and all(end.link and end.link.other.link for end in thing.terminals)
        return wired and [action for action, _ in self.log[-2:]] != ["connect", "look at"]  # it takes an iteration


# goals


def focus_on(test: Callable[[Thing], bool]):
    """The agent focuses on what passes the test; on anything else, and the task is failed."""

    def goal(p: Progress) -> bool:
        thing, p.world.focus = p.world.focus, None
        if thing is None:
            return False
        p.failed = not test(thing)
        if not p.failed:
            p.subject, p.temperature, p.state = thing, thing.temperature or 0.0, thing.state
        return not p.failed

    return goal


def named(name: str):
    return focus_on(lambda thing: name in (thing.name, thing.label))


def put_in(box: str, wrong: str = ""):
    """The subject is in the box; if it is in the wrong one, the task is failed."""

    def goal(p: Progress) -> bool:
        names = {holder.name for holder in p.subject.chain()}
        p.failed = wrong in names
        return box in names

    return goal


def state_is(*states: str):
    """The subject is solid, liquid or gas; to burn is as good as to boil."""
    return lambda p: p.subject.state in states or ("gas" in states and p.subject.burning)


def moved(unless: str = ""):
    return lambda p: p.world.room.name != p.start or p.start == unless


def at(room: str, after: str = ""):
    """The agent is in the room and, with `after`, has been in that other one."""
    return lambda p: p.world.room.name == room and (not after or after in p.visited)


def near(*names: str):
    return lambda p: any(thing.name in names or thing.label in names for thing in p.world.room.everything())


def alone(*names: str):
    """One container in the room holds exactly these."""
    wanted = sorted(names)
    size = len(wanted)
    return lambda p: any(
        len(thing.inside) == size and sorted(each.name for each in thing.inside) == wanted
        for thing in p.world.room.everything()
        if thing.form == "vessel"
    )


def running(kind: str):
    return lambda p: any(thing.kind == kind and thing.on for thing in p.world.sources)


def holds(name: str):
    return lambda p: any(thing.name == name for thing in p.world.inventory.inside)


def inside(kind: str):
    return lambda p: p.subject is not None and any(holder.kind == kind for holder in p.subject.chain())


def warmer(degrees: float):
    """The subject is that much warmer than when the agent focused on it; colder, for a negative number."""
    sign = 1 if degrees > 0 else -1
    return lambda p: p.subject is not None and sign * ((p.subject.temperature or 0) - p.temperature) >= abs(degrees)


def did(action: str, *things: Thing):
    return lambda p: (action, things) in p.log


def after(extra: int, goal: Callable):
    """A goal that only counts once that extra is met."""
    return lambda p: extra in p.met and goal(p)


def wired(thing: Thing, end: int):
    return lambda p: bool(thing.terminals[end].link) and thing.terminals[end].link.holder.form == "wire"


def linked(test_a: Callable[[Thing], bool], test_b: Callable[[Thing], bool]):
    """A wire joins one thing to another."""

    def goal(p: Progress) -> bool:
        wires = [thing for thing in p.world.room.everything() if thing.form == "wire" and thing.terminals_]
        for wire in wires:
            ends = [end.link.holder for end in wire.terminals if end.link]
            if len(ends) == 2 and any(test_a(x) and test_b(y) for x, y in (ends, ends[::-1])):
                return True
        return False

    return goal


# the expert


def expert(p: Progress, plan: Callable[[Progress], tuple]) -> tuple:
    """The next action of a plan, but first a look at a room of which a thing is wanted."""
    action, *things = plan(p)
    here = (thing for thing in things if thing.form not in ("door", "room"))
    unseen = p.world.room.name not in p.seen
    if unseen and any(p.world.room in thing.chain() and p.world.inventory not in thing.chain() for thing in here):
        return ("look around",)
    return action, *things


def toward(world: World, room: Thing) -> tuple | None:
    """The next action on the way to a room, None when there."""
    if world.room is room:
        return None
    first = {world.room.name: ""}
    queue = [world.room.name]
    for name in queue:
        for other in sorted(world.rooms[name].doors):
            if other not in first:
                first[other] = first[name] or other
                queue.append(other)
    door = world.room.doors[first[room.name]]
    return ("go", world.rooms[first[room.name]]) if door.open else ("open", door)


def distance(world: World, thing: Thing) -> int:
    """How many doors away a thing is."""
    away = {world.room.name: 0}
    queue = [world.room.name]
    for name in queue:
        for other in sorted(world.rooms[name].doors):
            if other not in away:
                away[other] = away[name] + 1
                queue.append(other)
    return away[world.room_of(thing).name]


def access(world: World, thing: Thing) -> tuple | None:
    """The next action to have a thing within reach, None when it is."""
    if action := toward(world, world.room_of(thing)):
        return action
    return next((("open", holder) for holder in reversed(thing.chain()) if holder.open is False), None)


def carrier(thing: Thing) -> Thing:
    """What to take to take the thing along: itself, or the vessel that it is in."""
    movable = thing.holder.form == "vessel" and thing.holder.kind not in ("inventory", "fountain", "fire pit", "box")
    return thing.holder if movable else thing


def deliver(world: World, thing: Thing, to: Thing) -> tuple:
    """The next action to bring a thing into a container."""
    if world.room_of(to) is world.room and (world.room_of(thing) is world.room):
        opening = ("open", to) if to.open is False else None
        return access(world, thing) or access(world, to) or opening or ("move", thing, to)
    if world.inventory not in thing.chain():
        return access(world, thing) or ("pick up", thing)
    return toward(world, world.room_of(to))


def find_thing(world: World, test: Callable[[Thing], bool]) -> Thing | None:
    """The thing that passes the test and is the least hidden."""
    found = [thing for room in world.rooms.values() for thing in room.everything() if test(thing)]
    return min(found, key=lambda thing: (distance(world, thing), len(thing.chain())), default=None)


def fill(world: World, vessel: Thing) -> tuple:
    """The next action to get water into a vessel."""
    sink = find_thing(world, lambda thing: thing.kind == "sink")
    if vessel.holder is not sink:
        return deliver(world, vessel, sink)
    return access(world, sink) or (("wait1",) if sink.on else ("activate", sink))


def join(world: World, *pairs: tuple) -> tuple | None:
    """The next action to join pairs of terminals, each by a wire; None when all are joined."""
    for a, b in pairs:
        for here, there in ((a, b), (b, a)):
            end = here.link
            if end is None:
                continue
            if end.holder.form == "wire" and end.other.link is there:
                break
            if end.holder.form == "wire" and end.other.link is None and there.link is None:
                return ("connect", end.other, there)
            return ("disconnect", here.holder)
        else:
            unused = lambda thing: thing.form == "wire" and not any(end.link for end in thing.terminals)  # noqa: E731
            wire = find_thing(world, unused)
            return access(world, wire) or ("connect", a, wire.terminals[0])
    return None


def phrase(world: World, action: str, *things: Thing) -> str:
    """An action in words that mean only it: the first way to name its things that nothing else answers to."""
    if world.pending and (action, things) in world.pending:
        return str(world.pending.index((action, things)))
    verbs, *words = GRAMMAR[action]
    says = ""
    for names in product(*map(lambda thing: _names(world, thing), things)):
        parts = [" ".join([*before[:1], name]) for name, before in zip(names, words, strict=True)]
        text = " ".join([verbs[0].replace("go", "go to"), *parts])
        says = says or text
        if readings(world, plain(text)) == [(action, things)]:
            return text
    return says


def _names(world: World, thing: Thing) -> list[str]:
    if thing.form == "door":
        return [f"door to {thing.other(world.room).name}"]
    if thing.form == "terminal":
        return [f"{thing.holder.name} {thing.name}", f"{thing.name} in {thing.holder.label}"]
    plainly = [thing.name] if thing.burning else list(dict.fromkeys((thing.label, thing.name)))
    full = [*plainly, *(f"{name} in {thing.holder.name}" for name in plainly if thing.holder)]
    held = " and ".join(sorted(each.label for each in thing.inside)) or "nothing"
    if thing.form == "vessel" and thing.holder:
        full += [f"{thing.name} containing {held}", f"{thing.name} containing {held} in {thing.holder.name}"]
    if thing.holder and thing.holder.form == "vessel":
        full += [f"{thing.name} in {name}" for name in thing.holder.names(contents=True)]
    return full
