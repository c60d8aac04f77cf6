"""Supervised fine-tuning on demonstrations: maximise the log-probability of an expert's replies.

loss = - sum over the expert's tokens of log pi(token) / number of them in the optimizer step

Does not differ from the textbook. The demonstrations are those of the environment's expert, or the rows of a file
(`data=rows.jsonl`, rl/data.py), all of which each epoch learns. Prompts and observations are not trained on, except
with `sft.all_tokens=true`. The dropout of `lora.dropout` is active here, and only here. Log-probabilities are at
temperature 1, whatever `temperature=` says.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from rl.config.arguments import Positive
from rl.records import Batch


@dataclass(frozen=True)
class Config:
    epochs: Positive[int] = 1  # passes over each epoch's demonstrations
    all_tokens: bool = False  # also train on prompts and observations, as in pre-training
    prompt_column: str = "prompt"  # column of the prompt in data= files of prompt/answer rows
    answer_column: str = "answer"  # column of the answer there

    source: ClassVar[str] = "demonstrations"
    group_size: ClassVar[int] = 1
    critic: ClassVar[bool] = False
    reference: ClassVar[bool] = False
    entropy_grad: ClassVar[bool] = False
    drops_zero_advantage: ClassVar[bool] = False
    target_kl: ClassVar[float | None] = None


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Return the batch with advantage 1 for every token of the expert."""
    return replace(batch, advantages_N=torch.ones_like(batch.old_logprobs_N))


def loss(batch: Batch, cfg: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """Return (loss, metrics); each metric is this piece's share of the optimizer step's mean."""
    nll = -(batch.advantages_N * batch.logprobs_N).sum() / batch.total_tokens
    return nll, {"loss": nll.item(), "entropy": batch.entropy_N.detach().sum().item() / batch.total_tokens}
