"""Low-rank adapters for any model made of nn.Linear layers (Hu et al. 2021, LoRA).

    inject(model, r=16, alpha=32)               # the base freezes; A is random, B is zero: the output does not change
    with adapters_off(model): ...               # the base model
    save_adapter(model, folder); load_adapter(model, folder)     # PEFT's files
    fold(model)                                 # W + scale * B A, for export; never to sample

Imports nothing of models, envs or rl. Of the architecture it knows layer names: lm_head, and q, k, v, o_proj.
"""

from importlib import import_module

from lora.layer import LoRALinear, adapter_version, inject, lora_layers
from lora.peft_files import save_adapter

ON_DEMAND = {  # name: the file that it is imported from when it is used first
    "adapters_off": "switching",
    "fold": "folding",
    "load_adapter": "loading",
    "read_adapter_config": "config",
    "use_adapter": "switching",
}
__all__ = ["LoRALinear", "adapter_version", "inject", "lora_layers", "save_adapter", *ON_DEMAND]


def __getattr__(name: str):
    if name not in ON_DEMAND:
        raise AttributeError(f"module 'lora' has no attribute {name!r}")
    return getattr(import_module(f"lora.{ON_DEMAND[name]}"), name)
