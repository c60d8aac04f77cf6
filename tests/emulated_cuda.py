"""A CUDA device emulated on the CPU: it computes nothing faster, but counts kernels and finds waits.

    with emulated_cuda(monkeypatch) as device:
        model = load_model("tiny", torch.bfloat16, "cuda")
        with device.counting() as counts:
            ...
        counts.kernels, counts.waits

A tensor that was created on "cuda" is a DeviceTensor. Its device is cuda:0, its data lie in a CPU tensor, and every
operation on it goes through `_Dispatch`, which

- raises the error of a real device if an operation mixes device and host tensors;
- counts the operation as one kernel, unless it only makes a view or allocates memory;
- records a wait where the host would stop until the device is done: a number read from the device, a shape that depends
  on data, a copy from or to host memory that is not pinned, an index that lies on the host;
- writes the operations within `torch.cuda.graph` to a tape, which `replay` runs again at the same addresses. As in a
  real capture nothing happens meanwhile, and a wait raises an error.

Triton kernels and flash attention run as stand-ins: plain functions on the CPU tensors (tests/stand_ins.py).

It cannot show: speed; memory; races between streams; the rounding of a GPU's kernels; whether one operation of torch
takes several kernels (a sort, a large reduction) or none (an empty input); the numbers of a GPU's random generator;
what the stand-ins replace.
"""

import os
import traceback
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = str(Path(__file__).parents[1]) + "/"
CUDA, INNER = torch.device("cuda", 0), torch.device("lazy", 0)  # INNER: a device that every build of torch knows
SHAPE_DEPENDS_ON_DATA = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
READS_A_NUMBER = {"_local_scalar_dense", "equal", "is_nonzero"}
ALLOCATES = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}
NO_KERNEL = {"_unsafe_view", "lift_fresh", "detach", "_reshape_alias", "set_", "record_stream"} | ALLOCATES
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}


@dataclass
class Counts:
    """Kernels by name, and the waits, each as (kind, file:line)."""

    by_kernel: Counter = field(default_factory=Counter)
    waits: list[tuple[str, str]] = field(default_factory=list)

    @property
    def kernels(self) -> int:
        return self.by_kernel.total()


@dataclass(repr=False)
class Device:
    """The state of the emulated device."""

    counted: list[Counts] = field(default_factory=list)  # of every `counting` that is open
    total: Counts = field(default_factory=Counts)
    tape: list | None = None  # while a graph is captured: (function, args, kwargs, results)
    kept: dict = field(default_factory=dict)  # {address: (storage, copy)} of what a capture wrote to
    captures: list[Counts] = field(default_factory=list)
    replays: int = 0
    fused: int = 0  # depth of functions of torch that are one kernel
    pinned: dict = field(default_factory=dict)  # {address: storage} of pinned host memory

    @contextmanager
    def counting(self):
        """Context that yields the Counts of its body."""
        counts = Counts()
        self.counted.append(counts)
        try:
            yield counts
        finally:
            self.counted = [other for other in self.counted if other is not counts]

    def watch(self, monkeypatch, owner, name: str) -> list[Counts]:
        """Count every call of owner.name from now on; return the list that grows by one entry per call."""
        function, calls = getattr(owner, name), []

        def counted(*args, **kwargs):
            with self.counting() as counts:
                calls.append(counts)
                return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, counted)
        return calls

    def launch(self, name: str) -> None:
        for counts in (self.total, *self.counted):
            counts.by_kernel[name] += 1

    def wait(self, kind: str) -> None:
        at = where()
        if self.tape is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {kind} at {at}")
        for counts in (self.total, *self.counted):
            counts.waits.append((kind, at))

    def pin(self, x: torch.Tensor) -> torch.Tensor:
        self.pinned[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return x

    def keep(self, tensors: list[torch.Tensor]) -> None:
        """Copy the storages that a captured operation may write to, each once."""
        for x in tensors:
            storage = x.untyped_storage()
            if storage.data_ptr() not in self.kept:
                self.kept[storage.data_ptr()] = storage, storage.clone()


def where() -> str:
    """Return the innermost line of the project outside of the tests."""
    for frame, line in traceback.walk_stack(None):
        path = os.path.abspath(frame.f_code.co_filename)
        if path.startswith(ROOT) and not path.startswith((f"{ROOT}tests", f"{ROOT}.venv")):
            return f"{path.removeprefix(ROOT)}:{line}"
    return "a test"


class DeviceTensor(torch.Tensor):
    """A tensor on the emulated device; `data_on_host` holds its numbers."""

    @staticmethod
    def __new__(cls, data: torch.Tensor):
        form = dict(strides=data.stride(), storage_offset=data.storage_offset(), dtype=data.dtype)
        tensor = torch.Tensor._make_wrapper_subclass(cls, data.size(), device=INNER, **form)
        tensor.data_on_host = data
        return tensor

    device = property(lambda self: CUDA)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} of a tensor of the emulated device, which is closed")

    def data_ptr(self) -> int:
        return self.data_on_host.data_ptr()

    def untyped_storage(self):
        return self.data_on_host.untyped_storage()

    def tolist(self):
        return self.cpu().tolist()

    def numpy(self, *_args, **_kwargs):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def __repr__(self, **_kwargs) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype})"


