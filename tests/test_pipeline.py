"""python -m rl.pipeline: commands that work alone, each taking what earlier stages left; a done one is skipped."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_program

import train
from envs import __main__ as envs_program
from rl import pipeline
from rl.config.arguments import split
from rl.config.parse import parse
from rl.judge import adapter_settings

SHORT = ["threads=1", "ranks=1"]
QUICK = "quick=true epochs=1 eval_episodes=2 batch_size=8"
ROWS = [
    {"messages": [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": f"{n + 1}"}]} for n in range(20)
]


@pytest.fixture
def commands(monkeypatch) -> list[list[str]]:
    """Record the pipeline's commands instead of running them."""
    found = []

    def run(command):
        found.append(command[1:])
        return 0

    monkeypatch.setattr(pipeline, "run", run)
    monkeypatch.setattr(pipeline, "table", lambda *_: [])
    return found


def word(command: list[str], key: str) -> str:
    return split([one for one in command if "=" in one]).get(key, "")


def test_stages_are_commands_that_their_programs_take(commands, tmp_path):
    pipeline.main([f"out={tmp_path}/p", "demos=30", "quick=true", "lora.r=8", *SHORT])
    demos, sft, rl, evaluate = commands
    assert demos[:3] == ["-m", "envs", "sat,abd,ded"] and word(demos, "sat.prompt") == "short"
    keys, sat, *_ = envs_program.parse(demos[2:])
    assert keys.demos == 30 and sat.difficulty == "1"
    for command, algo in ((sft, "sft"), (rl, "ppo")):
        cfg = parse(command[1:])
        assert command[0] == str(pipeline.ROOT / "train.py") and (cfg.algo, cfg.quick, cfg.lora.r) == (algo, True, 8)
    assert word(evaluate, "adapter") == "base"
    assert set(word(evaluate, "env").split(",")) == {
        "sat",
        "abd",
        "ded",
        *["webshop", "alfworld", "babyai", "sciworld", "textcraft"],
    }
    assert word(evaluate, "textcraft.max_turns") == "", "embedded.toml and the recipe agree there"


def test_demonstrations_of_other_words_are_refused(commands, tmp_path, capsys):
    words = [f"out={tmp_path}/p", "stages=demos", *SHORT]
    pipeline.main([*words, "demos=30"])
    (tmp_path / "p" / "demos.jsonl").write_text("{}\n")
    pipeline.main([*words, "demos=30"])
    assert len(commands) == 1 and "stage demos: done before" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        pipeline.main([*words, "demos=40"])
    assert "demos=30" in (said := capsys.readouterr().err) and "demos=40" in said and "choose another out=" in said


def test_model_that_is_missing_is_refused_first(commands, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        pipeline.main([f"out={tmp_path}/p", f"model={tmp_path}/nowhere", *SHORT])
    assert end.value.code == 2 and f"{tmp_path}/nowhere" in capsys.readouterr().err
    assert not commands and not (tmp_path / "p").exists()


def test_missing_stages_fall_back(commands, tmp_path, capsys):
    """Without rows the experts play; without an SFT adapter RL starts from the base; the base alone is evaluated."""
    pipeline.main([f"out={tmp_path}/p", "stages=sft,rl,evaluate", *SHORT])
    assert [word(command, "data") for command in commands] == ["", "", ""]
    assert word(commands[1], "resume_from") == "" and word(commands[2], "adapter") == "base"
    said = capsys.readouterr().out
    assert "demos.jsonl is missing, so the experts are imitated as they play" in said
    assert "sft has no adapter to start from, so RL starts from the base" in said


def saved_epochs(run: Path, losses: list[float]) -> None:
    for epoch, loss in enumerate(losses, 1):
        (run / f"epoch_{epoch}").mkdir(parents=True)
        (run / f"epoch_{epoch}" / "adapter_config.json").write_text("{}")
        with open(run / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"epoch": epoch, "eval_loss": loss}) + "\n")


