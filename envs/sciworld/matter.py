"""SciWorld's task families about matter: mix substances, change their state, measure temperatures."""

from random import Random

from envs.sciworld.actions import MIXES
from envs.sciworld.goals import (
    BOXES,
    Progress,
    Task,
    access,
    after,
    alone,
    at,
    called,
    carrier,
    deliver,
    did,
    distance,
    fill,
    find_thing,
    holds,
    inside,
    moved,
    named,
    near,
    put_in,
    running,
    state_is,
    warmer,
)
from envs.sciworld.house import House
from envs.sciworld.kinds import STATES
from envs.sciworld.physics import SOURCES
from envs.sciworld.rooms import ROOMS
from envs.sciworld.things import Thing, create

KEPT = {  # location of the substance of a state-of-matter task
    **dict.fromkeys(("orange juice", "apple juice", "chocolate"), "fridge"),
    **{"water": "", "ice cream": "freezer", "marshmallow": "cupboard", "soap": "kitchen"},
    **dict.fromkeys(("mercury", "gallium", "caesium", "tin", "lead"), "workshop"),
}
METALS = ("gallium", "caesium", "tin", "lead")
STATE_TASKS = {  # family: (states to reach in turn, substances, such that 30 turns are enough)
    "boil": (("liquid", "gas"), (*(name for name in KEPT if name not in METALS), "caesium")),
    "melt": (("solid", "liquid"), tuple(KEPT)),
    "freeze": (("liquid", "solid"), tuple(name for name in KEPT if name not in METALS)),
    "change-the-state-of-matter-of": ((), tuple(KEPT)),
}
HEATERS = ("stove", "blast furnace", "oven", "hot plate")  # the text names a hot plate, which the house does not have
COOLERS = ("freezer", "ultra low temperature freezer")
BOIL_TOO = "For compounds without a boiling point, combusting the substance is also acceptable. "
THEN_CHANGE = "First, focus on the substance. Then, take actions that will cause it to change its state of matter."
MEASURED = ("unknown substance", "metal fork", "sodium chloride", "wood")


def mix(rng: Random, bare: bool) -> Task:
    """Draw a task: make a substance by a recipe."""
    parts, made, _ = rng.choice([row for row in MIXES if "paint" not in row[0]])
    names, room, start = parts.split(", "), rng.choice(("kitchen", "workshop")), rng.choice(ROOMS)

    def place(house: House):
        Thing("recipe", text=(made, parts)).put(house.rooms[room])
        for name in names:
            there = {"water", "sodium chloride", "soap", "banana"} if room == "kitchen" else {"water"}
            if name not in there:
                create(name).put(house.rooms[room])
        recipe = called(house, "recipe")
        extras = [moved(), *map(near, names), alone(*names), near(made), did("read", recipe)]
        return [named(made)], extras

    def plan(p: Progress):
        recipe, pot = called(p.house, "recipe"), called(p.house, "metal pot")
        if recipe and ("read", (recipe,)) not in p.log and not called(p.house, made):
            return access(p.house, recipe) or ("read", recipe)
        return _make(p, made, pot) or ("focus", called(p.house, made))

    says = (
        f"use chemistry to create the substance '{made}'. A recipe and some of the ingredients might be found near "
        f"the {room}. When you are done, focus on the {made}."
    )
    return Task(f"{made}:{room}:{start}", says, start, place, plan)


