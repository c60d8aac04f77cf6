"""Compile the Triton kernels ahead of time for five architectures, without a GPU.

Every launch that the launchers make for the shapes below is compiled as it would be on such a GPU.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from models.cuda.triton import attention, block, linear, logprob, quant, sample, step
from models.quant import KINDS, QuantLinear

KIB = 1024
SHARED = {80: 163 * KIB, 89: 99 * KIB, 90: 227 * KIB, 100: 227 * KIB, 120: 99 * KIB}  # bytes that a program can use
MODULES = (attention, block, linear, logprob, quant, sample, step)
HALF = (torch.bfloat16, torch.float16)
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64"}
POINTERS |= {torch.int64: "*i64", torch.int32: "*i32", torch.uint8: "*u8", torch.int8: "*i8"}


class Sizes(NamedTuple):
    """The sizes of a model that its kernels are compiled for."""

    D: int
    I: int  # noqa: E741  width of the MLP
    H: int
    K: int
    E: int
    V: int
    norms: bool  # of the heads
    rank: int  # of the adapters


SHAPES = {
    "0.5b": Sizes(896, 4864, 14, 2, 64, 151936, False, 16),  # Qwen2.5
    "7b": Sizes(3584, 18944, 28, 4, 128, 152064, False, 16),  # Qwen2.5
    "32b": Sizes(5120, 25600, 64, 8, 128, 151936, True, 64),  # Qwen3
    "70b": Sizes(8192, 28672, 64, 8, 128, 128256, False, 256),  # Llama 3
    "rank 4096": Sizes(3584, 18944, 28, 4, 128, 152064, False, 4096),  # the largest that lora/peft_files.py accepts
    "tiny": Sizes(192, 512, 6, 3, 32, 1280, True, 16),  # the embedded model
    "ragged": Sizes(330, 1025, 9, 3, 110, 1001, True, 3),  # sizes that 16 does not divide
    "one key head": Sizes(4544, 18176, 71, 1, 64, 65024, False, 16),
} | {f"heads of {E}": Sizes(896, 4864, 14, 2, E, 151936, True, 16) for E in (16, 32, 48, 80, 96, 160, 192, 256)}


class Launch(NamedTuple):
    """A kernel and the arguments of its launch, on meta tensors."""

    kernel: triton.JITFunction
    args: tuple
    kwargs: dict


# ---- which launches there are ----


class Recorder:
    """Take the place of a kernel and record its launches."""

    def __init__(self, kernel, launches: list):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.launches.append(Launch(self.kernel, args, kwargs))


@contextmanager
def recorded(shared: int) -> Iterator[list[Launch]]:
    """Record the launches of all kernels, without running them, as on a device with that much shared memory."""
    launches: list[Launch] = []
    with ExitStack() as stack:
        for module in MODULES:
            for name, value in list(vars(module).items()):
                if isinstance(value, triton.JITFunction):
                    stack.enter_context(patch.object(module, name, Recorder(value, launches)))
                elif name == "shared_memory":
                    stack.enter_context(patch.object(module, name, lambda device: shared))
        yield launches


def launches_of(sizes: Sizes, dtype: torch.dtype, arch: int) -> list[Launch]:
    """Return the launches of everything that a model of these sizes computes on CUDA."""
    parts = [attend, log_probabilities, products, sampler, blocks, quantised]
    if dtype in HALF or sizes.E <= 128:  # others decode by torch's operations: models/cuda/step.py
        parts.append(steps)
    with recorded(SHARED[arch]) as launches:
        for part in parts:
            part(sizes, dtype)
    return launches


def meta(*shape: int, dtype: torch.dtype, grad: bool = False) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta", requires_grad=grad)


def attend(sizes: Sizes, dtype: torch.dtype) -> None:
    """Launch attention and its backward."""
    B, T, (H, K, E) = 8, 300, (sizes.H, sizes.K, sizes.E)
    q = meta(B, H, T, E, dtype=dtype, grad=True)
    keys, values = meta(5, B * K, E, 64, dtype=dtype, grad=True), meta(5, B * K, 64, E, dtype=dtype, grad=True)
    attention.attend(q, keys, values, meta(B, T, dtype=torch.long)).sum().backward()


def log_probabilities(sizes: Sizes, dtype: torch.dtype) -> None:
    """Launch the head's log-probabilities: with the gradient made in the forward, and with one computed again."""
    hidden_ND, weight_VD = meta(2000, sizes.D, dtype=dtype, grad=True), meta(sizes.V, sizes.D, dtype=dtype)
    for entropy_grad in (False, True):
        targets_N = meta(2000, dtype=torch.long)
        logprob.token_logprobs(hidden_ND, weight_VD, targets_N, 0.7, entropy_grad)[0].sum().backward()


