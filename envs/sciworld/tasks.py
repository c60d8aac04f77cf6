"""The 22 task families of SciWorld: the random draw, text, setup, goals and solution of each."""

from functools import partial
from random import Random

from envs.sciworld.goals import (
    Progress,
    Task,
    access,
    after,
    alone,
    at,
    carrier,
    deliver,
    did,
    distance,
    fill,
    find_thing,
    focus_on,
    holds,
    inside,
    join,
    linked,
    moved,
    named,
    near,
    put_in,
    running,
    state_is,
    toward,
    warmer,
    wired,
)
from envs.sciworld.rules import MIXES, SOURCES, World, create, source
from envs.sciworld.things import MATTER, ROOMS, STATES, Thing

BOXES = ("red", "green", "blue", "orange", "yellow", "purple")
PLANTS = ("apple tree", "cherry tree", "pea plant")
ANIMALS = ("blue jay", "butterfly", "dove")
OBJECTS = ("axe", "bowl", "glass cup", "jug", "lighter", "shovel", "stopwatch", "thermometer")
EGGS = ("blue jay", "butterfly", "dove", "chameleon", "crocodile", "giant tortoise", "parrot")
LIFESPANS = (  # a task has one animal of each group
    {"giant tortoise": 150, "parrot": 80, "elephant": 70, "crocodile": 45, "brown bear": 30},
    {"beaver": 16, "wolf": 14, "chipmunk": 12, "common toad": 10, "rabbit": 9},
    {"hedgehog": 5, "mouse": 4, "chameleon": 3, "dragonfly": 0.4, "ant": 0.1},
)
KEPT = {  # location of the substance of a state-of-matter task
    **dict.fromkeys(("orange juice", "apple juice", "chocolate"), "fridge"),
    **{"water": "", "ice cream": "freezer", "marshmallow": "cupboard", "soap": "kitchen"},
    **dict.fromkeys(("mercury", "gallium", "caesium", "tin", "lead"), "workshop"),
}
STATE_TASKS = {  # family: (states to reach in turn, substances)
    "boil": (("liquid", "gas"), ("water", "orange juice", "apple juice", "mercury")),
    "melt": (
        *(("solid", "liquid"),),
        ("chocolate", "marshmallow", "ice cream", "soap", "gallium", "caesium", "tin", "lead"),
    ),
    "freeze": (("liquid", "solid"), ("water", "orange juice", "apple juice", "mercury")),
    "change-the-state-of-matter-of": ((), tuple(KEPT)),
}
HEATERS = ("stove", "blast furnace", "oven", "hot plate")  # the text names a hot plate, which the house does not have
COOLERS = ("freezer", "ultra low temperature freezer")
FRICTION = {  # surface -> loss of the block's pace
    **{"soap": 0.05, "steel": 0.13, "plastic": 0.21, "glass": 0.29, "paper": 0.37},
    **{"wood": 0.45, "cloth": 0.53, "brick": 0.61, "rubber": 0.69, "sandpaper": 0.77},
}
PACE = 9.0  # per cent of a plane per iteration without loss
CONDUCTS = {
    **dict.fromkeys(("aluminum foil", "metal fork", "paper clip", "metal pot"), True),
    **dict.fromkeys(("plastic fork", "wood block", "glass jar"), False),
}
MEASURED = ("unknown substance", "metal fork", "sodium chloride", "wood")
POWERED = ("red light bulb", "green light bulb", "blue light bulb", "electric motor", "electric buzzer")


