"""Settings that do not go together: each is an ArgumentError, one line, before anything loads."""

import importlib.util
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

import envs
import lora
from envs.http.exchange import is_address
from envs.prompt_file import ENDINGS
from envs.qa import NEEDED
from envs.rows import check_rows_file
from lora.peft_files import MOST_RANK, is_adapter
from rl import curriculum, plan
from rl.config import model_checks, reward_checks
from rl.config.arguments import ArgumentError, build, word
from rl.config.fields import LEAST_TEMPERATURE, Config, Lora, Machine, Optim
from rl.config.refusals import hint
from rl.tasks import mixture, system_prompt_file, system_prompt_text

T = TypeVar("T")
LINEARS = {  # the words of lora.targets=, as an adapter's file says them: of most families, of Phi-3's joined layers
    "attention": ("k_proj,o_proj,q_proj,v_proj", "o_proj,qkv_proj"),
    "all-linear": (
        "down_proj,gate_proj,k_proj,o_proj,q_proj,up_proj,v_proj",
        "down_proj,gate_up_proj,o_proj,qkv_proj",
    ),
}


def without_auto(cfg: T) -> T:
    """Return a dataclass with its `auto` resolved: device to CUDA if there is one, dtype to bfloat16 there and to
    float32 on a CPU."""
    device = ("cuda" if torch.cuda.is_available() else "cpu") if cfg.device == "auto" else cfg.device
    dtypes = {"auto": "bfloat16" if device == "cuda" else "float32"}
    return replace(cfg, device=device, dtype=dtypes.get(cfg.dtype, cfg.dtype))


def check(cfg: Config) -> None:
    """Raise ArgumentError for values that neither training nor evaluation can use."""
    for key, most in (("seed", 2**31 - 1), ("threads", 1024), ("min_lr_ratio", 1)):
        if getattr(cfg, key) > most:
            raise ArgumentError(f"{key}={getattr(cfg, key)} must be at most {most}")
    if cfg.system_prompt:
        system_prompt_text(cfg.system_prompt)
        # not Path's exists(), which fails for a text that is too long for a name
        if not system_prompt_file(cfg.system_prompt) and os.path.exists(cfg.system_prompt):
            ends = " or ".join(ENDINGS)
            raise ArgumentError(f"system_prompt={cfg.system_prompt} is a path; a prompt's file must end in {ends}")
    if "qa" in mixture(cfg.env) and not cfg.environments["qa"].data:
        raise ArgumentError(NEEDED)
    if cfg.quick and cfg.model != "tiny":
        raise ArgumentError(
            f"quick=true is for the embedded model, model=tiny; model={cfg.model}: set epochs= yourself"
        )
    if cfg.reward.scale == 0:
        raise ArgumentError("reward.scale=0 leaves nothing to learn from")
    if cfg.reward.progress and (lacks := without_expert(cfg)):
        raise ArgumentError(f"reward.progress={cfg.reward.progress:g} asks an expert for its moves, and {lacks}")
    for env, key, _ in model_checks.asked_of_base(cfg) if cfg.reward.progress else ():
        raise ArgumentError(f"reward.progress plays an expert without a model, and {env}.{key}=model asks one")
    if 0 < cfg.temperature < LEAST_TEMPERATURE:
        raise ArgumentError(f"temperature={cfg.temperature} is too small to divide by; temperature=0 plays greedily")
    if cfg.max_thinking_tokens:
        if cfg.max_thinking_tokens >= cfg.max_new_tokens:
            most = f"max_new_tokens={cfg.max_new_tokens}, which bounds thoughts and answer together"
            raise ArgumentError(f"max_thinking_tokens={cfg.max_thinking_tokens} must be below {most}")
        if not cfg.thinking:
            raise ArgumentError(f"max_thinking_tokens={cfg.max_thinking_tokens} has no effect beside thinking=false")
    if cfg.lora.r > MOST_RANK:
        raise ArgumentError(f"lora.r={cfg.lora.r} must be at most {MOST_RANK}")
    if not 0 <= cfg.lora.dropout < 1:
        raise ArgumentError(f"lora.dropout={cfg.lora.dropout} must be in [0, 1)")
    if cfg.device == "cuda" and not cfg.plan and not torch.cuda.is_available():
        raise ArgumentError("device=cuda: this machine, or this torch, has no CUDA device; device=cpu works everywhere")
    if cfg.exact and cfg.device == "cuda" and cfg.dtype == "float32":
        raise ArgumentError("exact=true on a CUDA device takes dtype=bfloat16 or float16; float32 is too slow there")
    if cfg.shard != "ddp" and cfg.quant != "none":
        raise ArgumentError(f"shard={cfg.shard} takes dense weights: leave quant={cfg.quant} out, or take shard=ddp")
    if not cfg.out:
        raise ArgumentError("out= is given without a name")
    if {"{", "}"} & set(re.sub(r"\{(algo|env|seed|timestamp)\}", "", cfg.out)):
        raise ArgumentError(f"out={cfg.out}: only {{algo}}, {{env}}, {{seed}} and {{timestamp}} are filled in")


