"""The benchmark of a real size: a run in phases beside trl."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import rl.rollout
from benchmarks import common, products, real_size, sides
from models.config import parse_config
from models.decoder import CausalLM
from models.sizes import sizes_of
from rl.run import run as run_module

pytestmark = pytest.mark.all_only

SMALL = "shape=quarter dtype=float32 threads=1 turns=2 new=4 episodes=4 group=2 eval_episodes=1"


def in_this_process(options, side, model):
    """Run a side as its own process would."""
    folder = Path(model).parent / f"{side} {len(list(Path(model).parent.iterdir()))}"
    folder.mkdir()
    run = real_size.RUNS[side]
    threads = torch.get_num_threads()
    with patch.object(rl.rollout.reward, "turn_reward", real_size.even_ids):
        found = run(options, model, folder)
    torch.set_num_threads(threads)
    return found


@pytest.mark.skipif(bool(common.absent("transformers", "peft")), reason="transformers and peft are not installed")
@pytest.mark.parametrize("fails", [False, True])
def test_all_sides_play_and_learn_from_as_many_tokens(fails, monkeypatch, capsys):
    """4 episodes of 2 turns of 4 tokens; 4 evaluations of one episode each. A peer that fails is left out by name."""

    def run(options, side, model):
        if side == "trl" and fails:
            raise TypeError("its trainer cannot be made")
        return in_this_process(options, side, model)

    monkeypatch.setattr(real_size, "measured", run)
    real_size.main(common.parse(real_size.Options, SMALL.split()))
    printed = capsys.readouterr().out
    record = json.loads(printed.splitlines()[-1])
    rows = {row["name"]: row for row in record["rows"]}
    names = {"load", "trial", "evaluate", "collect", "score", "learn", "save", "all"}
    assert names | {f"{name}, peak" for name in names} == set(rows)
    assert rows["collect"]["tokens"] == 32 and rows["evaluate"]["tokens"] == 32
    assert all(0 < rows[f"{name}, peak"]["median"]["ours"] < 20 for name in names)
    peers = [side for side in rows["collect"]["values"] if side != "ours"]
    there = not common.absent(*sides.TRAINER)
    assert peers == ["trl"] * (there and not fails) + ["transformers + peft"]
    assert ("trl: left out, TypeError: its trainer cannot be made." in record["notes"]) == (there and fails)
    for name in ("collect", "evaluate", "learn"):
        counts = {part.split()[-2] for part in rows[name]["check"].split(", ") if "tokens" in part}
        assert len(counts) == 1 and all(rows[name]["ratio"][peer] > 0 for peer in peers)
    seconds = [row["median"]["ours"] for name, row in rows.items() if name in names - {"all"}]
    assert rows["all"]["median"]["ours"] == pytest.approx(sum(seconds))


def test_a_phase_after_another_leaves_its_own_peak(tmp_path, monkeypatch):
    """What the trial made is still there when the rest of the start is loaded, so it counts as the trial's."""
    peaks = iter([1, 5, 4, 7])
    monkeypatch.setattr(run_module, "end_phase", lambda: next(peaks))
    run = run_module.Run(tmp_path)
    for name, after in (("load", ""), ("trial", ""), ("load", "trial"), ("collect", "")):
        with run.phase(name, after):
            pass
    assert {name: phase["peak_bytes"] for name, phase in run.phases.items()} == {"load": 1, "trial": 5, "collect": 7}


def test_phases_add_up_over_the_lines_of_a_run(tmp_path):
    lines = [
        {"phases": {"load": {"seconds": 1.0, "tokens": 0, "peak_bytes": 2**30}}},
        {"loss": 1.0},
        {"phases": {"load": {"seconds": 2.0, "tokens": 3, "peak_bytes": 2**29}}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert real_size.phases_of(tmp_path) == {"load": real_size.Phase(3.0, 3, 1.0)}


@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
def test_quantised_random_models_are_close_to_their_base(kind):
    raw = sides.SHAPES["quarter"] | {"num_hidden_layers": 1}
    ids = torch.arange(30)[None]
    expected, found = sides.random(raw)(ids), sides.quantised(sides.random(raw), kind)(ids)
    assert 0 < (found - expected).norm() / expected.norm() < (0.03 if kind == "int8" else 0.4)


@pytest.mark.parametrize("shape", ["1.5b", "7b", "8b", "14b", "32b"])
def test_sizes_are_those_of_the_model(shape):
    cfg = parse_config(sides.SHAPES[shape])
    with torch.device("meta"):
        model = CausalLM(cfg)
    sizes = sizes_of(cfg)
    assert sizes.weights == sum(p.numel() for p in model.parameters())
    linears = [p for name, p in model.model.layers.named_parameters() if name.endswith("_proj.weight")]
    assert sizes.block_weights == sum(p.numel() for p in linears)


def test_a_trial_that_chooses_the_slower_library_misses_the_target(monkeypatch, capsys):
    """Each library is forced in each repeat, in turn with the choice; what counts is sampling and update together."""
    seconds, asked = {"auto": (1.0, 2.0), "onednn": (1.0, 1.9), "plain": (2.0, 0.1)}, []

    def alone(_epoch, options, model):
        asked.append(options.products)
        collect, learn = seconds[options.products]
        phases = {"collect": real_size.Phase(collect, 32, 2.0), "learn": real_size.Phase(learn, 60, 3.0)}
        return ("onednn", phases | {"load": real_size.Phase(9.0, 0, 1.0)})

    monkeypatch.setattr(real_size, "alone", alone)
    monkeypatch.setattr(products.process, "usable_libraries", lambda: ["onednn", "plain"])
    products.main(common.parse(products.Options, [*SMALL.split(), "repeats=2"]))
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert asked == ["auto", "onednn", "plain"] * 2
    assert "products=auto chose: onednn, onednn." in record["notes"]
    rows = {row["name"]: row for row in record["rows"]}
    assert rows["both"]["ratio"] == pytest.approx({"products=onednn": 2.9 / 3, "products=plain": 0.7})
    verdicts = {side: text.split(": ")[1].split()[0] for side, text in rows["both"]["target"].items()}
    assert verdicts == {"products=onednn": "met", "products=plain": "missed"}
    assert rows["peak"]["median"] == dict.fromkeys(("ours", "products=onednn", "products=plain"), 3.0)


def test_a_library_to_begin_with_is_refused(capsys):
    with pytest.raises(SystemExit, match="forces each library itself"):
        products.main(common.parse(products.Options, ["products=plain"]))
