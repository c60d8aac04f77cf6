"""AlfWorld: exact messages, possible actions, solvable tasks, rewards, and whole transcripts."""

import re
from collections.abc import Iterator
from copy import deepcopy
from hashlib import sha256
from random import Random

import golden
import pytest
import test_envs
from cases import cases
from experts import expert
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfworld import MAX_ACTION, Config, Env
from envs.alfworld.rooms import (
    ALIASES,
    CONTAINS,
    GOALS,
    LAMPS,
    LEVELS,
    OPENABLE,
    ROOMS,
    TEMPLATES,
    TOOLS,
    Goal,
    Room,
    kind_of,
    order,
)
from envs.common import SPLITS

TABLES = cases("alfworld")

HOUSE = Room(
    spots={"cabinet 2": 0, "cabinet 1": 0, "countertop 1": 1, "desk 1": 2, "fridge 1": 3, "microwave 1": 4}
    | {"sinkbasin 1": 5},
    inside={
        "cabinet 2": ["mug 2"],
        "cabinet 1": ["mug 1"],
        "countertop 1": ["apple 1", "butterknife 1", "knife 1"],
        "desk 1": ["candle 1", "cd 1", "desklamp 1"],
        "fridge 1": ["lettuce 1"],
        "microwave 1": [],
        "sinkbasin 1": [],
    },
)


def at(goal: Goal, room: Room = HOUSE, **options) -> Env:
    """Return an environment with this goal and room."""
    env = Env(Config(**{"prompt": "short", "max_turns": 10**6} | options))
    env.begin(goal, room)
    return env


def replay(env: Env, transcript: str) -> None:
    """Check `> action` lines against the reply in the line below each."""
    lines = transcript.strip().splitlines()
    for action, reply in zip(lines[::2], lines[1::2], strict=True):
        step = env.step(action.strip()[2:])
        assert step.observation == reply.strip(), action
        assert step.info["valid"] == (step.observation != "Nothing happens."), action


def total(env: Env, actions: list[str]) -> float:
    return sum(env.step(action).info["shaped"] for action in actions)


# The replies are those of the TextWorld engine on the same room.
def test_every_message_is_exact():
    env = at(Goal("heat", "apple", "countertop"))
    replay(env, TABLES["every message"])
    text = env.step("help").observation
    assert text.startswith(
        "Available commands:\n  look:                             look around your current location\n"
    )
    assert text.count("\n") == 14 and text.endswith("(object):     slice an object using a sharp object\n")


def test_descriptions_of_objects():
    env = at(Goal("two", "mug", "desk"))
    seen = [
        (set(), "There's nothing special about apple 1."),
        ({"hot"}, "This is a hot apple 1."),
        ({"cool"}, "This is a cold apple 1."),
        ({"clean"}, "This is a clean apple 1."),
        ({"sliced"}, "This is a sliced apple 1."),
        ({"hot", "clean"}, "This is a hot and clean apple 1."),
        ({"cool", "clean"}, "This is a cool and clean apple 1."),
        ({"hot", "sliced"}, "This is a hot sliced apple 1."),
        ({"cool", "sliced"}, "This is a cool sliced apple 1."),
        ({"clean", "sliced"}, "This is a clean sliced apple 1."),
        ({"hot", "clean", "sliced"}, "This is a hot and clean sliced apple 1."),
        ({"cool", "clean", "sliced"}, "This is a cool and clean sliced apple 1."),
    ]
    env.house.held = "apple 1"
    for adjectives, reply in seen:
        env.house.states = {(adjective, "apple 1") for adjective in adjectives}
        assert env.step("examine apple 1").observation == reply


def test_older_put_works_with_its_own_reply():
    replay(at(Goal("heat", "apple", "desk")), TABLES["older put"])


def test_the_dialect_of_agentgyms_server():
    """alfworld 0.3.3 has put, not move or help, and AgentGym removes `You arrive at loc 3. `. The prompts teach it."""
    env = at(Goal("heat", "apple", "countertop"), dialect="0.3", max_turns=30)
    replay(env, TABLES["dialect of AgentGym's server"])
    env.step("take apple 1 from countertop 1")
    assert "put apple 1 in/on countertop 1" in env.admissible()
    assert not {"help", "move apple 1 to countertop 1"} & {*env.admissible()}
    env.step("put apple 1 in/on countertop 1")
    step = expert(env)[-1]
    assert step.info["success"]
    for prompt in ("native", "short"):
        text = str(Env(Config(dialect="0.3", prompt=prompt)).reset(0))
        assert "put X in/on R" in text and "move" not in text and "help" not in text


