"""Quantised layers in checkpoints that bitsandbytes saved, and layers quantised while a checkpoint is read.

bitsandbytes stores a layer P in 4 bits as P.weight (codes), P.weight.absmax, P.weight.quant_map (the 16 levels) and
P.weight.quant_state.bitsandbytes__nf4 (JSON in bytes); scales in 8 bits add P.weight.nested_absmax and
P.weight.nested_quant_map. A layer in int8 is P.weight, P.SCB (scales) and P.weight_format (0: row by row). Some
checkpoints leave layers as they were, so the names in the files say which layers are quantised.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from models.decoder import CausalLM
from models.quant import BLOCK, LEVELS, NESTED_BLOCK, QuantLinear, block_linears, quantise
from models.refusal import Refusal

STATE = "weight.quant_state.bitsandbytes__nf4"
NAMES = {  # of a stored layer's tensors: the attribute of QuantLinear, or "" for one that is only checked
    "nf4": {"weight": "weight", "weight.absmax": "absmax", "weight.quant_map": "", STATE: ""},
    "nf4-double": {
        **{"weight": "weight", "weight.absmax": "absmax", "weight.nested_absmax": "nested_absmax"},
        **{"weight.nested_quant_map": "nested_map", "weight.quant_map": "", STATE: "offset"},
    },
    "int8": {"weight": "weight", "SCB": "absmax", "weight_format": ""},
}
MOST_STATE = 10_000  # bytes of a STATE; it has about 200
OPTIONAL = "weight_format"  # older files lack it


def read(model: CausalLM, quant: str, files: list[Path], dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Make the block linears of a model on the meta device quantised layers; return the model's tensors by name.

    quant: "nf4" | "nf4-double" | "int8", or "none" to leave layers as they are. A layer stored in floats is quantised
    on `device` from the stored numbers, whatever dtype is; other tensors are cast to dtype. Files are read one tensor
    at a time. Raise ValueError for a tensor that is in two files or does not fit its format.
    """
    stored = replace_layers(model, quant, files)
    tensors: dict[str, torch.Tensor] = {}
    layers = block_linears(model)
    for file in files:
        for path, module_tensors in convert(file, keys_of(file), layers, stored, dtype, device):
            if repeated := tensors.keys() & {f"{path}.{name}" for name in module_tensors}:
                raise Refusal(f"{file}: {min(repeated)} is already in another shard")
            tensors |= {f"{path}.{name}": value for name, value in module_tensors.items()}
    return tensors


def replace_layers(model: CausalLM, quant: str, files: list[Path]) -> dict[str, str]:
    """Make the block linears of a model on the meta device quantised layers. Return `stored_layers` of the files.

    Raise ValueError for another `quant` than the one that the files are stored in, or if config.json says another.
    """
    stored, as_stored = stored_layers(model, files), model.config.quant
    if as_stored != "none" and quant not in ("none", as_stored):
        raise Refusal(f"{files[0].parent}: is stored as {as_stored}, not {quant}; leave quant= out")
    if as_stored != "none" and not stored:
        no_layer = f"config.json says {as_stored}, and no layer is stored so"
        raise Refusal(f"{files[0].parent}: {no_layer}: remove quantization_config from it")
    if as_stored != "none" and (others := set(stored.values()) - {as_stored}):
        raise Refusal(f"{files[0].parent}: config.json says {as_stored}, and layers are stored as {min(others)}")
    for path, layer in block_linears(model).items():
        model.set_submodule(path, QuantLinear(layer, stored.get(path, quant if as_stored == "none" else "none")))
    model.config = replace(model.config, quant=quant if as_stored == "none" else as_stored)
    return stored