def find(rng: Random, bare: bool, what: str) -> Task:
    """Family: find a thing of a kind and bring it to a box."""
    colour = rng.choice(BOXES)
    room = rng.choice(ROOMS if bare else ("bathroom", "bedroom", "kitchen", "living room", "workshop"))
    start = room if bare else rng.choice(ROOMS)
    wanted = {"animal": ANIMALS, "plant": PLANTS, "living thing": ANIMALS + PLANTS}.get(what, OBJECTS)
    target = rng.choice(wanted)
    shown = rng.sample([target, *rng.sample([name for name in ANIMALS + PLANTS + OBJECTS if name not in wanted], 2)], 3)
    kinds = {"animal": ("animal",), "plant": ("plant",), "living thing": ("animal", "plant")}.get(what, (None,))
    box, pots = f"{colour} box", rng.sample(range(1, 10), 5)

    def place(world: World):
        create(box).put(world.rooms[room])
        if bare:
            for name in shown:
                _put(name, world.rooms[room], pots[0])
        else:
            for name in ANIMALS:
                _put(name, world.rooms["outside"])
            for name, pot in zip((*PLANTS, "", ""), pots, strict=True):
                _put(name, world.rooms["greenhouse"], pot)
        steps = [
            focus_on(lambda thing: thing.alive in kinds and thing.kind not in ("room", "door", "agent")),
            put_in(box),
        ]
        return steps, [
            lambda p: p.subject is not None and p.world.inventory in p.subject.chain(),
            lambda p: any(door.open for door in p.world.room.doors.values()),
            moved(),
            at(room),
        ]

    def plan(p: Progress):
        if p.done == 0:
            thing = find_thing(p.world, lambda thing: thing.name == target)
            return access(p.world, thing) or ("focus", thing)
        return deliver(p.world, carrier(p.subject), _called(p.world, box))

    says = f"find a(n) {what}. First, focus on the thing. Then, move it to the {box} in the {room}."
    return Task(f"{box}:{room}:{','.join(sorted(shown)) if bare else start}", says, start, place, plan)


def lifespan(rng: Random, bare: bool, which: tuple[str, ...]) -> Task:
    """Family: focus on the animal with the longest or shortest life span, or on both."""
    animals = [rng.choice(list(group)) for group in LIFESPANS]
    years = {name: group[name] for name, group in zip(animals, LIFESPANS, strict=True)}
    right = [max(years, key=years.get) if side == "longest" else min(years, key=years.get) for side in which]
    start = rng.choice(("foundry", "greenhouse", "kitchen") if bare else ROOMS)

    def place(world: World):
        for name in animals:
            _put(name, world.rooms["outside"])
        return [named(name) for name in right], [moved(unless="outside"), at("outside")]

    def plan(p: Progress):
        animal = _called(p.world, right[p.done])
        return access(p.world, animal) or ("focus", animal)

    if len(which) == 2:
        says = (
            "find the animal with the longest life span, then the shortest life span. "
            "First, focus on the animal with the longest life span.  "
            "Then, focus on the animal with the shortest life span. The animals are in the 'outside' location."
        )
    else:
        says = (
            f"find the animal with the {which[0]} life span.  The animals are in the 'outside' location.  "
            f"Focus on the animal with the {which[0]} life span."
        )
    return Task(f"{','.join(sorted(animals))}:{start}", says, start, place, plan)


def mix(rng: Random, bare: bool) -> Task:
    """Family: make a substance by a recipe."""
    parts, made, _ = rng.choice([row for row in MIXES if "paint" not in row[0]])
    names, room, start = parts.split(", "), rng.choice(("kitchen", "workshop")), rng.choice(ROOMS)

    def place(world: World):
        Thing("recipe", text=(made, parts)).put(world.rooms[room])
        for name in names:
            there = {"water", "sodium chloride", "soap", "banana"} if room == "kitchen" else {"water"}
            if name not in there:
                create(name).put(world.rooms[room])
        recipe = _called(world, "recipe")
        extras = [moved(), *map(near, names), alone(*names), near(made), did("read", recipe)]
        return [named(made)], extras

    def plan(p: Progress):
        recipe, pot = _called(p.world, "recipe"), _called(p.world, "metal pot")
        if recipe and ("read", (recipe,)) not in p.log and not _called(p.world, made):
            return access(p.world, recipe) or ("read", recipe)
        return _make(p, made, pot) or ("focus", _called(p.world, made))

    says = (
        f"use chemistry to create the substance '{made}'. A recipe and some of the ingredients might be found near "
        f"the {room}. When you are done, focus on the {made}."
    )
    return Task(f"{made}:{room}:{start}", says, start, place, plan)


