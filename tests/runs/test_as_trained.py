"""eval.py plays an adapter as its run did, says so, and takes the best epoch of a run."""

import json
import shutil
import sys

import pytest
from conftest import run_program

import merge
import train
from models.weights import TINY
from rl.config.words import parse
from rl.ranks import launch

SMALL = ["episodes=4", "batch_size=4", "epochs=2", "eval_every=1", "eval_episodes=1", "threads=1", "ranks=1"]
SMALL += ["lr=1e-3", "lora.r=4"]
PLAY = ["env=textcraft", "textcraft.max_turns=2", "textcraft.prompt=short", "temperature=0.7", "max_new_tokens=5"]
SHORT = ["n=2", "threads=1", "ranks=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    train.main(parse([*SMALL, *PLAY, f"out={folder}"], "train.py"))
    return folder


def evaluated(tmp_path, *words) -> tuple[str, dict]:
    """Return what eval.py printed and its results."""
    status, out, err = run_program("eval.py", *SHORT, f"json={tmp_path}/r.json", *words)
    assert status == 0, err
    return out, json.loads((tmp_path / "r.json").read_text())


def refused(*words) -> str:
    """Return eval.py's one line about wrong words."""
    status, out, err = run_program("eval.py", *SHORT, *words)
    assert (status, out, err.count("\n")) == (2, "", 1), (status, out, err)
    return err


def test_settings_are_saved_beside_each_adapter(run):
    saved = [json.loads((run / name).read_text()) for name in ("epoch_1/training_config.json", "config.json")]
    assert saved[0] == saved[1] and saved[0]["textcraft"]["prompt"] == "short"


def test_adapter_is_played_as_its_run_did_wherever_it_lies(run, tmp_path):
    shutil.copytree(run / "epoch_1", tmp_path / "moved")
    out, found = evaluated(tmp_path, f"adapter={tmp_path}/moved")
    cfg = found["config"]
    assert (cfg["textcraft"]["max_turns"], cfg["textcraft"]["prompt"]) == (2, "short")
    assert (cfg["temperature"], cfg["max_new_tokens"]) == (0.7, 5)
    assert "plays env=textcraft thinking=true temperature=0.7 max_new_tokens=5" in out
    assert f"settings as in the run of {tmp_path}/moved; the command line: n=2" in out


@pytest.mark.parametrize("words", [["max_turns=1"], ["textcraft.max_turns=1"]])
def test_words_win_over_the_run(words, run, tmp_path):
    _, found = evaluated(tmp_path, f"adapter={run}/epoch_1", *words, "temperature=0.9")
    cfg = found["config"]
    assert (cfg["textcraft"]["max_turns"], cfg["temperature"], cfg["max_new_tokens"]) == (1, 0.9, 5)


def test_recipe_of_the_words_wins_over_the_run(run, tmp_path):
    (tmp_path / "own.toml").write_text("max_new_tokens = 7\n")
    _, found = evaluated(tmp_path, f"adapter={run}/epoch_1", f"recipe={tmp_path}/own.toml")
    assert (found["config"]["max_new_tokens"], found["config"]["temperature"]) == (7, 0.7)


def test_another_environment_leaves_the_runs_options_out(run, tmp_path):
    out, found = evaluated(tmp_path, f"adapter={run}/epoch_1", "env=sat", "max_new_tokens=2")
    assert "plays env=sat" in out and "textcraft" not in found["config"]


def test_adapter_without_settings_needs_env(run, tmp_path):
    shutil.copytree(run / "epoch_1", tmp_path / "bare")
    (tmp_path / "bare" / "training_config.json").unlink()
    assert f"{tmp_path}/bare has no training_config.json" in refused(f"adapter={tmp_path}/bare")
    evaluated(tmp_path, f"adapter={tmp_path}/bare", "env=textcraft", "max_turns=1", "max_new_tokens=2")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("run/epoch_12", "; no such folder; did you mean {runs}/run/epoch_2?"),
        ("runn", "; no such folder; did you mean {runs}/run?"),
        ("nowhere/at/all", "; no such folder"),
        ("run/checkpoint-1", "; did you mean {runs}/run/epoch_1?"),
        ("", "; runs with adapters are there: {runs}/run"),
    ],
)
def test_a_missing_adapter_is_refused_before_anything_is_said(name, hint, run):
    folder = run.parent / name
    err = refused(f"adapter=base,{folder}")
    line = f"eval.py: {folder}/adapter_config.json: not found, so this is not an adapter folder"
    assert err == f"{line}{hint.format(runs=run.parent)}\n"


