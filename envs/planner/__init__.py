"""Planner: split a word problem into subproblems; a worker solves them and combines the results.

Task.     `Ada has 3 boxes with 12 pens each. Ada gives 5 pens away. How many pens are left?` The agent plans
          the solution without solving it. The levels of the 52 templates in envs/planner/templates.py:
    1         two steps
    2         three or four
    3         five or six
          With `tasks=fresh` the names and most things are made up for each problem, and numbers are up to three times
          as large. Its numbers and its template alone decide the split, so that held-out problems have other numbers.

Plans.    native: {"should_decompose": true, "subproblems": ["...", "..."], "plan": "how to combine the results"}
          The first JSON object with should_decompose counts, else the first with another of these keys. Code fences
          and raw line breaks inside strings are allowed. If should_decompose is false or missing, or no subproblem is a
          string, the worker gets the whole problem.
          short: arithmetic, one step per line or separated by `;`: `3*12`, then `a-5`, where a, b, c, ... are the
          earlier results. Each step is a subproblem. A line that is neither a calculation nor a number invalidates
          the plan. Numbers alone are no plan, so the answer alone earns nothing.

Worker.   model: the frozen base model. It solves one subproblem per request, given the earlier ones, and then combines
          the results; or it gets the whole problem in one request. `step` returns an unfinished Step with requests
          (envs/base.py), `answer` takes the results. The prediction is the final_answer of its JSON, else the last
          number that it wrote: 1,234.5, 1e3 or 1/2.
          rules: arithmetic without a model. It computes the last calculation in each subproblem, with signs or the
          words plus, minus, times, divided by; `result 1` is the first subproblem's result. The prediction is the last
          result. From a whole problem, or from numbers alone, it predicts nothing.

Replies.  The worker's answer is 31. That is right.

Reward.   1.0 if the prediction is within 0.01 of the answer, + 0.2 * max(0, 1 - worker's tokens / 1000), + 0.3 *
          independence: 1 - the mean cosine of the subproblems' vectors, pair by pair, clamped to 0..1; 0.5 for
          fewer than two subproblems. A reply without a plan gets 0.1. A wrong plan gets up to 0.5, so
          reward.rule=binary may teach more. The weights 1, 0.2 and 0.3 and the 1,000 tokens are the guide's; 0.1 and
          0.5, on which it is silent, are those of the code that it describes.
          A vector counts the content words of a subproblem: numbers, signs, and words without those of STOP, by their
          first five letters. If nothing else is there, its other words count, else its text. similarity=embeddings
          takes the base model's mean hidden states instead, which tell a paraphrase from another step no better than
          chance in small models (docs/environments.md has the numbers).
          info["valid"]: the reply had a plan. info["shaped"]: the reward. info["metrics"]: correctness,
          decomposition, token_efficiency and independence; 0 without a plan. With similarity=embeddings and
          independence_weight=0 nothing is measured, and independence is 0.5.
          reward.rule=shaped also pays reward.invalid for a reply without a plan.

Ending.   Terminated by the first reply, whatever it is, once the worker has answered; outcome "correct" or "incorrect".

From the guide's trainer, a planner with a frozen worker on GSM8K. The differences:
- The problems are generated; `data=gsm8k.jsonl` reads GSM8K's rows {question, answer}. The split is a hash of the
  question, or of the template and its numbers; `data=folder splits=own` plays train.jsonl and test.jsonl in order.
- A prediction of 0 counts as one. A JSON object with none of the three keys is no plan. should_decompose may be "true".
- Only 8,000 characters of a reply, eight subproblems and 400 characters of each are read.
- All prompts are in our words. The expert's subproblems are the steps of the solution (for a row without calculations:
  0 plus its answer); with worker=rules its plan is always right.
"""

import json
import re
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from math import isfinite, sqrt
from random import Random

