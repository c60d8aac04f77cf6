"""The GPU benchmark: its parts run at tiny sizes on a CPU, and each survives the failure of the others."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import on_triton
import pytest
import test_gpu_benchmark_on_device
import torch
from conftest import no_hang

from benchmarks import common, gpu, gpu_checks, gpu_decode, gpu_parts, gpu_sizes, logprob, sides, step
from benchmarks import lora as lora_benchmark
from benchmarks.common import Row

pytestmark = pytest.mark.usefixtures("frozen_heap")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_its_benchmark_ends_with_2_and_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        gpu.main(gpu.Options())
    printed = capsys.readouterr()
    assert end.value.code == 2 and "no CUDA device" in printed.err and len(printed.err.splitlines()) == 1


def test_every_test_of_a_kernel_runs_on_the_gpu():
    files = [path for path in Path(__file__).parent.glob("test_triton_*.py") if "\n@tt.runs\n" in path.read_text()]
    chosen = {name.partition("::")[0] for name in gpu_sizes.Scale().tests}
    assert len(files) >= 8 and {f"cuda/{path.name}" for path in files} <= chosen
    here = Path(__file__).parents[1]
    without = [name for name in chosen if not re.search(r"is_available\(\)|\n@tt\.runs\n", (here / name).read_text())]
    assert not without, "they compute nothing on a GPU"


TINY_SCALE = gpu_sizes.SIZES["tiny"][1]


def given(**options) -> gpu_sizes.Given:
    """Return what a part needs to run on a CPU at its smallest sizes."""
    words = gpu.Options(**{"repeats": 1, "warmup": 1, "threads": 1, "device": "cpu"} | options)
    return gpu_sizes.Given(TINY_SCALE, words, "cpu", torch.float32)


def run_gpu_part(name: str, part=None) -> tuple[list[Row], list[str]]:
    """Run a part of the GPU benchmark in this process; return (rows, notes)."""
    return in_two(gpu_parts.measured(name, part or gpu_parts.PARTS[name][0], given()))


def in_two(found) -> tuple[list[Row], list[str]]:
    found = list(found)
    return [row for row in found if isinstance(row, Row)], [note for note in found if not isinstance(note, Row)]


GPU_ROWS = {  # a row of each part
    "agreement": "agreement tiny, exact=true, tokens that differ",
    "decode, small": "decode quarter, 3 rows, context 70",
    "epoch": "train.py algo=ppo quarter, learn",
    "training pass": "training pass quarter, 24 tokens",
    "head": "a head, with the entropy's gradient",
    "decode, large": "decode quarter, 1 rows, context 20",
    "prefill": "prefill quarter, 40 tokens and the first sampled",
    "attention": "attention quarter, 3 x 20 tokens, forward and backward",
    "GRPO step": "GRPO quarter, whole step",
    "exact path": "exact path, quarter, rollout and training pass",
    "LoRA layers": "4 layers of quarter, 32 tokens, forward and backward",
    "group prefix sharing": "group prefix sharing, quarter float32, gradients against unshared",
    "mixed rollouts": "mixed 3 rows 4-12, quarter",
    "multi-turn": "multi-turn 2 rows, quarter",
    "quantised base": "training pass quarter nf4, 24 tokens",
}


ON_THE_DEVICE = [name for name in GPU_ROWS if name != "epoch" and name not in test_gpu_benchmark_on_device.LONG]
FULL = pytest.mark.full


@pytest.mark.parametrize("name", [pytest.param(x, marks=[FULL] * (x in (*ON_THE_DEVICE, "epoch"))) for x in GPU_ROWS])
def test_every_gpu_part_runs_on_a_cpu(name, monkeypatch):
    """Without peers, whose own benchmarks run above. The quick tests run the others on the emulated device."""
    monkeypatch.setattr(common, "absent", lambda *packages: list(packages))
    monkeypatch.setattr(logprob, "peers", lambda *_, **__: ({"naive": logprob.naive}, []))
    threads = torch.get_num_threads()
    rows, notes = run_gpu_part(name)
    torch.set_num_threads(threads)
    assert not [note for note in notes if "failed" in note or "not profiled" in note]
    [row] = [row for row in rows if row.name == GPU_ROWS[name]]
    assert row.median("ours") >= 0 and not any(row.targets for row in rows if row.unit == "s")
    assert all(row.details["peak_gib"] > 0 for row in rows) and json.dumps([row.record() for row in rows])
    if name.startswith(("decode", "prefill", "training", "quantised")):
        assert row.median("limit") > 0


def test_real_text_has_the_log_probabilities_of_transformers():
    if common.absent("transformers", "peft"):
        pytest.skip("needs transformers and peft")
    rows, notes = run_gpu_part("text")
    assert not notes and len(rows) == 1 and rows[0].target("ours").endswith("met")
    assert rows[0].median("ours") < 1e-4 and "46 tokens" in rows[0].check


@pytest.mark.parametrize(
    "status, last, failed", [(0, "3 passed, 2 skipped", 0), (1, "2 failed, 1 passed, 1 error", 3), (139, "", 1)]
)
def test_failures_of_the_gpu_tests_are_counted(status, last, failed, monkeypatch):
    output = f"FAILED tests/test_a.py::test_b - wrong\n{last} in 3.2s\n(1 durations < 0.005s hidden.)" if last else ""
    result = gpu_checks.subprocess.CompletedProcess([], status, output, "")
    monkeypatch.setattr(gpu_checks.subprocess, "run", lambda *_, **__: result)
    [row], notes = run_gpu_part("tests")
    assert row.median("ours") == failed and row.targets == {"ours": 0.0}
    assert row.check == (f"{last} in 3.2s" if last else "no output, exit status 139")
    assert len(notes) == (1 if last and failed else 0)


def test_gpu_parts_are_in_the_table_of_budgets():
    assert set(gpu_parts.PARTS) == {*GPU_ROWS, "text", "tests"}
    assert all(seconds > 0 for _, seconds in gpu_parts.PARTS.values())


def test_all_gpu_parts_fit_into_one_call_of_ten_minutes():
    """With half a minute of imports. What only a GPU can show comes first."""
    seconds = gpu.Options().seconds
    assert sum(seconds for _, seconds in gpu_parts.PARTS.values()) <= seconds <= 600 - 30
    first = "tests", "agreement", "text", "decode, small", "training pass", "epoch"
    assert tuple(gpu_parts.PARTS)[: len(first)] == first and gpu_sizes.Scale().tests[0] == "cuda/test_on_a_gpu.py"


def test_the_gpu_tests_leave_out_those_that_only_compile(monkeypatch):
    commands, result = [], gpu_checks.subprocess.CompletedProcess([], 0, "1 passed", "")
    monkeypatch.setattr(gpu_checks.subprocess, "run", lambda command, **_: (commands.append(command), result)[1])
    run_gpu_part("tests")
    assert commands and all(c[c.index("-m", 2) + 1].endswith("and not compiles") for c in commands)
    assert not any("-q" in command for command in commands), "pyproject.toml has one; a second hides the summary"

    @on_triton.compiles
    def marked():
        pass

    assert {mark.name for mark in marked.pytestmark} == {"compiles", "skipif"}


def test_a_part_takes_the_seconds_that_others_leave_and_no_more(monkeypatch):
    """Of 100 seconds 40 are kept for each of two parts, and those of a quick one are the next one's."""
    taken = []
    monkeypatch.setattr(gpu, "run_part", lambda name, given, seconds: (taken.append(seconds), [])[1])

    def run(**options) -> list[float]:
        taken.clear()
        notes = list(gpu.run({"a": (None, 40), "b": (None, 40)}, given(**options)))
        return taken or notes

    first, second = run(seconds=100)
    assert 40 < first <= 60 and 80 < second <= 100
    assert run(seconds=60)[0] == 40, "too little for both: the first comes first"
    monkeypatch.setattr(gpu.time, "monotonic", iter([0.0, 99.0, 99.0]).__next__)
    assert run(seconds=10) == ["a: not run, 10 seconds were over.", "b: not run, 10 seconds were over."]


