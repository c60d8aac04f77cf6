"""SciWorld: exact texts, the score, the expert, splits, rewards, and hostile replies."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from random import Random

import golden
import pytest
from cases import cases

from envs.common import SPLITS
from envs.sciworld import MAX_ACTION, MOST, Config, Env
from envs.sciworld.genetics import PEA, Genes, mate
from envs.sciworld.goals import Progress
from envs.sciworld.grammar import AMBIGUOUS, DROPPED, SHOWN, UNKNOWN
from envs.sciworld.growing import SEED_ROOMS
from envs.sciworld.life import BEARS
from envs.sciworld.rooms import DOORS, ROOMS
from envs.sciworld.tasks import FAMILIES, NEAR

CASES = cases("sciworld")


def make(difficulty="4", **options) -> Env:
    return Env(Config(**{"difficulty": difficulty, "prompt": "short", "max_turns": 10_000} | options))


@cache
def found(family: str, key: str) -> tuple[int, str]:
    """Return the seed and the split of a task of a family with `key` in its canonical string."""
    env = make(families=family)
    for seed in range(3000):
        env.reset(seed, split := SPLITS[seed % 3])
        if key in env.task + "$":
            return seed, split
    raise AssertionError(f"no {family} with {key}")


def at(family: str, key: str = "", **options) -> Env:
    """Return an environment in an episode of such a task."""
    env = make(families=family, **options)
    env.reset(*found(family, key))
    return env


def expert(env: Env) -> list:
    steps = [env.step(env.oracle())]
    while env.running and len(steps) < 60:
        steps.append(env.step(env.oracle()))
    return steps


def episode(seed: int, split: str = "train", actions: str = "", **options) -> Iterator[dict]:
    """Yield the cases of an episode: the expert's actions, or actions from a text, separated by semicolons."""
    env = make(**options)
    yield golden.start(env.reset(seed, split), seed, split, **options)
    said = iter(actions.split(";")) if actions else iter(env.oracle, None)
    while env.running and (action := next(said, None)) is not None:
        yield golden.action(action.strip(), env.step(action))


def transcript() -> list[dict]:
    boil = {"families": "boil", "difficulty": "4"}
    salt, parts = (
        {**boil, "families": "chemistry-mix"},
        {"families": "power-component", "simplifications": "teleportAction"},
    )
    water, salt_water = found("boil", ":water:hallway:$"), found("chemistry-mix", "salt water:kitchen")
    return [
        *(case for family in FAMILIES for case in episode(3, families=family, difficulty="4")),
        *(case for family in NEAR for case in episode(5, families=family, difficulty="1")),
        *episode(*salt_water, **salt),
        *episode(*water, actions=CASES["in the kitchen"].replace("\n", " "), **boil),
        *episode(0, actions=CASES["in the workshop"].replace("\n", " "), **parts, difficulty="3"),
    ]


def test_golden_transcripts_contain_key_facts():
    outputs = [case["output"] for case in golden.read("sciworld")]
    lines = [line for out in outputs for line in (out if isinstance(out, str) else out["observation"]).splitlines()]
    for fact in CASES["facts"].strip().splitlines():
        wanted = fact.replace("~", " ")
        assert any(wanted in line for line in lines), fact


def test_the_map():
    around = {room: sorted(b if a == room else a for a, b in DOORS if room in (a, b)) for room in ROOMS}
    assert around == {
        "hallway": ["art studio", "bedroom", "greenhouse", "kitchen", "living room", "workshop"],
        "kitchen": ["bathroom", "hallway", "outside"],
        "greenhouse": ["hallway", "outside"],
        "outside": ["foundry", "greenhouse", "kitchen"],
        "foundry": ["outside"],
        "bathroom": ["kitchen"],
        **{room: ["hallway"] for room in ("living room", "bedroom", "workshop", "art studio")},
    }
    env = make()
    env.reset(0)
    assert not any(door.open for door in env.house.doors)
    for level, simplified in (("3", ""), ("4", "openDoors"), ("4", "easy")):
        env = make(level, simplifications=simplified)
        env.reset(0)
        assert all(door.open for door in env.house.doors)


