"""Low-rank adapters for any model made of nn.Linear layers (Hu et al. 2021, LoRA).

    inject(model, r=16, alpha=32)               # the base freezes; A is random, B is zero: the output does not change
    with adapters_off(model): ...               # the base model
    save_adapter(model, folder); load_adapter(model, folder)     # PEFT's files
    fold(model)                                 # W + scale * B A, for export; never to sample

Nothing in here knows the model's architecture, environments or reinforcement learning.
"""

from lora.config import read_adapter_config
from lora.files import load_adapter, save_adapter
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