def raw(x):
    return x.data_on_host if isinstance(x, DeviceTensor) else x


def mapped(function, tree):
    """Return nested tuples, lists and dicts with function(x) in place of each x in them: quicker than torch's own."""
    if isinstance(tree, tuple | list):
        return type(tree)([mapped(function, x) for x in tree])
    if isinstance(tree, dict):
        return {name: mapped(function, x) for name, x in tree.items()}
    return function(tree)


def tensors_in(tree) -> list[torch.Tensor]:
    found = []
    mapped(lambda x: found.append(x) if isinstance(x, torch.Tensor) else None, tree)
    return found


class _Dispatch(TorchDispatchMode):
    def __init__(self, device: Device):
        super().__init__()
        self.emulated = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), function._schema.name.removeprefix("aten::")
        inputs, to = tensors_in((args, kwargs)), kwargs.get("device")
        mine = [x for x in inputs if isinstance(x, DeviceTensor)]
        to_device = to is not None and torch.device(to).type == "lazy"
        if not (mine or to_device):
            pinned = kwargs.pop("pin_memory", None)
            result = function(*args, **kwargs)
            return self.emulated.pin(result) if pinned else result
        self._check(name, args, kwargs, inputs)
        kwargs.pop("pin_memory", None)
        if to is not None:
            kwargs["device"] = torch.device("cpu")
        self._waits(name, args, kwargs, to, mine)
        here = {id(raw(x)): x for x in mine}
        host_args, host_kwargs = mapped(raw, args), mapped(raw, kwargs)
        emulated, makes_view = self.emulated, function.is_view or name in NO_KERNEL
        if emulated.tape is not None and function._schema.is_mutable:
            emulated.keep(tensors_in((host_args, host_kwargs)))
        out = run(function, host_args, host_kwargs)
        if not makes_view and name != "_local_scalar_dense" and not emulated.fused:
            emulated.launch(name)
        if emulated.tape is not None and not makes_view:
            emulated.tape.append((function, host_args, host_kwargs, out))
        if name in READS_A_NUMBER or (to is not None and not to_device):
            return out
        if name == "copy_" and not isinstance(args[0], DeviceTensor):
            return args[0]
        wrap = lambda x: here[id(x)] if id(x) in here else DeviceTensor(x)  # noqa: E731
        return mapped(lambda x: wrap(x) if isinstance(x, torch.Tensor) else x, out)

    def _check(self, name, args, kwargs, inputs) -> None:
        """Raise what torch raises if host and device tensors meet."""
        on_host = [x for x in inputs if not isinstance(x, DeviceTensor) and x.dim()]
        if name in INDEXES:
            indices = [i for i in args[1] if i is not None]
            if any(not isinstance(i, DeviceTensor) for i in indices) and isinstance(args[0], DeviceTensor):
                self.emulated.wait("an index on the host")
                on_host = [x for x in on_host if all(x is not i for i in indices)]
        if on_host and name not in ("copy_", "_to_copy", "set_"):
            shapes = [tuple(x.shape) for x in inputs]
            raise RuntimeError(f"Expected all tensors to be on the same device: {name} of {shapes} at {where()}")

    def _waits(self, name, args, kwargs, to, mine) -> None:
        masks = name in INDEXES and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
        if (
            name in SHAPE_DEPENDS_ON_DATA
            or masks
            or (name == "repeat_interleave" and kwargs.get("output_size") is None)
        ):
            self.emulated.wait(f"the shape of {name}")
        elif name in READS_A_NUMBER:
            self.emulated.wait("a number is read")
        elif name in ("_to_copy", "copy_"):
            target, source = (args[0], args[1]) if name == "copy_" else (None, args[0])
            ends = isinstance(source, DeviceTensor), isinstance(target, DeviceTensor) or (to and to.type == "lazy")
            if name == "_to_copy" and to is None:
                return
            host = target if ends[0] else source
            pinned = host is not None and host.untyped_storage().data_ptr() in self.emulated.pinned
            asynchronous = kwargs.get("non_blocking") or (name == "copy_" and len(args) > 2 and args[2])
            if ends[0] != bool(ends[1]) and not (pinned and asynchronous):
                self.emulated.wait("a copy to the host" if ends[0] else "a copy from memory that is not pinned")


