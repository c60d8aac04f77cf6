"""A run's folder: config.json, metrics.jsonl, episodes.jsonl; and the statistics and the printed line of each epoch."""

import json
import time
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, pstdev

from models.kernels import kernels
from rl.config import Common
from rl.records import Episode

PRINTED = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "reference_kl", "grad_norm")
PRINTED += ("sampler_gap",)


class Run:
    """The folder a run writes into. Raises FileExistsError if another run is there, unless this one resumes it."""

    def __init__(self, cfg: Common):
        env, now = cfg.env.replace(",", "+").replace(":", "x"), time.strftime("%Y%m%d-%H%M%S")
        self.folder = Path(cfg.out.format(algo=cfg.algo, env=env, seed=cfg.seed, timestamp=now))
        if not cfg.resume and (self.folder / "config.json").exists():
            from rl import taken

            raise taken.refusal(self.folder)

    def begin(self, cfg: Common) -> Common:
        """Make the folder, write config.json and return the configuration with the folder in `out`."""
        if not cfg.resume:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                open(self.folder / "config.json", "x").close()
            except FileExistsError:  # another run has begun there since __init__
                from rl import taken

                self.folder = taken.next_folder(self.folder, cfg.out)
        print(f"run: {self.folder}", flush=True)
        cfg = replace(cfg, out=str(self.folder))
        (self.folder / "config.json").write_text(json.dumps(asdict(cfg), indent=2) + "\n")
        return cfg

    def metrics(self, record: dict) -> None:
        """Append one line to metrics.jsonl."""
        with open(self.folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")

    def episodes(self, epoch: int, episodes: list[Episode]) -> None:
        """Append one line per episode to episodes.jsonl."""
        with open(self.folder / "episodes.jsonl", "a") as file:
            for episode in episodes:
                file.write(json.dumps({"epoch": epoch, **asdict(episode)}) + "\n")


def end_phase(phases: dict, name: str, tokens: int, began: float) -> float:
    """Add a phase's seconds, tokens per second and peak memory to `phases`; return when the next phase begins."""
    now, peak = time.monotonic(), kernels.end_phase()
    phases[name] = {"seconds": now - began, "tokens_per_second": tokens / (now - began), "peak_bytes": peak}
    return now


def rollout_stats(episodes: list[Episode]) -> dict:
    """Return the metrics of an epoch's played episodes; docs/glossary.md explains each."""
    whole = [episode for episode in episodes if not episode.infrastructure_failed]
    scores = [episode.score for episode in whole]
    return {
        "reward_mean": fmean(scores),
        "reward_std": pstdev(scores),
        "accuracy": fmean(episode.success for episode in whole),
        "outcomes": dict(Counter(episode.outcome for episode in whole)),
        "infrastructure_failed": len(episodes) - len(whole),
        **env_metrics(whole),
        **token_stats(episodes),
    }


def env_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Return the mean of each number that environments measured, over the episodes that have it, as env/NAME."""
    names = sorted({name for episode in episodes for name in episode.metrics})
    return {f"env/{name}": fmean(e.metrics[name] for e in episodes if name in e.metrics) for name in names}


def token_stats(episodes: list[Episode]) -> dict:
    """Return the metrics that demonstrations from a file have as well."""
    return {
        "episodes": len(episodes),
        "turns_mean": fmean(len(episode.turns) for episode in episodes),
        "sampled_tokens": sum(sum(episode.action_mask_T) for episode in episodes),
        "total_tokens": sum(len(episode.ids_T) for episode in episodes),
        # replies cut by max_new_tokens or max_len, and replies whose observation did not fit
        "cut_by_length": sum(turn.stop_reason != "stop" for episode in episodes for turn in episode.turns),
    }


def epoch_line(stats: dict, epochs: int) -> str:
    """Return the line that is printed for an epoch."""
    numbers = "".join(f"  {name} {stats[name]:.3g}" for name in PRINTED if stats.get(name) is not None)
    head = f"epoch {stats['epoch']:>3}/{epochs}"
    if "accuracy" in stats:
        head += f"  reward {stats['reward_mean']:.3f}  accuracy {stats['accuracy']:.1%}"
    if stats["left_out"]:
        numbers += f"  {stats['left_out']} episodes left out"
    if stats["cut_by_length"]:
        numbers += f"  {stats['cut_by_length']} turns cut by length"
    return f"{head}{numbers}  {stats['sampled_tokens']} tokens  {stats['seconds']:.1f} s"