def test_score_arithmetic():
    progress = Progress(None, steps=[None] * 2, extras=[None] * 4, start="")
    scores = []
    for done, met in ((0, 0), (0, 1), (0, 2), (1, 2), (1, 4), (2, 0), (2, 4)):
        progress.done, progress.met = done, set(range(met))
        scores.append(progress.score)
    assert scores == [0, 8, 17, 67, 83, 100, 100]  # 100 * min(1, done / 2 + met / (4 * 3))
    progress.failed = True
    assert progress.score == -100


def test_rewards_add_up_to_the_score():
    for seed in range(40):
        env = make()
        env.reset(seed)
        first = env.progress.score
        steps = expert(env)
        assert first + sum(step.reward for step in steps) == steps[-1].info["score"] == 100


def test_wrong_focus_fails_the_task():
    env = at("boil", ":water:kitchen:$")
    before = env.progress.score
    step = env.step("focus on soap")
    assert (step.observation, step.reward, step.info["score"]) == ("You focus on the soap.", -100 - before, -100)
    assert step.terminated and step.info["outcome"] == "incorrect" and not step.info["success"]
    assert step.info["valid"] and step.info["shaped"] == 0 and not env.running


@pytest.mark.parametrize(("due", "fails"), [(0, True), (1, True), (2, False)])
def test_wrong_focus_fails_only_if_a_focus_is_due(due, fails):
    env = at("use-thermometer")  # to focus on the thermometer, then on the thing, then to put that into a box
    while env.progress.done < due:
        env.step(env.oracle())
    before = env.progress.score
    step = env.step(f"focus on {env.house.room.name}")
    assert step.info["valid"] and step.terminated == fails
    assert step.info["score"] == (-100 if fails else before)
    assert fails or expert(env)[-1].info["success"]


def test_wrong_box_fails_the_task():
    env = at("test-conductivity", "metal fork:workshop")
    while env.oracle().split()[0] != "move":
        env.step(env.oracle())
    right = next(box for box in env.task.split(":") if box.endswith("box"))
    wrong = next(part for part in env.task.split(":") if part.endswith("box") and part != right)
    step = env.step(f"move metal fork to {wrong}")
    assert step.info["outcome"] == "incorrect" and step.info["score"] == -100


def test_ambiguity_is_resolved_by_a_number_or_dropped():
    env = at("boil", ":water:kitchen:$")
    asked = env.step("eat orange")
    assert asked.observation == (
        AMBIGUOUS
        + "0:\teat orange (in bowl, in counter, in kitchen)\n1:\teat orange (in inventory, in agent, in kitchen)\n"
    )
    assert not asked.info["valid"]
    assert env.step("task").observation.startswith("Task description:")  # it leaves the choice open
    assert env.step("1").observation == "The orange was delicious."
    assert env.step("inventory").observation == "In your inventory, you see:\n\tnothing"
    env.step("open cupboard")  # there are two drawers now
    for reply in ("2", "-1", "", "x", "\u0661", "look around"):
        assert env.step("look in drawer").observation.startswith(AMBIGUOUS)
        assert env.step(reply).observation == DROPPED
    env.step("look in drawer")
    assert env.step(" 1 ").observation == "The drawer isn't open, so you can't see inside."
    assert env.step("0").observation == UNKNOWN


def test_long_lists_of_readings_are_cut():
    env = at("power-component", "workshop")
    said = env.step("connect anode to terminal 2").observation
    assert said.count("\n") == SHOWN + 1 and len(env.house.pending) == SHOWN


