"""Fold an adapter into its base: python merge.py adapter=runs/x/epoch_10 out=merged

Writes a Hugging Face checkpoint that transformers loads. W + scale * B A is summed in float32 and cast once. How much
of each layer's update the cast loses is measured before anything is written. The written checkpoint is read back, and
its weights and log-probabilities are compared, before it gets its name. Without an adapter the model is only cast.
A quantised base is dequantised first, so the checkpoint has the rounded weights that the adapter was trained over.

All of this goes block by block, so the model need not fit into memory: a block is read, computed, folded, written and
forgotten. The base is read twice and the written checkpoint once.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

import lora
from lora.folding import update
from models import load_tokenizer
from models.checkpoints.export import save_config
from models.checkpoints.streamed import StreamedModel
from models.checkpoints.writer import writer
from models.quant import dequantise_layers
from models.weights import resolve
from rl import program
from rl.checkpoint import copy_tokenizer
from rl.guard import ends, signals
from rl.guard.files import new_folder
from rl.quantised import trained_over

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_LOST = 0.5  # largest part of a layer's update, in Frobenius norm, that the cast may lose
MAX_GAP = 0.01  # nats between adapted and folded in float32, where rounding alone makes about 1e-5
PIECE = 2**22  # entries of a tensor that are cast at once
NEEDS = "one block of the model is held in float32; device=cpu takes the host's memory"  # said when memory runs out
TEXT = "Adapted, folded and written, the model says the same of this sentence: 2 oak logs make 8 planks."


@dataclass(frozen=True)
class Keys:
    out: str  # the folder for the merged checkpoint; must not exist
    adapter: str = ""  # the adapter's folder, e.g. runs/x/epoch_10; without it the model is only cast
    model: str = ""  # the base: tiny, a folder or a hub id; default: the base that the adapter names
    dtype: Literal["float32", "bfloat16", "float16"] | None = None  # float32 | bfloat16 | float16; default: the base's
    quant: Literal["run", "none", "nf4", "nf4-double", "int8"] = "run"  # of the base; run: as the adapter's run says
    device: Literal["cpu", "cuda"] = "cpu"  # where to compute: cpu | cuda
    force: bool = False  # write even if rounding loses most of a layer's update
    adapter_only: bool = False  # write the adapter and the tokenizer, to be loaded beside the base; merge nothing

    def __post_init__(self):
        for key in ("out", "adapter") if self.adapter_only or not self.model else ("out",):
            if not getattr(self, key):
                raise ValueError(f"{key}= is missing; --help lists the keys")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device=cuda: no CUDA device here, or torch was built without CUDA; use device=cpu")
        if not Path(self.out).name:
            raise ValueError(f"out={self.out} is not the name of a new folder")


@dataclass(frozen=True)
class Cast:
    """How casting the folded weight of one or several layers changes their update D = scale * B A."""

    moved: int  # entries of W that differ after cast(W + D)
    entries: int
    error: float  # ||(cast(W + D) - W) - D||^2
    size: float  # ||D||^2

    def shares(self) -> dict[str, float]:
        """Return the fraction of weights that moved, and the lost part of the update in Frobenius norm."""
        lost = math.sqrt(self.error / self.size) if self.size else 0.0
        return {"moved": self.moved / self.entries, "lost": lost}


def main(keys: Keys) -> None:
    # 1. open the base and the adapter
    base = keys.model or lora.read_adapter_config(Path(keys.adapter)).get("base_model_name_or_path")
    if not base:
        raise ValueError(f"{keys.adapter}: adapter_config.json names no base model; give model=")
    if Path(keys.out).exists():
        raise ValueError(f"out={keys.out} exists already")
    source = resolve(base)
    print(f"reading {base}", flush=True)
    quant = trained_over(keys.adapter) if keys.quant == "run" else keys.quant
    model, tokenizer = open_adapted(base, keys.adapter, keys.device, quant), load_tokenizer(base)
    quant, name = model.meta.config.quant, keys.dtype or model.meta.config.dtype
    if name not in DTYPES:
        raise ValueError(f"{source / 'config.json'}: dtype {name!r} is not one of {', '.join(DTYPES)}; give dtype=")
    ids_BT = torch.tensor([tokenizer.encode(TEXT)], device=keys.device)
    if keys.adapter_only:
        write_adapter(model, tokenizer, base, quant, keys, ids_BT)
        return
    if quant != "none":
        rounded = "the rounded weights that the adapter saw, not the base's originals"
        print(f"{quant} to {name}: the checkpoint gets {rounded}")

    # 2. compute the adapted model; measure how much of each layer's update the cast loses
    casts = {}
    adapted_TV = logprobs(model, ids_BT, "measuring", partial(measured, dtype=DTYPES[name], casts=casts))
    rows = sorted(({"layer": path, **cast.shares()} for path, cast in casts.items()), key=lambda row: -row["lost"])
    if rows and rows[0]["lost"] > MAX_LOST and not keys.force:
        ways = "" if name == "float32" else "dtype=float32 keeps it, "
        raise ValueError(
            f"{rows[0]['layer']}: as {name}, the update is off by {rows[0]['lost']:.0%} of its size; "
            f"{ways}adapter_only=true leaves the base alone, force=true merges all the same"
        )

    with new_folder(Path(keys.out)) as folder:
        # 3. fold in float32, cast once and write
        print(f"writing {keys.out}", flush=True)
        folded_TV, digests = write_folded(model, folder, DTYPES[name], ids_BT)
        gap = (folded_TV - adapted_TV).abs().max().item()
        if not gap <= MAX_GAP and not keys.force:
            raise ValueError(
                f"folded in float32, a log-probability is {gap:.2g} from the adapter's; force=true merges anyway"
            )
        save_config(folder, json.loads((source / "config.json").read_text()), DTYPES[name])
        copy_tokenizer(tokenizer, folder)

        # 4. read back and compare
        config = replace(model.meta.config, quant="none", dtype=name)
        written_TV = check_same(StreamedModel(folder, keys.device), config, digests, ids_BT)
        report = {"base": base, "quant": quant, "adapter": keys.adapter, "dtype": name, "forced": keys.force}
        report |= {"largest_difference": (written_TV - adapted_TV).abs().max().item(), "layers": rows}
        report |= {"all": total(casts.values()).shares() if rows else None, "tensors_compared": len(digests)}
        (folder / "merge_report.json").write_text(json.dumps(report, indent=2) + "\n")
    print_report(report, keys.out)


def open_adapted(base: str, adapter: str | Path, device: str, quant: str) -> StreamedModel:
    """Return the base with the adapter, if there is one, on `device`."""
    model = StreamedModel(base, device, quant)
    if adapter:
        lora.load_adapter(model.meta, Path(adapter))
    for _, layer in lora.lora_layers(model.meta):
        layer.adapters.to(device)
    return model


def logprobs(model: StreamedModel, ids_BT: torch.Tensor, title: str, step: Callable) -> torch.Tensor:
    """Return the log-probabilities [T, V] of every next token of one sentence. Show a bar of the blocks.

    step: as in StreamedModel.logprobs.
    """
    with tqdm(total=len(model.paths), desc=title, leave=False, disable=None) as bar:

        def counted(*inputs):
            x_ND = step(*inputs)
            bar.update()
            return x_ND

        return model.logprobs(ids_BT, counted)


def measured(path: str, block, *inputs, dtype: torch.dtype, casts: dict[str, Cast]) -> torch.Tensor:
    """Return the block's output; add to `casts` what a cast to dtype does to the update of each of its layers."""
    x_ND = block(*inputs)
    dequantise_layers(block, torch.float32)
    casts |= {f"{path}.{name}": measure(layer, dtype) for name, layer in lora.lora_layers(block)}
    return x_ND