KITCHEN = Room(
    spots={"coffeemachine 1": 0, "diningtable 1": 1, "fridge 1": 2, "sinkbasin 1": 3},
    inside={"coffeemachine 1": [], "diningtable 1": ["apple 1", "mug 1"], "fridge 1": ["mug 2"], "sinkbasin 1": []},
)


def test_the_guides_example_totals_two():
    env = at(Goal("clean", "mug", "coffeemachine"), KITCHEN)
    actions = ["goto[table]", "take[mug]", "goto[sink]", "clean[mug]", "goto[coffee machine]", "put[mug]"]
    steps = [env.step(action) for action in actions]
    assert [step.info["shaped"] for step in steps] == [0.2, 0.2, 0.2, 0.2, 0.2, 1.0]
    assert sum(step.info["shaped"] for step in steps) == 2.0
    assert all(step.info["valid"] for step in steps)
    assert [step.reward for step in steps] == [0.0] * 5 + [1.0]
    assert steps[-1].observation == "You put the mug 1 in/on the coffeemachine 1."
    assert steps[-1].terminated and steps[-1].info["outcome"] == "correct"


def test_brackets():
    env = at(Goal("heat", "apple", "desk"))
    replay(env, TABLES["brackets"])
    assert env.house.held == "knife 1"


def test_native_reads_everything_after_the_last_marker():
    env = at(Goal("heat", "apple", "desk"), prompt="native")
    said = lambda reply: env.step(reply).observation  # noqa: E731
    assert said("Thought:\ndesk\n\nAction:\ngo to desk 1").startswith("You arrive at desk 1.")
    assert said("Action: look\nAction:   inventory  \n") == "You are not carrying anything."
    assert said("inventory") == "Nothing happens."
    assert said("") == said("Action:") == said("Action: \n ") == "Nothing happens."
    assert said("Action: inventory\nand then I rest") == "Nothing happens."
    assert said("Action: goto[fridge]").startswith("You arrive at fridge 1.")
    assert said("Action: look" + " " * MAX_ACTION + "x") == "You are facing the fridge 1. Next to it, you see nothing."


def test_short_reads_the_first_line():
    env = at(Goal("heat", "apple", "desk"))
    assert env.step("\n inventory \ngo to desk 1").observation == "You are not carrying anything."
    assert not env.house.near
    assert env.step("look" + " " * MAX_ACTION + "x").info["valid"]  # lines that are not read do not count


def test_prompts():
    native = Env(Config(difficulty="3")).reset(seed=4)
    env = Env(Config(difficulty="3", prompt="short"))
    (short,) = env.reset(seed=4)
    assert [message["role"] for message in native] == ["user", "assistant", "user"]
    instruction, around, task = short["content"].split("\n")
    assert "take X from R" in instruction and short["content"].isascii()
    assert around.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert task.startswith("Your task is to: ") and task.endswith(".")
    assert native[2]["content"] == f"{around}\n{task}\nAVAILABLE ACTIONS: {','.join(env.admissible())}"
    assert env.admissible()[-3:] == ["help", "inventory", "look"]
    assert max(len(Env(Config(difficulty="1", prompt="short")).reset(i)[0]["content"]) for i in range(50)) < 300


@pytest.mark.parametrize(("goal", "actions"), TABLES["won"])
def test_task_is_done_exactly_at_its_last_action(goal, actions):
    env = at(Goal(*goal.split()))
    steps = [env.step(action.strip()) for action in actions.split(";")]
    assert all(step.info["valid"] for step in steps)
    assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
    assert [step.terminated for step in steps] == [step.info["success"] for step in steps]
    assert not env.running


def names(env: Env) -> list[str]:
    return [*env.room.spots, *(thing for things in env.room.inside.values() for thing in things)]


@pytest.mark.all_only
def test_listed_actions_are_exactly_the_possible_ones():
    rng = Random(0)
    for seed in range(12):
        env = Env(Config(difficulty="3", prompt="short"))
        env.reset(seed)
        for _ in range(20):
            listed = env.admissible()
            assert listed == sorted(set(listed))
            tried = {rng.choice(listed)}
            a, b = rng.sample(names(env), 2)
            tried |= {f"go to {a}", f"open {a}", f"close {a}", f"use {a}", f"examine {a}", f"take {a} from {b}"}
            tried |= {f"{verb} {a} with {b}" for verb in ("clean", "heat", "cool", "slice")} | {f"move {a} to {b}"}
            for action in sorted(tried):
                step = deepcopy(env).step(action)
                assert step.info["valid"] == (action in listed) == (step.observation != "Nothing happens.")
            env.step(rng.choice(listed))
            if not env.running:
                break