def paint(rng: Random, bare: bool, tertiary: bool) -> Task:
    """Family: mix two primary colours; with `tertiary`, mix the result with another primary one."""
    rows = [row for row in MIXES if "paint" in row[0] and ("-" in row[1]) == tertiary]
    parts, made, _ = rng.choice(rows)
    start, names = rng.choice(ROOMS), parts.split(", ")
    middle = next((name for name in names if name in ("green paint", "violet paint", "orange paint")), "")
    first = next(row[0].split(", ") for row in MIXES if row[1] == (middle or made))

    def place(world: World):
        studio = world.rooms["art studio"]
        world.target = next(thing for thing in studio.inside if thing.kind == "table").inside[0]
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
        return _make(p, goal, p.world.target) or ("focus", _called(p.world, goal))

    if tertiary:  # the original makes this mistake too: it names the secondary colour here
        says = (
            f"use chemistry to create {made}. When you are part-way done, focus on the intermediate (secondary color) "
            f"paint you created.  When you are completely done, focus on the {middle}."
        )
    else:
        says = f"use chemistry to create {made}. When you are done, focus on the {made}."
    return Task(f"{made}:{start}", says, start, place, plan)


def change_state(rng: Random, bare: bool, family: str) -> Task:
    """Family: boil, melt or freeze a substance."""
    states, substances = STATE_TASKS[family]
    name, start, broken = rng.choice(substances), rng.choice(ROOMS), rng.random() < 0.3
    cup = rng.choice(("glass cup", "paper cup", "plastic cup"))

    def place(world: World):
        subject = _keep(world, name, cup)
        _called(world, "stove").broken = broken
        heat = [running(kind) for kind in HEATERS] + [inside(kind) for kind in (*HEATERS, "fire pit")]
        cool = [inside(kind) for kind in ("fridge", "freezer")]
        wood, pit = _called(world, "wood"), _called(world, "fire pit")
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
        world.target = subject
        return steps, extras

    def plan(p: Progress):
        world, thing = p.world, p.subject or p.world.target
        if thing is None:  # water comes from the tap
            pot = _called(world, "metal pot")
            thing = next((each for each in pot.inside if each.name == name), None)
            if thing is None:
                return fill(world, pot)
        if p.done == 0:
            return access(world, thing) or ("focus", thing)
        return _heat_or_cool(p, thing, states[p.done - 1] if states else "")

    says = f"{family.replace('-', ' ')} {name}. {BOIL_TOO * (family == 'boil')}{THEN_CHANGE}"
    return Task(f"{name}:{start}:{'broken stove' * broken}", says, start, place, plan)


BOIL_TOO = "For compounds without a boiling point, combusting the substance is also acceptable. "
THEN_CHANGE = "First, focus on the substance. Then, take actions that will cause it to change its state of matter."


def thermometer(rng: Random, bare: bool) -> Task:
    """Family: measure a temperature and put the thing into the matching box."""
    kind = rng.choice(MEASURED)
    name = f"{kind} {rng.choice('BCDEFGH')}" if kind.startswith("unknown") else kind
    rooms = ("living room", "bedroom", "bathroom")
    room, boxes_room, start = rng.choice(rooms), rng.choice(rooms), rng.choice(ROOMS)
    limit, warm = rng.choice((-50, 0, 50, 100, 200)), rng.random() < 0.5
    degrees = limit + (1 if warm else -1) * rng.randint(5, 60)
    i = rng.randrange(len(BOXES) - 1)
    above, below = f"{BOXES[i]} box", f"{BOXES[i + 1]} box"
    right, wrong = (above, below) if warm else (below, above)

    def place(world: World):
        thing = Thing(kind, name, temperature=float(degrees)).put(world.rooms[room])
        for box in (above, below):
            create(box).put(world.rooms[boxes_room])
        tool = _called(world, "thermometer")
        use = ("use", (tool, thing))
        extras = [near("thermometer"), holds("thermometer"), moved(), at(room), at(boxes_room, after=room), holds(name)]
        extras += [did("use", tool, thing), lambda p: p.world.event == use and boxes_room in p.visited]
        world.target = thing
        return [named("thermometer"), named(name), put_in(right, wrong)], extras

    def plan(p: Progress):
        world, thing = p.world, p.world.target
        tool = _called(world, "thermometer")
        if world.inventory not in tool.chain():
            return access(world, tool) or ("pick up", tool)
        if p.done == 0:
            return "focus", tool
        if p.done == 1:
            return access(world, thing) or ("focus", thing)
        if ("use", (tool, thing)) not in p.log:
            return access(world, thing) or ("use", tool, thing)
        return deliver(world, thing, _called(world, right))

    says = (
        f"measure the temperature of {name}, which is located around the {room}. First, focus on the thermometer. "
        f"Next, focus on the {name}. If the {name} temperature is above {limit:.1f} degrees celsius, place it in the "
        f"{above}. If the {name} temperature is below {limit:.1f} degrees celsius, place it in the {below}. "
        f"The boxes are located around the {boxes_room}."
    )
    return Task(f"{kind}:{room}:{limit}:{right}:{wrong}:{boxes_room}:{start}", says, start, place, plan)


