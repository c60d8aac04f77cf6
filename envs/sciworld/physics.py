"""Advance time in SciWorld's house: heat, water, sliding blocks, clocks, growth and circuits."""

from envs.sciworld.genetics import fly, ripen
from envs.sciworld.life import grow
from envs.sciworld.things import Thing, remove

FLUSH = 3  # iterations for which a toilet flushes
SOURCES = {  # device: final temperature of its contents, degrees per iteration
    "stove": (350, 10),
    "oven": (350, 10),
    "blast furnace": (2000, 100),
    "fridge": (4, -1),
    "freezer": (-20, -1),
    "ultra low temperature freezer": (-80, -5),
}


def tick(house) -> None:
    """Advance time by one iteration."""
    house.iteration += 1
    for source in house.sources:
        if source.on and source.inside:
            _warm(source, *SOURCES[source.kind])
    for basin in house.basins:
        if basin.on:
            _run_water(basin)
        if basin.form == "basin":  # the drain is open
            for liquid in [thing for thing in basin.inside if thing.state == "liquid"]:
                remove(liquid)
    for plane in house.planes:
        for thing in plane.inside:
            thing.number = min(100, thing.number + plane.number)
    for clock in house.clocks:
        clock.number += bool(clock.on)
    connected = house.connected() if house.living else set()
    for thing in list(house.living):
        if connected.intersection(thing.chain()):  # as in the original, nothing grows behind a closed door
            grow(thing)
            house.living += ripen(thing, house.chance)
    for bee in house.bees:
        if connected.intersection(bee.chain()):
            fly(bee, house.room_of(bee))
    power(house)


def _run_water(basin: Thing) -> None:
    """Fill the open vessels in a sink; empty a flushing toilet, and fill it again when the flush ends."""
    if basin.form == "toilet":
        for liquid in [thing for thing in basin.inside if thing.state == "liquid"]:
            remove(liquid)
        basin.number = (basin.number + 1) % FLUSH
        if basin.number == 0:
            basin.on = False
            Thing("water").put(basin)
        return
    for vessel in basin.inside:
        if vessel.form == "vessel" and vessel.open and not any(thing.name == "water" for thing in vessel.inside):
            Thing("water").put(vessel)


def power(house) -> None:
    """Turn on the parts that are in a closed circuit, one iteration after it is closed; turn off the others.

    A circuit is closed if the part's anode connects to the cathode of a power source and its cathode to an anode.
    """
    for part in house.parts:
        if part.kind == "solar panel":
            part.on = part.holder is house.rooms["outside"]
    for part in house.parts:
        if part.kind not in ("solar panel", "gas generator", "switch"):
            closed = all(source(part, end) for end in (0, 1))
            part.on, part.number = closed and bool(part.number), closed


def source(part: Thing, end: int) -> Thing | None:
    """Return the running power source whose opposite terminal a part's anode (0) or cathode (1) connects to."""
    here, wanted = part.terminals[end], 1 - end
    for _ in range(20):  # connections may form a ring
        there = here.link
        if there is None:
            return None
        thing = there.holder
        if thing.kind in ("battery", "solar panel", "gas generator"):
            running = thing.kind == "battery" or thing.on
            return thing if running and there is thing.terminals[wanted] else None
        if not thing.conducts or (thing.kind == "switch" and not thing.on):
            return None
        here = there.other
    return None


def _warm(holder: Thing, target: float, step: float) -> None:
    """Bring everything in a heat source closer to the source's temperature."""
    for thing in holder.inside:
        if thing.temperature is not None and (target - thing.temperature) * step > 0:
            thing.temperature += step
            if (target - thing.temperature) * step < 0:
                thing.temperature = target
            if thing.matter and thing.matter[2] and thing.temperature >= thing.matter[2]:
                thing.burning = True
        _warm(thing, target, step)
