"""plan=: planned peaks are within 15 % of the peaks of live storage, and settings that do not fit are named."""

import json
from dataclasses import replace

import measured_peaks
import pytest
import torch
from cases import cases
from conftest import run_program
from live_storage import LiveStorage
from test_lora import awake, injected

import lora
import merge
from benchmarks import sides
from benchmarks.sides import SHAPES
from envs.requests import Request
from models import load_model, load_tokenizer
from models.cache import KVCache
from models.config import parse_config, read_config
from models.cpu import memory as cpu_memory
from models.cpu import packed, process, speed
from models.cpu import step as cpu_step
from models.hooks import Hooks, hooks
from models.sizes import sizes_of
from models.weights import resolve
from rl import peaks, plan
from rl.base_model import Base
from rl.config import words as settings
from rl.config.words import parse
from rl.merging.certificate import Probes
from rl.peaks import MOST_TOKENS, PROMPTS
from rl.ranks.shard import most_copies

CASES = cases("plan")

pytestmark = [pytest.mark.all_only, pytest.mark.usefixtures("frozen_heap")]
GIB = 2**30


SMALL = ["micro_tokens=512", "max_len=64", "rollout_batch_size=8", "dtype=float32"]
TINY = ["micro_tokens=512", "max_len=128", "rollout_batch_size=16", "dtype=float32"]
DEFAULT = ["micro_tokens=512", "max_len=512", "rollout_batch_size=128", "dtype=float32"]
WIDE = ["micro_tokens=512", "max_len=256", "rollout_batch_size=16", "dtype=float32"]
LARGER = ["micro_tokens=256", "max_len=64", "rollout_batch_size=8", "dtype=bfloat16"]
PLAIN = ["products=plain"]
CUT = {"num_hidden_layers": 2, "vocab_size": 2048, "hidden_size": 384, "intermediate_size": 2048}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_planned_cache_is_the_engines(dtype):
    cfg = parse([*SMALL, f"dtype={dtype}", "device=cpu"])
    model = load_model("tiny").to(getattr(torch, dtype))
    held = KVCache(model, peaks.sampled_together(cfg), cfg.max_len)
    assert sum(x.nbytes for x in (*held.keys, *held.values)) == peaks.cache(sizes_of(model.config), cfg)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tiny", [*SMALL, "products=plain"]),
        ("tiny", [*SMALL, "rollout_batch_size=1", "products=plain"]),
        ("tiny", [*SMALL, "rollout_batch_size=1", "products=plain", "quant=nf4", "checkpoint=block"]),
        ("tiny", [*SMALL, "micro_tokens=1024", "dtype=bfloat16", "products=mkl"]),
        ("tiny", [*SMALL, "products=plain", "checkpoint=block", "lora.r=0"]),
        pytest.param("tiny", [*DEFAULT, "products=plain"], marks=pytest.mark.full),
        pytest.param("narrow", [*WIDE, "products=plain"], marks=pytest.mark.full),
        pytest.param("narrow", [*WIDE, "products=plain", "dtype=bfloat16"], marks=pytest.mark.full),
        pytest.param("tiny", [*TINY, "products=onednn", "checkpoint=block"], marks=pytest.mark.full),
        pytest.param("tiny", [*TINY, "products=plain", "checkpoint=block", "lora.r=256"], marks=pytest.mark.full),
        pytest.param("0.5b", [*LARGER, "products=mkl"], marks=pytest.mark.full),
        pytest.param("0.5b", [*LARGER, "quant=int8"], marks=pytest.mark.full),
        pytest.param(
            "0.5b",
            [*LARGER, "checkpoint=block", "quant=nf4-double", "ppo.entropy_coef=0.01"],
            marks=pytest.mark.full,
        ),
    ],
)
def test_planned_peaks_are_within_15_percent_of_measured_ones(name, words, monkeypatch):
    """Of Qwen2.5-0.5B's shape two smaller layers. "narrow" has an MLP as wide as the model, so attention takes the
    most. The trial of the decode step is left out, as its tensors are gone before a phase is measured."""
    monkeypatch.setattr(cpu_step, "_agrees", lambda *_: True)
    monkeypatch.setitem(measured_peaks.SHAPES, "0.5b", SHAPES["0.5b"] | CUT | {"num_attention_heads": 8})
    monkeypatch.setitem(measured_peaks.SHAPES, "narrow", SHAPES["quarter"] | {"intermediate_size": 256})
    planned, found = measured_peaks.planned(name, words), measured_peaks.measured(name, words)
    assert set(found) == {"load", "rollout", "values", "update"}
    wrong = {phase: round(planned[phase] / size, 3) for phase, size in found.items()}
    assert all(0.85 < ratio < 1.15 for ratio in wrong.values()), wrong


