"""Load a decoder's weights from safetensors files. Every name and shape must fit; one line says which does not.

A model name is, in this order: "tiny" (the checkpoint that comes with the code), an existing folder, a hub id. A hub id
may pin a branch, tag or commit: "Qwen/Qwen2.5-0.5B-Instruct@main". Checkpoints are untrusted: nothing is unpickled.
"""

import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from models.config import read_config
from models.decoder import CausalLM

TINY = Path(__file__).parent / "tiny"


def resolve(name: str | Path) -> Path:
    """Return the folder of a model: the embedded one, a local folder, or a download from the hub.

    Raise FileNotFoundError or ValueError with one line if there is none.
    """
    if str(name) == "tiny":
        return TINY
    if Path(name).is_dir():
        return Path(name)
    from models.checkpoints.hub import download

    return download(str(name))


def is_tiny(name: str) -> bool:
    """Return whether `name` is the embedded model, or a folder with one of the same shape: trained, merged, cast."""
    if name == "tiny":
        return True
    from models.tiny.shape import same_shape

    return same_shape(TINY, Path(name))


def load_model(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", exact: bool = False) -> CausalLM:
    """Return the decoder with the weights of `name` (see `resolve`), cast to dtype and frozen.

    To train it, inject adapters (lora.inject) or call model.requires_grad_(True).
    exact: on a GPU, sample and train with the same bits (models/fast/exact.py).
    Raise FileNotFoundError or ValueError with one line for a missing or truncated file, a missing, unknown, misshapen
    or integer tensor, an unsupported config, or a tied head that differs from the embedding.
    """
    folder = resolve(name)
    cfg = read_config(folder)
    with torch.device("meta"):
        model = CausalLM(cfg)
    shapes = {key: tuple(p.shape) for key, p in model.named_parameters(remove_duplicate=False)}
    tensors = {}
    for path in _weight_files(folder):
        try:
            _read_file(path, shapes, tensors, dtype, device)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    if cfg.tie_word_embeddings:
        _check_tied(folder, tensors)
    if missing := sorted(set(shapes) - set(tensors)):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{folder}: tensor {missing[0]} is missing{more}")
    model.load_state_dict(tensors, strict=True, assign=True)
    if cfg.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.requires_grad_(False).eval()
    if exact and model.lm_head.weight.is_cuda:
        from models.fast.exact import make_exact

        make_exact(model)
    return model


def _read_file(path: Path, shapes: dict, tensors: dict, dtype: torch.dtype, device: str) -> None:
    """Read one safetensors file into `tensors`, one tensor at a time."""
    with safe_open(path, framework="pt", device="cpu") as file:
        for key in file.keys():  # noqa: SIM118  (not a dict)
            if key.endswith("rotary_emb.inv_freq"):
                continue  # old Llama checkpoints store the rotary frequencies, which follow from the config
            if key in tensors:
                raise ValueError(f"{path}: tensor {key} is already in another shard")
            if key not in shapes:
                raise ValueError(f"{path}: tensor {key} is not part of the model that config.json describes")
            shape = tuple(file.get_slice(key).get_shape())
            if shape != shapes[key]:
                raise ValueError(f"{path}: {key} has shape {shape}; config.json says {shapes[key]}")
            tensor = file.get_tensor(key)
            if not tensor.is_floating_point():
                raise ValueError(f"{path}: {key} has dtype {tensor.dtype}; weights must be floating-point numbers")
            tensors[key] = tensor.to(device=device, dtype=dtype)


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint: one, or the shards that its index lists."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        from models.checkpoints.shards import shard_files

        return [_inside(path) for path in shard_files(index)]
    if not single.is_file():
        raise FileNotFoundError(f"{folder}: has neither {single.name} nor {index.name}")
    return [_inside(single)]


def _inside(path: Path) -> Path:
    """Return the path. Raise ValueError if it links out of its folder, except from a hub snapshot to its blobs."""
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    snapshot = folder.parent.name == "snapshots"
    if folder in target.parents or (snapshot and folder.parents[1] / "blobs" in target.parents):
        return path
    raise ValueError(f"{path}: links to a file outside the folder")


def _check_tied(folder: Path, tensors: dict) -> None:
    """Use the embedding as the head. Raise ValueError if the file has a head that differs from it."""
    embedding, head = tensors.get("model.embed_tokens.weight"), tensors.get("lm_head.weight")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise ValueError(
            f"{folder}: tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight; "
            "set it to false in config.json to use both"
        )
    if embedding is not None:
        tensors["lm_head.weight"] = embedding


def save_model(model: CausalLM, folder: Path, raw_config: dict, dtype: torch.dtype) -> None:
    """Write config.json and model.safetensors into `folder` in Hugging Face layout, with the weights cast to dtype.

    A tied head is left out, as in transformers; the rotary settings are written for old and new readers.
    """
    from models.checkpoints.export import write_checkpoint

    write_checkpoint(model, folder, raw_config, dtype)
