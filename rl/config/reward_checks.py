"""Rewards that nothing reads, that the algorithm cannot use, or that no judge can give: refused before loading."""

from pathlib import Path

import envs
from envs import prompt_file
from envs.http.exchange import is_address
from lora.peft_files import is_adapter
from rl.config.arguments import ArgumentError, word
from rl.config.fields import Config, Reward
from rl.run import history
from rl.run.files import is_number
from rl.tasks import mixture


def check_rewards(cfg: Config) -> None:
    """Raise ArgumentError for rewards that nothing reads, that the algorithm cannot use, or that do not go together."""
    if cfg.episodes == 1:
        check_single_episode(cfg)
    if cfg.reward.progress and (cfg.rollouts or not reads_rewards(cfg)):
        beside = "rollouts=, whose rewards are paid" if cfg.rollouts else without_rewards(cfg)
        raise ArgumentError(f"reward.progress has no effect beside {beside}")
    check_reward_keys(cfg)
    if getattr(cfg.algorithm, "divide_by_mean", False) and not cfg.rollouts:
        check_divide_by_mean(cfg)


def reads_rewards(cfg: Config) -> bool:
    """Return whether the algorithm learns from rewards: demonstrations have none, distillation may leave them out."""
    return cfg.algorithm.source == "rollouts" and getattr(cfg.algorithm, "reward_coef", 1) != 0


def without_rewards(cfg: Config) -> str:
    """Return the end of a message about what such an algorithm does not read."""
    zero = f" {cfg.algo}.reward_coef=0" if cfg.algorithm.source == "rollouts" else ""
    return f"algo={cfg.algo}{zero}, which reads no rewards"


def check_single_episode(cfg: Config) -> None:
    """Raise ArgumentError for an algorithm that takes away the mean of an epoch that is one turn."""
    algo = cfg.algorithm
    turns = max(getattr(cfg.environments[env], "max_turns", 1) for env in mixture(cfg.env))
    if turns > 1 or algo.reference or getattr(algo, "entropy_coef", 0) or getattr(algo, "level", "turn") == "token":
        return
    for key, value in (("baseline", "batch"), ("whiten", True)):
        if getattr(algo, key, None) == value:
            of = f"{cfg.algo}.{key}={word(value)} takes the mean of an epoch's episodes away"
            raise ArgumentError(f"{of}, and of episodes=1 with one turn nothing is left; play more, or change the key")


def check_divide_by_mean(cfg: Config) -> None:
    """Raise ArgumentError for rewards below 0, by whose mean advantages cannot be divided."""
    reward, rule = cfg.reward, cfg.reward.rule
    own = {"binary": ("correct", "incorrect", "timeout", "unknown"), "shaped": ("invalid",)}.get(rule, ())
    keys = (*own, "scale", "judge_weight")
    below = [f"reward.{key}={getattr(reward, key):g}" for key in keys if getattr(reward, key) < 0]
    for env in mixture(cfg.env) if rule == "native" else ():
        kind = cfg.environments[env].kind if env == "http" else env
        if kind in envs.NAMES and envs.pays_below_0(kind):
            below.append(f"env={env}")
    if below:
        said = f"{cfg.algo}.divide_by_mean needs scores of 0 or more"
        instead = "; reward.rule=binary pays 0 and 1" if rule == "native" else ""
        raise ArgumentError(f"{said}, and {below[0]} pays less{instead}")


def check_reward_keys(cfg: Config) -> None:
    """Raise ArgumentError for a key of reward.* that belongs to another reward.rule."""
    rule_of = {
        "correct": "binary",
        "incorrect": "binary",
        "timeout": "binary",
        "unknown": "binary",
        "invalid": "shaped",
    }
    for key, rule in rule_of.items():
        if cfg.reward.rule != rule and getattr(cfg.reward, key) != getattr(Reward(), key):
            raise ArgumentError(f"reward.{key} has no effect without reward.rule={rule}")


def check_saved_rewards(cfg: Config) -> None:
    """Raise ArgumentError for a key that asks for other rewards than those of the episodes in rollouts=, if their run's
    settings are beside them."""
    saved, usual = history.settings(Path(cfg.rollouts).parent), vars(Reward())
    sampled = saved.get("temperature", cfg.temperature)
    if is_number(sampled) and sampled != cfg.temperature:
        other = f"temperature={cfg.temperature:g} is not that of rollouts={cfg.rollouts}"
        raise ArgumentError(f"{other}, whose episodes were sampled at temperature={sampled:g}")
    for key, value in vars(cfg.reward).items():
        paid = saved.get(f"reward.{key}", value)
        if key not in ("whiten", "progress") and not key.startswith("judge") and value not in (usual[key], paid):
            kept = f"whose episodes keep their rewards of reward.{key}={word(paid)}"
            raise ArgumentError(f"reward.{key}={word(value)} has no effect beside rollouts=, {kept}")


def check_judge(cfg: Config) -> None:
    """Raise ArgumentError for a judge that has no rubric, that a run cannot hold, or whose grades nothing reads."""
    reward, key = cfg.reward, f"reward.judge={cfg.reward.judge}"
    if not reward.judge:
        names = ("rubric", "judge_weight", "judge_model", "judge_max_tokens")
        if unused := [name for name in names if getattr(reward, name) != getattr(Reward(), name)]:
            raise ArgumentError(f"reward.{unused[0]} has no effect without reward.judge=base, a folder or a URL")
        return
    if not reads_rewards(cfg) or (cfg.rollouts and not cfg.resume):  # a resumed run repeats its update
        paid = "rollouts=, whose rewards are paid" if cfg.rollouts else without_rewards(cfg)
        raise ArgumentError(f"{key} has no effect beside {paid}")
    if not reward.rubric:
        raise ArgumentError(f"{key} needs reward.rubric=FILE, a text that says what it grades")
    try:
        prompt_file.text_of(reward.rubric)
    except ValueError as error:
        raise ArgumentError(f"reward.rubric={reward.rubric}: {error}") from None
    if "://" in reward.judge:
        if not is_address(reward.judge):
            raise ArgumentError(f"{key} is not a URL up to /v1, such as http://localhost:8000/v1")
        return
    if reward.judge_model:
        raise ArgumentError(f"reward.judge_model names a server's model, and {key} is no server")
    if reward.judge != "base" and not is_adapter(Path(reward.judge)):
        raise ArgumentError(f"{key}: neither base, an adapter, a run with one, nor a URL such as http://host:8000/v1")
    if not cfg.lora.r:
        raise ArgumentError(f"{key} needs the frozen base, which lora.r=0 trains away; a server can grade")
    if cfg.shard != "ddp":
        raise ArgumentError(f"{key} is asked by each rank apart: take shard=ddp, not {cfg.shard}, or a server")
    if cfg.plan:
        raise ArgumentError(f"plan= does not count the cache that {key} needs")
