"""Compare a merged checkpoint with the model and adapter that it was made from, where the agent speaks: on held-out
tasks of the run's environment. merge.py uses it.

A probe is a task's prompt and its expert's first reply. Compared are the distributions of each token of the reply.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from envs import EnvironmentFailed
from models import Tokenizer, load_tokenizer
from rl.config import arguments, fields
from rl.config.fields import Config
from rl.config.refusals import Refusal
from rl.config.words import resolve
from rl.evaluate import EVAL_STREAM
from rl.judge import adapter_settings
from rl.peaks import MOST_TOKENS
from rl.tasks import make_env, make_tasks, mixture
from rl.tools import write_reply

SPLIT = "test"


@dataclass(frozen=True)
class Probes:
    """Sequences of tokens, and the places whose next-token distributions are compared."""

    ids_BT: torch.Tensor  # padded on the right, where causal attention of earlier tokens does not look
    wanted: torch.Tensor  # indices in ids_BT.flatten()
    sentence: int  # how many of them, the first ones, belong to the sentence that no environment made
    env: str = ""  # as in env=; empty without held-out tasks
    reason: str = ""  # why there are none

    @property
    def count(self) -> int:
        """Number of held-out prompts."""
        return len(self.ids_BT) - 1


def make_probes(tokenizer: Tokenizer, sentence: str, adapter: Path, base: str, prompts: int, device: str) -> Probes:
    """Return the sentence and, unless there is a reason against them, `prompts` held-out tasks of the adapter's run.

    Raise ValueError if the environment fails, such as its sandbox.
    """
    ids = tokenizer.encode(sentence)
    rows, spans, env = [ids], [range(len(ids))], ""
    if not (reason := _reason_against(prompts, adapter_settings.settings_of(adapter))):
        words = adapter_settings.with_settings([f"model={base}"], [str(adapter)])
        cfg = resolve(arguments.split(words))
        env, tokenizer = cfg.env, load_tokenizer(base, cfg.thinking, cfg.history == "template")
        for task in make_tasks(cfg, 0, prompts, 1, SPLIT, EVAL_STREAM, cfg.order):
            prompt, reply = _prompt_and_reply(tokenizer, cfg, task)
            rows.append(prompt + reply)
            spans.append(range(len(prompt) - 1, len(prompt) + max(len(reply), 1) - 1))
    longest = max(map(len, rows))
    ids_BT = torch.stack([F.pad(torch.tensor(row), (0, longest - len(row))) for row in rows])
    wanted = [number * longest + place for number, span in enumerate(spans) for place in span]
    return Probes(ids_BT.to(device), torch.tensor(wanted, device=device), len(ids), env, reason)


def _reason_against(prompts: int, settings: dict[str, Any] | None) -> str:
    """Return why no held-out task of a run with these settings is compared, or ""."""
    if not prompts:
        return "prompts=0"
    if settings is None:
        return "no training_config.json says what a run played"
    if settings.get("data"):
        return "the run learned the rows of data=, not tasks"
    if programs := adapter_settings.programs(settings):
        return f"the run's {programs[0]}= is a program, which is not executed here"
    if "http" in mixture(str(settings.get("env", fields.Config.env))):
        return "the tasks of env=http are a server's"
    return ""


def _prompt_and_reply(tokenizer: Tokenizer, cfg: Config, task: Any) -> tuple[list[int], list[int]]:
    """Return the ids of a task's prompt and of its expert's first reply, which is empty without an expert."""
    try:
        env = make_env(cfg, task.env)
        prompt = tokenizer.prompt(env.reset(task.seed, task.split))[: cfg.max_len]
    except (EnvironmentFailed, ValueError) as error:
        raise Refusal(f"env={task.env}: no held-out prompt ({error}); prompts=0 merges without") from None
    try:
        reply = env.oracle()
    except RuntimeError:
        return prompt, []
    return prompt, write_reply(tokenizer, reply, env)[:MOST_TOKENS]


def certificate(probes: Probes, expected_NV: torch.Tensor, found_NV: torch.Tensor) -> dict | None:
    """Return how far the log-probabilities of the held-out replies are apart; None without held-out tasks.

    "kl": mean and "kl_max": largest KL(expected || found) of a token in nats. "greedy_agreement": share of tokens with
    the same most likely one.
    """
    if not probes.env:
        return None
    expected_NV, found_NV = expected_NV[probes.sentence :], found_NV[probes.sentence :]
    kl_N = (expected_NV.exp() * (expected_NV - found_NV)).sum(-1)
    return {
        "env": probes.env,
        "split": SPLIT,
        "prompts": probes.count,
        "tokens": len(kl_N),
        "kl": kl_N.mean().clamp(min=0).item(),  # of equal distributions rounding may be below 0
        "kl_max": kl_N.max().item(),
        "greedy_agreement": (expected_NV.argmax(-1) == found_NV.argmax(-1)).float().mean().item(),
        "largest_difference": (expected_NV - found_NV).abs().max().item(),
    }


def describe(gaps: dict) -> str:
    """Return the certificate as one line."""
    head = f"{gaps['prompts']} held-out prompts of {gaps['env']}, {gaps['tokens']} tokens of the expert's replies"
    kl = f"KL {gaps['kl']:.2g} nats per token (largest {gaps['kl_max']:.2g})"
    greedy = f"the same most likely token in {gaps['greedy_agreement']:.1%}"
    return f"{head}: {kl}, {greedy}, largest difference of a log-probability {gaps['largest_difference']:.2g}"


def shortfall(gaps: dict | None, max_kl: float, min_agreement: float) -> str:
    """Return what is out of bounds in a certificate, or ""."""
    if gaps and not gaps["kl"] <= max_kl:
        return f"KL {gaps['kl']:.2g} nats per token on held-out prompts, more than max_kl={max_kl:g}"
    if gaps and not gaps["greedy_agreement"] >= min_agreement:
        least = f"less than min_agreement={min_agreement:g}"
        return f"the same most likely token in {gaps['greedy_agreement']:.1%} of the held-out replies, {least}"
    return ""