def convert(
    file_path: Path, keys: Iterable[str], layers: dict[str, Any], stored: dict[str, str], dtype, device
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Read the tensors of a file that `keys` names, one at a time. Yield (a module's path, its tensors by attribute).

    layers: the quantised layers by path; stored: those of them that the files hold in 4 or 8 bits. Tensors in floats
    are cast to dtype, or quantised where their layer is. Raise ValueError for a tensor that does not fit its format.
    """
    with safe_open(file_path, framework="pt", device="cpu") as file:
        for key in keys:
            if key.endswith("rotary_emb.inv_freq"):
                continue
            path, name = split(key, stored)
            try:
                module_tensors = _convert(layers.get(path), name, file.get_tensor(key), path in stored, dtype, device)
            except ValueError as error:
                raise Refusal(f"{file_path}: {key} {error}") from None
            yield path, {attribute: value.to(device) for attribute, value in module_tensors.items()}


def _convert(layer: QuantLinear | None, name: str, tensor: torch.Tensor, stored: bool, dtype, device) -> dict:
    """Return the module's tensors, by attribute, that a file's tensor gives."""
    if layer is not None and stored and name in NAMES[layer.kind]:
        return _stored(layer, name, tensor)
    if not tensor.is_floating_point():
        raise Refusal(f"has dtype {tensor.dtype}; weights must be floating-point numbers")
    if layer is not None and name == "weight" and layer.kind != "none":
        if tensor.shape != (layer.out_features, layer.in_features):
            raise Refusal(f"has shape {tuple(tensor.shape)}, not {(layer.out_features, layer.in_features)}")
        return quantise(tensor.to(device), layer.kind)
    cast = tensor.to(device=device, dtype=dtype, copy=True)  # a view would keep its whole shard in memory
    if not cast.sum().isfinite() and not cast.isfinite().all():
        raise Refusal(f"has an entry that is not finite in {str(dtype).removeprefix('torch.')}")
    return {name: cast}


def _stored(layer: QuantLinear, name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the attribute that a tensor of bitsandbytes is, or nothing. Raise ValueError for an unknown format."""
    if name == STATE:
        return _state(layer, tensor)
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise Refusal("has an entry that is not finite")
    if name == "weight.quant_map" and not torch.equal(tensor, torch.tensor(LEVELS)):
        raise Refusal("has other levels than NF4's")
    if name == "weight_format" and tensor.item() != 0:
        raise Refusal(f"is {tensor.item()}; only 0, rows one after the other, is supported")
    attribute = NAMES[layer.kind][name]
    if attribute:
        wanted = getattr(layer, attribute)
        if (tensor.shape, tensor.dtype) != (wanted.shape, wanted.dtype):
            given, expected = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (tensor, wanted))
            raise Refusal(f"is {given}; {layer.kind} has {expected}")
    return {attribute: tensor.clone()} if attribute else {}


def _state(layer: QuantLinear, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the offset of the scales from a 4-bit layer's JSON. Raise ValueError for another format."""
    try:
        state = json.loads(bytes(tensor.flatten()[:MOST_STATE].tolist()))
        offset = float(state.get("nested_offset", 0.0))
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Refusal("is not a JSON object") from None
    wanted = {"quant_type": "nf4", "blocksize": BLOCK, "shape": [layer.out_features, layer.in_features]}
    double = layer.kind == "nf4-double"
    wanted |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32"} if double else {}
    for key, value in wanted.items():
        if state.get(key) != value:
            raise Refusal(f"has {key} {state.get(key)!r}; only {value!r} is supported")
    if not math.isfinite(offset):
        raise Refusal("has an entry that is not finite")
    return {"offset": torch.tensor(offset)} if double else {}


def stored_layers(model: CausalLM, files: list[Path]) -> dict[str, str]:
    """Return the kind of each layer that the files hold in 4 or 8 bits. Raise ValueError for one outside a block."""
    keys = [key for path in files for key in keys_of(path)]
    kinds = {key.removesuffix(".SCB"): "int8" for key in keys if key.endswith(".SCB")}
    kinds |= {key.removesuffix(".weight.absmax"): "nf4" for key in keys if key.endswith(".weight.absmax")}
    nested = ".weight.nested_absmax"
    kinds |= {key.removesuffix(nested): "nf4-double" for key in keys if key.endswith(nested)}
    if other := sorted(kinds.keys() - block_linears(model).keys()):
        raise Refusal(f"{other[0]} is quantised in the checkpoint; only linear layers of blocks may be")
    return kinds


def keys_of(path: Path) -> list[str]:
    """Return the names of a file's tensors. Raise ValueError if it is not whole."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise Refusal(f"{path}: not a whole safetensors file ({error})") from None


def split(key: str, stored: dict[str, str]) -> tuple[str, str]:
    """Return (module, name in it) of a file's tensor; a stored layer's names may have dots."""
    parts = key.split(".")
    for i in range(1, len(parts)):
        if (path := ".".join(parts[:i])) in stored:
            return path, ".".join(parts[i:])
    return ".".join(parts[:-1]), parts[-1]


def names_in_files(model: CausalLM, files: list[Path]) -> dict[str, tuple[int, ...] | None]:
    """Return the tensors that the files must hold with their shapes; None for those that `read` checks."""
    stored, keys = stored_layers(model, files), {key for path in files for key in keys_of(path)}
    dense = {key: tuple(p.shape) for key, p in model.named_parameters(remove_duplicate=False)}
    shapes: dict[str, tuple[int, ...] | None] = {**dense}
    for path, layer in block_linears(model).items():
        shapes[f"{path}.weight"] = (layer.out_features, layer.in_features)
        names = [name for name in NAMES.get(stored.get(path, ""), ()) if name != OPTIONAL or f"{path}.{name}" in keys]
        shapes |= {f"{path}.{name}": None for name in names}
    return shapes
