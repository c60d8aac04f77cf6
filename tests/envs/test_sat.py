"""SAT: the original's formulas bit for bit, grading by the clauses, exact prompts, levels and splits."""

import itertools
import random
import re
from collections import Counter
from hashlib import sha256

import one_turn
import pytest
from cases import cases
from conftest import no_hang
from one_turn import answered

import envs
from envs import __main__ as cli
from envs.affine import sat
from envs.affine.sat import LEVELS, STRIDE, Config, Env, canonical, formula
from envs.common import SPLITS, split_of
from models.chat.tokenizer import load_tokenizer

CASES = cases("sat")

OR = "\N{LOGICAL OR}"


def at(clauses: list[list[int]], n: int, **options) -> Env:
    """Return an environment whose episode has these clauses."""
    env = Env(Config(**options))
    env.reset(seed=0)
    env.secret, env.clauses = dict.fromkeys(range(1, n + 1), True), clauses
    return env


def grade(answer: str, clauses: list[list[int]], n: int = 3) -> tuple[float, bool]:
    """Return the reward of an answer, and whether it was valid."""
    step = answered(at(clauses, n), answer)
    return step.reward, step.info["valid"]


def read_symbols(text: str) -> list[list[int]]:
    """Return the clauses that a native prompt shows."""
    clauses = re.findall(r"\(([^)]*)\)", text.splitlines()[1])
    return [[-int(w[2:]) if w[0] == "¬" else int(w[1:]) for w in c.split(f" {OR} ")] for c in clauses]


def read_lines(text: str) -> list[list[int]]:
    """Return the clauses that a short prompt shows."""
    return [[int(word) for word in line.split()] for line in text.splitlines()[1:]]


def straight_line(task_id: int, n: int, k: int, ratio: float) -> tuple[list[bool], list[list[int]]]:
    """Return the formula of the draws in order: n values; per clause k variables, the true one, the other signs."""
    r = random.Random(task_id)
    values = [r.choice([True, False]) for _ in range(n)]
    clauses = []
    for _ in range(int(ratio * n)):
        drawn = r.sample([i + 1 for i in range(n)], k)
        kept = r.choice(drawn)
        clause = []
        for variable in drawn:
            positive = values[variable - 1] if variable == kept else r.choice([True, False])
            clause.append(variable if positive else -variable)
        clauses.append(clause)
    return values, clauses


@pytest.mark.parametrize(("n", "k", "ratio"), [(15, 10, 4.26), (10, 3, 4.2), (20, 5, 4.2), (3, 2, 1.7), (1, 1, 1.0)])
def test_formulas_follow_the_originals_order_of_draws(n, k, ratio):
    for task_id in [*range(50), STRIDE + 7, 10**12]:
        solution, clauses = formula(task_id, n, k, int(ratio * n))
        assert (list(solution.values()), clauses) == straight_line(task_id, n, k, ratio)


def test_golden_formulas_of_the_originals_parameters():
    solution, clauses = formula(0, 15, 10, 63)
    assert "".join(str(int(value)) for value in solution.values()) == "001000000110110"
    assert clauses[0] == [-15, 9, -12, -10, -3, -5, 2, -14, -7, -6]
    assert clauses[-1] == [-4, 3, -8, 2, -7, 11, -5, 9, -15, 14]
    text = repr([formula(task_id, 15, 10, 63)[1] for task_id in range(100)])
    assert sha256(text.encode()).hexdigest() == "a6522710602f81f02b1556ac7120a0e71328bdf36862e4ab833b19492d4c43b5"


@pytest.mark.parametrize("split", SPLITS)
def test_episode_is_the_first_formula_of_its_seed_in_the_split(split):
    env = Env(Config(difficulty="original"))
    own = 0
    for seed in range(12):
        (message,) = env.reset(seed, split)
        tries = (env.task_id - seed) // STRIDE
        formulas = [straight_line(seed + i * STRIDE, 15, 10, 4.26)[1] for i in range(tries + 1)]
        assert read_symbols(message["content"]) == formulas[-1] and len(formulas[-1]) == 63
        assert [split_of(canonical(f)) == split for f in formulas] == [False] * tries + [True]
        own += env.task_id == seed
    assert own > 6 if split == "train" else own < 6


