"""Load adapters from PEFT's files: adapter_config.json and adapter_model.safetensors (or .bin).

A wrong prefix would silently leave the base model as it is, so reading is strict: the file must hold exactly the layers
that the config names, with their shapes. Imported only by lora.load_adapter.
"""

import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import nn

from lora.config import read_adapter_config, targeted
from lora.files import PREFIX
from lora.layer import LoRALinear, inject, lora_layers
from lora.patterns import sizes_by_pattern


def load_adapter(model: nn.Module, folder: Path, name: str = "default", trainable: bool = True) -> list[str]:
    """Inject the adapter in `folder`, fill it and activate it. Return its layers' names.

    Over a base on the meta device, whose weights are read later, the factors are on the CPU.
    Raise FileNotFoundError or ValueError, one line each, for a missing or broken file, an unsupported option, a layer
    that the model or the file lacks or the config does not name, a wrong shape, and a stray tensor.
    """
    config = read_adapter_config(folder)
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    with _naming(folder):
        named = _named_linears(config, model)
        sizes = sizes_by_pattern(sorted(named), config["r"], config["lora_alpha"], ranks, alphas)
    layers = [(_base(model, path), r) for path, (r, _) in sizes.items()]
    tensors = _read_tensors(folder, sum(r * (base.in_features + base.out_features) for base, r in layers))
    with _naming(folder):
        paths = _stored_linears(tensors, model)
        if named - paths:
            raise ValueError(f"target_modules names {min(named - paths)}, which the file lacks")
        if paths - named:
            raise ValueError(f"the file has the layer {min(paths - named)}, which target_modules does not name")
        for path, (r, _) in sizes.items():
            _check_shapes(tensors, path, _base(model, path), r)
    names = inject(
        model,
        r=config["r"],
        alpha=config["lora_alpha"],
        dropout=config.get("lora_dropout") or 0.0,
        targets=sorted(paths),
        rslora=bool(config.get("use_rslora")),
        name=name,
        rank_pattern=ranks,
        alpha_pattern=alphas,
    )
    for path in names:
        adapter = model.get_submodule(path).adapters[name]
        if adapter.A.is_meta:
            adapter.to_empty(device="cpu")
        with torch.no_grad():
            adapter.A.copy_(tensors[f"{PREFIX}{path}.lora_A.weight"])
            adapter.B.copy_(tensors[f"{PREFIX}{path}.lora_B.weight"])
        adapter.requires_grad_(trainable)
    return names


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Context that puts the folder's name before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None


def _named_linears(config: dict, model: nn.Module) -> set[str]:
    """Return the model's layers that the config names. Raise ValueError for one that cannot have an adapter."""
    inside, modules = tuple(f"{path}." for path, _ in lora_layers(model)), dict(model.named_modules())
    linears = {path for path, module in modules.items() if isinstance(module, nn.Linear | LoRALinear)}
    candidates = linears if config.get("target_modules") == "all-linear" else modules
    # Identity is in the place of a norm that the family does not have
    own = [path for path in candidates if not (path.startswith(inside) or isinstance(modules[path], nn.Identity))]
    found = targeted(own, config)
    if others := sorted(found - linears | found & {"lm_head"}):
        where = others[0] or "the whole model"
        raise ValueError(f"an adapter on {where} is not supported, only on inner linear layers")
    return found


def _stored_linears(tensors: dict[str, torch.Tensor], model: nn.Module) -> set[str]:
    """Return the layers whose factors are in the file. Raise ValueError for other tensors and other models' layers."""
    _check_names(tensors)
    for key, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ValueError(f"{key} has dtype {tensor.dtype}; weights must be floating-point numbers")
        if not tensor.float().sum().isfinite() and not tensor.float().isfinite().all():
            raise ValueError(f"{key} has an entry that is not finite")
    paths = {key.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for key in tensors}
    modules = dict(model.named_modules())
    for path in sorted(paths):
        if not isinstance(modules.get(path), nn.Linear | LoRALinear):
            raise ValueError(f"the adapter has a linear layer {path} that this model lacks")
    return paths


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if not name.startswith(PREFIX) or not name.endswith((".lora_A.weight", ".lora_B.weight")):
            raise ValueError(f"tensor {name} is not a LoRA factor named {PREFIX}*.lora_A|B.weight")


def _base(model: nn.Module, path: str) -> nn.Linear:
    """Return the linear layer of that name, without the adapters that it has."""
    layer = model.get_submodule(path)
    return layer.base_layer if isinstance(layer, LoRALinear) else layer


def _check_shapes(tensors: dict[str, torch.Tensor], path: str, base: nn.Linear, r: int) -> None:
    """Raise ValueError if a factor of the layer is missing or its shape does not fit the layer and the rank."""
    for factor, shape in (("A", (r, base.in_features)), ("B", (base.out_features, r))):
        found = tensors.get(f"{PREFIX}{path}.lora_{factor}.weight")
        if found is None:
            raise ValueError(f"{path} has no lora_{factor}")
        if tuple(found.shape) != shape:
            raise ValueError(f"{path}.lora_{factor} has shape {tuple(found.shape)}, this model needs {shape}")


def _read_tensors(folder: Path, count: int) -> dict[str, torch.Tensor]:
    """Return the tensors of the adapter's file, on the CPU. A pickled file is read with weights_only=True.

    count: of the numbers in them; a file that holds many more bytes is refused.
    """
    path, pickled = folder / "adapter_model.safetensors", folder / "adapter_model.bin"
    for file in (path, pickled):
        if file.is_file() and (size := _size(file)) > 16 * count + 2**20:  # 8 bytes each, and headers
            raise ValueError(f"{file}: {size:,} bytes of weights; adapter_config.json describes {count:,} numbers")
    if path.is_file():
        try:
            with safe_open(path, "pt") as file:
                names = list(file.keys())
            with _naming(folder):
                _check_names(names)  # before the tensors are read: a stranger's file may have a great many
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    if pickled.is_file():
        try:
            with warnings.catch_warnings(action="ignore"):  # of torch about pickle's protocols, beside our one line
                tensors = torch.load(pickled, map_location="cpu", weights_only=True)
            return {key: tensor.detach() for key, tensor in tensors.items()}
        except Exception as error:  # the unpickler raises many kinds and may return anything
            raise ValueError(f"{pickled}: not readable as plain weights ({type(error).__name__})") from None
    raise FileNotFoundError(f"{path}: missing (and no adapter_model.bin either)")


def _size(file: Path) -> int:
    """Return the bytes of a file, of an archive those that its parts have when they are unpacked."""
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(part.file_size for part in archive.infolist())
    except Exception:  # no archive, or a damaged one, for which zipfile raises many kinds
        return file.stat().st_size
