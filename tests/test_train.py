"""The programs, end to end on the embedded model: what they write, what they refuse, and that a resume is exact."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import train
from rl import config

ROOT = Path(__file__).parent.parent
SMALL = ["episodes=8", "batch_size=4", "eval_episodes=4", "threads=1", "textcraft.max_turns=4"]


def run(*words: str) -> tuple[int, str, str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=300, env=env)
    return done.returncode, done.stdout, done.stderr


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def trained(*words: str) -> None:
    train.main(config.parse([*SMALL, *words]))


@pytest.mark.parametrize("algo", ["ppo", "grpo", "sft"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(algo, tmp_path, monkeypatch):
    words = [f"algo={algo}", "lora.dropout=0.1" if algo == "sft" else "lora.r=4"]
    trained(f"out={tmp_path}/whole", "epochs=3", *words)
    epochs, real = [], train.save_checkpoint

    def cut(state, folder):  # dies after the second epoch's metrics are written and before its checkpoint is
        if state.epoch == 2:
            raise KeyboardInterrupt
        epochs.append(state.epoch)
        return real(state, folder)

    monkeypatch.setattr(train, "save_checkpoint", cut)
    with pytest.raises(KeyboardInterrupt):
        trained(f"out={tmp_path}/cut", "epochs=3", *words)
    assert epochs == [1]
    monkeypatch.undo()
    train.main(config.parse([f"resume={tmp_path}/cut"]))

    for name in ("trainable", "optimizer", *(["critic"] if algo == "ppo" else [])):
        whole, resumed = (
            load_file(tmp_path / folder / "checkpoint-3" / f"{name}.safetensors") for folder in ("whole", "cut")
        )
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    episodes = [(tmp_path / folder / "episodes.jsonl").read_text() for folder in ("whole", "cut")]
    assert episodes[0] == episodes[1]
    metrics = [lines(tmp_path / folder / "metrics.jsonl") for folder in ("whole", "cut")]
    for record in metrics[0] + metrics[1]:
        record.pop("seconds", None)
    assert metrics[0] == metrics[1]


def test_what_a_run_leaves_behind(tmp_path):
    trained(f"out={tmp_path}/run", "algo=ppo", "epochs=2", "lora.r=4")
    folder = tmp_path / "run"
    saved = json.loads((folder / "config.json").read_text())
    assert saved["lora"]["r"] == 4 and saved["ppo"]["clip"] == 0.2 and saved["textcraft"]["max_turns"] == 4
    stats = json.loads((folder / "epoch_2" / "training_stats.json").read_text())
    wanted = "reward_mean reward_std accuracy outcomes policy_loss value_loss approx_kl entropy sampled_tokens seconds"
    assert set(wanted.split()) <= set(stats)
    assert stats["sampler_gap"] == 0.0, "on a CPU in float32 the sampler is the trainer"
    names = {path.name for path in (folder / "epoch_2").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "training_stats.json"} <= names
    episodes = lines(folder / "episodes.jsonl")
    assert len(episodes) == 16
    for e in episodes:
        spans = [i for turn in e["turns"] for i in range(turn["start"], turn["stop"])]
        assert spans == [i for i, sampled in enumerate(e["action_mask_T"]) if sampled]
        assert len(e["ids_T"]) == len(e["logprobs_T"]) == len(e["action_mask_T"])
    hashes = [{e["adapter_hash"] for e in episodes if e["epoch"] == epoch} for epoch in (1, 2)]
    assert all(len(h) == 1 for h in hashes) and hashes[0] != hashes[1]
    evaluations = [line["eval"] for line in lines(folder / "metrics.jsonl") if "eval" in line]
    assert [e["temperature"] for e in evaluations] == [1.0, 0.0, 1.0, 0.0]
    assert all(e["low"] <= e["success"] <= e["high"] for e in evaluations)


def test_full_fine_tuning_writes_a_model_that_loads(tmp_path):
    trained(f"out={tmp_path}/run", "algo=sft", "lora.r=0", "epochs=1", "lr=1e-4", "eval_episodes=0")
    code, out, _ = run(
        "eval.py", f"model={tmp_path}/run/epoch_1", "recipe=default", "n=2", "threads=1", "max_new_tokens=8"
    )
    assert code == 0 and "success" in out


def test_max_steps_and_max_len_end_things(tmp_path):
    trained(f"out={tmp_path}/run", "algo=grpo", "epochs=5", "max_steps=3", "max_len=110", "eval_episodes=0")
    records = lines(tmp_path / "run" / "metrics.jsonl")
    assert records[-1]["step"] == 3 and len(records) == 2
    episodes = lines(tmp_path / "run" / "episodes.jsonl")
    assert all(len(e["ids_T"]) <= 110 for e in episodes if e["turns"])
    cut = [e for e in episodes if e["truncated"] and e["turns"] and e["turns"][-1]["stop_reason"] == "context"]
    assert cut and all(e["outcome"] == "timeout" and not e["success"] for e in cut)


BAD = {
    "unknown key": (["train.py", "ppo.clp=0.1"], 2, "ppo.clip"),
    "wrong type": (["train.py", "epochs=many"], 2, "epochs=many must be a whole number"),
    "impossible value": (["train.py", "lr=-1"], 2, "lr=-1.0 must be positive"),
    "unknown environment": (["train.py", "env=textcroft"], 2, "textcraft"),
    "unknown field of out": (["train.py", "out=runs/{{name}}"], 2, "{timestamp}"),
    "missing folder": (["train.py", "model=./nowhere"], 1, "./nowhere"),
    "hub id without network": (["train.py", "model=Qwen/Qwen2.5-0.5B-Instruct"], 1, "Qwen/Qwen2.5-0.5B-Instruct"),
    "no such adapter": (["eval.py", "adapter=runs/nowhere"], 1, "runs/nowhere"),
    "resume from nothing": (["train.py", "resume=runs/nowhere"], 2, "runs/nowhere"),
    "nothing but the head": (["train.py", "lora.targets=lm_head", "out={tmp}/x"], 1, "lm_head"),
    "merge without out": (["merge.py", "adapter=runs/x"], 2, "out="),
    "merge of nothing": (["merge.py", "adapter=runs/nowhere", "out={tmp}/m"], 1, "runs/nowhere"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line(name, tmp_path):
    words, status, said = BAD[name]
    code, _, err = run(*(word.format(tmp=tmp_path) for word in words))
    assert code == status and said in err and "Traceback" not in err
    assert len(err.strip().splitlines()) == 1 or words[0] == "merge.py"
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_second_run_does_not_overwrite_the_first(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for made, way in (
        (None, "it has no checkpoint; choose another out="),
        ("checkpoint-3", f"resume={tmp_path}/run goes on with it"),
    ):
        if made:
            (tmp_path / "run" / made).mkdir()
        code, out, err = run("train.py", f"out={tmp_path}/run")
        assert code == 1 and way in err and not out, "before anything is loaded"
        assert (tmp_path / "run" / "config.json").read_text() == "{}"
