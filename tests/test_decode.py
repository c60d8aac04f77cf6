"""The stacked step: the decoder's own bits, whatever the family, the adapters and the rows."""

import pytest
import torch
from conftest import random_model, randomize

import lora
from models import decode
from models.cache import KVCache
from models.generate import Engine

WIDE = {"intermediate_size": 96}  # whole vectors: what is computed on a slice is then what is computed on a copy


def adapted(family: str, **how):
    model = random_model(family, **WIDE)
    lora.inject(model, **{"r": 16, "alpha": 48, **how})
    return randomize(model).eval()


MODELS = {
    "qwen2, biases": lambda: random_model("qwen2", **WIDE),
    "qwen3, norms of q and k": lambda: random_model("qwen3", **WIDE),
    "llama, as many key heads": lambda: random_model("llama", num_key_value_heads=4, **WIDE),
    "qwen2 with adapters": lambda: adapted("qwen2"),
    "qwen3 with adapters": lambda: adapted("qwen3", r=32),
    "adapters on some": lambda: adapted("qwen3", targets=["q_proj", "v_proj", "up_proj", "down_proj"]),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [1, 16, 23])
@torch.no_grad()
def test_a_step_is_bitwise_the_decoder(name, rows):
    model, generator = MODELS[name](), torch.Generator().manual_seed(rows)
    step, caches = decode.Step(model), [KVCache(model, rows) for _ in range(2)]
    starts_B = torch.randint(0, 150, (rows,), generator=generator)  # of three blocks of keys
    longest = int(starts_B.max()) + 1
    ids_BT = torch.randint(0, 97, (rows, longest), generator=generator)
    for cache in caches:
        positions_BT = torch.arange(longest).expand(rows, longest)
        model(ids_BT, positions_BT, cache=cache.view(torch.arange(rows), torch.zeros(rows, dtype=torch.long), longest))
    for turn in range(3):
        ids_B, positions_B = ids_BT[:, turn % longest], starts_B + turn
        views = [cache.view(torch.arange(rows), positions_B, 1) for cache in caches]
        expected = model(ids_B[:, None], positions_B[:, None], cache=views[0])[:, 0]
        assert torch.equal(step(ids_B, positions_B, views[1]), expected)
    for a, b in zip((*caches[0].keys, *caches[0].values), (*caches[1].keys, *caches[1].values), strict=True):
        assert torch.equal(a, b)


@torch.no_grad()
def test_a_step_that_differs_in_a_bit_is_not_used(monkeypatch):
    model = adapted("qwen3")
    assert decode.exact_step(model) is not None
    monkeypatch.setattr(decode, "rotate", lambda x, cos, sin: x * (1 + 2**-23))
    assert decode.exact_step(model) is None


@pytest.mark.parametrize("change", ["bfloat16", "scales", "large"])
def test_models_that_cannot_be_stacked(change, monkeypatch):
    model = adapted("qwen2")
    if change == "bfloat16":
        model = model.bfloat16()
    elif change == "scales":
        model.model.layers[1].mlp.up_proj.adapters["default"].scale = 0.5
    else:
        monkeypatch.setattr(decode, "SMALL", 1000)
    assert decode.exact_step(model) is None


@torch.no_grad()
def test_the_engine_stacks_anew_when_the_weights_change():
    model = adapted("qwen3")
    engine = Engine(model, 4, 64, lora.adapter_version(model))

    def sampled(engine):
        slot = engine.open((0, 1))
        engine.feed(slot, [5, 6, 7])
        (row,) = engine.run(12, 1.0, frozenset())
        engine.close(slot)
        return row.logprobs

    before = sampled(engine)
    with lora.adapters_off(model):
        base = sampled(engine)
    model.model.layers[0].self_attn.v_proj.adapters["default"].B.mul_(3)
    after = sampled(engine)
    assert before != base and before != after and after != base
    assert after == sampled(Engine(model, 4, 64))
