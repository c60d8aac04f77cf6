"""Pollination and inheritance in SciWorld: bees carry pollen, flowers become fruits or seeds, traits are inherited.

Each trait of a species has a dominant and a recessive value, and a plant has two alleles of each trait, one of each
parent. It shows the recessive value if both are recessive.
"""

from random import Random
from typing import NamedTuple

from envs.sciworld.life import kind_of, living, plant_stages
from envs.sciworld.things import Thing, create, remove

RIPENS = 3  # iterations from a flower's pollination to its fruit
LOAD = 6  # grains of pollen that a bee carries at most


class Trait(NamedTuple):
    name: str
    dominant: str
    recessive: str


class Species(NamedTuple):
    name: str
    traits: tuple[Trait, ...]


class Genes(NamedTuple):
    species: Species
    alleles: tuple[tuple[bool, bool], ...]  # of each trait, one of each parent; True: the dominant value

    def shown(self, trait: str) -> str:
        """Return the value of a trait that the plant shows; "" if its species does not have the trait."""
        pairs = zip(self.species.traits, self.alleles, strict=True)
        return next((one.dominant if any(pair) else one.recessive for one, pair in pairs if one.name == trait), "")


PEA = Species(
    "pea",
    (
        Trait("plant height", "tall", "short"),
        Trait("seed shape", "round", "wrinkly"),
        Trait("seed color", "green", "orange"),
        Trait("flower color", "purple", "white"),
    ),
)
UNKNOWN = (
    Species(
        "unknown B",
        (
            Trait("plant height", "short", "tall"),
            Trait("seed color", "green", "yellow"),
            Trait("flower size", "large", "small"),
            Trait("flower color", "orange", "yellow"),
        ),
    ),
    Species(
        "unknown C",
        (
            Trait("plant height", "short", "tall"),
            Trait("leaf shape", "pointed", "round"),
            Trait("flower size", "large", "small"),
            Trait("flower color", "orange", "yellow"),
        ),
    ),
    Species(
        "unknown D",
        (
            Trait("seed shape", "spherical", "ovate"),
            Trait("leaf size", "medium", "large"),
            Trait("flower size", "small", "medium"),
            Trait("flower color", "blue", "red"),
        ),
    ),
    Species(
        "unknown E",
        (
            Trait("seed color", "blue", "brown"),
            Trait("seed shape", "round", "square"),
            Trait("leaf shape", "elliptical", "linear"),
            Trait("flower size", "small", "large"),
        ),
    ),
)


def seed_of(genes: Genes) -> Thing:
    """Return a seed with these genes."""
    name = genes.species.name
    words = lambda *traits: " ".join(filter(None, map(genes.shown, traits)))  # noqa: E731
    height, leaves = words("plant height"), words("leaf size", "leaf shape")
    behind = " and ".join([f"a {height} height"] * bool(height) + [f"{leaves} leaves"] * bool(leaves))
    before, flower = words("seed shape", "seed color"), words("flower size", "flower color")
    looks = before, f" with {behind}" if behind else "", f"a {flower} {{}}"
    seed = living("plant", plant_stages(f"{name} seed", f"{name} plant", looks, (name,)))
    seed.genes = genes
    return seed


def mate(first: Genes, second: Genes, chance: Random) -> Genes:
    """Return the genes of a child: of each trait, one allele of each parent by chance."""
    pairs = zip(first.alleles, second.alleles, strict=True)
    return Genes(first.species, tuple((chance.choice(one), chance.choice(other)) for one, other in pairs))


def ripen(plant: Thing, chance: Random | None) -> list[Thing]:
    """Let a plant's flower ripen by one iteration. Return the seed that it has become, if it has.

    A flower has pollen of its own plant, and is pollinated by that of another plant of the same species, brought by
    a bee or put into it.
    """
    seeds = []
    for flower in [each for each in plant.inside if each.kind == "flower"]:
        inside = [thing for each in flower.inside for thing in (each, *each.inside) if thing.kind == "pollen"]
        foreign = [grain for grain in inside if grain.parent is not plant and kind_of(grain.parent) == kind_of(plant)]
        if flower.number:
            flower.number += 1
        elif foreign:
            flower.number, flower.genes = 1, foreign[0].parent.genes
            flower.reads, flower.called = flower.reads.replace("a ", "a wilting ", 1), ("flower", "wilting flower")
            remove(foreign[0])
        elif all(grain.holder is not flower for grain in inside):
            Thing("pollen", called=(f"{kind_of(plant)} pollen",), text=kind_of(plant), parent=plant).put(flower)
        if flower.number > RIPENS:
            for thing in list(flower.inside):
                thing.put(plant)
            remove(flower)
            if plant.genes:
                seeds.append(seed_of(mate(plant.genes, flower.genes, chance)).put(plant))
            else:
                create(kind_of(plant)).put(plant)
    return seeds


def fly(bee: Thing, room: Thing) -> None:
    """Let a bee do one thing: take a flower's pollen, fly from a flower into the room, or into the next flower."""
    if bee.holder is room:
        flowers = [thing for thing in room.within() if thing.kind == "flower"]
        if flowers:
            bee.put(flowers[bee.number % len(flowers)])
            bee.number += 1
    elif bee.holder.kind == "flower" and (grain := _untaken(bee)):
        grain.put(bee)
    elif all(holder.open is not False for holder in bee.chain()):
        bee.put(room)


def _untaken(bee: Thing) -> Thing | None:
    """Return pollen of the bee's flower, unless it carries some of that plant already, or as much as it can."""
    have = {grain.parent for grain in bee.inside}
    grains = (each for each in bee.holder.inside if each.kind == "pollen" and each.parent not in have)
    return next(grains, None) if len(bee.inside) < LOAD else None
