"""SciWorld's goals, the progress of an episode, and the functions that its experts' plans use.

A goal is a function of the progress that returns whether it is met now. Steps are met in order, extras in any order.
A plan depends only on the state, so that an expert can continue from any state.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

from envs.sciworld.grammar import GRAMMAR, readings
from envs.sciworld.house import House
from envs.sciworld.things import Thing, plain

BOXES = ("red", "green", "blue", "orange", "yellow", "purple")  # colours of the boxes to put things into


@dataclass
class Task:
    """One task: its canonical string, text, starting room, setup and solution."""

    key: str
    description: str
    start: str
    place: Callable[[House], tuple[list, list]]  # puts its things into the house; returns the steps and the extras
    plan: Callable[["Progress"], tuple]  # the expert's next action and its things


@dataclass
class Progress:
    """The progress of an episode; `house` changes with each action."""

    house: House
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
        """0 to 100, or -100 for a failed task. All extras together count less than one step."""
        if self.failed:
            return -100
        unit = 1 / (len(self.steps) + 1) / len(self.extras)
        return round(100 * min(1.0, self.done / len(self.steps) + sum(unit for _ in self.met)))

    @property
    def finished(self) -> bool:
        """Whether the task has failed or all steps are met."""
        return self.failed or self.done == len(self.steps)

    def update_steps(self) -> None:
        """Mark the next steps as met, up to the first that is not."""
        while not self.finished and self.steps[self.done](self):
            self.done += 1

    def update_extras(self) -> None:
        """Log the last action and mark the extras that are met after it."""
        self.visited.add(self.house.room.name)
        action, things = self.house.event
        if action:
            self.log.append((action, things))
        if action == "look around" or not self.log:
            self.seen.add(self.house.room.name)
        if action == "look at" and self._shows_result(things[0]):
            self.learned.add(things[0])
        for i, extra in enumerate(self.extras):
            if i not in self.met and extra(self):
                self.met.add(i)

    def new(self) -> int:
        """Return how many goals are met for the first time in this episode, and mark them as paid."""
        reached = {("step", i) for i in range(self.done)} | {("extra", i) for i in self.met}
        first = len(reached - self.paid)
        self.paid |= reached
        return first

    def reset(self) -> None:
        """Forget the steps, the extras and the subject, but not which goals have paid."""
        self.done, self.subject, self.met = 0, None, set()

    def _shows_result(self, thing: Thing) -> bool:
        """Return whether a look at a thing shows an experiment's result: a sliding block, a part in a circuit."""
        if thing.form == "plane":
            return any(each.number >= 20 for each in thing.inside)
        wired = thing.form == "part" and all(end.link and end.link.other.link for end in thing.terminals)
        return wired and [action for action, _ in self.log[-2:]] != ["connect", "look at"]  # power needs an iteration


# goals


def focus_on(test: Callable[[Thing], bool]):
    """Return the goal to focus on a thing that passes the test; focusing on another thing fails the task."""

    def goal(p: Progress) -> bool:
        thing, p.house.focus = p.house.focus, None
        if thing is None:
            return False
        p.failed = not test(thing)
        if not p.failed:
            p.subject, p.temperature, p.state = thing, thing.temperature or 0.0, thing.state
        return not p.failed

    return goal


def named(name: str):
    """Return the goal to focus on the thing with this name or label."""
    return focus_on(lambda thing: name in (thing.name, thing.label))


def put_in(box: str, wrong: str = ""):
    """Return the goal to have the subject in a box; in the box `wrong`, the task fails."""

    def goal(p: Progress) -> bool:
        names = {holder.name for holder in p.subject.chain()}
        p.failed = wrong in names
        return box in names

    return goal


def state_is(*states: str):
    """Return the goal that the subject is in one of the states; burning counts as gas."""
    return lambda p: p.subject.state in states or ("gas" in states and p.subject.burning)


def moved(unless: str = ""):
    """Return the goal to leave the starting room; it is met at once if that is the room `unless`."""
    return lambda p: p.house.room.name != p.start or p.start == unless


def at(room: str, after: str = ""):
    """Return the goal to be in a room and, with `after`, to have been in that other room."""
    return lambda p: p.house.room.name == room and (not after or after in p.visited)


def stay(room: str, iterations: int):
    """Return the goal to have been in a room for this many iterations without leaving it."""
    arrived: int | None = None

    def goal(p: Progress) -> bool:
        nonlocal arrived
        if p.house.room.name != room:
            arrived = None
        elif arrived is None:
            arrived = p.house.iteration
        return arrived is not None and p.house.iteration - arrived >= iterations

    return goal


def near(*names: str):
    """Return the goal that one of these things is in the agent's room."""
    return lambda p: any(thing.name in names or thing.label in names for thing in p.house.room.everything())


def alone(*names: str):
    """Return the goal that one vessel in the room contains exactly these things."""
    wanted = sorted(names)
    size = len(wanted)
    return lambda p: any(
        len(thing.inside) == size and sorted(each.name for each in thing.inside) == wanted
        for thing in p.house.room.everything()
        if thing.form == "vessel"
    )


def running(kind: str):
    """Return the goal that a device of this kind is on."""
    return lambda p: any(thing.kind == kind and thing.on for thing in p.house.sources)


def holds(name: str):
    """Return the goal that the agent carries a thing."""
    return lambda p: any(thing.name == name for thing in p.house.inventory.inside)


