"""The start of a run: nothing is imported that it does not need, and no optimizer step changes for it."""

import subprocess
import sys

import pytest
import torch
from conftest import ROOT

from rl.optimizer import without_compiler

UNUSED = ("torch._dynamo", "torch._inductor", "models.cuda", "transformers")
PROGRAM = f"""
import sys, train
from rl.config.words import parse
train.main(parse(sys.argv[1:], "train.py"))
print("imported:", [name for name in {UNUSED} if name in sys.modules])
"""


@pytest.mark.all_only
def test_training_on_a_cpu_imports_no_compiler(tmp_path):
    """torch._dynamo takes a second of CPU time; the first call of an optimizer's wrapped method would import it."""
    words = ["algo=ppo", "epochs=1", "episodes=4", "batch_size=4", "eval_episodes=0", "max_turns=1", "max_new_tokens=4"]
    words += ["ranks=1", "strict=false", f"out={tmp_path}/run"]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1:] == ["imported: []"], done.stderr


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_optimizers_without_compiler_step_alike(kind):
    """Bits of the parameters, hooks after a step, and what `state_dict` saves for the other class to load."""
    results = []
    for cls in (kind, without_compiler(kind)):
        p = torch.nn.Parameter(torch.randn(5, 7, generator=torch.Generator().manual_seed(0)))
        steps, optimizer = [], cls([{"params": [p], "lr": 0.1}], weight_decay=0.01)
        optimizer.register_step_post_hook(lambda *_, steps=steps: steps.append(1))
        for _ in range(3):
            (p**2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            other = (without_compiler(kind) if cls is kind else kind)([p])
            other.load_state_dict(optimizer.state_dict())
            optimizer = other
            optimizer.register_step_post_hook(lambda *_, steps=steps: steps.append(1))
        assert p.grad is None and len(steps) == 3
        results.append(p.detach())
    assert torch.equal(*results)
