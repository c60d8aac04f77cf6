"""Load a decoder's weights from safetensors files. Every name and shape must fit; one line says which does not.

A model name is, in this order: "tiny" (the checkpoint that comes with the code), "smol" (the one that `make smol`
fetches), an existing folder, a .gguf file, a hub id. A hub id may pin a branch, tag or commit:
"Qwen/Qwen2.5-0.5B-Instruct@main". Weights may be sharded over several files, and the hub's cache holds links.
Checkpoints are untrusted: nothing is unpickled.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from models.checkpoints import converted, quantised
from models.checkpoints.quantised import names_in_files
from models.config import read_config
from models.decoder import CausalLM
from models.hooks import hooks
from models.json_file import POINTER, check_pointer, read_object
from models.refusal import Refusal, say

TINY = Path(__file__).parent / "tiny"  # the folder of the embedded model
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROWS = 4096  # of two matrices that are cast and compared at once
SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
REVISION = re.compile(r"\w([\w./-]*\w)?", re.ASCII)
DOWNLOADED = ["*.json", "*.safetensors", "*.jinja"]  # the files of a checkpoint that are read
NOT_READ = ["*/*.json", "*/*.safetensors", "consolidated*"]  # other formats of the same weights, and training states


def load_model(name: str, dtype=torch.float32, device="cpu", exact=False, quant: str = "none", read=None) -> CausalLM:
    """Return the decoder with the weights of `name` (see `resolve`), cast to dtype and frozen.

    To train it, inject adapters (lora.inject) or call model.requires_grad_(True).
    exact: on a GPU, sample and train with the same bits (models/cuda/exact.py).
    read: (model on the meta device, files, dtype, device) -> its tensors; replaces the reader of whole tensors.
    quant: "nf4" | "nf4-double" | "int8" quantises the blocks' linear layers (models/quant.py), tensor by tensor.
    Raise FileNotFoundError or ValueError, one line that names the file, tensor or setting that is missing or unfit.
    """
    folder, model, files = open_checkpoint(name)
    check_weights(folder, files, model, dtype)
    if read or quant == model.config.quant == "none":
        tensors = (read or _read)(model, files, dtype, device)
    else:
        tensors = quantised.read(model, quant, files, dtype, device)
    tied = model.config.tie_word_embeddings
    if tied:
        tensors.setdefault(HEAD, tensors[EMBEDDING])  # files may hold one copy of the matrix or both
    model.load_state_dict(tensors, strict=True, assign=True)
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.requires_grad_(False).eval()
    if exact and model.lm_head.weight.is_cuda:
        hooks("cuda").make_exact(model)
    return model


def _read(model: CausalLM, files: list[Path], dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Return all tensors, cast one at a time. Raise ValueError for an entry that is not finite."""
    tensors = {}
    for path in files:
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118  (not a dict)
                if key.endswith("rotary_emb.inv_freq"):
                    continue  # old Llama checkpoints store the rotary frequencies, which follow from the config
                tensors[key] = file.get_tensor(key).to(device=device, dtype=dtype)
                if not tensors[key].sum().isfinite():  # an entry is not, or the sum is out of range
                    check_finite(tensors[key], f"{path}: {key}")
    return tensors


def open_checkpoint(name: str | Path) -> tuple[Path, CausalLM, list[Path]]:
    """Return (folder, model on the meta device, weight files). Raise as `load_model`, for too large files as well."""
    folder = resolve(name)
    with torch.device("meta"):
        model = CausalLM(read_config(folder))
    files = weight_files(folder / "model.safetensors.index.json", folder / "model.safetensors")
    for path in files:
        with open(path, "rb") as file:
            check_pointer(file.read(len(POINTER)), f"{path}: ")
    if (folder / "adapter_config.json").is_file():
        say(f"{folder} has a model and an adapter: model= alone plays the model, adapter={folder} beside it both")
    size, count = sum(path.stat().st_size for path in files), sum(p.numel() for p in model.parameters())
    if size > 16 * count + 2**20:  # 8 bytes each, a tied head twice, and headers
        raise Refusal(f"{folder}: {size:,} bytes of weights; config.json describes {count:,} numbers")
    return folder, model, files


