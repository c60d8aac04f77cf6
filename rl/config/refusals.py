"""Refusals, and the lines that refuse a wrong word and name the nearest valid one. Standard library alone."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RECIPES = Path(__file__).parents[2] / "recipes"
LINE = 1000  # most characters of a printed message

# the guides' names of settings: ours, of which a program may lack the first
GUIDES = {"learning_rate": "lr", "output_dir": "out", "samples_per_epoch": "episodes"}
GUIDES |= {"num_samples": "n|episodes|demos", "num_episodes": "episodes|demos", "buffer_size": "buffer"}
GUIDES |= {"num_generations": "grpo.group_size", "num_rollouts": "epochs", "max_round": "max_turns"}
GUIDES |= dict.fromkeys(("grad_accum", "gradient_accumulation_steps", "accumulation_steps"), "batch_size")
GUIDES |= {name: name.replace("_", ".", 1) for name in ("lora_r", "lora_alpha", "lora_dropout", "ppo_epochs")}
GUIDES |= {"max_grad_norm": "clip_norm", "n_vars": "sat.n", "clause_ratio": "sat.ratio", "lora_config": "lora.r"}
GUIDES |= {"lora_rank": "lora.r", "target_modules": "lora.targets", "lora_target_modules": "lora.targets"}
GUIDES |= {"gradient_checkpointing": "checkpoint=block", "bf16": "dtype=bfloat16", "max_seq_len": "max_len"}
GUIDES |= {"load_in_4bit": "quant=nf4", "load_in_8bit": "quant=int8", "use_wandb": "track.to=wandb"}
GUIDES |= {"sample_order": "order", "max_episode_length": "max_turns", "reward_weight": "reward.scale"}
GUIDES |= dict.fromkeys(("lora_weights_path", "adapter_path", "lora_adapter"), "adapter|resume_from")
GUIDES |= {"clip_range": "ppo.clip", "max_tokens": "max_new_tokens", "base_url": "server|sampler", "strategy": "shard"}
GUIDES |= {"no_wandb": "track.to=none", "wandb_project": "track.project", "no_4bit": "quant=none", "path": "model"}
GUIDES |= {"use_lora": "lora.r", "fp16": "dtype=bfloat16", "environments": "env", "config_path": "recipe"}
GUIDES |= {"num_epochs": "epochs", "num_train_epochs": "epochs", "scheduler_type": "schedule"}
GUIDES |= {"dataset": "data|abd.data", "train_file": "data", "beta": "grpo.kl_coef", "wandb": "track.to=wandb"}
GUIDES |= {"skill_to_tasks_path": "db_bench.data", "data_file_path": "db_bench.data", "use_merged_model": "model"}
GUIDES |= {"merged_model_path": "out", "base_model": "model", "language_model": "model"}
GUIDES |= {"model_name_or_path": "model", "repo_name": "push", "model_card": "card", "local_save_path": "out"}
GUIDES |= {f"{name}_weight": f"planner.{name}_weight" for name in ("correctness", "token", "independence")}
GUIDES |= {"token_efficiency_weight": "planner.token_weight", "dataset_name": "data", "lora_modules": "adapter"}
GUIDES |= dict.fromkeys(("config_name", "config", "config_file"), "recipe")
GUIDES |= dict.fromkeys(("per_device_train_batch_size", "train_batch_size"), "batch_size")
GUIDES |= dict.fromkeys(("max_completion_length", "max_completion_tokens"), "max_new_tokens")
ELSEWHERE = {"adapter": "resume_from"}  # keys of one program: what another that lacks them calls the same
LEFT_OUT = {"format": "weights are written as safetensors", "reduce": "gradients are added in one order"}
LEFT_OUT |= {"role_dict": "roles are the chat format's", "no_push": "nothing is pushed without push="}
LEFT_OUT |= {"enable_lora": "adapter= loads adapters", "use_vllm": "sampler=URL samples on a server of vLLM"}
LEFT_OUT |= dict.fromkeys(("colocate_all", "no_sync"), "the model that samples is the model that trains")
LEFT_OUT |= {"bias": "adapters have none", "task_type": "adapters are saved as CAUSAL_LM"}
LEFT_OUT |= {"mode": "it is a key of eval.py; merge.py always merges"}


class Refusal(ValueError):
    """Something that the user gave cannot be used. The text says what, where, and what to do.

    Programs print its line; any other ValueError is a mistake in the code and keeps its traceback.
    """


def one_line(message: object) -> str:
    """Return a message as one line of at most LINE characters, with control characters escaped.

    Messages quote files and words of strangers. Of a long one the middle is left out.
    """

    def cut(text: str) -> str:
        return text if len(text) <= LINE else f"{text[: LINE - 305]} ... {text[-300:]}"

    return cut("".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut(str(message))))


def hint(word: Any, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" for the nearest known word, or nothing if none is near."""
    near = difflib.get_close_matches(str(word)[:100], list(known), 1, cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def not_key_value(word: str) -> str:
    """Return the message about a word without "="; of a flag, as guides write them, it names the key."""
    name = word.lstrip("-").replace("-", "_")
    if name in LEFT_OUT:
        return f"{word!r} is not key=value: {LEFT_OUT[name]}; leave it out"
    if name in GUIDES or word.startswith("--"):
        ours = (f"{key}{'=' * ('=' not in key)}" for key in GUIDES.get(name, name).split("|"))
        return f"{word!r} is not key=value; write {' or '.join(ours)}"
    key, colon, value = map(str.strip, word.partition(":"))
    if colon and value:
        return f"{word!r} is not key=value; write {key}={value}"
    return f"{word!r} is not key=value; {'write key=value without blanks' if colon else '--help lists the keys'}"


def unknown_key(key: str, known: list[str], own: Iterable[str] = ()) -> str:
    """Return the message about a key that is not among the known ones; it names ours for a guide's, also in capitals
    or behind other groups: trainer.policy.model.lora_rank.

    own: the known keys of this run's algorithm and environments, which are named before those of others.
    """
    name, group = key.replace("-", "_").lower(), key.partition(".")[0]
    if not any(other.startswith(f"{group}.") for other in known):
        name = name.rpartition(".")[2]
    if name in LEFT_OUT:
        return f"unknown key {key!r}: {LEFT_OUT[name]}; leave it out"
    if name in GUIDES:
        ours = GUIDES[name].split("|")
        here = [word for word in ours if word.partition("=")[0] in known]
        word, where = (here or ours)[0], "here" if here else "in another program"
        return f"unknown key {key!r}, as a guide names it; {where} it is {word}{'=' * ('=' not in word)}"
    if ELSEWHERE.get(name) in known:
        return f"unknown key {key!r}; did you mean {ELSEWHERE[name]}?"
    # keys that have this name in a group, or that are in the group of this name; keys that begin with it
    in_own, in_any = ([each for each in keys if key in each.split(".")] for keys in (own, known))
    begun = [each for each in known if len(key) > 2 and f".{key}" in f".{each}"]
    near = hint(key, in_own or in_any, 0) or hint(key.lower(), known) or hint(key, begun, 0)
    return f"unknown key {key!r}{near or '; --help lists the keys'}"


def recipe_names() -> list[str]:
    """Return the names that recipe= takes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))