from envs import common, prompt_file, rows
from envs.answers import final_number
from envs.base import Step
from envs.common import split_of
from envs.own_splits import OwnSplits, check_splits, file_of, files_of
from envs.planner.arithmetic import ATOM, LETTERS, arithmetic_in, in_words, work_out
from envs.planner.word_problems import LEVELS, of_row
from envs.refusal import Refusal
from envs.requests import Request, Result

WORKERS = ("model", "rules")
STOP = re.compile(  # content words are others than these
    "an|the|of|to|and|or|in|is|are|was|were|do|does|did|will|has|have|had|how|many|much|what|who|find|compute|calculate"
    "|determine|work|out|count|number|total|amount|that|this|it|its|by|from|for|with|at|on|all|each|every|per|there"
    "|their|his|her|he|she|they|be"
)
WORD = re.compile(r"[^\W\d_]+|\d+|[-+*/]")
STEM = 5  # letters of a word that count: cookie and cookies are one word
HELPERS = {
    "model": "A helper works them out one by one and then puts the results together. Otherwise the helper gets the "
    "whole problem.",
    "rules": "A helper works them out one by one, and the last result is the answer. It only knows arithmetic, so end "
    'each with a calculation such as "3 times 12" or "result 1 minus 5", where result 1 is that of the first. '
    "Otherwise the helper gets the whole problem, of which it can read no more than such a calculation.",
}
NATIVE = """\
Do not solve this problem. Plan how it should be solved.

Problem: {question}

Is it better split into parts? Then write a few subproblems, mostly two or three, with one calculation each. {helper}

Reply with one JSON object and nothing else:
{{"should_decompose": true or false, "subproblems": ["...", "..."], "plan": "how the results give the answer"}}"""
SHORT = "Reply with the steps, one a line, such as 3*12 and then a-5.\n{question}"
PART = """\
A problem is solved in parts. Work out part {name} and no other.

Problem: {question}

{parts}

Reply with one JSON object: {{"solution": "how you work out part {name}", "result": its result}}"""
COMBINE = """\
A problem was solved in parts. Find its answer from their results.

Problem: {question}

{parts}

Plan: {plan}

Reply with one JSON object: {{"final_calculation": "how the results give the answer", "final_answer": a number}}"""
WHOLE = """\
Solve this problem step by step.

Problem: {question}

Reply with one JSON object: {{"solution": "the steps", "final_answer": a number}}"""
ASKING = "worker=model has to ask a model, and there is none here; worker=rules does without."
NO_PLAN, NO_ANSWER = "There is no plan in the reply.", "The worker has no answer."
VERDICT = {True: "That is right.", False: "That is wrong."}
NO_PLAN_REWARD = 0.1
CLOSE = 0.01  # largest error of a right prediction
MAX_REPLY, MAX_PARTS, MAX_PART = 8000, len(LETTERS), 400  # most characters, subproblems, and characters of one
TRIES = 1000  # draws before a split counts as empty
LINE = re.compile(r"[\d.]+|[\d.a-h+*/() -]*[-+*/][\d.a-h+*/() -]*")  # a number or a calculation
SIGN = re.compile(r"[-+*/]")