TIME = "forward and backward"


def out_of_memory(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.\nAnd more.")


def test_a_peer_without_memory_is_dropped_and_our_rows_stay(monkeypatch):
    """At its second repeat, in one row, when it is made; ours too if its own row has no room."""
    calls, dropped = [], {}

    def later():
        calls.append(0)
        return out_of_memory() if len(calls) == 2 else None

    seconds = common.interleave({"ours": lambda: None, "a": later, "b": lambda: None}, 3, 1, dropped=dropped)
    assert {side: len(values) for side, values in seconds.items()} == {"ours": 3, "b": 3}
    assert dropped == {"a": "out of memory"} and len(calls) == 2
    row = Row("x", seconds, dropped=dropped, targets={"a": 1.0})
    assert row.lines()[-1] == "|  | a | out of memory | | | | |" and "a" not in row.record()["ratio"]

    def wrong():
        raise ValueError("no such thing\nand more")

    found = common.each_side({"ours": lambda: 1, "a": wrong}, dropped)
    assert found == {"ours": 1} and dropped["a"] == "ValueError: no such thing"
    assert common.each_side({"ours": out_of_memory, "a": lambda: 2}, dropped) == {"a": 2}
    with pytest.raises(ValueError):
        common.each_side({"ours": wrong}, {})
    with pytest.raises(ValueError):
        common.each_side({"a": wrong}, None)
    for text in (
        "CUDA error: out of memory",
        "DefaultCPUAllocator: can't allocate memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
    ):
        assert common.is_out_of_memory(RuntimeError(text))
    assert not common.is_out_of_memory(ValueError("memory"))


@pytest.mark.parametrize(
    "name",
    [
        "head",
        "LoRA layers",
        *(pytest.param(x, marks=FULL) for x in ("mixed rollouts", "GRPO step", "group prefix sharing")),
    ],
)
def test_our_rows_stay_when_a_peer_of_a_gpu_part_has_no_memory(name, monkeypatch):
    monkeypatch.setattr(common, "absent", lambda *_: [])
    monkeypatch.setattr(logprob, "peers", lambda *_, **__: ({"naive": out_of_memory}, []))
    monkeypatch.setattr(sides, "twin", out_of_memory)
    monkeypatch.setattr(step, "Peer", out_of_memory)
    monkeypatch.setattr(lora_benchmark, "unshared_pass", out_of_memory)
    rows, notes = run_gpu_part(name)
    at = GPU_ROWS[name].replace("gradients against unshared", TIME).replace("with the entropy's gradient", TIME)
    [row] = [row for row in rows if row.name == at]
    assert row.median("ours") > 0 and row.dropped and set(row.dropped.values()) == {"out of memory"}
    assert not [note for note in notes if note.startswith(f"{name}: ")]


def test_a_failing_gpu_part_and_its_broken_rows_are_notes():
    def part(_):
        yield Row("early", {"ours": [1.0]})
        yield from gpu_parts.each({"a": out_of_memory, "b": lambda name: Row(name, {"ours": [1.0]})})
        raise ValueError("no such thing\nand more")

    rows, notes = run_gpu_part("p", part)
    assert [row.name for row in rows] == ["early", "b"]
    assert notes == [
        "a: failed, OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.",
        "p: failed, ValueError: no such thing",
    ]


def hangs(name, given, sender) -> None:
    """Start a process that never ends, and hang in a call that no signal handler of Python interrupts."""
    os.setpgrp()
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    sender.send(Row("early", {"ours": [float(child.pid)]}))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM, signal.SIGINT})
    while True:
        time.sleep(60)