PRODUCTS = {"aten::mm": torch.mm, "aten::bmm": torch.bmm, "aten::addmm": torch.addmm, "aten::addmm_": torch.addmm}
PRODUCTS |= {"aten::baddbmm": torch.baddbmm, "aten::baddbmm_": torch.baddbmm}


def run(function, args, kwargs):
    """Call an operation on CPU tensors, also if torch has it for CUDA alone."""
    if function in (torch.ops.aten.mm.dtype, torch.ops.aten.bmm.dtype):
        a, b, dtype = args
        assert dtype == torch.float32 and a.dtype == b.dtype in (torch.bfloat16, torch.float16)
        return (torch.mm if a.dim() == 2 else torch.bmm)(a.float(), b.float())
    name = function._schema.name if isinstance(function, torch._ops.OpOverload) else ""
    if name in PRODUCTS and all(x.dtype in (torch.bfloat16, torch.float16) for x in tensors_in(args)):
        return in_float32(PRODUCTS[name], name.endswith("_"), args, kwargs)
    return function(*args, **kwargs)


def in_float32(product, in_place: bool, args, kwargs) -> torch.Tensor:
    """Return a product of 16-bit tensors, summed in float32 as on a GPU: many CPUs have no fast one."""
    out = args[0] if in_place else kwargs.get("out")
    rest = {key: value for key, value in kwargs.items() if key != "out"}
    found = product(*(x.float() if isinstance(x, torch.Tensor) else x for x in args), **rest)
    return found.to(args[0].dtype) if out is None else out.copy_(found)


class _Functions(TorchFunctionMode):
    """Translate "cuda" to the device that torch knows, before torch looks for a driver."""

    def __init__(self, device: Device):
        super().__init__()
        self.emulated = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.device:
            return function(*args, **kwargs)  # code of torch looks for the module of its type
        if function in (torch.tensor, torch.as_tensor) and is_cuda(kwargs.get("device")):
            del kwargs["device"]
            return function(*args, **kwargs).to(INNER)
        if function is torch.Tensor.cuda:
            function, args = torch.Tensor.to, (args[0], INNER)
        args = tuple(INNER if is_cuda(x) else x for x in args)
        kwargs = {name: INNER if is_cuda(x) else x for name, x in kwargs.items()}
        if function in (torch.Tensor.__setitem__, torch.Tensor.__getitem__) and isinstance(args[1], list):
            args = args[0], torch.tensor(args[1], dtype=torch.long), *args[2:]
        if function is torch.Tensor.__setitem__ and not isinstance(args[2], torch.Tensor):
            args = *args[:2], torch.tensor(args[2], dtype=args[0].dtype)  # as torch does for a CUDA tensor
        if function is torch.Tensor.pin_memory:
            return self.emulated.pin(args[0].clone())
        if function is torch.nn.functional.rms_norm and isinstance(args[0], DeviceTensor) and not self.emulated.fused:
            self.emulated.launch("rms_norm")  # torch has one kernel for it on CUDA
            self.emulated.fused += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.emulated.fused -= 1
        return function(*args, **kwargs)