def test_prompts_are_exact():
    env = Env(Config(n=3, k=2, ratio=1))
    (message,) = env.reset(seed=0)
    assert message["role"] == "user"
    assert message["content"] == (
        "Find a satisfying assignment for the following 2-SAT formula over variables x1..x3:\n"
        f"(x3 {OR} x1) ∧ (¬x2 {OR} ¬x3) ∧ (¬x1 {OR} ¬x2)\n"
        "Answer with comma-separated assignments in the form `x1=True, x2=False, ...`, "
        "or with `UNSAT` if there are none."
    )
    assert env.oracle() == "x1=False, x2=False, x3=True"
    env = Env(Config(n=3, k=2, ratio=1, prompt="short"))
    (message,) = env.reset(seed=0)
    assert message["content"] == (
        "Reply x1=0 x2=1 and so on to x3. Make one in each line right: 2 is x2=1, -2 is x2=0.\n3 1\n-2 -3\n-1 -2"
    )
    assert env.oracle() == "x1=0 x2=0 x3=1"


EPISODES = [
    ({"difficulty": "1", "prompt": "native"}, 3, ["UNSAT", "x1=True", "oracle"]),
    ({"difficulty": "2", "prompt": "short"}, 1, ["x1=1 x2=1 x3=1 x4=1 x5=1", "oracle"]),
    ({"difficulty": "guide", "prompt": "native"}, 4, ["oracle"]),
]


def transcript() -> list[dict]:
    return one_turn.transcript(sat, EPISODES)


@pytest.mark.parametrize("level", LEVELS)
def test_both_prompts_show_the_formula_and_the_oracle_solves_it(level):
    native, short = (Env(Config(difficulty=level, prompt=prompt)) for prompt in ("native", "short"))
    for seed, split in itertools.product(range(8), SPLITS):
        (seen,), (seen_short,) = native.reset(seed, split), short.reset(seed, split)
        assert read_symbols(seen["content"]) == read_lines(seen_short["content"]) == native.clauses
        for env in (native, short):
            step = env.step(env.oracle())
            assert step.reward == 1 and step.info["valid"]
            assert step.observation == f"{len(env.clauses)} of {len(env.clauses)} clauses are satisfied."


def test_every_satisfying_assignment_counts_and_no_other():
    others = wrong = 0
    for seed in range(10):
        env = Env(Config(difficulty="1,2"))
        clauses = read_symbols(env.reset(seed)[0]["content"])
        for values in itertools.product((True, False), repeat=len(env.secret)):
            literals = {v if value else -v for v, value in enumerate(values, 1)}
            holds = all(literals & set(clause) for clause in clauses)
            step = env.step(", ".join(f"x{v}={value}" for v, value in enumerate(values, 1)))
            assert step.reward == holds and step.info["outcome"] == ("correct" if holds else "incorrect")
            others += holds and list(values) != list(env.secret.values())
            wrong += not holds
            env.reset(seed)
    assert others > 20 and wrong > 100


@pytest.mark.parametrize(("answer", "reward", "valid"), CASES["graded"])
def test_answers(answer, reward, valid):
    assert grade(answer, [[1], [-2], [3, 1], [3]]) == (reward, valid)


def test_a_missing_variable_makes_no_literal_true():
    assert grade("x1=1", [[-2, 3]]) == (0, True)
    assert grade("x1=1", [[2, -3]]) == (0, True)
    assert grade("x1=1", [[2, -3, 1]]) == (1, True)  # and is not needed where another literal is


def test_the_reply_counts_satisfied_clauses():
    clauses = [[1], [-2], [3, 1], [3]]
    for answer, count in (("x3=1", 2), ("x1=1 x2=1 x3=0", 2), ("x1=1 x2=0", 3), ("UNSAT", 0)):
        assert at(clauses, 3).step(answer).observation == f"{count} of 4 clauses are satisfied."


@pytest.mark.all_only
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("x" + "1" * 2_000_000 + "=True", (0, False)),
        ("x1=" * 500_000, (0, False)),
        ("x" * 2_000_000, (0, False)),
        ("x1=Tru" * 300_000, (0, False)),
        ("x\u0663" * 500_000, (0, False)),
        ("x1=False, " * 200_000 + "x1=True, x2=0", (1, True)),
        ("x1=True, x2=0, " * 100_000 + "x1=False", (0, True)),
        (" ".join(f"x{i}=1" for i in range(200_000)) + " x2=0", (1, True)),
        ("UNSAT " * 300_000, (0, False)),
        ("\ud800\x00<|im_end|>" * 100_000 + "x1=1 x2=0", (1, True)),
    ],
    ids=range(10),
)
def test_huge_replies_are_graded_in_linear_time(answer, expected):
    with no_hang():  # quadratic time in two million characters would be hours
        assert grade(answer, [[1, 2], [-2]]) == expected


