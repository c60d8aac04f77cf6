"""env=qa: questions of one's own file. Rules of matching, own scorers, splits, files with mistakes, runs."""

import json
import math
import re
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import golden
import pytest
import torch
from cases import cases
from conftest import metrics_of, reference, run_program
from hypothesis import given
from hypothesis import strategies as st
from test_envs import HOSTILE

import envs
import lora
import train
from envs import qa, rows, scorer
from envs.answers import final_number
from envs.common import SPLITS, split_of
from models import load_model
from rl.config.words import parse
from rl.evaluate import held_out_tasks
from rl.judge.adapter_settings import count_tasks
from rl.run import digests

CASES = cases("qa")

SUMS = [{"question": f"What is {i} + 2?", "answer": f"{i} + 2 = {i + 2}\n#### {i + 2}"} for i in range(60)]


def write(path: Path, given: list) -> str:
    """Write rows, or lines as they are; return the path."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in given))
    return str(path)


def made(folder: Path, given: list, **options) -> qa.Env:
    return envs.make("qa", data=write(folder / "rows.jsonl", given), **options)


def score(env: qa.Env, reply: str, seed: int = 0, split: str = "train") -> float:
    env.reset(seed, split)
    return env.step(reply).reward


@pytest.fixture
def own(tmp_path):
    """Return a function that makes an environment with a scorer of this code."""

    def with_scorer(code: str, given: list = SUMS, name: str = "score") -> qa.Env:
        (tmp_path / "scorer.py").write_text(code)
        qa.scorer.load.cache_clear()
        return made(tmp_path, given, match=f"{tmp_path}/scorer.py:{name}")

    return with_scorer


# Episodes


def test_an_episode_keeps_the_contract(tmp_path):
    env = made(tmp_path, SUMS, match="number")
    for call in (lambda: env.step("4"), env.oracle):
        with pytest.raises(RuntimeError, match="reset"):
            call()
    messages = env.reset(1, "train")
    assert messages == [{"role": "user", "content": env.row["question"]}] and env.row in SUMS
    assert split_of(env.task) == "train"
    step = env.step(env.oracle())
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    assert step.info == {"outcome": "correct", "success": True, "valid": True, "shaped": 1.0}
    with pytest.raises(RuntimeError, match="reset"):
        env.step("4")
    env.reset(1)
    step = env.step("none")
    assert step.info == {"outcome": "incorrect", "success": False, "valid": False, "shaped": 0.0}
    with pytest.raises(ValueError, match="split must be one of"):
        env.reset(0, "dev")


def test_seeds_play_each_question_of_a_split_once_in_order(tmp_path):
    env, seen = made(tmp_path, SUMS, match="number"), {}
    for split in SPLITS:
        asked = [env.reset(seed, split)[0]["content"] for seed in range(env.count(split))]
        assert asked == [row["question"] for row in SUMS if split_of(f"qa:{row['question']}") == split]
        assert env.reset(env.count(split), split)[0]["content"] == asked[0]
        seen[split] = set(asked)
    assert sum(map(len, seen.values())) == 60 == len(set.union(*seen.values())) and all(seen.values())


@pytest.mark.all_only
def test_eval_plays_each_held_out_question(tmp_path):
    path = write(tmp_path / "rows.jsonl", SUMS)
    cfg = parse(["env=qa", f"qa.data={path}", "qa.match=number"], "eval.py")
    count = sum(split_of(f"qa:{row['question']}") == "val" for row in SUMS)
    assert count_tasks(cfg, "val") == count > 0


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_evaluations_ask_each_question_at_most_once(tmp_path, order):
    """Draws with replacement would ask some question of a short file several times, and miss others."""
    path = write(tmp_path / "rows.jsonl", SUMS)
    cfg = parse(["env=qa", f"qa.data={path}", "qa.match=number", f"order={order}"])
    count = made(tmp_path, SUMS, match="number").count("val")
    every, few = held_out_tasks(cfg, 10 * count, 2, "val"), held_out_tasks(cfg, 3, 1, "val")
    assert [task.seed for task in every[::2]] == [task.seed for task in every[1::2]], "samples of one task"
    assert sorted(task.seed for task in every[::2]) == list(range(count))
    assert (order == "sequential") == ([task.seed for task in every[::2]] == list(range(count)))
    assert [task.seed for task in few] == [task.seed for task in every[:6:2]]
    assert len({task.key for task in every}) == 2 * count
    mixed = held_out_tasks(parse(["env=qa,sums", f"qa.data={path}", "qa.match=number"]), 10 * count, 1, "val")
    asked = [task.seed for task in mixed if task.env == "qa"]
    assert sorted(asked) == list(range(count)) and len(mixed) > 4 * count


def test_own_splits_are_the_files(tmp_path):
    write(tmp_path / "train.jsonl", SUMS[:5])
    write(tmp_path / "test.jsonl", SUMS[5:8])
    env = envs.make("qa", data=str(tmp_path), splits="own", match="number")
    assert [env.count(split) for split in ("train", "test")] == [5, 3]
    assert [env.reset(seed, "test")[0]["content"] for seed in range(3)] == [row["question"] for row in SUMS[5:8]]
    with pytest.raises(ValueError, match=r"has no val\.json or \.jsonl, only train\.jsonl, test\.jsonl"):
        env.reset(0, "val")


def test_messages_are_the_prompt(tmp_path):
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    talk += [{"role": "assistant", "content": "5"}, {"role": "user", "content": "No."}]
    for row in ({"messages": talk, "answer": 4}, {"question": talk, "answer": 4}, {"question": None, "messages": talk}):
        env = made(tmp_path, [{"answer": 4, **row}])
        [split] = [split for split in SPLITS if split_of("qa:Be brief. 2+2? 5 No.") == split]
        assert env.reset(0, split) == talk and env.task == "qa:Be brief. 2+2? 5 No."
        assert env.oracle() == "4" and env.step(" 4\n").reward == 1


def test_columns_are_chosen(tmp_path):
    given = [{"problem": row["question"], "question": "?", "solution": row["answer"]} for row in SUMS]
    env = made(tmp_path, given, prompt_column="problem", answer_column="solution", match="number")
    assert env.reset(0)[0]["content"].startswith("What is") and env.step(env.oracle()).reward == 1


# What is right


@pytest.mark.parametrize(("reply", "right"), CASES["texts"])
def test_a_text_is_right_but_for_space_and_capitals(reply, right, tmp_path):
    assert score(made(tmp_path, [{"question": f"{i}?", "answer": "the  Oak"} for i in range(30)]), reply) == right


NUMBERS = [
    ("#### 42", 42),
    ("so 41 #### 42 is for 3 days", 42),
    ("####$1,234.50", 1234.5),
    ("#### 1\n#### 2", 2),
    ("\\boxed{7} of 9", 7),
    ("$\\boxed{\\$42}$, not 3", 42),
    ("\\boxed{\\frac{1}{2}}", 0.5),
    ("-\\dfrac{3}{4}", -0.75),
    ("\\boxed{3\\frac{1}{2}}", 3.5),
    ("-2 \\tfrac{1}{4}", -2.25),
    ("\\boxed{\\frac12}", 0.5),
    ("\\boxed{x = 5}", 5),
    ("#### Step 2\nThe answer is 8", 8),
    ("it is \N{MINUS SIGN}3.5 m", -3.5),
    ("1/2", 0.5),
    ("42%, or 42 kg", 42),
    ("1e3", 1000),
    ("\N{ARABIC-INDIC DIGIT FOUR}\N{ARABIC-INDIC DIGIT TWO}", 42),
    ("\N{SUPERSCRIPT TWO}", None),
    ("1e999", None),
    ("1/0", None),
    ("nan inf -Infinity", None),
    ("#### 1e999", None),
    ("9" * 100_000, None),
    ("", None),
]


@pytest.mark.parametrize(("text", "number"), NUMBERS, ids=range(len(NUMBERS)))
def test_the_number_of_a_text(text, number):
    assert final_number(text) == number


FORMS = ["{0}", "{0:,}", "${0:,}", "{0}.0", "{0}e0", "{0} kg", "{0}%", "{0}/1"]
PLACES = ["{}", "So 1 + 2 = 3, or {}.", "3 then\n#### {}", "\\boxed{{{}}} after 7 steps", "#### {} in all", "**{}**"]


@pytest.mark.all_only
@given(st.integers(-3000, 3000), st.integers(-3, 3), st.sampled_from(FORMS), st.sampled_from(PLACES))
def test_whole_numbers_match_in_every_form(number, other, form, place):
    text = place.format(form.format(number))
    assert (final_number(text) == number + other) == (other == 0), text


@pytest.mark.all_only
@given(st.integers(-99, 99), st.integers(1, 99), st.integers(0, 99), st.integers(1, 99))
def test_fractions_match_as_their_values_do(a, b, c, d):
    same = final_number(f"It is {a}/{b}") == final_number(f"\\boxed{{\\frac{{{c}}}{{{d}}}}}")
    assert same == (Fraction(a, b) == Fraction(c, d))


def test_every_answer_of_gsm8k_is_right_and_another_number_wrong():
    """By the official pattern; all rows, at the speed of the function alone."""
    for name in ("train", "test"):
        env = envs.make("qa", data=str(reference("gsm8k")), splits="own", match="number")
        for place in env.own_tasks(name):
            row = rows.row_of(str(reference("gsm8k", f"{name}.jsonl")), place)
            official = re.search(r"#### (\-?[0-9\.\,]+)", row["answer"])[1]
            assert final_number(row["answer"]) == final_number(official) == float(official.replace(",", ""))
        assert env.count(name) == {"train": 7473, "test": 1319}[name]
        for seed in range(0, env.count(name), 97):
            env.reset(seed, name)
            answer = env.oracle()
            assert env.step(answer).reward == 1
            assert score(env, answer + "1", seed, name) == 0 and score(env, "no idea", seed, name) == 0


@pytest.mark.all_only
@pytest.mark.parametrize("match", ["text", "number"])
def test_hostile_replies_are_wrong_and_fast(match, tmp_path):
    env, began = (
        made(tmp_path, [{"question": f"{i}?", "answer": 7654} for i in range(30)], match=match),
        time.process_time(),
    )
    for reply in [*HOSTILE, "nan", "inf", "1e999", "-", "/", "#### " * 30_000, "\\boxed{" * 20_000, "1/" * 50_000]:
        assert score(env, reply) == 0
    for piece in ("3\\frac{,}{2}", "9,", "1e", "1e9", "#### \n", "\\frac{1}{", ".", "- ", "$", "1 / "):
        final_number(piece * 50_000)
    assert time.process_time() - began < 5


# A scorer of one's own


def test_a_scorer_sees_the_reply_and_the_whole_row(own):
    rows_with_more = [{"question": f"{i}?", "length": i} for i in range(40)]
    env = own(
        "def score(reply, row):\n    row['seen'] = True\n    return min(len(reply) / (row['length'] or 1), 1)",
        rows_with_more,
    )
    for seed in range(env.count("train")):
        env.reset(seed)
        length = env.row["length"]
        step = env.step("x" * (length // 2))
        assert step.reward == step.info["shaped"] == pytest.approx(length // 2 / (length or 1), abs=1e-6)
        assert step.info["success"] is (step.reward == 1) and "seen" not in env.row
    env.reset(0)
    with pytest.raises(RuntimeError, match=r"there is no expert .*: it has no 'answer'; answer_column= names"):
        env.oracle()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("0.7 + 0.2 + 0.1", 1), ("True", 1), ("0", 0), ("1 + 1e-9", 1), ("__import__('fractions').Fraction(1, 4)", 0.25)],
)
def test_a_score_is_a_number_from_0_to_1(value, wanted, own):
    env = own(f"def score(reply, row):\n    return {value}")
    env.reset(0)
    step = env.step("x")
    assert step.reward == wanted and step.info["success"] is (wanted == 1) and type(step.reward) is float


@pytest.mark.parametrize(("body", "said"), CASES["scorers that fail"])
def test_a_scorer_that_fails_breaks_the_episode_in_a_line(body, said, own):
    env = own(f"def score(reply, row):\n    {body}")
    env.reset(0)
    with pytest.raises(envs.EnvironmentFailed) as error:
        env.step("x")
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("code", "said"), CASES["scorers that cannot be loaded"])
def test_a_scorer_that_cannot_be_loaded_is_refused_in_a_line(code, said, own):
    with pytest.raises(ValueError) as error:
        own(code)
    assert str(error.value).startswith("match") and said in str(error.value) and "\n" not in str(error.value)


def test_a_scorer_may_be_any_module(own):
    code = "from __future__ import annotations\nimport dataclasses\n\n@dataclasses.dataclass\nclass A:\n    b: int\n\n"
    assert score(own(f"{code}def score(reply, row) -> float:\n    return A(1).b"), "x") == 1


@pytest.mark.parametrize("where", ["import", "call"])
def test_a_scorer_leaves_torchs_settings_as_they_were(where, own):
    changes = ["set_grad_enabled(False)", "set_default_dtype(torch.float64)", "set_default_device('meta')"]
    changes = [f"torch.{change}" for change in changes]
    body = "\n".join(changes) if where == "import" else ""
    inside = "; ".join(changes) if where == "call" else "pass"
    env = own(f"import torch\n{body}\ndef score(reply, row):\n    {inside}\n    return 0.5")
    env.reset(0)
    assert env.step("1").reward == 0.5
    fresh = torch.ones(1, requires_grad=True) * 2
    assert fresh.requires_grad and fresh.dtype == torch.float32 and fresh.device.type == "cpu"


def test_a_scorer_imports_the_modules_beside_it(tmp_path):
    """Each scorer those beside it, also where another's have the same name."""
    before = list(sys.path)
    for number in (1, 2):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "beside.py").write_text(f"value = {number / 4}")
        (tmp_path / f"{number}" / "own.py").write_text("import beside\ndef score(reply, row): return beside.value")
        assert scorer.score(f"{tmp_path}/{number}/own.py:score", "", {}) == number / 4
    assert sys.path == before and "beside" not in sys.modules


