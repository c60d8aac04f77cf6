"""Out of memory: in an update smaller micro-batches with the same gradient, elsewhere one line of advice. Errors are
planted, some of them by allocations that no machine can make."""

import json
from dataclasses import replace
from functools import partialmethod

import pytest
import torch
from conftest import run_program
from test_learning import make_state, play

from models import trial
from models.cache import KVCache
from models.weights import TINY
from rl import update
from rl.batch import make_batch
from rl.config.fields import algorithm_module
from rl.config.words import parse
from rl.run import out_of_memory

pytestmark = pytest.mark.usefixtures("frozen_heap")
CUDA = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.5 GiB."


def gradients(monkeypatch, fits: int, error: Exception | None = None, **keys):
    """Return the gradient, the metrics and the sizes of the micro-batches of a step on a device that holds `fits`
    tokens at once, and raises `error` for more."""
    state, cfg = make_state("grpo", episodes=16, **keys)
    batch = make_batch(play(state, cfg, 0))
    batch.advantages_N = torch.linspace(-1, 1, len(batch.episode_N))
    batch = next(update.optimizer_steps(batch, 16, None))
    found, sizes, forward = {}, [], update.forward

    def limited(micro, model, *rest):
        tokens = sum(len(e.ids_T) for e in micro.episodes)
        result = forward(micro, model, *rest)
        if tokens > fits:
            result.logprobs_N.sum().backward()  # an attempt that dies in its backward leaves gradients behind
            raise error or torch.OutOfMemoryError(CUDA)
        sizes.append(tokens)
        return result

    monkeypatch.setattr(update, "forward", limited)
    monkeypatch.setattr(
        state.optimizer, "step", lambda: found.update({n: p.grad for n, p in state.trainable().items()})
    )
    step = update.optimizer_step(state, batch, algorithm_module("grpo"), cfg)
    stats = {**step.metrics, "gap": step.sampler_gap, "tokens": step.trained_tokens, "skipped": step.skipped}
    monkeypatch.undo()
    return found, stats, sizes, state


def test_smaller_micro_batches_have_the_same_gradient(monkeypatch, capsys):
    """Of 16 episodes of 6 tokens, 96 fit by configuration and 25 in memory: 48, then 24."""
    found, stats, sizes, state = gradients(monkeypatch, 25, micro_tokens=96)
    assert sizes == [24] * 4 and state.micro_tokens == 24
    assert "again with micro_tokens=24, the same gradient up to rounding" in capsys.readouterr().out
    expected, expected_stats, expected_sizes, _ = gradients(monkeypatch, 99, micro_tokens=24)
    assert sizes == expected_sizes and stats == expected_stats
    assert all(torch.equal(found[name], grad) for name, grad in expected.items()), "bit for bit"
    whole, *_ = gradients(monkeypatch, 99, micro_tokens=96)
    for name, grad in whole.items():
        torch.testing.assert_close(found[name], grad, atol=1e-6 * float(grad.abs().max()), rtol=1e-5)


@pytest.mark.parametrize(
    "line",
    [
        "Triton Error [CUDA]: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA driver error: out of memory",
    ],
)
def test_drivers_and_libraries_without_memory_halve_it_too(line, monkeypatch):
    """Their own allocations fail where torch's allocator holds the rest."""
    _, _, sizes, state = gradients(monkeypatch, 25, RuntimeError(line), micro_tokens=96)
    assert sizes == [24] * 4 and state.micro_tokens == 24


def test_other_errors_of_an_update_are_raised(monkeypatch):
    for line in ("CUDA error: an illegal memory access was encountered", "DefaultCPUAllocator: can't allocate memory"):
        with pytest.raises(RuntimeError, match=line):
            gradients(monkeypatch, 25, RuntimeError(line), micro_tokens=96)
        monkeypatch.undo()


def test_an_episode_longer_than_micro_tokens_still_trains(monkeypatch):
    found, _, sizes, _ = gradients(monkeypatch, 99, micro_tokens=1)
    assert sizes == [6] * 16
    whole, *_ = gradients(monkeypatch, 99, micro_tokens=96)
    for name, grad in whole.items():
        torch.testing.assert_close(found[name], grad, atol=1e-6 * float(grad.abs().max()), rtol=1e-5)


def test_advice_where_a_single_episode_does_not_fit(monkeypatch):
    with pytest.raises(ValueError, match=r"a single episode of up to 6 tokens; checkpoint=block keeps less") as error:
        gradients(monkeypatch, 5)
    assert "\n" not in str(error.value) and "plan=true" in str(error.value)
    with pytest.raises(ValueError, match=r"6 tokens; quant=nf4 .*; dtype=bfloat16 halves .*; max_len below"):
        gradients(monkeypatch, 5, checkpoint="block")


def test_advice_knows_how_a_checkpoint_is_stored(tmp_path):
    """quant=nf4 over one of 4 or 8 bits is refused, so it is not advised."""
    raw = json.loads((TINY / "config.json").read_text())
    for name, more in {"dense": {}, "int8": {"quant_method": "bitsandbytes", "load_in_8bit": True}}.items():
        (tmp_path / name).mkdir()
        text = json.dumps(raw | ({"quantization_config": more} if more else {}))
        (tmp_path / name / "config.json").write_text(text)
        cfg = parse(["algo=ppo", f"model={tmp_path / name}"])
        assert ("quant=nf4" in out_of_memory.advice(cfg, "load")) == (name == "dense")
        assert "quant=nf4" not in out_of_memory.advice(replace(cfg, quant="nf4"), "load")