@pytest.mark.all_only
def test_sizes_of_the_levels_and_of_the_options():
    def drawn(**options) -> Counter:
        env, sizes = Env(Config(**options)), Counter()
        for seed in range(300):
            env.reset(seed)
            (k,) = {len(clause) for clause in env.clauses}
            sizes[len(env.secret), k, len(env.clauses)] += 1
        return sizes

    assert set(drawn(difficulty=1)) == {(3, 2, 5)}
    assert set(drawn(difficulty="original")) == {(15, 10, 63)}
    guide = drawn()
    assert {n for n, _, _ in guide} == set(range(10, 21)) and {k for _, k, _ in guide} == {3, 4, 5}
    assert all(m == int(4.2 * n) for n, _, m in guide)
    mixed = drawn(difficulty="1, 1, 2")
    assert set(mixed) == {(3, 2, 5), (5, 3, 15)} and 160 < mixed[3, 2, 5] < 240
    assert set(drawn(difficulty="original", n=4, k="1-2", ratio=2)) == {(4, 1, 8), (4, 2, 8)}
    assert {m for _, _, m in drawn(n=10, ratio="2.0-2.5")} == {20, 21, 22, 23, 24}


@pytest.mark.all_only
def test_clauses_have_distinct_variables_and_a_solution():
    env, signs = Env(Config()), Counter()
    for seed in range(100):
        env.reset(seed)
        for clause in env.clauses:
            variables = [abs(literal) for literal in clause]
            assert len(set(variables)) == len(variables) and set(variables) <= set(env.secret)
            true = [env.secret[abs(literal)] == (literal > 0) for literal in clause]
            assert any(true)
            signs.update(true)
    assert 0.58 < signs[True] / signs.total() < 0.68  # a half, and half of the one in about four that is sure


def test_task_does_not_depend_on_order_in_the_formula():
    rng = random.Random(0)
    clauses = formula(3, 10, 4, 42)[1]
    shuffled = [rng.sample(clause, 4) for clause in rng.sample(clauses, 42)] + clauses[:1]
    assert shuffled != clauses and canonical(shuffled) == canonical(clauses)
    flipped = [[-clauses[0][0], *clauses[0][1:]], *clauses[1:]]
    assert canonical(flipped) != canonical(clauses)


@pytest.mark.all_only
def test_splits_of_the_smallest_level_share_no_formula():
    env, seen = Env(Config(difficulty="1")), {}
    for split in SPLITS:
        seen[split] = set()
        for seed in range(2000):
            env.reset(seed, split)
            seen[split].add(frozenset(map(frozenset, env.clauses)))
    train, val, test = (seen[split] for split in SPLITS)
    assert not train & val and not train & test and not val & test
    assert len(train) > 700 and len(val) > 90 and len(test) > 90


def test_a_split_without_a_formula_is_one_line():
    env = envs.make("sat", n=1, k=1, ratio=1)  # (x1) and (¬x1)
    there = {split_of(canonical([[1]])), split_of(canonical([[-1]]))}
    for split in SPLITS:
        if split in there:
            env.reset(0, split)
            assert split_of(env.task) == split
        else:
            with pytest.raises(ValueError, match=f"^no formula of n=1, k=1, ratio=1 is in split {split}: there are"):
                env.reset(0, split)
    assert len(there) < 3


@pytest.mark.all_only
def test_short_prompts_are_short_for_the_embedded_tokenizer():
    tokenizer = load_tokenizer("tiny")
    env = Env(Config(difficulty="1", prompt="short"))
    for seed in range(50):
        messages = env.reset(seed)
        assert messages[0]["content"].isascii()
        assert len(tokenizer.prompt(messages)) < 120
        answer = tokenizer.reply(env.oracle())
        assert len(answer) < 20 and env.step(tokenizer.decode(answer)).reward == 1


def test_demonstrations_and_play_at_the_command_line(capsys, monkeypatch):
    cli.main(["sat", "demos=5", "seed=9", "difficulty=1", "prompt=short"])
    texts = capsys.readouterr().out.split("\n\n")
    assert texts.pop() == "" and len(texts) == 5
    for text in texts:
        *prompt, answer, reply = text.splitlines()
        said = {v if value == "1" else -v for v, value in enumerate(re.findall(r"=([01])", answer), 1)}
        assert reply == "5 of 5 clauses are satisfied." and len(said) == 3
        assert all(said & set(clause) for clause in read_lines("\n".join(prompt)))
    env = envs.make("sat", n=12)
    shown = env.reset(3)[0]["content"]
    lines = iter(["?\n", env.oracle() + "\n"])
    monkeypatch.setattr("sys.stdin.readline", lambda: next(lines))
    cli.main(["sat", "seed=3", "n=12"])
    text = capsys.readouterr().out
    assert text.startswith(shown) and env.oracle() in text
    assert text.endswith("reward 1, shaped 1, valid True\nover: correct\n")