@dataclass(frozen=True)
class Config:
    difficulty: str = "1,2,3"  # levels 1 to 3, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    tasks: str = "panel"  # generated problems: "panel"; "fresh", with made-up nouns and larger numbers
    data: str = ""  # a file of GSM8K, with a row in each line; empty: generated problems
    splits: str = "hash"  # of data: "hash" of the question; "own": a folder's train.jsonl, test.jsonl, or a whole file
    worker: str = "model"  # solves the plan: model (the frozen base) | rules (arithmetic only, needs no model)
    worker_tokens: int = 256  # most tokens per answer of worker=model
    worker_temperature: float = 0.0  # sampling temperature of worker=model; 0 is greedy
    max_tokens: int = 1000  # worker's tokens at which the token reward reaches 0
    correctness_weight: float = 1.0  # reward of a right answer
    token_weight: float = 0.2  # reward of using no tokens; falls linearly
    independence_weight: float = 0.3  # reward of fully independent subproblems; falls linearly
    similarity: str = "words"  # of subproblems: words (content words) | embeddings (the base's mean hidden states)
    prompt: str = "native"  # "native": instructions and a plan in JSON; "short": lines of arithmetic

    def __post_init__(self):
        common.set_fields(self, difficulty=common.level_list(self.difficulty, LEVELS))
        common.check_tasks(self.tasks, self.data)
        if self.worker not in WORKERS:
            raise Refusal(f"worker must be 'model' or 'rules', not {self.worker!r}")
        if self.similarity not in ("words", "embeddings"):
            raise Refusal(f"similarity must be 'words' or 'embeddings', not {self.similarity!r}")
        if self.similarity == "embeddings" and self.worker == "rules":
            raise Refusal("similarity=embeddings asks a model, and worker=rules has none; leave it out")
        common.check_count("worker_tokens", self.worker_tokens)
        common.check_count("max_tokens", self.max_tokens)
        for name in ("worker_temperature", "correctness_weight", "token_weight", "independence_weight"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value < float("inf"):
                raise Refusal(f"{name} must be a number of at least 0, not {value!r}")
        common.check_prompt(self.prompt, "question")
        check_splits(self)
        for path in set(files_of(self.data).values()) if self.splits == "own" else [self.data] if self.data else []:
            rows.row_places(path, task_of_row)


@dataclass(frozen=True)
class Plan:
    """The agent's plan."""

    parts: list[str]  # the subproblems; none: solve the whole problem
    how: str = ""  # how to combine their results


class Env(OwnSplits):
    """Play one episode at a time; the module's docstring is the specification."""

    def __init__(self, config: Config | None = None):
        super().__init__(config or Config(worker="rules"))
        self.places = None
        if self.config.data and self.config.splits == "hash":
            self.places = rows.row_places(self.config.data, task_of_row)
        self.work: Generator | None = None  # the suspended step, waiting for the worker's answers

    @property
    def task(self) -> str:
        """The canonical task: the template and its numbers, or a row's question."""
        return self.problem.task

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's only turn."""
        common.check_split(split)
        rng = Random(f"planner {split} {seed}")
        if self.config.splits == "own":
            self.problem = of_row(rows.row_of(file_of(self.config.data, split), self.own_task(seed, split)))
        elif self.places:
            self.problem = of_row(rows.row_at(self.config.data, self.places, rng, split))
        else:
            template = rng.choice(LEVELS[rng.choice(self.config.difficulty.split(","))])
            drawn = (template.draw(rng, self.config.tasks == "fresh") for _ in range(TRIES))
            self.problem = next(problem for problem in drawn if split_of(problem.task) == split)
        self.running, self.work = True, None
        form = SHORT if self.config.prompt == "short" else NATIVE
        shown = {"question": self.problem.question, "helper": HELPERS[self.config.worker]}
        content = prompt_file.filled(self.config.prompt, form, **shown)
        return [{"role": "user", "content": content}]

    def own_tasks(self, split: str) -> list[int]:
        """Return the places of the rows of a data set's own split."""
        return rows.places_in_order(file_of(self.config.data, split), task_of_row)

    def step(self, action_text: str) -> Step:
        """Read the agent's plan and execute it. The step has requests if the worker is a model."""
        common.check_running(self.running)
        if self.work is not None:
            raise RuntimeError("the step has requests: pass their results to answer() first")
        plan = read_lines(action_text) if self.config.prompt == "short" else read_json(action_text)
        if plan is None:
            return self._no_plan()
        if self.config.worker == "rules":
            return self._by_rules(plan)
        self.work = self._by_model(plan)
        return self._resume(None)

    def answer(self, results: list[Result]) -> Step:
        """Continue with the worker's results, one per request of the last step, in order."""
        if self.work is None:
            raise RuntimeError("the step has no requests: call step() first")
        return self._resume(results)

    def _resume(self, results: list[Result] | None) -> Step:
        """Run the suspended step up to its next requests or its end."""
        try:
            requests = self.work.send(results)
        except StopIteration as end:
            self.work = None
            return end.value
        info = common.step_info(False, False, False, True, 0.0)
        return Step(ASKING, 0.0, False, False, info, requests)

    def oracle(self) -> str:
        """Return an expert's plan: one subproblem per step."""
        common.check_running(self.running)
        steps = self.problem.steps
        if not computes(line for _, line in steps):
            steps = tuple((what, f"0+{line}") for what, line in steps)
        if self.config.prompt == "short":
            return "\n".join(arithmetic for _, arithmetic in steps)
        parts = [(what and f"{what[0].upper()}{what[1:]}: ") + in_words(arithmetic) for what, arithmetic in steps]
        plan = {"should_decompose": True, "subproblems": parts, "plan": "The last result is the answer."}
        return json.dumps(plan, ensure_ascii=False)

    def _by_rules(self, plan: Plan) -> Step:
        """Solve the plan by arithmetic."""
        lines = plan.parts if self.config.prompt == "short" else [arithmetic_in(part) for part in plan.parts]
        tokens = sum(len(ATOM.findall(line)) + 2 for line in lines)  # as many as in 3*12=36
        prediction = work_out(lines)[-1] if computes(lines) else None
        return self._graded(plan, prediction, tokens, independence(map(content_words, plan.parts)))

    def _by_model(self, plan: Plan) -> Generator[list[Request], list[Result], Step]:
        """Solve the plan with the model: yield lists of requests, receive their results."""
        question, parts = self.problem.question, plan.parts
        if not parts:
            (final,) = yield [self._chat(WHOLE.format(question=question))]
            return self._graded(plan, prediction_in(final.text), final.tokens, independence([]))
        names = LETTERS if self.config.prompt == "short" else "12345678"
        listed = [f"{name}. {part}" for name, part in zip(names, parts, strict=False)]
        asked = [
            self._chat(PART.format(question=question, name=name, parts="\n".join(listed[:count])))
            for count, name in enumerate(names[: len(parts)], 1)
        ]
        by_model = self.config.similarity == "embeddings"
        embeds = by_model and len(parts) > 1 and self.config.independence_weight
        results = yield [*asked, Request("embed", texts=parts)] if embeds else asked
        solved = results[: len(parts)]
        vectors = [] if by_model else map(content_words, parts)
        if embeds:
            vectors = [dict(enumerate(vector)) for vector in results[-1].vector]
        done = [f"{part}\nResult: {result_in(result.text)}" for part, result in zip(listed, solved, strict=True)]
        (final,) = yield [self._chat(COMBINE.format(question=question, parts="\n".join(done), plan=plan.how or "-"))]
        tokens = sum(result.tokens for result in (*solved, final))
        return self._graded(plan, prediction_in(final.text), tokens, independence(vectors))

    def _chat(self, content: str) -> Request:
        """Return a request to the worker."""
        limits = {"max_tokens": self.config.worker_tokens, "temperature": self.config.worker_temperature}
        return Request("chat", messages=[{"role": "user", "content": content}], **limits)

    def _no_plan(self) -> Step:
        """Return the step of a reply without a plan."""
        metrics = dict.fromkeys(("correctness", "decomposition", "token_efficiency", "independence"), 0.0)
        return self._end(NO_PLAN, NO_PLAN_REWARD, False, metrics, valid=False)

    def _graded(self, plan: Plan, prediction: float | None, tokens: int, apart: float) -> Step:
        """Return the step of a plan, given the worker's prediction and tokens and the parts' independence."""
        right = prediction is not None and abs(prediction - self.problem.truth) < CLOSE
        efficiency = 1 - min(tokens / self.config.max_tokens, 1)
        cfg = self.config
        reward = cfg.correctness_weight * right + cfg.token_weight * efficiency + cfg.independence_weight * apart
        metrics = {"correctness": float(right), "decomposition": float(bool(plan.parts))}
        metrics |= {"token_efficiency": efficiency, "independence": apart}
        said = NO_ANSWER if prediction is None else f"The worker's answer is {prediction:.10g}. {VERDICT[right]}"
        return self._end(said, reward, right, metrics)

    def _end(self, observation: str, reward: float, won: bool, metrics: dict, valid: bool = True) -> Step:
        self.running = False
        info = common.step_info(won, True, False, valid, reward)
        return Step(observation, reward, True, False, {**info, "metrics": metrics})


def task_of_row(row: dict) -> str:
    """Return the canonical task of a row of GSM8K. Raise LeftOut for any other row."""
    if problem := of_row(row):
        return problem.task
    texts = all(isinstance(row.get(name), str) and row[name].strip() for name in ("question", "answer"))
    raise rows.LeftOut("no number behind ####" if texts else "no text as its question or its answer")


def read_lines(reply: str) -> Plan | None:
    """Return the plan in a reply of lines of arithmetic; None if it has none or any other line."""
    lines = [line.strip() for line in re.split(r"[\n;]", reply[:MAX_REPLY]) if line.strip()]
    whole = all(len(line) <= MAX_PART and LINE.fullmatch(line) for line in lines)
    return Plan(lines) if whole and computes(lines) and len(lines) <= MAX_PARTS else None


def computes(lines: Iterable[str]) -> bool:
    """Return whether any line of arithmetic is more than a number."""
    return any(map(SIGN.search, lines))


def read_json(reply: str) -> Plan | None:
    """Return the plan in a reply's JSON; None if it has none."""
    plans = [found for found in objects_in(reply) if found.keys() & {"should_decompose", "subproblems", "plan"}]
    if not plans:
        return None
    plan = next((found for found in plans if "should_decompose" in found), plans[0])
    parts, how = plan.get("subproblems"), plan.get("plan")
    if str(plan.get("should_decompose")).lower() != "true" or not isinstance(parts, list):
        parts = []
    texts = [part.strip()[:MAX_PART] for part in parts if isinstance(part, str) and part.strip()]
    return Plan(texts[:MAX_PARTS], how.strip()[:MAX_PART] if isinstance(how, str) else "")


def objects_in(text: str) -> list[dict]:
    """Return the JSON objects in a text, whatever is between them."""
    decoder, at, found = json.JSONDecoder(strict=False), 0, []
    text = text[:MAX_REPLY]
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
        except (ValueError, RecursionError):
            at += 1
    return found


def result_in(text: str) -> str:
    """Return the model's result of a subproblem: the result of its JSON, else its whole text."""
    found = next((found["result"] for found in objects_in(text) if "result" in found), text.strip())
    return str(found)[:MAX_PART]


def prediction_in(text: str) -> float | None:
    """Return the model's prediction: the final_answer of its JSON, else the last number in its text."""
    found = next((found["final_answer"] for found in objects_in(text) if "final_answer" in found), None)
    if type(found) in (int, float) and abs(found) < 1e300 and isfinite(found):
        return float(found)
    said = final_number(found) if isinstance(found, str) else None
    return final_number(text[:MAX_REPLY]) if said is None else said


def content_words(part: str) -> Counter:
    """Return how often each content word occurs in a subproblem; without one its other words count, else its text."""
    words = WORD.findall(part.lower())
    kept = [word for word in words if not STOP.fullmatch(word)] or words or [part]
    return Counter(word[:STEM] if word.isalpha() else word for word in kept)


def independence(vectors: Iterable[dict]) -> float:
    """Return 1 - the mean cosine of all pairs of vectors {index: value}, clamped to 0..1; 0.5 for fewer than two."""
    if len(vectors := list(vectors)) < 2:
        return 0.5
    lengths = [sqrt(sum(x * x for x in vector.values())) or 1.0 for vector in vectors]
    units = [{at: x / length for at, x in vector.items()} for vector, length in zip(vectors, lengths, strict=True)]
    pairs = [(one, other) for i, one in enumerate(units) for other in units[:i]]
    cosines = [sum(x * other.get(at, 0.0) for at, x in one.items()) for one, other in pairs]
    return min(max(1 - sum(cosines) / len(cosines), 0.0), 1.0)
