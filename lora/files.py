"""Save adapters as files that PEFT and vLLM read: adapter_config.json and adapter_model.safetensors.

A tensor's key is `base_model.model.{module path}.lora_A.weight` ([r, in]) or `.lora_B.weight` ([out, r]). Reading them
is in lora/loading.py.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save
from torch import nn

from lora.layer import Adapter, lora_layers

PREFIX = "base_model.model."
HUB_ID = r"[\w.-]+/[\w.-]+"


def save_adapter(model: nn.Module, folder: Path, base_model: str | None = None, name: str = "default") -> None:
    """Write the adapter `name` into `folder`. Loaded again, it computes the same, bit for bit.

    base_model: the path or hub id from which PEFT should load the base, "id@revision" for a pinned one. Layers with an
        r or alpha of their own are written with PEFT's patterns, which vLLM ignores.
    """
    layers = {path: layer for path, layer in lora_layers(model) if name in layer.adapters}
    if not layers:
        raise ValueError(f"the model has no adapter named {name!r} to save")
    adapters = {path: layer.adapters[name] for path, layer in layers.items()}
    leaves = {path.rsplit(".", 1)[-1] for path in layers}
    named = {path for path, _ in model.named_modules() if path.rsplit(".", 1)[-1] in leaves}
    targets = leaves if named == set(layers) else set(layers)  # full names if, say, only some q_proj have an adapter
    config = adapter_config(adapters, targets, next(iter(layers.values())).dropout, base_model)
    factors = {f"{PREFIX}{path}.lora_{f}.weight": getattr(adapters[path], f) for path in layers for f in "AB"}
    tensors = {key: factor.detach().cpu().contiguous() for key, factor in factors.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # save_file would write a file that only its owner can read
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def adapter_config(
    adapters: dict[str, Adapter], target_modules: Iterable[str], dropout: float, base_model: str | None
) -> dict:
    """Return PEFT's config of an adapter with these layers.

    Raise ValueError if only some layers scale by rsLoRA's rule, which PEFT's config cannot express.
    """
    rules = {adapter.rslora for adapter in adapters.values()}
    if len(rules) > 1:
        raise ValueError("some layers scale by rsLoRA's rule and others do not, which PEFT's config cannot express")
    pinned = re.fullmatch(f"({HUB_ID})@(.+)", base_model or "")
    base, revision = pinned.groups() if pinned else (base_model, None)
    r, rank_pattern = _common({path: adapter.A.shape[0] for path, adapter in adapters.items()})
    alpha, alpha_pattern = _common({path: _as_int(adapter.alpha) for path, adapter in adapters.items()})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": sorted(target_modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": rules.pop(),
        "inference_mode": True,
    }
    rare = {"revision": revision, "rank_pattern": rank_pattern, "alpha_pattern": alpha_pattern}
    return config | {key: value for key, value in rare.items() if value}  # old versions of PEFT fail on unknown keys


def _common(values: dict[str, float]) -> tuple[float, dict[str, float]]:
    """Return the most common value, and the other layers' values, each under a pattern of its full name."""
    common = Counter(values.values()).most_common(1)[0][0]
    return common, {f"^{re.escape(path)}": value for path, value in values.items() if value != common}


def _as_int(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value
