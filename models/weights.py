"""Weights from safetensors files into a decoder, strictly: every name, every shape, or one line that says which.

A model name is, in this order: "tiny" (the checkpoint that comes with the code), an existing folder, a hub id. A hub id
may pin a branch, tag or commit: "Qwen/Qwen2.5-0.5B-Instruct@main".
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
from models.linear import Linear
from models.rope import both_layouts

TINY = Path(__file__).parent / "tiny"
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
REVISION = re.compile(r"\w([\w./-]*\w)?", re.ASCII)
SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


def split_revision(name: str | Path) -> tuple[str, str | None]:
    """("org/name", "v1") of the hub id "org/name@v1"; (name, None) of a name without one, and of a folder.

    Raises ValueError with one line for what cannot be a branch, tag or commit.
    """
    hub_id, at, revision = str(name).partition("@")
    if not at or not HUB_ID.fullmatch(hub_id) or Path(name).is_dir():
        return str(name), None
    if not REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
        raise ValueError(f"model {str(name)!r}: {revision!r} is not the name of a branch, tag or commit")
    return hub_id, revision


def resolve(name: str | Path) -> Path:
    """The folder that holds a model: the embedded one, a local folder, or a download from the hub.

    Offline the hub's cache is used. Raises FileNotFoundError with one line if there is none.
    """
    name = str(name)
    if name == "tiny":
        return TINY
    if Path(name).is_dir():
        return Path(name)
    hub_id, revision = split_revision(name)
    if name.startswith((".", "/", "~")) or not HUB_ID.fullmatch(hub_id) or ".." in hub_id:
        raise FileNotFoundError(f"model {name!r}: no such folder (and not a hub id such as Qwen/Qwen2.5-0.5B-Instruct)")
    from huggingface_hub import snapshot_download

    try:
        patterns = ["*.json", "*.safetensors", "*.jinja"]
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; what the user needs is the same for all
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"model {name!r}: no such folder, and the hub did not give it ({type(error).__name__}: {reason[:160]})"
        ) from None


def is_tiny(name: str) -> bool:
    """Whether it is the embedded model, or a folder that holds one of its shape: trained on, merged, cast."""
    if name == "tiny":
        return True
    try:
        shapes = [json.loads((folder / "config.json").read_text()) for folder in (TINY, Path(name))]
    except (OSError, ValueError):
        return False
    for config in shapes:
        for key in [key for key in config if key.endswith("dtype") or key.startswith("rope") or "transformers" in key]:
            config.pop(key)
    return shapes[0] == shapes[1]


def load_model(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", exact: bool = False) -> CausalLM:
    """Builds the decoder on the meta device and fills it from `name` (see `resolve`), cast to dtype. Its weights are
    frozen: give it adapters (lora.inject), or train all of them after model.requires_grad_(True). exact: see
    `make_exact`.

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
    model.requires_grad_(False).eval()
    return make_exact(model) if exact else model


def make_exact(model: CausalLM) -> CausalLM:
    """On CUDA sampling and training agree in every bit from now on, whatever the batch, at some cost: linear layers,
    attention and the head are the same Triton kernels in both. On a CPU they always agree.

    Raises ValueError with one line where the device lacks what that takes.
    """
    weight = model.lm_head.weight
    if weight.device.type == "cpu":
        return model
    if weight.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError("exact=true on a CUDA device takes dtype=bfloat16 or float16 (float32 is too slow there)")
    major, minor = torch.cuda.get_device_capability(weight.device)
    if major < 8:
        raise ValueError(f"exact=true takes a CUDA device of compute capability 8.0 or more, not {major}.{minor}")
    try:
        from models.fast.triton.linear import product
    except ImportError:
        raise ValueError("exact=true on a CUDA device takes Triton: pip install triton") from None
    model.exact = True
    for layer in model.modules():
        if isinstance(layer, Linear):
            layer.matmul = product
    return model


def save_model(model: CausalLM, folder: Path, raw_config: dict, dtype: torch.dtype) -> None:
    """Writes config.json and model.safetensors in Hugging Face layout; a tied head is left out, as transformers
    does, and the rotary settings are written for old and new readers.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {key: value.detach().to("cpu", dtype).contiguous() for key, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    name = str(dtype).removeprefix("torch.")
    config = {**both_layouts(raw_config), "dtype": name, "torch_dtype": name}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if not (folder / "model.safetensors").is_file():
            raise FileNotFoundError(f"{folder}: neither model.safetensors nor model.safetensors.index.json is there")
        return [_inside(folder / "model.safetensors")]
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index}: not a shard index (a weight_map of tensor names to file names)") from None
    for shard in shards:
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            raise ValueError(f"{index}: shard {shard!r} is not a plain file name inside the folder")
        if not (folder / shard).is_file():
            raise FileNotFoundError(f"{folder / shard}: missing, though {index.name} lists it")
    return [_inside(folder / shard) for shard in shards]


def _inside(path: Path) -> Path:
    """The path, if it does not link out of its folder, other than from a snapshot of the hub's cache to its blobs."""
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    snapshot = folder.parent.name == "snapshots"
    if folder in target.parents or (snapshot and folder.parents[1] / "blobs" in target.parents):
        return path
    raise ValueError(f"{path}: links to a file outside the folder")


def _check_tied(folder: Path, tensors: dict) -> None:
    embedding, head = tensors.get("model.embed_tokens.weight"), tensors.get("lm_head.weight")
    if head is not None and embedding is not None and not torch.equal(head, embedding):
        raise ValueError(
            f"{folder}: tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight; "
            "set it to false in config.json to use both"
        )
    if embedding is not None:
        tensors["lm_head.weight"] = embedding