@pytest.mark.parametrize(
    "form", ["take[thermometer]", "Take [the thermometer]", "pickup[thermometer]", "get[thermometer]"]
)
def test_brackets_equal_the_plain_form(form):
    env = at("boil", ":water:kitchen:$")
    assert env.step(form).observation == "You move the thermometer to the inventory."
    assert env.step("use[thermometer, counter]").observation.startswith("the thermometer measures")
    assert env.step("move[thermometer, counter]").observation == "You move the thermometer to the counter."
    assert env.step("open[door to hallway]").observation == "The door is now open."
    assert env.step("goto[hallway]").observation == "You move to the hallway."


def test_native_reads_everything_after_the_last_marker():
    env = at("boil", ":water:kitchen:$", prompt="native")
    assert env.step("Thought:\nAction: is next\n\nAction:\n look   around ").observation.startswith("This room")
    for reply in ("look around", "Action:", "Action: look around\nand wait", ""):
        step = env.step(reply)
        assert step.observation == UNKNOWN and not step.info["valid"]


def test_prompts():
    native, (short,) = make(prompt="native").reset(4), make().reset(4)
    assert [message["role"] for message in native] == ["user", "assistant", "user"]
    instruction, _, observation = short["content"].partition("\n")
    assert observation == native[2]["content"] and observation.startswith("Your task is to ")
    assert "focus on" in instruction and short["content"].isascii()
    lengths = [len(make("1").reset(seed)[0]["content"]) for seed in range(30)]
    assert max(lengths) < 800


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", ["1", "2", "3", "4"])
def test_expert_solves_tasks_of_many_families(level, prompt):
    env = make(level, prompt=prompt, max_turns=30)
    families = Counter()
    for seed in range(60):
        env.reset(seed, SPLITS[seed % 3])
        steps = expert(env)
        assert steps[-1].info["success"], env.task
        alike = ":grow-" in env.task or ":mendelian-" in env.task  # seeds: the expert has to choose one by number
        assert all(step.info["valid"] or (alike and step.observation.startswith(AMBIGUOUS)) for step in steps), env.task
        assert level != "1" or len(steps) <= 4
        families[env.task.split(":")[1]] += 1
    assert set(families) <= set(FAMILIES) and len(families) >= 7


@pytest.mark.all_only
@pytest.mark.parametrize("family", FAMILIES)
def test_expert_solves_every_family(family):
    for seed in range(6):
        env = make(families=family, max_turns=30)
        env.reset(seed)
        assert expert(env)[-1].info["success"], env.task


@pytest.mark.all_only
def test_expert_continues_from_any_state():
    """After moves that cannot spoil a task, at any point of the expert's episode."""
    for seed in range(40):
        env = make()
        env.reset(seed)
        for i, move in enumerate(
            ("look around", "drop orange", "eat orange", "0", "go to hallway", "go to kitchen", "x")
        ):
            if env.running and "state" not in env.task:
                env.step(move)
            if env.running and i % 2:
                env.step(env.oracle())
        if env.running:
            assert expert(env)[-1].info["success"], env.task


def test_tertiary_paint_counts_after_the_secondary_one():
    """Before that the primary paints, which are near from the start, count as parts of the secondary paint."""
    env = at("chemistry-mix-paint-tertiary-color", "violet-red paint:art studio")
    vessel = env.oracle().rpartition(" in ")[2]
    pours = [f"pour wood cup containing {colour} paint in {vessel}" for colour in ("red", "yellow")]
    for action in (*pours, f"mix {vessel}"):
        step = env.step(action)
    assert "orange paint" in step.observation and step.info["score"] == 13, "as before: four goals, of a thirtieth each"
    env = at("chemistry-mix-paint-tertiary-color", "violet-red paint:art studio")
    scores = [step.info["score"] for step in expert(env)[:3]]
    assert scores == [13, 17, 27], "with violet there are three goals more: itself, and both parts of violet-red"


