"""The statistics of each epoch, and the line that is printed of them."""

from collections import Counter
from statistics import fmean, pstdev

from rl.records import Episode

PRINTED = ("loss", "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "reference_kl", "teacher_kl")
PRINTED += ("grad_norm", "sampler_gap")


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