# Files with mistakes


@pytest.mark.parametrize(("lines", "options", "said"), CASES["mistakes"])
def test_a_mistake_is_refused_in_a_line_with_its_place(lines, options, said, tmp_path):
    path = write(tmp_path / "rows.jsonl", lines)
    with pytest.raises(ValueError) as error:
        envs.make("qa", data=path, **options)
    assert said.format(path=path) in str(error.value) and "\n" not in str(error.value)


def test_a_line_in_another_encoding_is_refused_with_its_place(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(
        b'{"question": "1?", "answer": "1"}\n' + '{"question": "Où?", "answer": "é"}'.encode("latin-1")
    )
    with pytest.raises(ValueError, match=r"data: line 2 of .*rows.jsonl is not UTF-8"):
        envs.make("qa", data=str(tmp_path / "rows.jsonl"))


def test_an_array_behind_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "rows.json").write_text("\ufeff" + json.dumps([{"question": f"{n}?", "answer": n} for n in range(40)]))
    env = envs.make("qa", data=str(tmp_path / "rows.json"))
    assert env.reset(0)[-1]["content"].endswith("?")


@pytest.mark.parametrize(("answer", "reply"), [(42.0, "42"), (-3.0, "-3"), (2.5, "2.5"), (7, "7")])
def test_a_whole_number_is_answered_without_a_fraction(answer, reply, tmp_path):
    env = made(tmp_path, [{"question": f"{n}?", "answer": answer} for n in range(40)])
    assert score(env, reply) == 1 and qa.answer_of({"answer": answer}, "answer") == reply