def test_shaped_reward_pays_at_most_six_goals():
    for seed in range(15):
        env = make("3", simplifications="teleportAction")
        env.reset(seed)
        moves = [f"teleport to {room}" for room in ROOMS] * 2
        moves += ["activate stove", "deactivate stove", "pick up lighter", "drop lighter", "reset task"] * 3
        total = sum(env.step(move).info["shaped"] for move in moves if env.running)
        assert total <= 0.15 * MOST + 1e-9 < 1
        again = sum(env.step(move).info["shaped"] for move in moves * 2 if env.running)
        assert again == 0, env.task


@pytest.mark.all_only
@pytest.mark.parametrize("subject", ["known", "unknown"])
def test_melting_point_is_measured_and_answered_by_a_box(subject):
    """The reading right after melting is on the melting point's side of the limit; the wrong box fails the task."""
    family, sides = f"measure-melting-point-{subject}-substance", Counter()
    env = make("3", families=family, max_turns=40)
    for seed in range(40):
        env.reset(seed)
        text, measured = env.house.description, None
        limit, above, below = re.search(
            r"above (\S+) degrees celsius, focus on the (.*?)\. .* the (.*?)\. The", text
        ).groups()
        while not (action := env.oracle()).endswith(" box"):
            reply = env.step(action).observation
            measured = re.search(r"a temperature of (-?\d+) degrees", reply) if action.startswith("use") else measured
        assert ("liquid" in env.house.target.label) or subject == "known"
        right, wrong = (above, below) if int(measured[1]) > float(limit) else (below, above)
        sides[right == above] += 1
        if seed % 2:
            step = env.step(f"focus on {wrong}")
            assert (step.terminated, step.info["score"], step.info["outcome"]) == (True, -100, "incorrect")
        else:
            assert env.step("focus on stove").info["score"] == env.progress.score < 100 and env.running
            step = env.step(f"focus on {right}")
            assert step.terminated and step.info["score"] == 100 and action == f"focus on {right}"
    assert min(sides.values()) > 5


def outside_of(env: Env) -> list[str]:
    """Return the lines of the things outside, where the agent is."""
    return env.step("look around").observation.partition("\nYou also see")[0].split("\n\t")[1:]


def test_animals_grow_up_where_no_closed_door_is_between():
    """An egg hatches after ten iterations, however long the agent waits behind closed doors before."""
    env = at("identify-life-stages-1", ":turtle:", simplifications="teleportAction", difficulty="4")
    moves = ["teleport to kitchen", "wait", "open door to outside", *["wait1"] * 3, "close door to outside", "wait"]
    for action in [*moves, "teleport to outside"]:
        env.step(action)
    labels = {}
    for iteration in range(4, 60):  # the opening of the door counts too
        labels.setdefault(next(line for line in outside_of(env) if "turtle" in line), iteration)
        env.step("wait1")
    grown = {"a turtle egg": 4, "a hatchling turtle": 10, "a juvenile turtle": 20, "a adult turtle": 30}
    assert labels == grown | {"a dead turtle": 55}


@pytest.mark.parametrize("what", ["egg", "adult"])
def test_stages_count_in_their_order_alone(what):
    """Each stage pays a quarter; a later stage, or another animal's, fails the task when an earlier one is due."""
    env = at("identify-life-stages-1", ":turtle:", simplifications="openDoors,teleportAction", difficulty="3")
    env.step("teleport to outside")
    assert env.step("focus on egg turtle in outside").info["score"] >= 25
    if what == "egg":
        step = env.step("focus on turtle egg")
    else:
        for _ in range(3):
            env.step("wait")
        step = env.step("focus on adult turtle")
    assert (step.info["outcome"], step.info["score"]) == ("incorrect", -100)


