"""Read PEFT's adapter_config.json, with a verdict on every option.

An option is read, or cannot change what a trained adapter computes, or must be unset. Any other option is refused by
name, also options of later versions of PEFT, so that no adapter is silently computed differently.
"""

import json
import re
from difflib import get_close_matches
from pathlib import Path

from lora.expressions import Names
from lora.files import HUB_ID, MOST_RANK
from lora.patterns import matching

MOST_BYTES = 2**20  # of the file
READ = {
    *("peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "lora_dropout", "use_rslora"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
}
# Bookkeeping, and options with an effect only in training or through an option that is refused.
HARMLESS = {
    *("task_type", "auto_mapping", "peft_version", "inference_mode", "runtime_config", "ensure_weight_tying"),
    *("megatron_config", "megatron_core", "qalora_group_size"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),
}
# Values of other options that mean plain LoRA. Other initialisations of the factors also change the base weights.
PLAIN = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "eva", "orthogonal", "mica")}


def read_adapter_config(folder: Path) -> dict:
    """Return the checked adapter_config.json; if it pins a revision, base_model_name_or_path is "id@revision".

    Raise FileNotFoundError or ValueError with one line.
    """
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found, so this is not an adapter folder{_meant(folder)}")
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ValueError(f"{path}: larger than {MOST_BYTES:,} bytes")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: not a JSON object")
    try:
        _check(config)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if base and revision and re.fullmatch(HUB_ID, base) and not Path(base).is_dir():
        config["base_model_name_or_path"] = f"{base}@{revision}"
    return config


def _meant(folder: Path) -> str:
    """Return the end of a message about a folder without an adapter: what is there, or which one was probably meant."""
    if folder.is_dir():
        epochs = sorted(folder.glob("epoch_*/adapter_config.json"), key=lambda found: found.stat().st_mtime)
        if epochs:
            return f"; did you mean {epochs[-1].parent}?"
        saved_with = folder.parent / folder.name.replace("checkpoint-", "epoch_")
        if saved_with != folder and saved_with.is_dir():
            return f"; did you mean {saved_with}?"
        runs = sorted({str(found.parents[1]) for found in folder.glob("*/epoch_*/adapter_config.json")})
        if runs:
            return f"; runs with adapters are there: {', '.join(runs[:5])}{', ...' * (len(runs) > 5)}"
        return f"; a whole model is there: model={folder}" if (folder / "model.safetensors").is_file() else ""
    beside = sorted(path.name for path in folder.parent.iterdir()) if folder.parent.is_dir() else []
    near = get_close_matches(folder.name, beside, 1)
    return "; no such folder" + (f"; did you mean {folder.parent / near[0]}?" if near else "")


def targeted(paths: list[str], config: dict) -> set[str]:
    """Return the layers among `paths` that the config names. Raise ValueError for a bad regular expression."""
    targets, excluded, indices = (
        config.get(key) for key in ("target_modules", "exclude_modules", "layers_to_transform")
    )
    if targets is None:
        targets = ["q_proj", "v_proj"]  # PEFT's default for these families
    found = set(matching(paths, targets)) - set(matching(paths, excluded) if excluded else ())
    if indices in (None, []):
        return found
    numbers, wanted, full = _numbers(sorted(found), config), set(_listed(indices)), set(targets)
    return {path for path in found if path in full or numbers.get(path) in wanted}  # a full name is always a target


def _numbers(paths: list[str], config: dict) -> dict[str, int]:
    """Return each layer's number of its block, the first after a part of its name that layers_pattern matches."""
    names, found, positions = Names(paths), {}, {}
    for path, start in zip(names.names, names.first_positions(), strict=True):
        for i, number in enumerate(re.finditer(r"\.(\d+)(?=\.)", path, re.ASCII)):
            positions.setdefault(i, {})[path] = start + number.start(), int(number[1][:9])
    for stack in _listed(config.get("layers_pattern")) or [None]:
        for blocks in positions.values():
            after = sum(1 << place for place, _ in blocks.values())
            begin = names.parts & ~names.starts if stack is None else names.parts
            for path in names.within(names.begins(r"[^.]*" if stack is None else stack, after) & begin):
                found.setdefault(path, blocks[path][1])
    return found


def _listed(value) -> list:
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


def _check(config: dict) -> None:
    """Raise ValueError for an unsupported option or an impossible value."""
    if config.get("peft_type") != "LORA":
        raise ValueError(f"peft_type is {config.get('peft_type')!r}, not 'LORA'")
    for key, value in config.items():
        if value and key not in READ | HARMLESS and value not in PLAIN.get(key, ()):
            raise ValueError(f"{key}={value!r} is not supported")
    for key, pattern, kinds, most, wanted in (
        ("r", "rank_pattern", int, MOST_RANK, f"whole number, at most {MOST_RANK:,}"),
        ("lora_alpha", "alpha_pattern", int | float, 1e30, "number"),
    ):
        table = config.get(pattern) or {}
        if not isinstance(table, dict):
            raise ValueError(f"{pattern} must be a table of layers, not {table!r}")
        for name, value in {key: config.get(key), **{f"{pattern} of {layer}": n for layer, n in table.items()}}.items():
            if isinstance(value, bool) or not isinstance(value, kinds) or not 1e-30 < value <= most:
                raise ValueError(f"{name} must be a positive {wanted}, not {value!r}")
    dropout = config.get("lora_dropout") or 0.0
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise ValueError(f"lora_dropout must be in [0, 1), not {dropout!r}")
    if config.get("use_rslora") not in (None, False, True):
        raise ValueError(f"use_rslora must be true or false, not {config['use_rslora']!r}")
    for key in ("base_model_name_or_path", "revision"):
        name = config.get(key) or ""
        if not isinstance(name, str) or not name.isprintable() or len(name) > 1000:
            raise ValueError(f"{key} must be a name, not {name!r}")
    for key in ("target_modules", "exclude_modules", "layers_pattern"):
        if not all(isinstance(name, str) for name in _listed(config.get(key))):
            raise ValueError(f"{key} must be names, not {config[key]!r}")
    indices = _listed(config.get("layers_to_transform"))
    if not all(isinstance(index, int) for index in indices):
        raise ValueError(f"layers_to_transform must be numbers of layers, not {config['layers_to_transform']!r}")
    if indices and isinstance(config.get("target_modules"), str):
        raise ValueError("layers_to_transform goes with a list of target_modules, not with a regular expression")