def test_a_scorer_that_is_written_again_at_once_is_read_anew(tmp_path):
    """Python's own cache of compiled files goes by size and whole seconds."""
    for value in ("0.25", "0.75"):
        (tmp_path / "own.py").write_text(f"def score(reply, row):\n    return {value}\n")
        scorer.load.cache_clear()
        assert scorer.load(f"{tmp_path}/own.py:score")("", {}) == float(value)


def test_equal_questions_are_reported_and_the_first_counts(tmp_path, capsys):
    again = [SUMS[3] | {"question": "What is 3  + 2?", "answer": "6"}, SUMS[5], SUMS[5]]
    env = made(tmp_path, [*SUMS[:20], *again], match="number")
    path, total = env.config.data, len(rows.places_in_order(env.config.data, env.read, once=True))
    said = f"data: line 21 of {path} repeats line 4 (and 2 more such rows); the first one counts\n"
    assert capsys.readouterr().err == said and total == 20
    envs.make("qa", data=path, match="number").reset(0)
    assert capsys.readouterr().err == "", "once for a file"


def test_a_file_too_small_for_a_split_is_refused_in_a_line(tmp_path):
    with pytest.raises(ValueError) as error:
        made(tmp_path, [{"question": "1?", "answer": 1}]).reset(0, "val" if split_of("qa:1?") != "val" else "test")
    assert re.fullmatch(r"data: \S+ has no row in split \w+, only in \w+ \(1\).*", str(error.value))