@pytest.mark.parametrize(
    ("shape", "max_len"), [("quarter", 64), *(pytest.param(x, 64, marks=pytest.mark.full) for x in ("small", "wordy"))]
)
def test_the_planned_peak_of_a_merge_is_within_15_percent(shape, max_len, monkeypatch, tmp_path):
    """Of prompts of max_len and replies of the most tokens that merge.py compares; "wordy" has a large vocabulary."""
    monkeypatch.setitem(SHAPES, "wordy", SHAPES["quarter"] | {"vocab_size": 20000})
    base = tmp_path / "base"
    sides.write_base(shape, torch.bfloat16, base)
    lora.save_adapter(awake(injected(load_model(str(base)), r=16)), tmp_path / "adapter", str(base))

    def worst(*_) -> Probes:
        ids = torch.randint(1000, (PROMPTS + 1, max_len))
        return Probes(ids, torch.arange(ids.numel())[-(PROMPTS + 1) * MOST_TOKENS :], MOST_TOKENS, "textcraft")

    monkeypatch.setattr(merge, "make_probes", worst)
    with LiveStorage() as live:
        merge.write(merge.Keys(out=str(tmp_path / "merged"), adapter=str(tmp_path / "adapter"), force=True))
    sizes = sizes_of(read_config(base))
    cfg = peaks.settled(sizes, parse(["algo=ppo", "device=cpu", "lora.r=16", f"max_len={max_len}", *PLAIN]))
    assert 0.85 < peaks.phases(sizes, cfg)["merge"] / live.peak < 1.15


def test_the_plan_counts_the_engine_of_the_frozen_base(monkeypatch):
    """Where an environment asks the base, a rollout holds its cache and decode step too."""
    monkeypatch.setattr(cpu_step, "_agrees", lambda *_: True)
    monkeypatch.setattr(packed, "library", "plain")
    words = [*TINY, *PLAIN, "env=planner"]
    with_it, without = (
        measured_peaks.planned("tiny", [*words, f"planner.worker={kind}"]) for kind in ("model", "rules")
    )
    cfg, model = measured_peaks.settings("tiny", words), injected(load_model("tiny"), r=16)
    base = Base(model, load_tokenizer("tiny"), cfg)
    request = Request("chat", messages=[{"role": "user", "content": "2 + 3"}], max_tokens=cfg.max_len, temperature=1.0)
    model.rotary_tables(cfg.max_len, torch.device("cpu"))  # which the policy's engine has made
    with LiveStorage() as live:
        base.answer({0: [(request, (0, 0))]})
        assert with_it["rollout"] - without["rollout"] == pytest.approx(live.live, rel=0.15)
    assert {phase for phase in with_it if with_it[phase] != without[phase]} == {"rollout"}


@pytest.mark.parametrize("library", ["onednn", "mkl", "plain"])
def test_the_plan_counts_the_copies_that_the_trial_would_choose(library, monkeypatch):
    """In 16 bits oneDNN's have the width of the weights, but for the head's, which is float32; MKL's have 4 bytes."""
    monkeypatch.setattr(process, "ONE_THREAD", 0)  # small models get no trial
    monkeypatch.setattr(speed, "race", lambda *_: (library, dict.fromkeys(("plain", library), 1.0)))
    cpu_memory._library.cache_clear()
    need = lambda *words: measured_peaks.planned("tiny", [*TINY, *words])["values"]  # noqa: E731
    assert need() == need(f"products={library}")
    sizes = sizes_of(read_config(resolve("tiny")))
    head = sizes.V * sizes.D
    for copied in ("products=onednn", "products=mkl"):
        assert need(copied) - need("products=plain") == 8 * (sizes.block_weights + head)
    half = need("products=onednn", "dtype=bfloat16") - need("products=plain", "dtype=bfloat16")
    assert half == 4 * head
    more = need("products=mkl", "dtype=bfloat16") - need("products=onednn", "dtype=bfloat16")
    width = 2 if packed.usable(torch.bfloat16, "onednn") else 4  # where oneDNN has no copies in 16 bits, MKL's add all
    assert more == width * (2 * sizes.block_weights + head)
    cpu_memory._library.cache_clear()


