"""tests/exactness.py, the matrix of models, ranks and threads: it fails where the trial of a run is wrong."""

import json
import re

import exactness
import pytest
import random_episodes
import torch

from models import load_model
from models.cpu import packed, process

pytestmark = pytest.mark.all_only

MATRIX = {"models": "tiny", "ranks": "1", "threads": "1", "dtypes": "float32"}


@pytest.fixture
def few_episodes(monkeypatch):
    for name in ("CHANGED", "NEW"):
        monkeypatch.setattr(exactness, name, exactness.SHORT)


@pytest.mark.full
def test_the_matrix_resumes_runs_and_restores_the_number_of_threads(capsys):
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        exactness.main(exactness.Options(**MATRIX))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    line, summary = capsys.readouterr().out.splitlines()
    row = json.loads(line)
    assert row["name"] == "tiny, float32, r=1, 1 threads" and row["median"]["ours"] == 0
    assert re.fullmatch(r"exact: yes; 0 of \d{4} differ; products: \w+; resumed: equal", row["check"])
    assert "1 of 1 resumed runs are equal" in summary


@pytest.mark.parametrize("verdict", [None, "a layer differs"])
def test_the_matrix_fails_on_a_gap_that_the_trial_missed(verdict, few_episodes, monkeypatch, capsys):
    """The gap is planted: one trained log-probability is off by 1e-6."""
    forward = random_episodes.forward

    def off(*args):
        output = forward(*args)
        output.logprobs_N.data[3] += 1e-6
        return output

    monkeypatch.setattr(random_episodes, "forward", off)
    monkeypatch.setattr(exactness, "first_difference", lambda _: verdict)
    status = 0
    try:
        exactness.main(exactness.Options(**MATRIX, resume=False))
    except SystemExit as end:
        status = end.code
    printed = capsys.readouterr().out
    assert status == (0 if verdict else 1) and "tiny, float32, r=1, 1 threads" in printed
    assert f"tokens differ in {0 if verdict else 1} of them; it says no in {1 if verdict else 0}" in printed
    assert f"exact: {verdict or 'yes'}; " in printed and "; 0 of " not in printed


def test_the_matrix_multiplies_as_a_run_of_its_row_would(few_episodes, monkeypatch):
    """In 16 bits the library that a process begins with can be a hundred times slower."""
    asked, before = [], packed.library
    monkeypatch.setattr(process, "best_library", lambda *words: asked.append(words) or ("plain", "planted"))
    monkeypatch.setattr(exactness, "play", lambda *_: packed.library)
    monkeypatch.setattr(exactness, "gaps_of", lambda _, played, sizes: torch.full((2,), float(played != "plain")))
    (row,) = exactness.measured([("tiny", "bfloat16", 1, 1)], resume=False)
    ((model, *_),) = asked
    assert (model.config, model.lm_head.weight.dtype) == (load_model("tiny").config, torch.bfloat16)
    assert row.median("ours") == 0 and row.check.endswith("0 of 4 differ; products: plain")
    assert packed.library == before


def test_the_matrix_fails_on_a_resumed_run_that_differs(few_episodes, monkeypatch, capsys):
    monkeypatch.setattr(exactness, "first_difference", lambda _: None)
    monkeypatch.setattr(exactness, "resumed_run", lambda *_: ("differs in episodes.jsonl", 0.0))
    with pytest.raises(SystemExit) as end:
        exactness.main(exactness.Options(**MATRIX))
    assert end.value.code == 1 and "resumed: differs in episodes.jsonl" in capsys.readouterr().out


def test_the_matrix_measures_few_rows_of_the_large_shape():
    """Wrong words are refused in one line."""
    words = "bfloat16", exactness.RANKS, exactness.THREADS
    assert len(exactness.cells("tiny", *words)) == 63 and len(exactness.cells("0.5b", *words)) == 16
    for models, ranks, threads in (("huge", "1", "1"), ("tiny", "x", "1"), ("tiny", "1", "")):
        with pytest.raises(ValueError, match=r"^(models=huge|ranks=x|threads=): "):
            exactness.cells(models, "float32", ranks, threads)