def test_a_changed_file_is_read_again(tmp_path):
    env = made(tmp_path, SUMS[:20], match="number")
    before = env.count("train")
    write(tmp_path / "rows.jsonl", SUMS)
    assert env.count("train") > before and env.reset(env.count("train") - 1)[0]["content"]
    write(tmp_path / "rows.jsonl", SUMS[:20] + ["{"])
    with pytest.raises(ValueError, match="line 21 of"):
        env.reset(0)


@pytest.mark.all_only
def test_a_large_file_is_read_once_and_fast(tmp_path):
    path = write(tmp_path / "rows.jsonl", [{"question": f"What is {i} + 2?", "answer": i + 2} for i in range(100_000)])
    began = time.process_time()
    envs.make("qa", data=path, match="number").reset(0)
    first, began = time.process_time() - began, time.process_time()
    for seed in range(200):
        envs.make("qa", data=path, match="number").reset(seed)
    assert first < 10 and (time.process_time() - began) / 200 < first / 100


# Programs


def test_the_file_is_asked_for(tmp_path):
    for words in (["train.py", "env=qa"], ["eval.py", "env=qa,sat"], ["envs/__main__.py", "qa", "demos=1"]):
        status, out, err = run_program(*words)
        assert status in (1, 2) and out == "" and err.count("\n") == 1 and "qa.data=rows.jsonl" in err
    path = write(tmp_path / "rows.jsonl", SUMS)
    status, _, err = run_program("train.py", "algo=grpo", f"data={path}")
    assert status == 2 and err.endswith(f"for right answers to its questions: env=qa qa.data={path}\n")
    status, _, err = run_program("train.py", "env=qa", f"qa.data={path}", "qa.prompt_column=problem")
    assert status == 2 and err.startswith(f"train.py: qa.data: line 1 of {path}: it has no 'problem'; prompt_column=")


