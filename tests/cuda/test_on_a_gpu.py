"""What no emulation shows: memory that really runs out, codes that a GPU makes, a GPU without a C compiler."""

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import measured_peaks
import pytest
import torch

from benchmarks import sides
from models.quant import quantise
from rl import update
from rl.config import fields
from rl.ppo import Critic
from rl.run.out_of_memory import accumulate_smaller
from rl.run.state import TrainState

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROOT = Path(__file__).parents[2]


@contextmanager
def at_most(size: int):
    """Let torch reserve that many bytes more than it does now."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved() + size) / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_an_update_that_runs_out_of_memory_keeps_its_gradient(capsys):
    words = ["device=cuda", "dtype=float32", "micro_tokens=8192", "max_len=256", "rollout_batch_size=16"]
    cfg, algo = measured_peaks.settings("quarter", words), fields.algorithm_module("ppo")
    model = sides.adapted(sides.random(sides.SHAPES["quarter"], torch.float32, cfg.device))
    critic = Critic(model.config.hidden_size, cfg.ppo.critic_hidden, cfg.device)
    state = TrainState(model, critic, update.make_optimizer(model, critic, cfg))
    batch, before = measured_peaks.full_batch(cfg, model.config.vocab_size), torch.cuda.memory_allocated()

    def gradients() -> dict[str, torch.Tensor]:
        found = {name: p.grad for name, p in state.trainable().items()}
        state.optimizer.zero_grad(set_to_none=True)
        return found

    torch.cuda.reset_peak_memory_stats()
    update.accumulate(state, batch, algo, cfg)
    expected, took = gradients(), torch.cuda.max_memory_allocated() - before
    with at_most(int(0.7 * took)):
        with suppress(torch.OutOfMemoryError):
            update.accumulate(state, batch, algo, cfg)
            raise AssertionError("it fits")
        accumulate_smaller(update.accumulate, state, batch, algo, cfg)
    assert state.micro_tokens < 8192 and "again with micro_tokens=" in capsys.readouterr().out
    for name, grad in gradients().items():
        torch.testing.assert_close(grad, expected[name], atol=1e-5 * float(expected[name].abs().max()), rtol=1e-4)


@pytest.mark.parametrize("words", ["", "checkpoint=block", "quant=nf4", "lora.r=0 checkpoint=block"])
def test_planned_peaks_are_within_15_percent_of_a_gpus(words):
    """Of Qwen2.5-0.5B's shape. Torch's allocator is measured, libraries' workspaces included."""
    sizes = ["micro_tokens=8192", "max_len=1024", "rollout_batch_size=64", "device=cuda", "dtype=bfloat16"]
    planned, found = (of("0.5b", [*sizes, *words.split()]) for of in (measured_peaks.planned, measured_peaks.measured))
    ratios = {phase: round(planned[phase] / size, 3) for phase, size in found.items()}
    assert all(0.85 < ratio < 1.15 for ratio in ratios.values()), ratios


@pytest.mark.parametrize("kind", ["nf4", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_makes_the_codes_of_a_cpu(kind, dtype):
    weight = torch.randn(700, 1024, generator=torch.Generator().manual_seed(0)).to(dtype)
    here, there = quantise(weight, kind), quantise(weight.cuda(), kind)
    assert here.keys() == there.keys() and all(torch.equal(x, there[name].cpu()) for name, x in here.items())


def test_a_gpu_without_a_compiler_trains_by_torchs_kernels(tmp_path):
    words = ["algo=ppo", "epochs=1", "episodes=8", "batch_size=8", "eval_episodes=0", "max_new_tokens=8"]
    environment = {**os.environ, "CC": str(tmp_path / "nowhere"), "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "train.py", *words, "device=cuda", f"out={tmp_path}/run"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("Triton does not work here (") == 1