def paint(rng: Random, bare: bool, tertiary: bool) -> Task:
    """Draw a task: mix two primary colours; with `tertiary`, mix the result with another primary one."""
    rows = [row for row in MIXES if "paint" in row[0] and ("-" in row[1]) == tertiary]
    parts, made, _ = rng.choice(rows)
    start, names = rng.choice(ROOMS), parts.split(", ")
    middle = next((name for name in names if name in ("green paint", "violet paint", "orange paint")), "")
    first = next(row[0].split(", ") for row in MIXES if row[1] == (middle or made))

    def place(house: House):
        studio = house.rooms["art studio"]
        house.target = next(thing for thing in studio.inside if thing.kind == "table").inside[0]
        cupboard = Thing("cupboard", "paint cupboard").put(studio)
        for kind in ("drawer", "wood cup", "wood cup", "wood cup"):
            Thing(kind).put(cupboard)
        if tertiary:
            extras = [moved(unless="art studio"), at("art studio"), *map(near, first), alone(*first), near(middle)]
            extras += [after(len(first) + 3, near(name)) for name in names]  # once the secondary colour was near
            return [named(middle), named(made)], [*extras, alone(*names), near(made)]
        return [named(made)], [moved(), *map(near, first), alone(*first), near(made)]

    def plan(p: Progress):
        goal = middle if tertiary and p.done == 0 else made
        return _make(p, goal, p.house.target) or ("focus", called(p.house, goal))

    if tertiary:  # the original makes this mistake too: it names the secondary colour here
        says = (
            f"use chemistry to create {made}. When you are part-way done, focus on the intermediate (secondary color) "
            f"paint you created.  When you are completely done, focus on the {middle}."
        )
    else:
        says = f"use chemistry to create {made}. When you are done, focus on the {made}."
    return Task(f"{made}:{start}", says, start, place, plan)


def change_state(rng: Random, bare: bool, family: str) -> Task:
    """Draw a task: boil, melt or freeze a substance."""
    states, substances = STATE_TASKS[family]
    name, start, broken = rng.choice(substances), rng.choice(ROOMS), rng.random() < 0.3
    cup = rng.choice(("glass cup", "paper cup", "plastic cup"))

    def place(house: House):
        subject = _keep(house, name, cup)
        called(house, "stove").broken = broken
        heat = [running(kind) for kind in HEATERS] + [inside(kind) for kind in (*HEATERS, "fire pit")]
        cool = [inside(kind) for kind in ("fridge", "freezer")]
        wood, pit = called(house, "wood"), called(house, "fire pit")
        fire = [holds("lighter"), lambda p: wood.holder is pit, lambda p: wood.burning]
        extras = [near(name), alone(name)]
        if family in ("boil", "melt"):
            extras += [*heat, *fire, warmer(20)]
        elif family == "freeze":
            extras += [*cool, warmer(-5)]
        else:
            extras += [*heat, *fire, *cool, warmer(10), warmer(-10)]
        if states:
            steps = [named(name), *map(state_is, states)]
        else:
            steps = [named(name), lambda p: True, lambda p: p.subject.state != p.state]
        house.target = subject
        return steps, extras

    def plan(p: Progress):
        house, thing = p.house, p.subject or p.house.target
        if thing is None:  # water comes from the tap
            pot = called(house, "metal pot")
            thing = next((each for each in pot.inside if each.name == name), None)
            if thing is None:
                return fill(house, pot)
        if p.done == 0:
            return access(house, thing) or ("focus", thing)
        if family == "freeze" and thing.state == "solid" and p.done == 1 and thing.holder.form != "vessel":
            return deliver(house, thing, called(house, "metal pot"))  # nobody can move it once it is liquid
        return heat_or_cool(p, thing, states[p.done - 1] if states else "")

    says = f"{family.replace('-', ' ')} {name}. {BOIL_TOO * (family == 'boil')}{THEN_CHANGE}"
    return Task(f"{name}:{start}:{'broken stove' * broken}", says, start, place, plan)


def begin_to_measure(p: Progress, tool: Thing, thing: Thing):
    """Return the expert's next action until it carries the tool and has focused on it and on the thing, then None."""
    if p.house.inventory not in tool.chain():
        return access(p.house, tool) or ("pick up", tool)
    if p.done == 0:
        return "focus", tool
    return access(p.house, thing) or ("focus", thing) if p.done == 1 else None


