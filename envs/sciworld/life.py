"""Life in SciWorld: the stages of animals and plants, and how things grow from one stage into the next."""

from typing import NamedTuple

from envs.sciworld.things import Thing, plain, remove

ANIMALS = (
    *("turtle", "wolf", "crocodile", "beaver", "common toad", "elephant", "moth", "frog", "blue jay"),
    *("giant tortoise", "dove", "parrot", "butterfly", "brown bear"),
)
TREES = ("apple", "apricot", "avocado", "banana", "cherry", "grapefruit", "lemon", "orange", "peach", "pear")
SHOWN = {"common toad": "frog", "moth": "butterfly"}  # the animal as which the original shows another
LABELS = {  # animal: its labels by stage; the others hatch from eggs
    "frog": {"egg": "frog egg", "tadpole": "tadpole", "adult": "adult frog"},
    "butterfly": {
        **{"egg": "butterfly egg", "caterpillar": "caterpillar", "pupa": "butterfly pupa", "adult": "adult butterfly"},
    },
    **{
        name: {stage: f"{stage} {name}" for stage in ("baby", "juvenile", "adult")}
        for name in ("wolf", "beaver", "elephant", "brown bear")
    },
}
GROWS, LIVES = 10, 25  # iterations of an animal's young stages, and of its adult one


class Stage(NamedTuple):
    stage: str
    name: str
    label: str
    reads: str  # the description, with {} for the label
    called: tuple  # more names
    lasts: int = 0  # iterations until the next stage; 0: it is the last one
    drinks: bool = False  # whether it grows only in soil and water


def animal_stages(animal: str) -> tuple[Stage, ...]:
    """Return the stages of an animal, from the earliest to its death."""
    name = SHOWN.get(animal, animal)
    lasts = lambda stage: LIVES if stage == "adult" else GROWS  # noqa: E731
    hatching = {"egg": f"{name} egg", **{stage: f"{stage} {name}" for stage in ("hatchling", "juvenile", "adult")}}
    living = [
        Stage(stage, name, label, "a {}", (label, f"{stage} {name}", f"{stage} {animal}"), lasts(stage))
        for stage, label in LABELS.get(name, hatching).items()
    ]
    return *living, Stage("dead", name, f"dead {name}", "a {}", (f"dead {name}",))


def tree_stages(fruit: str) -> tuple[Stage, ...]:
    """Return the stages of a tree. It blossoms for ever; a dead tree was one from the start."""
    seed, tree, flower = f"{fruit} seed", f"{fruit} tree", f"On the {fruit} tree you see: a flower. "
    names = {stage: (f"{stage} {tree}", f"{tree} in the {stage} stage") for stage in ("seedling", "adult")}
    last = ("reproducing", tree, tree, "a {} in the reproducing stage")
    called = (f"reproducing {tree}", f"{tree} in the reproducing stage")
    return (
        Stage("seed", seed, seed, "a {}", (f"{seed} in the seed stage",), 5, True),
        Stage("seedling", tree, tree, "a {} in the seedling stage", names["seedling"], 5, True),
        Stage("adult", tree, tree, "a {} in the adult stage", names["adult"], 2),
        Stage(*last, called, 3),
        Stage(*last[:3], f"{last[3]}. {flower}", called),
        Stage("dead", tree, tree, "a dead {}", (f"dead {tree}",)),
    )


def living(kind: str, life: tuple[Stage, ...], index: int = 0) -> Thing:
    """Return an animal or a plant at a stage of its life."""
    thing = Thing(kind, life[index].name, alive=kind, life=life)
    enter(thing, index)
    return thing


def enter(thing: Thing, index: int) -> None:
    """Let a living thing enter a stage of its life."""
    now = thing.life[index]
    thing.stage, thing.number = index, 0
    thing.name, thing.label_, thing.reads = now.name, now.label, now.reads
    names = (now.name, *now.called, thing.kind, "living thing", "organism")
    thing.called = tuple(dict.fromkeys(map(plain, names)))


def stage(thing: Thing) -> str:
    """Return the stage of a living thing; "" for anything else."""
    return thing.life[thing.stage].stage if thing.life else ""


def grow(thing: Thing) -> None:
    """Let a living thing grow by one iteration. A stage that drinks uses up the water of its pot when it ends."""
    now = thing.life[thing.stage]
    beside = {each.name: each for each in thing.holder.inside} if now.drinks else {}
    if not now.lasts or (now.drinks and not {"soil", "water"} <= beside.keys()):
        return
    thing.number += 1
    if thing.number < now.lasts:
        return
    enter(thing, thing.stage + 1)
    refilled = thing.holder.name.startswith("self watering") and thing.life[thing.stage].drinks
    if now.drinks and not refilled:
        remove(beside["water"])
