"""The linear product's Triton kernel: errors at most torch's in the same dtype; a row's bits depend on it alone."""

import on_triton as tt
import pytest
import torch
import torch.nn.functional as F
from conftest import quickly, random_model, randomize

import lora
from models import decoder
from models.cuda.exact import ExactJoined, make_exact
from models.cuda.step import Joined
from models.cuda.triton import attention as attention_triton
from models.cuda.triton import linear as linear_triton
from models.cuda.triton import logprob as logprob_triton
from models.cuda.triton import sample as sample_triton
from models.cuda.triton.linear import product
from models.engine import Engine
from models.hooks import hooks
from models.linear import Linear, joint_linear
from models.stacked import groups
from rl import batch
from rl.records import Episode, Turn

SOME = ["q_proj", "v_proj", "down_proj"]
QUICK = [*tt.FLOATS[:2], pytest.param(torch.float16, marks=pytest.mark.full)]


def problem(N, D, outputs, dtype):
    """Return x_ND, the weight [outputs, D] and the bias [outputs]."""
    g = torch.Generator().manual_seed(N)
    shapes = (N, D), (outputs, D), (outputs,)
    return [torch.randn(shape, generator=g).to(tt.DEVICE, dtype) for shape in shapes]


def results(function, x, weight, bias, trainable):
    tensors = {"x": x, "weight": weight, "bias": bias}
    tensors = {
        name: t.detach().requires_grad_(name == "x" or trainable) for name, t in tensors.items() if t is not None
    }
    y = function(*tensors.values())
    wanted = [name for name, t in tensors.items() if t.requires_grad]
    upstream = torch.linspace(-1, 1, y.numel(), device=tt.DEVICE).view(y.shape).to(y)
    grads = torch.autograd.grad(y, [tensors[name] for name in wanted], upstream)
    return {"y": y.detach()} | dict(zip(wanted, grads, strict=True))


@tt.runs
@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
def test_errors_are_at_most_those_of_torch(dtype, trainable):
    for N, D, outputs, biased in ((1, 24, 97, True), (67, 200, 130, False), (16, 65, 16, True)):
        x, weight, bias = problem(N, D, outputs, dtype)
        bias = bias if biased else None
        wide = [None if t is None else t.double() for t in (x, weight, bias)]
        truth = results(F.linear, *wide, trainable)
        reference, got = (results(f, x, weight, bias, trainable) for f in (F.linear, product))
        assert got.keys() == truth.keys() and all(t.dtype == dtype for t in got.values())
        tt.assert_within_the_error_of(reference, got, truth)


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS[1:], ids=str)
def test_in_float32_the_same_sums_are_not_rounded(dtype):
    x, weight, bias = problem(20, 100, 70, dtype)
    wide, rounded = (results(lambda *xs, d=d: product(*xs, d), x, weight, bias, True) for d in (torch.float32, None))
    truth = F.linear(*(t.double() for t in (x, weight, bias)))
    torch.testing.assert_close(wide["y"].double(), truth, atol=1e-4, rtol=0)
    assert torch.equal(wide["y"].to(dtype), rounded["y"]) and not torch.equal(wide["y"], rounded["y"].float())
    assert all(torch.equal(wide[name].to(dtype), rounded[name]) for name in ("x", "weight", "bias"))


@tt.runs
def test_greedy_ids_match_float64_where_bfloat16_would_tie():
    """Pairs of tokens whose weights differ in the last bit of one coordinate."""
    hidden_BD, weight_VD, _ = problem(40, 64, 16, torch.bfloat16)
    weight_VD = weight_VD.repeat_interleave(2, 0)
    weight_VD[1::2, 5] *= 1 + 2**-7
    logits_BV = hidden_BD.double() @ weight_VD.double().T
    best_B = logits_BV.argmax(-1)
    assert (logits_BV.bfloat16().argmax(-1) != best_B).any()
    ids_B, logprobs_B = sample_triton.sample(hidden_BD, weight_VD, 0.0, None)
    assert torch.equal(ids_B, best_B)
    torch.testing.assert_close(logprobs_B.double(), logits_BV.log_softmax(-1).amax(-1), atol=1e-4, rtol=0)


