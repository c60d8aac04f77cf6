"""What an adapter was trained over, written beside it, and compared wherever an adapter is used.

An adapter's numbers mean something only over its base, read through its tokenizer and chat template. train.py
(resume=, resume_from=), eval.py, merge.py, rl.serve and rl.chat compare all of them here. Of an adapter that another
program wrote, what its folder holds is compared: the base that its config names, a tokenizer, a template.
"""

import hashlib
import json
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

import lora
from models.chat.templates import default_template, read_template
from models.chat.tokenizer_file import MOST_BYTES, MOST_PARTS, with_flags
from models.config import read_config
from models.json_file import parse_json, read_bytes
from models.weights import local, weight_files
from rl.config.refusals import Refusal
from rl.run.files import read_json, verify_adapter

FILE = "base.json"
BLOCK, MOST_WEIGHTS = 2**20, 2**30  # of larger weights, every n-th block of a tensor is read
ANYWHERE = ("dtype", "quant", "max_position_embeddings")  # settings of a config.json that a copy of a base may change
WORDS = {
    "weights": "other weights than those that it was trained over",
    "config": "another config.json than the one that it was trained over",
    "tokenizer": "another tokenizer than the one that it was trained with",
    "template": "another chat template than the one that it was trained with",
}


def identity(base: Path, quant: str) -> dict[str, str]:
    """Return digests of a base's weights, settings, tokenizer and template, and the quantisation; "" for what is not
    there."""
    return {"weights": weights_digest(base), "config": config_digest(base), **texts(base), "quant": quant}


