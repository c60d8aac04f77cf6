"""Training on a CPU: an MLP keeps the outputs of gate_proj and up_proj, and gradients keep their bits."""

import itertools

import pytest
import torch
from conftest import random_model
from test_checkpointing import bytes_kept, gradients

import lora
from benchmarks.sides import SHAPES
from models.config import parse_config
from models.cpu import block
from models.hooks import hooks, nothing_faster
from models.sizes import sizes_of
from rl import peaks
from rl.config.words import parse

pytestmark = pytest.mark.all_only

INNER = 128  # a multiple of models/elementwise.py's VECTORS, so that nothing is padded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("act", ["silu", "gelu"])
@pytest.mark.parametrize("kind", ["all-linear", "attention", "dropout", "every weight"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_mlp_computed_again_changes_no_bit_of_a_gradient(dtype, act, kind, checkpointed, monkeypatch):
    found, calls = [], []
    lean = lambda *args: calls.append(0) or block.train_block(*args)  # noqa: E731
    for slot in (nothing_faster, lean):
        monkeypatch.setattr(hooks("cpu"), "train_block", slot)
        model = random_model("qwen3", dtype=dtype, hidden_act=act).requires_grad_(kind == "every weight")
        if kind != "every weight":
            torch.manual_seed(0)
            lora.inject(model, r=4, targets="attention" if kind == "attention" else "all-linear")
            for _, layer in lora.lora_layers(model):
                layer.dropout = 0.3 if kind == "dropout" else 0.0
                torch.nn.init.normal_(layer.adapter.B)
        found.append(gradients(model.train(kind == "dropout"), checkpointed))
    plain, again = found
    assert calls and plain.keys() == again.keys() and len(plain) > 8
    assert not [name for name in plain if not torch.equal(plain[name], again[name])]


def kept(words: list[str], family: str, layers: int, N: int) -> int:
    cfg = parse(["device=cpu", *words])
    model = random_model(family, dtype=getattr(torch, cfg.dtype), num_hidden_layers=layers, intermediate_size=INNER)
    if cfg.lora.r:
        lora.inject(model, r=cfg.lora.r)
    return bytes_kept(model, N)


QUICK = (("qwen3", "r=20 dtype=bfloat16"), ("qwen2", "r=0 dtype=bfloat16"), ("qwen2", "r=4 dtype=float32"))
EVERY = itertools.product(
    ("qwen2", "qwen3"), ("r=4 dtype=bfloat16", "r=20 dtype=bfloat16", "r=0 dtype=bfloat16", "r=4 dtype=float32")
)


@pytest.mark.parametrize(
    ("family", "words"), [pytest.param(*case, marks=[pytest.mark.full] * (case not in QUICK)) for case in EVERY]
)
def test_a_layer_keeps_the_planned_bytes_on_a_cpu(family, words):
    words = f"lora.{words}".split()
    found = [kept(words, family, layers, N) for layers, N in ((2, 128), (3, 128), (2, 256), (3, 256))]
    of_a_token = (found[3] - found[2] - (found[1] - found[0])) / 128
    sizes = sizes_of(random_model(family, intermediate_size=INNER).config)
    assert peaks.kept(sizes, parse(["device=cpu", *words])) == pytest.approx(of_a_token, rel=0.15)


@pytest.mark.parametrize(("dtype", "norms", "others"), [("bfloat16", 12, 2), ("float32", 16, 4)])
def test_a_layer_keeps_less_than_two_thirds_of_the_plain_code(dtype, norms, others):
    """Of Qwen2.5-0.5B's shape, with adapters on all layers. The plain code keeps each norm's input in float32, as well
    as in the dtype of the weights if that is another, and its output."""
    sizes = sizes_of(parse_config(SHAPES["0.5b"]))
    plain = norms * sizes.D + others * (4 * sizes.Q + 3 * sizes.K + 4 * sizes.I)
    assert peaks.kept(sizes, parse(["device=cpu", f"dtype={dtype}", "lora.r=16"])) < plain * 2 / 3
