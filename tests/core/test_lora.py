"""LoRA: an adapter's effect on a model, its switches, and folding. test_lora_files.py tests its files."""

import math

import pytest
import torch
from cases import cases
from conftest import EXPERTS, randomize
from torch import nn

import lora
from models import CausalLM
from models.config import FAMILIES, parse_config
from models.linear import Linear, joint_linear
from models.logprob import head_logits

CASES = cases("lora")

IDS_BT = torch.tensor([[3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9], [3, 2, 3, 8, 4, 6, 2, 64, 3, 38, 32, 7]])
LEAVES = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def raw_config(family: str = "qwen3", **changes) -> dict:
    sizes = dict(vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    sizes |= dict(num_key_value_heads=2, head_dim=8, max_position_embeddings=512, rms_norm_eps=1e-6)
    rope = {"rope_theta": 10000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    if family == "olmo3":
        rope["rope_parameters"] = dict.fromkeys(("full_attention", "sliding_attention"), rope["rope_parameters"])
    sizes |= {"pad_token_id": None} if family in ("smollm3", "phi3") else {}  # whose default is beyond the vocabulary
    sizes |= EXPERTS if family == "qwen3_moe" else {}
    return {"model_type": family, **sizes, **rope, "hidden_act": "silu", "tie_word_embeddings": False, **changes}


def tiny_model(family: str = "qwen3", dtype: torch.dtype = torch.float32, seed: int = 0, **changes) -> CausalLM:
    """Return a small random model."""
    return randomize(CausalLM(parse_config(raw_config(family, **changes))), seed).to(dtype).eval()


def adapted_model(seed: int = 0, name: str = "default", **keys) -> CausalLM:
    """Return a small model with an adapter that changes its output."""
    return awake(injected(tiny_model(), seed, name=name, **{"r": 4, "alpha": 6, **keys}), seed, name)


def injected(model: CausalLM, seed: int = 0, **keys) -> CausalLM:
    torch.manual_seed(seed)
    lora.inject(model, **keys)
    return model


def awake(model: CausalLM, seed: int = 0, name: str = "default") -> CausalLM:
    """Return the model with random B, as after training."""
    draw = torch.Generator().manual_seed(seed)
    for _, layer in lora.lora_layers(model):
        if name in layer.adapters:
            B = layer.adapters[name].B
            B.data = torch.randn(B.shape, generator=draw) * 0.2
    return model


def logits(model: CausalLM) -> torch.Tensor:
    with torch.no_grad():
        hidden_ND = model(IDS_BT).flatten(0, 1)
        return head_logits(hidden_ND, model.lm_head.weight, 1.0)


def close(a: torch.Tensor, b: torch.Tensor, atol: float, rtol: float = 0.0) -> None:
    torch.testing.assert_close(a, b, atol=atol, rtol=rtol)


# What an adapter does


def test_a_is_kaiming_uniform_and_b_is_zero():
    model = injected(tiny_model(hidden_size=128, intermediate_size=256, head_dim=32), r=16)
    for path, layer in lora.lora_layers(model):
        adapter, bound = layer.adapters["default"], layer.base_layer.in_features**-0.5
        assert adapter.A.shape == (16, layer.base_layer.in_features), path
        assert 0.97 * bound < adapter.A.abs().max() <= bound, path
        assert adapter.A.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), path
        assert adapter.B.shape == (layer.base_layer.out_features, 16) and not adapter.B.any(), path


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_injection_leaves_the_output_bitwise_as_it_was(family, dtype):
    model = tiny_model(family, dtype).requires_grad_(False)
    before = logits(model)
    lora.inject(model, r=4, dropout=0.5)
    assert torch.equal(logits(model), before)
    trainable = {name.rsplit(".", 1)[-1] for name, p in model.named_parameters() if p.requires_grad}
    assert trainable == {"A", "B"}


def test_a_trainable_base_gets_its_gradient():
    model = awake(injected(tiny_model(), r=4)).requires_grad_(True)
    model(IDS_BT).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for name, p in model.named_parameters() if "lm_head" not in name)


def test_b_learns_at_step_0_and_a_from_step_1_on():
    model = injected(tiny_model(), r=4)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(trainable.values(), lr=0.1)
    for step in (0, 1):
        optimizer.zero_grad()
        model(IDS_BT).square().sum().backward()
        for name, p in trainable.items():
            assert bool(p.grad.any()) == (name.endswith("B") or step == 1), (step, name)
        optimizer.step()
    assert all(p.grad is None for name, p in model.named_parameters() if name not in trainable)


