"""adapter_config.json: what PEFT says of an adapter, with every option accounted for.

An option is read, or it cannot change what a trained adapter computes, or it is unset. Everything else is refused by
name, options of a later PEFT included: one line to delete is better than a model that is silently another.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lora.layer import Adapter, matches, regex

READ = {
    *("peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "lora_dropout", "use_rslora"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
}
# Bookkeeping, and what has an effect only in training or through an option that is refused.
HARMLESS = {
    *("task_type", "auto_mapping", "peft_version", "inference_mode", "runtime_config", "ensure_weight_tying"),
    *("megatron_config", "megatron_core", "qalora_group_size"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),
}
# Values of other options that mean plain LoRA. Other ways to initialise the factors change the base weights as well.
PLAIN = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "eva", "orthogonal", "mica")}
HUB_ID = r"[\w.-]+/[\w.-]+"


def read_adapter_config(folder: Path) -> dict:
    """The checked adapter_config.json; where it pins a revision, its base_model_name_or_path is "id@revision".

    Raises FileNotFoundError or ValueError, one line each.
    """
    path = Path(folder) / "adapter_config.json"
    if not path.is_file():
        epochs = sorted(path.parent.glob("epoch_*/adapter_config.json"), key=lambda found: found.stat().st_mtime)
        hint = f"; did you mean {epochs[-1].parent}?" if epochs else "" if path.parent.is_dir() else "; no such folder"
        raise FileNotFoundError(f"{path}: no adapter_config.json there, so this is not an adapter folder{hint}")
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: not a JSON object")
    try:
        _check(config)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if base and revision and re.fullmatch(HUB_ID, base) and not Path(base).is_dir():
        config["base_model_name_or_path"] = f"{base}@{revision}"
    return config


def adapter_config(
    adapters: dict[str, Adapter], target_modules: Iterable[str], dropout: float, base_model: str | None
) -> dict:
    """What to write for an adapter with these layers. base_model may be "id@revision".

    Raises ValueError if some layers scale by rsLoRA's rule and others do not, which one file cannot say.
    """
    rules = {adapter.rslora for adapter in adapters.values()}
    if len(rules) > 1:
        raise ValueError(
            "the adapter has layers with rsLoRA's scale and layers without, which PEFT's config cannot say"
        )
    pinned = re.fullmatch(f"({HUB_ID})@(.+)", base_model or "")
    base, revision = pinned.groups() if pinned else (base_model, None)
    r, rank_pattern = _common({path: adapter.A.shape[0] for path, adapter in adapters.items()})
    alpha, alpha_pattern = _common({path: _as_int(adapter.alpha) for path, adapter in adapters.items()})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": sorted(target_modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": rules.pop(),
        "inference_mode": True,
    }
    rare = {"revision": revision, "rank_pattern": rank_pattern, "alpha_pattern": alpha_pattern}
    return config | {key: value for key, value in rare.items() if value}  # an old PEFT fails on keys that it lacks


def targeted(path: str, config: dict) -> bool:
    """Whether the config means the layer of that name."""
    targets, excluded, indices = (
        config.get(key) for key in ("target_modules", "exclude_modules", "layers_to_transform")
    )
    if targets is None:
        targets = ["q_proj", "v_proj"]  # PEFT's choice for these families
    if (excluded and matches(path, excluded)) or not matches(path, targets):
        return False
    if path in targets or indices in (None, []):  # a whole name holds whatever the layer's number
        return True
    stacks = [rf"(?:^|.*?\.){stack}" for stack in _listed(config.get("layers_pattern"))] or [r".*?\.[^.]*"]
    found = next(filter(None, (regex(rf"{stack}\.(?P<number>\d+)\.").match(path) for stack in stacks)), None)
    return found is not None and int(found["number"]) in _listed(indices)


def _common(values: dict[str, float]) -> tuple[float, dict[str, float]]:
    """The most common value, and those of the layers that differ from it, each under its whole name."""
    common = Counter(values.values()).most_common(1)[0][0]
    return common, {f"^{re.escape(path)}": value for path, value in values.items() if value != common}


def _listed(value) -> list:
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


def _as_int(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


def _check(config: dict) -> None:
    """Raises ValueError for an option that is not supported, or a value that cannot be."""
    if config.get("peft_type") != "LORA":
        raise ValueError(f"peft_type is {config.get('peft_type')!r}, not 'LORA'")
    for key, value in config.items():
        if value and key not in READ | HARMLESS and value not in PLAIN.get(key, ()):
            raise ValueError(f"{key}={value!r} is not supported")
    for key, pattern, kinds, wanted in (
        ("r", "rank_pattern", int, "whole number"),
        ("lora_alpha", "alpha_pattern", int | float, "number"),
    ):
        table = config.get(pattern) or {}
        if not isinstance(table, dict):
            raise ValueError(f"{pattern} must be a table of layers, not {table!r}")
        for name, value in {key: config.get(key), **{f"{pattern} of {layer}": n for layer, n in table.items()}}.items():
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1e308:
                raise ValueError(f"{name} must be a positive {wanted}, not {value!r}")
    dropout = config.get("lora_dropout") or 0.0
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"lora_dropout must be in [0, 1), not {dropout!r}")
    if config.get("use_rslora") not in (None, False, True):
        raise ValueError(f"use_rslora must be true or false, not {config['use_rslora']!r}")
    for key in ("base_model_name_or_path", "revision"):
        if not isinstance(config.get(key), str | None):
            raise ValueError(f"{key} must be a name, not {config[key]!r}")
    for key in ("target_modules", "exclude_modules", "layers_pattern"):
        if not all(isinstance(name, str) for name in _listed(config.get(key))):
            raise ValueError(f"{key} must be names, not {config[key]!r}")
    indices = _listed(config.get("layers_to_transform"))
    if not all(isinstance(index, int) for index in indices):
        raise ValueError(f"layers_to_transform must be numbers of layers, not {config['layers_to_transform']!r}")
    if indices and isinstance(config.get("target_modules"), str):
        raise ValueError("layers_to_transform goes with a list of target_modules, not with a regular expression")