def power(rng: Random, bare: bool, renewable: bool) -> Task:
    """Family: power a part with a circuit; with `renewable`, from a given power source."""
    name, start, green = rng.choice(POWERED), rng.choice(ROOMS), rng.random() < 0.5
    supply = ("solar panel" if green else "gas generator") if renewable else "battery"

    def place(world: World):
        for each in (*POWERED, "solar panel", "gas generator"):
            if not _called(world, each):
                create(each).put(world.rooms["workshop"])
        part = _called(world, name)
        steps = [named(name), lambda p: bool(part.on)]
        if renewable:
            steps.append(lambda p: getattr(source(part, 0), "kind", "") == supply)
        supplies = ("battery", "solar panel", "gas generator")
        partly = linked(lambda thing: thing is part, lambda thing: thing.kind in supplies)
        return steps, [moved(), near(name), wired(part, 0), wired(part, 1), partly]

    def plan(p: Progress):
        world = p.world
        part, origin = _called(world, name), _called(world, supply)
        if p.done == 0:
            return access(world, part) or ("focus", part)
        if supply == "solar panel" and origin.holder is not world.rooms["outside"]:
            for thing in (part, origin, *_wires(world, 2)):
                if world.inventory not in thing.chain():
                    return access(world, thing) or ("pick up", thing)
            return toward(world, world.rooms["outside"]) or ("put down", origin)
        if action := access(world, origin) or access(world, part):
            return action
        if supply == "gas generator" and not origin.on:
            return "activate", origin
        anode, cathode = origin.terminals
        return join(world, (cathode, part.terminals[0]), (anode, part.terminals[1])) or ("wait1",)

    by = f" by powering it using a {'' if green else 'non'}renewable power source" if renewable else ""
    says = f"turn on the {name}{by}. First, focus on the {name}. Then, create an electrical circuit that powers it on."
    return Task(f"{name}:{supply}:{start}", says, start, place, plan)


def conductivity(rng: Random, bare: bool, unknown: bool) -> Task:
    """Family: test with a circuit whether a thing conducts and put it into the matching box."""
    kind = "unknown substance" if unknown else rng.choice(list(CONDUCTS))
    name = f"{kind} {rng.choice('BCDEFGH')}" if unknown else kind
    conducts = rng.random() < 0.5 if unknown else CONDUCTS[kind]
    room = "workshop" if unknown else rng.choice(("workshop", "kitchen", "living room"))
    start, i = rng.choice(ROOMS), rng.randrange(len(BOXES) - 1)
    yes, no = f"{BOXES[i]} box", f"{BOXES[i + 1]} box"
    right, wrong = (yes, no) if conducts else (no, yes)
    part = rng.choice(POWERED)

    def place(world: World):
        if not _called(world, part):
            create(part).put(world.rooms["workshop"])
        while twin := _called(world, name):  # the house may have another one, which works as well
            twin.holder.inside.remove(twin)
        thing = Thing(kind, name, conducts=conducts).put(world.rooms[room])
        for box in (yes, no):
            create(box).put(world.rooms["workshop"])
        is_thing, is_bulb = (lambda each: each is thing), (lambda each: each.kind == "light bulb")
        is_battery = lambda each: each.kind == "battery"  # noqa: E731
        extras = [moved(), near(name), wired(thing, 0), wired(thing, 1), linked(is_thing, is_battery)]
        extras += [linked(is_thing, is_bulb), linked(is_battery, is_bulb)]
        world.target = thing
        return [named(name), put_in(right, wrong)], extras

    def plan(p: Progress):
        world, thing = p.world, p.world.target
        if p.done == 0:
            return access(world, thing) or ("focus", thing)
        battery = _called(world, "battery")
        bulb = min((part for part in world.parts if part.kind == "light bulb"), key=lambda part: part.name)
        if bulb in p.learned:
            return deliver(world, thing, _called(world, right))
        if world.inventory not in thing.chain() and world.room_of(thing) is not world.rooms["workshop"]:
            return access(world, thing) or ("pick up", thing)
        if action := toward(world, world.rooms["workshop"]):
            return action
        (plus, minus), (first, second) = battery.terminals, thing.terminals
        pairs = (minus, bulb.terminals[0]), (plus, first), (second, bulb.terminals[1])
        if action := access(world, bulb) or join(world, *pairs):
            return action
        return ("wait1",) if p.log[-1][0] == "connect" else ("look at", bulb)

    says = (
        f"determine if {name} is electrically conductive. The {name} is located around the {room}. First, focus on the "
        f"{name}. If it is electrically conductive, place it in the {yes}. If it is electrically nonconductive, place "
        f"it in the {no}."
    )
    return Task(f"{kind}:{room}:{right}:{wrong}:{start}", says, start, place, plan)