def test_rl_starts_from_the_best_epoch_of_sft(commands, tmp_path):
    saved_epochs(tmp_path / "p" / "sft", [0.5, 0.3, 0.4])
    pipeline.main([f"out={tmp_path}/p", "stages=rl,evaluate", "lora.r=8", *SHORT])
    assert word(commands[0], "resume_from") == f"{tmp_path}/p/sft/epoch_2" and word(commands[0], "lora.r") == ""
    assert word(commands[1], "adapter") == f"base,{tmp_path}/p/sft/epoch_2"


@pytest.fixture
def in_process(monkeypatch) -> list[str]:
    """Run the stages' programs in this process. Record which were run."""
    programs = []

    def run(command):
        _, *words = command
        file, words = ("envs/__main__.py", words[2:]) if words[0] == "-m" else (words[0], words[1:])
        programs.append(Path(file).name)
        status, _, err = run_program(file, *words)
        assert status == 0, err
        return status

    monkeypatch.setattr(pipeline, "run", run)
    return programs


TINY = "sft=algo=sft env=sat eval_every=1", "rl=algo=ppo env=sat lr=1e-3 eval_every=1", "demos=12", "n=4", "epochs=1"
TINY += "episodes=8", "batch_size=8", "eval_episodes=2", "max_new_tokens=8", "products=plain", *SHORT


def test_all_stages_run_and_are_not_repeated(in_process, tmp_path, capsys):
    out = tmp_path / "p"
    pipeline.main([f"out={out}", *TINY])
    assert in_process == ["__main__.py", "train.py", "train.py", "eval.py"]
    assert len((out / "demos.jsonl").read_text().splitlines()) == 12
    sft, rl = (json.loads((out / stage / "config.json").read_text()) for stage in ("sft", "rl"))
    assert sft["data"] == f"{out}/demos.jsonl" and rl["resume_from"] == f"{out}/sft/epoch_1"
    found = json.loads((out / "evaluation.json").read_text())
    assert list(found["results"]) == ["base", f"{out}/sft/epoch_1", f"{out}/rl/epoch_1"]
    tasks = [[task["seed"] for task in one["tasks"]] for several in found["results"].values() for one in several]
    assert len(tasks) == 6 and len(tasks[0]) == 4 and all(one == tasks[0] for one in tasks)
    table = capsys.readouterr().out.splitlines()[-11:]
    assert table[0].split() == ["sampled", "n", "base", "SFT", "RL"] and table[1].count(" to ") == 3
    pairs = ["SFT against base", "RL against base", "RL against SFT"]
    assert [line.split(", the same 4 tasks: ")[0] for line in table[4:10]] == [
        f"{pair}, {kind}" for kind in ("sampled", "greedy") for pair in pairs
    ]
    pipeline.main([f"out={out}", "stages=demos,sft,rl", *TINY])
    assert in_process[4:] == []


def test_stages_run_without_those_before_them(in_process, tmp_path):
    """RL alone, and its evaluation without SFT."""
    out = tmp_path / "p"
    pipeline.main([f"out={out}", "stages=rl,evaluate", *TINY])
    assert json.loads((out / "rl" / "config.json").read_text())["resume_from"] == ""
    assert list(json.loads((out / "evaluation.json").read_text())["results"]) == ["base", f"{out}/rl/epoch_1"]


def test_guide_runs_that_differ_are_evaluated_as_rl_played(tmp_path):
    words = ["guide=true", "device=cpu"]
    whole = pipeline.Pipeline(pipeline.Keys(out=str(tmp_path)), words)
    for stage in ("sft", "rl"):
        epoch = whole.folder(stage) / "epoch_1"
        epoch.mkdir(parents=True)
        (epoch / "adapter_config.json").write_text("{}")
        (epoch / "training_config.json").write_text(json.dumps(whole.settings(stage).as_dict()))
        (epoch.parent / "metrics.jsonl").write_text('{"epoch": 1, "eval_loss": 1.0}\n')
    adapters = list(whole.policies().values())[1:]
    found = split(adapter_settings.with_settings(whole.evaluate_command()[1:], adapters))
    assert len(adapters) == 2
    assert (found["max_new_tokens"], found["max_len"], found["thinking"]) == ("256", "40960", "false")


