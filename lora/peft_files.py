"""Save and load adapters as files that PEFT and vLLM read: adapter_config.json and adapter_model.safetensors.

A tensor's key is `base_model.model.{module path}.lora_A.weight` ([r, in]) or `.lora_B.weight` ([out, r]).

Reading is strict. A wrong prefix would silently leave the base model as it is, so the file must hold exactly the layers
that the config names, with their shapes. An option of the config is read, or cannot change what a trained adapter
computes, or must be unset; any other option, also one of a later version of PEFT, is refused by name.
"""

import json
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import nn

from lora import fused_experts
from lora.fused_experts import PREFIX
from lora.layer import Adapter, LoRALinear, inject, lora_layers
from lora.refusal import Refusal
from lora.targets import Patterns, as_int, common_size, matching, part_starts, sizes_by_pattern

MOST_RANK = 4096  # of an adapter
HUB_ID = r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+"
MOST_BYTES = 2**20  # of adapter_config.json
READ = {  # options that are read
    *("peft_type", "base_model_name_or_path", "revision", "r", "lora_alpha", "lora_dropout", "use_rslora"),
    *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern"),
    "target_parameters",
}
# Bookkeeping, and options with an effect only in training or through an option that is refused.
HARMLESS = {
    *("task_type", "auto_mapping", "peft_version", "inference_mode", "runtime_config", "ensure_weight_tying"),
    *("megatron_config", "megatron_core", "qalora_group_size"),
    *("loftq_config", "eva_config", "corda_config", "lora_ga_config"),
}
# Values of other options that mean plain LoRA. Other initialisations of the factors also change the base weights.
PLAIN = {"bias": ("none",), "init_lora_weights": (True, "gaussian", "eva", "orthogonal", "mica")}
# options that are not supported, with which PEFT itself folds an adapter into its base
MERGED_BY_PEFT = ("use_dora", "modules_to_save", "trainable_token_indices", "bias", "lora_bias", "fan_in_fan_out")
MERGED_BY_PEFT += ("init_lora_weights",)


