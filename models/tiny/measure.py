"""Measure how well a model reads: python -m models.tiny.measure tiny, or a folder

Prints the share of exercises (models/tiny/exercises.py) that the model answers right, decoding greedily, when what it
must find stands 30, 100 and `distance` tokens before the answer.
"""

import sys
from dataclasses import dataclass

import torch

from models import load_model, load_tokenizer
from models.tiny.exercises import SIGNS, share_right
from rl.config import program
from rl.config.arguments import NotNegative, Positive
from rl.run import status


@dataclass(frozen=True)
class Keys:
    model: str = "tiny"  # "tiny" or a folder
    n: Positive[int] = 300  # exercises of each kind and distance
    distance: Positive[int] = 300  # tokens between what must be found and the answer
    seed: NotNegative[int] = 0  # of the exercises


def main(keys: Keys) -> None:
    model, tokenizer = load_model(keys.model, torch.float32, "cpu"), load_tokenizer(keys.model)
    for distance in sorted({30, 100, keys.distance}):
        shares = {kind: share_right(model, tokenizer, kind, keys.n, distance, keys.seed) for kind in SIGNS}
        print(f"{distance} tokens: " + ", ".join(f"{kind} {100 * share:.1f} %" for kind, share in shares.items()))


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "models.tiny.measure", Keys, about=__doc__, positional="model")
    with status.ends_in_one_line("models.tiny.measure"):
        main(keys)