@pytest.mark.parametrize("there", ["onednn", "mkl"])
def test_a_missing_library_is_planned_as_a_run_takes_it(there, monkeypatch):
    """A run takes plain products instead, which have oneDNN's copies in 16 bits. Shards leave room for the most."""
    monkeypatch.setattr(packed, "usable", lambda dtype, by: by == there and dtype in packed.DTYPES[by])
    monkeypatch.setattr(speed, "race", lambda *_: ("plain", {"plain": 1.0}))
    cpu_memory._library.cache_clear()
    for kind in ("onednn", "mkl"):
        assert measured_peaks.settings("tiny", [*TINY, f"products={kind}"]).products == (
            kind if kind == there else "plain"
        )
    sizes = sizes_of(read_config(resolve("tiny")))
    cfg = parse(["algo=ppo", "device=cpu", *TINY])
    assert most_copies(sizes, cfg).copies == peaks.footprint(sizes, replace(cfg, products=there)).copies > 0
    cpu_memory._library.cache_clear()


@pytest.fixture
def folder(tmp_path):
    """A model of 7B's shape: its config.json alone."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["7b"]))
    return tmp_path


def test_plan_needs_no_weights_and_names_what_fits(folder):
    words = ["train.py", f"model={folder}", "device=cuda"]
    code, out, _ = run_program(*words, "plan=true")
    assert code == 0 and all(f"  {phase}" in out for phase in ("load", "rollout", "values", "update", "merge"))
    code, out, _ = run_program(*words, "plan=24GiB")
    assert code == 1 and "too much" in out and "checkpoint=block" in out.splitlines()[-1]
    *_, last = (line.removeprefix("fits with ").split(": ")[0].split() for line in out.splitlines())
    code, out, _ = run_program(*words, *last, "plan=24GiB")
    assert (code, out.splitlines()[-1]) == (0, "fits into 24.00 GiB"), "what it names does fit"
    code, out, _ = run_program(*words, "plan=141GB")
    assert (code, out.splitlines()[-1]) == (0, "fits into 131.32 GiB")


@pytest.mark.parametrize("quant", ["none", "int8", "nf4", "nf4-double"])
@pytest.mark.parametrize(
    "shape", ["7b", *(pytest.param(x, marks=pytest.mark.full) for x in ("quarter", "0.5b", "32b"))]
)
def test_settings_are_found_wherever_the_most_frugal_fit(shape, quant):
    """So a plan that says "too small" never names settings that would fit."""
    sizes = sizes_of(parse_config(SHAPES[shape]))
    for device, micro_tokens, rows in (("cuda", 256, 16), ("cuda", 8192, 64), ("cpu", 4096, 24)):
        words = [
            "algo=ppo",
            "max_len=256",
            f"micro_tokens={micro_tokens}",
            f"rollout_batch_size={rows}",
            f"quant={quant}",
        ]
        cfg = replace(parse([*words, *PLAIN]), device=device, dtype="bfloat16")
        for share in (1.0, 1.001, 1.02, 1.2, 2.0):
            least = max(plan.on_device(peaks.phases(sizes, plan.frugal(sizes, cfg))).values())
            limit = int(least * share)
            at = replace(cfg, plan=f"{limit / 2**20}MiB")
            if plan.fits(peaks.phases(sizes, plan.frugal(sizes, at)), limit):
                assert plan.what_fits(sizes, at, limit), (device, micro_tokens, share)


def test_a_plan_of_nf4_proposes_nf4_double(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["32b"]))
    words = ["device=cuda", "quant=nf4", "max_len=256", "micro_tokens=256", "rollout_batch_size=16", "plan=22GiB"]
    code, out, err = run_program("train.py", f"model={tmp_path}", *words)
    assert code == 1 and "quant=nf4-double" in out.splitlines()[-1], err


def test_plan_counts_a_checkpoint_as_it_is_stored(tmp_path, folder):
    """It stays so: no other quantisation is proposed, or accepted."""
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    (tmp_path / "stored").mkdir()
    (tmp_path / "stored/config.json").write_text(json.dumps(SHAPES["7b"] | {"quantization_config": stored}))

    def said(model, *words: str) -> tuple:
        code, out, err = run_program("train.py", f"model={model}", "device=cuda", *words)
        return code, out.splitlines()[1:], err

    assert said(tmp_path / "stored", "plan=true") == said(folder, "plan=true", "quant=nf4")
    code, out, _ = said(tmp_path / "stored", "plan=12GiB")
    assert code == 1 and [line for line in out if line.startswith("fits")]
    assert all("quant=nf4 " in line for line in out if line.startswith("fits"))
    code, out, err = said(tmp_path / "stored", "plan=true", "quant=int8")
    assert (code, out) == (2, []) and "is stored as nf4, not int8; leave quant= out" in err
    code, out, err = said(tmp_path / "stored", "plan=true", "lora.r=0")
    assert (code, out) == (2, []) and "lora.r=0 cannot train a checkpoint that is stored as nf4" in err


def test_without_its_folder_a_device_has_no_plan(monkeypatch, folder):
    monkeypatch.setattr(hooks("cuda"), "footprint", Hooks().footprint)
    code, out, err = run_program("train.py", f"model={folder}", "device=cuda", "plan=true")
    assert code == 2 and not out and err.count("\n") == 1 and "plan= counts what models/cuda allocates" in err


@pytest.mark.parametrize(("words", "said"), CASES["bad plans"])
def test_bad_plans_are_one_line(words, said, folder):
    code, out, err = run_program("train.py", f"model={folder}", "device=cuda", *words)
    assert code == 2 and said in err and len(err.splitlines()) == 1 and not out


@pytest.mark.parametrize(("more", "less", "phase"), CASES["settings and their phases"])
def test_each_setting_changes_its_phase(more, less, phase, folder):
    words = [f"model={folder}", "device=cuda", "dtype=bfloat16", "max_len=2048", "plan=true"]
    sizes = sizes_of(read_config(folder))

    def need(word: str) -> int:
        key = word.split("=")[0]
        given = dict(w.split("=", 1) for w in [*words, word] if w.split("=")[0] != key or w == word)
        return peaks.phases(sizes, settings.resolve(given))[phase]

    assert need(more) > need(less)


def test_plan_counts_no_more_rows_than_episodes():
    """A rollout allocates keys and values for its tasks alone."""
    sizes = sizes_of(parse_config(SHAPES["7b"]))

    def planned(rows: int, evaluated: int) -> int:
        words = [f"rollout_batch_size={rows}", "episodes=32", "batch_size=32", f"eval_episodes={evaluated}", *PLAIN]
        cfg = replace(parse(["algo=grpo", *words]), device="cuda", dtype="bfloat16")
        return peaks.phases(sizes, cfg)["rollout"]

    assert planned(64, 8) == planned(32, 8) == planned(32, 64) < planned(64, 64)


def test_the_frozen_bases_cache_has_all_rows():
    """An episode may ask it several times at once, so it is not made for the episodes alone."""
    sizes = sizes_of(parse_config(SHAPES["7b"]))
    words = [
        "algo=grpo",
        "env=planner",
        "planner.worker=model",
        "episodes=16",
        "batch_size=16",
        "eval_episodes=0",
        *PLAIN,
    ]
    cfg = replace(parse([*words, "rollout_batch_size=64"]), device="cuda", dtype="bfloat16")
    more = peaks.phases(sizes, cfg)["rollout"] - peaks.phases(sizes, replace(cfg, rollout_batch_size=16))["rollout"]
    assert more == 3 * peaks.cache(sizes, replace(cfg, rollout_batch_size=16))