@tt.runs
@pytest.mark.parametrize("dtype", QUICK, ids=str)
def test_a_rows_bits_are_its_own(dtype):
    x_ND, weight, bias = problem(70, 100, 80, dtype)
    whole = product(x_ND, weight, bias)
    order = torch.randperm(70, generator=torch.Generator().manual_seed(0))
    for rows in (order, order[:1], order[:2], order[:16], order[:64], order[:65]):
        assert torch.equal(product(x_ND[rows], weight, bias), whole[rows])
    assert product(x_ND[:0], weight, bias).shape == (0, 80)
    apart = torch.zeros(70, 300, device=tt.DEVICE, dtype=dtype)[:, ::3]  # neither operand need be contiguous
    assert torch.equal(product(apart.copy_(x_ND), weight.T.contiguous().T, bias), whole)


@tt.runs
@pytest.mark.parametrize("dtype", QUICK[1:], ids=str)
def test_a_tiles_width_does_not_change_a_bit(dtype):
    """Also for rows that are parts of longer rows, as the engine's stacked products have them."""
    x_ND, weight, bias = problem(70, 200, 150, dtype)
    whole = product(x_ND, weight, bias)
    for columns in (linear_triton.HALF.vocab, *linear_triton.NARROW):
        wide_x, wide_y = (torch.full((70, n), 7.0, device=tt.DEVICE, dtype=dtype) for n in (216, 180))
        wide_x[:, :200] = x_ND
        linear_triton.multiply(wide_x[:, :200], weight, bias, wide_y[:, 20:170], columns)
        assert torch.equal(wide_y[:, 20:170], whole)
        assert (wide_y[:, :20] == 7).all() and (wide_y[:, 170:] == 7).all()


@pytest.mark.skipif(not tt.INTERPRETED, reason="maps 5 GB of addresses, of which it touches 40 pages")
def test_rows_beyond_32_bits_of_offset(tmp_path):
    """As those of 113,360 tokens before a layer of 18,944 inputs."""
    x_ND, weight, bias = problem(40, 32, 16, torch.bfloat16)
    mapped = torch.from_file(str(tmp_path / "rows"), shared=True, size=39 * 2**26 + 32, dtype=torch.bfloat16)
    far, y_NO = mapped.as_strided((40, 32), (2**26, 1)), torch.empty(40, 16, dtype=torch.bfloat16)
    linear_triton.multiply(far.copy_(x_ND), weight, bias, y_NO)
    assert torch.equal(y_NO, product(x_ND, weight, bias))


@tt.runs
@pytest.mark.parametrize(
    ("rank", "targets", "stacked"),
    quickly(
        [(3, "all-linear", True), (16, SOME, True), (40, "all-linear", False)],
        (
            (rank, SOME if rank == 16 else "all-linear", stacked)
            for rank in (3, 16, 20, 40)
            for stacked in (True, False)
        ),
    ),
)
def test_joined_layers_have_the_bits_of_training(rank, targets, stacked):
    model = random_model("qwen2", num_hidden_layers=1).requires_grad_(False)
    lora.inject(model, r=rank, targets=targets)
    randomize(model)
    for layer in (module for module in model.modules() if isinstance(module, Linear)):
        layer.matmul = product
    for name, p in model.named_parameters():
        p.data = p.to(tt.DEVICE, p.dtype if ".adapters." in name else torch.bfloat16)
    for layers in groups(model.model.layers[0]):
        x_ND, _, _ = problem(20, layers[0].parts().weight.shape[1], 1, torch.bfloat16)
        with torch.no_grad():
            outputs = ExactJoined(Joined(layers, torch.bfloat16, stacked))(x_ND), joint_linear(x_ND, *layers)
        assert all(torch.equal(*pair) for pair in zip(*outputs, strict=True))


@tt.runs_no_kernel
def test_tiles_fill_the_device():
    """At a few rows every processor has a program where there are enough outputs; at many rows tiles are wide."""
    columns = [linear_triton.tile_columns(N, 4864, torch.bfloat16, torch.device("meta")) for N in (16, 64, 300, 8192)]
    assert columns == [16, 16, 64, 64]
    assert linear_triton.tile_columns(16, 28672, torch.bfloat16, torch.device("meta")) == 64


@pytest.fixture
def exact_everywhere(monkeypatch):
    """Return a function that makes a model compute by kernels alone, as `make_exact` does on CUDA."""
    if tt.DEVICE == "cuda":
        return make_exact
    monkeypatch.setattr(decoder, "attend", lambda *x: attention_triton.attend(*x[:5]))
    monkeypatch.setattr(batch, "token_logprobs", logprob_triton.token_logprobs)
    monkeypatch.setattr(hooks(tt.DEVICE), "sample", sample_triton.sample)

    def make(model):
        for layer in model.modules():
            if isinstance(layer, Linear):
                layer.matmul = product

    return make


