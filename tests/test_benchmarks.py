"""The benchmarks run from end to end on tiny sizes, keep what they promise, and count what they say they count."""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

import lora
from benchmarks import common, generate, gpu, logprob, onpolicy, sides, step
from benchmarks import envs as envs_benchmark
from benchmarks import lora as lora_benchmark
from benchmarks.common import Row

MODULES = {
    "logprob": logprob,
    "lora": lora_benchmark,
    "generate": generate,
    "step": step,
    "onpolicy": onpolicy,
    "envs": envs_benchmark,
}
SMALL = {
    "logprob": "N=20 D=16 V=300 peaks=0",
    "lora": "shape=quarter tokens=32 layers=1 group_shape=quarter prompt=32 completion=16 group=2",
    "generate": "model=tiny rows=3 prompt=12 new=4 shortest=4 longest=12 peaks=0 "
    "episodes=2 start=20 turns=2 sampled=3 observed=5",
    "step": "prompts=2 samples=4 prompt=12 new=8 peaks=0",
    "onpolicy": "dtypes=float32 episodes=2 difficulty=1 peer_rows=2 peer_new=4 "
    "rows=2 start=12 turns=2 sampled=3 observed=4",
    "envs": "only=alfworld steps=50 growth=100",
}
PEERS = {
    "logprob": ["trl", "transformers"],
    "lora": ["transformers", "peft"],
    "generate": ["transformers", "peft"],
    "step": ["transformers", "peft", "trl", "datasets", "accelerate"],
    "onpolicy": ["transformers", "peft"],
    "envs": [],
}
PROMISED = {"benchmark", "command", "machine", "versions", "options", "rows", "notes"}
PROMISED_OF_A_ROW = {"name", "values", "unit", "median", "ratio", "targets", "target", "check"}


def run(name: str, words: str, monkeypatch, capsys) -> tuple[dict, str]:
    """(the record, all that was printed) of one benchmark."""
    options = common.parse(MODULES[name].Options, [*words.split(), "repeats=1", "warmup=1", "threads=1"])
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    MODULES[name].main(options)
    printed = capsys.readouterr().out
    return json.loads(printed.splitlines()[-1]), printed


def test_rows_that_there_are_not_are_one_line(monkeypatch, capsys):
    with pytest.raises(SystemExit) as end:
        run("envs", "only=zork", monkeypatch, capsys)
    assert end.value.code == "only=zork: no row of this benchmark begins so"


def row_of(record: dict, end: str) -> dict:
    (row,) = [row for row in record["rows"] if row["name"].endswith(end)]
    return row


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_runs_and_its_last_line_is_the_record(name, monkeypatch, capsys, tmp_path):
    """With all peers or, where one is not installed, without them."""
    record, printed = run(name, f"{SMALL[name]} out={tmp_path / 'x.json'}", monkeypatch, capsys)
    assert set(record) >= PROMISED and record["benchmark"] == name
    assert record["rows"] and all(set(row) >= PROMISED_OF_A_ROW for row in record["rows"])
    assert "avx512_bf16" in record["machine"] and record["versions"]["torch"] == torch.__version__
    for row in record["rows"]:
        assert "ours" in row["values"] and f"| {row['name']} | ours |" in printed
        assert all(row["ratio"][side] > 0 for side in row["ratio"] if row["unit"] == "s")
    assert any(row["targets"] for row in record["rows"])
    assert json.loads((tmp_path / "x.json").read_text()) == record
    assert (tmp_path / "x.md").read_text().strip() in printed
    if PEERS[name] and not common.absent(*PEERS[name]):
        assert any(len(row["ratio"]) > 0 for row in record["rows"])
    if name == "lora":
        for group in ("prefix sharing, quarter", "1 layers of quarter"):
            assert row_of(record, f"{group}, float32, gradients against unshared")["median"]["ours"] < 1e-5
        if not common.absent("transformers", "peft"):
            assert row_of(record, "float32, gradients of A and B against peft")["median"]["ours"] < 1e-5
    if name == "onpolicy":
        assert row_of(record, "float32, agreement, tokens that differ")["median"]["ours"] == 0
    if name == "generate":
        checks = [row["check"] for row in record["rows"] if row["name"].endswith("greedy") and row["ratio"]]
        assert checks and all(re.fullmatch(r"(\d+)/\1 rows equal", check) for check in checks)


@pytest.mark.parametrize("name", ["logprob", "generate", "step", "onpolicy"])
def test_a_peer_that_is_not_installed_is_named(name, monkeypatch, capsys):
    """And ours is measured all the same."""
    monkeypatch.setattr(common, "version", lambda package: "0" if package == "torch" else None)
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", None)
    words = SMALL[name] + (" dtypes=float32" if name == "logprob" else "")
    record, _ = run(name, words, monkeypatch, capsys)
    assert any("absent" in note and PEERS[name][0] in note for note in record["notes"])
    assert not any(PEERS[name][0] in row["values"] for row in record["rows"])
    assert record["versions"]["transformers"] == "absent"