def test_trees_stand_outside_in_every_stage():
    env = at("identify-life-stages-2", ":cherry:", simplifications="openDoors,teleportAction", difficulty="3")
    env.step("teleport to outside")
    pots = sorted(line.partition(" (containing ")[2] for line in outside_of(env) if "flower pot" in line)
    assert pots == [
        "a cherry seed, soil, a substance called water)",
        "a cherry tree in the adult stage, soil)",
        "a cherry tree in the reproducing stage, soil)",
        "a cherry tree in the seedling stage, soil, a substance called water)",
        "a dead cherry tree, soil, a substance called water)",
    ]
    for stage in ("seed", "seedling"):
        noun = "seed" if stage == "seed" else "tree"
        assert (
            env.step(f"focus on cherry {noun} in the {stage} stage").observation == f"You focus on the cherry {noun}."
        )
    assert env.step("focus on dead cherry tree").info["score"] == -100


def test_a_seed_needs_soil_and_water_to_grow():
    """Without water it stays a seed, and each of its two young stages uses its water up."""
    env = at("grow-plant", ":potted:", simplifications="openDoors,teleportAction", difficulty="3")
    while env.progress.done < 1:
        env.step(env.oracle())
    pot = env.progress.subject.holder
    for water, stages in ((False, 1), (True, 2), (False, 2), (True, 4)):
        while water and not any(thing.name == "water" for thing in pot.inside):
            env.step(env.oracle())
        step = env.step("wait")
        assert (env.progress.done, step.terminated) == (stages, stages == 4)
        assert not any(thing.name == "water" for thing in pot.inside)
    assert step.info["success"] and step.info["score"] == 100


def planted(env: Env) -> tuple:
    """Let the expert grow two plants until they blossom, and leave the hive closed. Return their flowers."""
    while not (action := env.oracle()).startswith("open bee hive"):
        env.step(action)
    env.step("wait")
    while not all(any(each.name == "flower" for each in plant.inside) for plant in env.house.living[:2]):
        env.step("wait1")
    return tuple(next(each for each in plant.inside if each.name == "flower") for plant in env.house.living[:2])


def choose(env: Env, action: str, *holders) -> str:
    """Say an action, and answer with the number of the reading whose things have these holders."""
    reply = env.step(action).observation
    for number, (_, things) in enumerate(env.house.pending):
        if all(holder in [thing, *thing.chain()] for thing, holder in zip(things, holders, strict=True)):
            return env.step(str(number)).observation
    return reply


@pytest.mark.parametrize("own", [True, False])
def test_a_flower_needs_another_plants_pollen(own):
    """The fruit ripens three iterations after the pollination; nobody pollinates a flower while the hive is closed."""
    env = at("grow-fruit", ":potted:", simplifications="openDoors", difficulty="4")
    one, other = planted(env)
    fruit = env.task.split(":")[2]
    env.step("wait")
    assert choose(env, "pick up pollen", one) == "You move the pollen to the inventory."
    choose(env, "move pollen in inventory to flower", env.house.inventory, one if own else other)
    ripe = []
    for _ in range(4):
        ripe.append([thing.name for plant in env.house.living[:2] for thing in plant.inside if thing.name == fruit])
        env.step("wait1")
    assert ripe == [[], [], [], []] if own else ripe == [[], [], [], [fruit]]
    if not own:
        assert env.step(f"focus on {fruit}").info["success"]


def test_bees_pollinate_once_their_hive_is_open():
    env = at("grow-fruit", ":potted:", simplifications="openDoors", difficulty="4")
    planted(env)
    fruit = env.task.split(":")[2]
    env.step("wait")
    assert not any(thing.name == fruit for thing in env.house.room.everything())
    env.step("open bee hive")
    env.step("wait")
    assert sum(thing.name == fruit for thing in env.house.room.everything()) >= 2
    bees = [thing for room in env.house.rooms.values() for thing in room.everything() if thing.name == "bee"]
    assert len(bees) == 5 and {env.house.room_of(bee) for bee in bees} == {env.house.room}, (
        "they stay in the greenhouse"
    )
    assert any(bee.look(True).endswith("covered in pollen") for bee in bees)