def check_schedule(cfg: Config) -> None:
    """Raise ArgumentError for schedule_epochs= that names no span of epochs, or without a schedule."""
    span = re.fullmatch(r"(\d{1,9})-(\d{1,9})", cfg.schedule_epochs)
    if not span or not int(span[1]) < int(span[2]):
        raise ArgumentError(f"schedule_epochs={cfg.schedule_epochs}: FROM-TO, such as 0-{cfg.epochs}")
    if cfg.schedule == "constant":
        raise ArgumentError(f"schedule_epochs={cfg.schedule_epochs} does nothing with schedule=constant")


def check_muon(cfg: Config) -> None:
    """Raise ArgumentError where optimizer=muon would meet a parameter that is no matrix, or a share of one."""
    if not hasattr(torch.optim, "Muon"):
        raise ArgumentError(f"optimizer=muon needs torch 2.9, and this is {torch.__version__}; take optimizer=adamw")
    if cfg.algorithm.critic or not cfg.lora.r:
        what = f"algo={cfg.algo} has a critic with vectors" if cfg.lora.r else "lora.r=0 trains the norms' vectors"
        raise ArgumentError(f"optimizer=muon makes steps of matrices orthogonal, and {what}: take optimizer=adamw")
    if cfg.shard != "ddp":
        raise ArgumentError(f"optimizer=muon needs whole matrices: take shard=ddp, not {cfg.shard}")


def check_training(cfg: Config) -> None:
    """Raise ArgumentError for values that do not go together in training."""
    algo = cfg.algorithm
    if cfg.temperature == 0:
        raise ArgumentError("temperature=0 samples nothing to learn from; use eval.py for greedy play")
    check_tracker(cfg.track.to)
    check_source(cfg)
    evaluates = cfg.eval_every and (cfg.eval_episodes or cfg.data)
    if cfg.patience and not evaluates:
        none = "eval_every=0 makes none" if not cfg.eval_every else "eval_episodes=0 makes none"
        raise ArgumentError(
            f"patience={cfg.patience} counts evaluations, and {none}; eval_every=1 evaluates each epoch"
        )
    if cfg.curriculum:
        curriculum.check(cfg)
    if cfg.best_by == "loss" and algo.source == "rollouts":
        raise ArgumentError(f"best_by=loss is for algo=sft: algo={cfg.algo} measures no held-out loss, only success")
    if cfg.sampler:
        check_sampler(cfg)
        if (
            (cfg.sampler_floor or cfg.sampler_sequence)
            and getattr(algo, "top_k", 0)
            and not reward_checks.reads_rewards(cfg)
        ):
            raise ArgumentError(
                f"sampler_floor and sampler_sequence mask advantages, which {cfg.algo}.top_k has none of"
            )
    elif cfg.sampler_floor or cfg.sampler_sequence:
        raise ArgumentError("sampler_floor and sampler_sequence bound the weights of sampler=: no effect alone")
    if cfg.ahead:
        check_ahead(cfg)
    if cfg.dtype == "float16":
        raise ArgumentError("dtype=float16 is for eval.py: its gradients would underflow; train in bfloat16 or float32")
    if cfg.history == "template":
        check_history(cfg)
    if cfg.optimizer == "muon":
        check_muon(cfg)
    if cfg.optimizer == "adamw8bit" and cfg.shard != "ddp":
        raise ArgumentError(f"optimizer=adamw8bit needs whole tensors: take shard=ddp, not {cfg.shard}")
    if cfg.schedule_epochs:
        check_schedule(cfg)
    if algo.critic and algo.critic_warmup >= cfg.epochs:
        raise ArgumentError(f"{cfg.algo}.critic_warmup={algo.critic_warmup} leaves the policy no epoch of {cfg.epochs}")
    if cfg.episodes % algo.group_size:
        raise ArgumentError(f"episodes={cfg.episodes} must be a multiple of {cfg.algo}.group_size={algo.group_size}")
    reward_checks.check_rewards(cfg)
    if algo.reference and algo.kl_in == "loss" and algo.kl_estimator == "k1":
        noise = f"{cfg.algo}.kl_estimator=k1 has no gradient but noise in the loss"
        raise ArgumentError(f"{noise}; take k2 or k3, or {cfg.algo}.kl_in=reward")
    if algo.reference and algo.reference_every and algo.kl_target is not None:
        said = f"{cfg.algo}.kl_target adapts kl_coef to a distance that reference_every sets to 0 again and again"
        raise ArgumentError(f"{said}; leave one of them out")
    if algo.reference and algo.reference_every and cfg.shard != "ddp":
        raise ArgumentError(f"{cfg.algo}.reference_every copies whole adapters: take shard=ddp, not {cfg.shard}")
    if hasattr(algo, "teacher"):
        check_teacher(cfg)
    reward_checks.check_judge(cfg)
    if cfg.lora.r == 0:
        model_checks.check_full_finetuning(cfg)
    if cfg.resume_from and not cfg.resume:  # a resumed run has a copy
        check_adapter(cfg.resume_from)
    model_checks.check(cfg, training=True)
    if cfg.plan:
        if cfg.shard != "ddp":
            raise ArgumentError(
                f"plan= counts a rank that holds the whole model, not shard={cfg.shard}; see docs/scale.md"
            )
        plan.print_and_exit(cfg)


