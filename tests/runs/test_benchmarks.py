"""The benchmarks run on tiny sizes, report what they measure, and count what they claim to count."""

import json
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch

import lora
from benchmarks import (
    common,
    generate,
    gpu,
    gpu_sizes,
    logprob,
    machine,
    memory,
    onpolicy,
    quant,
    sides,
    step,
)
from benchmarks import envs as envs_benchmark
from benchmarks import lora as lora_benchmark
from benchmarks.common import TOO, Row
from models import load_model
from models.engine import Engine
from models.sizes import sizes_of

pytestmark = [pytest.mark.all_only, pytest.mark.usefixtures("frozen_heap")]


MODULES = {
    "logprob": logprob,
    "lora": lora_benchmark,
    "generate": generate,
    "step": step,
    "onpolicy": onpolicy,
    "envs": envs_benchmark,
    "quant": quant,
}
SMALL = {
    "logprob": "N=20 D=16 V=300",
    "lora": "shape=quarter tokens=32 layers=1 group_shape=quarter prompt=32 completion=16 group=2",
    "generate": "model=tiny rows=3 prompt=12 new=4 shortest=4 longest=12 "
    "episodes=2 start=20 turns=2 sampled=3 observed=5",
    "step": "prompts=2 samples=4 prompt=12 new=8",
    "onpolicy": "dtypes=float32 episodes=2 peer_rows=2 peer_new=4 start=12",
    "envs": "only=alfworld steps=50 growth=100",
    "quant": "shapes=quarter:1 rows=1 new=2 tokens=16 dtypes=float32",
}
PEERS = {
    "logprob": ["trl", "transformers"],
    "lora": ["transformers", "peft"],
    "generate": ["transformers", "peft"],
    "step": ["transformers", "peft", "trl", "datasets", "accelerate"],
    "onpolicy": ["transformers", "peft"],
    "envs": [],
    "quant": [],
}
PROMISED = {"benchmark", "command", "commit", "machine", "versions", "options", "rows", "notes"}
PROMISED_OF_A_ROW = {"name", "values", "unit", "median", "ratio", "targets", "target", "check"}


def run(name: str, words: str, monkeypatch, capsys, only: str = "") -> tuple[dict, str, str]:
    """Run one benchmark; return (its record, its stdout, its stderr)."""
    words_of_all = ["repeats=1", "warmup=1", "threads=1", *([f"only={only}"] if only else [])]
    options = common.parse(MODULES[name].Options, [*words.split(), *words_of_all])
    monkeypatch.setattr(sys, "argv", [name, *words.split()])
    MODULES[name].main(options)
    printed = capsys.readouterr()
    return json.loads(printed.out.splitlines()[-1]), *printed


def never(*_, **__):
    raise AssertionError("a row that was not requested was measured or loaded")


@pytest.mark.parametrize("name", MODULES)
def test_unknown_row_is_refused_before_anything_is_loaded(name, monkeypatch, capsys):
    for module, function in (
        (common, "interleave"), (sides, "prepare"), (sides, "random"), (sides, "our_model"), (logprob, "peers"),
        (step, "measure"), (envs_benchmark.envs, "make"), (common, "hint"),
    ):  # fmt: skip
        monkeypatch.setattr(module, function, never)
    there = {
        "logprob": "float32; bfloat16", "lora": "float32; bfloat16; group prefix sharing", "generate": "tiny",
        "step": "whole step; sampling; the rest; memory of a step; sampling against training", "onpolicy": "float32",
        "envs": "textcraft; alfworld; babyai; webshop; sciworld; sat; os_interaction; db_bench; tau_retail; planner; "
        "sums; abd; ded; webshop's catalogue; a machine of the shell; sandbox; shell alone; SQL alone; memory",
        "quant": "1 layers of quarter",
    }[name]  # fmt: skip
    with pytest.raises(SystemExit) as end:
        run(name, SMALL[name], monkeypatch, capsys, only="zork")
    assert end.value.code == f"only=zork: no row of this benchmark begins so; rows begin with: {there}"


def test_unknown_row_names_those_that_begin_alike():
    names = [f"{word}, {kind}" for word in ("float32", "bfloat16") for kind in ("scratch", "largest error")]
    for only, rows in (("float32, scrtch", names[:2]), ("float33, scratch", ["float32", "bfloat16"])):
        with pytest.raises(SystemExit, match=f"rows begin with: {'; '.join(rows)}$"):
            common.chosen(names, only)
    assert common.chosen(names, "bfloat16") == names[2:]


