"""A run's folder: config.json, metrics.jsonl, episodes.jsonl; and the statistics and the printed line of each epoch."""

import json
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, pstdev

from models.kernels import kernels
from rl import ranks
from rl.config.fields import Common
from rl.records import Episode
from rl.run.files import append, plain, write_text

PRINTED = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "reference_kl", "grad_norm")
PRINTED += ("sampler_gap",)


@dataclass
class Run:
    """The folder that a run writes into; rl/run/folder.py has locked it."""

    folder: Path
    phases: dict[str, dict] = field(default_factory=dict)  # those that are not yet logged
    began: float = field(default_factory=time.monotonic)  # when the present phase began

    def begin(self, cfg: Common) -> Common:
        """Write config.json and return the configuration with the folder in `out`."""
        print(f"run: {self.folder}", flush=True)
        cfg = replace(cfg, out=str(self.folder))
        write_text(self.folder / "config.json", json.dumps(asdict(cfg), indent=2) + "\n")
        return cfg

    def metrics(self, *records: dict) -> None:
        """Append one line per record to metrics.jsonl."""
        append(self.folder / "metrics.jsonl", list(records))

    def episodes(self, epoch: int, episodes: list[Episode]) -> None:
        """Append one line per episode to episodes.jsonl."""
        append(self.folder / "episodes.jsonl", [{"epoch": epoch, **plain(episode)} for episode in episodes])

    def end_phase(self, name: str, tokens: int = 0) -> None:
        """Count the time since the last call to the phase, with its tokens and its peak memory; parts add up."""
        now, new = time.monotonic(), {"seconds": 0.0, "tokens": 0, "peak_bytes": 0, "waited": 0.0}
        phase = self.phases.setdefault(name, new)
        phase["waited"] += ranks.take_waited()
        phase["seconds"] += now - self.began
        phase["tokens"] += tokens
        phase["tokens_per_second"] = phase["tokens"] / phase["seconds"]
        phase["peak_bytes"] = max(phase["peak_bytes"], kernels.end_phase() or 0)
        self.began = now

    def log_phases(self, epoch: int, step: int) -> None:
        """Append a line with the phases since the line before to metrics.jsonl. Print the peaks of the first line."""
        self.metrics({"epoch": epoch, "step": step, "phases": ranks.with_busy_seconds(self.phases)})
        if "load" in self.phases:
            sizes = (f"{name} {phase['peak_bytes'] / 2**30:.2f}" for name, phase in self.phases.items())
            print(f"peak memory in GiB: {', '.join(sizes)}", flush=True)
        self.phases = {}


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