def test_a_game_shows_question_and_answer(tmp_path):
    path = write(tmp_path / "rows.jsonl", SUMS)
    status, out, err = run_program("envs/__main__.py", "qa", f"data={path}", "match=number", "demos=3")
    assert (status, err) == (0, "") and out.count("What is") == out.count("####") == 3


@pytest.mark.all_only
def test_a_changed_scorer_is_not_resumed(own, tmp_path):
    env = own("def score(reply, row):\n    return 1")
    cfg = parse(["env=qa", f"qa.data={env.config.data}", f"qa.match={env.config.match}"])
    digests.write(cfg, tmp_path)
    digests.check(cfg, tmp_path)
    (tmp_path / "scorer.py").write_text("def score(reply, row):\n    return 0")
    with pytest.raises(ValueError, match=r"qa\.match=\S+ has changed since the run began"):
        digests.check(cfg, tmp_path)


SMALL = "epochs=1 episodes=16 batch_size=16 max_new_tokens=4 eval_episodes=2 lora.r=2 threads=1 products=plain"


FAILING = """
def score(reply, row):
    assert int(row["answer"].split()[0]) % 2, "no score for even numbers"
    return 1 / (1 + len(reply))
"""


@pytest.mark.all_only
@pytest.mark.parametrize("algo", ["grpo grpo.group_size=4", "sft"])
def test_a_run_plays_the_questions(algo, own, tmp_path):
    """GRPO with an own scorer that fails on some questions, whose episodes are left out; and SFT on the answers."""
    env = own(FAILING)
    match = env.config.match if "grpo" in algo else "number"
    words = [*f"algo={algo} {SMALL} env=qa qa.data={env.config.data} qa.match={match}".split(), f"out={tmp_path}/run"]
    train.main(parse(words))
    [epoch] = [record for record in metrics_of(tmp_path / "run") if "loss" in record]
    assert math.isfinite(epoch["loss"]) and (0 < epoch["left_out"] < 16 if "grpo" in algo else not epoch["left_out"])


