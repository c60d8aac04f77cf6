"""Save adapters as files that PEFT and vLLM read: adapter_config.json and adapter_model.safetensors.

A tensor's key is `base_model.model.{module path}.lora_A.weight` ([r, in]) or `.lora_B.weight` ([out, r]). Reading them
is in lora/loading.py.
"""

import json
import re
from pathlib import Path

from safetensors.torch import save
from torch import nn

from lora.layer import lora_layers

PREFIX = "base_model.model."
MOST_RANK = 4096  # of an adapter
HUB_ID = r"[\w.-]+/[\w.-]+"


def save_adapter(model: nn.Module, folder: Path, base_model: str | None = None, name: str = "default") -> None:
    """Write the adapter `name` into `folder`. Loaded again, it computes the same, bit for bit.

    base_model: the path or hub id from which PEFT should load the base, "id@revision" for a pinned one. Layers with an
        r or alpha of their own are written with PEFT's patterns, which vLLM ignores.
    Raise ValueError if there is no such adapter, or only some of its layers scale by rsLoRA's rule.
    """
    layers = {path: layer for path, layer in lora_layers(model) if name in layer.adapters}
    if not layers:
        raise ValueError(f"the model has no adapter named {name!r} to save")
    adapters = {path: layer.adapters[name] for path, layer in layers.items()}
    (r, alpha, rslora), *other_sizes = {(len(a.A), a.alpha, a.rslora) for a in adapters.values()}
    patterns = {}
    if other_sizes:
        from lora.patterns import common_size

        r, alpha, patterns = common_size(adapters)
    leaves = {path.rsplit(".", 1)[-1] for path in layers}
    named = {path for path, _ in model.named_modules() if path.rsplit(".", 1)[-1] in leaves}
    targets = leaves if named == set(layers) else set(layers)  # full names if, say, only some q_proj have an adapter
    pinned = re.fullmatch(f"({HUB_ID})@(.+)", base_model or "")
    base, revision = pinned.groups() if pinned else (base_model, None)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": next(iter(layers.values())).dropout,
        "target_modules": sorted(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": rslora,
        "inference_mode": True,
    }
    config |= ({"revision": revision} if revision else {}) | patterns  # old versions of PEFT fail on unknown keys
    factors = {f"{PREFIX}{path}.lora_{f}.weight": getattr(adapters[path], f) for path in layers for f in "AB"}
    tensors = {key: factor.detach().cpu().contiguous() for key, factor in factors.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # save_file would write a file that only its owner can read
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
