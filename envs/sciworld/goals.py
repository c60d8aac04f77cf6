"""SciWorld's goals, the progress of an episode, and the tools of its expert.

A goal is a function of the progress that returns whether it is met now. Steps are met in order, extras in any order.
The expert's tools depend only on the state, so that the expert can continue from any state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

from envs.sciworld.grammar import GRAMMAR, readings
from envs.sciworld.rules import World
from envs.sciworld.things import Thing, plain

BOXES = ("red", "green", "blue", "orange", "yellow", "purple")  # colours of the boxes to put things into


@dataclass
class Task:
    """One task: its canonical string, text, starting room, setup and solution."""

    key: str
    description: str
    start: str
    place: Callable[[World], tuple[list, list]]  # puts its things into the house; returns the steps and the extras
    plan: Callable[["Progress"], tuple]  # the expert's next action and its things


@dataclass
class Progress:
    """The progress of an episode."""

    world: World
    steps: list
    extras: list
    start: str  # the room in which the agent started
    done: int = 0  # steps met
    met: set[int] = field(default_factory=set)  # extras met
    paid: set = field(default_factory=set)  # goals that were ever met, kept when the task is reset
    log: list = field(default_factory=list)  # the agent's actions: (action, things)
    learned: set = field(default_factory=set)  # looks at things that show an experiment's result
    visited: set = field(default_factory=set)  # names of rooms
    seen: set = field(default_factory=set)  # names of rooms in which the agent has looked around
    failed: bool = False
    subject: Thing | None = None  # the thing that the agent focused on correctly
    temperature: float = 0.0  # the subject's when the agent focused on it
    state: str = ""  # the subject's when the agent focused on it

    @property
    def score(self) -> int:
        """100 times the share of steps met; all extras together count less than one step."""
        if self.failed:
            return -100
        unit = 1 / (len(self.steps) + 1) / len(self.extras)
        return round(100 * min(1.0, self.done / len(self.steps) + sum(unit for _ in self.met)))

    @property
    def finished(self) -> bool:
        return self.failed or self.done == len(self.steps)

    def update_steps(self) -> None:
        """Mark the next steps as met, as many as are true now."""
        while not self.finished and self.steps[self.done](self):
            self.done += 1

    def update_extras(self) -> None:
        """Mark the extras that are true after an action."""
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
        """Return how many goals are met for the first time in this episode."""
        reached = {("step", i) for i in range(self.done)} | {("extra", i) for i in self.met}
        first = len(reached - self.paid)
        self.paid |= reached
        return first

    def reset(self) -> None:
        self.done, self.subject, self.met = 0, None, set()

    def _telling(self, thing: Thing) -> bool:
        """Return whether a look at a thing shows an experiment's result: a sliding block, a part in a circuit."""
        if thing.form == "plane":
            return any(each.number >= 20 for each in thing.inside)
        wired = thing.form == "part" and all(end.link and end.link.other.link for end in thing.terminals)
        return wired and [action for action, _ in self.log[-2:]] != ["connect", "look at"]  # power needs an iteration


# goals


def focus_on(test: Callable[[Thing], bool]):
    """Goal: the agent focuses on a thing that passes the test; focusing on another thing fails the task."""

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
    """Goal: the subject is in the box; in the wrong box, the task fails."""

    def goal(p: Progress) -> bool:
        names = {holder.name for holder in p.subject.chain()}
        p.failed = wrong in names
        return box in names

    return goal


def state_is(*states: str):
    """Goal: the subject is solid, liquid or gas; burning counts as gas."""
    return lambda p: p.subject.state in states or ("gas" in states and p.subject.burning)


def moved(unless: str = ""):
    return lambda p: p.world.room.name != p.start or p.start == unless


def at(room: str, after: str = ""):
    """Goal: the agent is in the room and, with `after`, has been in that other room."""
    return lambda p: p.world.room.name == room and (not after or after in p.visited)


def near(*names: str):
    return lambda p: any(thing.name in names or thing.label in names for thing in p.world.room.everything())


def alone(*names: str):
    """Goal: one container in the room contains exactly these things."""
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
    """Goal: the subject is warmer by this much than when the agent focused on it; colder for a negative number."""
    sign = 1 if degrees > 0 else -1
    return lambda p: p.subject is not None and sign * ((p.subject.temperature or 0) - p.temperature) >= abs(degrees)


def did(action: str, *things: Thing):
    return lambda p: (action, things) in p.log


def after(extra: int, goal: Callable):
    """Goal: this goal, once that extra is met."""
    return lambda p: extra in p.met and goal(p)


def wired(thing: Thing, end: int):
    return lambda p: bool(thing.terminals[end].link) and thing.terminals[end].link.holder.form == "wire"


def linked(test_a: Callable[[Thing], bool], test_b: Callable[[Thing], bool]):
    """Goal: a wire connects one thing to another."""

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
    """Return the next action of a plan, or first a look around a room whose things it needs."""
    action, *things = plan(p)
    here = (thing for thing in things if thing.form not in ("door", "room"))
    unseen = p.world.room.name not in p.seen
    if unseen and any(p.world.room in thing.chain() and p.world.inventory not in thing.chain() for thing in here):
        return ("look around",)
    return action, *things


def toward(world: World, room: Thing) -> tuple | None:
    """Return the next action on the way to a room; None once there."""
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
    """Return how many doors away a thing is."""
    away = {world.room.name: 0}
    queue = [world.room.name]
    for name in queue:
        for other in sorted(world.rooms[name].doors):
            if other not in away:
                away[other] = away[name] + 1
                queue.append(other)
    return away[world.room_of(thing).name]


def access(world: World, thing: Thing) -> tuple | None:
    """Return the next action to get a thing within reach; None once it is."""
    if action := toward(world, world.room_of(thing)):
        return action
    return next((("open", holder) for holder in reversed(thing.chain()) if holder.open is False), None)


def carrier(thing: Thing) -> Thing:
    """Return the object to carry in order to move a thing: itself, or the vessel that it is in."""
    movable = thing.holder.form == "vessel" and thing.holder.kind not in ("inventory", "fountain", "fire pit", "box")
    return thing.holder if movable else thing


def deliver(world: World, thing: Thing, to: Thing) -> tuple:
    """Return the next action to bring a thing into a container."""
    if world.room_of(to) is world.room and (world.room_of(thing) is world.room):
        opening = ("open", to) if to.open is False else None
        return access(world, thing) or access(world, to) or opening or ("move", thing, to)
    if world.inventory not in thing.chain():
        return access(world, thing) or ("pick up", thing)
    return toward(world, world.room_of(to))


def find_thing(world: World, test: Callable[[Thing], bool]) -> Thing | None:
    """Return the least hidden thing that passes the test."""
    found = [thing for room in world.rooms.values() for thing in room.everything() if test(thing)]
    return min(found, key=lambda thing: (distance(world, thing), len(thing.chain())), default=None)


def called(world: World, name: str) -> Thing | None:
    """Return the least hidden thing with this name or label."""
    return find_thing(world, lambda thing: name in (thing.name, thing.label))


def fill(world: World, vessel: Thing) -> tuple:
    """Return the next action to get water into a vessel."""
    sink = find_thing(world, lambda thing: thing.kind == "sink")
    if vessel.holder is not sink:
        return deliver(world, vessel, sink)
    return access(world, sink) or (("wait1",) if sink.on else ("activate", sink))


def join(world: World, *pairs: tuple) -> tuple | None:
    """Return the next action to connect pairs of terminals, each by a wire; None once all are connected."""
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
    """Return an unambiguous text of an action: the first names of its things that no other reading matches."""
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