def thermometer(rng: Random, bare: bool) -> Task:
    """Draw a task: measure a temperature and put the thing into the matching box."""
    kind = rng.choice(MEASURED)
    name = f"{kind} {rng.choice('BCDEFGH')}" if kind.startswith("unknown") else kind
    rooms = ("living room", "bedroom", "bathroom")
    room, boxes_room, start = rng.choice(rooms), rng.choice(rooms), rng.choice(ROOMS)
    limit, warm = rng.choice((-50, 0, 50, 100, 200)), rng.random() < 0.5
    degrees = limit + (1 if warm else -1) * rng.randint(5, 60)
    i = rng.randrange(len(BOXES) - 1)
    above, below = f"{BOXES[i]} box", f"{BOXES[i + 1]} box"
    right, wrong = (above, below) if warm else (below, above)

    def place(house: House):
        thing = Thing(kind, name, temperature=float(degrees)).put(house.rooms[room])
        for box in (above, below):
            create(box).put(house.rooms[boxes_room])
        tool = called(house, "thermometer")
        use = ("use", (tool, thing))
        extras = [near("thermometer"), holds("thermometer"), moved(), at(room), at(boxes_room, after=room), holds(name)]
        extras += [did("use", tool, thing), lambda p: p.house.event == use and boxes_room in p.visited]
        house.target = thing
        return [named("thermometer"), named(name), put_in(right, wrong)], extras

    def plan(p: Progress):
        house, thing = p.house, p.house.target
        tool = called(house, "thermometer")
        if begin := begin_to_measure(p, tool, thing):
            return begin
        if ("use", (tool, thing)) not in p.log:
            return access(house, thing) or ("use", tool, thing)
        return deliver(house, thing, called(house, right))

    says = (
        f"measure the temperature of {name}, which is located around the {room}. First, focus on the thermometer. "
        f"Next, focus on the {name}. If the {name} temperature is above {limit:.1f} degrees celsius, place it in the "
        f"{above}. If the {name} temperature is below {limit:.1f} degrees celsius, place it in the {below}. "
        f"The boxes are located around the {boxes_room}."
    )
    return Task(f"{kind}:{room}:{limit}:{right}:{wrong}:{boxes_room}:{start}", says, start, place, plan)


def _keep(house: House, name: str, cup: str) -> Thing | None:
    """Put the substance of a state-of-matter task into its location; water must be fetched."""
    if there := called(house, name) if name in ("orange juice", "soap") else None:
        return there
    if not KEPT[name]:
        return None
    place = house.rooms.get(KEPT[name]) or called(house, KEPT[name])
    if KEPT[name] == "workshop":
        place = next(thing for thing in place.inside if thing.kind == "table")
    if place.name == "table" or name in ("apple juice", "ice cream"):
        place = Thing("metal pot" if name in ("ice cream", "tin", "lead") else cup).put(place)
    return Thing(name, temperature=-10.0 if KEPT[name] == "freezer" else 10.0).put(place)


def _make(p: Progress, made: str, vessel: Thing) -> tuple | None:
    """Return the next action to mix a substance in a vessel; None once it exists within reach."""
    house = p.house
    if result := called(house, made):
        return access(house, result)
    parts = next(row[0].split(", ") for row in MIXES if row[1] == made)
    held = [thing.name for thing in vessel.inside]
    for name in sorted(parts, key=lambda name: name != "water"):
        if name in held:
            continue
        if name == "water":
            return fill(house, vessel)
        if name in ("green paint", "violet paint", "orange paint"):
            return _make(p, name, vessel)
        thing = find_thing(house, lambda thing: thing.name == name and thing.holder is not vessel)  # noqa: B023
        if "paint" in name:
            return access(house, thing) or access(house, vessel) or ("pour", thing.holder, vessel)
        return deliver(house, thing, vessel)
    return access(house, vessel) or ("mix", vessel)


def heat_or_cool(p: Progress, thing: Thing, state: str) -> tuple:
    """Return the next action to bring a thing to a state; without one, to the nearest other state."""
    house = p.house
    melts, boils, burns, _ = thing.matter
    now = STATES.index(thing.state)
    hotter = STATES.index(state) > now if state else now == 0
    aim = melts if now == 0 or not hotter else min(boils, burns or boils)
    fits = [
        device
        for device in house.sources
        if device.kind in (HEATERS if hotter else COOLERS)
        and not device.broken
        and (SOURCES[device.kind][0] > aim if hotter else SOURCES[device.kind][0] < aim)
    ]
    device = min(
        fits, key=lambda device: (device not in thing.chain(), distance(house, device), house.sources.index(device))
    )
    if device not in thing.chain():
        return deliver(house, carrier(thing), device)
    if not device.on:
        return access(house, device) or ("activate", device)
    return ("wait",)