def folded(path: str, block, *inputs, visit: Callable) -> torch.Tensor:
    """Return the output of the block with its adapters folded; call visit(name, weight) for each of its weights."""
    dequantise_layers(block, torch.float32)
    return visited(path, lora.fold(block, prefix=f"{path}."), *inputs, visit=visit)


def visited(path: str, block, *inputs, visit: Callable) -> torch.Tensor:
    """Return the block's output; call visit(name, weight) for each of its weights before."""
    for name, tensor in block.state_dict().items():
        visit(f"{path}.{name}", tensor)
    return block(*inputs)


def write_folded(model: StreamedModel, folder: Path, dtype: torch.dtype, ids_BT) -> tuple[torch.Tensor, dict[str, str]]:
    """Write the folded weights, cast once to dtype.

    Return (the log-probabilities of the folded model in float32, the digest of each tensor that was written). Raise
    ValueError if one is not finite in dtype.
    """
    digests = {}
    with writer(folder, model.shapes, dtype) as write:

        def write_cast(key: str, tensor: torch.Tensor) -> None:
            digests[key] = digest(key, tensor, dtype, write)

        for key in model.ends:
            write_cast(key, model.tensor(key))
        return logprobs(model, ids_BT, "writing", partial(folded, visit=write_cast)), digests