def planes(rng: Random, bare: bool, by: str) -> Task:
    """Family: let a block slide down two planes and focus on the one described by angle or friction."""
    start = rng.choice(ROOMS)
    if by == "angle":
        names = rng.sample("BCDEFGH", 2)
        angles = rng.sample((20, 30, 40, 50, 60), 2)
        pace = [PACE * angle / 70 for angle in angles]
        which = rng.choice(("steepest", "shallowest"))
        labels = [f"inclined plane {name}" for name in names]
    else:
        surfaces = rng.sample(list(FRICTION), 2)
        names = surfaces if by == "named" else [f"unknown material {letter}" for letter in rng.sample("BCDEFGH", 2)]
        pace = [PACE * (1 - FRICTION[surface]) for surface in surfaces]
        which = rng.choice(("most", "least"))
        labels = [f"inclined plane with a {name} surface" for name in names]
    fast = which in ("steepest", "least")
    right = labels[pace.index((max if fast else min)(pace))]

    def place(world: World):
        block = Thing("wood block").put(world.rooms["workshop"])
        Thing("stopwatch").put(world.rooms["workshop"])
        for label, each in zip(labels, pace, strict=True):
            Thing("inclined plane", label=label, called=(label,), number=each).put(world.rooms["workshop"])
        clock = next(thing for thing in world.rooms["workshop"].inside if thing.form == "stopwatch")
        extras = [moved(unless="workshop"), at("workshop")]
        for label in labels:
            laid = len(extras)
            extras.append(lambda p, label=label: block.holder is not None and block.holder.label == label)
            extras += [after(laid, lambda p: clock.on), after(laid + 1, lambda p: not clock.on)]
            extras.append(after(laid + 2, lambda p: p.world.event == ("look at", (clock,))))
        return [named(right)], extras

    def plan(p: Progress):
        world = p.world
        if action := toward(world, world.rooms["workshop"]):
            return action
        block = _called(world, "wood block")
        for plane in sorted(world.planes, key=lambda plane: labels.index(plane.label)):
            if plane not in p.learned:
                if block.holder is not plane:
                    return deliver(world, block, plane)
                return ("look at", plane) if block.number >= 20 else ("wait",)
        return "focus", next(plane for plane in world.planes if plane.label == right)

    shown = f"({names[0]}, {names[1]})"
    what = f"the {which} angle" if by == "angle" else f"the {which} friction"
    says = (
        f"determine which of the two inclined planes {shown} has {what}. After completing your experiment, focus on "
        f"the inclined plane with {what}."
    )
    return Task(f"{','.join(sorted(names))}:{right}:{which}:{start}", says, start, place, plan)


FAMILIES = {
    "find-animal": partial(find, what="animal"),
    "find-living-thing": partial(find, what="living thing"),
    "find-non-living-thing": partial(find, what="non-living thing"),
    "find-plant": partial(find, what="plant"),
    "lifespan-longest-lived": partial(lifespan, which=("longest",)),
    "lifespan-longest-lived-then-shortest-lived": partial(lifespan, which=("longest", "shortest")),
    "lifespan-shortest-lived": partial(lifespan, which=("shortest",)),
    "chemistry-mix": mix,
    "chemistry-mix-paint-secondary-color": partial(paint, tertiary=False),
    "chemistry-mix-paint-tertiary-color": partial(paint, tertiary=True),
    **{family: partial(change_state, family=family) for family in STATE_TASKS},
    "use-thermometer": thermometer,
    "power-component": partial(power, renewable=False),
    "power-component-renewable-vs-nonrenewable-energy": partial(power, renewable=True),
    "test-conductivity": partial(conductivity, unknown=False),
    "test-conductivity-of-unknown-substances": partial(conductivity, unknown=True),
    "inclined-plane-determine-angle": partial(planes, by="angle"),
    "inclined-plane-friction-named-surfaces": partial(planes, by="named"),
    "inclined-plane-friction-unnamed-surfaces": partial(planes, by="unnamed"),
}
NEAR = tuple(FAMILIES)[:7]  # families of level 1, without the house
SHORT = tuple(FAMILIES)[:9]  # families of level 2


