"""A rank of tests/runs/test_ranks.py and test_shard.py: python rank_cases.py FOLDER JSON TRIALS, with RANK and
WORLD_SIZE in the environment.

JSON: {case: [words of train.py, ...]}; each command writes to FOLDER/case. TRIALS: the folder of shared trials.
Words of SPECIAL are not train.py's. With shard= each rank also writes FOLDER/case-held-RANK.json: what it held after
each of the first passes over the model (`held`), and how often it gathered and scattered in it.
"""

import gc
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import torch
from shared_trials import shared_trials

import envs
import train
from envs.textcraft import Env
from rl import ranks
from rl.config.words import parse
from rl.ranks import launch

ROWS = 8  # sequences of the trial with shares, which has more in every other test
MEASURED = 6  # passes: the trial, an evaluation, a rollout, values or the reference, an update
FAILS = 3  # every so many tasks one fails


@contextmanager
def failing_groups() -> Iterator[None]:
    """Context in which the environment of some groups fails."""
    reset = Env.reset

    def failing(self, seed: int, split: str = "train"):
        if seed % FAILS == 0 and split == "train":
            raise envs.EnvironmentFailed("planted")
        return reset(self, seed, split)

    with mock.patch.object(Env, "reset", failing):
        yield


@contextmanager
def no_room() -> Iterator[None]:
    """Context in which gathered weights do not fit the machine's memory, so that rollouts are in lockstep."""
    from rl.ranks import shard

    with mock.patch.object(shard, "memory", lambda _device: 0), mock.patch.object(shard.Shards, "whole", None):
        yield


SPECIAL = {"lockstep": no_room, "fails": failing_groups}


def run(words: list[str]) -> None:
    """Run train.py with the words, as one rank or as one of several."""
    with ExitStack() as stack:
        for word in SPECIAL.keys() & set(words):
            stack.enter_context(SPECIAL[word]())
        cfg = parse([word for word in words if word not in SPECIAL], "train.py")
        train.main(cfg) if ranks.here.world == 1 else launch.call(train.main, cfg)


def held(model: torch.nn.Module) -> dict[str, int]:
    """Return bytes: of the base, of this rank's share of it, and of all other large tensors of the process."""
    from torch.distributed.tensor import DTensor

    base = [p for name, p in model.named_parameters() if ".adapters." not in name]
    local = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in (p.to_local() for p in base)}
    least = min(p.numel() * p.itemsize for p in base if p.dim() == 2)
    others = {}
    for x in gc.get_objects():
        if issubclass(type(x), torch.Tensor) and type(x) is not DTensor:
            size = x.numel() * x.itemsize if x.is_mkldnn else x.untyped_storage().nbytes()
            where = id(x) if x.is_mkldnn else x.untyped_storage()._cdata
            if size >= least and where not in local and x.device.type != "meta":
                others[where] = size
    whole = sum(p.numel() * p.itemsize for p in base)
    return {"base": whole, "local": sum(local.values()), "others": sum(others.values())}


def measured(path: str, words: list[str], trials: Path) -> None:
    """Run the words, and write what this rank held after each pass."""
    from models import trial
    from rl.ranks import shard

    found, end, sent = [], shard.Shards._end, {"Gather": 0, "Scatter": 0}

    def counted(of: type):
        call = of.__call__

        def once(self, *args, **kwargs):
            sent[of.__name__] += 1
            return call(self, *args, **kwargs)

        return mock.patch.object(of, "__call__", once)

    def ended(self) -> None:
        end(self)
        if len(found) < MEASURED:
            time.sleep(0.05)  # until gloo's threads have let go of what was sent last
            found.append({**held(self.model), **sent})
        sent.update(Gather=0, Scatter=0)

    with (
        mock.patch.object(trial, "SEQUENCES", ROWS),
        shared_trials(trials, also_first=False),  # a pass over the shares
        mock.patch.object(shard.Shards, "_end", ended),
        counted(shard.Gather),
        counted(shard.Scatter),
    ):
        run(words)
    with open(f"{path}-held-{ranks.here.rank}.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    folder, cases, trials = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    launch.join("cpu")
    if "shard=" in sys.argv[2]:
        import rl.ranks.shard  # noqa: F401

        gc.freeze()  # `held` looks at what comes from now on, not at a million objects of modules
    for name, commands in cases.items():
        for words in commands:
            ranks.here.store.delete_key("spoken")
            words = [word.replace("OUT", f"{folder}/{name}") for word in words]
            if any(word.startswith("shard=") for word in words):
                measured(f"{folder}/{name}", words, trials)
            else:
                with shared_trials(trials):
                    run(words)
    launch.leave()
