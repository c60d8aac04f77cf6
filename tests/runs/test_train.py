"""The programs end to end on the embedded model: files that they write, errors, and exact resumes."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import cases
from conftest import metrics_of, page_data, run_program
from safetensors.torch import load_file

import envs
import rl.run.run
import train
from envs import textcraft
from eval import words_and_lines_as_trained
from models import memory
from models.weights import TINY
from rl.config.arguments import ArgumentError
from rl.config.words import parse
from rl.ranks.pace import Pace
from rl.run import folder as claims
from rl.run.run import Run

CASES = cases("train")

ROOT = Path(__file__).parents[2]
PARAMETERS = sum(x.numel() for x in load_file(TINY / "model.safetensors").values())
SMALL = ["episodes=8", "batch_size=4", "eval_episodes=0", "threads=1", "textcraft.max_turns=4"]
SMALL += ["products=onednn"]  # two trials may choose two libraries, whose bits differ
PLAYED = ["max_new_tokens=10", "textcraft.max_turns=2", "reward.rule=shaped", "temperature=1.5"]  # short, with rewards


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(*words: str) -> None:
    train.main(parse([*SMALL, *words]))


RESUMED = {  # with what each carries from epoch to epoch
    "ppo": ["ppo.epochs=2", "eval_episodes=2", "ppo.kl_coef=0.1", "ppo.kl_target=0.01", "ppo.kl_horizon=8", "lora.r=4"],
    "grpo": ["lora.r=4", "seed=2"],
    "grpo of every weight, in bfloat16": ["lora.r=0", "dtype=bfloat16", "lr=1e-4", "seed=2"],
    "reinforce": ["reinforce.baseline=moving", "optimizer=adam", "order=sequential", "lora.r=4"],
    "sft": ["lora.dropout=0.1"],
    "sft from a file": ["algo=sft", "data={tmp}/rows.jsonl", "lora.dropout=0.1"],
}


LONG = ("reinforce", "grpo", "sft", "grpo of every weight, in bfloat16")  # of which other resumed runs have the parts


@pytest.mark.all_only
@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.full] * (x in LONG)) for x in RESUMED])
def test_resumed_run_equals_the_uninterrupted_one_bitwise(name, tmp_path, monkeypatch):
    rows = [json.dumps({"prompt": f"get {i} log", "answer": f"Got {i} log"}) for i in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    algo = name.split()[0]
    words = [f"algo={algo}", *(word.format(tmp=tmp_path) for word in RESUMED[name])]
    words += PLAYED * (algo != "sft")
    trained(f"out={tmp_path}/whole", "epochs=2", *words)
    epochs, real = [], rl.run.run.save_checkpoint

    def cut(state, folder):  # dies after the second epoch's metrics are written and before its checkpoint is
        if state.epoch == 2:
            raise KeyboardInterrupt
        epochs.append(state.epoch)
        return real(state, folder)

    monkeypatch.setattr("rl.run.run.save_checkpoint", cut)
    with pytest.raises(KeyboardInterrupt):
        trained(f"out={tmp_path}/cut", "epochs=2", *words)
    assert epochs == [1]
    monkeypatch.undo()
    train.main(parse([f"resume={tmp_path}/cut"]))

    for kind in ("trainable", "optimizer", *(["critic"] if algo == "ppo" else [])):
        whole, resumed = (
            load_file(tmp_path / folder / "checkpoint-2" / f"{kind}.safetensors") for folder in ("whole", "cut")
        )
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    if "file" not in name:
        episodes = [(tmp_path / folder / "episodes.jsonl").read_text() for folder in ("whole", "cut")]
        assert episodes[0] == episodes[1]
    metrics = [metrics_of(tmp_path / folder) for folder in ("whole", "cut")]
    for record in metrics[0] + metrics[1]:
        record.pop("seconds", None)
    assert metrics[0] == metrics[1]
    assert all(record["grad_norm"] > 0 for record in metrics[0] if "loss" in record)


@pytest.mark.all_only
def test_a_run_writes_metrics_episodes_and_adapters(tmp_path, capsys):
    words = ["lora.r=4", "lora.targets=q_proj,v_proj", "log=debug", "max_new_tokens=10"]
    trained(f"out={tmp_path}/run", "algo=ppo", "epochs=2", "eval_episodes=2", *words)
    folder, output = tmp_path / "run", capsys.readouterr().out
    tensors = load_file(folder / "epoch_2" / "adapter_model.safetensors")
    trainable, total = sum(x.numel() for x in tensors.values()), PARAMETERS
    assert f"lora on: r=4 alpha=32 on 10 layers (q_proj, v_proj); {trainable:,} of {total + trainable:,} par" in output
    assert all(key.replace("lora_A", "lora_A|B").replace("lora_B", "lora_A|B") in output for key in tensors)
    assert f"recipe embedded: lr={parse([]).lr} " in output and "; command line: " in output
    saved = json.loads((folder / "config.json").read_text())
    assert saved["lora"]["r"] == 4 and saved["ppo"]["clip"] == 0.2 and saved["textcraft"]["max_turns"] == 4
    stats = json.loads((folder / "epoch_2" / "training_stats.json").read_text())
    wanted = "reward_mean reward_std accuracy outcomes policy_loss value_loss approx_kl entropy sampled_tokens seconds"
    assert set(wanted.split()) <= set(stats)
    assert stats["sampler_gap"] == 0.0, "on a CPU in float32 the sampler is the trainer"
    names = {path.name for path in (folder / "epoch_2").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "training_stats.json"} <= names
    assert "training_config.json" in names
    episodes = lines(folder / "episodes.jsonl")
    assert len(episodes) == 16
    for e in episodes:
        spans = [i for turn in e["turns"] for i in range(turn["start"], turn["stop"])]
        assert spans == [i for i, sampled in enumerate(e["action_mask_T"]) if sampled]
        assert len(e["ids_T"]) == len(e["logprobs_T"]) == len(e["action_mask_T"])
    hashes = [{e["adapter_hash"] for e in episodes if e["epoch"] == epoch} for epoch in (1, 2)]
    assert all(len(h) == 1 for h in hashes) and hashes[0] != hashes[1]
    evaluations = [line["eval"] for line in metrics_of(folder) if "eval" in line]
    assert [e["temperature"] for e in evaluations] == [1.0, 0.0, 1.0, 0.0]
    assert all(e["low"] <= e["success"] <= e["high"] for e in evaluations)


def test_phases_have_lines_of_their_own(tmp_path, capsys):
    """The passes that target_kl ends early are not counted as trained."""
    words = [*PLAYED, "lora.r=4", "epochs=2", "eval_episodes=1", "eval_every=1", "ppo.epochs=3", "ppo.target_kl=1e-9"]
    trained(f"out={tmp_path}/run", "algo=ppo", *words)
    records = lines(tmp_path / "run" / "metrics.jsonl")
    first, second = (record["phases"] for record in records if "phases" in record)
    assert list(first) == ["load", "trial", "evaluate", "collect", "score", "learn", "save"]
    assert list(second) == ["collect", "score", "learn", "save", "evaluate"]
    epochs = [record for record in metrics_of(tmp_path / "run") if "loss" in record]
    for phases, stats in zip((first, second), epochs, strict=True):
        assert phases["collect"]["tokens"] == stats["sampled_tokens"]
        assert phases["score"]["tokens"] == stats["total_tokens"]
        assert 0 < phases["learn"]["tokens"] == stats["trained_tokens"] < 3 * stats["total_tokens"]
    evaluated = {epoch: 0 for epoch in range(3)}
    for record in records:
        evaluated[record["epoch"]] += record.get("eval", {}).get("sampled_tokens", 0)
    assert first["evaluate"]["tokens"] == evaluated[0] + evaluated[1]
    assert second["evaluate"]["tokens"] == evaluated[2] > 0
    for phase in (*first.values(), *second.values()):
        assert phase["seconds"] > 0 and phase["tokens_per_second"] == phase["tokens"] / phase["seconds"]
        assert phase["peak_bytes"] > 2**27 or not memory.CLEAR.exists()
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("peak memory in GiB: load ")]
    assert re.fullmatch(r"peak memory in GiB: (\w+ \d+\.\d\d(, |$)){7}", line)
    (shown,) = page_data(tmp_path / "run" / "report.html", "runs")
    assert [r["phases"].keys() for r in shown["metrics"] if "phases" in r] == [first.keys(), second.keys()]


def test_peaks_are_printed_again_once_one_has_grown_by_a_quarter(tmp_path, capsys):
    run, state = Run(tmp_path), SimpleNamespace(epoch=1, step=1, pace=Pace())
    for gib in (2, 2.25, 2.75, 3, 1):
        run.phases["learn"] = {"peak_bytes": int(gib * 2**30), "waited": 0.0}
        run.log_phases(state)
    assert capsys.readouterr().out.splitlines() == [f"peak memory in GiB: learn {gib}" for gib in ("2.00", "2.75")]


def test_sft_from_a_file_learns_it_and_logs_its_loss(tmp_path, capsys):
    rows = [{"question": f"get {i % 10} log", "reply": "Got them."} for i in range(60)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"question": "x " * 99, "reply": "y"}])))
    columns = ["sft.prompt_column=question", "sft.answer_column=reply"]
    trained(f"out={tmp_path}/run", "algo=sft", f"data={tmp_path}/rows.jsonl", "epochs=2", "max_len=60", *columns)
    output = capsys.readouterr().out
    assert "data: 54 conversations to learn, 6 held out; 1 cut by max_len=60, 1 left out for it" in output
    assert "data: an epoch learns all of them, so episodes= has no effect" in output
    records = metrics_of(tmp_path / "run")
    held_out = [r["eval_loss"] for r in records if "eval_loss" in r]
    assert len(held_out) == 2 and held_out[1] < 0.1 * held_out[0]
    assert output.count("held-out loss ") == 3, "before, after, and the last line's best"
    assert f"perplexity {records[-1]['perplexity']:.2f}" in output
    assert not any("eval" in r or "accuracy" in r for r in records), "there is no task to play"
    assert [r["episodes"] for r in records if "episodes" in r] == [54] * 2, "an epoch is a pass"
    (shown,) = page_data(tmp_path / "run" / "report.html", "runs")
    assert [r["eval_loss"] for r in shown["metrics"] if "eval_loss" in r] == held_out


def test_affine_recipe_penalizes_invalid_actions_everywhere(tmp_path):
    words = ["epochs=1", "episodes=32", "max_turns=1", "max_new_tokens=1", "eval_episodes=0", "threads=1"]
    train.main(parse(["recipe=affine_ppo", f"out={tmp_path}/run", *words]))
    episodes = lines(tmp_path / "run" / "episodes.jsonl")
    assert {e["env"] for e in episodes} == set(envs.GROUPS["agentgym"])
    assert {turn["reward"] for e in episodes for turn in e["turns"]} == {-0.05}, "one token is no action"


@pytest.mark.parametrize("steps", [3, 2])
def test_a_warmup_beyond_the_run_is_said_at_the_start(steps, tmp_path, capsys):
    trained(f"out={tmp_path}/run", "algo=sft", "epochs=1", "lora.r=4", f"warmup_steps={steps}")
    line = "warmup_steps=3 of 2 optimizer steps: the learning rate does not reach lr=0.003\n"
    assert capsys.readouterr().out.count(line) == (steps == 3)
    [record] = metrics_of(tmp_path / "run")
    assert record["step"] == 2


def test_save_every_keeps_the_last_epoch(tmp_path):
    trained(f"out={tmp_path}/run", "algo=sft", "epochs=5", "save_every=3", "lora.r=4", "episodes=4")
    kept = {path.name for path in (tmp_path / "run").iterdir() if path.is_dir()}
    assert kept == {"epoch_3", "epoch_5", "checkpoint-3", "checkpoint-5"}  # two stay: of all, they would be 4 and 5


def test_a_run_learns_from_the_demonstrations_that_are_whole(tmp_path, monkeypatch):
    real = textcraft.Env.reset

    def reset(env, seed, split):
        if seed % 2:
            raise envs.EnvironmentFailed("no answer")
        return real(env, seed, split)

    monkeypatch.setattr(textcraft.Env, "reset", reset)
    trained(f"out={tmp_path}/run", "algo=sft", "epochs=1", "lora.r=4")
    [record] = metrics_of(tmp_path / "run")
    assert 0 < record["infrastructure_failed"] == record["left_out"] < record["episodes"] == 8


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    """Return the adapter of a run of sft."""
    folder = tmp_path_factory.mktemp("sft")
    trained(f"out={folder}/run", "algo=sft", "epochs=1", "lora.r=4")
    return folder / "run" / "epoch_1"


@pytest.mark.all_only
def test_rl_from_an_sft_adapter_keeps_it_as_the_reference(start, tmp_path, capsys):
    shutil.copytree(start.parent, tmp_path / "sft")
    evaluations = [
        {"epoch": n, "step": n, "eval": {"temperature": 1.0, "success": x}} for n, x in ((0, 0.5), (1, 0.25))
    ]
    (tmp_path / "sft" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in evaluations))
    start = tmp_path / "sft" / "epoch_1"
    words = [*PLAYED, "algo=grpo", "grpo.kl_coef=0.1", "epochs=2", "episodes=16", "batch_size=16"]
    trained(f"out={tmp_path}/rl", f"resume_from={start}", *words)
    said = f"resume_from={start}: success 25.0%; before training it was better, 50.0%\n"
    assert capsys.readouterr().out.count(said) == 1
    records = metrics_of(tmp_path / "rl")
    assert records[0]["reference_kl"] < 1e-6 < records[1]["reference_kl"], "it starts at the reference and leaves it"
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (start, tmp_path / "rl" / "epoch_2"))
    assert before.keys() == after.keys() and not any(torch.equal(before[key], after[key]) for key in before)
    assert json.loads((tmp_path / "rl" / "config.json").read_text())["lora"]["r"] == 4, "the adapter's own settings"


def test_an_earlier_versions_run_resumes(tmp_path):
    """fixtures/earlier_run: a PPO run of two epochs, as written before files were split up, without its second epoch.

    The resumed run repeats the metrics that the earlier version wrote for that epoch.
    """
    run = tmp_path / "run"
    shutil.copytree(ROOT / "tests" / "fixtures" / "earlier_run", run)
    expected = metrics_of(run)
    train.main(parse([f"resume={run}"]))
    got = metrics_of(run)
    assert got[0] == expected[0] and len(got) == len(expected) == 2
    for name in ("epoch", "step", "outcomes", "sampled_tokens", "optimizer_steps", "lr"):
        assert got[1][name] == expected[1][name], name
    for name in ("reward_mean", "loss", "value_loss", "entropy", "grad_norm"):
        # its entropy, of logits that cancelled, was off by up to 4e-6
        assert got[1][name] == pytest.approx(expected[1][name], rel=1e-3, abs=5e-6), name
    saved = [load_file(run / f"checkpoint-{epoch}" / "optimizer.safetensors") for epoch in (1, 2)]
    steps = [{float(x) for name, x in tensors.items() if name.endswith(".step")} for tensors in saved]
    assert steps == [{1.0}, {2.0}], "the optimizer's state continues"


def test_resumed_run_keeps_its_reference(start, tmp_path, capsys):
    """The adapter's folder is deleted before the resume."""
    shutil.copytree(start, tmp_path / "sft" / "epoch_1")
    words = [*PLAYED, f"resume_from={tmp_path}/sft/epoch_1", "algo=grpo", "grpo.kl_coef=0.1", "schedule=constant"]
    trained(f"out={tmp_path}/whole", "epochs=2", *words)
    trained(f"out={tmp_path}/cut", "epochs=1", *words)
    shutil.rmtree(tmp_path / "sft")
    train.main(parse([f"resume={tmp_path}/cut"]))
    assert "nothing is left to do: 1 epochs and 2 steps are done" in capsys.readouterr().out
    train.main(parse([f"resume={tmp_path}/cut", "epochs=2"]))
    whole, cut = (load_file(tmp_path / name / "epoch_2" / "adapter_model.safetensors") for name in ("whole", "cut"))
    assert all(torch.equal(whole[key], cut[key]) for key in whole)
    second = metrics_of(tmp_path / "whole")[-1]
    assert second["grad_norm"] > 0 < second["reference_kl"], "the reference has a part in what is learned"