def _called(world: World, name: str) -> Thing | None:
    return find_thing(world, lambda thing: name in (thing.name, thing.label))


def _put(name: str, room: Thing, pot: int = 0) -> None:
    """Put an animal, a plant in its pot, an empty pot, or a thing into a room."""
    if not name or name in PLANTS:
        room = Thing("flower pot", f"flower pot {pot}").put(room)
        if not name:
            return
        tall = " with a tall height" if name == "pea plant" else ""
        adult = {"reads": f"a {{}} in the adult stage{tall}", "alive": "plant", "called": (f"adult {name}",)}
        Thing("plant", name, **adult).put(room)
        Thing("soil").put(room)
    elif name in OBJECTS:
        create(name).put(room)
    else:
        stage = "egg" if name in EGGS or name == "common toad" else "baby"
        label = f"{'frog' if name == 'common toad' else name} egg" if stage == "egg" else f"baby {name}"
        Thing("animal", name, label, called=(label, f"{stage} {name}", f"{stage} {label}"), alive="animal").put(room)


def _keep(world: World, name: str, cup: str) -> Thing | None:
    """Put the substance of a state-of-matter task into its location; water must be fetched."""
    if there := _called(world, name) if name in ("orange juice", "soap") else None:
        return there
    if not KEPT[name]:
        return None
    place = world.rooms.get(KEPT[name]) or _called(world, KEPT[name])
    if KEPT[name] == "workshop":
        place = next(thing for thing in place.inside if thing.kind == "table")
    if place.name == "table" or name in ("apple juice", "ice cream"):
        place = Thing("metal pot" if name in ("ice cream", "tin", "lead") else cup).put(place)
    return Thing(name, temperature=-10.0 if KEPT[name] == "freezer" else 10.0).put(place)


def _make(p: Progress, made: str, vessel: Thing) -> tuple | None:
    """Return the next action to mix a substance in a vessel; None once it exists within reach."""
    world = p.world
    if result := _called(world, made):
        return access(world, result)
    parts = next(row[0].split(", ") for row in MIXES if row[1] == made)
    held = [thing.name for thing in vessel.inside]
    for name in sorted(parts, key=lambda name: name != "water"):
        if name in held:
            continue
        if name == "water":
            return fill(world, vessel)
        if name in ("green paint", "violet paint", "orange paint"):
            return _make(p, name, vessel)
        thing = find_thing(world, lambda thing: thing.name == name and thing.holder is not vessel)  # noqa: B023
        if "paint" in name:
            return access(world, thing) or access(world, vessel) or ("pour", thing.holder, vessel)
        return deliver(world, thing, vessel)
    return access(world, vessel) or ("mix", vessel)


def _heat_or_cool(p: Progress, thing: Thing, state: str) -> tuple:
    """Return the next action to bring a thing to a state; without one, to the nearest other state."""
    world = p.world
    melts, boils, *_ = MATTER[thing.name]
    now = STATES.index(thing.state)
    hotter = STATES.index(state) > now if state else now == 0
    aim = melts if now == 0 or not hotter else boils
    fits = [
        device
        for device in world.sources
        if device.kind in (HEATERS if hotter else COOLERS)
        and not device.broken
        and (SOURCES[device.kind][0] > aim if hotter else SOURCES[device.kind][0] < aim)
    ]
    device = min(
        fits, key=lambda device: (device not in thing.chain(), distance(world, device), world.sources.index(device))
    )
    if device not in thing.chain():
        return deliver(world, carrier(thing), device)
    if not device.on:
        return access(world, device) or ("activate", device)
    return ("wait",)


def _wires(world: World, count: int) -> list[Thing]:
    """Return the wires to use, carried ones first."""
    wires = [thing for room in world.rooms.values() for thing in room.everything() if thing.form == "wire"]
    return sorted(wires, key=lambda wire: (world.inventory not in wire.chain(), wire.name))[:count]