@pytest.mark.parametrize(
    "name, only",
    [("logprob", "float32, scratch"), ("lora", "float32, error"), ("onpolicy", "float32, agreement, mean")],
)
def test_only_the_requested_rows_are_measured(name, only, monkeypatch, capsys):
    monkeypatch.setattr(common, "interleave", never)  # theirs have no times
    (row,) = run(name, SMALL[name], monkeypatch, capsys, only=only)[0]["rows"]
    assert row["name"].startswith(only)


def row_of(record: dict, end: str) -> dict:
    (row,) = [row for row in record["rows"] if row["name"].endswith(end)]
    return row


@pytest.mark.parametrize("name", MODULES)
def test_a_benchmark_runs_and_its_last_line_is_the_record(name, monkeypatch, capsys, tmp_path):
    """Peers that are not installed are left out."""
    record, printed, _ = run(name, f"{SMALL[name]} out={tmp_path / 'x.json'}", monkeypatch, capsys)
    assert set(record) >= PROMISED and record["benchmark"] == name
    assert record["rows"] and all(set(row) >= PROMISED_OF_A_ROW for row in record["rows"])
    assert "avx512_bf16" in record["machine"] and record["versions"]["torch"] == torch.__version__
    for row in record["rows"]:
        assert "ours" in row["values"] and f"| {row['name']} | ours |" in printed
        assert all(row["ratio"][side] > 0 for side in row["ratio"] if row["unit"] == "s")
    assert not any(row["targets"] for row in record["rows"] if row["unit"] == "s" and name != "envs"), "at these sizes"
    too = any(TOO in side for row in record["rows"] for side in row["values"])
    assert too == any(TOO in note for note in record["notes"] if "that peer" in note)
    assert json.loads((tmp_path / "x.json").read_text()) == record
    assert (tmp_path / "x.md").read_text().strip() in printed
    if PEERS[name] and not common.absent(*PEERS[name]):
        assert any(len(row["ratio"]) > 0 for row in record["rows"])
    if name == "lora":
        for group in ("prefix sharing, quarter", "1 layers of quarter"):
            assert row_of(record, f"{group}, float32, gradients against unshared")["median"]["ours"] < 1e-5
        if not common.absent("transformers", "peft"):
            assert row_of(record, "float32, gradients of A and B against peft")["median"]["ours"] < 1e-5
    if name == "logprob":
        assert all(len(row_of(record, f"{word}, forward and backward")["values"]["two products"]) == 1
                   for word in ("float32", "bfloat16"))  # fmt: skip
    if name == "step" and not common.absent(*PEERS[name]):
        assert len(row_of(record, "whole step")["values"][f"trl, {TOO}"]) == 1
    if name == "step":
        assert all(0 < value < 8 for value in row_of(record, "memory of a step")["median"].values())
    if name == "onpolicy":
        assert row_of(record, "float32, agreement, tokens that differ")["median"]["ours"] == 0
    if name == "generate":
        checks = [row["check"] for row in record["rows"] if row["name"].endswith("greedy") and row["ratio"]]
        assert checks and all(re.fullmatch(r"(\d+)/\1 rows equal", check) for check in checks)
    if name == "quant":
        sizes = row_of(record, "weights of the blocks")["ratio"]  # of nf4 to the others: 4.5 bits a weight
        assert sizes["plain"] == 4.5 / 32 and sizes["int8"] < 4.5 / 8 < 1 < sizes["nf4-double"] < 4.5 / 4.125


FULL = pytest.mark.full


@pytest.mark.parametrize("name", ["logprob", "step", *(pytest.param(n, marks=FULL) for n in ("generate", "onpolicy"))])
def test_a_peer_that_is_not_installed_is_named(name, monkeypatch, capsys):
    """Our side is measured all the same."""
    monkeypatch.setattr(common, "version", lambda package: "0" if package == "torch" else None)
    monkeypatch.setitem(sys.modules, "trl.trainer.utils", None)
    words = SMALL[name] + (" dtypes=float32" if name == "logprob" else "")
    record, _, stderr = run(name, words, monkeypatch, capsys)
    peers = [peer for peer in PEERS[name] if peer in stderr.splitlines()[0]]
    assert peers == PEERS[name] and 'pip install -e ".[bench]"' in stderr.splitlines()[0], "before all rows"
    assert any("absent" in note and PEERS[name][0] in note for note in record["notes"])
    assert not any(PEERS[name][0] in row["values"] for row in record["rows"])
    assert record["versions"]["transformers"] == "absent"