@pytest.mark.all_only
def test_imitation_needs_answers_and_says_so_in_a_line(own, tmp_path):
    env = own("def score(reply, row):\n    return 1", [{"question": f"{i}?"} for i in range(40)])
    words = [f"qa.data={env.config.data}", f"qa.match={env.config.match}", "eval_episodes=0", f"out={tmp_path}/run"]
    status, _, err = run_program("train.py", "algo=sft", "env=qa", *SMALL.split()[:3], "threads=1", *words)
    assert status == 1 and "there is no expert for a row of" in err and "answer_column= names the column" in err
    assert "Traceback" not in err


def transcript() -> list[dict]:
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for match, replies in {
            "number": ["oracle", "It is 7.", "#### 7 or 9", "no idea"],
            "text": ["oracle", "7", ""],
        }.items():
            env = made(Path(folder), SUMS, match=match)
            for seed in range(2):
                cases.append(golden.start(env.reset(seed, "test"), seed, "test", match=match))
                for reply in replies:
                    env.reset(seed, "test")
                    said = env.oracle() if reply == "oracle" else reply
                    cases.append(golden.action(said, env.step(said)))
    return cases


@pytest.mark.all_only
def test_an_adapters_settings_execute_no_program(tmp_path):
    """It may be somebody else's. The word of whoever evaluates it does."""
    (tmp_path / "scorer.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')\ndef score(reply, row): return 1")
    rows_without_answers = [{"question": row["question"]} for row in SUMS]
    data, program = write(tmp_path / "rows.jsonl", rows_without_answers), f"{tmp_path}/scorer.py:score"
    adapter = tmp_path / "adapter"
    model = load_model("tiny")
    lora.inject(model, 4)
    lora.save_adapter(model, adapter, "tiny")
    settings = {"algo": "grpo", "env": "qa", "qa": {"data": data, "match": program}, "model": "tiny"}
    (adapter / "training_config.json").write_text(json.dumps(settings))
    words = ["eval.py", f"adapter={adapter}", "n=2", "max_new_tokens=2", "ranks=1", "threads=1"]
    code, _, err = run_program(*words)
    assert code == 2 and err.strip().endswith("which is a program; give qa.match= yourself to execute it")
    code, _, err = run_program("merge.py", f"adapter={adapter}", f"out={tmp_path / 'merged'}", "prompts=2")
    assert (code, err) == (0, "") and not (tmp_path / "executed").exists()
    code, out, _ = run_program(*words, f"qa.match={program}")
    assert code == 0 and (tmp_path / "executed").exists() and "sampled success 100.0%" in out


def test_a_scorer_does_not_change_the_rows_of_later_episodes(tmp_path):
    """Rows of a JSON array are read once and kept."""
    (tmp_path / "scorer.py").write_text("def score(reply, row):\n    return float(len(row['words'].pop()))\n")
    rows_of_words = [{"question": f"word {i}", "words": ["a"]} for i in range(40)]
    (tmp_path / "rows.json").write_text(json.dumps(rows_of_words))
    env = envs.make("qa", data=str(tmp_path / "rows.json"), match=f"{tmp_path}/scorer.py:score")
    for _ in range(2):
        env.reset(0, "train")
        assert env.step("a").reward == 1