def check_source(cfg: Config) -> None:
    """Raise ArgumentError for data= where nothing is imitated, rollouts= where nothing is played, a file that is
    missing, and for sft without an expert."""
    if cfg.rollouts and cfg.algorithm.source != "rollouts":
        raise ArgumentError(f"rollouts= has episodes that an agent played, and algo={cfg.algo} imitates an expert")
    if cfg.rollouts and not Path(cfg.rollouts).is_file():
        raise ArgumentError(f"rollouts={cfg.rollouts}: no such file; a run's is FOLDER/episodes.jsonl")
    if cfg.rollouts and not cfg.resume:
        reward_checks.check_saved_rewards(cfg)
    if cfg.data and cfg.algorithm.source == "rollouts":
        way = f"to be rewarded for right answers to its questions: env=qa qa.data={cfg.data}"
        raise ArgumentError(f"data= is a file to imitate: for algo=sft, not for algo={cfg.algo}; {way}")
    if cfg.data:
        try:
            check_rows_file(cfg.data)
        except ValueError as error:
            raise ArgumentError(str(error)) from None
    if cfg.algorithm.source != "rollouts" and not cfg.data and (lacks := without_expert(cfg)):
        raise ArgumentError(f"algo={cfg.algo} imitates an expert, and {lacks}; data=FILE takes rows")


def without_expert(cfg: Config) -> str:
    """Return the end of a message about an environment without an expert, "" if all of env= have one."""
    for name in mixture(cfg.env):
        if name == "http":
            return f"env=http has none; env={cfg.environments[name].kind} has one"
        if not envs.has_expert(name):
            return f"env={name} has none (its Env has no oracle)"
    return ""


def check_history(cfg: Config) -> None:
    """Raise ArgumentError for an algorithm that takes what lies between two replies for the observation alone."""
    algo, why = cfg.algorithm, ""
    if algo.source == "demonstrations" and not cfg.data:
        rows = f"python -m envs {next(iter(mixture(cfg.env)))} demos=1000 out=rows.jsonl writes an expert's"
        raise ArgumentError(f"history=template with algo={cfg.algo} learns rows, data=FILE; {rows}")
    if getattr(algo, "all_tokens", False):
        why = f"{cfg.algo}.all_tokens learns what lies between replies, and the template writes the reply again there"
    elif hasattr(algo, "anchor"):
        why = f"algo={cfg.algo} compares observations, and the template writes the reply again before each"
    elif getattr(algo, "echo_coef", 0):
        why = f"{cfg.algo}.echo_coef learns observations, and the template writes the reply again before each"
    elif getattr(algo, "privileged", False):
        why = f"{cfg.algo}.privileged puts a solution into the prompt, which the samples have in common"
    elif cfg.reward.judge:
        why = "reward.judge reads what lies between replies, and the template writes the reply again there"
    if why:
        raise ArgumentError(f"history=template trains a sample for each turn, but {why}; take history=append")