def save_adapter(model: nn.Module, folder: Path | str, base_model: str | None = None, name: str = "default") -> None:
    """Write the adapter `name` into `folder`. Loaded again, it computes the same, bit for bit.

    base_model: the path or hub id from which PEFT should load the base, "id@revision" for a pinned one. Layers with an
        r or alpha of their own are written with PEFT's patterns, which vLLM ignores.
    Raise ValueError if there is no such adapter, or only some of its layers scale by rsLoRA's rule.
    """
    layers = {path: layer for path, layer in lora_layers(model) if name in layer.adapters}
    if not layers:
        raise Refusal(f"the model has no adapter named {name!r} to save")
    adapters: dict[str, Adapter] = {path: layer.adapters[name] for path, layer in layers.items()}
    (r, alpha, rslora), *other_sizes = {(len(a.A), a.alpha, a.rslora) for a in adapters.values()}
    patterns: dict[str, dict] = {}
    if other_sizes:
        r, alpha, patterns = common_size(adapters)
    leaves = {path.rsplit(".", 1)[-1] for path in layers}
    named = {path for path, _ in model.named_modules() if path.rsplit(".", 1)[-1] in leaves}
    targets = leaves if named == set(layers) else set(layers)  # full names if, say, only some q_proj have an adapter
    pinned = re.fullmatch(f"({HUB_ID})@(.+)", base_model or "")
    base, revision = pinned.groups() if pinned else (base_model, None)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": r,
        "lora_alpha": as_int(alpha),
        "lora_dropout": next(iter(layers.values())).dropout,
        "target_modules": sorted(targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": rslora,
        "inference_mode": True,
    }
    config |= ({"revision": revision} if revision else {}) | patterns  # old versions of PEFT fail on unknown keys
    factors = {f"{PREFIX}{path}.lora_{f}.weight": getattr(adapters[path], f) for path in layers for f in "AB"}
    tensors = {key: factor.detach().cpu().contiguous() for key, factor in factors.items()}
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # save_file would write a file that only its owner can read
    (folder / "adapter_model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_adapter(model: nn.Module, folder: Path | str, name: str = "default", trainable: bool = True) -> list[str]:
    """Inject the adapter in `folder`, fill it and activate it. Return its layers' names.

    Over a base on the meta device, whose weights are read later, the factors are on the CPU.
    Raise FileNotFoundError or ValueError, one line each, for a missing or broken file, an unsupported option, a layer
    that the model or the file lacks or the config does not name, a wrong shape, and a stray tensor.
    """
    folder = Path(folder)
    config = read_adapter_config(folder)
    ranks, alphas = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    with _naming(folder):
        fused = _fused_linears(config, model)
        named = _named_linears(config, model) | fused
        sizes = sizes_by_pattern(sorted(named), config["r"], config["lora_alpha"], ranks, alphas)
    layers = [(_base(model, path), r) for path, (r, _) in sizes.items()]
    tensors = _read_tensors(folder, sum(r * (base.in_features + base.out_features) for base, r in layers))
    with _naming(folder):
        if fused:
            bases = {path: _base(model, path) for path in sorted(fused)}
            tensors = fused_experts.split(tensors, bases, config["r"])
        paths = _stored_linears(tensors, model)
        if named - paths:
            raise Refusal(f"target_modules names {min(named - paths)}, which the file lacks")
        if paths - named:
            raise Refusal(f"the file has the layer {min(paths - named)}, which target_modules does not name")
        for path, (r, _) in sizes.items():
            _check_shapes(tensors, path, _base(model, path), r)
        _check_numbers(tensors)  # last: until here a file may claim any number of them
    names = inject(
        model,
        r=config["r"],
        alpha=config["lora_alpha"],
        dropout=config.get("lora_dropout") or 0.0,
        targets=sorted(paths),
        rslora=bool(config.get("use_rslora")),
        name=name,
        rank_pattern=ranks,
        alpha_pattern=alphas,
    )
    injected = dict(lora_layers(model))
    for path in names:
        adapter: Adapter = injected[path].adapters[name]
        if adapter.A.is_meta:
            adapter.to_empty(device="cpu")
        with torch.no_grad():
            adapter.A.copy_(tensors[f"{PREFIX}{path}.lora_A.weight"])
            adapter.B.copy_(tensors[f"{PREFIX}{path}.lora_B.weight"])
        adapter.requires_grad_(trainable)
    return names


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has the settings of an adapter."""
    return (folder / "adapter_config.json").is_file()


def read_adapter_config(folder: Path | str) -> dict:
    """Return the checked adapter_config.json; if it pins a revision, base_model_name_or_path is "id@revision".

    Raise FileNotFoundError or ValueError with one line.
    """
    folder = Path(folder)
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found, so this is not an adapter folder{_meant(folder)}")
    with open(path, "rb") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise Refusal(f"{path}: larger than {MOST_BYTES:,} bytes")
    try:
        config = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path}: not valid JSON ({error})") from None
    if not isinstance(config, dict):
        raise Refusal(f"{path}: not a JSON object")
    try:
        _check(config)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"{path}: {error}") from None
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    if base and revision and re.fullmatch(HUB_ID, base) and not Path(base).is_dir():
        config["base_model_name_or_path"] = f"{base}@{revision}"
    return config


def _unique(pairs: list[tuple[str, Any]]) -> dict:
    """Return an object of JSON. Raise ValueError for a repeated key."""
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise Refusal(f"the key {twice[0]!r} twice")
    return dict(pairs)


def _check(config: dict) -> None:
    """Raise ValueError for an unsupported option or an impossible value."""
    if config.get("peft_type") != "LORA":
        raise Refusal(f"peft_type is {config.get('peft_type')!r}, not 'LORA'")
    for key, value in config.items():
        if value and key not in READ | HARMLESS and value not in PLAIN.get(key, ()):
            way = ": merge it with PEFT into its base and give model=" if key in MERGED_BY_PEFT else ""
            raise Refusal(f"{key}={value!r} is not supported{way}")
    for key, pattern, kinds, most, wanted in (
        ("r", "rank_pattern", int, MOST_RANK, f"whole number, at most {MOST_RANK:,}"),
        ("lora_alpha", "alpha_pattern", int | float, 1e30, "number"),
    ):
        table = config.get(pattern) or {}
        if not isinstance(table, dict):
            raise Refusal(f"{pattern} must be a table of layers, not {table!r}")
        for name, value in {key: config.get(key), **{f"{pattern} of {layer}": n for layer, n in table.items()}}.items():
            if isinstance(value, bool) or not isinstance(value, kinds) or not 1e-30 < value <= most:
                raise Refusal(f"{name} must be a positive {wanted}, not {value!r}")
    dropout = config.get("lora_dropout") or 0.0
    if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise Refusal(f"lora_dropout must be in [0, 1), not {dropout!r}")
    if config.get("use_rslora") not in (None, False, True):
        raise Refusal(f"use_rslora must be true or false, not {config['use_rslora']!r}")
    for key in ("base_model_name_or_path", "revision"):
        name = config.get(key) or ""
        if not isinstance(name, str) or not name.isprintable() or len(name) > 1000:
            raise Refusal(f"{key} must be a name, not {name!r}")
    for key in ("target_modules", "target_parameters", "exclude_modules", "layers_pattern"):
        if not all(isinstance(name, str) for name in _listed(config.get(key))):
            raise Refusal(f"{key} must be names, not {config[key]!r}")
    indices = _listed(config.get("layers_to_transform"))
    if not all(isinstance(index, int) for index in indices):
        raise Refusal(f"layers_to_transform must be numbers of layers, not {config['layers_to_transform']!r}")
    for key in ("rank_pattern", "alpha_pattern", "lora_dropout"):  # a rank of its own would need a key for each expert
        if config.get("target_parameters") and config.get(key):
            raise Refusal(f"{key}={config[key]!r} is not supported beside target_parameters")
    if indices and isinstance(config.get("target_modules"), str):
        raise Refusal("layers_to_transform goes with a list of target_modules, not with a regular expression")


def _meant(folder: Path) -> str:
    """Return the end of a message about a folder without an adapter: what is there, or which one was probably meant."""
    if folder.is_dir():
        epochs = sorted(folder.glob("epoch_*/adapter_config.json"), key=lambda path: path.stat().st_mtime)
        if epochs:
            return f"; did you mean {epochs[-1].parent}?"
        saved_with = folder.parent / folder.name.replace("checkpoint-", "epoch_")
        if saved_with != folder and saved_with.is_dir():
            return f"; did you mean {saved_with}?"
        runs = sorted({str(path.parents[1]) for path in folder.glob("*/epoch_*/adapter_config.json")})
        if runs:
            return f"; runs with adapters are there: {', '.join(runs[:5])}{', ...' * (len(runs) > 5)}"
        return f"; a whole model is there: model={folder}" if (folder / "model.safetensors").is_file() else ""
    if folder.is_file():
        return f"; this is a file: give its folder, {folder.parent}"
    beside = sorted(path.name for path in folder.parent.iterdir()) if folder.parent.is_dir() else []
    near = get_close_matches(folder.name, beside, 1)
    return "; no such folder" + (f"; did you mean {folder.parent / near[0]}?" if near else "")


def targeted(paths: list[str], config: dict) -> set[str]:
    """Return the layers among `paths` that the config names. Raise ValueError for a bad regular expression."""
    targets, excluded, indices = (
        config.get(key) for key in ("target_modules", "exclude_modules", "layers_to_transform")
    )
    if targets is None:  # PEFT's default for most of these families; it has none for the others
        targets = [] if config.get("target_parameters") else ["q_proj", "v_proj"]
    selected = set(matching(paths, targets)) - set(matching(paths, excluded) if excluded else ())
    if indices in (None, []):
        return selected
    numbers, wanted, full = _numbers(sorted(selected), config), set(_listed(indices)), set(targets)
    return {path for path in selected if path in full or numbers.get(path) in wanted}  # a full name is always a target


def _numbers(paths: list[str], config: dict) -> dict[str, int]:
    """Return the block number of each layer: the first number after a part of its name that layers_pattern matches."""
    numbers: dict[str, int] = {}
    patterns = Patterns()
    for stack in _listed(config.get("layers_pattern")) or [None]:
        for path in paths:
            starts = part_starts(path) - {0} if stack is None else part_starts(path)
            ends = patterns.positions_after(r"[^.]*" if stack is None else stack, path, starts)
            for number in re.finditer(r"\.(\d+)(?=\.)", path, re.ASCII):
                if number.start() in ends:
                    numbers.setdefault(path, int(number[1][:9]))
                    break
    return numbers


def _listed(value) -> list:
    """Return a setting that is a list or a single value as a list, empty for none."""
    return value if isinstance(value, list) else [] if value in (None, "") else [value]


@contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Context that puts the folder's name before the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise Refusal(f"{folder}: {error}") from None


def _named_linears(config: dict, model: nn.Module) -> set[str]:
    """Return the model's layers that the config names. Raise ValueError for one that cannot have an adapter."""
    inside, modules = tuple(f"{path}." for path, _ in lora_layers(model)), dict(model.named_modules())
    linears = {path for path, module in modules.items() if isinstance(module, nn.Linear | LoRALinear)}
    candidates = linears if config.get("target_modules") == "all-linear" else modules
    # Identity is in the place of a norm that the family does not have
    outside = [path for path in candidates if not (path.startswith(inside) or isinstance(modules[path], nn.Identity))]
    named = targeted(outside, config)
    if others := sorted(named - linears | named & {"lm_head"}):
        where = others[0] or "the whole model"
        raise Refusal(f"an adapter on {where} is not supported, only on inner linear layers")
    return named


def _fused_linears(config: dict, model: nn.Module) -> set[str]:
    """Return the layers of the model's experts whose fused tensors the config names."""
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear | LoRALinear)]
    return fused_experts.named_layers(_listed(config.get("target_parameters")), linears)