def write_adapter(model: StreamedModel, tokenizer, base: str, quant: str, keys: Keys, ids_BT: torch.Tensor) -> None:
    """Write the adapter and the tokenizer without the base, read the adapter back and compare."""
    local = base == "tiny" or Path(base).is_dir()
    with new_folder(Path(keys.out)) as folder:
        lora.save_adapter(model.meta, folder, str(resolve(base).resolve()) if local else base)
        copy_tokenizer(tokenizer, folder)
        again = open_adapted(base, folder, keys.device, quant)
        layers = zip(lora.lora_layers(model.meta), lora.lora_layers(again.meta), strict=True)
        for (path, layer), (_, other) in layers:
            if not all(map(torch.equal, layer.adapter.parameters(), other.adapter.parameters())):
                raise ValueError(f"the written adapter differs from the model in {path}")
        compute = lambda _path, block, *inputs: block(*inputs)  # noqa: E731
        expected_TV, found_TV = (logprobs(one, ids_BT, "comparing", compute) for one in (model, again))
        if not torch.equal(found_TV, expected_TV):
            raise ValueError("the written adapter differs from the model in log-probabilities")
    print(f"{keys.out}: the adapter, to be loaded beside {base}; no weights are merged")


@torch.no_grad()
def measure(layer: lora.LoRALinear, dtype: torch.dtype) -> Cast:
    """Return what a cast to `dtype` does to a layer's update."""
    casts = []
    for W, D in zip(pieces(layer.base_layer.weight), pieces(update(layer.adapter)), strict=True):
        cast = (W + D).to(dtype)
        error, size = ((x.double() ** 2).sum().item() for x in (cast.float() - W - D, D))
        casts.append(Cast((cast != W.to(dtype)).sum().item(), W.numel(), error, size))
    return total(casts)


def total(casts: Iterable[Cast]) -> Cast:
    """Return the sum over layers, or over pieces of one."""
    return Cast(*(sum(values) for values in zip(*(astuple(cast) for cast in casts), strict=True)))


def pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a matrix or vector in pieces of rows with about PIECE entries."""
    return tensor.split(max(1, PIECE * len(tensor) // tensor.numel()))


def digest(key: str, tensor: torch.Tensor, dtype: torch.dtype, write: Callable | None = None) -> str:
    """Cast a tensor from float32 to dtype, piece by piece, and return the SHA-256 of its bytes.

    write: called with (key, the rows of a piece). Raise ValueError if an entry is not finite in dtype.
    """
    found = hashlib.sha256()
    for rows in pieces(tensor):
        rows = rows.float().to("cpu", dtype).contiguous()
        if not rows.isfinite().all():
            raise ValueError(f"{key}: not finite as {str(dtype).removeprefix('torch.')}")
        found.update(rows.view(torch.uint8).numpy().data)
        if write:
            write(key, rows)
    return found.hexdigest()


def check_same(again: StreamedModel, config, digests: dict[str, str], ids_BT: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities of the checkpoint that was read back.

    Raise ValueError if its configuration or any bit of its weights differs from what was written: digests, by name.
    """
    if again.meta.config != config:
        raise ValueError("the written checkpoint differs from the model in config.json")

    def check(key: str, tensor: torch.Tensor) -> None:
        if digest(key, tensor, DTYPES[config.dtype]) != digests[key]:
            raise ValueError(f"the written checkpoint differs from the model in {key}")

    for key in again.ends:
        check(key, again.tensor(key))
    return logprobs(again, ids_BT, "comparing", partial(visited, visit=check))


def print_report(report: dict, out: str) -> None:
    print(f"{out}: {len(report['layers'])} layers folded into {report['base']}, {report['dtype']}")
    print(f"read back block by block: all {report['tensors_compared']} tensors have the bytes that were computed")
    if report["layers"]:
        print(f"weights that the update moved after rounding: {report['all']['moved']:.1%}; worst layers:")
        for row in [*report["layers"][:5], {"layer": "all layers", **report["all"]}]:
            print(f"  {row['layer']:40} moved {row['moved']:6.1%}  lost {row['lost']:8.3%} of the update's size")
    largest = report["largest_difference"]
    print(f"largest difference of a log-probability from the adapter's before rounding: {largest:.2g}")


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "merge.py", Keys, about=__doc__)
    with signals.handled(), ends.exits_cleanly("merge.py", needs=NEEDS):
        main(keys)