@cache
def small() -> tuple:
    return generate.load("tiny", ["ours"], generate.Options())


STATED = {  # case: (how the row's name starts, its place in the table, the sizes that its target is stated for)
    "logprob": ("float32, forward", 0, "N=512 D=896 V=151936"),
    "logprob, scratch": ("float32, scratch", 0, "N=512 D=896 V=151936"),
    "lora": ("float32, forward", 0, "shape=0.5b layers=4 tokens=512"),
    "lora, group": ("group", 0, "group_shape=quarter prompt=512 completion=512 group=8"),
    "lora, group of layers": ("group", 2, "shape=0.5b layers=4 prompt=512 completion=512 group=8"),
    "generate": ("tiny, decode 16 rows sampled", 0, "prompt=64 new=64"),
    "generate, mixed": ("tiny, mixed", 0, "shortest=20 longest=200"),
    "generate, turns": ("tiny, multi-turn", 0, "episodes=64 start=512 turns=8 sampled=32 observed=96"),
    "step": ("whole", 0, "model=tiny dtype=float32 device=cpu prompts=8 samples=8 prompt=64 new=32 pieces=1"),
}
OTHERS = {"model": "small", "shape": "7b", "group_shape": "small", "dtype": "bfloat16", "device": "cuda"}


@pytest.mark.parametrize("case", STATED)
def test_a_target_is_reported_only_for_its_own_sizes(case, monkeypatch):
    """The options give the stated sizes; the measurements themselves are small or faked."""
    name, (only, place, sizes) = case.partition(",")[0], STATED[case]
    if case == "lora" and common.absent("transformers", "peft"):
        pytest.skip("needs transformers and peft")
    reported, inputs = [], logprob.make_inputs(4, 8, 50, torch.float32)
    shape = sides.SHAPES["quarter"] | {"num_hidden_layers": 1}
    loaded = small()

    def row(name: str, targets: dict) -> Row:
        return Row(name, {"ours": [1.0]}, targets=targets)

    for module, function, fake in (
        (common, "report", lambda _, rows, *__: reported.extend(rows)),
        (common, "interleave", lambda works, *_, **__: {side: [1.0] for side in works}),
        (logprob, "make_inputs", lambda *_: inputs),
        (logprob, "peers", lambda *_: ({"naive": logprob.naive}, [])),
        (sides, "SHAPES", dict.fromkeys(sides.SHAPES, shape)),
        (sides, "layers_of", lambda *_: shape),
        (sides, "our_model", lambda *_: loaded),
        (lora_benchmark, "gradients", lambda *_: {}),
        (lora_benchmark, "difference", lambda *_: 0.0),
        (generate, "load", lambda *_: loaded),
        (generate, "measure", lambda case, _, __, targets, *___: row(case.name, targets)),
        (generate, "measure_turns", lambda name, _, __, ___, targets: row(name, targets)),
        (step, "measure", lambda _, __, targets: [row(step.WHOLE, targets)]),
    ):
        monkeypatch.setattr(module, function, fake)

    def has_target(*words: str) -> bool:
        reported.clear()
        MODULES[name].main(common.parse(MODULES[name].Options, ["threads=1", f"only={only}", *words]))
        return bool(reported[place].targets)

    assert has_target(*sizes.split()) and has_target("repeats=3")
    for key, value in (word.split("=") for word in sizes.split()):
        assert not has_target(f"{key}={OTHERS[key] if key in OTHERS else int(value) + 1}"), key


