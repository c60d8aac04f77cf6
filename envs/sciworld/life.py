"""Life in SciWorld: the stages of animals and plants, and how things grow from one stage into the next."""

from typing import NamedTuple

from envs.sciworld.things import Thing, plain, remove

ANIMALS = (
    *("turtle", "wolf", "crocodile", "beaver", "common toad", "elephant", "moth", "frog", "blue jay"),
    *("giant tortoise", "dove", "parrot", "butterfly", "brown bear"),
)
TREES = ("apple", "apricot", "avocado", "banana", "cherry", "grapefruit", "lemon", "orange", "peach", "pear")
PLANT_STAGES = ("seed", "seedling", "adult", "reproducing")
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
BEARS = 10  # fruits or seeds that a plant bears at most
GROWS, LIVES = 10, 25  # iterations of an animal's young stages, and of its adult one


class Stage(NamedTuple):
    stage: str
    name: str
    label: str
    reads: str  # the description, with {} for the label
    called: tuple  # more names
    lasts: int = 0  # iterations until the next stage, or until a flower blossoms; 0: for ever
    drinks: bool = False  # whether it grows only in soil and water
    flower: str = ""  # the description of its flowers, with {} for "flower"


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
    """Return the stages of a fruit tree."""
    return plant_stages(f"{fruit} seed", f"{fruit} tree")


def plant_stages(seed: str, plant: str, looks=("", "", "a {}"), called: tuple = ()) -> tuple[Stage, ...]:
    """Return the stages of a plant. It blossoms for ever; a dead plant was one from the start.

    `looks`: words before the name of its seed, words behind the adult plant, the description of its flowers.
    """
    before, behind, flower = looks

    def grown(stage: str, behind: str, lasts: int, drinks: bool = False, flower: str = "") -> Stage:
        names = (f"{stage} {plant}", f"{plant} in the {stage} stage", *called)
        return Stage(stage, plant, plant, f"a {{}} in the {stage} stage{behind}", names, lasts, drinks, flower)

    names = (f"{seed} in the seed stage", *called, *([f"{before} {seed}"] if before else []))
    return (
        Stage("seed", seed, seed, f"a {before} {{}}" if before else "a {}", names, 5, True),
        grown("seedling", "", 5, drinks=True),
        grown("adult", behind, 2),
        grown("reproducing", behind, 3, flower=flower),
        Stage("dead", plant, plant, "a dead {}", (f"dead {plant}",)),
    )


def living(kind: str, life: tuple[Stage, ...], index: int = 0) -> Thing:
    """Return an animal or a plant at a stage of its life."""
    thing = Thing(kind, life[index].name, alive=kind, life=life)
    thing.open = True if kind == "plant" else None  # its flowers and fruits are within reach
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


def kind_of(plant: Thing) -> str:
    """Return the kind of a plant: apple, pea."""
    return plant.life[0].name.removesuffix(" seed")


def grow(thing: Thing) -> None:
    """Let a living thing grow by one iteration.

    A stage that drinks uses up the water of its pot when it ends. A plant that blossoms bears one flower at a time.
    """
    now = thing.life[thing.stage]
    beside = {each.name: each for each in thing.holder.inside} if now.drinks else {}
    if not now.lasts or (now.drinks and not {"soil", "water"} <= beside.keys()):
        return
    thing.number += 1
    if thing.number < now.lasts:
        return
    if now.flower:
        thing.number = 0
        kinds = [each.kind for each in thing.inside if each.kind != "pollen"]
        if "flower" not in kinds and len(kinds) < BEARS:
            Thing("flower", reads=now.flower).put(thing)
        return
    enter(thing, thing.stage + 1)
    refilled = thing.holder.name.startswith("self watering") and thing.life[thing.stage].drinks
    if now.drinks and not refilled:
        remove(beside["water"])
