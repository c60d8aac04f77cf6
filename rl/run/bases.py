"""What an adapter was trained over, written beside it, and compared wherever an adapter is used.

An adapter's numbers mean something only over its base, read through its tokenizer and chat template. train.py
(resume_from=), eval.py, merge.py, rl.serve and rl.chat compare all of them here. Of an adapter that another program
wrote, what its folder holds is compared: the base that its config names, a tokenizer, a template.
"""

import hashlib
import json
from functools import lru_cache
from pathlib import Path

import lora
from models.chat.templates import default_template, read_template
from models.json_file import parse_json, read_bytes
from models.weights import resolve
from rl.config.refusals import Refusal
from rl.run.digests import digest
from rl.run.files import read_json

FILE = "base.json"
MOST_BYTES, MOST_PARTS = 2**25, 2_000_000  # of a tokenizer.json
WORDS = {
    "weights": "other weights than those that it was trained over",
    "tokenizer": "another tokenizer than the one that it was trained with",
    "template": "another chat template than the one that it was trained with",
}


def identity(base: Path, quant: str) -> dict[str, str]:
    """Return digests of a base's weights, tokenizer and template, and the quantisation; "" for what is not there."""
    return {"weights": weights_digest(base), **texts(base), "quant": quant}


def texts(folder: Path) -> dict[str, str]:
    """Return digests of the tokenizer and the chat template in a folder; "" for what is not there."""
    try:
        template = default_template(read_template(folder)) or ""
    except ValueError:  # none that could be used
        template = ""
    return {"tokenizer": _tokenizer_digest(folder / "tokenizer.json"), "template": _sha256(template.strip())}


def write(folder: Path, base: Path, quant: str) -> None:
    """Write FILE into the folder of an adapter that was trained over this base."""
    (folder / FILE).write_text(json.dumps(identity(base, quant), indent=2) + "\n")


def check(adapter: Path, base: Path, quant: str) -> None:
    """Raise ValueError if the adapter was trained over another base, tokenizer or chat template than this base's.

    Print a line for another quantisation, and for a base that only has another name.
    """
    before, now = recorded(adapter), identity(base, quant)
    changed = [WORDS[key] for key in WORDS if before.get(key) and before[key] != now[key]]
    if changed:
        mend = "give model= the base that it was trained over"
        if WORDS["weights"] not in changed:
            mend += f", or a copy of {base} with the adapter's tokenizer and template files"
        raise Refusal(f"{adapter}: {base} has {' and '.join(changed)}: {mend}")
    if before.get("quant", quant) != quant:
        print(f"{adapter} was trained over quant={before['quant']}, and is used over quant={quant}")
    named = lora.read_adapter_config(adapter).get("base_model_name_or_path")
    if named and not before.get("weights") and not Path(named).is_dir() and str(base) != named and named != "tiny":
        print(f"{adapter} names the base {named}; whether {base} has its weights is not known")


def recorded(adapter: Path) -> dict[str, str]:
    """Return what is known of an adapter's base: from FILE, from its run's origin.json, or from the files beside it."""
    if (adapter / FILE).is_file():
        try:
            return {key: str(value) for key, value in dict(read_json(adapter / FILE)).items()}
        except (ValueError, TypeError) as error:
            raise Refusal(f"{adapter / FILE}: damaged ({error})") from None
    found = texts(adapter)
    try:
        found["weights"] = str(read_json(adapter.parent / "origin.json")["weights"])
    except (OSError, ValueError, LookupError, TypeError):
        named = lora.read_adapter_config(adapter).get("base_model_name_or_path")
        if named and Path(named).is_dir():
            found["weights"] = weights_digest(resolve(named))
    return found


def weights_digest(base: Path) -> str:
    """Return the digest of a base's weight files; it is computed once for files that do not change."""
    files = sorted(base.glob("*.safetensors"))
    return _digest(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files)) if files else ""


@lru_cache(maxsize=8)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    return digest(path for path, _, _ in files)


def _tokenizer_digest(path: Path) -> str:
    """Return the digest of the parts of a tokenizer.json that make ids: other programs write the rest anew."""
    if not path.is_file():
        return ""
    try:
        spec = parse_json(read_bytes(path, MOST_BYTES), MOST_PARTS)
        model = {key: spec["model"].get(key) for key in ("type", "vocab", "byte_fallback", "unk_token")}
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in spec["model"].get("merges") or []]
        added = sorted((token["id"], token["content"]) for token in spec.get("added_tokens", []))
        return _sha256(
            json.dumps([model, merges, added, spec.get("normalizer"), spec.get("pre_tokenizer")], sort_keys=True)
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return _sha256(path.name)  # no tokenizer that could be used


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() if text else ""