@pytest.mark.parametrize("folder", [".", "/"])
def test_a_folder_without_a_name_is_no_adapter(folder):
    assert "adapter_config.json: not found, so this is not an adapter folder" in refused(f"adapter={folder}")


def test_an_adapter_named_twice_is_refused(run):
    """Also as the best epoch of its run."""
    assert "run/epoch_1 is named twice" in refused(f"adapter={run}/epoch_1,{run}")


def test_whole_weights_as_an_adapter_are_refused_with_the_key(run, tmp_path):
    """An epoch of lora.r=0 has no adapter; model= plays it."""
    whole = tmp_path / "whole" / "epoch_1"
    whole.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(TINY / name, whole / name)
    shutil.copy(run / "epoch_1" / "training_config.json", whole)
    assert refused(f"adapter={whole}").endswith(f"a whole model is there: model={whole}\n")


def test_damaged_settings_are_one_line(run, tmp_path):
    shutil.copytree(run / "epoch_1", tmp_path / "cut")
    (tmp_path / "cut" / "training_config.json").write_text("{")
    assert "training_config.json: not a table of settings" in refused(f"adapter={tmp_path}/cut")


def test_runs_that_differ_need_the_key(run, tmp_path):
    shutil.copytree(run / "epoch_1", tmp_path / "other")
    path = tmp_path / "other" / "training_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"temperature": 0.5}))
    pair = f"adapter=base,{run}/epoch_1,{tmp_path}/other"
    assert f"{run}/epoch_1 was trained with temperature=0.7, {tmp_path}/other with temperature=0.5" in refused(pair)
    evaluated(tmp_path, pair, "temperature=0.7", "max_turns=1", "max_new_tokens=2")


BEST = [((0.9, 0.2, 0.4), 2), ((0.1, 0.6, 0.6), 1), pytest.param((0.1, 0.3, 0.2), 1, marks=pytest.mark.full)]


