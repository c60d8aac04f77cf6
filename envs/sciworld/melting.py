"""SciWorld's two task families about melting points: of a known and of an unknown substance."""

from random import Random

from envs.sciworld.goals import (
    BOXES,
    Progress,
    Task,
    access,
    at,
    called,
    did,
    holds,
    moved,
    named,
    near,
    running,
)
from envs.sciworld.house import House
from envs.sciworld.kinds import MATTER
from envs.sciworld.matter import HEATERS, begin_to_measure, heat_or_cool
from envs.sciworld.physics import SOURCES
from envs.sciworld.rooms import ROOMS
from envs.sciworld.things import Thing, create

KNOWN = ("chocolate", "gallium", "lead", "mercury", "orange juice", "tin")
LIMITS = (-10, 10, 50, 150, 200)  # degrees that a melting point is compared with
UNKNOWN = range(20, 301)  # melting points of unknown substances, within reach of the stove
APART = 5, 15  # least degrees between a known and an unknown melting point and its limit


def melting_point(rng: Random, bare: bool, unknown: bool) -> Task:
    """Draw a task: measure a melting point and focus on the matching box. All is in the kitchen."""
    start, limit = rng.choice(ROOMS), rng.choice(LIMITS)
    name = f"solid unknown substance {rng.choice('BCFGHLNOPQRSUWYZ')}" if unknown else rng.choice(KNOWN)
    melts = rng.choice([each for each in UNKNOWN if abs(each - limit) >= APART[1]]) if unknown else MATTER[name][0]
    cup, i = rng.choice(("glass cup", "paper cup", "plastic cup")), rng.randrange(len(BOXES) - 1)
    above, below = f"{BOXES[i]} box", f"{BOXES[i + 1]} box"
    right, wrong = (above, below) if melts > limit else (below, above)

    def place(house: House):
        kitchen = house.rooms["kitchen"]
        thing = house.target = _subject(house, name, melts if unknown else None, cup)
        for box in (above, below):
            create(box).put(kitchen)
        tool, wood, pit = (called(house, each) for each in ("thermometer", "wood", "fire pit"))
        first, before, use = thing.temperature, thing.state, ("use", (tool, thing))
        extras = [near("thermometer"), holds("thermometer"), moved(), at("kitchen"), at("kitchen")]
        extras += [*map(at, ("kitchen", "outside", "foundry")), holds(name), did("use", tool, thing)]
        extras += [lambda p: p.house.event == use and thing.state != before, _alone(thing), *map(running, HEATERS)]
        extras += [holds("lighter"), lambda p: wood.holder is pit, lambda p: wood.burning]
        extras += [_within(thing, kind) for kind in (*HEATERS, "fire pit")]
        extras += [lambda p: thing.temperature >= first + 20]
        return [named("thermometer"), named(name), _answer(right, wrong)], extras

    def plan(p: Progress):
        house, thing = p.house, p.house.target
        tool = called(house, "thermometer")
        if begin := begin_to_measure(p, tool, thing):
            return begin
        if MEASURED in p.met:
            box = called(house, right)
            return access(house, box) or ("focus", box)
        if (thing.temperature >= melts) == (melts <= 10):
            return _wait(heat_or_cool(p, thing, ""), thing, melts, limit)
        return access(house, thing) or ("use", tool, thing)

    says = (
        f"measure the melting point of {name}, which is located around the kitchen. First, focus on the thermometer. "
        f"Next, focus on the {name}. If the melting point of {name} is above {limit:.1f} degrees celsius, focus on the "
        f"{above}. If the melting point of {name} is below {limit:.1f} degrees celsius, focus on the {below}. "
        "The boxes are located around the kitchen."
    )
    return Task(f"{name}:{melts}:{limit}:{right}:{wrong}:{start}", says, start, place, plan)


MEASURED = 10  # index of the extra to have measured the substance in its other state


def _subject(house: House, name: str, melts: int | None, cup: str) -> Thing:
    """Put the substance into the kitchen: an unknown one lies there; chocolate and juice are in the fridge."""
    kitchen = house.rooms["kitchen"]
    if melts is not None:
        names = tuple(name.replace("solid", state) for state in ("solid", "liquid", "gaseous"))
        matter = (melts, 5000, None, names)
        return Thing("unknown substance", name, called=(*names, "substance"), matter=matter).put(kitchen)
    if name == "orange juice":
        return called(house, name)
    return Thing(name).put(called(house, "fridge") if name == "chocolate" else Thing(cup).put(kitchen))


def _within(thing: Thing, kind: str):
    """Return the goal that a thing is in a container of this kind."""
    return lambda p: any(holder.kind == kind for holder in thing.chain())


def _alone(thing: Thing):
    """Return the goal that a container other than a room has nothing but this thing in it."""
    return lambda p: thing.holder.form != "room" and thing.holder.inside == [thing]


def _answer(right: str, wrong: str):
    """Return the goal to focus on the right box; focusing on the wrong one fails the task."""

    def goal(p: Progress) -> bool:
        thing, p.house.focus = p.house.focus, None
        p.failed = thing is not None and thing.name == wrong
        return thing is not None and thing.name == right

    return goal


def _wait(action: tuple, thing: Thing, melts: float, limit: float) -> tuple:
    """Return the action, a long wait cut to one iteration where it might pass the limit after the melting point."""
    heats = thing.temperature < melts
    if action != ("wait",) or heats == (melts > limit):
        return action
    step = next(abs(SOURCES[holder.kind][1]) for holder in thing.chain() if holder.kind in SOURCES)
    return ("wait",) if abs(melts - thing.temperature) >= 10 * step else ("wait1",)
