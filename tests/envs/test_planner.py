"""Planner: problems and their arithmetic, plans in every form, both workers, the reward, and whole transcripts."""

import json
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from random import Random
from statistics import fmean

import golden
import pytest
import torch
from cases import cases
from conftest import also_full, no_hang, reference
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tqdm import tqdm

import envs
import lora
from envs import planner
from envs.common import SPLITS, split_of
from envs.planner import (
    Config,
    Env,
    content_words,
    independence,
    objects_in,
    prediction_in,
    read_json,
    read_lines,
    word_problems,
)
from envs.planner.arithmetic import arithmetic_in, in_words, work_out
from envs.planner.word_problems import LEVELS, of_row
from envs.requests import Result
from envs.rows import LeftOut
from models import load_model, load_tokenizer
from rl.batch import forward, make_batch
from rl.config.words import parse
from rl.data import demonstrations
from rl.rollout import rollout
from rl.tasks import make_tasks

CASES = cases("planner")
ARITHMETIC = CASES["arithmetic"]
PLANS = CASES["plans"]
LINES = CASES["lines"]
PREDICTIONS = CASES["predictions"]

PENS = word_problems.Problem(
    "planner:pens:3:12:5",
    "Ada has 3 boxes with 12 pens each. Ada gives 5 pens away. How many pens are left?",
    "Pens in the boxes: 3*12 = <<3*12=36>>36\nPens left: 36-5 = <<36-5=31>>31\n#### 31",
    31.0,
    (("pens in the boxes", "3*12"), ("pens left", "a-5")),
)


def at(problem=PENS, **options) -> Env:
    """Return an environment whose episode has this problem."""
    env = make(**options)
    env.reset(0)
    env.problem = problem
    return env


def make(**options) -> Env:
    return envs.make("planner", **options)


def plan(*parts: str, split=True, how: str = "") -> str:
    return json.dumps({"should_decompose": split, "subproblems": parts, "plan": how})


# Problems


@pytest.mark.all_only
@pytest.mark.parametrize("level", LEVELS)
def test_a_solution_is_in_gsm8ks_format_and_right(level):
    """The calculator's marks, and #### by GSM8K's own extraction, against Python's fractions."""
    steps = {"1": {2}, "2": {3, 4}, "3": {5, 6}}[level]
    for template in LEVELS[level]:
        rng = Random(template.name)
        for _ in range(8):
            problem = template.draw(rng)
            *lines, last = problem.answer.splitlines()
            marks = re.findall(r"<<([0-9+*/-]+)=(\d+)>>(\d+)$", problem.answer, re.M)
            assert len(marks) == len(lines) == len(problem.steps) and len(lines) in steps
            for shown, result, again in marks:
                assert eval(re.sub(r"\d+", r"Fraction(\g<0>)", shown), {"Fraction": Fraction}) == int(result) > 0
                assert result == again
            assert last == f"#### {marks[-1][1]}" and float(last.removeprefix("#### ")) == problem.truth
            numbers = set(re.findall(r"\d+", problem.question))
            assert numbers <= set(problem.task.split(":")) and "{" not in problem.question + problem.answer


@pytest.mark.all_only
def test_every_template_has_tasks_in_every_split():
    assert [len(LEVELS[level]) for level in LEVELS] == [16, 22, 14]
    assert len({template.name for level in LEVELS.values() for template in level}) == 52
    for level in LEVELS.values():
        for template in level:
            rng = Random(0)
            tasks = {template.draw(rng).task for _ in range(120)}
            assert len(tasks) > 60 and {split_of(task) for task in tasks} == set(SPLITS), template.name


def test_task_does_not_depend_on_names():
    env = make(difficulty="1")
    texts: dict[str, set] = {}
    for seed in range(4000):
        question = env.reset(seed)[0]["content"]
        texts.setdefault(env.task, set()).add(question)
        assert split_of(env.task) == "train"
        assert not set(word_problems.NAMES) & set(env.task.split(":"))
    assert max(map(len, texts.values())) > 1


@pytest.mark.all_only
def test_difficulty_is_drawn_by_its_weights():
    env, lengths = make(difficulty="1,1,3"), Counter()
    for seed in range(300):
        env.reset(seed)
        lengths[len(env.problem.steps) > 2] += 1
    assert lengths[False] == pytest.approx(200, abs=35)


