"""Adapters as files that PEFT and vLLM read: adapter_config.json and adapter_model.safetensors.

A tensor's key is `base_model.model.{module path}.lora_A.weight` ([r, in]) or `.lora_B.weight` ([out, r]). A wrong
prefix would load as a silent base model elsewhere, so reading here is strict: every layer that the config names must be
in the file, with its shape, and nothing else.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from lora.config import adapter_config, read_adapter_config, targeted
from lora.layer import LoRALinear, by_pattern, inject, lora_layers

PREFIX = "base_model.model."


def save_adapter(model: nn.Module, folder: Path, base_model: str | None = None, name: str = "default") -> None:
    """Writes the named adapter into `folder`; loaded again, it scales and computes as it did, bit for bit.

    base_model: the path or hub id that PEFT should load the base from, "id@revision" for a pinned one. Layers that
        differ in r or alpha are written with PEFT's patterns, which vLLM ignores.
    """
    layers = {path: layer for path, layer in lora_layers(model) if name in layer.adapters}
    if not layers:
        raise ValueError(f"the model has no adapter named {name!r} to save")
    adapters = {path: layer.adapters[name] for path, layer in layers.items()}
    leaves = {path.rsplit(".", 1)[-1] for path in layers}
    named = {path for path, _ in model.named_modules() if path.rsplit(".", 1)[-1] in leaves}
    targets = leaves if named == set(layers) else set(layers)  # not every q_proj, say: then by whole names
    config = adapter_config(adapters, targets, next(iter(layers.values())).dropout, base_model)
    factors = {f"{PREFIX}{path}.lora_{f}.weight": getattr(adapters[path], f) for path in layers for f in "AB"}
    tensors = {key: factor.detach().cpu().contiguous() for key, factor in factors.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # not save_file: only its owner could read what that writes
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_adapter(model: nn.Module, folder: Path, name: str = "default", trainable: bool = True) -> list[str]:
    """Injects the adapter that `folder` describes, fills it, and activates it. Returns the layers' names.

    Raises FileNotFoundError or ValueError, one line each: a file that is absent or broken, an option of PEFT that
    changes the computation and is not supported, a layer that the model or the file lacks or that the config does not
    name, a shape that does not fit, a stray tensor.
    """
    folder = Path(folder)
    config, tensors = read_adapter_config(folder), _read_tensors(folder)
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    try:
        meant = _linears_meant(config, model)
        paths = _linears_there(tensors, model)
        if meant - paths:
            raise ValueError(f"target_modules names {min(meant - paths)}, which the file lacks")
        if paths - meant:
            raise ValueError(f"the file has the layer {min(paths - meant)}, which target_modules does not name")
        for path in sorted(paths):
            _check_shapes(tensors, path, model.get_submodule(path), by_pattern(path, ranks, config["r"]))
        by_pattern("", alphas, None)  # its keys are regular expressions
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
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
        with torch.no_grad():
            adapter.A.copy_(tensors[f"{PREFIX}{path}.lora_A.weight"])
            adapter.B.copy_(tensors[f"{PREFIX}{path}.lora_B.weight"])
        adapter.requires_grad_(trainable)
    return names


def _linears_meant(config: dict, model: nn.Module) -> set[str]:
    """The model's layers that the config's target_modules mean. Raises ValueError for one that can have no adapter."""
    inside, found = tuple(f"{path}." for path, _ in lora_layers(model)), set()
    for path, module in model.named_modules():
        linear = isinstance(module, nn.Linear | LoRALinear)
        if path.startswith(inside) or (config.get("target_modules") == "all-linear" and not linear):
            continue
        if targeted(path, config):
            if not linear or path == "lm_head":
                raise ValueError(
                    f"an adapter on {path or 'the whole model'} is not supported, only on inner linear layers"
                )
            found.add(path)
    return found


def _linears_there(tensors: dict[str, torch.Tensor], model: nn.Module) -> set[str]:
    """The layers that the file has factors for. Raises ValueError for other tensors, and for layers of other models."""
    for key, tensor in tensors.items():
        if not key.startswith(PREFIX) or not key.endswith((".lora_A.weight", ".lora_B.weight")):
            raise ValueError(f"tensor {key} is not a LoRA factor named {PREFIX}*.lora_A|B.weight")
        if not tensor.is_floating_point():
            raise ValueError(f"{key} holds {tensor.dtype}; weights are floating-point numbers")
    paths = {key.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for key in tensors}
    modules = dict(model.named_modules())
    for path in sorted(paths):
        if not isinstance(modules.get(path), nn.Linear | LoRALinear):
            raise ValueError(f"the adapter has a linear layer {path} that this model lacks; is it another's?")
    return paths


def _check_shapes(tensors: dict[str, torch.Tensor], path: str, layer: nn.Module, r: int) -> None:
    base = getattr(layer, "base_layer", layer)
    for factor, shape in (("A", (r, base.in_features)), ("B", (base.out_features, r))):
        found = tensors.get(f"{PREFIX}{path}.lora_{factor}.weight")
        if found is None:
            raise ValueError(f"{path} has no lora_{factor}")
        if tuple(found.shape) != shape:
            raise ValueError(f"{path}.lora_{factor} has shape {tuple(found.shape)}, this model needs {shape}")


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    path, pickled = folder / "adapter_model.safetensors", folder / "adapter_model.bin"
    if path.is_file():
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    if pickled.is_file():
        try:
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
            return {key: tensor.detach() for key, tensor in tensors.items()}
        except Exception as error:  # the unpickler raises many kinds, and what it gives may be anything
            raise ValueError(f"{pickled}: not readable as plain weights ({type(error).__name__})") from None
    raise FileNotFoundError(f"{path}: missing (and no adapter_model.bin either)")