def test_what_plants_bear_is_bounded():
    """However long bees fly, so that a long episode stays as fast as a short one."""
    env = at("mendelian-genetics-known-plant", simplifications="openDoors", difficulty="4")
    planted(env)
    env.step("open bee hive")
    for _ in range(60):
        env.step("wait")
    assert 15 < len(env.house.living) <= 2 + 2 * BEARS and len(list(env.house.room.everything())) < 120


def test_only_a_grown_fruit_counts():
    env = at("grow-fruit", ":orange:", simplifications="openDoors,teleportAction", difficulty="4")
    assert env.step("inventory").observation.endswith("nothing"), "elsewhere the agent begins with an orange"
    assert not any(thing.name == "orange" for room in env.house.rooms.values() for thing in room.everything())
    assert env.step(f"focus on {env.house.room.name}").info["score"] == -100


@pytest.mark.all_only
def test_every_fruit_is_grown_within_the_turn_limit():
    """Wherever the agent and the seeds are, at the level with closed doors, where the pots have to be filled."""
    env, rng, played = make(families="grow-fruit", max_turns=30), Random(0), set()
    while len(played) < len(ROOMS) * len(SEED_ROOMS):
        task = FAMILIES["grow-fruit"](rng, False)
        if ":loose:" in task.key and (key := task.key.partition(":")[2]) not in played:
            env.reset(0)
            env._start(rng, task, "grow-fruit", "4")
            assert expert(env)[-1].info["success"], task.key
            played.add(key)


@pytest.mark.all_only
def test_children_inherit_an_allele_of_each_parent():
    """Children of purebred parents show the dominant value; a quarter of the grandchildren shows the recessive one."""
    chance, traits = Random(0), PEA.traits
    pure = [Genes(PEA, ((value, value),) * len(traits)) for value in (True, False)]
    assert [pure[0].shown("plant height"), pure[1].shown("plant height")] == ["tall", "short"]
    children = [mate(*chance.sample(pure, 2), chance) for _ in range(20)]
    assert {child.shown(trait.name) for child in children for trait in traits} == {one.dominant for one in traits}
    grand = [mate(children[0], children[1], chance) for _ in range(2000)]
    for trait in traits:
        assert 0.22 < sum(child.shown(trait.name) == trait.recessive for child in grand) / 2000 < 0.28


def test_a_shovel_digs_soil_out_of_the_ground():
    env = at("grow-plant", simplifications="openDoors,teleportAction")
    for room in ("greenhouse", "outside"):  # the shovel is in one of them
        env.step(f"teleport to {room}")
        env.step("pick up shovel")
    assert not any("soil" in line or "hole" in line for line in outside_of(env))
    dug = env.step("use shovel in inventory on ground").observation
    assert dug == "You dig a hole in the ground, and place the soil nearby."
    assert {"a hole (containing nothing)", "soil"} <= {*outside_of(env)}
    assert env.step("pick up soil").observation == "You move the soil to the inventory."
    assert not env.step("use shovel in inventory on fountain").info["valid"]


@pytest.mark.all_only
@pytest.mark.parametrize("known", ["known", "unknown"])
def test_the_first_generation_shows_which_value_is_dominant(known):
    """The expert answers after it has looked at a child of both plants; the other box fails the task."""
    traits, env = Counter(), make("3", families=f"mendelian-genetics-{known}-plant")
    for seed in range(60):
        env.reset(seed)
        value, trait = re.search(r"whether (\w+) ([\w ]+) is", env.house.description).groups()
        dominant, recessive = re.findall(r"focus on the ([\w ]+)\.", env.house.description)
        while not (action := env.oracle()).startswith("focus"):
            shown = env.step(action).observation
        traits[trait] += 1
        noun = {"plant": "height", "leaf": "leaves"}.get(trait.split()[0], trait.split()[0])
        right = dominant if re.search(rf"\b{value}(?: \w+)* ?{noun}", shown) else recessive
        assert action == f"focus on {right}", (shown, value)
        if seed % 2:
            assert env.step(action).info["score"] == 100
        else:
            step = env.step(f"focus on {recessive if right == dominant else dominant}")
            assert (step.info["outcome"], step.info["score"]) == ("incorrect", -100)
    assert len(traits) == (3 if known == "known" else 7)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.startswith("inclined-plane")])