def check_teacher(cfg: Config) -> None:
    """Raise ArgumentError for a teacher that a run cannot hold, or whose solutions it cannot know."""
    algo, key = cfg.algorithm, f"{cfg.algo}.teacher={cfg.algorithm.teacher}"
    own = algo.teacher not in ("", "policy") and not is_adapter(Path(algo.teacher))
    same = own and cfg.lora.r and model_checks.same_model(algo.teacher, cfg.model)
    as_start = algo.teacher == "policy" or ((same or not algo.teacher) and not cfg.resume_from)
    if as_start and not algo.privileged:  # the first policy is the teacher, so its grades are 0
        none = f"{cfg.algo} needs a teacher that knows more than the {'policy' if algo.teacher == 'policy' else 'base'}"
        raise ArgumentError(f"{none} itself: {cfg.algo}.teacher=FOLDER, or {cfg.algo}.privileged=true")
    if same:
        raise ArgumentError(f"{key} is the run's own base: leave it out, and the base teaches without a second copy")
    if own and algo.teacher not in ("tiny", "smol") and not Path(algo.teacher).exists():
        raise ArgumentError(f"{key}: no such folder or file{hint(algo.teacher, ['policy', 'tiny', 'smol'])}")
    if cfg.shard != "ddp":
        raise ArgumentError(f"{key} is held whole by each rank: take shard=ddp, not {cfg.shard}")
    if cfg.plan and own:
        raise ArgumentError(f"plan= does not count the second model that {key} needs")
    if not cfg.lora.r and not own and algo.teacher != "policy":
        raise ArgumentError(f"{key} needs the frozen base, which lora.r=0 trains away; another checkpoint can teach")
    if not algo.privileged:
        return
    if lacks := without_expert(cfg):
        raise ArgumentError(f"{cfg.algo}.privileged asks an expert for its replies, and {lacks}")
    for env, name, _ in model_checks.asked_of_base(cfg):
        raise ArgumentError(f"{cfg.algo}.privileged plays an expert without a model, and {env}.{name}=model asks one")
    if cfg.curriculum:
        raise ArgumentError(f"{cfg.algo}.privileged sets each task up again, which curriculum= changes meanwhile")


def check_effects(given: dict[str, str], cfg: Config) -> None:
    """Raise ArgumentError for a word about a part of the algorithm that another setting leaves out. A recipe may set
    such a key: as a guide has it."""
    algo = cfg.algorithm
    if "lora.dropout" in given and cfg.lora.dropout and algo.source == "rollouts":
        raise ArgumentError(f"lora.dropout= has no effect with algo={cfg.algo}: without it sampling equals training")
    if "sampler_clip" in given and not cfg.sampler:
        raise ArgumentError("sampler_clip= bounds the weights of sampler=: no effect alone")
    for key in ("eval_episodes", "eval_split"):
        if given.get(key, "0") != "0" and cfg.data:
            plays = f"python eval.py adapter=RUN env={cfg.env} plays tasks"
            raise ArgumentError(f"{key}= has no effect with data=, whose rows held out are evaluated; {plays}")
    parts = {
        "constant_length": (getattr(algo, "aggregation", "") == "constant", "aggregation=constant"),
        "overlong_cache": (getattr(algo, "overlong_limit", 0), "overlong_limit"),
        "kl_estimator": (algo.reference, "kl_coef above 0"),
        "kl_horizon": (getattr(algo, "kl_target", None), "kl_target"),
        "decay": (getattr(algo, "baseline", "") == "moving", "baseline=moving"),
        "graph": (getattr(algo, "step_coef", 0), "step_coef above 0"),
        "anchor": (getattr(algo, "step_coef", 0), "step_coef above 0"),
    }
    for key, (used, needed) in parts.items():
        if f"{cfg.algo}.{key}" in given and not used:
            raise ArgumentError(f"{cfg.algo}.{key}= has no effect without {cfg.algo}.{needed}")


