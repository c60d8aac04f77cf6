"""The parts of a training block between its products: errors at most the plain code's, and less memory and launches."""

import gc

import on_triton as tt
import pytest
import torch
import torch.nn.functional as F
from conftest import random_model, randomize
from live_storage import LiveStorage
from test_varlen import varlen_loop

import lora
from models.cuda import block as cuda_block
from models.cuda.triton import block as block_triton
from models.decoder import RMSNorm, checkpoint_blocks, rotate
from models.hooks import hooks, nothing_faster

HALVES = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)]


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(tt.DEVICE, dtype)


def compare(plain, fused, inputs: dict, frozen: dict):
    """Assert that the results and gradients of `fused` are within the errors of `plain`, both against float64."""
    found = []
    for function, dtype in ((plain, torch.float64), (plain, None), (fused, None)):
        tensors = {name: (x if dtype is None else x.to(dtype)).detach().requires_grad_() for name, x in inputs.items()}
        rest = [x if dtype is None or not isinstance(x, torch.Tensor) else x.to(dtype) for x in frozen.values()]
        outputs = function(*tensors.values(), *rest)
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
        upstream = [torch.linspace(-1, 1, y.numel(), device=tt.DEVICE).view(y.shape).to(y) for y in outputs]
        grads = torch.autograd.grad(outputs, list(tensors.values()), upstream)
        found.append(dict(enumerate(y.detach() for y in outputs)) | dict(zip(tensors, grads, strict=True)))
    truth, reference, got = found
    assert all(got[name].dtype == reference[name].dtype for name in got)
    tt.assert_within_the_error_of(reference, got, truth)
    return reference, got


def plain_norm(x_ND, weight_D, eps=1e-6):
    norm = RMSNorm(len(weight_D), eps).to(tt.DEVICE, weight_D.dtype)
    norm.weight = torch.nn.Parameter(weight_D, requires_grad=False)
    return norm(x_ND)


def plain_add_norm(x_ND, added_ND, weight_D):
    return x_ND + added_ND, plain_norm(x_ND + added_ND, weight_D)


@tt.runs
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("N", "D"), [(1, 896), (5, 33)])
def test_norm_with_a_residual(N, D, dtype):
    inputs = {"x": draw(N, D, dtype=dtype), "added": draw(N, D, dtype=dtype, seed=1)}
    frozen = {"weight": 1 + 0.3 * draw(D, seed=2).to(dtype)}
    fused = lambda x, added, weight: block_triton.AddNorm.apply(x, added, weight, 1e-6)  # noqa: E731
    reference, got = compare(plain_add_norm, fused, inputs, frozen)
    assert torch.equal(reference[0], got[0]) and (reference[1] == got[1]).float().mean() > 0.9, "they round alike"
    again = block_triton.normalize(got[0], frozen["weight"], 1e-6)
    assert torch.equal(again, got[1]), "what the backward computes again has the same bits"
    alone = lambda x, weight: block_triton.AddNorm.apply(x, None, weight, 1e-6)  # noqa: E731
    compare(lambda x, weight: (x, plain_norm(x, weight)), alone, {"x": inputs["x"]}, frozen)


@tt.runs
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("N", "I"), [(1, 4864), (3, 1025)])
def test_swiglu(N, I, dtype):  # noqa: E741
    def plain(gate_up):
        gate, up = gate_up.split(I, -1)
        return F.silu(gate) * up

    inputs = {"gate_up": 2 * draw(N, 2 * I, dtype=dtype)}
    reference, got = compare(plain, block_triton.SwiGLU.apply, inputs, {})
    assert (reference[0] == got[0]).float().mean() > 0.9
    assert torch.equal(block_triton.swiglu(inputs["gate_up"]), got[0])


