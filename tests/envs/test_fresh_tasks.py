"""Fresh tasks: as hard as the panel's, too many to be memorised, no task in two splits, and all of them solvable."""

import re
from dataclasses import replace
from functools import cache
from random import Random
from statistics import mean, stdev, variance

import pytest
from conftest import also_full
from experts import expert
from test_envs import over

import envs
from envs import common
from envs.affine import abd, programs
from envs.affine.inputs import WORDS
from envs.names import MadeUp
from envs.os_interaction.tasks import LEVELS, templates
from envs.os_interaction.tasks import WORDS as WORD_LISTS
from envs.planner.word_problems import LEVELS as PROBLEMS
from envs.planner.word_problems import NAMES
from envs.sciworld.labels import COLOURED, COLOURS, draw_labels, relabel

FRESH = ["os_interaction", "db_bench", "planner", "babyai", "sciworld", "abd"]
LEAST = 10_000  # tasks of a level in each split


@cache
def played(name: str, level: str, tasks: str, count: int) -> list[tuple[str, str, int, int]]:
    """Play the expert in all splits. Return (split, task, characters of the prompt, turns) of each episode."""
    env, found = envs.make(name, difficulty=level, tasks=tasks, prompt="short"), []
    for seed in range(count):
        split = common.SPLITS[seed % 3]
        size = sum(len(message["content"]) for message in env.reset(seed, split))
        steps = expert(env)
        unclear = [step.observation.startswith("Ambiguous request: ") for step in steps]  # SciWorld's equal seeds
        assert steps[-1].info["success"], (seed, env.task)
        assert all(step.info["valid"] or asked for step, asked in zip(steps, unclear, strict=True)), (seed, env.task)
        found.append((split, env.task, size, len(steps)))
    return found


@pytest.mark.parametrize("count", [6, pytest.param(200, marks=pytest.mark.all_only)])
@over(FRESH, by_level=True)
def test_the_expert_solves_fresh_tasks_and_splits_share_none(name, level, count):
    split_of = {}
    for split, task, _, _ in played(name, level, "fresh", count):
        assert common.split_of(task) == split == split_of.setdefault(task, split)


@pytest.mark.all_only
@over(FRESH, by_level=True)
def test_fresh_tasks_are_as_long_as_the_panels(name, level):
    panel, fresh = (played(name, level, tasks, 200) for tasks in common.TASKS)
    for what in (2, 3):  # characters, turns
        one, other = ([episode[what] for episode in episodes] for episodes in (panel, fresh))
        chance = 3 * ((variance(one) + variance(other)) / len(one)) ** 0.5  # three standard errors of the difference
        assert abs(mean(other) - mean(one)) <= max(0.04 * mean(one), chance)
        assert stdev(other) == pytest.approx(stdev(one), rel=0.25, abs=1)


@pytest.mark.all_only
@pytest.mark.parametrize("split", ["test", *also_full("val", "train")])
@over(FRESH, by_level=True)
def test_a_split_has_ten_thousand_fresh_tasks(name, level, split):
    """By the birthday problem: of n draws from N equally likely tasks, n (n - 1) / 2 N pairs are equal."""
    env, seen, equal, count = envs.make(name, difficulty=level, tasks="fresh"), {}, 0, 300
    for seed in range(count):
        env.reset(seed, split)
        equal += seen.get(env.task, 0)
        seen[env.task] = seen.get(env.task, 0) + 1
    assert count * (count - 1) / 2 >= equal * LEAST


@over(FRESH)
def test_tasks_is_panel_unless_it_is_chosen(name):
    chosen, default = envs.make(name, tasks="panel"), envs.make(name)
    assert chosen.config == default.config and chosen.reset(5) == default.reset(5) and chosen.task == default.task
    assert envs.make(name, tasks="fresh").reset(5) != default.reset(5)
    with pytest.raises(ValueError, match="tasks must be 'panel' or 'fresh', not 'new'"):
        envs.make(name, tasks="new")


@over(name for name in FRESH if name not in ("babyai", "sciworld"))
def test_fresh_tasks_are_refused_beside_a_file(name):
    with pytest.raises(ValueError, match="tasks=fresh makes up tasks, and data=x"):
        envs.make(name, tasks="fresh", data="x.json")


