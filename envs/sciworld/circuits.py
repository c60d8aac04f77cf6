"""SciWorld's task families about electricity: power a part, test conductivity."""

from random import Random

from envs.sciworld.goals import (
    BOXES,
    Progress,
    Task,
    access,
    called,
    deliver,
    join,
    linked,
    moved,
    named,
    near,
    put_in,
    toward,
    wired,
)
from envs.sciworld.house import House
from envs.sciworld.physics import source
from envs.sciworld.rooms import ROOMS
from envs.sciworld.things import Thing, create

CONDUCTS = {
    **dict.fromkeys(("aluminum foil", "metal fork", "paper clip", "metal pot"), True),
    **dict.fromkeys(("plastic fork", "wood block", "glass jar"), False),
}
POWERED = ("red light bulb", "green light bulb", "blue light bulb", "electric motor", "electric buzzer")


def power(rng: Random, bare: bool, renewable: bool) -> Task:
    """Draw a task: power a part with a circuit; with `renewable`, from a given power source."""
    name, start, green = rng.choice(POWERED), rng.choice(ROOMS), rng.random() < 0.5
    supply = ("solar panel" if green else "gas generator") if renewable else "battery"

    def place(house: House):
        for each in (*POWERED, "solar panel", "gas generator"):
            if not called(house, each):
                create(each).put(house.rooms["workshop"])
        part = called(house, name)
        steps = [named(name), lambda p: bool(part.on)]
        if renewable:
            steps.append(lambda p: getattr(source(part, 0), "kind", "") == supply)
        supplies = ("battery", "solar panel", "gas generator")
        partly = linked(lambda thing: thing is part, lambda thing: thing.kind in supplies)
        return steps, [moved(), near(name), wired(part, 0), wired(part, 1), partly]

    def plan(p: Progress):
        house = p.house
        part, origin = called(house, name), called(house, supply)
        if p.done == 0:
            return access(house, part) or ("focus", part)
        if supply == "solar panel" and origin.holder is not house.rooms["outside"]:
            for thing in (part, origin, *_wires(house, 2)):
                if house.inventory not in thing.chain():
                    return access(house, thing) or ("pick up", thing)
            return toward(house, house.rooms["outside"]) or ("put down", origin)
        if action := access(house, origin) or access(house, part):
            return action
        if supply == "gas generator" and not origin.on:
            return "activate", origin
        anode, cathode = origin.terminals
        return join(house, (cathode, part.terminals[0]), (anode, part.terminals[1])) or ("wait1",)

    by = f" by powering it using a {'' if green else 'non'}renewable power source" if renewable else ""
    says = f"turn on the {name}{by}. First, focus on the {name}. Then, create an electrical circuit that powers it on."
    return Task(f"{name}:{supply}:{start}", says, start, place, plan)


def conductivity(rng: Random, bare: bool, unknown: bool) -> Task:
    """Draw a task: test with a circuit whether a thing conducts and put it into the matching box."""
    kind = "unknown substance" if unknown else rng.choice(list(CONDUCTS))
    name = f"{kind} {rng.choice('BCDEFGHJKLMNOPQRSTUVWXYZ')}" if unknown else kind
    conducts = rng.random() < 0.5 if unknown else CONDUCTS[kind]
    room = "workshop" if unknown else rng.choice(("workshop", "kitchen", "living room"))
    start, i = rng.choice(ROOMS), rng.randrange(len(BOXES) - 1)
    yes, no = f"{BOXES[i]} box", f"{BOXES[i + 1]} box"
    right, wrong = (yes, no) if conducts else (no, yes)
    part = rng.choice(POWERED)

    def place(house: House):
        if not called(house, part):
            create(part).put(house.rooms["workshop"])
        while twin := called(house, name):  # the house may have another one, which works as well
            twin.holder.inside.remove(twin)
        thing = Thing(kind, name, conducts=conducts).put(house.rooms[room])
        for box in (yes, no):
            create(box).put(house.rooms["workshop"])
        is_thing, is_bulb = (lambda each: each is thing), (lambda each: each.kind == "light bulb")
        is_battery = lambda each: each.kind == "battery"  # noqa: E731
        extras = [moved(), near(name), wired(thing, 0), wired(thing, 1), linked(is_thing, is_battery)]
        extras += [linked(is_thing, is_bulb), linked(is_battery, is_bulb)]
        house.target = thing
        return [named(name), put_in(right, wrong)], extras

    def plan(p: Progress):
        house, thing = p.house, p.house.target
        if p.done == 0:
            return access(house, thing) or ("focus", thing)
        battery = called(house, "battery")
        bulb = min((part for part in house.parts if part.kind == "light bulb"), key=lambda part: part.name)
        if bulb in p.learned:
            return deliver(house, thing, called(house, right))
        if house.inventory not in thing.chain() and house.room_of(thing) is not house.rooms["workshop"]:
            return access(house, thing) or ("pick up", thing)
        if action := toward(house, house.rooms["workshop"]):
            return action
        (plus, minus), (first, second) = battery.terminals, thing.terminals
        pairs = (minus, bulb.terminals[0]), (plus, first), (second, bulb.terminals[1])
        if action := access(house, bulb) or join(house, *pairs):
            return action
        return ("wait1",) if p.log[-1][0] == "connect" else ("look at", bulb)

    says = (
        f"determine if {name} is electrically conductive. The {name} is located around the {room}. First, focus on the "
        f"{name}. If it is electrically conductive, place it in the {yes}. If it is electrically nonconductive, place "
        f"it in the {no}."
    )
    return Task(f"{kind}:{room}:{right}:{wrong}:{start}", says, start, place, plan)


def _wires(house: House, count: int) -> list[Thing]:
    """Return the wires to use, carried ones first."""
    wires = [thing for room in house.rooms.values() for thing in room.everything() if thing.form == "wire"]
    return sorted(wires, key=lambda wire: (house.inventory not in wire.chain(), wire.name))[:count]