@tt.runs
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("H", "K", "E"), [(14, 2, 64), (3, 1, 10)])
def test_rotary_of_queries_and_keys(H, K, E, normed, dtype):
    N = 5
    weights = [1 + 0.3 * draw(E, seed=seed).to(dtype) if normed else None for seed in (1, 2)]
    cos, sin = (draw(N, E // 2, seed=seed).clamp(-1, 1).to(dtype) for seed in (3, 4))
    cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def plain(qkv, cos, sin, q_weight, k_weight):
        q, k, v = qkv.unflatten(-1, (-1, E)).split([H, K, K], 1)
        q, k = (x if w is None else plain_norm(x, w) for x, w in ((q, q_weight), (k, k_weight)))
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def fused(qkv, cos, sin, q_weight, k_weight):
        return block_triton.Rotate.apply(qkv, cos, sin, (H, K, E), q_weight, k_weight, 1e-6)

    frozen = {"cos": cos, "sin": sin, "q_weight": weights[0], "k_weight": weights[1]}
    reference, got = compare(plain, fused, {"qkv": draw(N, (H + 2 * K) * E, dtype=dtype)}, frozen)
    assert torch.equal(reference[2], got[2]), "values are copied"
    assert all((reference[i] == got[i]).float().mean() > 0.9 for i in (0, 1))


@pytest.fixture
def packing(monkeypatch):
    if tt.DEVICE == "cpu":
        monkeypatch.setattr(cuda_block, "load_varlen", lambda: varlen_loop)
        monkeypatch.setattr(cuda_block, "varlen_problem", lambda *_: None)
        monkeypatch.setattr(hooks("cpu"), "pack", cuda_block.pack)
        monkeypatch.setattr(hooks("cpu"), "train_block", cuda_block.train_block)


@tt.runs
@pytest.mark.parametrize(
    ("family", "layers", "sequences"),
    [("qwen2", 1, None), ("qwen3", 2, [[0, 1, 2, 3, 4, 5, 6, 7, 8, -1], [0, 1, 2, 3, 9, 10, 11, 12, 13, 14]])],
)
def test_a_model_of_fused_blocks_learns_the_same(family, layers, sequences, packing, monkeypatch):
    """Hidden states and gradients of every factor, against float64; the second time two sequences share a prompt."""
    ids_BT, how = torch.arange(15)[None] * 5, {} if sequences is None else {"sequences_ST": torch.tensor(sequences)}
    blocks, found = [], []
    whole = cuda_block.fused_block
    monkeypatch.setattr(cuda_block, "fused_block", lambda *x: blocks.append(0) or whole(*x))
    for dtype, slot in ((torch.float64, nothing_faster), (torch.bfloat16, nothing_faster), (torch.bfloat16, None)):
        monkeypatch.setattr(hooks(tt.DEVICE), "train_block", slot or cuda_block.train_block)
        model = random_model(family, num_hidden_layers=layers).requires_grad_(False)
        lora.inject(model, r=4)
        randomize(model)
        base = {name: p.bfloat16().to(dtype) for name, p in model.named_parameters() if ".adapters." not in name}
        for path, p in base.items():
            model.get_parameter(path).data = p
        model.to(tt.DEVICE)
        hidden_ND = model(ids_BT.to(tt.DEVICE), **{key: x.to(tt.DEVICE) for key, x in how.items()}).flatten(0, 1)
        (
            hidden_ND.double() * torch.linspace(-1, 1, hidden_ND.numel(), device=tt.DEVICE).view_as(hidden_ND)
        ).sum().backward()
        factors = {name: p.grad.double() for name, p in model.named_parameters() if p.requires_grad}
        found.append({"hidden": hidden_ND.detach().double()} | factors)
    truth, reference, got = found
    assert len(blocks) == layers and len(got) == 1 + 14 * layers
    for name, expected in truth.items():
        allowed, error = ((x[name] - expected).norm() / expected.norm() for x in (reference, got))
        assert error < 1.2 * allowed, (name, float(error), float(allowed))


SHARED_PROMPT = {
    "sequences_ST": [[0, 1, 2, 3, 4, 5, 6, 7, 8, -1], [0, 1, 2, 3, 9, 10, 11, 12, 13, 14]],
    "wanted": [3, 8, 14],
}


@tt.runs
@pytest.mark.parametrize(
    ("family", "how"),
    [
        ("qwen2", {}),
        ("qwen3", SHARED_PROMPT),
        pytest.param("qwen2", SHARED_PROMPT, marks=pytest.mark.full),
        pytest.param("qwen3", {}, marks=pytest.mark.full),
    ],
)
def test_checkpointing_fused_blocks_changes_no_bit_of_a_gradient(family, how, packing, monkeypatch):
    """With `wanted` the last block is the plain one."""
    blocks, found, whole = [], [], cuda_block.fused_block
    monkeypatch.setattr(cuda_block, "fused_block", lambda *x: blocks.append(0) or whole(*x))
    for checkpointed in (False, True):
        model = random_model(family).requires_grad_(False)
        lora.inject(model, r=4)
        for name, p in randomize(model).named_parameters():
            p.data = p.to(tt.DEVICE, p.dtype if ".adapters." in name else torch.bfloat16)
        if checkpointed:
            checkpoint_blocks(model)
        rows = {name: torch.tensor(x, device=tt.DEVICE) for name, x in how.items()}
        model(torch.arange(15, device=tt.DEVICE)[None] * 5, **rows).double().sin().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.requires_grad})
    plain, again = found
    fused = 1 if how else 2
    assert len(blocks) == fused + 2 * fused, "the backward computes each block again"
    assert len(plain) == 28 and not [name for name in plain if not torch.equal(plain[name], again[name])]


