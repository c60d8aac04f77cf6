"""Where the settings of a run come from."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl import config
from rl.arguments import flatten, word


def describe_sources(cfg: Any) -> str:
    """Return one line: each recipe in effect with what it sets for this run, and what the command line sets."""
    named = {key: getattr(cfg, key) for key in ("algo", "env", "model", "recipe", "quick", "guide")}
    without_words = flatten(asdict(config.resolve({"resume": cfg.resume} if cfg.resume else named)))
    layers = [] if cfg.resume else config.layers_of(named)[:-1]
    source_of = {key: source for source, keys in layers for key in keys}
    parts = {source: [] for source, _ in layers}
    for key, value in flatten(asdict(cfg)).items():
        source = source_of.get(key) if value == without_words.get(key) else "command line"
        if source and key in without_words and key not in named:
            parts.setdefault(source, []).append(f"{key}={word(value)}")
    start = " ".join(f"{key}={named[key]}" for key in ("algo", "env", "model"))
    start += f"; saved in {Path(cfg.resume) / 'config.json'}: the rest" if cfg.resume else ""
    return "; ".join([start, *(f"{source}: {' '.join(words) or 'nothing'}" for source, words in parts.items())])
