"""curriculum=OPTION: an option's values in turn, easiest first; the next one joins when training succeeds often enough.

    python train.py env=textcraft textcraft.difficulty=1,2,3 curriculum=difficulty
    python train.py env=db_bench db_bench.skill=select,insert,update curriculum=skill:0.5
    python train.py env=textcraft curriculum=max_turns:0.5

The option is a comma list, as the run's settings have it. Its first value plays alone; each epoch whose `accuracy` is
at least the number after the colon adds the next one. Evaluations always play the whole list.

curriculum=max_turns is a horizon curriculum (ScalingInter-RL, Xi et al. 2025, which goes by optimizer steps instead of
success): episodes have a quarter of max_turns at first, then half, then all. An epoch without any success also
lengthens them, because tasks may need more turns than they have.

Bias: until the last value joins, the gradient is that of other tasks, or of shorter episodes, than evaluations play.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from rl import ranks
from rl.config.arguments import ArgumentError
from rl.config.fields import Config
from rl.run import history
from rl.tasks import mixture

SUCCESS = 0.7  # of an epoch's episodes, from which the next value joins


def parts(text: str) -> tuple[str, float]:
    """Return the option and the success of curriculum=OPTION or OPTION:SUCCESS. Raise ArgumentError for others."""
    option, colon, at = text.partition(":")
    try:
        success = float(at) if colon else SUCCESS
    except ValueError:
        success = 0.0
    if not 0 < success <= 1:
        raise ArgumentError(f"curriculum={text}: the success after the colon must be above 0 and at most 1, not {at!r}")
    return option, success


def steps(value: str) -> list[str]:
    """Return a comma list's beginnings, each with one different value more than the one before.

    >>> steps("1,1,2,3")
    ['1,1', '1,1,2', '1,1,2,3']
    """
    items = [item for item in value.replace(" ", "").split(",") if item]
    known = list(dict.fromkeys(items))
    return [",".join(item for item in items if item in known[: n + 1]) for n in range(len(known))]


def lessons(option: str, value: Any) -> list[Any]:
    """Return the values of an option in the order of the curriculum; none without a value.

    >>> lessons("max_turns", 20)
    [5, 10, 20]
    """
    if value is None:
        return []
    return sorted({-(-value // 4), -(-value // 2), value} - {0}) if option == "max_turns" else steps(str(value))


def check(cfg: Config) -> None:
    """Raise ArgumentError unless an environment of the run has the option, with two values or more."""
    (option, _), names = parts(cfg.curriculum), list(mixture(cfg.env))
    options = {name: vars(cfg.environments[name]) for name in names}
    value_of = {name: own[option] for name, own in options.items() if option in own}
    if cfg.data or cfg.rollouts:
        raise ArgumentError(f"curriculum={cfg.curriculum} chooses tasks, and data= or rollouts= brings its own")
    if cfg.algorithm.source == "demonstrations":
        raise ArgumentError(
            f"curriculum={cfg.curriculum} goes by success in training, and algo={cfg.algo} plays experts"
        )
    if not value_of:
        known = "; difficulty is one" * (option != "difficulty")
        raise ArgumentError(f"curriculum={cfg.curriculum}: env={cfg.env} has no option {option!r}{known}")
    if all(len(lessons(option, value)) < 2 for value in value_of.values()):
        word = " ".join(f"{name}.{option}={value}" for name, value in value_of.items())
        more = "give two turns or more" if option == "max_turns" else "list two values or more, easiest first"
        raise ArgumentError(f"curriculum={cfg.curriculum}: {word} leaves one step; {more}")


def lesson(cfg: Config, epoch: int) -> Config:
    """Return the settings with the option's values that play in the epoch after `epoch`. All ranks must call this."""
    option, success = parts(cfg.curriculum)
    trained = [record for record in history.records(Path(cfg.out)) if "accuracy" in record]
    too_short = (0,) if option == "max_turns" else ()  # accuracies that lengthen episodes
    own = [record for record in trained if record["accuracy"] >= success or record["accuracy"] in too_short]
    passed = ranks.from_first([record["epoch"] for record in own])
    environments, words, most = dict(cfg.environments), [], 0
    for name in mixture(cfg.env):
        values = lessons(option, getattr(cfg.environments[name], option, None))
        if len(values) > 1:
            most = max(most, len(values) - 1)
            value = values[min(len(passed), len(values) - 1)]
            words.append(f"{name}.{option}={value}")
            environments[name] = replace(environments[name], **{option: value})
    if epoch in (0, *passed[:most][-1:]):
        print(f"curriculum: from epoch {epoch + 1} on {' '.join(words)}", flush=True)
    return replace(cfg, environments=environments)