def test_the_tables():
    """The parity test compares the tables with the original's; here their digests are compared."""
    table = "\n".join(f"{place}: {' '.join(sorted(CONTAINS[place]))}" for place in sorted(CONTAINS))
    tools = "\n".join(f"{verb} {tool}: {' '.join(sorted(able))}" for verb, (tool, _, able) in sorted(TOOLS.items()))
    digests = [sha256(text.encode()).hexdigest()[:16] for text in (table, tools)]
    assert digests == ["57bfea964d8fe379", "5eef496b5ed86676"]
    microwave = {"apple", "bowl", "bread", "cup", "egg", "glassbottle", "mug", "plate", "potato", "tomato"}
    assert CONTAINS["microwave"] == microwave and CONTAINS["coffeemachine"] == {"mug"}
    assert CONTAINS["fridge"] - CONTAINS["microwave"] == {"lettuce", "pan", "pot", "winebottle"}
    assert CONTAINS["safe"] == {"cd", "cellphone", "creditcard", "keychain", "statue", "vase", "watch"}
    assert TOOLS["heat"][2] == {"apple", "bread", "cup", "egg", "mug", "plate", "potato", "tomato"}
    assert TOOLS["cool"][2] - TOOLS["heat"][2] == {"bowl", "lettuce", "pan", "pot", "winebottle"}
    assert len(TOOLS["clean"][2]) == 21


@pytest.mark.all_only
@pytest.mark.parametrize("level", LEVELS)
def test_rooms_obey_the_tables_and_contain_the_goals_objects(level):
    env, shared = Env(Config(difficulty=level)), 0
    tasks = set()
    for seed in range(60):
        for split in SPLITS:
            env.reset(seed, split)
            task, kind, target = env.goal
            tasks.add(task)
            places, things = list(env.room.spots), names(env)[len(env.room.spots) :]
            assert places == sorted(places, key=order) and list(env.room.inside) == places
            assert len(set(things)) == len(things)
            for place, inside in env.room.inside.items():
                assert inside == sorted(inside, key=order)
                for thing in inside:
                    room = LAMPS.get(kind_of(thing), ())
                    assert kind_of(place) in room or kind_of(thing) in CONTAINS[kind_of(place)]
                    assert kind_of(thing) != kind or kind_of(place) != target
            assert sum(kind_of(thing) == kind for thing in things) >= 1 + (task == "two")
            assert target in map(kind_of, things if task == "look" else places)
            assert task not in TOOLS or TOOLS[task][0] in map(kind_of, places)
            if LEVELS[level].receptacles:
                low, high = LEVELS[level].receptacles
                assert low <= len(places) <= high
            shared += len(set(env.room.spots.values())) < len(places)
            assert level != "1" or (len(things) <= 4 and not OPENABLE & set(map(kind_of, places)))
    assert tasks == set(LEVELS[level].tasks)
    assert bool(shared) == bool(LEVELS[level].shared)


def test_rooms_and_wordings_vary_with_the_seed():
    env, texts, wordings = Env(Config(difficulty="1", prompt="short")), set(), set()
    for seed in range(300):
        texts.add(text := env.reset(seed)[0]["content"])
        for template in TEMPLATES[env.goal.task]:
            if template.format(kind=env.goal.kind, target=env.goal.target) in text:
                wordings.add(template)
    assert len(texts) > 250
    assert wordings == {*TEMPLATES["place"], *TEMPLATES["look"]}


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_every_task_in_time(level, prompt):
    env = Env(Config(difficulty=level, prompt=prompt))
    for seed in range(100):
        env.reset(seed, SPLITS[seed % 3])
        steps = expert(env)
        assert steps[-1].info["success"] and all(step.info["valid"] for step in steps), (seed, env.task)
        assert len(steps) <= LEVELS[level].turns <= 30
        assert not any(step.reward for step in steps[:-1]) and steps[-1].reward == 1.0


def test_the_easiest_level_takes_three_or_four_actions():
    env, lengths = Env(Config(difficulty="1", prompt="short")), []
    for seed in range(100):
        env.reset(seed)
        lengths.append(len(expert(env)))
    assert set(lengths) == {3, 4}


