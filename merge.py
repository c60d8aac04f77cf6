"""Fold an adapter into its base: python merge.py adapter=runs/x/epoch_10 out=merged

Writes a Hugging Face checkpoint that transformers loads. W + scale * B A is summed in float32 and cast once. How much
of each layer's update the cast loses is measured before anything is written. The written checkpoint is read back, and
its weights and log-probabilities are compared, before it gets its name: on one sentence and, where the settings of the
adapter's run are beside it, on held-out tasks (rl/merging/certificate.py). Without an adapter the model is only cast. A
quantised base is dequantised first, so the checkpoint has the rounded weights that the adapter was trained over.

    python merge.py adapter=runs/x/epoch_10 out=mine export=vllm       # the adapter alone, as vLLM takes it
    python merge.py adapter=runs/x/epoch_10 out=merged push=me/mine private=true    # to the Hugging Face hub as well
    python merge.py out=merged push=me/mine                            # what an earlier command wrote, or an epoch

All of this goes block by block, so the model need not fit into memory: a block is read, computed, folded, written and
forgotten. The base is read twice and the written checkpoint once.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import hashlib
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

import lora
from lora.export import Cast, measure, pieces, total
from models import load_tokenizer
from models.checkpoints.streamed import StreamedModel
from models.export import save_config, writer
from models.quant import dequantise_layers
from models.weights import resolve
from rl.config import program
from rl.config.arguments import NotNegative, Positive
from rl.config.refusals import Refusal
from rl.judge.adapter_settings import SAVED, named_base, settings_file, trained_over
from rl.merging import push
from rl.merging.certificate import Probes, certificate, make_probes, shortfall
from rl.merging.certificate import describe as describe_certificate
from rl.merging.model_card import CARD, merge_section, model_card, vllm_section
from rl.merging.write_adapter import logprobs, open_adapted
from rl.merging.write_adapter import write as write_adapter
from rl.peaks import PROMPTS
from rl.run import bases, exits, history, signals
from rl.run.checkpoint import copy_tokenizer
from rl.run.files import new_folder

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MAX_LOST = 0.5  # largest part of a layer's update, in Frobenius norm, that the cast may lose
MAX_GAP = 0.01  # nats between adapted and folded in float32, where rounding alone makes about 1e-5
NEEDS = "one block of the model is held in float32, and its outputs for prompts=; device=cpu takes the host's memory"
TEXT = "Adapted, folded and written, the model says the same of this sentence: 2 oak logs make 8 planks."


class Inaccurate(Refusal):
    """The merged model is not near enough to the adapted one; force=true merges it all the same."""


@dataclass(frozen=True)
class Keys:
    out: str  # the folder for the merged checkpoint; must not exist
    adapter: str = ""  # the adapter's folder, or a run's for its best epoch; without it the model is only cast
    model: str = ""  # the base: tiny, smol, a folder, a .gguf file, a hub id; default: the base that the adapter names
    dtype: Literal["float32", "bfloat16", "float16"] | None = None  # float32 | bfloat16 | float16; default: the base's
    quant: Literal["run", "none", "nf4", "nf4-double", "int8"] = "run"  # of the base; run: as the adapter's run says
    device: Literal["cpu", "cuda"] = "cpu"  # where to compute: cpu | cuda
    force: bool = False  # write even if rounding loses most of a layer's update
    adapter_only: bool = False  # write the adapter and the tokenizer, to be loaded beside the base; merge nothing
    export: Literal["none", "vllm"] = "none"  # vllm: adapter_only, with one rank and one scale as vLLM takes them
    prompts: NotNegative[int] = PROMPTS  # held-out tasks of the run on which the merged model is certified; 0: none
    max_kl: Positive[float] = 0.01  # nats per token between adapter and merged model there; above, nothing is written
    min_agreement: NotNegative[float] = 0.95  # share of tokens there with the same most likely one; as above
    push: str = ""  # user/name: push out= to the Hugging Face hub, with its model card
    private: bool = False  # push=: make a private repository
    card: str = ""  # the model card, a Markdown file; default: made from the run (rl/merging/model_card.py)

    def __post_init__(self):
        only_push = self.push and self.out and Path(self.out).is_dir()
        for key in ("out", "adapter") if self.merges_nothing or not (self.model or only_push) else ("out",):
            if not getattr(self, key):
                nothing = f", and out={self.out} is no folder to push" if self.push and self.out else ""
                raise Refusal(f"{key}= is missing{nothing}; --help lists the keys")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Refusal("device=cuda: no CUDA device here, or torch was built without CUDA; use device=cpu")
        if not Path(self.out).name:
            raise Refusal(f"out={self.out} is not the name of a new folder")
        if self.card and not Path(self.card).is_file():
            raise Refusal(f"card={self.card} is not a file")
        if self.card and "\N{REPLACEMENT CHARACTER}" in Path(self.card).read_text(encoding="utf-8", errors="replace"):
            raise Refusal(f"card={self.card} is not text in UTF-8")
        if self.min_agreement > 1:
            raise Refusal(f"min_agreement={self.min_agreement:g}: a share, at most 1")
        if self.private and not self.push:
            raise Refusal("private=true goes with push=user/name")
        of_merging = ("dtype", "force", "prompts", "max_kl", "min_agreement")
        given = [key for key in of_merging if getattr(self, key) != getattr(Keys, key)]
        given = given if self.prompts else [key for key in given if key != "prompts"]  # 0 asks for nothing
        if self.merges_nothing and given:
            alone = "adapter_only=true" if self.adapter_only else "export=vllm"
            raise Refusal(f"{given[0]}= has no effect beside {alone}, which merges nothing")

    @property
    def merges_nothing(self) -> bool:
        return self.adapter_only or self.export == "vllm"


def main(keys: Keys) -> None:
    if keys.push:
        push.check(keys.push, keys.private)
    if keys.adapter or keys.model:
        adapter, line = history.best_of_run(keys.adapter)
        print(line, end="\n" * bool(line))
        write(replace(keys, adapter=adapter))
    if keys.push:
        push.push_written(Path(keys.out), keys.push, keys.private, keys.card)


def write(keys: Keys) -> None:
    """Write the merged checkpoint, or the adapter alone, into out=."""
    # 1. open the base and the adapter
    base = keys.model or named_base(Path(keys.adapter))
    if not base:
        raise Refusal(f"{keys.adapter}: adapter_config.json names no base model; give model=")
    if Path(keys.out).exists():
        raise Refusal(f"out={keys.out} exists already")
    source = resolve(base)
    print(f"reading {base}", flush=True)
    quant = trained_over(keys.adapter) if keys.quant == "run" else keys.quant
    model, tokenizer = open_adapted(base, keys.adapter, keys.device, quant), load_tokenizer(base)
    if keys.adapter:
        bases.check(Path(keys.adapter), source, model.meta.config.quant)
    quant, name = model.meta.config.quant, keys.dtype or model.meta.config.dtype
    if keys.adapter and not any(layer.adapter.B.any() for _, layer in lora.lora_layers(model.meta)):
        print("every B is 0: the adapter changes nothing")
    if name not in DTYPES and not keys.merges_nothing:
        raise Refusal(f"{source / 'config.json'}: dtype {name!r} is not one of {', '.join(DTYPES)}; give dtype=")
    run = Path(keys.adapter or base)
    prompts = 0 if keys.merges_nothing else keys.prompts
    probes = make_probes(tokenizer, TEXT, run, base, prompts, keys.device)
    card = described(keys, run, base)
    if keys.merges_nothing:
        with new_folder(Path(keys.out)) as folder:
            rank = write_adapter(model, tokenizer, base, quant, probes, folder, keys.export == "vllm")
            card += "" if keys.card or not rank else vllm_section(keys.push or Path(keys.out).name, base, rank)
            finish(folder, keys, run, card)
        print(f"{keys.out}: the adapter, to be loaded beside {base}; no weights are merged")
        return
    if quant != "none":
        rounded = "the rounded weights that the adapter saw, not the base's originals"
        print(f"{quant} to {name}: the checkpoint gets {rounded}")

    # 2. compute the adapted model; measure how much of each layer's update the cast loses
    casts = {}
    adapted_NV = logprobs(model, probes, "measuring", partial(measured, dtype=DTYPES[name], casts=casts))
    rows = sorted(({"layer": path, **cast.shares()} for path, cast in casts.items()), key=lambda row: -row["lost"])
    if rows and rows[0]["lost"] > MAX_LOST and not keys.force:
        raise Inaccurate(
            f"{rows[0]['layer']}: as {name}, the update is off by {rows[0]['lost']:.0%} of its size; {ways(name)}"
        )

    with new_folder(Path(keys.out)) as folder:
        # 3. fold in float32, cast once and write
        print(f"writing {keys.out}", flush=True)
        folded_NV, digests = write_folded(model, folder, DTYPES[name], probes)
        gap = (folded_NV - adapted_NV).abs().max().item()
        if not gap <= MAX_GAP and not keys.force:
            gap_text = f"folded in float32, a log-probability is {gap:.2g} from the adapter's"
            raise Inaccurate(f"{gap_text}; force=true merges all the same")
        save_config(folder, json.loads((source / "config.json").read_text()), DTYPES[name])
        copy_tokenizer(tokenizer, folder)

        # 4. read back and compare
        config = replace(model.meta.config, quant="none", dtype=name)
        written_NV = check_same(StreamedModel(folder, keys.device), config, digests, probes)
        certified = certificate(probes, adapted_NV, written_NV)
        if (short := shortfall(certified, keys.max_kl, keys.min_agreement)) and not keys.force:
            raise Inaccurate(f"as {name}, {short}; {ways(name)}")
        report = {
            "base": base,
            "base_weights": bases.weights_digest(source),
            "quant": quant,
            "adapter": keys.adapter,
            "dtype": name,
            "forced": keys.force,
        }
        report |= {"largest_difference": (written_NV - adapted_NV).abs().max().item(), "layers": rows}
        report |= {"all": total(casts.values()).shares() if rows else None, "tensors_compared": len(digests)}
        report["certificate"] = certified
        (folder / "merge_report.json").write_text(json.dumps(report, indent=2) + "\n")
        finish(folder, keys, run, card + ("" if keys.card else merge_section(certified)))
    print_report(report, keys.out, probes.reason)


def ways(name: str) -> str:
    """Return what to do when a cast to the dtype of that name loses too much."""
    keeps = "" if name == "float32" else "dtype=float32 keeps it, "
    return f"{keeps}adapter_only=true leaves the base alone, force=true merges all the same"


def described(keys: Keys, run: Path, base: str) -> str:
    """Return the model card: that of card=, or one made from the run's epoch."""
    if keys.card:
        return Path(keys.card).read_text(encoding="utf-8")
    return model_card(keys.push or Path(keys.out).name, run, base, keys.merges_nothing)