def crashes(name, given, sender) -> None:
    sender.send(Row("early", {"ours": [1.0]}))
    os.kill(os.getpid(), signal.SIGSEGV)


def test_a_part_that_hangs_is_killed_with_what_it_started():
    with no_hang():
        [row], notes = in_two(gpu.run_part("p", given(), 5.0, hangs))
    assert row.name == "early" and notes == ["p: cut off after 5 seconds; what it had not measured by then is missing."]
    state = Path(f"/proc/{row.median('ours'):.0f}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_part_that_crashes_leaves_its_rows_and_a_note():
    with no_hang():
        [row], notes = in_two(gpu.run_part("p", given(), 60.0, crashes))
    assert row.name == "early"
    assert notes == [f"p: its process ended with status {-signal.SIGSEGV}; what it had not measured is missing."]


def test_parts_are_imported_without_touching_a_gpu():
    """Their processes are forked from one that has imported them: CUDA must start after the fork."""
    code = """
import torch
def touched(*_): raise AssertionError("CUDA was started")
torch.cuda.is_available = torch.cuda.device_count = torch.cuda._lazy_init = touched
import benchmarks.gpu_parts
assert not torch.cuda.is_initialized()
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, check=True)


def test_the_gpu_benchmark_on_a_cpu_writes_its_file_after_every_row(monkeypatch, tmp_path, capsys):
    states, save = [], common.save

    def kept(out, table, record):
        save(out, table, record)
        states.append(len(json.loads((tmp_path / "g.json").read_text())["rows"]))

    monkeypatch.setattr(common, "save", kept)
    words = f"size=tiny device=cpu dtype=float32 threads=1 repeats=1 only=multi-turn out={tmp_path / 'g.json'}"
    gpu.main(common.parse(gpu.Options, words.split()))
    record = json.loads((tmp_path / "g.json").read_text())
    assert states == [1, 1] and record["rows"][0]["name"] == "multi-turn 2 rows, quarter"
    assert record["size"] == "tiny" and "not finished" not in record["notes"]
    assert (tmp_path / "g.md").read_text().strip() in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"g.json", "g.md"}


def test_sizes_follow_the_memory_of_the_device_and_can_be_named(capsys):
    """In GiB: an H200, an H100, an A100 of 40 GB, an RTX 4090, an A10, a card of 12 GB."""
    found = [gpu_sizes.by_memory(gibibytes) for gibibytes in (139.8, 79.1, 39.4, 23.6, 22.0, 11.6)]
    assert found == ["141GB", "80GB", "24GB", "24GB", "24GB", "tiny"]
    for word in ("large=9b", "small=9b"):
        with pytest.raises(SystemExit):
            common.parse(gpu.Options, f"size=tiny device=cpu {word}".split())
        assert word[:5] in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"only=mixed rows: .* rows begin with: .*; GRPO step; mixed rollouts"):
        gpu.main(common.parse(gpu.Options, ["size=tiny", "device=cpu", "only=mixed rows"]))
    stated = gpu_sizes.Given(gpu_sizes.Scale(), None, "cuda", torch.bfloat16)
    assert stated.targets({"a": 1}) == {"a": 1}
    assert not gpu_sizes.Given(TINY_SCALE, None, "cuda", torch.bfloat16).targets({"a": 1})


def test_kernels_are_counted_per_step(monkeypatch):
    monkeypatch.setattr(gpu_decode, "ran", lambda *_: [2e-3, 1e-3, 1e-3] * 4)
    assert gpu_decode.profiled(None, "cuda", times=4) == "3 kernels, 4 ms on the device"
    monkeypatch.setattr(gpu_decode, "ran", out_of_memory)
    line = "not profiled: OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB."
    assert gpu_decode.profiled(None, "cuda") == line
