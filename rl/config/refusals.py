"""The lines that refuse a wrong word and name the nearest valid one. Imported when needed; standard library alone."""

import difflib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

RECIPES = Path(__file__).parents[2] / "recipes"
WANTED = {bool: "true or false", int: "a whole number", float: "a number from -1e15 to 1e15"}
WANTED[str] = "at most 4,096 printable characters"
LINE = 1000  # most characters of a printed message
RENAMED = {"reward.rule=seed": "reward.rule=shaped", "recipe=default": "embedded"}

# the guides' names of settings: ours
GUIDES = {"learning_rate": "lr", "output_dir": "out", "samples_per_epoch": "episodes", "num_episodes": "episodes"}
GUIDES |= {"num_samples": "n", "num_generations": "grpo.group_size", "num_rollouts": "epochs", "max_round": "max_turns"}
GUIDES |= {"grad_accum": "batch_size", "gradient_accumulation_steps": "batch_size", "max_grad_norm": "clip_norm"}
GUIDES |= {"lora_rank": "lora.r", "target_modules": "lora.targets", "lora_target_modules": "lora.targets"}
GUIDES |= {"gradient_checkpointing": "checkpoint=block", "bf16": "dtype=bfloat16", "max_seq_len": "max_len"}
GUIDES |= {"load_in_4bit": "quant=nf4", "load_in_8bit": "quant=int8", "use_wandb": "track.to=wandb"}
GUIDES |= {"sample_order": "order", "max_episode_length": "max_turns", "reward_weight": "reward.scale"}
GUIDES |= {"lora_weights_path": "adapter", "adapter_path": "adapter", "merged_model_path": "out", "base_model": "model"}
GUIDES |= {"model_name_or_path": "model", "repo_name": "push", "model_card": "card", "local_save_path": "out"}


def one_line(message: object) -> str:
    """Return a message as one line of at most LINE characters, with control characters escaped.

    Messages quote files and words of strangers. Of a long one the middle is left out.
    """

    def cut(text: str) -> str:
        return text if len(text) <= LINE else f"{text[: LINE - 305]} ... {text[-300:]}"

    return cut("".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut(str(message))))


def hint(word: Any, known, cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" for the nearest known word, or nothing if none is near."""
    near = difflib.get_close_matches(str(word)[:100], known, 1, cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_key(key: str, known: list[str]) -> str:
    guides = GUIDES.get(key.replace("-", "_"), "")
    if guides.partition("=")[0] in known:
        return f"unknown key {key!r}, as a guide names it; here it is {guides}{'=' * ('=' not in guides)}"
    in_groups = [other for other in known if other.endswith(f".{key}")]
    near = hint(key, in_groups, 0) or hint(key, known, 0.5)
    return f"unknown key {key!r}{near or '; --help lists the keys'}"


def wrong_type(key: str, value: Any, kind: Any) -> str:
    """Return the line for a value that has not the field's type: a Literal, bool, int or float."""
    word = f"{key}={value}"
    if word in RENAMED:
        return f"{word} is now called {RENAMED[word]}"
    if get_origin(kind) is Literal:
        near = hint(value, get_args(kind))
        if key == "algo" and (RECIPES / f"{value}.toml").is_file():
            near = f"; did you mean recipe={value}?"
        return f"{word} is not one of {', '.join(get_args(kind))}{near}"
    return f"{key}={str(value).strip()} must be {WANTED[kind]}"


def recipe_names() -> list[str]:
    """Return the names that recipe= takes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def wrong_recipe(name: str, path: Path, error: Exception) -> str:
    """Return the line for recipe=NAME, whose file at `path` raised the error."""
    if path.is_file():
        return f"recipe={name}: {path} is not TOML ({error})"
    renamed = RENAMED.get(f"recipe={name}")
    return f"recipe={name}: no file {path}{f'; it is now called {renamed}' if renamed else hint(name, recipe_names())}"
