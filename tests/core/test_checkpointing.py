"""Gradient checkpointing by block: the same bits, and a block's input alone kept for the backward."""

import pytest
import torch
from conftest import random_model
from live_storage import LiveStorage
from test_quant import quantised

import lora
from models import fast_matmul
from models.decoder import checkpoint_blocks
from models.hooks import hooks, nothing_faster
from models.logprob import token_logprobs
from models.quant import KINDS

SEQUENCES_ST = torch.tensor([[0, 1, 2, 3, 4, 5, -1], [0, 1, 2, 6, 7, 8, 9]])  # they share a prompt
WANTED = torch.tensor([2, 3, 4, 7, 9])


def gradients(model, checkpointed: bool) -> dict[str, torch.Tensor]:
    if checkpointed:
        checkpoint_blocks(model)
    torch.manual_seed(1)  # of dropout
    hidden_ND = model(torch.arange(10)[None], sequences_ST=SEQUENCES_ST, wanted=WANTED)
    logprobs_N = token_logprobs(hidden_ND, model.lm_head.weight, WANTED)[0]
    with fast_matmul():
        logprobs_N.square().sum().backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {"logprobs": logprobs_N.detach()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["lora", "dropout", "every weight", *KINDS])
def test_checkpointing_changes_no_bit_of_a_gradient(dtype, kind):
    found = []
    for checkpointed in (False, True):
        model = random_model("qwen3", dtype=dtype).requires_grad_(kind == "every weight")
        if kind in KINDS:
            model, _ = quantised(model, kind)
        if kind != "every weight":
            torch.manual_seed(0)
            lora.inject(model, r=4, dropout=0.3 if kind == "dropout" else 0.0)
            for _, layer in lora.lora_layers(model):
                torch.nn.init.normal_(layer.adapter.B)
        found.append(gradients(model.train(kind == "dropout"), checkpointed))
    plain, again = found
    assert plain.keys() == again.keys() and len(plain) > 14
    assert not [name for name in plain if not torch.equal(plain[name], again[name])]


def bytes_kept(model, N: int) -> int:
    """Return the bytes that a forward of N tokens leaves for the backward."""
    model(torch.zeros(1, N, dtype=torch.long)).sum().backward()  # makes oneDNN's copies of the weights
    with LiveStorage() as live:
        hidden = model(torch.zeros(1, N, dtype=torch.long))
        hidden.sum()
        return live.live


def held(checkpointed: bool, layers: int, N: int = 256) -> int:
    model = random_model(num_hidden_layers=layers, dtype=torch.bfloat16).requires_grad_(False)
    lora.inject(model, r=4)
    if checkpointed:
        checkpoint_blocks(model)
    return bytes_kept(model, N)


def test_a_checkpointed_block_keeps_only_its_input(monkeypatch):
    width, N = 48, 256
    kept, lean = ((held(on, 3) - held(on, 2)) / N for on in (True, False))
    assert kept == width * 2, "a token's input in bfloat16"
    monkeypatch.setattr(hooks("cpu"), "train_block", nothing_faster)
    plain = (held(False, 3) - held(False, 2)) / N
    assert plain > 20 * kept and plain > lean > 14 * kept