def finish(folder: Path, keys: Keys, run: Path, card: str) -> None:
    """Write the card and the run's settings for eval.py."""
    (folder / CARD).write_text(card, encoding="utf-8")
    if found := settings_file(run):
        shutil.copy(found[0], folder / SAVED)


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


def write_folded(
    model: StreamedModel, folder: Path, dtype: torch.dtype, probes: Probes
) -> tuple[torch.Tensor, dict[str, str]]:
    """Write the folded weights, cast once to dtype.

    Return (the log-probabilities of the folded model in float32, the digest of each tensor that was written). Raise
    ValueError if one is not finite in dtype.
    """
    digests = {}
    with writer(folder, model.shapes, dtype) as write:

        def write_cast(key: str, tensor: torch.Tensor) -> None:
            digests[key] = cast_and_hash(key, tensor, dtype, write)

        for key in model.ends:
            write_cast(key, model.tensor(key))
        return logprobs(model, probes, "writing", partial(folded, visit=write_cast)), digests


def cast_and_hash(key: str, tensor: torch.Tensor, dtype: torch.dtype, write: Callable | None = None) -> str:
    """Cast a tensor from float32 to dtype, piece by piece, and return the SHA-256 of its bytes.

    write: called with (key, the rows of a piece). Raise ValueError if an entry is not finite in dtype.
    """
    found = hashlib.sha256()
    for rows in pieces(tensor):
        rows = rows.float().to("cpu", dtype).contiguous()
        if not rows.isfinite().all():
            raise Refusal(f"{key}: not finite as {str(dtype).removeprefix('torch.')}")
        found.update(rows.view(torch.uint8).numpy().data)
        if write:
            write(key, rows)
    return found.hexdigest()


