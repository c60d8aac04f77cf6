"""SciWorld's task families about life: name the stages of an animal or a plant, grow a plant from a seed."""

from random import Random

from envs.sciworld.goals import (
    Progress,
    Task,
    access,
    at,
    called,
    fill,
    find_thing,
    focus_on,
    holds,
    in_pots,
    moved,
    near,
    stay,
    toward,
)
from envs.sciworld.house import House
from envs.sciworld.life import ANIMALS, PLANT_STAGES, SHOWN, TREES, animal_stages, living, stage, tree_stages
from envs.sciworld.rooms import ROOMS
from envs.sciworld.things import Thing

OTHERS = 5  # animals beside the one of the task
BESIDE_TREES = ("beaver", "blue jay", "turtle")
SEED_ROOMS = ("bathroom", "bedroom", "greenhouse", "kitchen", "living room", "workshop")
SEEDS, POTS = 5, 3


def life_stages(rng: Random, bare: bool, what: str) -> Task:
    """Draw a task: focus on the stages of a living thing in turn. Animals grow up; trees stand there in all stages."""
    start = rng.choice(ROOMS)
    subject = rng.choice(ANIMALS if what == "animal" else TREES)
    if what == "animal":
        others = [name for name in ANIMALS if SHOWN.get(name, name) != SHOWN.get(subject, subject)]
        around = [subject, *rng.sample(others, OTHERS)]
        stages = [each.stage for each in animal_stages(subject)][:-1]
        says = f"focus on the {len(stages)} life stages of the {subject}, starting from earliest to latest."
    else:
        around, stages = rng.sample(BESIDE_TREES, 1), list(PLANT_STAGES)
        says = f"focus on the life stages of the {subject} plant, starting from earliest to latest. "
        says += "The plants are located outside."
    pots = rng.sample(range(1, 10), len(PLANT_STAGES) + 1)

    def place(house: House):
        outside = house.rooms["outside"]
        if what == "animal":
            life = animal_stages(subject)
            house.target = living("animal", life).put(outside)
            for name in around[1:]:
                living("animal", animal_stages(name)).put(outside)
        else:
            life = tree_stages(subject)
            for number, each in zip(pots, (*PLANT_STAGES, "dead"), strict=True):
                pot = _pot(f"self watering flower pot {number}").put(outside)
                index = [one.stage for one in life].index(each)
                living("plant", life, index).put(pot).number = int(each == "reproducing")  # as long as the original's
                for name in ("soil", "water") if life[index].drinks or each == "dead" else ("soil",):
                    Thing(name).put(pot)
            other = animal_stages(around[0])
            for index in range(len(other)):
                living("animal", other, index).put(outside)
        steps = [focus_on(lambda t, s=s: t.life == life and stage(t) == s) for s in stages]
        return steps, [moved(unless="outside"), at("outside"), *(stay("outside", n) for n in (2, 4, 6))]

    def plan(p: Progress):
        house = p.house
        if action := toward(house, house.rooms["outside"]):
            return action
        if what == "animal":
            return ("focus", house.target) if stage(house.target) == stages[p.done] else ("wait",)
        name = f"{subject} {'seed' if p.done == 0 else 'tree'}"
        thing = find_thing(house, lambda each: each.name == name and stage(each) == stages[p.done])
        return ("focus", thing) if thing else ("wait1",)

    return Task(f"{subject}:{','.join(sorted(around))}:{start}", says, start, place, plan)


def grow_plant(rng: Random, bare: bool) -> Task:
    """Draw a task: plant a seed in a pot of the greenhouse and water it until it blossoms."""
    fruit, room, start = rng.choice(TREES), rng.choice(SEED_ROOMS), rng.choice(ROOMS)
    potted = rng.random() < 0.5  # every pot has soil, else there is some for one of them

    def place(house: House):
        life, greenhouse = tree_stages(fruit), house.rooms["greenhouse"]
        jar = Thing("seed jar").put(house.rooms[room])
        for _ in range(SEEDS):
            living("plant", life).put(jar)
        for number in range(1, POTS + 1):
            pot = _pot(f"flower pot {number}").put(greenhouse)
            if potted or number == 1:
                Thing("soil").put(pot if potted else greenhouse)
        extras = [near("seed jar"), holds("seed jar"), holds("shovel"), holds("soil"), near("soil"), moved()]
        extras += [at("greenhouse"), lambda p: p.house.room is greenhouse and 1 in p.met]
        extras += [in_pots(name, n) for name in ("soil", "water", f"{fruit} seed") for n in range(1, POTS + 1)]
        grown = [lambda p, s=s: stage(p.subject) == s for s in PLANT_STAGES[1:]]
        return [focus_on(lambda thing: thing.life == life and stage(thing) == "seed"), *grown], extras

    def plan(p: Progress):
        house = p.house
        pot = p.subject.holder if p.subject else called(house, "flower pot 1")
        inside = {each.kind: each for each in pot.inside}
        if "soil" not in inside:
            soil = find_thing(house, lambda thing: thing.name == "soil" and thing.holder is house.rooms["greenhouse"])
            return access(house, soil) or ("move", soil, pot)
        if "plant" not in inside:
            jar = called(house, "seed jar")
            if house.inventory not in jar.chain():
                return access(house, jar) or ("pick up", jar)
            return access(house, pot) or ("move", jar.inside[0], pot)
        if p.done == 0:
            return access(house, pot) or ("focus", inside["plant"])
        if "water" in inside or not p.subject.life[p.subject.stage].drinks:
            return access(house, pot) or ("wait",)
        jug = called(house, "jug")
        return access(house, jug) or (("pour", jug, pot) if jug.inside else fill(house, jug))

    says = (
        f"grow a {fruit} plant from seed. Seeds can be found in the {room}. First, focus on a seed. Then, make changes "
        "to the environment that grow the plant until it reaches the reproduction life stage."
    )
    return Task(f"{fruit}:{room}:{'potted' if potted else 'loose'}:{start}", says, start, place, plan)


def _pot(name: str) -> Thing:
    return Thing("flower pot", name, called=("flower pot",))