TRAIN = ["train.py", "algo=ppo", "episodes=8", "batch_size=8", "lora.r=4", "max_new_tokens=4", "textcraft.max_turns=1"]
TRAIN.append("micro_tokens=8192")


def run_out(*_words, **_keys):
    return torch.empty(2**50, dtype=torch.uint8)


def run_out_on_cuda(*_words, **_keys):
    raise torch.OutOfMemoryError(CUDA)


PHASES = [
    (
        "load",
        "rl.run.setup.load_model",
        "quant=nf4 stores the base in 4.5 bits a weight; dtype=bfloat16 halves the base",
    ),
    ("trial", trial, "products=plain makes no copies of float32 weights"),
    ("collect", "rl.rollout.Engine", "rollout_batch_size below 128 takes less"),
    ("score", "rl.batch.add_values", "micro_tokens below 8192 takes less"),
    ("learn", "torch.optim.AdamW.step", "checkpoint=block keeps less of each layer for the backward; micro_tokens"),
    ("evaluate", "rl.evaluate.rollout_at", "rollout_batch_size below 128 takes less"),
    ("save", "rl.run.checkpoint.save_file", "quant=nf4"),
]


def failures():
    """Yield the parameters (phase, place, advised, fail). Quick tests take one failure of each phase, by turns."""
    for i, phase in enumerate(PHASES):
        for j, fail in enumerate((run_out, run_out_on_cuda)):
            yield pytest.param(*phase, fail, marks=[pytest.mark.full] * (i % 2 != j), id=f"{phase[0]}-{fail.__name__}")


@pytest.mark.parametrize(("phase", "place", "advised", "fail"), list(failures()))
def test_out_of_memory_is_one_line_in_every_phase(phase, place, advised, fail, monkeypatch, tmp_path):
    if phase == "trial":
        monkeypatch.setattr(trial, "first_difference", fail)
    else:
        monkeypatch.setattr(place, fail)
    code, _, err = run_program(*TRAIN, f"eval_episodes={2 * (phase == 'evaluate')}", f"out={tmp_path}/run")
    size = "2.00 GiB" if fail is run_out_on_cuda else "1,048,576.00 GiB"
    assert code == 1 and err.startswith(f"train.py: out of memory in {phase} ({size} more were wanted); {advised}")
    assert err.count("\n") == 1 and "train.py plan=true prints what each phase needs" in err
    assert ("goes on from its newest checkpoint" in err) == (phase in ("collect", "score", "learn", "evaluate"))


def test_a_run_goes_on_after_out_of_memory(monkeypatch, tmp_path):
    """In the second epoch's update, which a CPU does not try again in smaller micro-batches; the third process takes
    fewer rows."""
    words, real, calls = [*TRAIN, "eval_episodes=0", "epochs=2"], update.accumulate, []

    def second(*args):
        calls.append(1)
        return run_out() if len(calls) == 2 else real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(update, "accumulate", second)
        code, out, err = run_program(*words, f"out={tmp_path}/run")
    assert code == 1 and len(calls) == 2 and "again with micro_tokens" not in out
    ways = "checkpoint=block keeps less of each layer for the backward; micro_tokens below 8192 takes less; "
    assert err.startswith(f"train.py: out of memory in learn (1,048,576.00 GiB more were wanted); {ways}")
    assert err.endswith(f"python train.py resume={tmp_path}/run goes on from its newest checkpoint\n")
    assert err.count("\n") == 1
    assert run_program("train.py", f"resume={tmp_path}/run", "rollout_batch_size=4")[0] == 0
    assert run_program(*words, f"out={tmp_path}/whole")[0] == 0
    runs = [(tmp_path / name / "epoch_2" / "adapter_model.safetensors").read_bytes() for name in ("run", "whole")]
    assert runs[0] == runs[1]


def with_rows(cache, make, rows: int, model, _, *more) -> None:
    """Make a cache of so many rows; a rollout would need as many tasks."""
    make(cache, model, rows, *more)


def test_a_cache_that_no_machine_holds_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("models.trial.first_difference", lambda model: None)  # it would make such a cache first
    monkeypatch.setattr(KVCache, "__init__", partialmethod(with_rows, KVCache.__init__, 10**9))
    code, _, err = run_program(*TRAIN, "eval_episodes=0", "rollout_batch_size=1000000000", f"out={tmp_path}/run")
    assert code == 1 and err.startswith("train.py: out of memory in collect (") and err.count("\n") == 1
    words = "n=1", "rollout_batch_size=1000000000", "products=plain"  # else a race of libraries makes a cache first
    code, _, err = run_program("eval.py", *words)
    assert code == 1 and err.startswith("eval.py: out of memory in evaluate (") and err.count("\n") == 1
    assert "rollout_batch_size below 1000000000 takes less" in err


def test_merging_out_of_memory_is_one_line_and_writes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr("models.export.save_config", run_out)
    code, _, err = run_program("merge.py", "model=tiny", f"out={tmp_path}/merged")
    line = "merge.py: out of memory (1,048,576.00 GiB more were wanted); one block of the model is held in float32, "
    rest = "and its outputs for prompts=; device=cpu takes the host's memory\n"
    assert (code, err) == (1, line + rest) and not list(tmp_path.iterdir())


def test_other_errors_keep_their_traceback(monkeypatch, tmp_path):
    def bug(*_words):
        raise RuntimeError("size mismatch")

    monkeypatch.setattr("rl.batch.add_values", bug)
    with pytest.raises(RuntimeError, match="size mismatch"):
        run_program(*TRAIN, "eval_episodes=0", f"out={tmp_path}/run")
