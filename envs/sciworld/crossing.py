"""SciWorld's task families about pollination: grow a fruit, find out which value of a trait is dominant.

Their experts put the pots into a running sink, where each always has water, and open the bee hive.
"""

from functools import partial
from random import Random

from envs.sciworld.genetics import PEA, UNKNOWN, Genes, Species, seed_of
from envs.sciworld.goals import (
    BOXES,
    Progress,
    Task,
    access,
    after,
    at,
    called,
    deliver,
    find_thing,
    holds,
    in_pots,
    moved,
    named,
    near,
    toward,
)
from envs.sciworld.growing import POTS, SEED_ROOMS, SEEDS
from envs.sciworld.house import House
from envs.sciworld.life import PLANT_STAGES, TREES, kind_of, living, tree_stages
from envs.sciworld.life import stage as stage_of
from envs.sciworld.rooms import ROOMS
from envs.sciworld.things import Thing, create, remove

CROSSING_POTS = 6  # of the tasks about traits


def grow_fruit(rng: Random, bare: bool) -> Task:
    """Draw a task: grow trees in the greenhouse, let bees pollinate them, focus on a fruit."""
    fruit, room, start = rng.choice(TREES), rng.choice(SEED_ROOMS), rng.choice(ROOMS)
    potted = rng.random() < 0.5  # every pot has soil, else there is soil for each beside them

    def place(house: House):
        while ripe := called(house, fruit):  # only a grown fruit counts
            remove(ripe)
        jar = Thing("seed jar").put(house.rooms[room])
        for _ in range(SEEDS):
            living("plant", tree_stages(fruit)).put(jar)
        _pots(house, range(1, POTS + 1), potted)
        _release_bees(house)
        extras = [near("seed jar"), holds("seed jar"), holds("shovel"), holds("soil"), near("soil"), moved()]
        extras += [at("greenhouse"), after(1, at("greenhouse"))]
        extras += [in_pots(name, n) for name in ("soil", "water", f"{fruit} seed") for n in range(1, POTS + 1)]
        extras += [_plants(fruit, stage, n) for n in (1, 2) for stage in PLANT_STAGES]
        pollinated = len(extras) - 1  # once two plants blossom
        extras += [_hive_open, after(pollinated, near("adult bee")), near(fruit)]
        return [named(fruit)], extras

    def plan(p: Progress):
        house = p.house
        if ripe := called(house, fruit):
            return access(house, ripe) or ("focus", ripe)
        jar = called(house, "seed jar")
        if house.room_of(jar) is not house.rooms["greenhouse"] and house.inventory not in jar.chain():
            return access(house, jar) or ("pick up", jar)
        return _cross(house, house.living[:2])

    says = (
        f"grow a {fruit}. This will require growing several plants, and them being crosspollinated to produce fruit.  "
        f"Seeds can be found in the {room}. To complete the task, focus on the grown {fruit}."
    )
    return Task(f"{fruit}:{room}:{'potted' if potted else 'loose'}:{start}", says, start, place, plan)