@pytest.mark.all_only
def test_moving_reference_is_the_policy_of_an_earlier_epoch_also_after_a_resume(tmp_path, monkeypatch):
    """reference_every=2: KL is measured to the base in two epochs, then to the policy of epoch 2."""
    words = [*PLAYED, "algo=grpo", "grpo.kl_coef=0.1", "grpo.reference_every=2", "schedule=constant", "lora.r=4"]
    references, real = [], train.score

    def score(state, *rest):
        batch, weights = real(state, *rest), {key.split(".adapters.")[0]: p for key, p in state.trainable().items()}
        moved = {key.split(".adapters.")[0]: p for key, p in state.moved_reference().items()}
        same = bool(moved) and all(torch.equal(moved[key], weights[key]) for key in moved)
        references.append((state.epoch, state.reference, same))
        return batch

    monkeypatch.setattr(train, "score", score)
    trained(f"out={tmp_path}/whole", "epochs=4", *words)
    expected = [(0, None, False), (1, None, False), (2, "moved", True), (3, "moved", False)]
    assert references == expected
    trained(f"out={tmp_path}/cut", "epochs=3", *words)
    train.main(parse([f"resume={tmp_path}/cut", "epochs=4"]))
    assert references[-1] == expected[-1]
    for file in ("epoch_4/adapter_model", "checkpoint-4/reference"):
        whole, cut = (load_file(tmp_path / name / f"{file}.safetensors") for name in ("whole", "cut"))
        assert whole and all(torch.equal(whole[key], cut[key]) for key in whole)
    policy = load_file(tmp_path / "whole" / "checkpoint-4" / "trainable.safetensors")
    assert all(torch.equal(whole[key.replace(".default.", ".moved.")], p) for key, p in policy.items()), "moved again"
    records = [record for record in metrics_of(tmp_path / "whole") if "reference_kl" in record]
    assert records[2]["reference_kl"] < records[1]["reference_kl"] and records[3]["reference_kl"] > 0