@pytest.mark.parametrize(("lines", "results"), ARITHMETIC, ids=range(len(ARITHMETIC)))
def test_arithmetic(lines, results):
    assert work_out(lines) == results


@pytest.mark.all_only
@settings(max_examples=60, deadline=None)
@given(st.recursive(st.integers(0, 99).map(str), lambda x: st.builds("({}{}{})".format, x, st.sampled_from("+-*/"), x)))
def test_arithmetic_is_pythons(text):
    try:
        expected = eval(re.sub(r"\d+", r"Fraction(\g<0>)", text), {"Fraction": Fraction})
    except ZeroDivisionError:
        return
    (result,) = work_out([text])
    assert result is None or result == pytest.approx(float(expected), abs=1e-6 * (1 + abs(float(expected))), rel=1e-6)
    assert result is not None or "/" in text  # a difference that vanishes by rounding


@pytest.mark.parametrize(("part", "line"), CASES["words"])
def test_arithmetic_in_words(part, line):
    assert arithmetic_in(part) == line
    if line:
        assert arithmetic_in(f"Find it: {in_words(line)}") in (line, "")


# GSM8K's own rows

ROW = {
    "question": "A cook has 4 bags of 6 onions and throws 3 away. How many onions are left?",
    "answer": "There are 4*6=<<4*6=24>>24 onions.\nThen 24-3=<<24-3=21>>21 are left.\n#### 21",
}


def test_rows_of_gsm8k():
    assert of_row(ROW).steps == (("", "4*6"), ("", "24-3")) and of_row(ROW).truth == 21
    for answer, truth, last in (
        ("no mark\n#### 1,234", 1234, "1234"),
        ("<<4*6=24>>24\n#### 0", 0, "0"),
        ("<<4*6=24>>24\n#### -3.5", -3.5, "0-3.5"),
        ("<<4*6=24>>\n<<24=24>>24\n#### 24", 24, "4*6"),
        ("\n".join(f"<<{i}+1={i + 1}>>" for i in range(20)) + "\n#### 20", 20, "19+1"),
    ):
        problem = of_row({**ROW, "answer": answer})
        assert (problem.truth, problem.steps[-1][1]) == (truth, last) and len(problem.steps) <= 8
        assert work_out([line for _, line in problem.steps])[-1] == truth
    assert of_row({**ROW, "question": "  A cook has\n 4 bags"}).task == "planner:A cook has 4 bags"
    for row in (
        {},
        {**ROW, "answer": "24"},
        {**ROW, "answer": "#### ..."},
        {**ROW, "question": " "},
        {**ROW, "answer": 3},
    ):
        assert of_row(row) is None
        with pytest.raises(LeftOut):
            planner.task_of_row(row)


def test_problems_from_a_file(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({**ROW, "question": f"{i} {ROW['question']}"}) + "\n" for i in range(60)))
    env, seen = make(data=str(file)), {}
    for split in SPLITS:
        seen[split] = set()
        for seed in range(80):
            assert ROW["question"] in env.reset(seed, split)[0]["content"]
            seen[split].add(env.task)
            assert split_of(env.task) == split and env.step(env.oracle()).info["success"]
    assert sum(map(len, seen.values())) > 45 and not seen["train"] & seen["val"]
    with pytest.raises(ValueError, match="no file 'nowhere'"):
        make(data="nowhere")
    file = tmp_path / "others.jsonl"
    file.write_text('{"question": "?"}\n')
    with pytest.raises(ValueError, match=r"1 of 1 rows of .* left out: no text as its question"):
        make(data=str(file))


@pytest.mark.parametrize("every", [40, *also_full(1)])
def test_the_expert_plans_gsm8ks_own_problems(every):
    for name in ("train", "test"):
        lines = reference("gsm8k", f"{name}.jsonl").read_text().splitlines()
        for line in lines[::every]:
            row = json.loads(line)
            problem = of_row(row)
            assert problem.truth == float(re.search(r"#### (\-?[0-9\.\,]+)", row["answer"])[1].replace(",", ""))
            for prompt in ("native", "short"):
                env = at(problem, prompt=prompt)
                assert env.step(env.oracle()).info["success"], row