def inheritance(rng: Random, bare: bool, known: bool) -> Task:
    """Draw a task: cross two plants that differ in a trait and focus on the box of dominant or recessive values."""
    species, start = PEA if known else rng.choice(UNKNOWN), rng.choice(ROOMS)
    trait = rng.choice(species.traits[: 3 if known else 4])  # the original never asks for the colour of a pea's flower
    dominant, i, chance = rng.random() < 0.5, rng.randrange(3), Random(rng.random())
    yes, no = f"{BOXES[i]} box", f"{BOXES[i + 1]} box"
    right, value = (yes, trait.dominant) if dominant else (no, trait.recessive)
    numbers = sorted(rng.sample(range(1, 10), CROSSING_POTS))

    def place(house: House):
        greenhouse, kind = house.rooms["greenhouse"], species.name
        jar = Thing("seed jar").put(greenhouse)
        for allele in chance.sample((True, False), 2):
            seed_of(_purebred(species, trait.name, allele, chance)).put(jar)
        for box in (yes, no):
            create(box).put(greenhouse)
        _pots(house, numbers, True)
        _release_bees(house)
        house.chance = chance
        extras = [near("seed jar"), holds("seed jar"), moved(), at("greenhouse"), after(1, at("greenhouse"))]
        extras += [in_pots(name, n) for name in ("soil", "water", f"{kind} seed") for n in range(1, CROSSING_POTS + 1)]
        first = len(extras)
        extras += [_plants(kind, stage, n) for n in range(1, CROSSING_POTS + 1) for stage in PLANT_STAGES]
        crossed = partial(after, first + 2 * len(PLANT_STAGES) - 1)  # once two plants blossom
        extras += [crossed(_hive_open), crossed(near("adult bee"))]
        return [named(right)], [*extras, crossed(lambda p: len(p.house.living) > 2)]

    def plan(p: Progress):
        house = p.house
        child = next((each for each in house.living[2:] if _shows(each, trait.name)), None)
        if child and ("look at", (child,)) in p.log:
            box = called(house, right)
            return access(house, box) or ("focus", box)
        if child:
            return access(house, child) or ("look at", child)
        return _cross(house, house.living[: 2 if trait.name.startswith("seed") else 3])

    says = (
        f"determine whether {value} {trait.name} is a dominant or recessive trait in the {species.name} plant. "
        f"If the trait is dominant, focus on the {yes}. If the trait is recessive, focus on the {no}."
    )
    return Task(f"{species.name}:{trait.name}:{value}:{right}:{start}", says, start, place, plan)


def _pots(house: House, numbers, potted: bool) -> None:
    """Put flower pots into the greenhouse, and soil into each or beside it."""
    for number in numbers:
        pot = Thing("flower pot", f"flower pot {number}", called=("flower pot",)).put(house.rooms["greenhouse"])
        Thing("soil").put(pot if potted else house.rooms["greenhouse"])


def _release_bees(house: House) -> None:
    """Let the bees fly once their hive is open, each first to another flower."""
    house.bees = [thing for thing in house.rooms["greenhouse"].everything() if thing.name == "bee"]
    for i, bee in enumerate(house.bees):
        bee.number = i


def _purebred(species: Species, trait: str, dominant: bool, chance: Random) -> Genes:
    """Return genes with two equal alleles of a trait, and the alleles of other traits by chance."""
    draw = lambda: (chance.random() < 0.5, chance.random() < 0.5)  # noqa: E731
    return Genes(species, tuple((dominant, dominant) if one.name == trait else draw() for one in species.traits))


def _plants(kind: str, stage: str, count: int):
    """Return the goal that this many plants of a kind in the agent's room are at a stage."""

    def goal(p: Progress) -> bool:
        things = (thing for thing in p.house.room.everything() if thing.kind == "plant")
        return sum(kind_of(thing) == kind and stage_of(thing) == stage for thing in things) >= count

    return goal


def _hive_open(p: Progress) -> bool:
    """Return whether the agent sees an open bee hive: a goal."""
    return any(thing.kind == "bee hive" and thing.open for thing in p.house.room.inside)


def _shows(plant: Thing, trait: str) -> bool:
    """Return whether a plant shows a trait at its stage."""
    if trait.startswith("seed"):
        return stage_of(plant) == "seed"
    if trait.startswith("flower"):
        return any(each.kind == "flower" for each in plant.inside)
    return stage_of(plant) in ("adult", "reproducing")


def _cross(house: House, plants: list[Thing]) -> tuple:
    """Return the next action to grow plants in pots of a running sink where bees fly."""
    greenhouse = house.rooms["greenhouse"]
    if action := toward(house, greenhouse):
        return action
    sink, hive = (next(thing for thing in greenhouse.inside if thing.kind == kind) for kind in ("sink", "bee hive"))
    pots = sorted((each for each in greenhouse.everything() if each.kind == "flower pot"), key=lambda pot: pot.name)
    for plant, pot in zip(plants, pots, strict=False):
        if all(each.name != "soil" for each in pot.inside):
            soil = find_thing(house, lambda thing: thing.name == "soil" and thing.holder is greenhouse)
            return access(house, soil) or ("move", soil, pot)
        if plant.holder is not pot:
            return deliver(house, plant, pot)
        if pot.holder is not sink:
            return deliver(house, pot, sink)
    if not sink.on:
        return "activate", sink
    return ("wait",) if hive.open else ("open", hive)