def test_options_have_a_help_and_wrong_words_are_one_line(capsys):
    for module in (*MODULES.values(), gpu):
        with pytest.raises(SystemExit) as end:
            common.parse(module.Options, ["--help"])
        printed = capsys.readouterr().out
        assert end.value.code == 0 and all(f"  {f.name}=" in printed for f in fields(module.Options))
    for words, line in (
        (["reapeats=3"], "did you mean repeats?"),
        (["repeats"], "repeats"),
        (["repeats=x"], "must be a whole number"),
        (["warmup=0"], "must be positive"),
    ):
        with pytest.raises(SystemExit) as end:
            common.parse(generate.Options, words)
        printed = capsys.readouterr().err
        assert end.value.code == 2 and line in printed and printed.count("\n") == 1
    with pytest.raises(SystemExit, match="float33"):
        common.dtypes_of("float32,float33")
    with pytest.raises(SystemExit):
        common.parse(lora_benchmark.Options, ["shape=huge"])
    assert "shape=huge" in capsys.readouterr().err


def test_ratios_and_targets_by_hand():
    time = Row("a", {"ours": [2.0, 3.0, 2.0], "theirs": [4.0, 8.0, 40.0]}, targets={"theirs": 0.25, "ours": 1.5})
    assert time.ratio("theirs") == 0.25 and time.target("theirs") == "<= 0.25x: met, within the spread"
    assert time.target("ours") == "<= 1.5 s: missed by 0.5"  # three of four quarters of the repeats
    speed = Row("a", {"ours": [2.0], "theirs": [5.0]}, speedup=True, targets={"theirs": 3.0}, tokens=10)
    assert speed.ratio("theirs") == 2.5 and speed.target("theirs") == ">= 3x: missed by 0.5"
    assert speed.lines()[0].split(" | ")[3] == "5" and "2.5x the speed" in speed.lines()[1]
    assert Row("a", {"ours": [0.0], "theirs": [0.0]}, "nats").ratio("theirs") == 1


def test_numbers_have_three_digits_and_missed_targets_two():
    assert list(map(common.digits, (0.123456, 12.3456, 999.4, 999.6, 1570.3, 1e-7))) == [
        "0.123", "12.3", "999", "1,000", "1,570", "1e-07",
    ]  # fmt: skip
    row = Row("a", {"ours": [1.23456] * 5, "theirs": [3.456789] * 5}, targets={"theirs": 1 / 3})
    assert row.target("theirs") == "<= 0.333x: missed by 0.024"
    assert "1.23 s" in row.lines()[0] and "3.46 s" in row.lines()[1]


def test_a_target_within_the_spread_of_the_repeats_is_marked():
    """The middle half of [0.2, 0.3, 0.4, 0.5, 0.6] reaches from 0.3 to 0.5."""
    values = {"ours": [2.0, 3.0, 4.0, 5.0, 6.0], "theirs": [10.0] * 5}
    reported = [Row("a", values, targets={"theirs": bound}).target("theirs") for bound in (0.25, 0.35, 0.45, 0.55)]
    assert [text.split(": ")[1] for text in reported] == [
        "missed by 0.15", "missed by 0.05, within the spread", "met, within the spread", "met",
    ]  # fmt: skip
    assert Row("a", {"ours": [2.0], "theirs": [4.0]}, targets={"theirs": 0.5}).target("theirs") == "<= 0.5x: met"


def test_a_side_with_fewer_than_five_repeats_is_marked():
    lines = Row("r", {"ours": [1.0] * 5, "b": [1.0] * 3, "limit": [1.0]}).lines()
    assert "| ours |" in lines[0] and "| b (median of 3) |" in lines[1] and "| limit |" in lines[2]


def test_repeats_alternate_and_the_warm_up_is_left_out():
    order = []
    sides_ = {name: lambda name=name: order.append(name) for name in "ab"}
    seconds = common.interleave(sides_, repeats=4, warmup=2)
    assert order == ["a", "b"] * 6 and {len(values) for values in seconds.values()} == {4}
    assert len(common.interleave(sides_, repeats=9, warmup=1, limit=0.0)["a"]) == 3, "past the limit, three"


def test_processor_time_leaves_out_waiting():
    found = {
        clock: common.interleave({"a": lambda: time.sleep(0.1)}, 3, 0, clock=clock)["a"] for clock in common.CLOCKS
    }
    assert min(found["wall"]) >= 0.1 > 0.05 > max(found["cpu"])


