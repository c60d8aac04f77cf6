"""Full fine-tuning, lora.r=0: every weight of the model trains, and there is no frozen base.

A bfloat16 weight has 8 significant bits, so a step of less than 1/512 of its size rounds to nothing: at lr=1e-5 AdamW
would move one weight in six. So the optimizer steps on float32 copies ("master weights", Micikevicius et al. 2018,
section 3.1), into which the gradients of the micro-batches are also added up, and the model's weights are these copies
rounded. Checkpoints to resume from hold the copies; the model that `save` writes keeps its dtype.
"""

import json
from pathlib import Path

import torch

from models import CausalLM, Tokenizer
from models.export import save_model
from rl import ranks
from rl.ranks import saving
from rl.run.state import TrainState


def train_all(model: CausalLM) -> None:
    """Make every weight trainable, and print one line."""
    model.requires_grad_(True)
    copied = "" if model.lm_head.weight.dtype == torch.float32 else ", in float32 copies of the weights"
    count = sum(p.numel() for p in model.parameters())
    print(f"lora off: all {count:,} parameters train{copied}; the other keys of lora.* have no effect")


def use_masters(state: TrainState) -> None:
    """Make the optimizer step on a float32 copy of each of the model's parameters, and round it into the parameter. The
    shares of rl/ranks/shard.py are such copies already."""
    if ranks.here.shards is not None:
        return
    state.masters = {name: _master(p) for name, p in state.model.named_parameters()}
    state.optimizer.param_groups[0]["params"] = list(state.masters.values())
    state.optimizer.register_step_post_hook(lambda *_: round_masters(state))


def _master(p: torch.nn.Parameter) -> torch.Tensor:
    """Return a float32 copy of a parameter, to whose gradient each gradient of the parameter is moved."""
    master = p.detach().float()

    # After each backward, so that a 16-bit gradient is held for one micro-batch and the sum is float32.
    def move_gradient(p: torch.Tensor) -> None:
        grad, p.grad = p.grad.float(), None
        master.grad = grad if master.grad is None else master.grad.add_(grad)

    p.register_post_accumulate_grad_hook(move_gradient)
    return master


@torch.no_grad()
def round_masters(state: TrainState) -> None:
    """Set the model's parameters to their float32 copies, rounded."""
    for name, p in state.model.named_parameters():
        p.copy_(state.masters[name])


def save(model: CausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the whole model as a checkpoint that load_model reads."""
    raw = json.loads((tokenizer.folder / "config.json").read_text())
    dtype = next(model.parameters()).dtype if ranks.here.shards is None else ranks.here.shards.dtype
    if ranks.is_first():
        save_model(model, folder, raw, dtype, saving.whole)
    else:
        for p in model.parameters():  # every rank sends its rows of each tensor that the first one makes whole
            saving.whole(p)
