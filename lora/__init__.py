"""Low-rank adapters for any model made of nn.Linear layers (Hu et al. 2021, LoRA).

    inject(model, r=16, alpha=32)               # the base freezes; A is random, B is zero: the output does not change
    with adapters_off(model): ...               # the base model
    save_adapter(model, folder); load_adapter(model, folder)     # PEFT's files
    fold(model)                                 # W + scale * B A, for export; never to sample

Imports nothing of models, envs or rl. Of the architecture it knows layer names: lm_head, and q, k, v, o_proj.
"""

from pathlib import Path

from torch import nn

from lora.files import save_adapter
from lora.layer import LoRALinear, adapter_version, adapters_off, inject, lora_layers, use_adapter

__all__ = ["LoRALinear", "adapter_version", "adapters_off", "fold", "inject", "load_adapter", "lora_layers"]
__all__ += ["read_adapter_config", "save_adapter", "use_adapter"]


def fold(model: nn.Module) -> nn.Module:
    """Replace LoRA layers by plain ones with W + scale * B A (lora/folding.py)."""
    from lora import folding

    return folding.fold(model)


def load_adapter(model: nn.Module, folder: Path, name: str = "default", trainable: bool = True) -> list[str]:
    """Inject the adapter in `folder`, fill it and activate it (lora/loading.py). Return its layers' names."""
    from lora import loading

    return loading.load_adapter(model, folder, name, trainable)


def read_adapter_config(folder: Path) -> dict:
    """Return an adapter's configuration (lora/config.py)."""
    from lora import config

    return config.read_adapter_config(folder)
