"""Supervised fine-tuning on demonstrations: maximise the log-probability of what an expert did.

loss = - sum over the expert's tokens of log pi(token) / number of them in the optimizer step

Differs from the textbook in nothing. The expert is the environment's own, or a file (`data=rows.jsonl`, see
rl/data.py), of which a pass is an epoch. The tokens of the prompt and of the environment are read and never trained on.
The dropout of `lora.dropout` is on here, and only here.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from rl.arguments import Positive
from rl.records import Batch


@dataclass(frozen=True)
class Config:
    epochs: Positive[int] = 1  # passes over each epoch's demonstrations
    all_tokens: bool = False  # train on what is read as well, prompt and observations: pre-training
    prompt_column: str = "prompt"  # of data=, where a row is a prompt and its answer
    answer_column: str = "answer"  # of data=, likewise

    source: ClassVar[str] = "demonstrations"
    group_size: ClassVar[int] = 1
    critic: ClassVar[bool] = False
    reference: ClassVar[bool] = False
    entropy_grad: ClassVar[bool] = False
    target_kl: ClassVar[float | None] = None


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Every token of the expert counts the same."""
    return replace(batch, advantages_N=torch.ones_like(batch.old_logprobs_N))


def loss(batch: Batch, cfg: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """(loss, metrics); the metrics are this piece's share of the optimizer step's means."""
    nll = -(batch.advantages_N * batch.logprobs_N).sum() / batch.total_tokens
    return nll, {"loss": nll.item(), "entropy": batch.entropy_N.detach().sum().item() / batch.total_tokens}