def check_sampler(cfg: Config) -> None:
    """Raise ArgumentError for sampler= that is no address, or for a run without an adapter to send or episodes."""
    if not is_address(cfg.sampler):
        raise ArgumentError(f"sampler={cfg.sampler} is not a URL up to /v1, such as http://localhost:8000/v1")
    for key in ("sampler_floor", "sampler_sequence"):
        if getattr(cfg, key) >= min(1, cfg.sampler_clip):
            raise ArgumentError(f"{key}={getattr(cfg, key):g} must be below 1 and sampler_clip, or nothing is learned")
    if not cfg.lora.r:
        raise ArgumentError("sampler= needs an adapter to send to the server, and lora.r=0 has none")
    if cfg.algorithm.source != "rollouts":
        raise ArgumentError(f"sampler= plays episodes, and algo={cfg.algo} learns from demonstrations")


def check_ahead(cfg: Config) -> None:
    """Raise ArgumentError for ahead= where nothing can be sampled beside the update."""
    if not cfg.sampler:
        raise ArgumentError(
            "ahead=true samples on a server while this program learns: give sampler=http://host:port/v1"
        )
    if cfg.curriculum:
        raise ArgumentError("ahead=true samples an epoch before curriculum= knows the success of the one before")
    for env in mixture(cfg.env).keys() & envs.WITHOUT_MODEL.keys():
        for option, value in envs.WITHOUT_MODEL[env].items():
            if getattr(cfg.environments[env], option) != value:
                raise ArgumentError(f"ahead=true: {env} would ask the model that is learning; {env}.{option}={value}")


def check_adapter(folder: str) -> None:
    """Raise ArgumentError for a folder without a readable adapter_config.json."""
    try:
        lora.read_adapter_config(Path(folder))
    except (OSError, ValueError) as error:
        raise ArgumentError(str(error)) from None


def check_as_adapter(folder: str, given: dict[str, str]) -> None:
    """Raise ArgumentError for a word lora.KEY= that is not as the adapter in this folder has it. lora.r=0 is refused
    elsewhere."""
    words = {key: value for key, value in given.items() if key.startswith("lora.") and (key, value) != ("lora.r", "0")}
    if not words:
        return
    check_adapter(folder)
    config = lora.read_adapter_config(Path(folder))
    targets = config.get("target_modules") or config.get("target_parameters") or []
    targets = targets if isinstance(targets, str) else ",".join(sorted(targets))
    own = {"r": config["r"], "alpha": config["lora_alpha"], "dropout": config.get("lora_dropout", 0.0)}
    own |= {"rslora": config.get("use_rslora", False), "targets": targets}  # PEFT's defaults
    asked = vars(build(Lora, words, "lora"))
    alike = LINEARS.get(asked["targets"], (",".join(sorted(asked["targets"].split(","))),))
    asked["targets"] = targets if targets in alike else asked["targets"]
    for key in (key.removeprefix("lora.") for key in words):
        if key in own and asked[key] != own[key]:
            said = f"lora.{key}={words[f'lora.{key}']} has no effect beside resume_from="
            raise ArgumentError(f"{said}, whose adapter has lora.{key}={own[key]}")


def check_as_saved(given: dict[str, str], saved: dict[str, Any]) -> None:
    """Raise ArgumentError for a word that would change the adapter, its base's weights, or the optimizer, whose moments
    are saved, of a resumed run. saved: the run's settings."""
    anew = {"optimizer": Optim, "quant": Machine, "lora.b_rate": Lora}  # a run from this one's adapter may have another
    kinds = anew | {f"lora.{key}": Lora for key in ("r", "alpha", "targets", "rslora")}
    for key in (key for key in kinds if key in given):
        group, _, name = key.rpartition(".")
        asked, before = (
            getattr(build(kinds[key], {key: of[key]} if key in of else {}, group), name) for of in (given, saved)
        )
        if asked != before:
            way = "resume_from= begins anew with another one" if key in anew else "another adapter is another run"
            raise ArgumentError(f"{key}={given[key]}: resume= goes on with a run of {key}={word(before)}; {way}")


def check_tracker(service: str) -> None:
    """Raise ArgumentError, one line, if the package that track= names is not installed."""
    if service != "none" and importlib.util.find_spec(service) is None:
        raise ArgumentError(f"track={service}: the package is not installed; pip install {service}")