def test_made_up_words_look_like_the_known_ones():
    known = [f"{'abcdefghij'[i // 10]}{'x' * (3 + i % 5)}{i}" for i in range(100)]
    for seed in range(20):
        made_up = MadeUp(Random(seed))
        words = [made_up(word, r"\w+") for word in known]
        assert [*map(len, words)] == [*map(len, known)] and [made_up(word, r"\w+") for word in known] == words
        assert not any(one in other for one in words for other in words if one is not other)
        assert all(re.fullmatch("[aeiou]?([bdfgklmnprtvz][aeiou])+[bkmpvxz]", word) for word in words)
    assert made_up("Ab AB ab") == made_up("ab").capitalize() + f" {made_up('ab').upper()} {made_up('ab')}"
    assert len(made_up("ab")) == 4 and len(MadeUp(Random(0), 3)("ab")) == 3


def test_fresh_tasks_of_os_interaction_have_no_known_name():
    """The instruction and the preparation reveal all that a solution needs: test_os_interaction.py."""
    known = {word for kind in ("WORD", "STEM", "USER", "GROUP") for word in WORD_LISTS[kind]}
    for template in (template for level in LEVELS for template in templates(level)):
        task = template.draw(Random(0), fresh=True)
        assert task.key == "os_interaction:" + "\n".join((task.first, *task.init))
        fixed, words = (set(re.findall("[a-z]+", f"{each}")) for each in (template, task))
        assert not (words - fixed) & known


def test_the_canonical_task_of_db_bench_has_its_rows():
    env = envs.make("db_bench", tasks="fresh", difficulty="2")
    env.reset(0)
    goal = env.goal
    (name, _), *others = goal.columns
    changed = [replace(goal, rows=goal.rows[::-1]), replace(goal, columns=[(name, "INT"), *others])]
    assert len({task.canonical for task in (goal, *changed)}) == 3
    assert replace(goal, fresh=False).canonical == replace(changed[0], fresh=False).canonical


def test_fresh_problems_keep_their_meaning():
    for template in (template for level in PROBLEMS.values() for template in level):
        problem = template.draw(Random(1), fresh=True)
        own = set(re.findall(r"\d+", problem.question)) - set(re.findall(r"\d+", template.text))
        assert own <= set(problem.task.split(":")[2:]) and f"#### {problem.truth:.0f}" in problem.answer
        assert len(problem.question.split()) == len(template.text.split())
        assert not set(NAMES) & set(problem.question.split())


def test_babyais_own_colours_are_unknown_in_a_fresh_task():
    env = envs.make("babyai", tasks="fresh", difficulty="1", prompt="short")
    env.reset(2)
    own, plain = env.oracle(), env._renamed(env.oracle())
    assert own != plain and not re.search("red|green|blue|purple|yellow|grey", own)
    assert not env.step(plain).info["valid"] and env.step(own).info["valid"]


def test_sciworlds_labels_change_places_both_ways():
    labels = draw_labels(MadeUp(Random(0)))
    text = "\n".join([*(f"a {colour} {thing}" for colour in COLOURS for thing in COLOURED), "Peanuts and salt", "jam"])
    assert relabel(relabel(text, labels), labels) == text and not re.search(
        "red|peanut|salt|jam", relabel(text, labels)
    )
    same = "a blue jay, orange juice, red paint, soap, a light bulb"
    assert relabel(same, labels) == same and relabel(text, {}) == text


def test_abds_renamed_programs_print_the_same():
    rng, changed = Random(0), 0
    drawn = [each.draw(rng) for level in (1, 2, 3) for each in programs.templates(level, functions=False)]
    for program in drawn:
        given, other = program.given(rng), abd.renamed(program.source, rng)
        assert programs.output(other, given) == programs.output(program.source, given)
        changed += other != program.source
    assert changed > 0.9 * len(drawn)  # a few have no variable, or get the same letter
    assert re.fullmatch(r"(\w) = 'x'\.count\(1\)\nfor _ in \1: _", abd.renamed("x = 'x'.count(1)\nfor _ in x: _", rng))


def test_abds_fresh_inputs_have_no_known_word():
    env = envs.make("abd", tasks="fresh", difficulty="2,3", prompt="short")
    for seed in range(60):
        env.reset(seed)
        assert not set(re.findall("[a-z]+", env.input)) & {*WORDS}