@tt.runs
def test_blocks_whose_norms_train_are_left_to_the_plain_code(packing, monkeypatch):
    model = random_model(dtype=torch.bfloat16).requires_grad_(False).to(tt.DEVICE)
    calls = []
    monkeypatch.setattr(cuda_block, "fused_block", lambda block, x_ND, *_: calls.append(0) or x_ND)
    ids_BT = torch.arange(20).view(2, 10).to(tt.DEVICE)
    model(ids_BT)
    assert len(calls) == 2
    model.model.layers[0].input_layernorm.weight.requires_grad_()
    model(ids_BT, wanted=torch.tensor([3], device=tt.DEVICE))
    assert len(calls) == 2, "a norm that trains, and a last block with few queries"


@tt.runs
@pytest.mark.parametrize("kind", ["dropout", "some layers", "no adapter"])
def test_layers_that_do_not_fuse_are_computed_apart(kind, packing, monkeypatch):
    """The fused block's gradients are the plain block's, up to rounding."""
    found = []
    for slot in (nothing_faster, cuda_block.train_block):
        monkeypatch.setattr(hooks(tt.DEVICE), "train_block", slot)
        model = random_model(num_hidden_layers=1).requires_grad_(False)
        if kind != "no adapter":
            lora.inject(model, r=4, dropout=0.5 * (kind == "dropout"), targets=["q_proj", "down_proj"])
            randomize(model)
        model.bfloat16().to(tt.DEVICE).train()
        model.model.embed_tokens.weight.requires_grad_()
        torch.manual_seed(0)
        model(torch.arange(10, device=tt.DEVICE)[None]).double().sin().sum().backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    for plain, fused in zip(*found, strict=True):
        assert (plain - fused).norm() < 0.03 * plain.norm()


@pytest.mark.full
@tt.runs
def test_bytes_that_a_token_keeps_of_a_layer(packing, monkeypatch):
    """Attention is left out, which keeps its output and log-sum-exp besides: 2Dq + 4H more."""
    monkeypatch.setattr(cuda_block.PackedRows, "attend", lambda self, q_NHE, *_: q_NHE)

    def held(layers: int, N: int) -> int:
        model = random_model(num_hidden_layers=layers, dtype=torch.bfloat16).requires_grad_(False)
        lora.inject(model, r=16)
        ids_BT = torch.zeros(1, N, dtype=torch.long, device=tt.DEVICE)
        model.to(tt.DEVICE)(ids_BT)
        with LiveStorage() as live:
            hidden_BTD = model(ids_BT)
            assert hidden_BTD.requires_grad
            gc.collect()  # or what only a cycle holds counts in one measurement and not in another
            return live.live

    bytes_of_a_token = (held(2, 32) - held(1, 32) - held(2, 16) + held(1, 16)) / 16
    D, Dq, Dkv, I, ranks, scales = 48, 64, 32, 80, 7 * 16, 2 * 4  # noqa: E741
    assert bytes_of_a_token == 4 * D + 2 * Dq + 4 * Dkv + 4 * I + 2 * ranks + scales


def launched(D, I, H, K, E, normed, monkeypatch):  # noqa: E741
    """Return the launches of a block's forward and backward, on the meta device."""
    names = ["_norm", "_norm_back", "_rotate", "_rotate_back", "_swiglu", "_swiglu_back"]
    empty = lambda *shape: torch.empty(shape, dtype=torch.bfloat16, device="meta", requires_grad=True)  # noqa: E731
    weights = [empty(E).detach(), empty(E).detach()] if normed else [None, None]
    with monkeypatch.context() as patch:
        launches = tt.record(patch, block_triton, names)
        cos_sin = empty(64, E).detach(), empty(64, E).detach()
        outputs = [
            *block_triton.AddNorm.apply(empty(64, D), empty(64, D), empty(D).detach(), 1e-6),
            *block_triton.Rotate.apply(empty(64, (H + 2 * K) * E), *cos_sin, (H, K, E), *weights, 1e-6),
            block_triton.SwiGLU.apply(empty(64, 2 * I)),
        ]
        torch.autograd.backward(outputs, [torch.empty_like(y) for y in outputs])
    assert len(launches) == len(names)
    return launches


@tt.compiles
@pytest.mark.parametrize("arch", tt.CHIPS)
def test_it_compiles_and_fits_the_chip(arch, monkeypatch, tmp_path):
    """The shapes of Qwen2.5-0.5B for one architecture, of Qwen3-32B for the others."""
    shape = (896, 4864, 14, 2, 64, False) if arch == 89 else (5120, 25600, 64, 8, 128, True)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for launch in launched(*shape, monkeypatch):
        binary = tt.compiled(*launch, arch)[1]()
        tt.check_binary(binary, arch, tensor_cores=False)
        assert binary.metadata.shared <= 99 * 1024 <= min(tt.SHARED.values())
        assert tt.spilled(binary) == 0, binary.metadata.name
