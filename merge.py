"""An adapter folded into its base: python merge.py adapter=runs/x/epoch_10 out=merged

Writes a Hugging Face checkpoint that transformers loads. W + scale * B A is summed in float32 and cast once. What the
cast leaves of each layer's update is measured before anything is written, and what is written is read back and compared
before anything is called done.
"""

import difflib
import json
import math
import sys
from pathlib import Path

import torch
from tqdm import tqdm

import lora
from envs.terminal import reader_may_leave
from models import load_model, load_tokenizer, save_model
from models.logprob import head_logits
from models.weights import resolve
from rl.checkpoint import copy_tokenizer
from rl.folders import new_folder

USAGE = """usage: python merge.py adapter=FOLDER out=FOLDER [key=value ...]

  adapter=             the adapter's folder, e.g. runs/x/epoch_10; without it the model is only cast
  out=                 where the merged checkpoint goes; must not exist
  model=               the base: tiny, a folder or a hub id; default: the one that the adapter names
  dtype=               of the written weights: float32 | bfloat16 | float16; default: the base's own
  device=cpu           where to compute: cpu | cuda
  force=false          true: write even if rounding loses most of a layer's update
  adapter_only=false   true: write the adapter and the tokenizer, to be loaded beside the base; nothing is merged"""
KEYS = ("adapter", "out", "model", "dtype", "device", "force", "adapter_only")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
CHOICES = {"dtype": [*DTYPES], "device": ["cpu", "cuda"], "force": ["true", "false"], "adapter_only": ["true", "false"]}
MAX_LOST = 0.5  # of a layer's update, in Frobenius norm; half an update is another model
MAX_GAP = 0.01  # nats between adapted and folded in float32, where rounding comes to some 1e-5
TEXT = "Adapted, folded and written, the model says the same of this sentence: 2 oak logs make 8 planks."


def main(out, adapter="", model="", dtype="", device="cpu", force="false", adapter_only="false") -> None:
    # 1. the base with the adapter in place
    base = model or lora.read_adapter_config(Path(adapter)).get("base_model_name_or_path")
    if not base:
        raise ValueError(f"{adapter}: adapter_config.json names no base model; give model=")
    if Path(out).exists():
        raise ValueError(f"out={out} exists already")
    source = resolve(base)
    print(f"reading {base}", flush=True)
    net, tokenizer = load_model(base, device=device), load_tokenizer(base)
    name = dtype or net.config.dtype
    if name not in DTYPES:
        raise ValueError(f"{source / 'config.json'}: dtype {name!r} is not one of {', '.join(DTYPES)}; give dtype=")
    if adapter:
        lora.load_adapter(net, Path(adapter))
    ids_BT = torch.tensor([tokenizer.encode(TEXT)], device=device)
    adapted = _logprobs(net, ids_BT)
    if adapter_only == "true":
        here = base == "tiny" or Path(base).is_dir()
        with new_folder(Path(out)) as folder:
            lora.save_adapter(net, folder, str(source.resolve()) if here else base)
            copy_tokenizer(tokenizer, folder)
            lora.load_adapter(written := load_model(base, device=device), folder)
            _check_same(written, net, ids_BT)
        print(f"{out}: the adapter, to be loaded beside {base}; no weights are merged")
        return

    # 2. what is left of each layer's update when the sum is cast
    measuring = tqdm(lora.lora_layers(net), "measuring", leave=False, disable=None)
    rows = {path: _measure(layer, DTYPES[name]) for path, layer in measuring}
    layers = sorted(({"layer": path, **_shares(*row)} for path, row in rows.items()), key=lambda one: -one["lost"])
    if layers and layers[0]["lost"] > MAX_LOST and force != "true":
        ways = "" if name == "float32" else "dtype=float32 keeps it, "
        raise ValueError(
            f"{layers[0]['layer']}: as {name}, the update is off by {layers[0]['lost']:.0%} of its size; "
            f"{ways}adapter_only=true leaves the base alone, force=true merges all the same"
        )

    # 3. fold and cast
    gap = (_logprobs(lora.fold(net), ids_BT) - adapted).abs().max().item()
    if not gap <= MAX_GAP and force != "true":
        raise ValueError(
            f"folded in float32, a log-probability is {gap:.2g} from the adapter's; force=true merges anyway"
        )
    for path, p in net.named_parameters():
        p.data = p.data.to(DTYPES[name]).float()
        if not torch.isfinite(p).all():
            raise ValueError(f"{path}: not finite as {name}")

    # 4. write, read back, compare
    with new_folder(Path(out)) as folder:
        print(f"writing {out}", flush=True)
        save_model(net, folder, json.loads((source / "config.json").read_text()), DTYPES[name])
        copy_tokenizer(tokenizer, folder)
        written = _check_same(load_model(str(folder), device=device), net, ids_BT)
        report = {"base": base, "adapter": adapter, "dtype": name, "forced": force == "true"}
        report |= {"largest_difference": (written - adapted).abs().max().item(), "layers": layers}
        report["all"] = _shares(*map(sum, zip(*rows.values(), strict=True))) if rows else None
        (folder / "merge_report.json").write_text(json.dumps(report, indent=2) + "\n")
    _show(report, out)