def in_pots(name: str, count: int):
    """Return the goal that this many flower pots in the agent's room hold a thing with this name."""

    def goal(p: Progress) -> bool:
        pots = [thing for thing in p.house.room.everything() if thing.kind == "flower pot"]
        return sum(any(each.name == name for each in pot.inside) for pot in pots) >= count

    return goal


def inside(kind: str):
    """Return the goal that the subject is in a container of this kind."""
    return lambda p: p.subject is not None and any(holder.kind == kind for holder in p.subject.chain())


def warmer(degrees: float):
    """Return the goal that the subject is this much warmer (if negative, colder) than when the agent focused on it."""
    sign = 1 if degrees > 0 else -1
    return lambda p: p.subject is not None and sign * ((p.subject.temperature or 0) - p.temperature) >= abs(degrees)


def did(action: str, *things: Thing):
    """Return the goal to have done an action."""
    return lambda p: (action, things) in p.log


def after(extra: int, goal: Callable):
    """Return a goal that also requires the extra with this index to be met."""
    return lambda p: extra in p.met and goal(p)


def wired(thing: Thing, end: int):
    """Return the goal that a wire connects to a thing's terminal 0 or 1."""
    return lambda p: bool(thing.terminals[end].link) and thing.terminals[end].link.holder.form == "wire"


def linked(test_a: Callable[[Thing], bool], test_b: Callable[[Thing], bool]):
    """Return the goal that a wire connects a thing that passes one test to a thing that passes the other."""

    def goal(p: Progress) -> bool:
        wires = [thing for thing in p.house.room.everything() if thing.form == "wire" and thing.terminals_]
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
    unseen = p.house.room.name not in p.seen
    if unseen and any(p.house.room in thing.chain() and p.house.inventory not in thing.chain() for thing in here):
        return ("look around",)
    return action, *things


def toward(house: House, room: Thing) -> tuple | None:
    """Return the next action on the way to a room; None once there."""
    if house.room is room:
        return None
    first = {house.room.name: ""}
    queue = [house.room.name]
    for name in queue:
        for other in sorted(house.rooms[name].doors):
            if other not in first:
                first[other] = first[name] or other
                queue.append(other)
    door = house.room.doors[first[room.name]]
    return ("go", house.rooms[first[room.name]]) if door.open else ("open", door)


def distance(house: House, thing: Thing) -> int:
    """Return how many doors away a thing is."""
    away = {house.room.name: 0}
    queue = [house.room.name]
    for name in queue:
        for other in sorted(house.rooms[name].doors):
            if other not in away:
                away[other] = away[name] + 1
                queue.append(other)
    return away[house.room_of(thing).name]


def access(house: House, thing: Thing) -> tuple | None:
    """Return the next action to get a thing within reach; None once it is."""
    if action := toward(house, house.room_of(thing)):
        return action
    return next((("open", holder) for holder in reversed(thing.chain()) if holder.open is False), None)


def carrier(thing: Thing) -> Thing:
    """Return the object to carry in order to move a thing: itself, or the vessel that it is in."""
    movable = thing.holder.form == "vessel" and thing.holder.kind not in ("inventory", "fountain", "fire pit", "box")
    return thing.holder if movable else thing


def deliver(house: House, thing: Thing, to: Thing) -> tuple:
    """Return the next action to bring a thing into a container."""
    if house.room_of(to) is house.room and (house.room_of(thing) is house.room):
        opening = ("open", to) if to.open is False else None
        return access(house, thing) or access(house, to) or opening or ("move", thing, to)
    if house.inventory not in thing.chain():
        return access(house, thing) or ("pick up", thing)
    return toward(house, house.room_of(to))


def find_thing(house: House, test: Callable[[Thing], bool]) -> Thing | None:
    """Return the nearest thing that passes the test: the fewest doors away, then in the fewest containers."""
    found = [thing for room in house.rooms.values() for thing in room.everything() if test(thing)]
    return min(found, key=lambda thing: (distance(house, thing), len(thing.chain())), default=None)


def called(house: House, name: str) -> Thing | None:
    """Return the nearest thing with this name or label."""
    return find_thing(house, lambda thing: name in (thing.name, thing.label))


def fill(house: House, vessel: Thing) -> tuple:
    """Return the next action to get water into a vessel."""
    sink = find_thing(house, lambda thing: thing.kind == "sink")
    if vessel.holder is not sink:
        return deliver(house, vessel, sink)
    return access(house, sink) or (("wait1",) if sink.on else ("activate", sink))


def join(house: House, *pairs: tuple) -> tuple | None:
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
            wire = find_thing(house, unused)
            return access(house, wire) or ("connect", a, wire.terminals[0])
    return None


def phrase(house: House, action: str, *things: Thing) -> str:
    """Return an unambiguous text of an action: the first names of its things that no other reading matches."""
    if house.pending and (action, things) in house.pending:
        return str(house.pending.index((action, things)))
    verbs, *words = GRAMMAR[action]
    says = ""
    for names in product(*map(lambda thing: _names(house, thing), things)):
        parts = [" ".join([*before[:1], name]) for name, before in zip(names, words, strict=True)]
        text = " ".join([verbs[0].replace("go", "go to"), *parts])
        says = says or text
        if readings(house, plain(text)) == [(action, things)]:
            return text
    return says


def _names(house: House, thing: Thing) -> list[str]:
    if thing.form == "door":
        return [f"door to {thing.other(house.room).name}"]
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