def test_ours_multiplies_as_a_run_of_these_sizes_would(monkeypatch):
    line = "plain, from the weights as they lie (as asked)"
    asked, chosen = [], lambda *args: asked.append(args) or line
    monkeypatch.setattr(common.process, "choose_products", chosen)
    monkeypatch.setattr(common, "_chosen", {})
    sizes = sizes_of(load_model("tiny").config)
    common.choose_products(common.Options(products="plain"), sizes)
    common.choose_products(common.Options(), sizes, device="cuda")
    ((kind, part),) = asked
    assert (kind, part.whole, part.head_VD.dtype) == ("plain", sizes.weights, torch.float32)
    assert f"of 192 to 512: {line}" in common.compose("x", [], common.Options(), [], {})[0]


def test_scratch_excludes_inputs_and_outputs():
    given = torch.zeros(2**18)  # 1 MiB

    def work() -> list[torch.Tensor]:
        kept = given + 1  # the output
        for _ in range(3):
            kept.add_((given * 2)[:5].sum() + (given * 3).sum())  # only one of the two products is alive at a time
        return [kept]

    assert 1 <= memory.scratch_of(work) < 1.01
    held = lambda: [given + 1 + (a := given * 2).sum() + (given * 3).sum() + a.sum()]  # noqa: E731
    assert 2 <= memory.scratch_of(held) < 3.01


def test_naive_scratch_is_the_size_of_the_logits():
    """Forward: logits and log_softmax. Backward: log_softmax and twice its gradient."""
    inputs = logprob.make_inputs(64, 8, 4096, torch.float32)
    found = memory.scratch_of(lambda: logprob.run(logprob.naive, inputs))
    assert 2 < found < 4, "a MiB is [N, V] once"


def test_the_truth_equals_autograd_in_float64():
    inputs = logprob.make_inputs(33, 8, 50, torch.float32)
    hidden_ND = inputs.hidden_ND.double().requires_grad_()
    logits_NV = hidden_ND @ inputs.weight_VD.double().mT
    logp_N = logits_NV.log_softmax(-1).gather(1, inputs.targets_N[:, None])[:, 0]
    logp_N.backward(inputs.grad_N.double())
    found = logprob.truth(inputs, rows=8)
    assert torch.allclose(found[0], logp_N, atol=1e-12) and torch.allclose(found[1], hidden_ND.grad, atol=1e-12)


def test_agreement_counts_bits():
    found = onpolicy.compare(torch.tensor([0.0, -1.0, -2.0]), torch.tensor([0.0, -1.0000001, -1.5]))
    assert (found.tokens, found.unequal, found.largest) == (3, 2, 0.5)


def test_every_second_step_of_the_trainer_has_our_switch(monkeypatch):
    log = []

    @contextmanager
    def switch():
        log.append("on")
        yield
        log.append("off")

    monkeypatch.setattr(step, "fast_matmul", switch)
    peer = object.__new__(step.Peer)
    peer.clocks = {side: step.Clock("cpu") for side in ("trl", f"trl, {TOO}")}
    peer.order, peer.between = step.itertools.cycle(peer.clocks), lambda: log.append("ours")
    for _ in range(4):
        peer.begin()
        log.append(peer.side)
        peer.end()
    assert log == ["trl", "on", f"trl, {TOO}", "off", "ours"] * 2
    assert [len(clock.steps) for clock in peer.clocks.values()] == [2, 2]


def test_larger_models_are_compared_with_our_switch_on_too(monkeypatch, capsys):
    if common.absent("transformers", "peft"):
        pytest.skip("needs transformers and peft")
    monkeypatch.setattr(generate, "LARGE", 0)
    record = run("generate", SMALL["generate"], monkeypatch, capsys)[0]
    for row in record["rows"]:
        assert (f"transformers, {TOO}" in row["values"]) == ("greedy" in row["name"] and "multi" not in row["name"])
    row = row_of(record, "decode 3 rows greedy")
    assert row["check"] == f"3/3 rows equal to transformers, 3/3 rows equal to transformers, {TOO}"