def resolve(name: str | Path) -> Path:
    """Return the folder of a model: embedded, local, converted from a .gguf file, or downloaded.

    Raise FileNotFoundError or ValueError for none.
    """
    return local(name) or download(str(name))


def local(name: str | Path) -> Path | None:
    """Return the folder of a model that is on this machine without the hub; None for another name.

    A .gguf file is converted first. Raise FileNotFoundError for "smol" and a .gguf file that are not here and for
    another file, ValueError for a file that cannot be converted and for an empty name.
    """
    if not str(name):
        raise Refusal("model= is given without a name")
    folder = TINY if str(name) == "tiny" else Path(name)
    if str(name) == converted.SMOL:
        return converted.smol_folder()
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise FileNotFoundError(f"model {str(name)!r}: an adapter is there, which is no model: give its base")
    if folder.is_dir():
        return folder
    if str(name).lower().endswith(".gguf"):
        return converted.folder_of(folder)
    if folder.is_file():
        raise FileNotFoundError(f"model {str(name)!r}: this is a file: give its folder, {folder.parent}")
    return None


def download(name: str) -> Path:
    """Return the folder of a hub id such as "org/name" or "org/name@revision"; offline, that of the hub's cache.

    Raise FileNotFoundError with one line if `name` is not a hub id or the hub does not have it, ValueError if the
    revision cannot be the name of one. A config.json that is not supported is refused before the weights come.
    """
    read_config(download_config(name))
    return _download(name, DOWNLOADED)


def download_config(name: str) -> Path:
    """Return a folder with the config.json of a hub id. Raise what `download` does for the id and the revision."""
    return _download(name, ["config.json"])


def _download(name: str, patterns: list[str]) -> Path:
    hub_id, revision = split_revision(name)
    if name.startswith((".", "/", "~")) or not HUB_ID.fullmatch(hub_id) or ".." in hub_id:
        raise FileNotFoundError(f"model {name!r}: no such folder (and not a hub id such as Qwen/Qwen2.5-0.5B-Instruct)")
    from huggingface_hub import snapshot_download  # takes half a second, and only a hub id needs it

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns, ignore_patterns=NOT_READ))
    except Exception as error:  # the hub client raises many kinds; for the user they all mean the same
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"model {name!r}: no such folder, and no download from the hub ({type(error).__name__}: {reason[:160]})"
        ) from None


def split_revision(name: str | Path) -> tuple[str, str | None]:
    """Return ("org/name", "v1") for the hub id "org/name@v1", and (name, None) for any other name or a folder.

    Raise ValueError with one line for a revision that cannot be a branch, tag or commit.
    """
    hub_id, at, revision = str(name).partition("@")
    if not at or not HUB_ID.fullmatch(hub_id) or Path(name).is_dir():
        return str(name), None
    if not REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
        raise Refusal(f"model {str(name)!r}: {revision!r} is not the name of a branch, tag or commit")
    return hub_id, revision


def weight_files(index: Path, single: Path) -> list[Path]:
    """Return the shards that the file `index` lists, or the file `single` if there is no index.

    Raise FileNotFoundError if neither exists, ValueError for a broken index, for a file `single` beside an index that
    does not list it, and for a link out of the folder.
    """
    if index.is_file():
        shards = shard_files(index)
        if single.is_file() and single not in shards:
            raise Refusal(f"{single.parent}: has {single.name} and {index.name}, which lists other files: remove one")
        return [inside(path) for path in shards]
    if not single.is_file():
        pickled = [path.name for path in single.parent.glob("pytorch_model*.bin")][:1]
        hint = "".join(f"; {name} is pickled and not read: save the model as safetensors" for name in pickled)
        shards = sorted(path.name for path in single.parent.glob("model-*-of-*.safetensors"))[:1]
        hint += "".join(f"; {name} is a shard, which is read only with the index: fetch it too" for name in shards)
        raise FileNotFoundError(f"{single.parent}: has neither {single.name} nor {index.name}{hint}")
    return [inside(single)]