def test_dynamic_rope_is_played_but_not_trained(tmp_path):
    shutil.copytree(TINY, tmp_path / "model")
    raw = json.loads((TINY / "config.json").read_text())
    raw["rope_scaling"] = {"rope_type": "dynamic", "factor": 2.0}
    (tmp_path / "model" / "config.json").write_text(json.dumps(raw))
    words = [f"model={tmp_path}/model", "threads=1", "max_new_tokens=8", "max_len=512", "textcraft.max_turns=2"]
    code, _, err = run_program("train.py", f"out={tmp_path}/run", *words)
    assert code == 2 and "dynamic RoPE changes with a batch's longest sequence" in err
    assert not (tmp_path / "run").exists()
    code, out, _ = run_program("eval.py", "n=2", *words)
    assert code == 0 and "success" in out


def test_full_fine_tuning_writes_a_model_that_loads(tmp_path, capsys):
    trained(f"out={tmp_path}/run", "algo=sft", "lora.r=0", "epochs=1", "lr=1e-4")
    assert f"lora off: all {PARAMETERS:,} parameters train" in capsys.readouterr().out
    code, out, _ = run_program("eval.py", f"model={tmp_path}/run/epoch_1", "n=2", "threads=1", "max_new_tokens=8")
    assert code == 0 and "success" in out


