"""An adapter folded into its base: python merge.py adapter=runs/x/epoch_10 out=merged

Writes a Hugging Face checkpoint that transformers loads. W + scale * B A is summed in float32 and cast once, and
what is written is read back and compared with the adapter in place before anything is called done.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch

import lora
from models import load_model, load_tokenizer, save_model
from models.logprob import head_logits
from models.weights import resolve
from rl.checkpoint import copy_tokenizer

USAGE = """usage: python merge.py adapter=FOLDER out=FOLDER [key=value ...]

  adapter=             the adapter's folder, e.g. runs/x/epoch_10; without it the model is only cast
  out=                 where the merged checkpoint goes; must not exist
  model=               the base: tiny, a folder or a hub id; default: the one that the adapter names
  dtype=               of the written weights: float32 | bfloat16 | float16; default: the base's own"""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main(out: str, adapter: str = "", model: str = "", dtype: str = "") -> None:
    base = model or (lora.read_adapter_config(Path(adapter)).get("base_model_name_or_path") if adapter else "")
    if not base:
        raise ValueError(
            f"{adapter}: adapter_config.json names no base model; give model=" if adapter else "no adapter="
        )
    if not Path(out).name:
        raise ValueError(f"out={out} is not the name of a new folder")
    target, temporary = Path(out), Path(out).with_name(f".{Path(out).name}.partial")
    if target.exists():
        raise ValueError(f"out={out} exists already")
    folder = resolve(base)
    merged, tokenizer = load_model(base), load_tokenizer(base)
    raw = json.loads((folder / "config.json").read_text())
    stored = DTYPES.get(dtype or merged.config.dtype)
    if stored is None:
        raise ValueError(f"{folder / 'config.json'}: dtype {merged.config.dtype!r} is not one of {', '.join(DTYPES)}")

    names = lora.load_adapter(merged, Path(adapter)) if adapter else []
    ids_BT = torch.tensor([tokenizer.prompt([{"role": "user", "content": "Check that merged and adapted agree."}])])
    adapted = _logprobs(merged, ids_BT)
    before = {name: merged.get_submodule(name).base_layer.weight.detach().to(stored) for name in names}
    lora.fold(merged).to(stored)
    moved = [(merged.get_submodule(name).weight != weight).float().mean().item() for name, weight in before.items()]
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        save_model(merged, temporary, raw, stored)
        copy_tokenizer(tokenizer, temporary)
        written = _logprobs(load_model(str(temporary)), ids_BT)
        if not torch.equal(written, _logprobs(merged.float(), ids_BT)):
            raise ValueError(f"{temporary}: what was written does not compute what was merged")
        os.rename(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    print(f"{target}: {len(names)} layers folded into {base}, {str(stored).removeprefix('torch.')}")
    if names:
        print(f"weights that the update moved after rounding: {sum(moved) / len(moved):.1%}")
    difference = (written - adapted).abs().max().item()
    print(f"largest difference of a log-probability from the adapter's before rounding: {difference:.2g}")


def _logprobs(model, ids_BT: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the whole vocabulary after each token of a short prompt."""
    with torch.no_grad():
        return head_logits(model(ids_BT)[0], model.lm_head.weight, 1.0)[: ids_BT.shape[1]].log_softmax(-1)


if __name__ == "__main__":
    words = dict(word.split("=", 1) if "=" in word else (word, "") for word in sys.argv[1:])
    if {"-h", "--help", "help"} & set(words):
        sys.exit(print(USAGE))
    wrong = [f"unknown key {key!r}" for key in words if key not in ("adapter", "out", "model", "dtype")]
    needed = ("out",) if "model" in words else ("out", "adapter")
    wrong += [f"{key}= is missing" for key in needed if key not in words]
    if words.get("dtype", "float32") not in DTYPES:
        wrong.append(f"dtype={words['dtype']} is not one of {', '.join(DTYPES)}")
    if wrong:
        print(f"merge.py: {wrong[0]}\n{USAGE}", file=sys.stderr)
        sys.exit(2)
    try:
        main(**words)
    except (OSError, ValueError) as error:
        sys.exit(f"merge.py: {error}")