def _logprobs(net, ids_BT: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary after each token of a sentence."""
    with torch.no_grad():
        return head_logits(net(ids_BT)[0], net.lm_head.weight, 1.0)[: ids_BT.shape[1]].log_softmax(-1)


@torch.no_grad()
def _measure(layer: lora.LoRALinear, dtype: torch.dtype) -> list[float]:
    """[entries that move, entries, ||(cast(W + D) - W) - D||^2, ||D||^2] of a layer whose update is D = scale * B A."""
    W, _, A, B, scale = layer.parts()
    D = scale * (B @ A)
    cast = (W + D).to(dtype)
    error, size = ((x.double() ** 2).sum().item() for x in (cast.float() - W - D, D))
    return [(cast != W.to(dtype)).sum().item(), W.numel(), error, size]


def _shares(moved: float, entries: float, error: float, size: float) -> dict[str, float]:
    return {"moved": moved / entries, "lost": math.sqrt(error / size) if size else 0.0}


def _check_same(written, net, ids_BT: torch.Tensor) -> torch.Tensor:
    """The log-probabilities of what was read back. Raises ValueError if it is not in every bit what was written."""
    logprobs, weights = _logprobs(written, ids_BT), written.state_dict()
    wrong = [key for key, value in net.state_dict().items() if not torch.equal(weights[key], value)]
    if wrong or not torch.equal(logprobs, _logprobs(net, ids_BT)):
        raise ValueError(f"what was written does not compute what was merged ({(wrong or ['log-probabilities'])[0]})")
    return logprobs


def _show(report: dict, out: str) -> None:
    print(f"{out}: {len(report['layers'])} layers folded into {report['base']}, {report['dtype']}")
    if report["layers"]:
        print(f"weights that the update moved after rounding: {report['all']['moved']:.1%}; worst layers:")
        for one in [*report["layers"][:5], {"layer": "all layers", **report["all"]}]:
            print(f"  {one['layer']:40} moved {one['moved']:6.1%}  lost {one['lost']:8.3%} of the update's size")
    largest = report["largest_difference"]
    print(f"largest difference of a log-probability from the adapter's before rounding: {largest:.2g}")


def _wrong(words: dict[str, str]) -> str:
    """What is wrong with the words, in one line; nothing, if they can be."""
    for key, value in words.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1, 0.5)
            return f"unknown key {key!r}; " + (f"did you mean {near[0]}?" if near else "--help lists the keys")
        if value not in CHOICES.get(key, [value]):
            return f"{key}={value} is not one of {', '.join(CHOICES[key])}"
    adapter_needed = "model" not in words or words.get("adapter_only") == "true"
    for key in ("out", "adapter") if adapter_needed else ("out",):
        if not words.get(key):
            return f"{key}= is missing; --help lists the keys"
    if words.get("device") == "cuda" and not torch.cuda.is_available():
        return "device=cuda: this machine, or this torch, has no CUDA device; device=cpu works everywhere"
    return "" if Path(words["out"]).name else f"out={words['out']} is not the name of a new folder"


if __name__ == "__main__":
    words = dict(word.split("=", 1) if "=" in word else (word, "") for word in sys.argv[1:])
    if {"-h", "--help", "help"} & set(words):
        with reader_may_leave():
            print(USAGE)
        sys.exit()
    if wrong := _wrong(words):
        print(f"merge.py: {wrong}", file=sys.stderr)
        sys.exit(2)
    try:
        main(**words)
    except (OSError, ValueError) as error:
        sys.exit(f"merge.py: {error}")
    except KeyboardInterrupt:
        sys.exit("merge.py: interrupted")