def products(sizes: Sizes, dtype: torch.dtype) -> None:
    """Launch the exact product with tiles of every width, with and without a bias, and of logits."""
    for columns in (linear.HALF.vocab, *linear.NARROW) if dtype in HALF else (linear.FULL.vocab,):
        for inputs, outputs, biased, out in (
            (sizes.D, sizes.H * sizes.E, True, dtype),
            (sizes.I, sizes.D, False, dtype),
            (sizes.rank, sizes.D, False, dtype),
            (sizes.D, sizes.V, False, torch.float32),
        ):
            tensors = meta(300, inputs, dtype=dtype), meta(outputs, inputs, dtype=dtype)
            bias = meta(outputs, dtype=dtype) if biased else None
            linear.multiply(*tensors, bias, meta(300, outputs, dtype=out), columns)


def sampler(sizes: Sizes, dtype: torch.dtype) -> None:
    """Launch sampling and the choice of the most likely token."""
    hidden_BD, weight_VD = meta(64, sizes.D, dtype=dtype), meta(sizes.V, sizes.D, dtype=dtype)
    for temperature in (1.0, 0.0):
        sample.sample(hidden_BD, weight_VD, temperature, meta(64, dtype=torch.float64))


def blocks(sizes: Sizes, dtype: torch.dtype) -> None:
    """Launch the parts of a training block and their backwards."""
    D, inner, H, K, E = sizes[:5]
    new = lambda *shape: meta(*shape, dtype=dtype, grad=True)  # noqa: E731
    weights = [new(E).detach(), new(E).detach()] if sizes.norms else [None, None]
    outputs = [y for added in (None, new(64, D)) for y in block.AddNorm.apply(new(64, D), added, new(D).detach(), 1e-6)]
    cos_sin = new(64, E).detach(), new(64, E).detach()
    outputs += block.Rotate.apply(new(64, (H + 2 * K) * E), *cos_sin, (H, K, E), *weights, 1e-6)
    outputs += [block.SwiGLU.apply(new(64, 2 * inner))]
    torch.autograd.backward(outputs, [torch.empty_like(y) for y in outputs])


def steps(sizes: Sizes, dtype: torch.dtype) -> None:
    """Launch the parts of a decode step, with adapters and without."""
    D, inner, H, K, E = sizes[:5]
    new = lambda *shape: meta(*shape, dtype=dtype)  # noqa: E731
    step.add_norm(new(64, D), None, new(D), 1e-6)
    indices, cache = [meta(64, dtype=torch.long) for _ in range(2)], (new(4, 8 * K, E, 64), new(4, 8 * K, 64, E))
    norms = new(H + K, E) if sizes.norms else None
    for rank in (0, max(16, triton.next_power_of_2(sizes.rank))):  # as `Joined` of models/cuda/step.py pads it
        step.add_norm(new(64, D), new(64, D + rank)[:, :D], new(D), 1e-6)
        outputs, tables = (H + 2 * K) * E, (new(256, E), new(256, E))
        up = new(outputs, rank) if rank else None
        step.rotary_write(new(64, outputs + 3 * rank), up, rank, norms, 1e-6, tables, *indices, *cache, H, K)
        step.swiglu(new(64, 2 * inner + 2 * rank), new(2 * inner, rank) if rank else None, rank, inner)


