"""The statistics of each epoch, the line that is printed of them, and warnings."""

import os
import sys
from collections import Counter
from statistics import fmean, pstdev

from rl.config.fields import Config
from rl.records import Episode

PRINTED = ("policy_loss", "value_loss", "entropy", "clip_fraction", "reference_kl", "grad_norm", "sampler_gap")
WIDTH = 80  # columns of the line, which log=debug exceeds


def warn(text: str) -> None:
    """Print a warning, on a terminal in yellow unless NO_COLOR is set (no-color.org)."""
    yellow = sys.stdout and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    print(f"\033[33mwarning: {text}\033[0m" if yellow else f"warning: {text}", flush=True)


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


def thought_stats(episodes: list[Episode]) -> dict[str, int]:
    """Return the number of sampled tokens that are thoughts, if there are any."""
    thoughts = sum(episode.thought_tokens for episode in episodes)
    return {"thought_tokens": thoughts} if thoughts else {}


def token_stats(episodes: list[Episode]) -> dict:
    """Return the metrics that demonstrations from a file have as well."""
    return {
        "episodes": len(episodes),
        "turns_mean": fmean(len(episode.turns) for episode in episodes),
        "sampled_tokens": sum(sum(episode.action_mask_T) for episode in episodes),
        **thought_stats(episodes),
        "total_tokens": sum(len(episode.ids_T) for episode in episodes),
        # replies cut by max_new_tokens or max_len, and replies whose observation did not fit
        "cut_by_length": sum(turn.stop_reason != "stop" for episode in episodes for turn in episode.turns),
    }


def epoch_line(stats: dict, cfg: Config) -> str:
    """Return the line that is printed for an epoch: what fits into WIDTH columns, the most important first. log=debug
    prints all of it; metrics.jsonl has more."""
    imitates = cfg.algorithm.source == "demonstrations"  # then success and reward are the expert's
    parts = [f"loss {stats['loss']:.3g}"] if stats.get("loss") is not None else []
    if "accuracy" in stats and not imitates:
        parts = [f"success {stats['accuracy']:.1%}", f"reward {stats['reward_mean']:.2f}", *parts]
    parts += [f"judge {stats['judge_mean']:.2f}"] if "judge_mean" in stats else []
    parts += [f"{stats['left_out']} left out"] if stats["left_out"] else []
    parts += [f"kl {stats['approx_kl']:.2g}"] if stats.get("approx_kl") is not None else []
    parts += [f"teacher_kl {stats['teacher_kl']:.3g}"] if stats.get("teacher_kl") is not None else []
    parts += [f"{stats['cut_by_length']} turns cut by length"] if stats["cut_by_length"] else []
    parts += [f"the expert's success {stats['accuracy']:.1%}"] if "accuracy" in stats and imitates else []
    parts.append(f"{stats['sampled_tokens']} tokens")
    parts += [f"{name} {stats[name]:.3g}" for name in PRINTED if stats.get(name) is not None]

    line, seconds = f"epoch {stats['epoch']:>3}/{cfg.epochs}", f"  {stats['seconds']:.1f} s"
    for part in parts:
        if cfg.log == "debug" or len(f"{line}  {part}{seconds}") <= WIDTH:
            line += f"  {part}"
    return line + seconds