# Plans

GOOD = '{"should_decompose": true, "subproblems": ["3 times 12", "result 1 minus 5"], "plan": "subtract"}'


@pytest.mark.parametrize(("reply", "parts"), PLANS, ids=range(len(PLANS)))
def test_plans_in_json(reply, parts):
    found = read_json(reply)
    assert (found and found.parts) == parts
    step = at().step(reply)
    assert step.info["valid"] == (parts is not None)
    assert parts is not None or (step.reward, step.observation) == (0.1, "There is no plan in the reply.")
    assert step.info["metrics"]["decomposition"] == bool(parts)


@pytest.mark.parametrize(("reply", "parts"), LINES, ids=range(len(LINES)))
def test_plans_in_lines(reply, parts):
    found = read_lines(reply)
    assert (found and found.parts) == parts


# The worker of rules, and the reward


def test_rules_worker_only_computes():
    for reply, success, said in CASES["the worker of rules"]:
        step = at().step(reply)
        assert (step.info["success"], step.observation) == (success, said)
        assert step.terminated and step.info["outcome"] == ("correct" if success else "incorrect")


def test_the_answer_alone_earns_nothing():
    step = at(prompt="short").step("31")
    assert (step.reward, step.info["valid"], step.info["success"]) == (0.1, False, False)
    assert at().step(plan("31")).reward < 0.5 < at(prompt="short").step("3*12\na-5").reward
    unsaid = of_row({**ROW, "answer": "One sees it.\n#### 1,234"})  # whose expert has no calculation to show
    for prompt in ("native", "short"):
        env = at(unsaid, prompt=prompt)
        assert env.step(env.oracle()).info["success"]


def test_zero_is_a_prediction():
    nothing = word_problems.Problem("planner:zero", "?", "#### 0", 0.0, (("", "5-5"),))
    assert at(nothing).step(plan("5 minus 5")).observation == "The worker's answer is 0. That is right."
    assert not at(nothing).step(plan("nothing")).info["success"]
    assert prediction_in('{"final_answer": 0}') == 0 and prediction_in("it is 0") == 0


def test_missing_result_has_no_value():
    for named in ("result 9", "result 0", "result 2", "result 12"):
        said = at().step(plan("3 times 12", f"{named} plus 1")).observation
        assert said == "The worker has no answer.", named


def test_the_reward_is_the_sum_of_its_parts():
    step = at().step(plan("3 times 12", "result 1 minus 5"))
    words = [{"3": 1, "times": 1, "12": 1}, {"result": 1, "1": 1, "minus": 1, "5": 1}]
    assert independence(words) == 1 and step.info["metrics"]["token_efficiency"] == 1 - 10 / 1000
    assert step.reward == pytest.approx(1 + 0.2 * 0.99 + 0.3) == step.info["shaped"]
    metrics = {"correctness": 1.0, "decomposition": 1.0, "token_efficiency": 0.99, "independence": 1.0}
    assert step.info["metrics"] == pytest.approx(metrics)
    same = at().step(plan("3 times 12", "3 times 12"))
    assert same.reward == pytest.approx(0.2 * 0.99) and not same.info["success"]
    assert at().step(plan("36 minus 5")).reward == pytest.approx(1 + 0.2 * 0.995 + 0.3 * 0.5)
    assert at().step(plan(split=False)).reward == pytest.approx(0.2 + 0.3 * 0.5)
    other = {"correctness_weight": 3.0, "token_weight": 2.0, "independence_weight": 0.0, "max_tokens": 20}
    assert at(**other).step(GOOD).reward == pytest.approx(3 + 2 * 0.5)
    assert at(max_tokens=1).step(GOOD).info["metrics"]["token_efficiency"] == 0


def test_independence():
    assert independence([]) == independence([{0: 1.0}]) == 0.5
    assert independence([{0: 2.0}, {0: 5.0}]) == pytest.approx(0) and independence([{0: 1}, {1: 1}]) == 1
    assert independence([{0: 1}, {0: 1, 1: 1}]) == pytest.approx(1 - 2**-0.5)
    assert independence([{0: 1}, {1: 1}, {0: 1}]) == pytest.approx(2 / 3)
    assert independence([{0: 1}, {0: -1}]) == 1, "never above"
    assert independence([{}, {0: 1}]) == independence([{0: 0.0}, {0: 1}]) == 1


