"""Write a model as a Hugging Face checkpoint, tensor by tensor, so that no file is ever whole in memory.

The bytes are those of safetensors' own `save_file`: eight bytes with the header's length, the header in JSON, and the
tensors in the order of their names. The header is written last, so every reader refuses a file that is half written.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import torch

from models.decoder import CausalLM
from models.refusal import Refusal
from models.rope import OWN_LAYOUT, nested, rope_settings

SHARD = 5 * 10**9  # bytes of a file's tensors at most, if one tensor alone has not more
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@contextmanager
def writer(folder: Path, shapes: dict[str, tuple[int, ...]], dtype: torch.dtype) -> Iterator[Callable]:
    """Context that yields write(key, rows): add rows of `dtype` to the tensor of that name, in order.

    shapes: of all tensors, by name. Above SHARD bytes there are several files, cut in the order of `shapes`, and
    model.safetensors.index.json. Raise OSError if the disk has not enough space, ValueError
    if a tensor is not written whole.
    """
    from huggingface_hub import split_state_dict_into_shards_factory  # heavy, and seldom needed

    sizes = {key: torch.Size(shape).numel() * dtype.itemsize for key, shape in shapes.items()}
    if (free := shutil.disk_usage(folder).free) < sum(sizes.values()):
        raise OSError(f"{sum(sizes.values()) / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free")
    split = split_state_dict_into_shards_factory(
        sizes, get_storage_size=lambda size: size, filename_pattern="model{suffix}.safetensors", max_shard_size=SHARD
    )
    shards = split.filename_to_tensors
    with ExitStack() as files:
        position: dict[str, tuple[BinaryIO, int]] = {}
        end: dict[str, int] = {}
        heads = []
        for name, keys in shards.items():
            file, (head, starts) = files.enter_context(open(folder / name, "wb")), header(keys, shapes, sizes, dtype)
            heads.append((file, head))
            position |= {key: (file, start) for key, start in starts.items()}
            end |= {key: start + sizes[key] for key, start in starts.items()}

        def write(key: str, rows: torch.Tensor) -> None:
            file, start = position[key]
            data = rows.detach().to("cpu", dtype).contiguous().view(torch.uint8).numpy()
            file.seek(start)
            file.write(data.data)
            position[key] = file, start + data.nbytes

        yield write
        if unfinished := [key for key, (_, start) in position.items() if start != end[key]]:
            raise Refusal(f"{unfinished[0]}: not written whole")
        for file, head in heads:
            file.seek(0)
            file.write(head)
    if len(shards) > 1:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def header(keys: list[str], shapes: dict, sizes: dict[str, int], dtype: torch.dtype) -> tuple[bytes, dict[str, int]]:
    """Return (the bytes before the tensors, the position in the file of each tensor) of one file."""
    entries: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    starts, used = {}, 0
    for key in sorted(keys):
        offsets = [used, used + sizes[key]]
        entries[key] = {"dtype": NAMES[dtype], "shape": list(shapes[key]), "data_offsets": offsets}
        starts[key], used = used, used + sizes[key]
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, {key: 8 + len(text) + start for key, start in starts.items()}


def save_model(
    model: CausalLM, folder: Path, raw_config: dict, dtype: torch.dtype, whole: Callable = lambda p: p
) -> None:
    """Write config.json and the weights into `folder` in Hugging Face layout, cast to dtype one tensor at a time.

    A tied head is left out, as in transformers. whole: returns the tensor to write for a parameter.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parameters = dict(model.named_parameters())  # a tied head is the embedding
    with writer(folder, {key: tuple(p.shape) for key, p in parameters.items()}, dtype) as write:
        for key, p in parameters.items():
            write(key, whole(p))
    save_config(folder, raw_config, dtype)


def save_config(folder: Path, raw_config: dict, dtype: torch.dtype) -> None:
    """Write the config.json of dense weights in dtype, with the rotary settings for old and new readers."""
    name = str(dtype).removeprefix("torch.")
    dense = {key: value for key, value in raw_config.items() if key != "quantization_config"}
    config = {**both_layouts(dense), "dtype": name, "torch_dtype": name}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def both_layouts(raw_config: dict) -> dict:
    """Return the config.json with its rotary settings in both layouts, so that old and new readers compute the same.

    Settings nested by layer type stay in rope_parameters alone, because the old layout cannot hold them. The families
    of OWN_LAYOUT keep what they have.
    """
    if raw_config.get("model_type") in OWN_LAYOUT:
        return raw_config
    rest = {k: v for k, v in raw_config.items() if k not in ("rope_theta", "rope_scaling", "rope_parameters")}
    settings = rope_settings(raw_config)
    if nested(settings):
        return {**rest, "rope_parameters": settings}
    old = {"rope_theta": settings["rope_theta"]}
    if settings["rope_type"] != "default":
        scaling = {key: value for key, value in settings.items() if key != "rope_theta"}
        old["rope_scaling"] = {**scaling, "type": settings["rope_type"]}
    return {**rest, **old, "rope_parameters": settings}
