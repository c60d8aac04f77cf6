"""reward.progress: the expert's remaining moves before and after each turn, in every environment of several turns."""

import pytest
from tqdm import tqdm

import envs
from models import load_model, load_tokenizer
from rl import reward
from rl.config.words import parse
from rl.rollout import rollout
from rl.tasks import make_env, make_tasks

SEVERAL_TURNS = ["textcraft", "alfworld", "babyai", "webshop", "sciworld", "os_interaction", "db_bench", "tau_retail"]


def measured(name: str, *words: str) -> envs.Environment:
    return make_env(parse([f"env={name}", "reward.progress=0.1", *words]), name)


@pytest.mark.parametrize("name", SEVERAL_TURNS)
def test_each_move_of_the_expert_is_progress_of_one(name):
    env, over, found = measured(name), False, []
    env.reset(1, "train")
    while not over:
        step = env.step(env.oracle())
        found.append(step.info["progress"])
        over = step.terminated or step.truncated
    assert step.info["success"] and found == [1] * len(found)


def test_short_episodes_are_paid_for_coming_near():
    """As a horizon curriculum or a low max_turns has them: more moves are missing than there are turns."""
    env = measured("textcraft", "textcraft.max_turns=2", "textcraft.difficulty=3")
    env.reset(0, "train")
    steps = [env.step(env.oracle()) for _ in range(2)]
    assert steps[-1].truncated and [step.info["progress"] for step in steps] == [1, 1]


def test_useless_turns_are_no_progress_even_at_the_turn_limit():
    """A count that ends at the turn limit would fall by one in each turn."""
    env = measured("textcraft", "textcraft.max_turns=6", "textcraft.difficulty=1")
    env.reset(0, "train")
    assert reward.moves_left("textcraft", vars(env.config), (0, "train"), []) < 6
    steps = [env.step("inventory") for _ in range(6)]
    assert steps[-1].truncated and [step.info["progress"] for step in steps] == [0] * 6


def test_a_wrong_end_is_as_far_as_max_turns():
    sat, db_bench = {"prompt": "short", "difficulty": "1"}, {"prompt": "short", "difficulty": "1", "max_turns": 7}
    assert [reward.moves_left("sat", sat, (0, "train"), said) for said in ([], ["no"])] == [1, 1]
    db_bench["skill"] = "select"
    left = [reward.moves_left("db_bench", db_bench, (0, "train"), said) for said in ([], ["answer: none of them"])]
    assert left == [2, 7]


def test_rewards_of_an_episode_add_up_to_the_moves_that_it_saved():
    words = ["textcraft.max_turns=4", "max_new_tokens=12", "textcraft.difficulty=1", "max_len=600"]
    model, tokenizer = load_model("tiny").eval(), load_tokenizer("tiny")
    cfg, plain = parse([*words, "reward.progress=0.5", "reward.scale=2"]), parse([*words, "reward.scale=2"])
    tasks, silent = make_tasks(cfg, 0, 6, 1, "train", 0), tqdm(disable=True)
    with_progress, without = (rollout(model, tokenizer, tasks, c, 1.0, silent) for c in (cfg, plain))
    shaped = 0
    for task, a, b in zip(tasks, with_progress, without, strict=True):
        assert a.ids_T == b.ids_T, "the reward does not change what is sampled"
        said = [tokenizer.answer(a.ids_T[turn.start : turn.stop]) for turn in a.turns]
        options = vars(cfg.environments["textcraft"])
        first, last = (reward.moves_left("textcraft", options, (task.seed, task.split), x) for x in ([], said))
        assert a.score == pytest.approx(b.score + 2 * 0.5 * (first - last)) and (last == 0) == a.success
        shaped += first != last
    assert shaped, "some episode made progress"