def _stored_linears(tensors: dict[str, torch.Tensor], model: nn.Module) -> set[str]:
    """Return the layers whose factors are in the file. Raise ValueError for other tensors and other models' layers."""
    _check_names(tensors)
    paths = {key.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for key in tensors}
    modules = dict(model.named_modules())
    for path in sorted(paths):
        if path.removesuffix(".base_layer").endswith(".experts"):
            raise Refusal(
                f"the file has factors of {path}, of which target_parameters names no tensor, or only one of two"
            )
        if not isinstance(modules.get(path), nn.Linear | LoRALinear):
            raise Refusal(f"the adapter has a linear layer {path} that this model lacks")
    return paths


def _check_names(names: Iterable[str]) -> None:
    """Raise ValueError for a tensor that is not named as a LoRA factor."""
    for name in names:
        if not name.startswith(PREFIX) or not name.endswith((".lora_A.weight", ".lora_B.weight")):
            raise Refusal(f"tensor {name} is not a LoRA factor named {PREFIX}*.lora_A|B.weight")


def _base(model: nn.Module, path: str) -> nn.Linear:
    """Return the linear layer of that name, without the adapters that it has."""
    layer: Any = model.get_submodule(path)
    return layer.base_layer if isinstance(layer, LoRALinear) else layer