def test_independence_orders_paraphrases_steps_and_other_problems():
    """Of 26 triples three paraphrases share no word with their original; no other order is wrong."""
    apart = [
        [independence(map(content_words, (one, other))) for other in others] for one, *others in CASES["independence"]
    ]
    paraphrase, step, unrelated = (fmean(each) for each in zip(*apart, strict=True))
    assert paraphrase < 0.3 < 0.5 < step < 0.7 < 0.95 < unrelated
    assert sum(same < other for same, other, _ in apart) >= 23 and all(step < far for _, step, far in apart)


def test_a_repeated_subproblem_is_not_independent():
    for part in ("How many are there?", "3 times 12", "?", "3*12"):
        assert independence(map(content_words, (part, part))) == pytest.approx(0), part
    right, twice = (
        plan("Pens in the boxes: 3 times 12", "Pens left: result 1 minus 5"),
        plan("3 times 12", "12 times 3"),
    )
    assert at().step(right).info["metrics"]["independence"] > 0.6 > at().step(twice).info["metrics"]["independence"]


# The worker that is a model


class Worker:
    """Answer requests to the base model from a script."""

    def __init__(self, *texts):
        self.texts, self.asked = list(texts), []

    def play(self, env: Env, reply: str):
        step = env.step(reply)
        while step.requests:
            assert (step.reward, step.terminated, step.truncated) == (0.0, False, False) and env.running
            self.asked.append(step.requests)
            results = []
            for request in step.requests:
                vector = [[float(len(text)), 1.0] for text in request.texts or ()]
                text = self.texts.pop(0) if request.kind == "chat" else ""
                results.append(Result(vector=vector) if request.kind == "embed" else Result(text, tokens=len(text)))
            step = env.answer(results)
        return step


def test_model_solves_the_parts_then_combines_them():
    texts = '{"solution": "3 * 12", "result": 36}', "31 I guess", '{"final_calculation": "36 - 5", "final_answer": 31}'
    options = {"worker_tokens": 99, "worker_temperature": 0.5, "similarity": "embeddings"}
    worker, env = Worker(*texts), at(worker="model", **options)
    step = worker.play(env, plan("pens in 3 boxes", "pens left", how="subtract"))
    (first, second, embed), (final,) = worker.asked
    assert embed.texts == ["pens in 3 boxes", "pens left"] and embed.kind == "embed"
    assert {(r.kind, r.max_tokens, r.temperature) for r in (first, second, final)} == {("chat", 99, 0.5)}
    contents = [r.messages[0]["content"] for r in (first, second, final)]
    assert all(PENS.question in content for content in contents)
    assert "pens in 3 boxes" in contents[0] and "pens left" not in contents[0].replace(PENS.question, "")
    assert "part 2" in contents[1] and "1. pens in 3 boxes\n2. pens left" in contents[1]
    assert (
        "1. pens in 3 boxes\nResult: 36\n2. pens left\nResult: 31 I guess" in contents[2] and "subtract" in contents[2]
    )
    assert step.info["success"] and not env.running
    tokens, apart = sum(map(len, texts)), independence([{0: 15.0, 1: 1.0}, {0: 9.0, 1: 1.0}])
    assert step.reward == pytest.approx(1 + 0.2 * (1 - tokens / 1000) + 0.3 * apart)


@pytest.mark.parametrize("options", [{"similarity": "embeddings", "independence_weight": 0.0}, {}])
def test_embeddings_are_requested_only_if_they_count(options):
    worker = Worker(*["31"] * 3)
    step = worker.play(at(worker="model", **options), plan("pens in 3 boxes", "pens left"))
    assert [r.kind for requests in worker.asked for r in requests] == ["chat"] * 3
    apart = 0.5 if options else independence([{"pens": 1, "3": 1, "boxes": 1}, {"pens": 1, "left": 1}])
    assert step.info["metrics"]["independence"] == pytest.approx(apart)
    assert step.reward == pytest.approx(1 + 0.2 * (1 - 6 / 1000) + 0.3 * apart * (not options))