@pytest.mark.all_only
def test_expert_continues_from_any_state():
    rng = Random(1)
    for seed in range(150):
        env = Env(Config(difficulty="2,3,original", prompt="short", max_turns=10**6))
        env.reset(seed)
        for _ in range(rng.randint(1, 60)):
            local = [command for command in env.admissible() if not command.startswith("go to")]
            env.step(rng.choice(rng.choice([local, env.admissible(), [env.oracle()]])))
            if not env.running:
                break
        else:
            assert len(expert(env)) < 100


def test_expert_gathers_objects_from_two_places():
    room = Room({"desk 2": 0, "desk 1": 1, "shelf 1": 2}, {"desk 2": ["pen 2"], "desk 1": ["pen 1"], "shelf 1": []})
    for start in ("shelf 1", "desk 1", "desk 2"):
        env = at(Goal("two", "pen", "desk"), room)
        env.step("go to desk 1")
        env.step("go to desk 2")
        env.step(f"go to {start}")
        assert len(expert(env)) <= 4


def test_expert_uses_only_what_it_has_seen():
    """Moving an unseen object does not change the expert's action."""
    goal = Goal("place", "cd", "cabinet")
    moved = deepcopy(HOUSE)
    moved.inside["desk 1"].remove("cd 1")
    moved.inside["countertop 1"].insert(2, "cd 1")
    one, other = at(goal), at(goal, moved)
    assert one.oracle() == other.oracle() == "go to countertop 1"
    one.step("go to countertop 1")
    other.step("go to countertop 1")
    assert (one.oracle(), other.oracle()) == ("go to desk 1", "take cd 1 from countertop 1")


def test_shaped_reward_pays_each_stage_once():
    env = at(Goal("clean", "mug", "cabinet"))
    paid = TABLES["paid"]
    for action, shaped in paid:
        step = env.step(action)
        assert step.info["shaped"] == shaped, action
        assert step.reward == float(shaped == 1.0)


def test_shaped_reward_pays_stages_of_the_second_object():
    env = at(Goal("two", "mug", "desk"))
    first = "go to cabinet 1; open cabinet 1; take mug 1 from cabinet 1; go to desk 1; move mug 1 to desk 1"
    assert total(env, first.split("; ")) == pytest.approx(4 * 0.2)
    again = "take mug 1 from desk 1; go to cabinet 1; go to desk 1; move mug 1 to desk 1; take mug 1 from desk 1"
    assert total(env, again.split("; ") + ["move mug 1 to desk 1"]) == 0.0
    second = "go to cabinet 1; open cabinet 2; take mug 2 from cabinet 2; go to desk 1; move mug 2 to desk 1"
    assert total(env, second.split("; ")) == pytest.approx(3 * 0.2 + 1.0)


@pytest.mark.all_only
@pytest.mark.parametrize("task", TEMPLATES)
def test_shaped_reward_without_completion_is_capped(task):
    """Wandering, repeating and toggling earn at most a fifth per stage."""
    stages = {"place": 4, "look": 3, "two": 9}.get(task, 6)
    rng, sums = Random(task), []
    env = Env(Config(difficulty="3", prompt="short", max_turns=10**6))
    for seed in range(60):
        env.reset(seed)
        if env.goal.task != task or len(sums) == 3:
            continue
        sums.append(0.0)
        for _ in range(150):
            moves = [action for action in env.admissible() if not action.startswith(("examine", "help", "look"))]
            action = rng.choice([env.oracle(), rng.choice(moves)])
            if not deepcopy(env).step(action).terminated:
                sums[-1] += env.step(action).info["shaped"]
    assert len(sums) == 3 and 0.2 * (stages - 3) < max(sums) < 0.2 * stages + 1e-9


def test_splits_share_no_goal_and_have_all_task_types():
    split_by_goal = {}
    for (level, split, task), goals in GOALS.items():
        assert task in LEVELS[level].tasks and goals
        for goal, rooms in goals.items():
            assert goal.task == task and set(rooms) <= set(ROOMS)
            assert split_by_goal.setdefault(goal, split) == split
    wanted = {(level, split, task) for level in LEVELS for split in SPLITS for task in LEVELS[level].tasks}
    assert set(GOALS) == wanted
    assert sum(map(len, (GOALS["1", "train", task] for task in LEVELS["1"].tasks))) > 300


@pytest.mark.all_only
def test_difficulty_is_drawn_from_the_list_by_weight():
    env, small = Env(Config(difficulty="1,1,3")), 0
    for seed in range(300):
        env.reset(seed)
        small += len(env.room.spots) == 2
    assert small == pytest.approx(200, abs=35)


