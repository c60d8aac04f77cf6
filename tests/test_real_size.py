"""The benchmarks of real sizes: a run in phases beside trl, and tokens per second computed from limits."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

import rl.rollout
from benchmarks import common, phases, real_size, scale, sides
from models.config import parse_config
from models.decoder import CausalLM

SMALL = "shape=quarter dtype=float32 threads=1 turns=2 new=4 episodes=4 group=2 eval_episodes=1"


def in_this_process(options, side, model):
    """Run a side as its own process would."""
    folder = Path(model).parent / f"{side} {len(list(Path(model).parent.iterdir()))}"
    folder.mkdir()
    run = {"ours": real_size.run_ours, "trl": real_size.run_trl}[side]
    threads = torch.get_num_threads()
    with patch.object(rl.rollout.reward, "turn_reward", real_size.even_ids):
        found = run(options, model, folder)
    torch.set_num_threads(threads)
    return found


@pytest.mark.full
def test_both_sides_play_and_learn_from_as_many_tokens(monkeypatch, capsys):
    """4 episodes of 2 turns of 4 tokens; 4 evaluations of one episode each."""
    monkeypatch.setattr(real_size, "measured", in_this_process)
    real_size.main(common.parse(real_size.Options, SMALL.split()))
    printed = capsys.readouterr().out
    record = json.loads(printed.splitlines()[-1])
    rows = {row["name"]: row for row in record["rows"]}
    names = {"load", "trial", "eval", "rollout", "update", "save", "all"}
    assert names | {f"{name}, {kind}" for name in names for kind in ("peak", "CPU time")} == set(rows)
    assert rows["rollout"]["tokens"] == 32 and rows["eval"]["tokens"] == 32
    assert all(0 < rows[f"{name}, peak"]["median"]["ours"] < 20 for name in names)
    peers = "trl" in rows["rollout"]["values"]
    assert peers == (not common.absent("transformers", "peft", "trl", "datasets", "accelerate"))
    for name in ("rollout", "eval", "update") if peers else ():
        counts = [part.split()[1] for part in rows[name]["check"].split(", ") if "tokens" in part]
        assert counts[0] == counts[1] and rows[name]["ratio"]["trl"] > 0
    seconds = [row["median"]["ours"] for name, row in rows.items() if name in names - {"all"}]
    assert rows["all"]["median"]["ours"] == pytest.approx(sum(seconds))


def test_a_phase_within_another_is_not_counted_to_it(monkeypatch):
    """By hand: a clock of whole seconds, and peaks that belong to the phase that is open."""
    clock, peaks = iter(range(100)), iter([3.0, 7.0, 4.0])
    monkeypatch.setattr(phases.time, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(phases.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(common, "peak_gib", lambda _: next(peaks))
    monkeypatch.setattr(common, "reset_peak", lambda _: None)
    found = phases.Phases("cpu")
    with found.measured("outer"), found.measured("inner") as inner:
        inner.tokens = 5
    assert found.found["outer"] == phases.Phase(2.0, 0, 0.0, 4.0) and found.found["inner"] == phases.Phase(
        1.0, 5, 0.0, 7.0
    )
    assert inner.rate == 5.0 and found.found["outer"].rate is None


def test_a_checkpoint_of_random_weights_is_made_by_a_command(tmp_path):
    real_size.main(common.parse(real_size.Options, f"shape=quarter dtype=bfloat16 make={tmp_path}/base".split()))
    model, tokenizer = sides.load_model(f"{tmp_path}/base", torch.bfloat16), sides.load_tokenizer(f"{tmp_path}/base")
    assert model.lm_head.weight.dtype == torch.bfloat16 and tokenizer.prompt([{"role": "user", "content": "a"}])
    for words, line in ((f"make={tmp_path}/base", "there already"), ("shape=9b", "shape=9b: not one of small")):
        with pytest.raises(SystemExit, match=line):
            real_size.main(common.parse(real_size.Options, words.split()))


@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
def test_quantised_random_models_are_close_to_their_base(kind):
    raw = sides.SHAPES["quarter"] | {"num_hidden_layers": 1}
    ids = torch.arange(30)[None]
    expected, found = sides.random(raw)(ids), sides.quantised(sides.random(raw), kind)(ids)
    assert 0 < (found - expected).norm() / expected.norm() < (0.03 if kind == "int8" else 0.4)


@pytest.mark.parametrize("shape", scale.MODELS)
def test_sizes_are_those_of_the_model(shape):
    with torch.device("meta"):
        model = CausalLM(parse_config(sides.SHAPES[shape]))
    size = scale.size_of(shape)
    assert size.layers == sum(p.numel() for p in model.model.layers.parameters())
    assert size.head == model.lm_head.weight.numel()


def test_rates_by_hand():
    """A card that reads 1 GB and computes 1e12 operations per second."""
    size, card = scale.Size(10**6, 10**5, 0, 4, 0), scale.Card("a", 1, 1.0, 1e12, 1e9)
    read = (1e6 * 2 + 1e5 * 2) / 1e9 + 64 * 1024 * 4 / 1e9
    assert scale.rollout_rate(size, card, scale.BF16) == pytest.approx(0.5 * 64 / read)
    slow = scale.Card("b", 1, 1.0, 1e9, 1e12)
    products = 2 * 64 * 1.1e6 / 1e9 + 64 * 1024 * 4 / 1e12
    assert scale.rollout_rate(size, slow, scale.BF16) == pytest.approx(0.5 * 64 / products)
    per_token = 4 * 1e6 + 0.5 * 4 * 1e5
    assert scale.update_rate(size, card, scale.BF16, False) == pytest.approx(0.6 * 1e12 / per_token)
    assert scale.update_rate(size, card, scale.BF16, True) == pytest.approx(0.6 * 1e12 / (per_token + 2 * 1e6))
    dequantised = 2 * 1e6 * (scale.NF4 + 2) / 1e9 / 8192
    expected = 1 / (per_token / 0.6e12 + dequantised)
    assert scale.update_rate(size, card, scale.NF4, False) == pytest.approx(expected)
    assert [scale.rate(x) for x in (12345.0, 998.0, 44.4)] == ["12,000", "1,000", "44"]


def test_fewer_sequences_decode_where_the_cache_would_not_fit():
    """7B in bfloat16: 14.3 GiB of weights, and 7.0 GiB of cache for 64 sequences of 2,048 tokens."""
    settings = scale.SETTINGS["bf16, checkpoint"]
    needs = {rows: max(scale.memory("7b", settings, rows).values()) for rows in (64, 32, 1)}
    assert needs[64] - needs[32] == pytest.approx(3.5, abs=0.4) and needs[1] < needs[32]
    for size, rows in ((needs[64], 64), (needs[64] - 0.1, 32), (1.0, 0)):
        assert scale.most_rows("7b", settings, scale.Card("a", 1, size, 1e12, 1e9)) == rows


def test_the_tables_of_the_page_are_those_of_the_command():
    before, tables, after = scale.DOCS.read_text().split(scale.MARKER)
    assert tables.strip() == "\n".join(scale.table()) and before and after
