"""Adapters as files that PEFT and vLLM read: adapter_config.json and adapter_model.safetensors.

A tensor's key is `base_model.model.{module path}.lora_A.weight` ([r, in]) or `.lora_B.weight` ([out, r]). A wrong
prefix would load as a silent base model elsewhere, so reading here is strict: every layer that the config names must be
in the file, with its shape, and nothing else.
"""

import json
import math
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from lora.layer import inject, lora_layers

PREFIX = "base_model.model."
# Options of PEFT that change what is computed, and the values of them that mean "not used".
UNUSED = {
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "bias": ("none", None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layers_to_transform": (None, []),
    "exclude_modules": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None, []),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "use_qalora": (False, None),
    "use_bdlora": (False, None),
    "arrow_config": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
    "kasa_config": (None,),
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),  # the others change the base as well
}


def save_adapter(model: nn.Module, folder: Path, base_model: str | None = None, name: str = "default") -> None:
    """Writes the named adapter into `folder`. base_model: the path or id that PEFT should load the base from."""
    layers = [(path, layer.adapters[name], layer) for path, layer in lora_layers(model) if name in layer.adapters]
    if not layers:
        raise ValueError(f"the model has no adapter named {name!r} to save")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, adapter, _ in layers:
        tensors[f"{PREFIX}{path}.lora_A.weight"] = adapter.A.detach().cpu().contiguous()
        tensors[f"{PREFIX}{path}.lora_B.weight"] = adapter.B.detach().cpu().contiguous()
    r, scale = layers[0][1].A.shape[0], layers[0][1].scale
    names = {path.rsplit(".", 1)[-1] for path, _, _ in layers}
    if _named_targets(names, model) != {path for path, _, _ in layers}:  # not every q_proj, say: then by whole names
        names = {path for path, _, _ in layers}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": r,
        "lora_alpha": _as_int(scale * r),
        "lora_dropout": layers[0][2].dropout,
        "target_modules": sorted(names),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,  # the scale is written as alpha / r whatever rule chose it
        "inference_mode": True,
    }
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _as_int(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


def read_adapter_config(folder: Path) -> dict:
    """The checked adapter_config.json. Raises FileNotFoundError or ValueError, one line each."""
    path = Path(folder) / "adapter_config.json"
    if not path.is_file():
        epochs = sorted(path.parent.glob("epoch_*/adapter_config.json"), key=lambda found: found.stat().st_mtime)
        hint = f"; did you mean {epochs[-1].parent}?" if epochs else "" if path.parent.is_dir() else "; no such folder"
        raise FileNotFoundError(f"{path}: no adapter_config.json there, so this is not an adapter folder{hint}")
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: not a JSON object")
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type is {config.get('peft_type')!r}, not 'LORA'")
    for key, allowed in UNUSED.items():
        if key in config and config[key] not in allowed:
            raise ValueError(f"{path}: {key}={config[key]!r} is not supported")
    for key, kinds, wanted in (("r", int, "whole number"), ("lora_alpha", (int, float), "number")):
        value = config.get(key)
        if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < float("inf"):
            raise ValueError(f"{path}: {key} must be a positive {wanted}, not {value!r}")
    dropout, targets = config.get("lora_dropout") or 0.0, config.get("target_modules")
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"{path}: lora_dropout must be in [0, 1), not {dropout!r}")
    if not (targets is None or isinstance(targets, str) or all(isinstance(target, str) for target in targets)):
        raise ValueError(f"{path}: target_modules must be names, not {targets!r}")
    return config


def load_adapter(model: nn.Module, folder: Path, name: str = "default", trainable: bool = True) -> list[str]:
    """Injects the adapter that `folder` describes, fills it, and activates it. Returns the layers' names.

    Raises FileNotFoundError or ValueError, one line each: a file that is absent or broken, an option of PEFT that
    changes the computation and is not supported, a layer that the model lacks, a shape that does not fit, a stray
    tensor.
    """
    folder = Path(folder)
    config = read_adapter_config(folder)
    tensors = _read_tensors(folder)
    paths = sorted({key.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for key in tensors})
    stray = [
        key for key in tensors if not key.startswith(PREFIX) or not key.endswith((".lora_A.weight", ".lora_B.weight"))
    ]
    if stray:
        raise ValueError(f"{folder}: tensor {stray[0]} is not a LoRA factor named {PREFIX}*.lora_A|B.weight")
    modules = dict(model.named_modules())
    for path in paths:
        layer = modules.get(path)
        layer = getattr(layer, "base_layer", layer)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"{folder}: the adapter has a linear layer {path} that this model lacks; is it another's?")
        for factor, shape in (("A", (config["r"], layer.in_features)), ("B", (layer.out_features, config["r"]))):
            found = tensors.get(f"{PREFIX}{path}.lora_{factor}.weight")
            if found is None:
                raise ValueError(f"{folder}: {path} has no lora_{factor}")
            if tuple(found.shape) != shape:
                raise ValueError(
                    f"{folder}: {path}.lora_{factor} has shape {tuple(found.shape)}, this model needs {shape}"
                )
    expected = _named_targets(config.get("target_modules"), model)
    if expected - set(paths):
        raise ValueError(f"{folder}: target_modules names {sorted(expected - set(paths))[0]}, which the file lacks")
    alpha = config["lora_alpha"] * (math.sqrt(config["r"]) if config.get("use_rslora") else 1)
    inject(model, r=config["r"], alpha=alpha, dropout=config.get("lora_dropout") or 0.0, targets=paths, name=name)
    for path, layer in lora_layers(model):
        if path in paths:
            with torch.no_grad():
                layer.adapters[name].A.copy_(tensors[f"{PREFIX}{path}.lora_A.weight"])
                layer.adapters[name].B.copy_(tensors[f"{PREFIX}{path}.lora_B.weight"])
            layer.adapters[name].requires_grad_(trainable)
    return paths


def _named_targets(targets, model: nn.Module) -> set[str]:
    """The model's layers that a list of target_modules names; a regex or all-linear is left to the file's own keys."""
    if targets is None or isinstance(targets, str):
        return set()
    paths = [p for p, m in model.named_modules() if isinstance(m, nn.Linear) and not p.endswith("base_layer")]
    paths += [p for p, _ in lora_layers(model)]
    return {path for path in paths for target in targets if path == target or path.endswith("." + target)}


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    path, pickled = folder / "adapter_model.safetensors", folder / "adapter_model.bin"
    try:
        if path.is_file():
            return load_file(path)
        if pickled.is_file():
            tensors = torch.load(pickled, map_location="cpu", weights_only=True)
            return {key: tensor.detach() for key, tensor in tensors.items()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    except Exception as error:  # the unpickler raises many kinds, and what it gives may be anything
        raise ValueError(f"{pickled}: not readable as plain weights ({type(error).__name__})") from None
    raise FileNotFoundError(f"{path}: missing (and no adapter_model.bin either)")