def test_rows_have_their_own_lengths_and_engines_are_reusable():
    """Includes an engine that runs ahead of the host."""
    model = sides.adapted(sides.random(sides.SHAPES["quarter"] | {"num_hidden_layers": 1}))
    prompts = [[i + 1] * (3 + i) for i in range(3)]
    case = generate.Case("a", prompts, [5, 1, 11], 0.0)
    alone = [generate.ours(model, generate.Case("b", [p], [n], 0.0))[0] for p, n in zip(prompts, case.new, strict=True)]
    assert [len(reply) for reply in alone] == case.new
    for graph in (False, True):
        engine = Engine(model, 3, 40, lora.adapter_version(model), graph=graph)
        for _ in range(2):
            assert generate.ours(model, case, engine) == alone and engine.free == 3
    lengths, new = generate.mixed_lengths(256, *gpu_sizes.Scale.lengths)
    assert min(new) >= 100 and max(new) <= 1024 and len(set(new)) > 100 and lengths != new


def test_prompts_have_their_lengths_and_fill_a_larger_vocabulary(monkeypatch, tmp_path):
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
    model = sides.adapted(sides.random(sides.SHAPES["quarter"] | {"num_hidden_layers": 1}))
    talk = generate.make_talk(2, 10, 3, 3, 4, 640)
    ids, logprobs = generate.play(model, talk, reuse=True)
    assert generate.play(model, talk, reuse=False)[0] == ids
    assert [len(row) for row in ids] == [10 + 3 * 7] * 2 and [len(row) for row in logprobs] == [9, 9]


def test_make_targets_name_existing_benchmarks():
    root = Path(__file__).parents[2]
    lines = re.findall(r"-m benchmarks\.(\w+) out=\S+/(\w+)\.json", (root / "Makefile").read_text())
    assert {name for name, _ in lines} == {*MODULES, "gpu", "real_size"} and all(name == out for name, out in lines)
    assert re.search(r"^RESULTS = benchmarks/results/{cpu}$", (root / "Makefile").read_text(), re.M)
    quick = (root / "benchmarks/quick").read_text()
    for name, words in re.findall(r'^run (\w+) "(.*)"$', quick, re.M):
        common.parse(MODULES[name].Options, words.split())
    assert (root / "benchmarks/quick").stat().st_mode & 0o111


@pytest.mark.parametrize(
    "model, flags, name",
    [
        ("AMD EPYC", "fpu avx2 avx512f avx512_bf16", "amd_epyc_avx512_bf16"),
        ("AMD EPYC\ncpu family\t: 25\nmodel\t\t: 17", "fpu avx2 avx512_bf16", "amd_epyc_25_17_avx512_bf16"),
        ("AMD EPYC\ncpu family\t: 26\nmodel\t\t: 2", "fpu avx2 avx512_bf16", "amd_epyc_26_2_avx512_bf16"),
        ("AMD EPYC 7B13 64-Core Processor", "fpu avx2", "amd_epyc_7b13_avx2"),
        ("Intel(R) Xeon(R) Processor @ 2.60GHz", "fpu avx2 avx512f", "intel_xeon_avx512f"),
        (
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
            "avx512f avx512_bf16 amx_bf16",
            "intel_xeon_platinum_8481c_amx_bf16",
        ),
    ],
)
def test_results_have_a_folder_per_kind_of_cpu(model, flags, name, monkeypatch, tmp_path):
    cpuinfo = f"model name\t: {model}\nflags\t\t: {flags}\n\nmodel name\t: {model}\nflags\t\t: {flags}\n"
    assert machine.cpu_name(cpuinfo) == name
    monkeypatch.setattr(machine, "cpu_name", lambda: name)
    common.save(f"{tmp_path}/{{cpu}}/x.json", "table", "{}")
    assert (tmp_path / name / "x.json").read_text() == "{}\n" and (tmp_path / name / "x.md").read_text() == "table\n"
    common.save("", "table", "{}")


def test_committed_results_lie_in_the_folder_of_their_cpu():
    folders = [path for path in (Path(__file__).parents[2] / "benchmarks/results").iterdir() if path.is_dir()]
    assert folders
    for path in folders:
        for file in path.glob("*.json"):
            named = json.loads(file.read_text())["machine"]
            older = machine.cpu_name(f"model name : {named['cpu']}\nflags : {'avx512_bf16' * named['avx512_bf16']}\n")
            assert path.name == named.get("kind", older), file


def test_a_folder_is_no_file_for_results(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        common.parse(onpolicy.Options, [f"out={tmp_path}"])
    assert capsys.readouterr().err == f"benchmarks.onpolicy: out={tmp_path} is a folder; give the name of a file\n"