def test_a_finished_stage_is_skipped_unless_its_settings_differ(commands, tmp_path, capsys):
    out = tmp_path / "p"
    out.mkdir()
    (out / "demos.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = [*QUICK.split(), *SHORT]
    sft = ["recipe=affine_sft", "seed=0", f"data={out}/demos.jsonl", f"out={out}/sft", *words]
    train.main(parse(sft))
    assert (out / "sft" / "epoch_1" / "adapter_config.json").is_file(), "the embedded model has an adapter too"
    pipeline.main([f"out={out}", "stages=demos,sft,rl", *words])
    assert [word(command, "algo") or word(command, "recipe") for command in commands] == ["affine_ppo"]
    assert "stage demos: done before" in capsys.readouterr().out
    shutil.rmtree(out / "rl", ignore_errors=True)
    with pytest.raises(SystemExit) as caught:
        pipeline.main([f"out={out}", "stages=sft", *words, "lr=0.5"])
    said = capsys.readouterr().err
    assert caught.value.code == 2 and "finished with other settings (lr=0.002 there, 0.5 here)" in said


def test_a_failing_stage_ends_the_pipeline_with_its_status(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pipeline, "run", lambda *_: 3)
    with pytest.raises(SystemExit) as caught:
        pipeline.main([f"out={tmp_path}/p", *SHORT])
    assert caught.value.code == 3
    assert capsys.readouterr().err == "rl.pipeline: stage demos ended with status 3; the same command goes on\n"


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
        pipeline.run([sys.executable, "-c", saves])
    assert (tmp_path / "saved").is_file()


def test_table_has_every_policy_and_environment(tmp_path):
    """By hand."""
    part = {"success": 0.5, "low": 0.4, "high": 0.6, "episodes": 10}
    tasks = [{"env": "sat", "seed": n, "success": [n % 2], "score": [float(n % 2)]} for n in range(10)]
    whole = {**part, "split": "test", "tasks": tasks, "by_env": {"sat": part, "abd": part}}
    result = [{**whole, "temperature": t} for t in (1.0, 0.0)]
    (tmp_path / "e.json").write_text(json.dumps({"results": {"base": result, "x/epoch_1": result}}))
    lines = list(pipeline.table(tmp_path / "e.json", {"base": "base", "SFT": "x/epoch_1"}))
    assert [line.split()[0] for line in lines] == [
        *["sampled", "sat", "abd", "pooled", "greedy", "sat", "abd", "pooled"],
        *["SFT", "SFT", "success"],
    ]
    assert lines[8].startswith("SFT against base, sampled, the same 10 tasks: no difference shown; success +0.0%")
    assert lines[1].split() == ["sat", "10", "50.0%", "(40.0%", "to", "60.0%)", "50.0%", "(40.0%", "to", "60.0%)"]
    assert lines[-1].endswith("the pipeline's model is SFT, adapter=x/epoch_1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["stages=sft,rll"], "stages=sft,rll: no stage 'rll'; choose from: demos, sft, rl, evaluate; did you mean rl?"),
        (["sft=recipe=affine_ppo"], "sft='recipe=affine_ppo' is algo=ppo: it must be algo=sft"),
        (["rl=algo=sft"], "rl='algo=sft' is algo=sft: it must be algo=ppo, grpo or reinforce"),
        (["rl=recipe=afine_ppo"], "recipe=afine_ppo: no file"),
        (["lrr=1"], "unknown key 'lrr'; did you mean lr?"),
        (["sft=out=x"], "sft= must leave out=, data=, resume= and resume_from= to the pipeline"),
        (["demos=0"], "demos=0 must be positive"),
    ],
)
def test_wrong_words_are_one_line(words, said, tmp_path, monkeypatch):
    status, out, err = run_program("rl/pipeline.py", f"out={tmp_path}/p", *words)
    assert (status, out, err.count("\n")) == (2, "", 1) and err.startswith(f"rl.pipeline: {said}"), err
    assert not (tmp_path / "p").exists()
