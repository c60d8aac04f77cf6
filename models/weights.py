"""Weights from safetensors files into a decoder, strictly: every name, every shape, or one line that says which.

A model name is, in this order: "tiny" (the checkpoint that comes with the code), an existing folder, a hub id.
Files are data from strangers: shard names must be plain file names inside the folder, and nothing is unpickled.
"""

import json
import os
import re
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from models.config import read_config
from models.decoder import CausalLM

TINY = Path(__file__).parent / "tiny"
HUB_ID = re.compile(r"^[\w.-]+/[\w.-]+$")
SHARD_NAME = re.compile(r"^[\w-][\w.-]*\.safetensors$")


def resolve(name: str | Path) -> Path:
    """The folder that holds a model: the embedded one, a local folder, or a download from the hub.

    Raises FileNotFoundError with one line if there is none.
    """
    name = str(name)
    if name == "tiny":
        return TINY
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")) or not HUB_ID.match(name) or ".." in name:
        raise FileNotFoundError(f"model {name!r}: no such folder (and not a hub id such as Qwen/Qwen2.5-0.5B-Instruct)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.jinja"]))
    except Exception as error:  # the hub client raises many kinds; what the user needs is the same for all
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"model {name!r}: no such folder, and the hub did not give it ({type(error).__name__}: {reason[:160]})"
        ) from None


def load_model(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> CausalLM:
    """Builds the decoder on the meta device and fills it from `name` (see `resolve`), cast to dtype.

    Raises FileNotFoundError or ValueError, one line each, for a missing or truncated file, a missing, unknown,
    misshapen or integer tensor, a config that cannot be computed, or a tied head that disagrees with the embedding.
    """
    folder = resolve(name)
    cfg = read_config(folder)
    with torch.device("meta"):
        model = CausalLM(cfg)
    wanted = dict(model.named_parameters(remove_duplicate=False))
    tensors = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for key in file.keys():  # noqa: SIM118  (not a dict)
                    if key.endswith("rotary_emb.inv_freq"):
                        continue  # old Llama checkpoints carry the rotary frequencies; they follow from the config
                    if key in tensors:
                        raise ValueError(f"{path}: tensor {key} is already in another shard")
                    if key not in wanted:
                        raise ValueError(f"{path}: tensor {key} has no place in a {cfg.model_type} model")
                    shape = tuple(file.get_slice(key).get_shape())
                    if shape != tuple(wanted[key].shape):
                        raise ValueError(
                            f"{path}: {key} has shape {shape}; config.json asks {tuple(wanted[key].shape)}"
                        )
                    tensor = file.get_tensor(key)
                    if not tensor.is_floating_point():
                        raise ValueError(f"{path}: {key} holds {tensor.dtype}; weights are floating-point numbers")
                    tensors[key] = tensor.to(device=device, dtype=dtype)
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path}: not a whole safetensors file ({error})") from None
    if cfg.tie_word_embeddings:
        _check_tied(folder, tensors)
    missing = sorted(set(wanted) - set(tensors))
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"{folder}: tensor {missing[0]} is missing{more}")
    model.load_state_dict(tensors, strict=True, assign=True)
    if cfg.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model.eval()


def save_model(model: CausalLM, folder: Path, raw_config: dict, dtype: torch.dtype) -> None:
    """Writes config.json and model.safetensors in Hugging Face layout; a tied head is left out, as transformers
    does.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.detach().to("cpu", dtype).contiguous() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    name = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps({**raw_config, "dtype": name, "torch_dtype": name}, indent=2) + "\n")


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if not (folder / "model.safetensors").is_file():
            raise FileNotFoundError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")
        return [folder / "model.safetensors"]
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index}: not a shard index (a weight_map of tensor names to file names)") from None
    for shard in shards:
        if not isinstance(shard, str) or not SHARD_NAME.match(shard):
            raise ValueError(f"{index}: shard {shard!r} is not a plain file name inside the folder")
        if not (folder / shard).is_file():
            raise FileNotFoundError(f"{folder / shard}: missing, though {index.name} lists it")
        target, inside = os.path.realpath(folder / shard), os.path.realpath(folder)
        hub_blob = "/blobs/" in target and "/snapshots/" in inside  # the hub cache links snapshots to blobs
        if not target.startswith(inside + os.sep) and not hub_blob:
            raise ValueError(f"{folder / shard}: links to a file outside the folder")
    return [folder / shard for shard in shards]


def _check_tied(folder: Path, tensors: dict) -> None:
    embedding, head = tensors.get("model.embed_tokens.weight"), tensors.get("lm_head.weight")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise ValueError(
            f"{folder}: tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight; "
            "set it to false in config.json to use both"
        )
    if embedding is not None:
        tensors["lm_head.weight"] = embedding