def check_same(again: StreamedModel, config, digests: dict[str, str], probes: Probes) -> torch.Tensor:
    """Return the log-probabilities of the checkpoint that was read back.

    Raise ValueError if its configuration or any bit of its weights differs from what was written: digests, by name.
    """
    if again.meta.config != config:
        raise Refusal("the written checkpoint differs from the model in config.json")

    def check(key: str, tensor: torch.Tensor) -> None:
        if cast_and_hash(key, tensor, DTYPES[config.dtype]) != digests[key]:
            raise Refusal(f"the written checkpoint differs from the model in {key}")

    for key in again.ends:
        check(key, again.tensor(key))
    return logprobs(again, probes, "comparing", partial(visited, visit=check))


def print_report(report: dict, out: str, reason: str) -> None:
    """Print what was written and compared. reason: why no held-out task was, or ""."""
    print(f"{out}: {len(report['layers'])} layers folded into {report['base']}, {report['dtype']}")
    print(f"read back block by block: all {report['tensors_compared']} tensors have the bytes that were computed")
    if report["layers"]:
        print(f"weights that the update moved after rounding: {report['all']['moved']:.1%}; worst layers:")
        for row in [*report["layers"][:5], {"layer": "all layers", **report["all"]}]:
            print(f"  {row['layer']:40} moved {row['moved']:6.1%}  lost {row['lost']:8.3%} of the update's size")
    largest = report["largest_difference"]
    print(f"largest difference of a log-probability from the adapter's before rounding: {largest:.2g}")
    if report["certificate"]:
        print(describe_certificate(report["certificate"]))
    else:
        print(f"compared on one sentence alone: {reason}")


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "merge.py", Keys, about=__doc__)
    with signals.handled(), exits.exits_cleanly("merge.py", needs=NEEDS):
        main(keys)
