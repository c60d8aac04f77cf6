"""Make one checkpoint of a run's sharded one: python -m rl.ranks.join checkpoint=runs/x/checkpoint-3 out=model

checkpoint= is a folder of a run with lora.r=0, saved by any number of ranks; out= gets config.json, the weights in one
model.safetensors and the tokenizer, which train.py, eval.py and transformers load. One tensor at a time is in memory.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from models import load_tokenizer
from models.export import save_config, writer
from models.weights import resolve
from rl.config import program
from rl.config.refusals import Refusal
from rl.ranks.saving import Pieces
from rl.run import exits, signals
from rl.run.checkpoint import copy_tokenizer
from rl.run.files import new_folder, read_json, verify


@dataclass(frozen=True)
class Keys:
    checkpoint: str  # a run's checkpoint-N
    out: str  # the folder for the model; must not exist
    dtype: Literal["run", "float32", "bfloat16", "float16"] = "run"  # of the weights; run: as the run computed


def main(keys: Keys) -> None:
    folder, target = Path(keys.checkpoint), Path(keys.out)
    if target.exists():
        raise Refusal(f"out={keys.out} exists already")
    verify(folder)
    settings = read_json(folder.parent / "config.json")
    if settings["lora"]["r"]:
        raise Refusal(f"{folder} has an adapter; epoch_N beside it is whole, and merge.py folds it into its base")
    dtype = getattr(torch, settings["dtype"] if keys.dtype == "run" else keys.dtype)
    saved = Pieces(folder, "trainable")
    with new_folder(target) as made:
        shapes = saved.shapes()
        with writer(made, {key: tuple(shape) for key, shape in shapes.items()}, dtype) as write:
            for key in shapes:
                write(key, saved.whole(key))
        save_config(made, json.loads((resolve(settings["model"]) / "config.json").read_text()), dtype)
        copy_tokenizer(load_tokenizer(settings["model"]), made)
    print(f"{keys.out}: {sum(shape.numel() for shape in shapes.values()):,} weights in {str(dtype)[6:]}")


if __name__ == "__main__":
    with signals.handled(), exits.exits_cleanly("rl.ranks.join"):
        [given] = program.parse(sys.argv[1:], "rl.ranks.join", Keys, about=__doc__)
        main(given)
