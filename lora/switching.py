"""Switch between the adapters of a model, and to its base. Imported only where a run does so."""

from contextlib import contextmanager

from torch import nn

from lora.layer import activate, lora_layers


@contextmanager
def use_adapter(model: nn.Module, name: str | None):
    """Context in which the adapter of that name is active; None is the base. Raises KeyError for an unknown name."""
    layers = [layer for _, layer in lora_layers(model)]
    if name is not None and not any(name in layer.adapters for layer in layers):
        known = sorted({key for layer in layers for key in layer.adapters})
        raise KeyError(f"no adapter named {name!r}; there are: {', '.join(known) or 'none'}")
    before = [layer.active for layer in layers]
    try:
        activate(model, name)
        yield model
    finally:
        for layer, active in zip(layers, before, strict=True):
            layer.active = active


def adapters_off(model: nn.Module):
    """Context in which the model computes its base."""
    return use_adapter(model, None)
