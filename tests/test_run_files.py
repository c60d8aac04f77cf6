"""Run folders of strangers: their files are read within bounds, and what is wrong with one is a line that names it."""

import json
from pathlib import Path

import pytest
import torch
from hostile import modest
from hostile_files import tokenizer
from safetensors.torch import load_file, save_file
from test_checkpoint import make_state

from lora.config import read_adapter_config
from models import load_tokenizer
from models.checkpoints.strict_json import read_bytes
from rl import resume
from rl.checkpoint import copy_tokenizer, save_checkpoint
from rl.guard.files import sha256, verify
from rl.look import page
from rl.ranks.pieces import Pieces


def sign(folder: Path) -> None:
    """Write the digests of a checkpoint's files into its manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"] |= {name: sha256(folder / name) for name in manifest["sha256"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "inside/file"])
def test_a_manifest_names_files_of_its_own_folder_alone(name, tmp_path):
    """A file elsewhere may have no end, such as one of /proc."""
    (tmp_path / "outside").write_text("x")
    folder = save_checkpoint(make_state(), tmp_path)
    (folder / "inside").mkdir()
    (folder / "inside" / "file").write_text("x")
    manifest = json.loads((folder / "manifest.json").read_text())
    place = folder / name
    manifest["sha256"][name] = sha256(place) if place.is_file() else ""
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest\.json: damaged, [^\n]+$"):
        verify(folder)


def test_a_file_longer_than_it_says_is_read_up_to_the_limit(tmp_path):
    """The system's own files say that they have 0 bytes, and a stranger's may be a link to one."""
    (tmp_path / "adapter_config.json").symlink_to("/proc/kallsyms")
    with modest(megabytes=4), pytest.raises(ValueError, match="larger than"):
        read_bytes(tmp_path / "adapter_config.json", 1000)
    with modest(megabytes=4), pytest.raises(ValueError, match="larger than"):
        read_adapter_config(tmp_path)


def test_a_hole_in_the_data_of_the_report_is_one_line(tmp_path):
    with open(tmp_path / page.DATA, "wb") as file:
        file.truncate(10 << 30)
    with modest(), pytest.raises(ValueError, match=rf"{page.DATA}, line 1: larger than"):
        list(page.data_lines(tmp_path / page.DATA))


def test_a_file_of_a_million_ranks_is_refused_at_once(tmp_path):
    save_file({"a": make_state().critic.up.weight}, tmp_path / "trainable-00001-of-3000000.safetensors")
    with modest(megabytes=50), pytest.raises(ValueError, match="not those of 3000000 ranks"):
        Pieces(tmp_path, "trainable")


@pytest.mark.parametrize("shape", [(1,), (10**4, 500)])
def test_moments_of_another_shape_are_refused(shape, tmp_path):
    """Else the first step would fail."""
    folder = save_checkpoint(make_state(1), tmp_path)
    path = folder / "optimizer.safetensors"
    found = load_file(path)
    name = next(name for name, tensor in found.items() if tensor.dim())
    save_file({**found, name: torch.zeros(shape)}, path)
    sign(folder)
    with pytest.raises(ValueError, match=rf"optimizer\.safetensors: {name} has the shape"):
        resume.load_checkpoint(make_state(), folder)


@pytest.mark.parametrize("name", ["generation_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_a_link_out_of_a_model_is_not_copied_into_a_run(name, tmp_path):
    """What is pushed to the hub must not hold other files of this machine."""
    (tmp_path / "secret").write_text("{}")
    folder = tokenizer(tmp_path / "model")
    (folder / name).symlink_to(tmp_path / "secret")
    (tmp_path / "run").mkdir()
    with pytest.raises(ValueError, match=rf"{name}: links to a file outside the folder$"):
        copy_tokenizer(load_tokenizer(str(folder)), tmp_path / "run")
