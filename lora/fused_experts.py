"""Adapters that PEFT saved for the fused experts of transformers 5, as adapters on the linear layers of each expert.

transformers 5 keeps the E experts of a layer in two tensors: gate_up_proj, [E, 2 I, D], gate before up, and down_proj,
[E, D, I]. PEFT names such tensors in `target_parameters`, and saves two factors for all experts of one tensor:

    lora_A [E r, in]     rows e r to (e + 1) r are those of expert e
    lora_B [out, r E]    seen as [out, r, E], the last index is the expert's

Their keys begin with the experts' name, such as `model.layers.0.mlp.experts`. If both tensors have an adapter, PEFT
nests one wrapper in the other, and the inner tensor's keys begin with `model.layers.0.mlp.experts.base_layer`; shapes
tell the two apart. An expert's gate and up share their A.
"""

import re
from collections.abc import Iterable

import torch
from torch import nn

from lora.refusal import Refusal

PREFIX = "base_model.model."  # of every key in PEFT's files

FUSED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


def experts_of(paths: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Return the linear layers of experts among `paths`: by the experts' name and the fused tensor, in the tensor's
    order (expert by expert, gate before up)."""
    found: dict[str, dict[str, list[tuple[int, int, str]]]] = {}
    for path in paths:
        if part := re.fullmatch(r"(.*\.experts)\.(\d{1,9})\.(\w+)", path, re.ASCII):
            experts, number, leaf = part.groups()
            for tensor, leaves in FUSED.items():
                if leaf in leaves:
                    place = int(number), leaves.index(leaf), path
                    found.setdefault(experts, {}).setdefault(tensor, []).append(place)
    return {
        experts: {tensor: [path for *_, path in sorted(places)] for tensor, places in tensors.items()}
        for experts, tensors in found.items()
    }


def named_layers(target_parameters: list[str], paths: Iterable[str]) -> set[str]:
    """Return the layers among `paths` whose fused tensors are named, in full or from the end, as PEFT compares them.

    Raise ValueError for a name of another tensor.
    """
    fused = {
        f"{experts}.{tensor}": layers
        for experts, tensors in experts_of(paths).items()
        for tensor, layers in tensors.items()
    }
    named: set[str] = set()
    for name in dict.fromkeys(target_parameters):
        matched = [layers for tensor, layers in fused.items() if f".{tensor}".endswith(f".{name}")]
        if not matched:
            raise Refusal(f"target_parameters={name!r} is not supported: it names no tensor of this model's experts")
        named.update(*matched)
    return named


def split(tensors: dict[str, torch.Tensor], layers: dict[str, nn.Linear], r: int) -> dict[str, torch.Tensor]:
    """Return the tensors of an adapter's file with two factors for each of `layers`, linear layers of experts by name,
    instead of those of fused tensors. r: the rank.

    Raise ValueError for a fused tensor without two factors of its shapes, and for an expert that has its own as well.
    """
    rest = dict(tensors)
    for experts, fused in experts_of(layers).items():
        for tensor, paths in fused.items():
            parts = len(FUSED[tensor])
            count, inputs = len(paths) // parts, layers[paths[0]].in_features
            outputs = sum(layers[path].out_features for path in paths[:parts])
            # No two tensors of the experts have equal shapes: that needs 2 I = D and I = D.
            key_A, key_B = _keys(tensors, f"{experts}.{tensor}", (count * r, inputs), (outputs, r * count))
            A_Eri = rest.pop(key_A).reshape(count, r, inputs)
            B_porE = rest.pop(key_B).reshape(parts, outputs // parts, r, count)
            for place, path in enumerate(paths):
                expert, part = divmod(place, parts)
                factors = {"A": A_Eri[expert], "B": B_porE[part, :, :, expert]}
                for factor, values in factors.items():
                    key = f"{PREFIX}{path}.lora_{factor}.weight"
                    if key in tensors:
                        raise Refusal(f"the file has {key} beside the factors of {experts}.{tensor}")
                    rest[key] = values
    return rest


def _keys(tensors: dict[str, torch.Tensor], fused: str, shape_A: tuple, shape_B: tuple) -> tuple[str, str]:
    """Return the keys of a fused tensor's lora_A and lora_B. Raise ValueError if no two factors have these shapes."""
    experts = fused.rpartition(".")[0]
    for name in (experts, f"{experts}.base_layer"):
        keys = f"{PREFIX}{name}.lora_A.weight", f"{PREFIX}{name}.lora_B.weight"
        if [tuple(tensors[key].shape) for key in keys if key in tensors] == [shape_A, shape_B]:
            return keys
    raise Refusal(f"{fused} needs lora_A {list(shape_A)} and lora_B {list(shape_B)}, which the file lacks")
