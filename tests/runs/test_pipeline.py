"""examples/pipeline.py: commands that work alone, each taking what the one before left; a done one is left out."""

import subprocess
import sys

import pytest

from envs import __main__ as envs_program
from examples import pipeline
from rl.config.arguments import split
from rl.config.words import parse

pytestmark = pytest.mark.all_only

SHORT = ["threads=1", "ranks=1"]
STAGES = ["demos", "sft", "rl", "evaluation"]


def word(command: list[str], key: str) -> str:
    return split([one for one in command if "=" in one]).get(key, "")


def test_stages_are_commands_that_their_programs_take(tmp_path):
    out, found = pipeline.commands([f"out={tmp_path}/p", "demos=30", "quick=true", "lora.r=8", *SHORT])
    assert list(found) == STAGES and out == tmp_path / "p"
    demos, sft, rl, evaluation = found.values()
    assert demos[:3] == ["-m", "envs", "sat,abd,ded"] and word(demos, "sat.prompt") == "short"
    keys, sat, *_ = envs_program.parse(demos[2:])
    assert keys.demos == 30 and sat.difficulty == "1"
    assert word(sft, "data") == word(demos, "out") == f"{out}/demos.jsonl"
    cfg = parse([one for one in sft[1:] if not one.startswith("data=")])
    assert (cfg.algo, cfg.quick, cfg.lora.r) == ("sft", True, 8)
    assert word(rl, "resume_from") == f"{out}/sft" and word(rl, "lora.r") == "", "an adapter has its own settings"
    assert word(evaluation, "adapter") == f"base,{out}/sft,{out}/rl"
    played = {"sat", "abd", "ded", "webshop", "alfworld", "babyai", "sciworld", "textcraft"}
    assert set(word(evaluation, "env").split(",")) == played


def test_runs_that_differ_are_evaluated_as_rl_played(tmp_path):
    evaluation = pipeline.commands([f"out={tmp_path}", "guide=true", "device=cpu"])[1]["evaluation"]
    found = [word(evaluation, key) for key in ("max_new_tokens", "max_len", "thinking")]
    assert found == ["256", "40960", "false"]


@pytest.fixture
def called(monkeypatch) -> list[str]:
    """Write what the stages leave instead of running them. Return the programs that were called."""
    found = []
    monkeypatch.setattr(pipeline, "call", lambda command: found.append(command[0]) or 0)
    return found


def test_done_stages_are_left_out_and_other_words_refused(called, tmp_path, capsys):
    words = [f"out={tmp_path}/p", *SHORT]
    pipeline.main([*words, "demos=30"])
    assert called == ["-m", "train.py", "train.py", "eval.py"]
    pipeline.main([*words, "demos=30"])
    assert called[4:] == ["eval.py"] and "evaluation is played again each time" in pipeline.__doc__
    with pytest.raises(SystemExit) as end:
        pipeline.main([*words, "demos=40"])
    said = capsys.readouterr().err
    assert end.value.code == 2 and "demos=30" in said and "demos=40" in said and "choose another out=" in said


def test_a_users_own_demonstrations_are_kept(called, tmp_path):
    (tmp_path / "demos.jsonl").write_text("{}\n")
    pipeline.main([f"out={tmp_path}", *SHORT])
    assert called == ["train.py", "train.py", "eval.py"]


def test_a_failing_stage_ends_the_pipeline_with_its_status(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "call", lambda _: 3)
    with pytest.raises(SystemExit) as caught:
        pipeline.main([f"out={tmp_path}/p", *SHORT])
    assert caught.value.code == 3 and not (tmp_path / "p" / "demos.done").exists()
    assert capsys.readouterr().err == "examples/pipeline.py: stage demos ended with status 3; the same words go on\n"


def test_an_interrupted_command_ends_before_the_pipeline(tmp_path, monkeypatch):
    """A training run saves on Ctrl-C, which may take longer than the quarter of a second of subprocess.run."""
    wait, interrupts = subprocess.Popen.wait, iter([KeyboardInterrupt])

    def interrupted(process):
        for error in interrupts:
            raise error
        return wait(process)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    saves = f"import time; time.sleep(0.7); open({str(tmp_path / 'saved')!r}, 'w')"
    with pytest.raises(KeyboardInterrupt):
        pipeline.call(["-c", saves])
    assert (tmp_path / "saved").is_file()


@pytest.mark.full
def test_all_stages_run(tmp_path):
    words = ["sft=algo=sft env=sat eval_every=1", "rl=algo=ppo env=sat lr=1e-3", "demos=12", "n=4", "epochs=1"]
    words += ["episodes=8", "batch_size=8", "eval_episodes=2", "max_new_tokens=8", "products=plain", *SHORT]
    command = [sys.executable, pipeline.NAME, f"out={tmp_path}/p", *words]
    done = subprocess.run(command, cwd=pipeline.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "rl/epoch_1 against base, greedy, the same 4 tasks" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sft=recipe=affine_ppo"], "sft= is algo=ppo"),
        (["rl=algo=sft"], "rl= is algo=sft"),
        (["rl=recipe=afine_ppo"], "recipe=afine_ppo: no file"),
        (["lrr=1"], "unknown key 'lrr'; did you mean lr?"),
        (["sft=recipe=affine_sft out=x"], "out=, data=, resume= and resume_from= of the stages are given"),
        (["demos=0"], "demos=0 must be positive"),
    ],
)
def test_wrong_words_are_one_line(words, said, called, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        pipeline.main([f"out={tmp_path}/p", *words])
    err = capsys.readouterr().err
    assert end.value.code == 2 and said in err and err.count("\n") == 1 and not called