def test_frozen_base_passes_the_gradient_and_gets_none():
    """The gradient of the input uses W + scale * B A, transposed."""
    layer = nn.Linear(5, 7).double()
    model = nn.ModuleDict({"q_proj": layer})
    lora.inject(model, r=2, alpha=3)
    adapter = model["q_proj"].adapters["default"].double()
    nn.init.normal_(adapter.B)
    x, dy = torch.randn(4, 5, dtype=torch.float64, requires_grad=True), torch.randn(4, 7, dtype=torch.float64)
    model["q_proj"](x).backward(dy)
    close(x.grad, dy @ (layer.weight + 1.5 * adapter.B @ adapter.A), 1e-12)
    close(adapter.B.grad, 1.5 * dy.mT @ (x @ adapter.A.mT), 1e-12)
    close(adapter.A.grad, 1.5 * (dy @ adapter.B).mT @ x, 1e-12)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 6 / 4), (True, 6 / 2)])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
@pytest.mark.parametrize("bias", [False, True])
def test_the_formula(rslora, scale, shape, bias):
    """y = W x + b + alpha / r * B A x, or alpha / sqrt(r) with rslora."""
    torch.manual_seed(0)
    for kind in (nn.Linear, Linear):  # by the formula as written, and by the fused function
        base = kind(5, 7, bias=bias)
        model = nn.ModuleDict({"up_proj": base})
        lora.inject(model, r=4, alpha=6, rslora=rslora)
        layer, x = model["up_proj"], torch.randn(shape)
        assert layer.fuses() == (kind is Linear)
        nn.init.normal_(layer.adapter.B)
        close(layer(x), base(x) + scale * x @ layer.adapter.A.mT @ layer.adapter.B.mT, 1e-5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_the_fused_function_matches_the_formula(dropout, rslora, bias, monkeypatch):
    """Values and gradients of three layers of one input, the second without an adapter; dropout off in eval mode."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Linear(6, out, bias=bias) for out in (7, 4, 5)).double()
    lora.inject(layers, r=3, alpha=5, targets=["0", "2"], dropout=dropout, rslora=rslora)
    layers.double().eval()
    for layer in (layers[0], layers[2]):
        nn.init.normal_(layer.adapter.B)
    x = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    wanted = [x, *(p for p in layers.parameters() if p.requires_grad)]

    def results():
        ys = joint_linear(x, *layers)
        return (*ys, *torch.autograd.grad(sum((y.sin() * (i + 1)).sum() for i, y in enumerate(ys)), wanted))

    assert layers[0].fuses() and layers[2].fuses()
    fused = results()
    with monkeypatch.context() as patch:
        patch.setattr(lora.LoRALinear, "fuses", lambda self: False)
        assert len(fused) == 3 + 1 + 4 and all(result.any() for result in fused)
        torch.testing.assert_close(fused, results(), atol=1e-12, rtol=1e-12)
    layers.train()
    assert layers[0].fuses() == (dropout == 0)
    if dropout:
        assert not torch.equal(results()[0], fused[0]) and torch.equal(results()[1], fused[1])


@pytest.mark.parametrize("fuses", [False, True])
@pytest.mark.parametrize("recomputed", [False, True])
def test_the_lean_function_matches_the_formula(recomputed, fuses, monkeypatch):
    """Outputs side by side and all gradients, with x kept or computed again, and where the layers do not fuse."""
    torch.manual_seed(0)
    layers = nn.ModuleList(Linear(6, out) for out in (7, 4, 5)).double()
    lora.inject(layers, r=3, alpha=5, targets=["0", "2"])
    layers.double()
    for layer in (layers[0], layers[2]):
        nn.init.normal_(layer.adapter.B)
    kept = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
    wanted = [kept, *(p for p in layers.parameters() if p.requires_grad)]
    x = kept * 2
    if not fuses:
        monkeypatch.setattr(lora.LoRALinear, "fuses", lambda self: False)
    lean = lora.LoRALinear.joint_lean(x, layers, (lambda kept: kept * 2, (kept,)) if recomputed else ())
    monkeypatch.setattr(lora.LoRALinear, "fuses", lambda self: False)
    plain = torch.cat([layer(x) for layer in layers], -1)
    results = [(y, *torch.autograd.grad(y.sin().sum(), wanted, retain_graph=True)) for y in (lean, plain)]
    torch.testing.assert_close(*results, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("targets", "modules", "layers"),
    [
        ("all-linear", LEAVES, (0, 1)),
        ("attention", {"q_proj", "k_proj", "v_proj", "o_proj"}, (0, 1)),
        (["v_proj", "mlp.up_proj"], {"v_proj", "up_proj"}, (0, 1)),
        (r".*\.1\.mlp\.(gate|up)_proj", {"gate_proj", "up_proj"}, (1,)),
    ],
)
def test_targets(targets, modules, layers):
    found = lora.inject(model := tiny_model(), targets=targets)
    assert sorted(found) == sorted(path for path, _ in lora.lora_layers(model))
    assert sorted(found) == sorted(
        f"model.layers.{i}.{'mlp' if module in ('gate_proj', 'up_proj', 'down_proj') else 'self_attn'}.{module}"
        for i in layers
        for module in modules
    )


@pytest.mark.parametrize(("rslora", "root"), [(False, lambda r: r), (True, math.sqrt)])
def test_layers_with_their_own_rank_and_alpha(rslora, root):
    """The first key that matches counts; both rules of scaling use the layer's own r and alpha."""
    ranks = {"^model.layers.0.mlp.up_proj": 2, r"layers\.1\..*": 3, "mlp.up_proj": 5, "up_proj": 6}
    alphas = {"(up|down)_proj": 10.0, "layers.1.mlp.up_proj": 11.0}
    model = injected(tiny_model(), r=4, alpha=6, rslora=rslora, rank_pattern=ranks, alpha_pattern=alphas)
    for path, layer in lora.lora_layers(model):
        adapter = layer.adapters["default"]
        r = 3 if "layers.1" in path else 2 if "up_proj" in path else 4
        alpha = 10 if "up_proj" in path or "down_proj" in path else 6
        assert adapter.A.shape[0] == adapter.B.shape[1] == r and adapter.scale == alpha / root(r), path


@pytest.mark.parametrize(("keys", "said"), CASES["refused injections"])
def test_refused_injections_leave_the_model_alone(keys, said):
    model = tiny_model()
    with pytest.raises(ValueError, match=said):
        lora.inject(model, **keys)
    assert not lora.lora_layers(model) and all(p.requires_grad for p in model.parameters())


def test_factors_are_float32_over_a_bfloat16_base():
    """An update far below bfloat16's resolution is kept; the output has the base's dtype."""
    model = awake(injected(tiny_model(dtype=torch.bfloat16), r=4))
    assert model(IDS_BT).dtype == torch.bfloat16
    layer = lora.lora_layers(model)[0][1]
    adapter, x = layer.adapters["default"], torch.randn(16, 32, dtype=torch.bfloat16)
    plain, update = layer.base_layer(x).float(), adapter.scale * x.float() @ adapter.A.mT @ adapter.B.mT
    assert layer(x).dtype == torch.bfloat16
    terms = adapter.scale * x.float().abs() @ adapter.A.abs().mT @ adapter.B.abs().mT
    rounding = 2**-8 * (1.5 * terms + 1.01 * (plain + update).abs())  # half a step of A, x A and B, one of the sum
    assert ((layer(x).float() - (plain + update)).abs() <= rounding + 1e-6).all()
    model(IDS_BT).float().square().sum().backward()
    for p in (adapter.A, adapter.B):
        assert p.dtype == p.grad.dtype == torch.float32
        before = p.detach().clone()
        with torch.no_grad():
            p.mul_(1 + 2**-20)
        assert not torch.equal(p, before)


def test_dropout_acts_on_the_adapters_input_in_train_mode_only():
    model = adapted_model(dropout=0.5)
    still = logits(model)
    assert torch.equal(logits(model), still)
    model.train()
    torch.manual_seed(1)
    first, second = logits(model), logits(model)
    assert not torch.equal(first, second)
    with lora.adapters_off(model):
        assert torch.equal(logits(model), logits(tiny_model())), "the base has no dropout"
    layer, x = lora.lora_layers(model)[0][1], torch.ones(20000, 32)
    with torch.no_grad():
        close(layer(x).mean(0), layer.eval()(x)[0], atol=0.02)  # kept entries are scaled up by 1 / (1 - p)


# Switches


def test_adapters_off_is_the_base_bitwise_and_comes_back():
    base, model = logits(tiny_model().requires_grad_(False)), adapted_model()
    on = logits(model)
    assert (on - base).abs().max() > 0.1
    with lora.adapters_off(model):
        assert torch.equal(logits(model), base)
        with lora.use_adapter(model, "default"):
            assert torch.equal(logits(model), on)
        assert torch.equal(logits(model), base)
    assert torch.equal(logits(model), on)


def test_named_adapters_are_apart():
    model = adapted_model(seed=1)
    one = logits(model)
    lora.inject(model, r=2, name="second", targets="attention")
    awake(model, 2, "second")
    two = logits(model)
    assert (one - two).abs().max() > 0.1
    with lora.use_adapter(model, "default"):
        assert torch.equal(logits(model), one)
    assert torch.equal(logits(model), two), "the block gave back what was active"
    with lora.use_adapter(model, "second"):
        assert torch.equal(logits(model), two)
    alone = injected(tiny_model(), r=2, targets="attention")
    for path, layer in lora.lora_layers(alone):
        layer.adapters["default"] = model.get_submodule(path).adapters["second"]
    assert torch.equal(logits(alone), two), "layers that lack the active adapter are their base"


@pytest.mark.parametrize("name", [None, "default"])
def test_active_adapter_returns_after_an_exception(name):
    model = adapted_model()
    before = [layer.active for _, layer in lora.lora_layers(model)]
    with pytest.raises(RuntimeError, match="inside"), lora.use_adapter(model, name):
        raise RuntimeError("inside")
    assert [layer.active for _, layer in lora.lora_layers(model)] == before


def test_an_unknown_adapter_is_refused_by_name():
    model = adapted_model()
    with (
        pytest.raises(KeyError, match="no adapter named 'defualt'; there are: default"),
        lora.use_adapter(model, "defualt"),
    ):
        pass
    assert {layer.active for _, layer in lora.lora_layers(model)} == {"default"}


def test_adapter_version_changes_with_every_change_of_the_output():
    model = adapted_model()
    version = lora.adapter_version(model)
    optimizer = torch.optim.AdamW(p for p in model.parameters() if p.requires_grad)
    before = version()
    logits(model)
    assert version() == before, "a forward changes nothing"
    model(IDS_BT).sum().backward()
    assert version() == before, "nor does a backward"
    optimizer.step()
    assert (stepped := version()) != before
    with lora.adapters_off(model):
        assert version() != stepped
    assert version() == stepped


# Folding


@pytest.mark.parametrize("family", FAMILIES)
def test_folded_equals_adapted(family):
    model = awake(injected(tiny_model(family), r=4, alpha=6))
    on = logits(model)
    assert lora.fold(model) is model and not lora.lora_layers(model)
    assert (on - logits(tiny_model(family))).abs().max() > 0.1
    close(logits(model), on, 1e-5)
    assert set(model.state_dict()) == set(tiny_model(family).state_dict())


def test_fold_of_a_bfloat16_base_rounds_once():
    model = awake(injected(tiny_model(dtype=torch.bfloat16), r=4))
    layers = lora.lora_layers(model)
    exact = {}
    for path, layer in layers:
        adapter = layer.adapters["default"]
        exact[path] = layer.base_layer.weight.float() + adapter.scale * (adapter.B @ adapter.A)
    lora.fold(model)
    for path, weight in exact.items():
        assert torch.equal(model.get_submodule(path).weight, weight.bfloat16()), path


def test_fold_takes_the_active_adapter_or_none():
    base, model = logits(tiny_model().requires_grad_(False)), adapted_model()
    with lora.adapters_off(model):
        lora.fold(model)
    assert torch.equal(logits(model), base)


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e38])
def test_fold_refuses_what_is_not_finite(value):
    """1e38 is finite in float32, but not as a float16 weight."""
    model = injected(tiny_model(dtype=torch.float16), r=4)
    lora.lora_layers(model)[3][1].adapters["default"].B.data.fill_(value)
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn\.o_proj: the folded weight is not finite"):
        lora.fold(model)
