"""Low-rank adapters for any model made of nn.Linear layers (Hu et al. 2021, LoRA).

    inject(model, r=16, alpha=32)               # the base freezes; A is random, B is zero: the output does not change
    with adapters_off(model): ...               # the base model
    save_adapter(model, folder); load_adapter(model, folder)     # PEFT's files
    fold(model)                                 # W + scale * B A, for export; never to sample

Imports nothing of models, envs or rl. Of the architecture it knows layer names: lm_head, and q, k, v, o_proj.
"""

from lora.export import fold
from lora.layer import LoRALinear, adapter_version, adapters_off, freeze_copy, inject, lora_layers, use_adapter
from lora.peft_files import load_adapter, read_adapter_config, save_adapter

__all__ = [
    "LoRALinear",
    "adapter_version",
    "adapters_off",
    "fold",
    "freeze_copy",
    "inject",
    "load_adapter",
    "lora_layers",
    "read_adapter_config",
    "save_adapter",
    "use_adapter",
]
