"""A run that was moved is evaluated, merged, served and resumed; a base that is gone falls back to the run's model=."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import metrics_of, run_program

import lora
import train
from models.weights import TINY
from rl.config.arguments import ArgumentError
from rl.config.words import parse
from rl.judge.adapter_settings import named_base, with_base
from rl.run.checkpoint import base_name
from rl.serve import __main__ as serve

WORDS = "algo=grpo epochs=1 episodes=8 batch_size=8 max_turns=1 max_new_tokens=4 eval_episodes=2 lora.r=2 threads=1"
GONE = "/nowhere/models/tiny"


@pytest.fixture(scope="module")
def moved(tmp_path_factory) -> Path:
    """Return the new place of a run whose adapter names a path of another machine, as earlier versions wrote it."""
    first, second = tmp_path_factory.mktemp("before") / "run", tmp_path_factory.mktemp("after") / "moved"
    train.main(parse([*WORDS.split(), "products=plain", "ranks=1", f"out={first}"]))
    assert lora.read_adapter_config(first / "epoch_1")["base_model_name_or_path"] == "tiny"
    shutil.move(first, second)
    path = second / "epoch_1" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": GONE}))
    (second / "epoch_1" / "manifest.json").unlink()  # it has the digest of the file with the other base
    return second


def test_the_embedded_model_has_no_path():
    assert base_name("tiny") == base_name(str(TINY)) == "tiny" and base_name("some/model") == "some/model"


def adapter(folder: Path, base: str, **settings) -> Path:
    """Write the files of an adapter that name its base and its run's settings."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "base_model_name_or_path": base}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    if settings:
        (folder / "training_config.json").write_text(json.dumps({"algo": "grpo", **settings}))
    return folder


def test_an_adapter_is_used_with_or_without_thoughts_as_in_its_run(tmp_path, capsys):
    silent = adapter(tmp_path / "a", str(TINY), thinking=False)
    thoughtful = adapter(tmp_path / "b", str(TINY), thinking=True)
    assert with_base([], [str(silent)]) == ["thinking=false", "model=tiny"]
    assert f"thinking=false, as in the run of {silent}" in capsys.readouterr().out
    assert with_base([], [str(thoughtful)]) == ["model=tiny"]
    assert with_base(["--thinking=true", "--model=x"], [str(silent)]) == ["--thinking=true", "--model=x"]
    with pytest.raises(
        ArgumentError, match=f"{silent} was trained with thinking=false, {thoughtful} with thinking=true"
    ):
        with_base([], [str(silent), str(thoughtful)])


def test_a_base_that_is_gone_falls_back_to_the_runs_model(tmp_path, capsys):
    named = adapter(tmp_path / "a", GONE, model="tiny")
    assert with_base([], [str(named)]) == ["model=tiny"]
    line = f"{named} names the base {GONE}, which is not there: model=tiny instead, as in its run\n"
    assert capsys.readouterr().out == line
    assert named_base(adapter(tmp_path / "b", str(tmp_path), model="tiny")) == str(tmp_path), "it is there"
    assert named_base(adapter(tmp_path / "c", "some/model", model="tiny")) == "some/model", "a hub id is no path"
    assert named_base(adapter(tmp_path / "d", str(TINY))) == "tiny" and capsys.readouterr().out == ""
    for name, settings in (("e", {}), ("f", {"model": "/nowhere/else"})):
        with pytest.raises(ArgumentError, match=f"{name} names the base {GONE}, which is not there; give model="):
            named_base(adapter(tmp_path / name, GONE, **settings))
    assert with_base(["model=other"], [str(tmp_path / "e")]) == ["model=other"]


@pytest.mark.all_only
def test_a_moved_run_is_evaluated_merged_and_served(moved, tmp_path, monkeypatch):
    epoch = moved / "epoch_1"
    status, out, err = run_program("eval.py", f"adapter={moved}", "n=2", "threads=1", "ranks=1")
    assert (status, err) == (0, "") and f"{epoch} names the base {GONE}, which is not there: model=tiny" in out
    status, out, err = run_program("merge.py", f"adapter={epoch}", f"out={tmp_path}/merged", "prompts=0", "force=true")
    assert (status, err) == (0, "") and "into tiny" in out and (tmp_path / "merged" / "config.json").is_file()
    model, keys = serve.parse([f"adapter=mine={epoch}", "port=0", "rows=2", "max_len=64", "threads=1"])
    assert model.model == "tiny" and list(serve.load(model, keys.rows, keys.queue).adapters) == ["mine"]


@pytest.mark.all_only
def test_a_moved_run_is_resumed_as_where_it_was(moved, tmp_path):
    there = tmp_path / "there"
    train.main(parse([*WORDS.split(), "products=plain", "ranks=1", "epochs=2", f"out={there}"]))
    train.main(parse([f"resume={shutil.copytree(moved, tmp_path / 'moved')}", "epochs=2"]))
    losses = [[record["loss"] for record in metrics_of(run) if "loss" in record] for run in (there, tmp_path / "moved")]
    assert losses[0] == losses[1] and len(losses[0]) == 2
