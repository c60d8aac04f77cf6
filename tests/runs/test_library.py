"""The functions for notebooks compute what the programs do, raise errors, and leave the process as it was."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import run_notebook
import torch
from conftest import ROOT, run_program
from safetensors.torch import load as load_safetensors

import lora
import rl
import train as program
from models import load_model, load_tokenizer
from models.engine import Engine
from rl.run import signals

QUESTION = "Reply with one word.\noak iron"
SMALL = {"algo": "grpo", "env": "textcraft", "epochs": 1, "episodes": 8, "batch_size": 4, "eval_episodes": 2}
SMALL |= {"threads": 1, "products": "onednn", "strict": False, "textcraft": {"max_turns": 4}, "lora": {"r": 4}}
SMALL |= {"grpo.group_size": 4, "lr": 0.01}
WORDS = "algo=grpo env=textcraft epochs=1 episodes=8 batch_size=4 eval_episodes=2 threads=1 products=onednn ranks=1"
WORDS += " strict=false textcraft.max_turns=4 lora.r=4 grpo.group_size=4 lr=0.01"


@pytest.fixture(scope="module")
def policy() -> rl.Policy:
    return rl.load("tiny", threads=1, products="onednn")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> rl.Trained:
    """Return a small run, made on another thread than the main one."""
    finished, out = [], tmp_path_factory.mktemp("library") / "run"
    thread = threading.Thread(target=lambda: finished.append(rl.train(**SMALL, out=out)))
    thread.start()
    thread.join()
    return finished[0]


def adapter(run: Path) -> bytes:
    return (run / "epoch_1" / "adapter_model.safetensors").read_bytes()


def test_training_has_the_bits_of_the_program(run, tmp_path):
    """And it changes the adapter, whose B is 0 at first."""
    status, _, err = run_program("train.py", *WORDS.split(), f"out={tmp_path}/run")
    assert status == 0, err
    assert adapter(run.folder) == adapter(tmp_path / "run")
    assert any(B.any() for name, B in load_safetensors(adapter(run.folder)).items() if "lora_B" in name)


def test_a_finished_run_has_its_folder_metrics_and_curve(run):
    assert run.folder.name == "run" and run.best_epoch == 1
    assert run.metrics == [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert run._repr_svg_().startswith("<svg")
    assert rl.Trained(run.folder, [], None)._repr_svg_() is None


def test_wrong_settings_raise_the_line_of_the_program(tmp_path):
    for word, settings in {
        "learning_rate=0.001": {"learning_rate": 1e-3},
        "algo=gpro": {"algo": "gpro"},
        "lora.rank=4": {"lora": {"rank": 4}},
        "lr=fast": {"lr": "fast"},
        "shard=zero2": {"shard": "zero2"},
    }.items():
        status, _, err = run_program("train.py", word, "ranks=1", f"out={tmp_path}/run")
        with pytest.raises(ValueError) as caught:
            rl.train(**settings, out=tmp_path / "run")
        assert status == 2 and err == f"train.py: {caught.value}\n"
    assert not (tmp_path / "run").exists()


def test_what_needs_a_program_is_refused():
    with pytest.raises(ValueError, match=r"^ranks=2: train\(\) is one process"):
        rl.train(ranks=2)
    with pytest.raises(ValueError, match=r"^plan= prints what a run needs"):
        rl.train(plan="24GiB")


def test_training_leaves_the_process_as_it_was(policy, run, tmp_path, threads):
    """So a second run has the bits of the first."""
    threads(2)
    torch.manual_seed(5)
    numbers, before = torch.rand(3), [signal.getsignal(number) for number in signals.SIGNALS]
    said = policy.log_probs("oak", QUESTION)
    torch.manual_seed(5)
    assert adapter(rl.train(**SMALL, out=tmp_path / "run").folder) == adapter(run.folder)
    assert torch.equal(torch.rand(3), numbers) and torch.get_num_threads() == 2
    assert [signal.getsignal(number) for number in signals.SIGNALS] == before
    assert policy.log_probs("oak", QUESTION) == said


def test_a_second_interrupt_does_not_end_the_process(tmp_path, monkeypatch):
    """The notebook goes on after a run that it interrupts, and so can the run."""
    real, taken, before = program.learn.__globals__["update"], [], signal.getsignal(signal.SIGINT)

    def interrupted(*args):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        taken.append(1)
        return real(*args)

    monkeypatch.setitem(program.learn.__globals__, "update", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        rl.train(**{**SMALL, "eval_episodes": 0}, out=tmp_path / "run")
    assert taken and f"resume={tmp_path}/run" in " ".join(caught.value.__notes__)
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert rl.train(resume=tmp_path / "run").metrics[-1]["epoch"] == 1


def test_log_probs_are_those_of_sampling(policy):
    """Bit for bit, for a reply whose text encodes to the ids that were sampled."""
    ids = policy.tokenizer.prompt([{"role": "user", "content": QUESTION}])
    engine = Engine(policy.model, 1)
    engine.feed(engine.open((0, 0)), ids)
    [turn] = engine.run(8, 1.0, policy.tokenizer.eos_ids)
    text = policy.generate(QUESTION, max_new_tokens=8)
    assert policy.tokenizer.reply(text) == turn.ids and turn.stop_reason == "stop"
    tokens, values = zip(*policy.log_probs(text, prompt=QUESTION), strict=True)
    assert list(values) == turn.logprobs and "".join(tokens) == policy.tokenizer.show(turn.ids)
    plain = policy.log_probs("get 1 oak")
    assert "".join(token for token, _ in plain) == " 1 oak" and len(plain) > 1
    assert policy.log_probs("") == []


def test_replies_depend_on_their_number_and_seed_alone(policy):
    few, many = (policy.generate(QUESTION, n=n, max_new_tokens=6, seed=3) for n in (2, 12))
    assert many[:2] == few and len(set(many)) > 1 and policy.generate(QUESTION, max_new_tokens=6, seed=3) == few[0]
    others = policy.generate(QUESTION, n=12, max_new_tokens=6, seed=4)
    assert others != many and others[:-1] != many[1:]
    assert len(set(policy.generate(QUESTION, n=3, max_new_tokens=6, temperature=0))) == 1
    assert policy.generate([{"role": "user", "content": QUESTION}], n=2, max_new_tokens=6, seed=3) == few


def test_an_adapter_is_that_of_a_runs_best_epoch(policy, run):
    adapted = rl.load(adapter=run.folder, threads=1, products="onednn")
    by_hand = rl.Policy(load_model("tiny"), load_tokenizer("tiny"))
    lora.load_adapter(by_hand.model, run.folder / "epoch_1")
    said = adapted.log_probs("oak", QUESTION)
    assert said == by_hand.log_probs("oak", QUESTION) != policy.log_probs("oak", QUESTION)
    with lora.adapters_off(adapted.model):
        assert adapted.log_probs("oak", QUESTION) == policy.log_probs("oak", QUESTION)


def test_what_a_policy_does_not_understand_is_refused_by_name(policy):
    refused = {
        r"n=0 must be at least 1": lambda: policy.generate("a", n=0),
        r"max_new_tokens=0 must": lambda: policy.generate("a", max_new_tokens=0),
        r"n=True must be": lambda: policy.generate("a", n=True),
        r"max_new_tokens=2.5 must be": lambda: policy.generate("a", max_new_tokens=2.5),
        r"seed=1180591620717411303424 must be": lambda: policy.generate("a", seed=2**70),
        r"temperature=-1 must be 0, or": lambda: policy.generate("a", temperature=-1),
        r"temperature=1e-40 must be 0, or": lambda: policy.generate("a", temperature=1e-40),
        r"temperature=nan must be 0, or": lambda: policy.generate("a", temperature=float("nan")),
        r"prompt must be a text or a list of messages, not '\[\]'": lambda: policy.generate([]),
        r"role 'human' is not one of": lambda: policy.generate([{"role": "human", "content": "a"}]),
        r"leaves no room for a reply": lambda: policy.generate("oak " * policy.max_len),
        r"more than max_len=": lambda: policy.log_probs("oak " * policy.max_len),
        r"takes a text, not list": lambda: policy.log_probs(["a"]),
        r"unknown key 'temprature'": lambda: rl.load("tiny", temprature=1),
    }
    for message, call in refused.items():
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        rl.load("tiny", adapter="nowhere")


def test_a_second_run_reads_its_files_anew(tmp_path, monkeypatch):
    """A prompt and a scorer that were edited meanwhile, as in a notebook."""
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("\n".join(json.dumps({"question": f"{n}?", "answer": n}) for n in range(40)))
    qa = {"data": "rows.jsonl", "match": "own.py:score"}
    own = {**SMALL, "env": "qa", "qa": qa, "system_prompt": "p.txt", "max_new_tokens": 2}
    own = {key: value for key, value in own.items() if not key.startswith("textcraft")}
    for value in ("0.25", "0.75"):
        Path("own.py").write_text(f"def score(reply, row):\n    return {value}\n")
        Path("p.txt").write_text(f"Be {value}.")
        run = rl.train(**own, out=value)
        [trained] = [record for record in run.metrics if "reward_mean" in record]
        assert trained["reward_mean"] == float(value)
        first = json.loads(Path(value, "episodes.jsonl").read_text().splitlines()[0])
        assert f"Be {value}." in load_tokenizer("tiny").show(first["ids_T"])


def test_importing_rl_loads_no_torch():
    code = "import sys, rl; print('torch' in sys.modules, 'rl.library' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = rl.trian


def test_the_notebook_is_short_and_was_run():
    """Each of its code cells has the number of its run; links lead to files."""
    cells = run_notebook.read()["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(cells) <= 12 and [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any("image/svg+xml" in output.get("data", {}) for cell in code for output in cell["outputs"])
    text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if not (ROOT / "docs" / link).exists()] == []


@pytest.mark.all_only
def test_the_notebook_runs_and_its_model_learns(tmp_path):
    """Another CPU rounds differently, so only the direction of its numbers is known."""
    notebook, names = run_notebook.run(run_notebook.read(), tmp_path)
    first, *_, last = (r["eval"]["success"] for r in names["run"].metrics if r.get("eval", {}).get("temperature"))
    assert first < 0.2 and last > first + 0.3
    before, after = (names[name].log_probs("oak", names["question"])[0][1] for name in ("policy", "trained"))
    assert after > before + 1 and (tmp_path / names["run"].folder).is_dir()
    assert [len(cell.get("outputs", [])) for cell in notebook["cells"]] == [
        len(cell.get("outputs", [])) for cell in run_notebook.read()["cells"]
    ]