@tt.runs
@pytest.mark.parametrize("temperature", [0.8, pytest.param(0, marks=pytest.mark.full)])
def test_exact_model_samples_and_trains_with_equal_bits(temperature, exact_everywhere):
    """With adapters, several turns, a varying number of rows per step, and shared prefixes."""
    small = {"num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1}
    model = random_model("qwen3", dtype=torch.bfloat16, **small).to(tt.DEVICE)
    lora.inject(model, r=4, alpha=4)
    randomize(model).eval()
    exact_everywhere(model)
    engine, episodes = Engine(model, max_rows=3, max_len=200), []
    for n in range(3):
        episodes.append(Episode("fake", 0, 0, ids_T=[5, 6, 7] * 21 + [n]))
        engine.feed(engine.open((0, n)), episodes[n].ids_T)
    says = {0: [8] * 7, 1: []}
    for row in engine.run(2, temperature, frozenset()):
        e = episodes[row.slot]
        e.logprobs_T += [0.0] * (len(e.ids_T) - len(e.logprobs_T)) + row.logprobs
        e.turns.append(Turn(len(e.ids_T), len(e.ids_T) + len(row.ids), 0.0, row.stop_reason))
        e.ids_T += row.ids
        if row.slot in says:
            engine.feed(row.slot, said := says.pop(row.slot))
            e.ids_T += said
    for e in episodes:
        e.action_mask_T = [int(any(t.start <= i < t.stop for t in e.turns)) for i in range(len(e.ids_T))]
    trained = batch.forward(made := batch.make_batch(episodes), model, temperature or 1.0)
    assert len(made.old_logprobs_N) == 10 and torch.equal(trained.logprobs_N.detach(), made.old_logprobs_N)
    trained.logprobs_N.sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in model.parameters() if p.requires_grad)


@tt.runs_no_kernel
def test_make_exact_refuses_other_dtypes_and_old_devices(monkeypatch):
    """The meta device takes the place of a GPU; on a CPU make_exact does nothing."""
    on_cpu = random_model()
    assert make_exact(on_cpu) is on_cpu and not on_cpu.exact and on_cpu.lm_head.matmul is None
    model = random_model().to("meta")
    with pytest.raises(ValueError, match=r"takes dtype=bfloat16"):
        make_exact(model)
    model, capability = model.bfloat16(), [(7, 5), (9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability.pop(0))
    with pytest.raises(ValueError, match=r"compute capability 8\.0 or more, not 7\.5"):
        make_exact(model)
    assert not model.exact
    layers = [layer for layer in make_exact(model).modules() if isinstance(layer, torch.nn.Linear)]
    assert model.exact and len(layers) == 15 and all(layer.matmul is product for layer in layers)


def launched(N, D, outputs, dtype, monkeypatch):
    with monkeypatch.context() as patch:
        launches = tt.record(patch, linear_triton, ["_multiply"])
        product(*(torch.empty(s, dtype=dtype, device="meta") for s in ((N, D), (outputs, D), (outputs,))))
    return launches[0]


@tt.compiles
@pytest.mark.parametrize(
    ("arch", "dtype"),
    quickly(
        [(90, torch.bfloat16), (90, torch.float32)],
        [*tt.HALVES_ON_CHIPS, (80, torch.float32), (100, torch.float32)],
    ),
    ids=str,
)
def test_it_compiles_and_fits_the_chip(arch, dtype, monkeypatch, tmp_path):
    """Two programs fit on a processor, with all sums in registers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for N in (16, 300):  # narrow and wide tiles
        binary = tt.compiled(*launched(N, 3584, 4096 if N == 16 else 18944, dtype, monkeypatch), arch)[1]()
        tt.check_binary(binary, arch, tensor_cores=dtype != torch.float32)
        assert 2 * binary.metadata.shared <= tt.SHARED[arch]
        assert tt.spilled(binary) == 0


@tt.compiles
def test_the_number_of_rows_is_not_compiled_in(monkeypatch):
    """Few rows and many have a binary each, which differ in the width of a tile."""
    for rows in ((1, 2, 16, 17), (2000, 8192)):
        keys = {tt.compiled(*launched(N, 896, 4864, torch.bfloat16, monkeypatch), 90)[0] for N in rows}
        assert len(keys) == 1
