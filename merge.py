"""Fold an adapter into its base: python merge.py adapter=runs/x/epoch_10 out=merged

Writes a Hugging Face checkpoint that transformers loads. W + scale * B A is summed in float32 and cast once. How much
of each layer's update the cast loses is measured before anything is written. The written checkpoint is read back, and
its weights and log-probabilities are compared, before it gets its name. Without an adapter the model is only cast.
A quantised base is dequantised first, so the checkpoint has the rounded weights that the adapter was trained over.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm

import lora
from models import load_model, load_tokenizer
from models.checkpoints.export import save_model
from models.logprob import head_logits
from models.weights import resolve
from rl import program
from rl.checkpoint import copy_tokenizer
from rl.guard import ends, signals
from rl.guard.files import new_folder
from rl.quantised import trained_over

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_LOST = 0.5  # largest part of a layer's update, in Frobenius norm, that the cast may lose
MAX_GAP = 0.01  # nats between adapted and folded in float32, where rounding alone makes about 1e-5
NEEDS = "two models are held in float32; device=cpu takes the host's memory"  # said when memory runs out
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
    # 1. load the base and the adapter
    base = keys.model or lora.read_adapter_config(Path(keys.adapter)).get("base_model_name_or_path")
    if not base:
        raise ValueError(f"{keys.adapter}: adapter_config.json names no base model; give model=")
    if Path(keys.out).exists():
        raise ValueError(f"out={keys.out} exists already")
    source = resolve(base)
    print(f"reading {base}", flush=True)
    quant = trained_over(keys.adapter) if keys.quant == "run" else keys.quant
    model, tokenizer = load_model(base, device=keys.device, quant=quant), load_tokenizer(base)
    name = keys.dtype or model.config.dtype
    if name not in DTYPES:
        raise ValueError(f"{source / 'config.json'}: dtype {name!r} is not one of {', '.join(DTYPES)}; give dtype=")
    if keys.adapter:
        lora.load_adapter(model, Path(keys.adapter))
    ids_BT = torch.tensor([tokenizer.encode(TEXT)], device=keys.device)
    if keys.adapter_only:
        write_adapter(model, tokenizer, base, quant, keys, ids_BT)
        return
    adapted_NV = logprobs(model, ids_BT)
    quant = dequantise(model, name)

    # 2. measure how much of each layer's update the cast loses
    layers = tqdm(lora.lora_layers(model), "measuring", leave=False, disable=None)
    casts = {path: measure(layer, DTYPES[name]) for path, layer in layers}
    rows = sorted(({"layer": path, **cast.shares()} for path, cast in casts.items()), key=lambda row: -row["lost"])
    if rows and rows[0]["lost"] > MAX_LOST and not keys.force:
        ways = "" if name == "float32" else "dtype=float32 keeps it, "
        raise ValueError(
            f"{rows[0]['layer']}: as {name}, the update is off by {rows[0]['lost']:.0%} of its size; "
            f"{ways}adapter_only=true leaves the base alone, force=true merges all the same"
        )

    # 3. fold in float32 and cast once
    gap = (logprobs(lora.fold(model), ids_BT) - adapted_NV).abs().max().item()
    if not gap <= MAX_GAP and not keys.force:
        raise ValueError(
            f"folded in float32, a log-probability is {gap:.2g} from the adapter's; force=true merges anyway"
        )
    for path, p in model.named_parameters():
        p.data = p.data.to(DTYPES[name]).float()
        if not torch.isfinite(p).all():
            raise ValueError(f"{path}: not finite as {name}")

    # 4. write, read back and compare
    with new_folder(Path(keys.out)) as folder:
        print(f"writing {keys.out}", flush=True)
        save_model(model, folder, json.loads((source / "config.json").read_text()), DTYPES[name])
        copy_tokenizer(tokenizer, folder)
        written_NV = check_same(load_model(str(folder), device=keys.device), model, ids_BT)
        report = {"base": base, "quant": quant, "adapter": keys.adapter, "dtype": name, "forced": keys.force}
        report |= {"largest_difference": (written_NV - adapted_NV).abs().max().item(), "layers": rows}
        report["all"] = total(casts.values()).shares() if rows else None
        (folder / "merge_report.json").write_text(json.dumps(report, indent=2) + "\n")
    print_report(report, keys.out)


def dequantise(model, name: str) -> str:
    """Make quantised layers dense, and print what that means. Return how they were quantised, or "none"."""
    if model.config.quant == "none":
        return "none"
    from models.quant import dequantise_layers

    kind = dequantise_layers(model, torch.float32)
    print(f"{kind} to {name}: the checkpoint gets the rounded weights that the adapter saw, not the base's originals")
    return kind


def write_adapter(model, tokenizer, base: str, quant: str, keys: Keys, ids_BT: torch.Tensor) -> None:
    """Write the adapter and the tokenizer without the base, read the adapter back and compare."""
    local = base == "tiny" or Path(base).is_dir()
    with new_folder(Path(keys.out)) as folder:
        lora.save_adapter(model, folder, str(resolve(base).resolve()) if local else base)
        copy_tokenizer(tokenizer, folder)
        written = load_model(base, device=keys.device, quant=quant)
        lora.load_adapter(written, folder)
        check_same(written, model, ids_BT)
    print(f"{keys.out}: the adapter, to be loaded beside {base}; no weights are merged")


def logprobs(model, ids_BT: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities [N, V] of every next token of one sentence."""
    with torch.no_grad():
        return head_logits(model(ids_BT)[0], model.lm_head.weight, 1.0)[: ids_BT.shape[1]].log_softmax(-1)


@torch.no_grad()
def measure(layer: lora.LoRALinear, dtype: torch.dtype) -> Cast:
    """Return what a cast to `dtype` does to a layer's update."""
    W, adapter = layer.base_layer.weight, layer.adapter
    D = adapter.scale * (adapter.B @ adapter.A)
    cast = (W + D).to(dtype)
    error, size = ((x.double() ** 2).sum().item() for x in (cast.float() - W - D, D))
    return Cast((cast != W.to(dtype)).sum().item(), W.numel(), error, size)


def total(casts) -> Cast:
    """Return the sum over layers."""
    return Cast(*(sum(getattr(cast, name) for cast in casts) for name in ("moved", "entries", "error", "size")))


def check_same(written, model, ids_BT: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities of the model that was read back.

    Raise ValueError if it differs in any bit, weights or log-probabilities, from the model that was written.
    """
    weights, expected_NV, found_NV = written.state_dict(), logprobs(model, ids_BT), logprobs(written, ids_BT)
    wrong = [key for key, value in model.state_dict().items() if not torch.equal(weights[key], value)]
    if wrong or not torch.equal(found_NV, expected_NV):
        raise ValueError(f"the written checkpoint differs from the model in {(wrong or ['log-probabilities'])[0]}")
    return found_NV


def print_report(report: dict, out: str) -> None:
    print(f"{out}: {len(report['layers'])} layers folded into {report['base']}, {report['dtype']}")
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
