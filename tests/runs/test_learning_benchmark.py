"""python -m benchmarks.learning: a row for each environment, whatever happens to the others."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import learning
from rl import stats
from rl.config.arguments import split

pytestmark = pytest.mark.all_only

WON = {"base": [0, 0, 1, 0], "sft/epoch_1": [1, 0, 1, 0], "rl/epoch_1": [1, 1, 1, 0]}  # of the four tasks


def judged(successes: list[int], env: str, temperature: float) -> dict:
    tasks = [{"env": env, "seed": n, "success": [won], "score": [float(won)]} for n, won in enumerate(successes)]
    part = {"success": sum(successes) / 4, "low": 0.1, "high": 0.9, "episodes": 4}
    return {**part, "temperature": temperature, "split": "test", "by_env": {env: part}, "tasks": tasks}


def write_results(out: Path, env: str) -> None:
    """Write what a pipeline leaves that eval.py has judged."""
    for stage in ("sft", "rl"):
        (out / stage / "epoch_1").mkdir(parents=True)
        (out / stage / "epoch_1" / "adapter_config.json").write_text("{}")
        (out / stage / "metrics.jsonl").write_text('{"epoch": 1, "eval_loss": 1.0}\n')
    names = {name: name if name == "base" else f"{out}/{name}" for name in WON}
    results = {names[name]: [judged(won, env, t) for t in (1.0, 0.0)] for name, won in WON.items()}
    (out / "evaluation.json").write_text(json.dumps({"results": results}))


@pytest.fixture
def pipelines(monkeypatch) -> dict[str, int]:
    """Write results instead of running pipelines; ded's fails. Count the runs of each environment."""
    runs = {}

    def call(command, stdout):
        words = split(command[1:])
        env, out = words["env"], Path(words["out"])
        runs[env] = runs.get(env, 0) + 1
        if env == "ded":
            stdout.write("train.py: no | such file\nexamples/pipeline.py: stage sft ended with status 2; ...\n")
            return 2
        write_results(out, env)
        return 0

    monkeypatch.setattr(learning.pipeline, "call", call)
    return runs


def test_a_failed_environment_is_a_row_and_the_others_go_on(pipelines, tmp_path, capsys):
    words = ["envs=sat,ded,abd", "quick=true", f"runs={tmp_path}/runs", f"out={tmp_path}/table.json"]
    for attempt in (1, 2):  # again: only what failed
        with pytest.raises(SystemExit) as end:
            learning.main(words)
        assert end.value.code == 1 and pipelines == {"sat": 1, "ded": attempt, "abd": 1}
    said = capsys.readouterr().out
    assert "ded: failed with status 2: train.py: no | such file" in said and "sat: done before" in said
    table = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1, "whole rows"
    assert table[3].split(" | ")[:2] == ["| ded", "failed: train.py: no / such file"]
    assert [row["env"] for row in json.loads((tmp_path / "table.json").read_text())["rows"]] == ["sat", "ded", "abd"]


def test_cells_are_rates_and_paired_differences(pipelines, tmp_path):
    """Three of four tasks after RL and one before: 50 points more."""
    learning.main(["envs=sat,abd", f"runs={tmp_path}/runs", f"out={tmp_path}/table.json"])
    sat, _ = json.loads((tmp_path / "table.json").read_text())["rows"]
    for kind in ("sampled", "greedy"):
        assert sat[kind]["success"]["SFT"] == [0.5, 0.1, 0.9] and sat[kind]["by_task"]["RL"] == [1, 1, 0, 0]
        value, low, high = sat[kind]["difference"]["RL"]
        assert value == 0.5 and 0 < low < 0.5 < high < 1
    lines = (tmp_path / "table.md").read_text().splitlines()
    cells = next(line for line in lines if line.startswith("| sat")).split(" | ")
    assert cells[2:5] == [f"{rate} (10.0% to 90.0%)" for rate in ("25.0%", "50.0%", "75.0%")]
    (mean, _) = (line.split(" | ") for line in lines if line.startswith("| mean"))
    assert mean[2:5] == ["25.0%", "50.0%", "75.0%"] and mean[6].startswith("+50.0% (+")
    bounds = [float(x) for x in re.findall(r"([+-][\d.]+)%", mean[6])[1:]]
    expected = stats.unweighted_interval([[1, 1, 0, 0]] * 2, stats.DIFFERENCE)
    assert bounds == pytest.approx([100 * bound for bound in expected], abs=0.051)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["envs=sat,sats"], "envs=sat,sats: no 'sats'; choose from: textcraft, "),
        (["envs=sat,sat"], "envs=sat,sat: sat is named twice"),
        (["lrr=1"], "unknown key 'lrr'; did you mean lr?"),
        (["demos=0"], "demos=0 must be positive"),
        (["envs=sat", "quick=true"], "choose another runs="),
    ],
)
def test_wrong_words_are_one_line_before_anything_runs(words, said, pipelines, tmp_path, capsys):
    (tmp_path / "sat").mkdir()
    (tmp_path / "sat" / "done.txt").write_text("env=sat")
    with pytest.raises(SystemExit) as end:
        learning.main([*words, f"runs={tmp_path}"])
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.count("\n") == 1 and err.startswith("benchmarks.learning: ") and said in err
    assert not pipelines
