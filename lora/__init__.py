"""Low-rank adapters for any model made of nn.Linear layers (Hu et al. 2021, LoRA).

    inject(model, r=16, alpha=32)               # the base freezes; A is random, B is zero: the output does not change
    with adapters_off(model): ...               # the base model
    save_adapter(model, folder); load_adapter(model, folder)     # PEFT's files
    fold(model)                                 # W + scale * B A, for export; never to sample

Nothing in here knows the model's architecture, environments or reinforcement learning.
"""

from pathlib import Path

from torch import nn

from lora.files import save_adapter
from lora.layer import LoRALinear, adapter_version, adapters_off, fold, inject, lora_layers, use_adapter

__all__ = [
    "LoRALinear",
    "adapter_version",
    "adapters_off",
    "fold",
    "inject",
    "load_adapter",
    "lora_layers",
    "read_adapter_config",
    "save_adapter",
    "use_adapter",
]


def load_adapter(model: nn.Module, folder: Path, name: str = "default", trainable: bool = True) -> list[str]:
    """Inject the adapter in `folder` under `name`, fill it and activate it. Return its layers' names.

    Raise FileNotFoundError or ValueError with one line for files that are missing, broken or do not fit the model.
    """
    from lora import loading

    return loading.load_adapter(model, Path(folder), name, trainable)


def read_adapter_config(folder: Path) -> dict:
    """Return the checked adapter_config.json; a pinned revision is part of its base model's name, "id@revision".

    Raise FileNotFoundError or ValueError with one line.
    """
    from lora import config

    return config.read_adapter_config(Path(folder))