def inside(path: Path) -> Path:
    """Return the path. Raise ValueError if it links out of its folder, except from a hub snapshot to its blobs."""
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    snapshot = folder.parent.name == "snapshots"
    if folder in target.parents or (snapshot and folder.parents[1] / "blobs" in target.parents):
        return path
    raise Refusal(f"{path}: links to a file outside the folder")


def shard_files(index: Path) -> list[Path]:
    """Return the files that a model.safetensors.index.json lists, all of them plain names inside its folder.

    Raise ValueError or FileNotFoundError with one line otherwise.
    """
    try:
        shards = sorted(set(read_object(index)["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Refusal(f"{index}: not a shard index (a weight_map of tensor names to file names)") from None
    for shard in shards:
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            raise Refusal(f"{index}: shard {shard!r} is not a plain file name inside the folder")
        if not (index.parent / shard).is_file():
            raise FileNotFoundError(f"{index.parent / shard}: missing, though {index.name} lists it")
    return [index.parent / shard for shard in shards]


def check_weights(folder: Path, files: list[Path], model: CausalLM, dtype: torch.dtype) -> None:
    """Raise ValueError, with one line that names the file or tensor, if the files are not exactly the model's weights.

    model: its parameters may be on the meta device; dtype: in which a tied head is compared.
    """
    dense = {key: tuple(p.shape) for key, p in model.named_parameters(remove_duplicate=False)}
    shapes = names_in_files(model, files) if model.config.quant != "none" else dense
    seen: set[str] = set()
    tied, matrices = model.config.tie_word_embeddings, {}
    for path in files:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for key in file.keys():  # noqa: SIM118  (not a dict)
                    if key.endswith("rotary_emb.inv_freq"):
                        continue
                    _check_tensor(path, file, key, shapes, seen)
                    seen.add(key)
                    if tied and key in (EMBEDDING, HEAD):
                        matrices[key] = file.get_tensor(key)
        except (SafetensorError, OSError) as error:
            raise Refusal(f"{path}: not a whole safetensors file ({error})") from None
    if len(matrices) == 2 and not _equal(matrices[HEAD], matrices[EMBEDDING], dtype):
        raise Refusal(
            f"{folder}: tie_word_embeddings is true, but {HEAD} differs from {EMBEDDING}; "
            "set it to false in config.json to use both"
        )
    if tied and EMBEDDING in matrices:
        seen.add(HEAD)
    if missing := sorted(set(shapes) - seen):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise Refusal(f"{folder}: tensor {missing[0]} is missing{more}")


def _equal(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether two matrices of a shape are equal once they are cast to dtype."""
    return all(torch.equal(a.to(dtype), b.to(dtype)) for a, b in zip(one.split(ROWS), other.split(ROWS), strict=True))


def _check_tensor(path: Path, file: safe_open, key: str, shapes: Mapping[str, tuple | None], seen: set[str]) -> None:
    """Raise ValueError if a file's tensor is repeated, unknown, misshapen or of integers."""
    if key in seen:
        raise Refusal(f"{path}: tensor {key} is already in another shard")
    if key not in shapes:
        raise Refusal(f"{path}: tensor {key} is not part of the model that config.json describes")
    if shapes[key] is None:
        return  # models/checkpoints/quantised.py checks it
    shape = tuple(file.get_slice(key).get_shape())
    if shape != shapes[key]:
        raise Refusal(f"{path}: {key} has shape {shape}; config.json says {shapes[key]}")
    dtype = file.get_tensor(key).dtype
    if not dtype.is_floating_point:
        raise Refusal(f"{path}: {key} has dtype {dtype}; weights must be floating-point numbers")


def check_finite(tensor: torch.Tensor, name: str) -> None:
    """Raise ValueError with the tensor's name if an entry is NaN or infinite."""
    if not tensor.isfinite().all():
        raise Refusal(f"{name} has an entry that is not finite in {str(tensor.dtype).removeprefix('torch.')}")