def test_options_are_told_and_a_wrong_one_is_one_line(capsys):
    for module in (*MODULES.values(), gpu):
        with pytest.raises(SystemExit) as end:
            common.parse(module.Options, ["--help"])
        told = capsys.readouterr().out
        assert end.value.code == 0 and all(f"  {f.name}=" in told for f in fields(module.Options))
    for words, line in (
        (["reapeats=3"], "did you mean repeats=?"),
        (["repeats"], "repeats: not one of"),
        (["repeats=x"], "not a whole number"),
        (["warmup=0"], "must be at least 1"),
    ):
        with pytest.raises(SystemExit) as end:
            common.parse(generate.Options, words)
        assert line in end.value.code and "\n" not in end.value.code
    with pytest.raises(SystemExit, match="float33"):
        common.dtypes_of("float32,float33")
    with pytest.raises(SystemExit, match="not one of"):
        lora_benchmark.main(lora_benchmark.Options(shape="huge"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_its_benchmark_ends_with_2_and_one_line(capsys):
    with pytest.raises(SystemExit) as end:
        gpu.main(gpu.Options())
    printed = capsys.readouterr()
    assert end.value.code == 2 and "no CUDA device" in printed.err and len(printed.err.splitlines()) == 1


def test_the_parts_of_the_gpu_benchmark_run_on_a_cpu_and_one_that_fails_is_a_note(monkeypatch):
    """All but those with peers, which their own benchmarks run above."""
    scale = gpu.Scale(
        large="quarter", small="quarter", heads=(("a head", 20, 16, 300, {}),), decode_rows=(3, 2), context=20, new=2,
        talk=(2, 8, 2, 2, 3), group=(16, 8, 2), round_trip=(2, 8, 2, 2, 3),
    )  # fmt: skip

    def broken(*_):
        raise ValueError("no such thing\nand more")

    for name in ("layers", "grpo_step", "rollouts"):
        monkeypatch.setattr(gpu, name, broken)
    rows, notes = gpu.run(scale, gpu.Options(repeats=1, warmup=1, threads=1), "cpu", torch.float32)
    assert [note for note in notes if "failed" in note] == [
        f"{name}: failed, ValueError: no such thing" for name in ("LoRA layers", "GRPO step", "mixed rollouts")
    ]
    names = " ".join(row.name for row in rows)
    for word in ("a head, forward", "decode quarter", "prefix sharing", "training pass", "multi-turn"):
        assert word in names
    assert all(row.median("ours") >= 0 for row in rows)
    _, notes = gpu.run(scale, gpu.Options(seconds=0), "cpu", torch.float32)
    assert len(notes) == 9 and all("not run" in note for note in notes)


def test_ratios_and_targets_by_hand():
    time = Row("a", {"ours": [1.0, 3.0, 2.0], "theirs": [4.0, 8.0, 40.0]}, targets={"theirs": 0.25, "ours": 1.5})
    assert time.ratio("theirs") == 0.25 and time.target("theirs") == "<= 0.25x: met"
    assert time.target("ours") == "<= 1.5 s: missed by 0.5"
    speed = Row("a", {"ours": [2.0], "theirs": [5.0]}, speedup=True, targets={"theirs": 3.0}, tokens=10)
    assert speed.ratio("theirs") == 2.5 and speed.target("theirs") == ">= 3x: missed by 0.5"
    assert speed.lines()[0].split(" | ")[3] == "5" and "2.5x the speed" in speed.lines()[1]
    assert Row("a", {"ours": [0.0], "theirs": [0.0]}, "nats").ratio("theirs") == 1


def test_turns_alternate_and_the_warm_up_is_left_out():
    order = []
    sides_ = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = common.take_turns(sides_, repeats=4, warmup=2)
    assert order == ["a", "b"] * 6 and {len(values) for values in seconds.values()} == {4}
    assert len(common.take_turns(sides_, repeats=9, warmup=1, limit=0.0)["a"]) == 3, "past the limit, three"


def test_scratch_counts_what_lives_beside_inputs_and_outputs():
    given = torch.zeros(2**18)  # 1 MiB

    def work() -> list[torch.Tensor]:
        kept = given + 1  # the output
        for _ in range(3):
            kept.add_((given * 2)[:5].sum() + (given * 3).sum())  # of the two products one lives at a time
        return [kept]

    assert 1 <= common.scratch_of(work) < 1.01
    held = lambda: [given + 1 + (a := given * 2).sum() + (given * 3).sum() + a.sum()]  # noqa: E731
    assert 2 <= common.scratch_of(held) < 3.01


def test_naive_scratch_is_that_of_the_logits():
    """Forward: logits and their log_softmax; backward: the log_softmax and its gradient twice over."""
    inputs = logprob.make_inputs(64, 8, 4096, torch.float32)
    found = common.scratch_of(lambda: logprob.run(logprob.naive, inputs))
    assert 2 < found < 4, "a MiB is [N, V] once"


def test_the_truth_is_that_of_autograd_in_float64():
    inputs = logprob.make_inputs(33, 8, 50, torch.float32)
    hidden_ND = inputs.hidden_ND.double().requires_grad_()
    logits_NV = hidden_ND @ inputs.weight_VD.double().mT
    logp_N = logits_NV.log_softmax(-1).gather(1, inputs.targets_N[:, None])[:, 0]
    logp_N.backward(inputs.grad_N.double())
    found = logprob.truth(inputs, rows=8)
    assert torch.allclose(found[0], logp_N, atol=1e-12) and torch.allclose(found[1], hidden_ND.grad, atol=1e-12)


def test_a_row_that_depends_on_the_others_is_found(monkeypatch):
    inputs = logprob.make_inputs(32, 16, 100, torch.float32)
    assert logprob.depends_on_others(inputs)[0] == 0
    monkeypatch.setattr(logprob, "ours", lambda h, w, t: logprob.naive(h, w, t) + h.detach().mean())
    values, gradients = logprob.depends_on_others(inputs)
    assert values > 16 and gradients <= 32


def test_agreement_counts_bits():
    found = onpolicy.compare(torch.tensor([0.0, -1.0, -2.0]), torch.tensor([0.0, -1.0000001, -1.5]))
    assert (found.tokens, found.unequal, found.largest) == (3, 2, 0.5)


def test_attention_is_replaced_and_put_back():
    """And the replacement gives the same numbers, up to rounding."""
    import models.decoder
    import models.generate

    before = models.decoder.attend, models.generate.exact_step
    model = sides.adapted(sides.random(sides.SHAPES["quarter"]))
    ids_BT = torch.arange(24).view(2, 12)
    expected = model(ids_BT)
    with onpolicy.attention(onpolicy.inexact, stacked=False):
        found = model(ids_BT)
    assert not torch.equal(found, expected) and torch.allclose(found, expected, atol=1e-4)
    assert (models.decoder.attend, models.generate.exact_step) == before


def test_prompts_are_of_the_lengths_asked_for_and_a_larger_vocabulary_is_filled(monkeypatch, tmp_path):
    if common.absent("transformers", "peft"):
        pytest.skip("needs transformers and peft")
    monkeypatch.setitem(sides.SHAPES, "wide", sides.SHAPES["quarter"] | {"vocab_size": 1600, "num_hidden_layers": 1})
    base, adapter = sides.prepare("wide", tmp_path)
    model, tokenizer = sides.our_model(base, adapter)
    assert [len(ids) for ids in sides.windows(tokenizer, [5, 300])] == [5, 300]
    assert tokenizer.decode([1590]) == "<1590>" and model.config.vocab_size == 1600
    assert tokenizer.eos_ids == {1597, 1599}
    _, theirs = sides.peer_model(base, adapter)
    ids = sides.windows(tokenizer, [40])[0]
    assert theirs(text=[tokenizer.decode(ids)])["input_ids"] == [ids] and theirs.eos_token_id == 1599
    assert all(layer.adapters["default"].B.abs().sum() > 0 for _, layer in lora.lora_layers(model))


def test_reuse_changes_no_ids():
    model = sides.adapted(sides.random(sides.SHAPES["quarter"]))
    talk = generate.make_talk(2, 10, 3, 3, 4, 640)
    ids, logprobs = generate.play(model, talk, reuse=True)
    assert generate.play(model, talk, reuse=False)[0] == ids
    assert [len(row) for row in ids] == [10 + 3 * 7] * 2 and [len(row) for row in logprobs] == [9, 9]


def test_the_make_targets_name_benchmarks_that_are_there():
    root = Path(__file__).parents[1]
    lines = re.findall(r"-m benchmarks\.(\w+) out=benchmarks/results/(\w+)\.json", (root / "Makefile").read_text())
    assert {name for name, _ in lines} == {*MODULES, "gpu"} and all(name == out for name, out in lines)
    quick = (root / "benchmarks/quick").read_text()
    for name, words in re.findall(r'^run (\w+) "(.*)"$', quick, re.M):
        common.parse(MODULES[name].Options, words.split())
    assert (root / "benchmarks/quick").stat().st_mode & 0o111
