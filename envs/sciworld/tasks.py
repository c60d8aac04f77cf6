"""The 30 task families of SciWorld: the random draw, text, setup, goals and solution of each.

Families about matter are in matter.py and melting.py, about electricity in circuits.py, about growth in growing.py
and crossing.py.
"""

from functools import partial
from random import Random

from envs.sciworld.circuits import conductivity, power
from envs.sciworld.crossing import grow_fruit, inheritance
from envs.sciworld.goals import (
    BOXES,
    Progress,
    Task,
    access,
    after,
    at,
    called,
    carrier,
    deliver,
    find_thing,
    focus_on,
    moved,
    named,
    put_in,
    toward,
)
from envs.sciworld.growing import grow_plant, life_stages
from envs.sciworld.house import House
from envs.sciworld.matter import STATE_TASKS, change_state, mix, paint, thermometer
from envs.sciworld.melting import melting_point
from envs.sciworld.rooms import ROOMS
from envs.sciworld.things import Thing, create

PLANTS = ("apple tree", "cherry tree", "pea plant")
ANIMALS = ("blue jay", "butterfly", "dove")
OBJECTS = ("axe", "bowl", "glass cup", "jug", "lighter", "shovel", "stopwatch", "thermometer")
EGGS = ("blue jay", "butterfly", "dove", "chameleon", "crocodile", "giant tortoise", "parrot")
LIFESPANS = (  # a task has one animal of each group
    {"giant tortoise": 150, "parrot": 80, "elephant": 70, "crocodile": 45, "brown bear": 30},
    {"beaver": 16, "wolf": 14, "chipmunk": 12, "common toad": 10, "rabbit": 9},
    {"hedgehog": 5, "mouse": 4, "chameleon": 3, "dragonfly": 0.4, "ant": 0.1},
)
MORE_LIFESPANS = (  # further animals, for fresh tasks
    {"condor": 60, "albatross": 55, "chimpanzee": 50, "hippopotamus": 46, "rhinoceros": 44, "camel": 42, "gorilla": 40}
    | {"ostrich": 38, "alligator": 36, "horse": 28, "eagle": 25},
    {"lynx": 15.5, "goat": 15, "kangaroo": 14.5, "deer": 13.5, "dog": 13, "sheep": 12.5, "hare": 11.5, "fox": 11}
    | {"raccoon": 10.5, "badger": 9.5, "hen": 8},
    {"mole": 4.5, "gerbil": 3.5, "rat": 2.8, "hamster": 2.5, "shrew": 2, "spider": 1.5, "vole": 1, "cricket": 0.3}
    | {"grasshopper": 0.25, "moth": 0.15, "mosquito": 0.05},
)
HATCHED = ("condor", "albatross", "ostrich", "alligator", "eagle", "hen")
SURFACES = (  # from the fastest to the slowest
    *("greenpaint", "soapy water", "caesium", "steel", "brass", "chocolate", "aluminum", "bronze", "copper", "glass"),
    *("iron", "lead", "paper", "plastic", "platinum", "tin", "titanium", "zinc", "wood", "ceramic", "cloth", "rubber"),
    "sandpaper",
)
FRICTION = {surface: 0.05 + 0.03 * i for i, surface in enumerate(SURFACES)}  # surface -> loss of the block's pace
PACE = 9.0  # per cent of a plane per iteration without loss


def find(rng: Random, bare: bool, what: str) -> Task:
    """Draw a task: find a thing of a kind and bring it to a box."""
    colour = rng.choice(BOXES)
    room = rng.choice(ROOMS if bare else ("bathroom", "bedroom", "kitchen", "living room", "workshop"))
    start = room if bare else rng.choice(ROOMS)
    wanted = {"animal": ANIMALS, "plant": PLANTS, "living thing": ANIMALS + PLANTS}.get(what, OBJECTS)
    target = rng.choice(wanted)
    shown = rng.sample([target, *rng.sample([name for name in ANIMALS + PLANTS + OBJECTS if name not in wanted], 2)], 3)
    kinds = {"animal": ("animal",), "plant": ("plant",), "living thing": ("animal", "plant")}.get(what, (None,))
    box, pots = f"{colour} box", rng.sample(range(1, 10), 5)

    def place(house: House):
        create(box).put(house.rooms[room])
        if bare:
            for name in shown:
                _put(name, house.rooms[room], pots[0])
        else:
            for name in ANIMALS:
                _put(name, house.rooms["outside"])
            for name, pot in zip((*PLANTS, "", ""), pots, strict=True):
                _put(name, house.rooms["greenhouse"], pot)
        steps = [
            focus_on(lambda thing: thing.alive in kinds and thing.kind not in ("room", "door", "agent")),
            put_in(box),
        ]
        return steps, [
            lambda p: p.subject is not None and p.house.inventory in p.subject.chain(),
            lambda p: any(door.open for door in p.house.room.doors.values()),
            moved(),
            at(room),
        ]

    def plan(p: Progress):
        if p.done == 0:
            thing = find_thing(p.house, lambda thing: thing.name == target)
            return access(p.house, thing) or ("focus", thing)
        return deliver(p.house, carrier(p.subject), called(p.house, box))

    says = f"find a(n) {what}. First, focus on the thing. Then, move it to the {box} in the {room}."
    return Task(f"{box}:{room}:{','.join(sorted(shown)) if bare else start}", says, start, place, plan)