HOSTILE = [
    *test_envs.HOSTILE,
    "\uff47\uff4f to desk 1",
    "go to desk \u0661",
    "go to desk 1\x00",
    "go to " * 20_000,
    "put " + " in/on" * 20_000,
    "put " * 30_000 + " in/on desk 1",
    "goto[" * 25_000,
    "goto[" + "a" * 100_000 + "]",
    "goto[" + " " * 100_000 + "]",
    "take[]from[]",
]


def state(env: Env) -> dict:
    """Return everything that an action may change, except the number of turns."""
    kept = {key: value for key, value in vars(env).items() if key not in ("turns", "config", "house")}
    return kept | vars(env.house)


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
def test_hostile_replies_change_nothing(prompt):
    env = at(Goal("heat", "apple", "desk"), prompt=prompt)
    env.step("Action: go to countertop 1" if prompt == "native" else "go to countertop 1")
    before = deepcopy(state(env))
    for text in HOSTILE:
        for reply in (text, f"Action: {text}"):
            step = env.step(reply)
            assert step.observation == "Nothing happens." and not step.info["valid"] and not step.info["shaped"]
    assert state(env) == before


WORDS = re.findall(r"\S+", "go to take from move put in/on goto[ take[ ] Action: mug 1 apple desk cabinet 2 use look")
REPLIES = st.one_of(st.text(), st.lists(st.sampled_from([*WORDS, "\n"]), max_size=12).map(" ".join))


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@settings(max_examples=40, deadline=None, database=None)
@given(replies=st.lists(REPLIES, max_size=8))
def test_any_reply_gets_an_observation(prompt, replies):
    env = at(Goal("two", "mug", "desk"), prompt=prompt)
    for reply in replies:
        step = env.step(reply)
        assert step.observation and len(step.observation) < 1200
        assert step.info["valid"] == (step.observation != "Nothing happens.")
        assert step.info["shaped"] in (0.0, 0.2, 1.0)
        if not env.running:
            env.begin(env.goal, env.room)


CASES = [
    ("1", "short", "train", 1),
    ("1", "native", "test", 3),
    ("2", "short", "train", 8),
    ("2", "native", "val", 4),
    ("3", "short", "train", 6),
    ("3", "native", "train", 7),
    ("3", "short", "train", 5),
    ("original", "native", "train", 1),
    ("original", "short", "val", 2),
    ("original", "native", "val", 30),
]


def episode(difficulty: str, prompt: str, split: str, seed: int) -> Iterator[dict]:
    """Yield the cases of an episode of the expert with detours."""
    env, rng = Env(Config(difficulty=difficulty, prompt=prompt)), Random(seed)
    yield golden.start(env.reset(seed, split), seed, split, difficulty=difficulty, prompt=prompt)
    yield golden.case("task", env.task)
    while env.running:
        expert = env.oracle().rpartition("Action:\n")[2]
        near = [command for command in env.admissible() if not command.startswith(("go to", "help"))]
        wild = [f"go to {rng.choice(list(env.room.spots))}", "inventory", "take mug 1 from desk 1", "dance", *near]
        action = expert if rng.random() < 0.7 else rng.choice(wild)
        if rng.random() < 0.3:
            action = re.sub("move (.*) to (.*)", r"put \1 in/on \2", action)
        yield golden.action(action, env.step(f"Action: {action}" if prompt == "native" else action))


def transcript() -> list[dict]:
    return [case for options in CASES for case in episode(*options)]


def test_an_alias_is_the_name_of_one_kind():
    names = [alias for aliases in ALIASES.values() for alias in aliases]
    assert len(names) == len(set(names)) == 3 * len(ALIASES)
    kinds = {*CONTAINS, *LAMPS, *(kind for kinds in CONTAINS.values() for kind in kinds)}
    assert kinds - set(ALIASES) == {*LAMPS, *(tool for tool, _, _ in TOOLS.values())}


@pytest.mark.parametrize("level", LEVELS)
def test_a_fresh_room_is_one_of_the_tables_under_other_names(level):
    env, changed = Env(Config(difficulty=level, tasks="fresh")), 0
    for seed in range(20):
        env.reset(seed)
        for place, things in env.room.inside.items():
            assert things == sorted(things, key=order)
            assert all(kind_of(thing) in {*CONTAINS[kind_of(place)], *LAMPS} for thing in things)
            changed += sum(kind_of(name) != order(name)[0] for name in [place, *things])
        assert list(env.room.spots) == list(env.room.inside) == sorted(env.room.spots, key=order)
    assert changed > 20