def test_a_model_may_get_the_whole_problem():
    worker = Worker('{"solution": "it is 31", "final_answer": 30}')
    step = worker.play(at(worker="model"), plan(split=False))
    assert len(worker.asked) == 1 and PENS.question in worker.asked[0][0].messages[0]["content"]
    assert not step.info["success"] and step.info["metrics"]["independence"] == 0.5
    worker = Worker("36", "so 31")
    assert worker.play(at(worker="model"), plan("all of it")).info["success"]
    assert [request.kind for requests in worker.asked for request in requests] == ["chat", "chat"], "one has no other"
    assert Worker().play(at(worker="model"), "no plan").reward == 0.1


@pytest.mark.parametrize(("text", "number"), PREDICTIONS, ids=range(len(PREDICTIONS)))
def test_predictions(text, number):
    assert prediction_in(text) == number


def test_steps_and_answers_alternate():
    env = at(worker="model")
    with pytest.raises(RuntimeError, match="has no requests"):
        env.answer([])
    env.step(plan("3*12"))
    with pytest.raises(RuntimeError, match="pass their results to answer"):
        env.step(plan("3*12"))
    env.reset(1)
    assert env.step(plan("3*12")).requests, "a new episode asks anew"
    assert "worker=rules" in env.answer([Result("36", 2)]).observation, "for those who have no model"
    assert env.answer([Result("36", 2)]).terminated
    with pytest.raises(RuntimeError, match="has no requests"):
        env.answer([])
    done = at()
    done.step(GOOD)
    with pytest.raises(RuntimeError, match="reset"):
        done.step(GOOD)


# In a rollout, on the embedded model

SILENT = tqdm(disable=True)


@pytest.fixture(scope="module")
def tiny():
    """Return the embedded model with a nonzero adapter."""
    torch.manual_seed(0)
    model = load_model("tiny").eval()
    lora.inject(model, r=4)
    generator = torch.Generator().manual_seed(0)
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].B.data.normal_(0, 0.02, generator=generator)
    return model, load_tokenizer("tiny")


def run_config(*words: str, **options):
    cfg = parse(["env=planner", "max_len=768", "max_new_tokens=8", *words])
    planner = Config(worker="model", worker_tokens=4, difficulty="1", **options)
    return replace(cfg, environments={"planner": planner})


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(envs.NAMES, "planner", "envs.planner")


@pytest.mark.all_only
def test_frozen_base_answers_in_a_rollout(tiny, registered, monkeypatch):
    """Every reply of the policy is parsed as a plan of two parts. Results do not depend on neighbouring episodes."""
    monkeypatch.setattr(planner, "read_json", lambda reply: planner.Plan([reply or "?", "the rest"], "add"))
    cfg = run_config("rollout_batch_size=3", worker_temperature=0.8, similarity="embeddings")
    tasks = make_tasks(cfg, 0, 3, 1, "train", 0)
    played = rollout(*tiny, tasks, cfg, 1.0, SILENT)
    assert all(e.terminated and len(e.turns) == 1 and e.score > 0 for e in played)
    assert len({e.score for e in played}) > 1, "embeddings differ"
    cfg = replace(cfg, rollout_batch_size=2)
    assert [vars(e) for e in rollout(*tiny, tasks[1:], cfg, 1.0, SILENT)] == [vars(e) for e in played[1:]]
    with torch.no_grad():
        batch = make_batch(played)
        assert torch.equal(forward(batch, tiny[0], 1.0).logprobs_N, batch.old_logprobs_N)


@pytest.mark.all_only
def test_demonstrations_have_a_model_or_need_none(tiny, registered):
    cfg = run_config("rollout_batch_size=8")
    tasks = make_tasks(cfg, 0, 2, 1, "train", 0)
    asked = demonstrations(tiny[1], tasks, cfg, SILENT, tiny[0])
    rules = replace(cfg.environments["planner"], worker="rules", prompt="short")
    cfg = replace(cfg, environments={"planner": rules})
    alone = demonstrations(tiny[1], tasks, cfg, SILENT)
    assert all(e.terminated for e in asked) and all(e.success for e in alone)
    assert max(len(e.ids_T) for e in alone) < 150