def test_full_fine_tuning_in_bfloat16_writes_bfloat16(tmp_path, capsys):
    words = ["algo=sft", "lora.r=0", "dtype=bfloat16", "epochs=1", "lr=1e-5"]
    trained(f"out={tmp_path}/run", *words)
    assert f"all {PARAMETERS:,} parameters train, in float32 copies of the weights" in capsys.readouterr().out
    model, copies = (
        load_file(tmp_path / "run" / name)
        for name in ("epoch_1/model.safetensors", "checkpoint-1/trainable.safetensors")
    )
    assert {x.dtype for x in model.values()} == {torch.bfloat16} and {x.dtype for x in copies.values()} == {
        torch.float32
    }
    assert all(torch.equal(x, copies[name].bfloat16()) for name, x in model.items() if name in copies)
    start = load_file(TINY / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    assert (copies[name] != start[name].float()).float().mean() > 0.99, "each weight has moved"


def test_max_steps_ends_the_run_and_max_len_the_episodes(tmp_path):
    trained(f"out={tmp_path}/run", "algo=grpo", "epochs=5", "max_steps=3", "max_len=180")
    records = metrics_of(tmp_path / "run")
    assert records[-1]["step"] == 3 and len(records) == 2
    episodes = lines(tmp_path / "run" / "episodes.jsonl")
    assert all(len(e["ids_T"]) <= 180 for e in episodes if e["turns"])
    cut = [e for e in episodes if e["truncated"] and e["turns"] and e["turns"][-1]["stop_reason"] == "context"]
    assert cut and all(e["outcome"] == "timeout" and not e["success"] for e in cut)


BAD = CASES["bad input"]


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(name, tmp_path):
    words, status, said = BAD[name]
    code, _, err = run_program(*(word.format(tmp=tmp_path) for word in words))
    assert code == status and said in err and "Traceback" not in err
    assert len(err.strip().splitlines()) == 1 or words[0] == "merge.py"
    assert not list(tmp_path.rglob("*.safetensors"))


def test_runs_that_begin_together_do_not_share_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(claims.time, "strftime", lambda _: "now")
    cfg = parse([f"out={tmp_path}/{{timestamp}}"])
    with claims.claim(cfg) as (_, first):
        Run(first).begin(cfg)
        with claims.claim(cfg) as (_, second):
            Run(second).begin(cfg)
    assert [first.name, second.name] == ["now", "now-2"]


def test_eval_loads_the_base_that_the_adapter_names(tmp_path):
    for name, base in (("a", str(TINY.resolve())), ("b", "some/model")):
        settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "base_model_name_or_path": base}
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps(settings))
    words = ["env=textcraft", "n=3"]
    assert words_and_lines_as_trained([f"adapter=base,{tmp_path}/a", *words])[0][-1] == "model=tiny"
    assert words_and_lines_as_trained([f"adapter={tmp_path}/b", *words])[0][-1] == "model=some/model"
    for own in ([f"adapter={tmp_path}/b", "model=other"], ["n=3"], ["adapter=base"]):
        assert words_and_lines_as_trained([*own, *words])[0] == [*own, *words]
    with pytest.raises(ArgumentError, match="runs/nowhere/adapter_config"):
        words_and_lines_as_trained(["adapter=runs/nowhere", *words])