def is_cuda(x) -> bool:
    return type(x) in (str, torch.device) and str(x).startswith("cuda")


@contextmanager
def on_host():
    """Context of operations on CPU tensors alone, which nothing here needs to see."""
    with torch.no_grad(), torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        yield


class StandIn:
    """A plain function in the place of a kernel, `kernel[grid](...)`, or of a function that launches kernels."""

    def __init__(self, device: Device, name: str, function, launches: int = 1):
        self.device, self.name, self.function, self.launches = device, name, function, launches

    def __getitem__(self, grid):
        return self

    def __call__(self, *args, **kwargs):
        strangers = [x for x in tensors_in((args, kwargs)) if not isinstance(x, DeviceTensor)]
        if strangers:
            raise ValueError(f"{self.name}: pointer argument cannot be accessed from Triton (cpu tensor?) at {where()}")
        args, kwargs = mapped(raw, args), mapped(raw, kwargs)
        if self.device.tape is not None:
            self.device.keep(tensors_in((args, kwargs)))
        for _ in range(self.launches):
            self.device.launch(self.name)
        with on_host():
            out = self.function(*args, **kwargs)
        if self.device.tape is not None:
            self.device.tape.append((self.function, args, kwargs, out))
        return mapped(lambda x: DeviceTensor(x) if isinstance(x, torch.Tensor) else x, out)


class _Graph:
    def __init__(self):
        self.tape = []

    def replay(self) -> None:
        with on_host():
            for function, args, kwargs, out in self.tape:
                again = tensors_in(run(function, args, kwargs))
                for old, new in zip(tensors_in(out), again, strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


@contextmanager
def emulated_cuda(monkeypatch, memory: int = 80 * 2**30, capability: tuple[int, int] = (9, 0)):
    """Context in which torch has a CUDA device; yields its Device."""
    device = Device()

    class Graph(_Graph):
        def replay(self):
            device.replays += 1
            super().replay()

    @contextmanager
    def capture(graph, **_options):
        device.tape, device.kept = graph.tape, {}
        try:
            with device.counting() as counts:
                yield
        finally:
            device.tape = None
            for storage, before in device.kept.values():
                storage.copy_(before)
            device.captures.append(counts)

    event = SimpleNamespace(synchronize=lambda: None, record=lambda *_: None, elapsed_time=lambda _: 1.0)
    stream = SimpleNamespace(wait_stream=lambda _: None, record_event=lambda: event, synchronize=lambda: None)
    properties = SimpleNamespace(total_memory=memory, multi_processor_count=132, name="emulated", major=capability[0])
    functions, run_backward = _Functions(device), torch.autograd._engine_run_backward

    def backward(*args, **kwargs):
        with functions:  # torch leaves a mode while it handles the call of backward
            return run_backward(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", backward)
    for name, value in {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda *_: device.wait("torch.cuda.synchronize"),
        "Stream": lambda *_: stream,
        "Event": lambda **_: event,
        "current_stream": lambda *_: stream,
        "stream": lambda _: nullcontext(),
        "CUDAGraph": Graph,
        "graph": capture,
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: capability,
        "get_device_name": lambda *_: "emulated",
        "mem_get_info": lambda *_: (memory, memory),
        "memory_allocated": lambda *_: 0,
        "max_memory_allocated": lambda *_: 0,
        "reset_peak_memory_stats": lambda *_: None,
        "empty_cache": lambda: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    with _Dispatch(device), functions:
        yield device
