"""Low-rank adapters for any model made of nn.Linear layers (Hu et al. 2021, LoRA).

    inject(model, r=16, alpha=32)               # the base freezes; A is random, B is zero: the output does not change
    with adapters_off(model): ...               # the base model
    save_adapter(model, folder); load_adapter(model, folder)     # PEFT's files
    fold(model)                                 # W + scale * B A, for export; never to sample

Nothing in here knows the model's architecture, environments or reinforcement learning.
"""

from importlib import import_module

from lora.files import save_adapter
from lora.layer import LoRALinear, adapter_version, adapters_off, inject, lora_layers, use_adapter

ON_DEMAND = {"fold": "lora.folding", "load_adapter": "lora.loading", "read_adapter_config": "lora.config"}
__all__ = ["LoRALinear", "adapter_version", "adapters_off", "inject", "lora_layers", "save_adapter", "use_adapter"]
__all__ += ON_DEMAND


def __getattr__(name: str):
    """Return a function of ON_DEMAND, whose module is imported only now (PEP 562)."""
    if name not in ON_DEMAND:
        raise AttributeError(f"module 'lora' has no attribute {name!r}")
    return getattr(import_module(ON_DEMAND[name]), name)