def _check_shapes(tensors: dict[str, torch.Tensor], path: str, base: nn.Linear, r: int) -> None:
    """Raise ValueError if a factor of the layer is missing or its shape does not fit the layer and the rank."""
    for factor, shape in (("A", (r, base.in_features)), ("B", (base.out_features, r))):
        tensor = tensors.get(f"{PREFIX}{path}.lora_{factor}.weight")
        if tensor is None:
            raise Refusal(f"{path} has no lora_{factor}")
        if tuple(tensor.shape) != shape:
            raise Refusal(f"{path}.lora_{factor} has shape {tuple(tensor.shape)}, this model needs {shape}")


def _check_numbers(tensors: dict[str, torch.Tensor]) -> None:
    """Raise ValueError for a tensor of another kind than floating-point numbers, or with one that is not finite."""
    for key, tensor in tensors.items():
        if not tensor.is_floating_point() or str(tensor.dtype).startswith("torch.float4"):  # two numbers to a byte
            raise Refusal(f"{key} has dtype {tensor.dtype}; weights must be floating-point numbers of 8 bits or more")
        if not tensor.float().sum().isfinite() and not tensor.float().isfinite().all():
            raise Refusal(f"{key} has an entry that is not finite")


def _read_tensors(folder: Path, count: int) -> dict[str, torch.Tensor]:
    """Return the tensors of the adapter's file, on the CPU. A pickled file is read with weights_only=True.

    count: of the numbers in them; a file that holds many more bytes is refused.
    """
    path, pickled = folder / "adapter_model.safetensors", folder / "adapter_model.bin"
    for file in (path, pickled):
        if file.is_file() and (size := _size(file)) > 16 * count + 2**20:  # 8 bytes each, and headers
            raise Refusal(f"{file}: {size:,} bytes of weights; adapter_config.json describes {count:,} numbers")
    if path.is_file():
        try:
            with open(path, "rb") as begin:
                if begin.read(100).startswith(b"version https://git-lfs"):
                    raise Refusal(f"{path}: is a Git LFS pointer, not the file: git lfs pull")
            with safe_open(path, "pt") as file:
                names = list(file.keys())
            with _naming(folder):
                _check_names(names)  # before the tensors are read: a stranger's file may have a great many
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise Refusal(f"{path}: not a whole safetensors file ({error})") from None
    if pickled.is_file():
        try:
            with warnings.catch_warnings(action="ignore"):  # of torch about pickle's protocols, beside our one line
                tensors = torch.load(pickled, map_location="cpu", weights_only=True)
            tensors = {str(key): tensor.detach() for key, tensor in tensors.items()}
        except Exception as error:  # the unpickler raises many kinds and may return anything
            raise Refusal(f"{pickled}: not readable as plain weights ({type(error).__name__})") from None
        for key, tensor in tensors.items():  # in a pickled file a few bytes may stand for any number of entries
            dense = tensor.layout == torch.strided and not tensor.is_meta and not tensor.is_nested
            if not dense or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
                raise Refusal(f"{pickled}: {key} is no dense tensor that holds all of its entries")
        return tensors
    raise FileNotFoundError(f"{path}: missing (and no adapter_model.bin either)")


def _size(file: Path) -> int:
    """Return the bytes of a file, of an archive those that its parts have when they are unpacked."""
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(part.file_size for part in archive.infolist())
    except Exception:  # no archive, or a damaged one, for which zipfile raises many kinds
        return file.stat().st_size