def lifespan(rng: Random, bare: bool, which: tuple[str, ...], groups: tuple[dict, ...] = LIFESPANS) -> Task:
    """Draw a task: focus on the animal with the longest or shortest life span, or on both."""
    animals = [rng.choice(list(group)) for group in groups]
    years = {name: group[name] for name, group in zip(animals, groups, strict=True)}
    right = [max(years, key=years.get) if side == "longest" else min(years, key=years.get) for side in which]
    start = rng.choice(("foundry", "greenhouse", "kitchen") if bare else ROOMS)

    def place(house: House):
        for name in animals:
            _put(name, house.rooms["outside"])
        return [named(name) for name in right], [moved(unless="outside"), at("outside")]

    def plan(p: Progress):
        animal = called(p.house, right[p.done])
        return access(p.house, animal) or ("focus", animal)

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


def planes(rng: Random, bare: bool, by: str) -> Task:
    """Draw a task: let a block slide down two planes and focus on the one described by angle or friction."""
    start = rng.choice(ROOMS)
    if by == "angle":
        names = rng.sample("BCDEFGHJ", 2)
        angles = rng.sample((20, 30, 40, 50, 60), 2)
        pace = [PACE * angle / 70 for angle in angles]
        which = rng.choice(("steepest", "shallowest"))
        labels = [f"inclined plane {name}" for name in names]
    else:
        surfaces = rng.sample(list(FRICTION), 2)
        names = surfaces if by == "named" else [f"unknown material {letter}" for letter in rng.sample("BCDEFGHJ", 2)]
        pace = [PACE * (1 - FRICTION[surface]) for surface in surfaces]
        which = rng.choice(("most", "least"))
        labels = [f"inclined plane with a {name} surface" for name in names]
    fast = which in ("steepest", "least")
    right = labels[pace.index((max if fast else min)(pace))]

    def place(house: House):
        block = Thing("wood block").put(house.rooms["workshop"])
        Thing("stopwatch").put(house.rooms["workshop"])
        for label, each in zip(labels, pace, strict=True):
            Thing("inclined plane", label=label, called=(label,), number=each).put(house.rooms["workshop"])
        clock = next(thing for thing in house.rooms["workshop"].inside if thing.form == "stopwatch")
        extras = [moved(unless="workshop"), at("workshop")]
        for label in labels:
            laid = len(extras)
            extras.append(lambda p, label=label: block.holder is not None and block.holder.label == label)
            extras += [after(laid, lambda p: clock.on), after(laid + 1, lambda p: not clock.on)]
            extras.append(after(laid + 2, lambda p: p.house.event == ("look at", (clock,))))
        return [named(right)], extras

    def plan(p: Progress):
        house = p.house
        if action := toward(house, house.rooms["workshop"]):
            return action
        block = called(house, "wood block")
        for plane in sorted(house.planes, key=lambda plane: labels.index(plane.label)):
            if plane not in p.learned:
                if block.holder is not plane:
                    return deliver(house, block, plane)
                return ("look at", plane) if block.number >= 20 else ("wait",)
        return "focus", next(plane for plane in house.planes if plane.label == right)

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
    "measure-melting-point-known-substance": partial(melting_point, unknown=False),
    "measure-melting-point-unknown-substance": partial(melting_point, unknown=True),
    "identify-life-stages-1": partial(life_stages, what="animal"),
    "identify-life-stages-2": partial(life_stages, what="plant"),
    "grow-plant": grow_plant,
    "grow-fruit": grow_fruit,
    "mendelian-genetics-known-plant": partial(inheritance, known=True),
    "mendelian-genetics-unknown-plant": partial(inheritance, known=False),
}
MANY = tuple(few | more for few, more in zip(LIFESPANS, MORE_LIFESPANS, strict=True))
FRESH = {name: partial(draw, groups=MANY) if "lifespan" in name else draw for name, draw in FAMILIES.items()}
NEAR = tuple(FAMILIES)[:7]  # families of level 1, without the house
SHORT = tuple(FAMILIES)[:9]  # families of level 2


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
        stage = "egg" if name in (*EGGS, *HATCHED, "common toad") else "baby"
        label = f"{'frog' if name == 'common toad' else name} egg" if stage == "egg" else f"baby {name}"
        Thing("animal", name, label, called=(label, f"{stage} {name}", f"{stage} {label}"), alive="animal").put(room)