@pytest.mark.parametrize(("successes", "best"), BEST)
def test_a_runs_folder_means_its_best_saved_epoch(successes, best, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    lines = [{"epoch": epoch, "eval": {"temperature": 0.7, "success": s}} for epoch, s in enumerate(successes)]
    lines += [{"epoch": 2, "eval": {"temperature": 0.0, "success": 1.0}}]  # greedy play does not decide
    lines += [{"epoch": 3, "eval": {"temperature": 0.7, "success": 1.0}}]  # has no folder
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    out, found = evaluated(tmp_path, f"adapter={tmp_path}/run", "max_new_tokens=2")
    assert list(found["results"]) == [f"{tmp_path}/run/epoch_{best}"]
    assert (
        f"epoch_{best} is the best of 2 evaluated epochs that the run saved, by success, {successes[best]:.1%}" in out
    )
    assert ("before training it was better, " in out) == (successes[0] > successes[best])


def test_a_run_without_evaluations_needs_an_epoch(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    assert "no saved epoch was evaluated, so none is best; choose one of: epoch_1, epoch_2" in refused(
        f"adapter={tmp_path}/run"
    )


def test_mode_merge_writes_and_plays_nothing(run, tmp_path):
    words = [f"adapter={run}/epoch_1", "mode=merge", f"out={tmp_path}/merged"]
    status, out, err = run_program("eval.py", *SHORT, *words)
    assert status == 0 and (tmp_path / "merged" / "merge_report.json").is_file() and "success" not in out, err


def test_mode_merge_takes_dtype_and_names_the_program_of_other_keys(run, tmp_path, monkeypatch):
    words = [f"adapter={run}/epoch_1", "mode=merge", f"out={tmp_path}/other", f"json={tmp_path}/r.json"]
    assert f"json={tmp_path}/r.json needs an evaluation, and mode=merge makes none; mode=both does" in refused(*words)
    words = [f"adapter={run}/epoch_1", "mode=merge"]
    for dtype, written in (("dtype=float32", "float32"), ("dtype=auto", "bfloat16")):
        run_program("eval.py", *SHORT, *words, dtype, f"out={tmp_path}/{written}")
        assert json.loads((tmp_path / written / "config.json").read_text())["torch_dtype"] == written
    monkeypatch.setattr(merge, "MAX_LOST", -1.0)
    status, _, err = run_program("eval.py", *SHORT, *words, f"out={tmp_path}/lossy")
    assert status == 1 and "force=true merges all the same; of these eval.py takes dtype= alone" in err
    assert f"python merge.py model=tiny adapter={run}/epoch_1 out={tmp_path}/lossy" in err


def test_mode_both_plays_the_merged_checkpoint(run, tmp_path):
    words = [f"adapter={run}/epoch_1", "mode=both", f"out={tmp_path}/both", "max_turns=1"]
    out, found = evaluated(tmp_path, *words)
    assert found["config"]["model"] == f"{tmp_path}/both" and list(found["results"]) == [f"{tmp_path}/both"]
    assert f"{tmp_path}/both: test sampled success" in out and found["config"]["quant"] == "none"
    status, _, err = run_program("eval.py", *SHORT, *words)
    assert status == 1 and "exists already" in err


def test_merged_checkpoint_is_played_as_trained(run, tmp_path):
    run_program("eval.py", f"adapter={run}/epoch_1", "mode=merge", f"out={tmp_path}/merged")
    out, found = evaluated(tmp_path, f"model={tmp_path}/merged")
    assert f"settings as in the run of {tmp_path}/merged" in out
    assert f"{tmp_path}/merged: test sampled success" in out and list(found["results"]) == [f"{tmp_path}/merged"]
    assert found["played"] == evaluated(tmp_path, f"adapter={run}/epoch_1")[1]["played"]


def test_sampling_is_printed_saved_and_compared_as_played(run, tmp_path):
    words = [f"adapter={run}/epoch_1", "max_turns=1", "temperature=0.6"]
    out, found = evaluated(tmp_path, *words, "top_k=9", "top_p=0.8")
    sampling = {"temperature": 0.6, "top_k": 9, "top_p": 0.8}
    assert sampling.items() <= found["played"].items()
    assert "temperature=0.6" in out and "top_k=9 top_p=0.8" in out.split("plays ")[1]
    status, _, err = run_program("eval.py", *SHORT, *words, f"against={tmp_path}/r.json")
    assert status == 2 and "was played with top_k=9, not 0" in err


def test_merging_under_torchrun_is_refused(run, tmp_path, monkeypatch):
    """No rank would know when another has written the checkpoint."""
    monkeypatch.setenv("RANK", "0")
    words = [f"adapter={run}/epoch_1", "mode=both", f"out={tmp_path}/both"]
    assert "mode=both merges in one process: without torchrun, or with ranks=N" in refused(*words)


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forks under Linux alone")
def test_ranks_are_no_forks_of_a_process_that_has_merged(run, tmp_path, monkeypatch):
    """Its threads of OpenMP are not in a fork, which would wait for them: the run hung as it loaded the model."""
    found, play = [], ["eval.py", f"adapter={run}/epoch_1", "n=4", "ranks=2", "device=cpu"]
    monkeypatch.setattr(launch, "launch", lambda count, forks: found.append(forks) or 0)
    for words in (play, [*play, "mode=both", f"out={tmp_path}/both"]):
        monkeypatch.setattr(sys, "orig_argv", ["python", *words])
        status, _, err = run_program(*words)
        assert status == 0, err
    assert found == [True, False]


@pytest.mark.full  # starts two processes
def test_two_ranks_evaluate_as_one(run, tmp_path):
    """With samples=, against= and the merged checkpoint: all numbers are equal."""
    play = [f"adapter={run}/epoch_1", "n=4", "samples=2", "k=1,2", "max_turns=1", "threads=1"]
    status, _, err = run_program("eval.py", *play, "ranks=1", f"json={tmp_path}/adapter.json")
    assert status == 0, err
    found = []
    for ranks in (1, 2):
        words = [f"ranks={ranks}", "mode=both", f"out={tmp_path}/{ranks}", f"json={tmp_path}/{ranks}.json"]
        status, _, err = run_program("eval.py", *play, *words, f"against={tmp_path}/adapter.json")
        assert status == 0, err
        saved = json.loads((tmp_path / f"{ranks}.json").read_text().replace(f"{tmp_path}/{ranks}", "merged"))
        found.append({key: saved[key] for key in ("played", "results", "comparisons")})
    assert found[0] == found[1] and len(found[0]["comparisons"]) == 2
