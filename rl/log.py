"""A run's folder: config.json, metrics.jsonl, episodes.jsonl, and a line per epoch for the person who waits."""

import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, pstdev

from rl.config import to_dict
from rl.records import Episode


class Run:
    """Where a run writes, once it begins. An existing folder is an error unless the run resumes there."""

    def __init__(self, cfg, resume: bool = False):
        name = cfg.out.format(
            algo=cfg.algo, env=cfg.env.replace(",", "+").replace(":", "x"), seed=cfg.seed, timestamp=timestamp()
        )
        self.folder = Path(name)
        if not resume and (self.folder / "config.json").exists():
            resumable = any(self.folder.glob("checkpoint-*"))
            way = f"resume={self.folder} goes on with it" if resumable else "it has no checkpoint; choose another out="
            raise FileExistsError(f"out={self.folder}: a run is there already; {way}")

    def begin(self, cfg) -> None:
        """Makes the folder, which must be no other run's by then, and writes config.json."""
        name, others = self.folder.name, 1
        while not cfg.resume:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                open(self.folder / "config.json", "x").close()
                break
            except FileExistsError:
                if "{timestamp}" not in cfg.out:
                    raise FileExistsError(f"out={self.folder}: another run has begun there") from None
                others += 1  # in the same second
                self.folder = self.folder.with_name(f"{name}-{others}")
        print(f"run: {self.folder}", flush=True)
        (self.folder / "config.json").write_text(json.dumps(to_dict(cfg), indent=2) + "\n")

    def metrics(self, record: dict) -> None:
        """Appends one line to metrics.jsonl."""
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def episodes(self, epoch: int, episodes: list[Episode]) -> None:
        """Appends one line per episode to episodes.jsonl."""
        with open(self.folder / "episodes.jsonl", "a") as file:
            for episode in episodes:
                file.write(json.dumps({"epoch": epoch, **asdict(episode)}) + "\n")

    def forget_after(self, epoch: int) -> None:
        """Drops the lines of epochs after this one, which a resumed run will write again, and a torn last line."""
        for name in ("metrics.jsonl", "episodes.jsonl"):
            path = self.folder / name
            if path.is_file():
                lines = [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
                kept = [line for line in lines if json.loads(line)["epoch"] <= epoch]
                path.with_suffix(".partial").write_text("".join(kept))
                path.with_suffix(".partial").replace(path)


def timestamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S")


def rollout_stats(episodes: list[Episode]) -> dict:
    """What training_stats.json says of an epoch's episodes."""
    whole = [episode for episode in episodes if not episode.infrastructure_failed]
    scores = [episode.score for episode in whole]
    return {
        "reward_mean": fmean(scores),
        "reward_std": pstdev(scores),
        "accuracy": fmean(episode.success for episode in whole),
        "outcomes": dict(Counter(episode.outcome for episode in whole)),
        "infrastructure_failed": len(episodes) - len(whole),
        **world_metrics(whole),
        **token_stats(episodes),
    }


def world_metrics(episodes: list[Episode]) -> dict[str, float]:
    """The mean of each number that worlds have measured, over the episodes that have it, as env/NAME."""
    names = sorted({name for episode in episodes for name in episode.metrics})
    return {f"env/{name}": fmean(e.metrics[name] for e in episodes if name in e.metrics) for name in names}


def token_stats(episodes: list[Episode]) -> dict:
    """The part of it that holds for demonstrations from a file as well."""
    return {
        "episodes": len(episodes),
        "turns_mean": fmean(len(episode.turns) for episode in episodes),
        "sampled_tokens": sum(sum(episode.action_mask_T) for episode in episodes),
        "total_tokens": sum(len(episode.ids_T) for episode in episodes),
        "cut_by_length": sum(turn.stop_reason != "stop" for episode in episodes for turn in episode.turns),
    }


def epoch_line(stats: dict, epochs: int) -> str:
    """One line for people."""
    names = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "reference_kl", "grad_norm")
    names += ("sampler_gap",)
    numbers = "".join(f"  {name} {stats[name]:.3g}" for name in names if stats.get(name) is not None)
    head = f"epoch {stats['epoch']:>3}/{epochs}"
    if "accuracy" in stats:
        head += f"  reward {stats['reward_mean']:.3f}  accuracy {stats['accuracy']:.1%}"
    if stats["left_out"]:
        numbers += f"  {stats['left_out']} episodes left out"
    if stats["cut_by_length"]:
        numbers += f"  {stats['cut_by_length']} turns cut by length"
    return f"{head}{numbers}  {stats['sampled_tokens']} tokens  {stats['seconds']:.1f} s"