def quantised(sizes: Sizes, dtype: torch.dtype) -> None:
    """Launch a quantised layer's dense weight, and products of 1 to FEW rows in tiles of every size."""
    for kind in KINDS:
        for inputs, outputs, biased in ((sizes.D, 64, True), (sizes.D, sizes.I, False)):
            layer = empty_layer(kind, inputs, outputs, dtype, biased)
            quant.dequantise(layer, dtype)
            for rows in (1, 32, 64, quant.FEW):
                if quant.fits(x := meta(rows, inputs, dtype=dtype), layer):
                    quant.product(x, layer, meta(rows, outputs, dtype=dtype))


def empty_layer(kind: str, inputs: int, outputs: int, dtype: torch.dtype, biased: bool) -> QuantLinear:
    with torch.device("meta"):
        return QuantLinear(torch.nn.Linear(inputs, outputs, bias=biased, dtype=dtype), kind)


# ---- compilation ----


def binary_of(launch: Launch, arch: int) -> tuple[tuple, Callable]:
    """Return (a key of the launch's binary, a function that compiles it), as the launch would compile it on `arch`."""
    kernel, args, kwargs = launch
    signature, constants, attributes = {}, {}, {}
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    for i, name in enumerate(kernel.arg_names):
        value = values[name]
        specialised = name not in (kernel.do_not_specialize or ())
        if (
            name in kernel.arg_names[len(args) :]
            or value is None
            or (specialised and type(value) is int and value == 1)
        ):
            signature[name], constants[(i,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[(i,)] = POINTERS[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if specialised and value % 16 == 0:
                attributes[(i,)] = [["tt.divisibility", 16]]
    options = {key: value for key, value in kwargs.items() if key not in kernel.arg_names}
    key = (kernel, str(signature), str(constants), str(attributes), str(options))
    source = ASTSource(kernel, signature, constants, attributes)
    return key, lambda: triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def spilled(binary) -> int | None:
    """Return the bytes of registers that each thread spills; None if Triton's cuobjdump is missing."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.exists():
        return None
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True).stdout
    return int(re.search(r"STACK:(\d+)", usage)[1])


@dataclass
class Binary:
    """A compiled launch, or why there is none."""

    kernel: str
    arch: int
    dtype: str
    shape: str  # the first one that needs it
    constants: dict  # those of the kernel, and the launch options
    shared: int = 0  # bytes
    spilled: int = 0  # bytes of a thread
    problem: str = ""

    def line(self) -> str:
        constants = " ".join(f"{key}={value}" for key, value in self.constants.items() if key != "enable_fp_fusion")
        what = self.problem or f"spills {self.spilled} bytes a thread"
        return f"- `{self.kernel}`, sm_{self.arch}, {self.dtype}, {self.shape}: {what} ({constants})"


def binaries(arch: int, dtype: torch.dtype, shapes: Iterable[str] = SHAPES, kernels: str = "") -> Iterator[Binary]:
    """Compile each binary of the shapes once, of the kernels whose names contain `kernels`."""
    found = {}
    for shape in shapes:
        for launch in launches_of(SHAPES[shape], dtype, arch):
            key, compile_ = binary_of(launch, arch)
            found.setdefault(key, (shape, launch, compile_))
    for shape, launch, compile_ in found.values():
        name = f"{launch.kernel.__module__.split('.')[-1]}.{launch.kernel.__name__}"
        if kernels in name:
            yield compiled(Binary(name, arch, str(dtype)[6:], shape, launch.kwargs), compile_)


def compiled(made: Binary, compile_: Callable) -> Binary:
    """Compile; fill in what came of it."""
    try:
        binary = compile_()
        made.shared, made.spilled = binary.metadata.shared, spilled(binary) or 0
        if made.shared > SHARED[made.arch]:
            made.problem = f"needs {made.shared / KIB:.0f} KiB of {SHARED[made.arch] / KIB:.0f}"
    except Exception as error:  # of the compiler; the others must be tried too
        made.problem = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
    return made