@pytest.mark.all_only
def test_baseline_uses_the_problems_that_grpo_draws():
    def seeds(recipe: str) -> list[int]:
        cfg = parse([f"recipe={recipe}", "model=other/model"])
        groups = cfg.epochs * cfg.episodes // (cfg.grpo.group_size if cfg.algo == "grpo" else 1)
        tasks = make_tasks(cfg, 0, groups, 1, "train", cfg.seed, cfg.order, cfg.max_samples)
        return [task.seed for task in tasks]

    assert seeds("planner_sft") == seeds("planner_grpo") and len(set(seeds("planner_sft"))) == 1000


# What holds for every environment


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_is_always_right(level, prompt):
    env = make(difficulty=level, prompt=prompt)
    for seed in range(60):
        for split in SPLITS if seed < 6 else SPLITS[:1]:
            env.reset(seed, split)
            step = env.step(env.oracle())
            assert step.info["success"] and step.info["valid"] and step.terminated, (seed, split)
            assert 1 < step.reward <= 1.5 and split_of(env.task) == split


def test_the_easiest_level_is_short_for_the_embedded_tokenizer(tiny):
    env = make(difficulty="1", prompt="short")
    for seed in range(60):
        (message,) = env.reset(seed)
        assert message["content"].isascii() and len(tiny[1].prompt([message])) < 130
        assert len(tiny[1].reply(env.oracle())) < 20


HOSTILE = st.one_of(
    st.text(max_size=80),
    st.builds(plan, st.text(max_size=30), st.text(max_size=30)),
    st.builds(
        lambda text, n: text * n, st.text('{}[]"\\:,0a;+-*/(\n\x00é', min_size=1, max_size=4), st.integers(1, 25_000)
    ),
)


@pytest.mark.all_only
@settings(max_examples=50, deadline=None)
@given(HOSTILE, st.sampled_from(["native", "short"]))
@example('{"should_decompose":' * 5000, "native")
@example('{"a":' * 20_000, "native")
@example('{"a":"' * 20_000, "native")
@example("{" * 100_000 + "}" * 100_000, "native")
@example('{"should_decompose": true, "subproblems": ["' + "9" * 100_000 + '"]}', "native")
@example('{"should_decompose": true, "subproblems": [' + "9" * 5000 + "]}", "native")
@example(plan("\ud800 3 times 4", "(" * 399), "native")
@example("(" * 399 + "1+\n" + "-" * 399, "short")
@example("9" * 400 + "*" + "9" * 100_000, "short")
def test_hostile_replies_are_graded(reply, prompt):
    env = at(prompt=prompt)
    with no_hang():
        step = env.step(reply)
    assert step.terminated and 0 < step.reward <= 1.5 and len(step.observation) < 400
    text = Worker(reply, reply, reply, reply, reply).play(at(worker="model"), plan("1", "2"))
    assert text.terminated and objects_in(reply) is not None


def transcript() -> list[dict]:
    """Return the cases of the golden file: the expert and other agents, with both workers."""
    cases = []
    for number, (level, prompt, split, reply) in enumerate(
        [
            (level, prompt, split, "")
            for level in LEVELS
            for prompt in ("native", "short")
            for split in ("train", "test")
        ]
        + [
            ("1", "native", "val", plan(split=False)),
            ("1", "native", "val", "I do not know."),
            ("2", "short", "val", "1/0"),
        ]
    ):
        env = make(difficulty=level, prompt=prompt)
        cases.append(golden.start(env.reset(number, split), number, split, difficulty=level, prompt=prompt))
        cases += golden.play(env, [reply] if reply else [], digits=6)
        cases += [golden.case("task", env.task), golden.case("answer", env.problem.answer)]
    worker, env = (Worker('{"result": 1}', "2", "3", '{"final_answer": "4"}'), make(worker="model", difficulty="2"))
    cases.append(golden.start(env.reset(0), 0, "train", worker="model", difficulty="2"))
    said = plan("one", "two", "three", how="add")
    step = worker.play(env, said)
    asked = [r.messages[0]["content"] if r.kind == "chat" else r.texts for requests in worker.asked for r in requests]
    return [*cases, golden.action(said, step, digits=6), golden.case("requests", asked)]