def test_stopwatch_pays_only_while_a_block_slides(family):
    env = at(family, difficulty="3", simplifications="teleportAction")
    env.step("teleport to workshop")
    timing = ["activate stopwatch", "deactivate stopwatch", "look at stopwatch"]
    paid = lambda: [env.step(action).reward for action in timing]  # noqa: E731
    assert paid() + paid() == [0] * 6
    for plane in range(2):
        while len(env.progress.met & {2, 6}) == plane:  # until the block is on it
            env.step(env.oracle())
        assert paid() == [5, 5, 5] and paid() == [0, 0, 0]


@pytest.mark.all_only
def test_shaped_reward_is_capped_below_the_end():
    env = at("boil", ":water:kitchen:$", difficulty="3")
    actions = "move metal pot to sink; activate sink; focus on water; activate stove; activate oven; pick up lighter; "
    actions += "move metal pot to oven; move metal pot to stove; move metal pot to oven"
    steps = [env.step(action.strip()) for action in actions.split(";")]
    assert env.progress.done + len(env.progress.met) > MOST and not steps[-1].terminated
    assert sum(step.info["shaped"] for step in steps) == pytest.approx(0.15 * MOST)


def test_shaped_reward_pays_each_goal_once_and_one_at_the_end():
    env = at("boil", ":water:kitchen:$")
    paid = [(env.oracle(), env.step(env.oracle()).info["shaped"]) for _ in range(4)]
    assert [action for action, _ in paid] == [
        "open cupboard",
        "move metal pot to sink",
        "activate sink",
        "focus on water",
    ]
    assert [shaped for _, shaped in paid] == pytest.approx([0, 0, 0.3, 0.3])  # near it, alone; in focus, and liquid
    assert env.step("reset task").info["shaped"] == env.step("focus on water").info["shaped"] == 0
    assert expert(env)[-1].info["shaped"] == 1.0


def test_a_refused_action_pays_nothing_and_takes_no_time():
    env = at("boil", ":water:kitchen:$")
    for action in ("open table", "pick up sink", "foo", "go to hallway", "activate counter", "use soap on table"):
        before = env.house.iteration
        step = env.step(action)
        assert not step.info["valid"] and step.reward == step.info["shaped"] == 0 and env.house.iteration == before


def test_only_some_actions_take_time():
    env = at("boil", ":water:kitchen:$")
    takes = {
        "look around": 0,
        "inventory": 0,
        "task": 0,
        "reset task": 0,
        "help": 0,
        "wait1": 1,
        "wait": 10,
        "look at air": 1,
    }
    for action, iterations in takes.items():
        before = env.house.iteration
        assert env.step(action).info["valid"] and env.house.iteration - before == iterations, action


def test_a_long_reply_is_cut():
    env = at("boil", ":water:kitchen:$")
    assert env.step("look" + " " * MAX_ACTION + "at nothing").observation.startswith("This room is called")


def test_the_prompt_offers_the_actions_that_simplifications_leave():
    for names, connect, teleport in (("", True, False), ("easy", False, True), ("teleportAction", True, True)):
        for seed in range(20):
            env = Env(Config(families="find-animal", difficulty="3", simplifications=names))
            said = env.reset(seed)[0]["content"]
            assert ("\nconnect OBJ" in said, "\nteleport to LOC" in said) == (connect, teleport)
            assert ("connect" in env.house.grammar, "teleport" in env.house.grammar) == (connect, teleport)