def differences(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return in words what differs between two identities, of what both have."""
    return [WORDS[key] for key in WORDS if before.get(key) and before[key] != now[key]]


def write(folder: Path, base: Path, quant: str) -> None:
    """Write FILE into the folder of an adapter that was trained over this base."""
    (folder / FILE).write_text(json.dumps(identity(base, quant), indent=2) + "\n")


def check(adapter: Path, base: Path, quant: str) -> None:
    """Raise ValueError if the adapter was trained over another base, tokenizer or chat template than this base's, or is
    not the one that its run wrote.

    Print a line for another quantisation, and for a named base of which nothing can be compared.
    """
    verify_adapter(adapter)
    before, named = recorded(adapter, base), lora.read_adapter_config(adapter).get("base_model_name_or_path")
    if changed := differences(before, identity(base, quant)):
        mend = "give model= the base that it was trained over"
        if not {WORDS["weights"], WORDS["config"]} & set(changed):
            mend += f", or a copy of {base} with the adapter's tokenizer and template files"
        raise Refusal(f"{adapter}: {base} has {' and '.join(changed)}: {mend}")
    if before.get("quant", quant) != quant:
        print(f"{adapter} was trained over quant={before['quant']}, and is used over quant={quant}")
    is_named = not named or f"models--{named.split('@')[0].replace('/', '--')}" in base.parts  # in the hub's cache
    if not is_named and not before.get("weights") and str(base) != named:
        print(f"{adapter} names the base {named}; whether {base} has its weights is not known")


def recorded(adapter: Path, base: Path) -> dict[str, str]:
    """Return what is known of an adapter's base: from FILE, from its run's origin.json, or from the files beside it."""
    if (adapter / FILE).is_file():
        try:
            return {key: str(value) for key, value in dict(read_json(adapter / FILE)).items()}
        except (ValueError, TypeError) as error:
            raise Refusal(f"{adapter / FILE}: damaged ({error})") from None
    found = texts(adapter, of=base)
    if found["tokenizer"] not in ("", texts(base)["tokenizer"]) and same_ids(adapter, base):
        found["tokenizer"] = ""  # nothing to compare
    try:
        return found | dict(read_json(adapter.parent / "origin.json")["base"])
    except (OSError, ValueError, LookupError, TypeError):
        named = lora.read_adapter_config(adapter).get("base_model_name_or_path")
        try:
            own = local(named) if named else None
        except (OSError, ValueError):  # a base that is not on this machine
            own = None
        if own:
            found |= {"weights": weights_digest(own), "config": config_digest(own)}
    return found


def texts(folder: Path, of: Path | None = None) -> dict[str, str]:
    """Return digests of the tokenizer and the chat template in a folder; "" for what is not there.

    of: a base; added tokens that its tokenizer lacks do not count: programs add a token for padding.
    """
    try:
        template = default_template(read_template(folder)) or ""
    except ValueError:  # none that could be used
        template = ""
    known = {token["content"] for token in _spec(of).get("added_tokens", [])} if of else None
    return {"tokenizer": _tokenizer_digest(_spec(folder), known), "template": _sha256(template.strip())}


def config_digest(base: Path) -> str:
    """Return the digest of the settings that decide what a base computes."""
    config = read_config(base)
    usual = {field.name: field.default for field in fields(config)}  # left out: the first families had no such setting
    settings = {key: value for key, value in asdict(config).items() if key not in ANYWHERE and value != usual[key]}
    # As Ministral's was written before it was told apart from Mistral; the windows say what differs.
    settings["model_type"] = "mistral" if config.model_type == "ministral" else config.model_type
    settings["qk_norm"] = {"": False, "heads": True}.get(config.qk_norm, config.qk_norm)  # as it was written then
    return _sha256(json.dumps(settings, sort_keys=True))


def weights_digest(base: Path) -> str:
    """Return the digest of a base's weights, in whatever files they are; "" without files."""
    try:
        files = weight_files(base / "model.safetensors.index.json", base / "model.safetensors")
    except FileNotFoundError:
        return ""
    return _digest(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=8)  # a base is asked for at each save
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    step, tensors = -(-sum(size for _, size, _ in files) // MOST_WEIGHTS) or 1, {}
    for path, _, _ in files:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # noqa: SIM118  (not a dict)
                tensor = file.get_tensor(name)
                content = hashlib.sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
                flat = tensor.contiguous().flatten().view(torch.uint8).numpy()
                for at in range(0, len(flat), step * BLOCK):
                    content.update(flat[at : at + BLOCK])
                tensors[name] = content.hexdigest()
    return _sha256(json.dumps(tensors, sort_keys=True))


def _spec(folder: Path) -> dict:
    """Return the object in a folder's tokenizer.json, with the flags of added tokens that its tokenizer_config.json
    gives; {} for none that could be used."""
    path = folder / "tokenizer.json"
    try:
        spec = parse_json(read_bytes(path, MOST_BYTES), MOST_PARTS) if path.is_file() else {}
    except ValueError:
        spec = {}
    if not spec or not isinstance(spec, dict):
        return {}
    try:
        return spec | {"added_tokens": with_flags(spec.get("added_tokens", []), folder / "tokenizer_config.json")}
    except (ValueError, LookupError, TypeError):  # none that could be used
        return spec


def _tokenizer_digest(spec: dict, known: set[str] | None) -> str:
    """Return the digest of the parts of a tokenizer.json that make ids: other programs write the rest anew.

    known: the added tokens that count; None: all of them.
    """
    if not spec:
        return ""
    try:
        return _sha256(json.dumps(_parts(spec, known), sort_keys=True))
    except (LookupError, TypeError, AttributeError):
        return _sha256("damaged")


def same_ids(folder: Path, base: Path) -> bool:
    """Return whether the tokenizers of two folders make the same ids, but for added tokens that the base's lacks:
    programs that write a tokenizer.json anew also write settings that had their default, and which characters the
    offsets of a token leave out."""
    try:
        one, other = _spec(folder), _spec(base)
        known = {token["content"] for token in other.get("added_tokens", [])}
        return _usual(_parts(one, known)) == _usual(_parts(other, known))
    except (LookupError, TypeError, AttributeError):
        return False


def _parts(spec: dict, known: set[str] | None) -> list:
    """Return the parts of a tokenizer.json that make ids. known: the added tokens that count; None: all of them.

    Raise LookupError, TypeError or AttributeError for a wrong file.
    """
    model = {key: spec["model"].get(key) for key in ("type", "vocab", "byte_fallback", "unk_token", "ignore_merges")}
    merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in spec["model"].get("merges") or []]
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    added = [
        (token["id"], token["content"], *(bool(token.get(flag)) for flag in flags))
        for token in spec.get("added_tokens", [])
    ]
    added = sorted(token for token in added if known is None or token[1] in known)
    return [model, merges, added, spec.get("normalizer"), spec.get("pre_tokenizer")]


def _usual(parts: list) -> list:
    """Return the parts with defaults of the model left out, and without `trim_offsets`, which changes no id."""
    model, *others, pre_tokenizer = parts
    given = {key: value for key, value in model.items() if value}
    return [given, *others, _without(pre_tokenizer, "trim_offsets")]


def _without(value: Any, key: str) -> Any:
    """Return a part of a JSON file without this key of its objects."""
    if isinstance(value, dict):
        return {name: _without(part, key) for name, part in value.items() if name != key}
    return [_without(part, key) for part in value] if isinstance(value, list) else value


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() if text else ""
