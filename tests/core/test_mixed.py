"""models/cpu/mixed.py: the decode steps of several adapters as one."""

import pytest
import torch
from conftest import randomize

import lora
from models.cpu.mixed import MixedStep, Mixer, agree
from models.cpu.step import CPUStep, filled_cache
from models.weights import load_model
from rl.adapters import Seat, Together

COUNTS = [(16, 32, 16), (1, 7, 20)]


@pytest.fixture(scope="module")
def steps() -> list[CPUStep]:
    """Return the steps of three models over one base: adapters of other ranks and targets, and none."""
    shared, steps = Together(load_model("tiny"), []), []
    for seed, how in enumerate(({"r": 20}, {"r": 4, "targets": ["q_proj", "down_proj"]}, None)):
        model = Seat(shared, "").model()
        if how:
            lora.inject(model, **how)
            for _, layer in lora.lora_layers(model):
                randomize(layer.adapters, seed)
        steps.append(CPUStep(model, "rows"))
    return steps


def inputs(steps: list[CPUStep], counts: tuple[int, ...]) -> list[list]:
    """Return the ids, the positions and the views of each model."""
    ids = [torch.arange(rows) + i for i, rows in enumerate(counts)]
    positions = [torch.arange(rows) % 3 + 30 for rows in counts]
    caches = [filled_cache(step.model, rows, 1) for step, rows in zip(steps, counts, strict=True)]
    return [ids, positions, [c.view(slice(0, len(p)), p, 1) for c, p in zip(caches, positions, strict=True)]]


@pytest.mark.parametrize("counts", COUNTS)
def test_rows_of_several_adapters_have_the_bits_of_their_own_step(steps, counts):
    mixed = MixedStep(steps)(*inputs(steps, counts))
    alone = [step(*row) for step, *row in zip(steps, *inputs(steps, counts), strict=True)]
    assert all(map(torch.equal, mixed, alone))
    assert not torch.equal(alone[0][:1], alone[2][:1]), "the adapters change nothing"


def test_each_models_keys_and_values_go_into_its_own_cache(steps):
    ours, theirs = inputs(steps, COUNTS[1]), inputs(steps, COUNTS[1])
    MixedStep(steps)(*ours)
    for step, *row in zip(steps, *theirs, strict=True):
        step(*row)
    for mine, own in zip(ours[2], theirs[2], strict=True):
        assert all(map(torch.equal, mine.cache.keys + mine.cache.values, own.cache.keys + own.cache.values))


def test_steps_that_differ_in_a_bit_are_not_mixed(steps, monkeypatch):
    assert agree(steps) and isinstance(Mixer()(steps), MixedStep)
    call = MixedStep.__call__
    monkeypatch.setattr(MixedStep, "__call__", lambda *args: [x * (1 + 2**-23) for x in call(*args)])
    assert not agree(steps) and Mixer()(steps) is None


def test_a_step_of_another_kind_is_not_mixed(steps):
    assert Mixer()([steps[0], lambda *_: None]) is None
