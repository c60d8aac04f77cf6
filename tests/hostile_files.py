"""Hostile files and words for tests/files/test_hostile_files.py and tests/files/test_fuzz.py, and how a case is judged.

A case is a function of an empty folder that writes files and reads them as the programs do. It may succeed; otherwise
it must end with an error that the programs print as one line, within SECONDS and MEMORY.
"""

import contextlib
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from cases import cases
from conftest import SMALL, random_model, randomize
from hostile import modest
from torch import nn

import lora
from models import load_model, load_tokenizer
from models.config import read_config
from models.export import save_model
from models.tiny.make_tiny import train_tokenizer
from rl import data
from rl.config.refusals import LINE, one_line
from rl.config.words import parse

SECONDS, MEMORY = 2.0, 500  # most processor time and most MiB of a case
SILENT = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)  # Python does not print them
QWEN2 = {"model_type": "qwen2", **SMALL}
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
QUESTION, TALK = [{"role": "user", "content": "hi"}], "a <|im_end|> b aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab! 日本"


def judge(call: Callable[[], object]) -> str:
    """Return the line that a program would print for the call, "" if it succeeds. Assert what every case must keep."""
    line, status, said = "", 0, io.StringIO()
    with (
        modest(SECONDS, MEMORY),
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
        warnings.catch_warnings(record=True) as warned,
    ):
        warnings.simplefilter("always")
        try:
            call()
        except (OSError, ValueError) as error:
            line = one_line(f"train.py: {error}")
        except SystemExit as end:  # with 0 or 1 after plan=
            status = end.code
    lines = said.getvalue().splitlines(keepends=True)
    notes = [
        line
        for line in lines
        if "what the model reads is not the text" in line or "chat_template.jinja is read" in line
    ]
    assert len(notes) <= 2 and all(note.removesuffix("\n").isprintable() for note in notes), notes
    printed = "".join(line for line in lines if line not in notes)
    assert status in (0, 1, 2) and printed.count("\n") == (status == 2), printed[:1000]
    assert not (beside := [str(w.message)[:300] for w in warned if not issubclass(w.category, SILENT)]), beside
    line = line or printed.removesuffix("\n")
    assert line.isprintable() and len(line) <= LINE, (len(line), line[:1000])
    return line


# ----------------------------------------------------------------------------------------------------- hostile contents

DEEP = "[" * 100_000
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\x00\r\n"
LONG = "A" * 100_000
TEXTS: dict[str, bytes] = {  # of a whole JSON file
    **{name: text.encode("latin-1") for name, text in cases("texts").items()},
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "half a character": '{"a": "é"}'.encode()[:-3],
    "deep lists": DEEP.encode(),
    "many keys": b"{" + b",".join(b'"%d": 0' % i for i in range(300_000)) + b"}",
}
VALUES = {  # of a field
    **cases("values", ESCAPES=ESCAPES, LONG=LONG),
    "400 digits": 10**400,
    "half a surrogate pair": "\ud800",
}


def put(path: Path, content: object) -> Path:
    """Write bytes, a text, or a value as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), errors="surrogatepass")
    return path


# ---------------------------------------------------------------------------------------------------------- valid files


@cache
def _checkpoint(kept: str) -> Path:
    save_model(randomize(random_model()), Path(kept), QWEN2, torch.float32)
    return Path(kept)


def checkpoint(folder: Path) -> Path:
    """Copy a valid checkpoint into the folder."""
    source = _checkpoint(str(folder.parent / "checkpoint"))
    for name in ("config.json", "model.safetensors"):
        shutil.copy(source / name, folder / name)
    return folder


def weights() -> bytes:
    """Return the model.safetensors of a valid checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        save_model(randomize(random_model()), Path(folder), QWEN2, torch.float32)
        return Path(folder, "model.safetensors").read_bytes()


@cache
def tokenizer_json() -> str:
    return train_tokenizer("get 2 oak planks, craft 1 door.\n" * 20, 300).to_str()


def tokenizer(folder: Path, **files: object) -> Path:
    """Write a valid tokenizer and the given files; "tokenizer_config" is tokenizer_config.json."""
    put(folder / "tokenizer.json", tokenizer_json())
    for name, content in files.items():
        put(folder / f"{name}.json", content)
    return folder


def talk(folder: Path) -> None:
    """Load a tokenizer and use it as a rollout does."""
    found = load_tokenizer(str(folder))
    ids = found.prompt(QUESTION)
    ids += found.follow_up(ids[-1], [{"role": "user", "content": TALK}])
    found.decode(found.encode(TALK) + ids), found.answer(ids), found.reply(TALK)


@cache
def model() -> nn.Module:
    return random_model()


@cache
def adapter_files() -> tuple[dict, bytes]:
    """Return the adapter_config.json and the adapter_model.safetensors of a valid adapter."""
    with tempfile.TemporaryDirectory() as folder:
        injected = random_model()
        lora.inject(injected, r=4)
        lora.save_adapter(injected, Path(folder), "base")
        read = Path(folder, "adapter_config.json").read_text(), Path(folder, "adapter_model.safetensors").read_bytes()
    return json.loads(read[0]), read[1]


def load_adapter(folder: Path, edit: dict | bytes | None = None, tensors: bytes | None = None) -> None:
    """Write an adapter with changed fields, or other files, and load it."""
    fields, valid = adapter_files()
    put(folder / "adapter_config.json", edit if isinstance(edit, bytes) else {**fields, **(edit or {})})
    put(folder / "adapter_model.safetensors", valid if tensors is None else tensors)
    lora.load_adapter(model(), folder)
    model.cache_clear()  # it has the adapter now


def load_rows(folder: Path, content: object) -> None:
    """Read demonstrations from a file."""
    data.load(parse(["algo=sft", f"data={put(folder / 'rows.jsonl', content)}"]), load_tokenizer("tiny"))


def use_recipe(folder: Path, content: object) -> None:
    parse([f"recipe={put(folder / 'mine.toml', content)}"])


def load_config(folder: Path, content: object) -> None:
    """Read a config.json beside weights that fit the valid one."""
    put(checkpoint(folder) / "config.json", content)
    load_model(str(folder))
    read_config(folder)
