"""rollouts=FILE: repeat updates on the episodes that a run saved, so that a changed loss is judged in seconds.

    python train.py algo=grpo rollouts=runs/x/episodes.jsonl epochs=4 eval_episodes=0

With the settings of the run that played them, the updates are that run's own, bit for bit. Other epochs= would be
another schedule of learning rates.
"""

import json
from dataclasses import fields
from functools import cache
from pathlib import Path

from rl.config.fields import Config
from rl.config.refusals import Refusal
from rl.records import Episode, Turn
from rl.run import history
from rl.run.files import bounded_lines, is_number
from rl.run.state import TrainState
from rl.tasks import mixture

KINDS = {"env": str, "seed": int, "group": int, "outcome": str, "success": bool, "terminated": bool, "truncated": bool}
KINDS |= {"metrics": dict, "infrastructure_failed": bool, "adapter_hash": str}


def saved_episodes(state: TrainState, cfg: Config) -> list[Episode]:
    """Return the saved episodes of the state's next epoch, and print a line if other weights sampled them."""
    episodes = checked_episodes(state, cfg)
    if episodes[0].adapter_hash != state.adapter_hash():
        print(f"epoch {state.epoch + 1}: other weights sampled these episodes; its first ratios are not 1", flush=True)
    return episodes


def checked_episodes(state: TrainState, cfg: Config) -> list[Episode]:
    """Return the saved episodes of the state's next epoch.

    Raise ValueError, one line, for an epoch that the file lacks or has with another number of episodes, for episodes of
    an environment that this run does not have, for a damaged line, and if a critic would value observations after the
    turn limit that the file does not have.
    """
    by_epoch = read(Path(cfg.rollouts), state.model.config.vocab_size)
    epoch = state.epoch + 1
    of_epoch = by_epoch.get(epoch, [])
    if len(of_epoch) != cfg.episodes:
        known = ", ".join(f"epoch {number} has {len(episodes)}" for number, episodes in sorted(by_epoch.items())[:3])
        more = ", ..." if len(by_epoch) > 3 else ""
        raise Refusal(
            f"rollouts={cfg.rollouts}: epoch {epoch} needs episodes={cfg.episodes} and there are {len(of_epoch)} "
            f"({known or 'the file is empty'}{more}); give the settings of the run that played them"
        )
    if all(episode.infrastructure_failed for episode in of_epoch):
        raise Refusal(f"rollouts={cfg.rollouts}: the environments of all episodes of epoch {epoch} failed")
    if others := {episode.env for episode in of_epoch} - mixture(cfg.env).keys():
        other = f"it has episodes of env={min(others)}, and this run has env={cfg.env}"
        raise Refusal(f"rollouts={cfg.rollouts}: {other}; give the settings of the run that played them")
    if cfg.algorithm.critic and cfg.algorithm.bootstrap and not _observed(cfg, of_epoch):
        key = f"{cfg.algo}.bootstrap"
        lacks = f"the observations after the turn limit are not there, because {key}=true did not play these episodes"
        raise Refusal(f"rollouts={cfg.rollouts}: {lacks}; give {key}=false")
    return of_epoch


def _observed(cfg: Config, episodes: list[Episode]) -> bool:
    """Return whether episodes that the turn limit ended have the observation after it, which a critic values. Without
    their run's settings return whether any has."""
    saved = history.settings(Path(cfg.rollouts).parent)
    if saved:
        return bool(saved.get(f"{saved.get('algo')}.bootstrap"))
    played = [e for e in episodes if e.truncated and e.turns and not e.infrastructure_failed]
    at_limit = [episode for episode in played if episode.turns[-1].stop_reason != "context"]
    return not at_limit or any(len(episode.ids_T) > episode.turns[-1].stop for episode in at_limit)


@cache
def read(path: Path, vocabulary: int) -> dict[int, list[Episode]]:
    """Return the episodes of each epoch of the file."""
    by_epoch: dict[int, list[Episode]] = {}
    for number, line in bounded_lines(path):
        try:
            record = json.loads(line)
            by_epoch.setdefault(record.pop("epoch") + 0, []).append(_episode(record, vocabulary))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            what = str(error)[:200] or type(error).__name__
            raise Refusal(f"rollouts={path}, line {number}: not an episode of a run ({what})") from None
    return by_epoch


def _episode(record: dict, vocabulary: int) -> Episode:
    """Return the episode of a line. Raise ValueError, KeyError or TypeError if it is none."""
    turns = [
        Turn(int(t["start"]), int(t["stop"]), float(t["reward"]), str(t["stop_reason"]), int(t.get("thoughts", 0)))
        for t in record["turns"]
    ]
    wrong = [name for name, kind in KINDS.items() if not isinstance(record[name], kind)]
    unknown = record.keys() - {f.name for f in fields(Episode)}
    if wrong or unknown:
        raise Refusal(f"wrong or unknown: {', '.join([*wrong, *sorted(unknown)])}")
    if not all(0 <= record[name] < 2**53 for name in ("seed", "group")):
        raise Refusal("seed and group must be from 0 to 2**53")
    ids, mask, logprobs = record["ids_T"], record["action_mask_T"], [float(x) for x in record["logprobs_T"]]
    if not len(ids) == len(mask) == len(logprobs):
        raise Refusal("ids_T, action_mask_T and logprobs_T differ in length")
    if not all(map(is_number, [*logprobs, *(turn.reward for turn in turns), *record["metrics"].values()])):
        raise Refusal("a log-probability, reward or metric is not a number from -1e15 to 1e15")
    if not all(isinstance(i, int) and 0 <= i < vocabulary for i in ids):
        raise Refusal(f"ids_T has an id outside of the vocabulary of {vocabulary}")
    edges = [0, *(edge for turn in turns for edge in (turn.start, turn.stop)), len(ids)]
    sampled = [i for turn in turns for i in range(turn.start, turn.stop)] if edges == sorted(edges) else None
    learned = [i for i, taken in enumerate(mask) if taken]
    # Within a turn only a closing tag that was forced is not sampled, and it stands behind thoughts.
    thinks = any(turn.thoughts for turn in turns)
    if sampled != learned and not (thinks and sampled and set(learned) <= set(sampled)):
        raise Refusal("the turns are not the sampled tokens of action_mask_T")
    episode, length = Episode(**{**record, "turns": turns, "logprobs_T": logprobs}), 0
    if len(episode.kept) > len(turns) or not all(type(kept) is int for kept in episode.kept):
        raise Refusal("kept must have a number for each observation")
    for kept, start, stop in episode.samples:
        if not 0 <= kept <= length:
            raise Refusal(f"a sample begins with {kept} ids of the one before, which has {length}")
        length = kept + stop - start
    return episode
