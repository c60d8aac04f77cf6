"""Say why the weights in a checkpoint do not fit the model. Imported only when they do not."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROWS = 4096  # that are cast at once


def check_weights(folder: Path, files: list[Path], model: nn.Module, dtype: torch.dtype) -> None:
    """Raise ValueError, with one line that names the file or tensor, if the files are not exactly the model's weights.

    model: a models.CausalLM, whose parameters may be on the meta device; dtype: in which a tied head is compared.
    """
    shapes = {key: tuple(p.shape) for key, p in model.named_parameters(remove_duplicate=False)}
    if model.config.quant != "none":
        from models.checkpoints.quantised import names_in_files

        shapes = names_in_files(model, files)
    tied, found, seen = model.config.tie_word_embeddings, {}, set()
    for path in files:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for key in file.keys():  # noqa: SIM118  (not a dict)
                    if key.endswith("rotary_emb.inv_freq"):
                        continue
                    _check_tensor(path, file, key, shapes, seen)
                    seen.add(key)
                    if tied and key in (EMBEDDING, HEAD):
                        found[key] = file.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    if len(found) == 2 and not _equal(found[HEAD], found[EMBEDDING], dtype):
        raise ValueError(
            f"{folder}: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}; "
            "set it to false in config.json to use both"
        )
    if tied and EMBEDDING in found:
        seen.add(HEAD)
    if missing := sorted(set(shapes) - seen):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{folder}: tensor {missing[0]} is missing{more}")


def _equal(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether two matrices of a shape are equal once they are cast to dtype."""
    return all(torch.equal(a.to(dtype), b.to(dtype)) for a, b in zip(one.split(ROWS), other.split(ROWS), strict=True))


def _check_tensor(path: Path, file: safe_open, key: str, shapes: dict[str, tuple | None], seen: set[str]) -> None:
    """Raise ValueError if a file's tensor is repeated, unknown, misshapen or of integers."""
    if key in seen:
        raise ValueError(f"{path}: tensor {key} is already in another shard")
    if key not in shapes:
        raise ValueError(f"{path}: tensor {key} is not part of the model that config.json describes")
    if shapes[key] is None:
        return  # models/checkpoints/quantised.py checks it
    shape = tuple(file.get_slice(key).get_shape())
    if shape != shapes[key]:
        raise ValueError(f"{path}: {key} has shape {shape}; config.json says {shapes[key]}")
    dtype = file.get_tensor(key).dtype
    if not dtype.is_floating_point:
        raise ValueError(f"{path}: {key} has dtype {dtype}; weights must be floating-point numbers")


def check_finite(tensor: torch.Tensor, name: str) -> None:
    """Raise ValueError with the tensor's name if an entry is NaN or infinite."""
    if not tensor.isfinite().all():
        raise ValueError(f"{name} has an entry that is not finite in {str(tensor.dtype).removeprefix('torch.')}")
