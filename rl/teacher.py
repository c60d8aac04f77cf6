"""The teacher of on-policy distillation (rl/opd.py): the log-probability of each sampled token under another policy.

    opd.teacher=FOLDER       an adapter of the run's base, or a run's best (rl/config/words.py): one base serves both
    opd.teacher=CHECKPOINT   a folder with another model, which must have the run's tokenizer; a second model in memory
    opd.teacher=             the base
    opd.teacher=policy       the adapter that trains, as it is at the start of the update

With opd.privileged=true the teacher reads the solution behind the prompt: what the environment's expert replies in this
task, and of qa the answer. The rest of the episode follows as it was played, token by token. Grades are at the run's
temperature, as the sampled log-probabilities are.
"""

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import lora
from envs import EnvironmentFailed
from envs.demos import expert
from lora.peft_files import is_adapter
from models import CausalLM, Tokenizer, load_model
from models.weights import local, resolve
from rl import ranks
from rl.batch import likeliest, policy_logprobs, select
from rl.config.fields import Config
from rl.config.refusals import Refusal
from rl.records import Batch, Episode
from rl.run import bases
from rl.tasks import failures_of, make_env
from rl.tools import as_text

SOLUTION = "\n\nThe solution, reply by reply:\n\n"  # between the prompt's last message and the expert's replies


@dataclass
class Teacher:
    """A frozen policy that grades the tokens of another."""

    model: CausalLM  # the run's own, or another checkpoint
    adapter: str | None  # the adapter of it that grades; None: its base
    tokenizer: Tokenizer
    words: int  # rows of the policy's vocabulary, which may have fewer rows of padding than the teacher's

    def graded(self, batch: Batch, cfg: Config, micro_tokens: int) -> Batch:
        """Return the batch with teacher_logprobs_N and, for top_k, choices_N and teacher_choices_N.

        Episodes of a task whose expert fails are left out.
        """
        algo: Any = cfg.algorithm  # Algorithm has only what the loop reads
        read = batch
        if algo.privileged:
            prompts = solved_prompts(batch.episodes, self.tokenizer, cfg)
            solved = [b for b, e in enumerate(batch.episodes) if (e.env, e.seed) in prompts]
            batch = select(batch, solved) if len(solved) < len(batch.episodes) else batch
            read = replace(batch, episodes=with_solutions(batch.episodes, prompts))
        most = self.model.config.max_position_embeddings
        longest = max(kept + stop - start for e in read.episodes for kept, start, stop in e.samples)
        if longest > most:
            raise Refusal(f"{cfg.algo}: the teacher reads {most} tokens at most, and an episode has {longest}")
        with lora.use_adapter(self.model, self.adapter):
            if not algo.top_k:
                logprobs_N = policy_logprobs(read, self.model, cfg.temperature, micro_tokens)
                return replace(batch, teacher_logprobs_N=logprobs_N)
            logprobs_N, ids, values = likeliest(read, self.model, cfg.temperature, micro_tokens, algo.top_k, self.words)
        return replace(batch, teacher_logprobs_N=logprobs_N, choices_N=ids, teacher_choices_N=values)


def load(cfg: Config, tokenizer: Tokenizer, model: CausalLM) -> Teacher | None:
    """Return the teacher of an algorithm whose settings name one, else None. Its adapter is put into the run's model.

    Raise ValueError, one line, for a folder that is neither an adapter nor a checkpoint, another base or tokenizer.
    """
    name, words = getattr(cfg.algorithm, "teacher", None), len(model.lm_head.weight)
    if name is None:
        return None
    if (top_k := getattr(cfg.algorithm, "top_k", 0)) > words:
        raise Refusal(f"{cfg.algo}.top_k={top_k} is more than the {words} words of {cfg.model}")
    if name in ("", "policy"):
        return Teacher(model, "default" if name and cfg.lora.r else None, tokenizer, words)
    key = f"{cfg.algo}.teacher"
    base = resolve(cfg.model)
    if is_adapter(Path(name)):
        bases.check(Path(name), base, model.config.quant)
        lora.load_adapter(model, Path(name), name="teacher", trainable=False)
        return Teacher(model, "teacher", tokenizer, words)
    checkpoint = local(name)
    if checkpoint is None or not (checkpoint / "config.json").is_file():
        raise Refusal(f"{key}={name}: neither an adapter, a run with one, nor a checkpoint on this machine")
    theirs, ours = bases.texts(checkpoint, of=base), bases.texts(base)
    if theirs["tokenizer"] != ours["tokenizer"] and not bases.same_ids(checkpoint, base):
        raise Refusal(f"{key}={name}: its tokenizer is not that of {cfg.model}, so their tokens cannot be compared")
    if theirs["template"] != ours["template"]:
        print(f"{key}={name} has another chat template than {cfg.model}, whose prompts it reads")
    teacher = load_model(name, getattr(torch, cfg.dtype), cfg.device, cfg.exact, cfg.quant)
    if len(teacher.lm_head.weight) < words:
        raise Refusal(f"{key}={name} has {len(teacher.lm_head.weight)} words, and {cfg.model} {words}")
    return Teacher(teacher, None, tokenizer, words)


Prompts = dict[tuple[str, int], tuple[list[int], list[int]]]  # (environment, seed): what `prompts_of` returns


def solved_prompts(episodes: list[Episode], tokenizer: Tokenizer, cfg: Config) -> Prompts:
    """Return the prompts of the episodes' tasks, without those whose expert fails. Raise EnvironmentFailed for none."""
    prompts, failures = {}, {}
    for task in dict.fromkeys((episode.env, episode.seed) for episode in episodes):
        try:
            prompts[task] = prompts_of(*task, tokenizer, cfg)
        except EnvironmentFailed as error:
            failures[task] = error
    for task in chain(*ranks.together(lambda: list(failures))):  # or ranks would learn from different episodes
        prompts.pop(task, None)
    first = next(iter(failures.values()), EnvironmentFailed("on another rank an expert fails"))
    if not prompts:
        raise first
    if failures:
        tqdm.write(f"the expert fails in {len(failures)} tasks, whose episodes are left out; the first: {first}")
    return prompts


def with_solutions(episodes: list[Episode], prompts: Prompts) -> list[Episode]:
    """Return the episodes with the expert's solution behind their prompts. Their turns keep the places that they had.

    Raise ValueError if an episode does not begin with its task's prompt.
    """
    found = []
    for episode in episodes:
        (plain, privileged), start = prompts[episode.env, episode.seed], episode.turns[0].start
        if episode.ids_T[:start] != plain:
            raise Refusal(f"an episode of {episode.env} does not begin as its task does under these settings")
        ids_T, mask_T = privileged + episode.ids_T[start:], [0] * len(privileged) + episode.action_mask_T[start:]
        found.append(replace(episode, ids_T=ids_T, action_mask_T=mask_T))
    return found


def prompts_of(name: str, seed: int, tokenizer: Tokenizer, cfg: Config) -> tuple[list[int], list[int]]:
    """Return the ids of a training task's prompt, and of the prompt with what the expert replies in this task."""
    env, replies, over = make_env(cfg, name), [], False
    with failures_of(name):
        messages = env.reset(seed, "train")
        while not over:
            action = expert(env)
            replies.append(as_text(action, env))
            step = env.step(action)
            over = step.terminated or step.truncated
    *earlier, last = messages
    solved = {**last, "content": last["content"] + SOLUTION + "\n\n".join(replies)}
    return tokenizer.prompt(messages), tokenizer.prompt([*earlier, solved])
