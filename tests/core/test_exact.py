"""Sampling and training give the same bits: every rank, number of threads and dtype; and the trial that says so."""

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace
from itertools import product

import exactness
import pytest
import torch
import torch.nn.functional as F
from conftest import EXACT_MKL, also_full, metrics_of, quickly, random_model, randomize, run_program
from random_episodes import gaps_of, play
from shared_trials import shared_trials

import lora
import train
from lora import fused
from models import load_model, trial
from models.attention import attend, in_blocks
from models.config import ACTIVATIONS
from models.cpu import packed, speed
from models.cpu import step as cpu_step
from models.cpu.products import StackedOnCPU
from models.cpu.step import exact_step
from models.elementwise import by_whole_vectors
from models.hooks import hooks, nothing_faster
from models.logprob import token_logprobs
from rl.batch import forward, make_batch, micro_batches
from rl.config.model_checks import read_targets
from rl.config.words import parse
from rl.records import Episode

EACH_TRIAL = True


def randomize_factors(model, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _, layer in lora.lora_layers(model):
        B = layer.adapters["default"].B
        B.data = torch.randn(B.shape, generator=generator) / 10


def largest_gap(model) -> float:
    """Return the largest difference of log-probabilities of sampling and of training, in nats."""
    return gaps_of(model, play(model, *FEWER)).max().item()


def embedded(r: int, dtype: torch.dtype):
    model = load_model("tiny", dtype)
    if r:
        lora.inject(model, r, 2 * r)
    else:
        model.requires_grad_(True)
    return model


PLAYED = (12, 5, 2, 4, 90)  # episodes, rows of the engine, turns, sampled tokens of a turn, prompt tokens
FEWER = (8, 5, 2, 3, 90)
ONE_HEAD = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 1, "num_key_value_heads": 1}
F32, BF16 = torch.float32, torch.bfloat16
QUICK = [(1, 3, F32), (16, 3, BF16), (192, 1, F32), (0, 3, F32)]
EVERY = list(product((0, 1, 2, 3, 7, 16, 64, 192, 256), (1, 2, 3, 4, 6, 8, 16), (F32, BF16)))


@pytest.mark.parametrize(("r", "number", "dtype"), quickly(QUICK, EVERY), ids=str)
@torch.no_grad()
def test_sampling_and_training_agree_bitwise(r, number, dtype, threads):
    """The decode step is tried while B is zero, as at the start of a run, and used after B has changed."""
    threads(number)
    model = embedded(r, dtype)
    assert trial.first_difference(model) is None
    exact_step(model)
    randomize_factors(model)
    assert largest_gap(model) == 0.0


@pytest.mark.full
@pytest.mark.parametrize("number", [2, 3, 16])
@pytest.mark.parametrize("r", [0, 1, 16, 192])
def test_a_larger_model_agrees_bitwise_where_the_trial_says_so(r, number, threads):
    threads(number)
    assert not exactness.wrong(exactness.measure(("small", "float32", r, number), None))


@pytest.mark.parametrize("library", ["onednn", "mkl", "plain"])
@torch.no_grad()
def test_every_choice_of_library_is_exact(library, monkeypatch):
    """Each library of products. 16 bits have no step."""
    monkeypatch.setattr(packed, "library", library)
    model = embedded(16, torch.float32)
    randomize_factors(model)
    if library == "mkl" and (found := trial.first_difference(model)):
        pytest.skip(f"the trial refuses MKL's copies on this CPU: {found}")
    stacked = exact_step(model) is not None
    assert largest_gap(model) == 0.0 and (stacked or (library == "mkl" and not EXACT_MKL))
    if library == "plain" or packed.usable(BF16, library):  # else no weight of 16 bits has a copy
        model = embedded(16, BF16)
        randomize_factors(model)
        assert largest_gap(model) == 0.0


@pytest.mark.parametrize("r", [1, 193, *also_full(64, 65, 80, 81, 128, 191, 192, 240, 256, 320)])
def test_stacked_step_serves_every_rank(r):
    """Without it the model itself samples: exact as well, but slower."""
    model = embedded(r, torch.float32)
    randomize_factors(model)
    assert exact_step(model) is not None


def test_stacked_step_is_tried_with_random_factors(monkeypatch):
    """A fault in the adapters' product, which B = 0 would hide, is planted."""
    real = StackedOnCPU.add_adapters
    monkeypatch.setattr(StackedOnCPU, "add_adapters", lambda self, y, low: real(self, y, low * (1 + 1e-6)))
    assert exact_step(embedded(16, torch.float32)) is None


@pytest.mark.parametrize("r", [1, 2, 3, 15, 17])
@torch.no_grad()
def test_narrow_factors_are_padded(r, monkeypatch):
    """No product has the adapter's own rank as its width: for few rows another kernel would multiply it."""
    model, widths = embedded(r, torch.float32), []
    randomize_factors(model)
    real = torch.Tensor.addmm_
    monkeypatch.setattr(torch.Tensor, "addmm_", lambda out, a, b, **k: (widths.append(len(b)), real(out, a, b, **k))[1])
    model(torch.arange(20)[None])
    assert widths and all(width % 16 == 0 for width in widths)


@pytest.mark.parametrize(
    "ranks", [{"down_proj": 1, "q_proj": 3}, *also_full({"v_proj": 1}, {"gate_proj": 193})], ids=str
)
@torch.no_grad()
def test_a_layer_of_another_rank_is_exact(ranks):
    model = load_model("tiny", torch.float32)
    lora.inject(model, 16, 32, rank_pattern=ranks)
    randomize_factors(model)
    assert trial.first_difference(model) is None and largest_gap(model) == 0.0


@pytest.mark.parametrize("number", [1, 3, 5])
@pytest.mark.parametrize("width", [31, 33, 77, 768])
@pytest.mark.parametrize("function", [F.silu, torch.exp2])
def test_elementwise_bits_do_not_depend_on_the_rows(function, width, number, threads):
    threads(number)
    x = torch.randn(400, width, generator=torch.Generator().manual_seed(0)) * 3
    whole = by_whole_vectors(function, x)
    for rows in (1, 16, 48, 210):
        assert torch.equal(by_whole_vectors(function, x[:rows]), whole[:rows])
        assert torch.equal(by_whole_vectors(function, x[-rows:].clone()), whole[-rows:])


def test_other_devices_compute_elementwise_functions_in_one_piece(threads):
    threads(12)
    calls = []
    by_whole_vectors(lambda x: calls.append(len(x)) or x, torch.empty(4000, 768, device="meta"))
    assert calls == [4000]


@pytest.mark.parametrize("inner", [31, 32, *also_full(30, 33, 77)])
@pytest.mark.parametrize(
    ("r", "number", "dtype"), [(0, 1, F32), (0, 3, F32), (16, 1, F32), (0, 1, BF16), (0, 3, BF16)], ids=str
)
@torch.no_grad()
def test_odd_intermediate_sizes_are_exact_or_not_called_so(inner, r, number, dtype, threads):
    threads(number)
    model = random_model("qwen2", hidden_size=64, intermediate_size=inner, head_dim=16, dtype=dtype)
    if r:
        lora.inject(model, r)
        randomize(model)
    else:
        model.requires_grad_(True)
    found = trial.first_difference(model)
    if number == 3 and inner % 8:
        assert found.startswith(f"layers.0.mlp.down_proj has {inner} inputs, no multiple of 8: with 3 threads ")
    else:
        assert found is None and largest_gap(model) == 0.0


@pytest.mark.parametrize("width", [18, 32, *also_full(24, 30, 34)])
@torch.no_grad()
def test_adapters_in_16_bits_on_narrow_projections_are_exact(width):
    model = random_model("llama", hidden_size=64, num_key_value_heads=1, head_dim=width, dtype=BF16)
    lora.inject(model, 4)
    randomize_factors(model)
    assert trial.first_difference(model) is None and largest_gap(model) == 0.0


@pytest.mark.parametrize("head_dim", [32, 64])
@torch.no_grad()
def test_one_key_head_is_exact_with_threads_or_not_called_so(head_dim, threads, monkeypatch):
    """MKL shares the attention of a single sequence among threads by cutting its sums; oneDNN, where a CPU has it for
    such products, does not."""
    threads(2)
    model = random_model("llama", **ONE_HEAD, head_dim=head_dim)
    for library in ("plain", "mkl", "onednn"):
        monkeypatch.setattr(packed, "library", library)
        found, gap = trial.first_difference(model), gaps_of(model, play(model, 8, 8, 2, 4, 200)).max()
        assert gap == 0 if found is None else "attn" in found or (library != "onednn" and "one key head" in found)


@pytest.mark.parametrize("number", [2, 6, 12, 16])
@pytest.mark.parametrize(("K", "T"), [(1, 5), (1, 6), (1, 7), (1, 9), (1, 19), (2, 49), (2, 50), (2, 97)])
@torch.no_grad()
def test_attention_of_one_sequence_is_that_beside_others(K, T, number, threads):
    """Threads share the rows of few products. A share that ends in one to three rows would have other bits."""
    threads(number)
    generator = torch.Generator().manual_seed(0)
    q_BHTE, k_BKTE, v_BKTE = (torch.randn(24, heads, T, 32, generator=generator) for heads in (K, K, K))
    positions_BT = torch.arange(T).expand(24, -1)
    keys, values = in_blocks(k_BKTE).mT.contiguous(), in_blocks(v_BKTE)
    whole = attend(q_BHTE, keys, values, positions_BT)
    for b in (0, 23):
        mine = slice(b * K, (b + 1) * K)
        alone = attend(q_BHTE[b : b + 1], keys[:, mine], values[:, mine], positions_BT[:1])
        assert torch.equal(alone[0], whole[b])


def test_too_narrow_layers_are_not_called_exact():
    """torch gives 16 rows of 32 times 8 to another library than 32 rows."""
    model = random_model("llama", hidden_size=32, num_key_value_heads=1, head_dim=8)
    assert trial.first_difference(model) == (
        "layers.0.self_attn.k_proj is narrow, 32 to 8: 16 rows take another kernel than more rows"
    )


@pytest.mark.parametrize("head_dim", [18, *also_full(24, 40)])
@torch.no_grad()
def test_a_single_row_of_one_key_head_is_exact_or_not_called_so(head_dim, threads):
    """MKL shares a single product among threads by cutting its sums. CPUs without AVX-512 have no other product."""
    threads(3)
    model = random_model("mistral", **ONE_HEAD, head_dim=head_dim)
    lora.inject(model, 16)
    randomize_factors(model)
    found, gap = trial.first_difference(model), gaps_of(model, play(model, 5, 1, 2, 3, 200)).max()
    assert gap == 0 if found is None else "self_attn" in found


@pytest.mark.parametrize("head_dim", [18, 24, 40])
def test_step_with_such_a_fault_is_refused(head_dim, monkeypatch):
    """The fault is planted, because not every CPU has it: a product that is alone rounds differently."""
    score = cpu_step.score

    def faulty(queries_ZME, keys_UZEL, out_UZML):
        score(queries_ZME, keys_UZEL, out_UZML)
        out_UZML.mul_(1 + 2**-22 if len(queries_ZME) == 1 else 1)

    model = random_model("mistral", **ONE_HEAD, head_dim=head_dim)
    assert exact_step(model) is not None
    monkeypatch.setattr(cpu_step, "score", faulty)
    cpu_step._agreed.clear()
    assert exact_step(model) is None


def test_gelu_of_three_threads_is_refused(threads):
    model = random_model("llama", hidden_size=64, intermediate_size=96, hidden_act="gelu_pytorch_tanh")
    threads(2)
    assert trial.first_difference(model) is None
    threads(3)
    assert trial.first_difference(model) == "mlp: hidden_act gelu_pytorch_tanh gives other bits from three threads on"


@pytest.mark.parametrize("number", [2, 3, *also_full(5, 16)])
@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_does_not_depend_on_the_rows_or_is_refused(name, dtype, number, threads):
    """torch shares gelu among threads by a rule of its own, and rounds the end of a share otherwise."""
    threads(number)
    model = random_model("llama", hidden_size=64, intermediate_size=96, hidden_act=name, dtype=dtype)
    act, x = model.model.layers[0].mlp.act, torch.randn(4096, 704, generator=torch.Generator().manual_seed(0)) * 1.5
    whole = act(x.to(dtype))
    same = all(torch.equal(act(x[:rows].to(dtype)), whole[:rows]) for rows in range(16, 1024, 48))
    assert same or (number > 2 and trial.first_difference(model).startswith(f"mlp: hidden_act {name} "))


@pytest.mark.parametrize("words", [2, 3])
def test_tiny_vocabularies_are_tried(words):
    """A head of so few words may well differ; the trial must say so, and only then."""
    model = random_model("llama", hidden_size=64, head_dim=16, vocab_size=words)
    found, gap = trial.first_difference(model), largest_gap(model)
    assert gap == 0 if found is None else found.startswith(("lm_head is narrow", "log-probabilities of sampling"))


def test_heads_narrower_than_the_padded_rank_are_not_called_exact():
    """16 rows of an adapter of rank 16 times 8 columns are as small a product."""
    model = random_model("llama", hidden_size=64, num_key_value_heads=1, head_dim=8)
    assert trial.first_difference(model) is None
    lora.inject(model, 4)
    assert trial.first_difference(model) == (
        "layers.0.self_attn.k_proj is narrow, 64 to 8: 16 rows take another kernel than more rows"
    )


@pytest.mark.parametrize("part", ["mlp", "self_attn"])
def test_trial_names_the_module_that_differs(part, monkeypatch):
    """A module whose output depends on the number of its rows is planted."""
    model = embedded(4, torch.float32)
    module = getattr(model.model.layers[1], part)
    real = module.forward
    monkeypatch.setattr(module, "forward", lambda x, *rest: real(x, *rest) * (1 + 1e-6 * len(x)))
    assert trial.first_difference(model).startswith(f"model.layers.1.{part} differs by ")
    assert all(not layer.adapters["default"].B.any() for _, layer in lora.lora_layers(model)), "B is zero again"
    assert not any(m._forward_hooks for m in model.modules())


def test_trial_has_random_factors(monkeypatch):
    """A fault in the adapters' product, which B = 0 would hide, is planted."""
    real = fused._columns
    monkeypatch.setattr(fused, "_columns", lambda y, low, *rest: real(y, low * (1 + 1e-6 * len(low)), *rest))
    assert trial.first_difference(embedded(4, torch.float32)).startswith("model.layers.0.self_attn differs by ")


@pytest.mark.parametrize("most", [1, 2, 3, 6, 7])
@pytest.mark.parametrize(("given", "said"), [(0, "yes"), (1, "yes"), (8, "8 threads")])
def test_most_threads_that_are_exact_are_chosen(given, said, most, threads, monkeypatch):
    monkeypatch.setattr(trial, "default_threads", lambda _: 8)
    found = lambda _: f"{torch.get_num_threads()} threads" if torch.get_num_threads() > most else None  # noqa: E731
    monkeypatch.setattr(trial, "first_difference", found)
    model = random_model()
    assert trial.choose_threads(model, given, trial=True)[0] == said and torch.get_num_threads() == (given or most)


LIBRARIES = [by for by in ("onednn", "mkl") if packed.usable(F32, by)] + ["plain"]


@pytest.mark.parametrize("exact", LIBRARIES)
@pytest.mark.parametrize("fastest", LIBRARIES)
def test_the_products_that_are_exact_are_chosen(exact, fastest, threads, monkeypatch):
    """The fastest are tried first."""
    monkeypatch.setattr("models.cpu.process.ONE_THREAD", 0)  # small models get no trial of speed
    monkeypatch.setattr(speed, "race", lambda *_: (fastest, dict.fromkeys(("plain", fastest), 1.0)))
    monkeypatch.setattr(trial, "first_difference", lambda _: None if packed.library == exact else "no")
    assert trial.choose_threads(random_model(), 1, trial=True) == ("yes", exact)
    for other in LIBRARIES:
        found = trial.choose_threads(random_model(), 1, trial=True, products=other)
        assert found == ("yes" if other == exact else "no", other)


def test_all_threads_are_kept_if_no_number_is_exact(threads, monkeypatch):
    monkeypatch.setattr(trial, "default_threads", lambda _: 4)
    monkeypatch.setattr(trial, "first_difference", lambda _: f"{torch.get_num_threads()} threads")
    assert trial.choose_threads(random_model(), 0, trial=True)[0] == "4 threads" and torch.get_num_threads() == 4


@pytest.mark.parametrize("largest", [10.0, 240.0, 2000.0])
@pytest.mark.parametrize("words", [50, 5000])
@pytest.mark.parametrize("fast", [True, False])
def test_entropy_of_large_logits_does_not_cancel(largest, words, fast, monkeypatch):
    """5,000 words are two slabs. The logits' differences are small beside the logits, and exact in float32."""
    if not fast:
        monkeypatch.setattr(hooks("cpu"), "token_logprobs", nothing_faster)
    generator = torch.Generator().manual_seed(0)
    weight_VD = largest + torch.randint(0, 8, (words, 1), generator=generator) / 4
    entropy_N = token_logprobs(torch.ones(3, 1), weight_VD, torch.tensor([0, 1, 2]))[1]
    p = weight_VD.double()[:, 0].softmax(0)
    torch.testing.assert_close(entropy_N.double(), -(p * p.log()).sum().expand(3), atol=2e-6, rtol=2e-6)


def test_start_line_and_metrics_say_whether_it_is_exact(tmp_path):
    words = "algo=grpo epochs=1 episodes=8 batch_size=8 eval_episodes=0 max_turns=1 max_new_tokens=8 threads=3 lora.r=1"
    status, out, err = run_program("train.py", *words.split(), f"out={tmp_path}/run")
    assert status == 0, err
    assert "\nthreads: 3; exact: yes; ranks: 1\n" in out
    assert '"exact": "yes"' in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_a_run_says_what_is_not_exact(tmp_path, monkeypatch):
    """A product that depends on the number of rows is planted."""
    real = fused._columns
    monkeypatch.setattr(fused, "_columns", lambda y, low, *rest: real(y, low * (1 + 1e-6 * len(low)), *rest))
    words = "algo=ppo epochs=1 episodes=4 batch_size=4 eval_episodes=0 max_turns=1 max_new_tokens=8 products=plain"
    run, out = parse([*words.split(), f"out={tmp_path}/run"]), io.StringIO()
    with redirect_stdout(out):
        train.main(run)
    (line,) = (line for line in out.getvalue().splitlines() if line.startswith("threads: "))
    assert line.startswith("threads: 1; exact: model.layers.0.self_attn differs by ")
    assert line == f"threads: 1; exact: {metrics_of(tmp_path / 'run')[0]['exact']}; ranks: 1"


@pytest.mark.all_only
@pytest.mark.parametrize("r", [1, *also_full(2, 3, 191, 192, 193)])
def test_resumed_runs_of_corner_ranks_have_the_same_bytes(r, threads):
    threads(1)
    with shared_trials():
        assert exactness.resumed_run(("tiny", "float32", r, 1), "tiny") == ("equal", 0.0)


def gradients(model, episodes: list[Episode], micro_tokens: int) -> dict[str, torch.Tensor]:
    """Return the gradients of the factors of the mean log-probability, from one step in pieces."""
    model.zero_grad()
    for piece in micro_batches(make_batch(episodes), micro_tokens):
        piece = forward(piece, model, 1.0)
        (piece.logprobs_N.sum() / piece.total_tokens).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.all_only
@pytest.mark.parametrize(
    ("r", "number", "dtype", "bound", "of_entry"),
    [
        (16, 1, F32, 1e-6, 4e-6),  # 2.9e-6 was seen with five layers
        *also_full(
            (0, 1, F32, 1e-6, 4e-6), (1, 1, F32, 1e-6, 4e-6), (16, 1, BF16, 2e-2, 4e-2), (16, 3, F32, 1e-6, 4e-6)
        ),
    ],
)
def test_gradients_depend_on_the_cut_of_a_step_by_rounding_alone(r, number, dtype, bound, of_entry, threads):
    """The order of the groups changes no bit. micro_tokens (each episode alone, or beside few or all others) and the
    order within groups change sums: the whole gradient by at most `bound` of its norm, an entry by at most `of_entry`
    of its tensor's largest."""
    threads(number)
    model = embedded(r, dtype)
    randomize_factors(model)
    episodes = play(model, *PLAYED)
    whole, cut = (gradients(model, episodes, micro_tokens) for micro_tokens in (10**6, 200))
    others = [replace(episodes[4 * g + i], group=9 - g) for g in (2, 0, 1) for i in range(4)]
    for micro_tokens, expected in ((10**6, whole), (200, cut)):
        turned = gradients(model, others, micro_tokens)
        assert expected.keys() == turned.keys()
        assert all(torch.equal(turned[name], g) for name, g in expected.items())
    for order, micro_tokens in ((episodes, 1), (episodes, 200), (episodes[::-1], 10**6)):
        found = gradients(model, order, micro_tokens)
        for name, g in found.items():
            assert (g - whole[name]).abs().max() <= of_entry * whole[name].abs().max(), name
        norm, apart = (
            torch.cat([x.flatten() for x in xs]).norm()
            for xs in (whole.values(), [found[name] - g for name, g in whole.items()])
        )
        assert apart <= bound * norm


def test_the_choice_of_threads_and_products_is_saved(tmp_path):
    """Otherwise a resumed run could choose others, whose gradients have other bits."""
    words = ["algo=sft", "epochs=1", "episodes=4", "batch_size=4", "eval_episodes=0", "products=plain"]
    status, _, err = run_program("train.py", *words, f"out={tmp_path}/run")
    assert status == 0, err
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["threads"] == 1 and saved["products"] == "plain"


def test_one_name_of_a_layer_is_a_name(tmp_path):
    """lora.targets=v_proj is no regular expression; as such it would match no whole name."""
    words = ["algo=sft", "epochs=1", "episodes=4", "batch_size=4", "eval_episodes=0", "lora.targets=v_proj"]
    status, out, err = run_program("train.py", *words, f"out={tmp_path}/run")
    assert status == 0 and "on 5 layers (v_proj)" in out, out + err


@pytest.mark.parametrize("word", ["w_proj", "v_proj,w_proj", "q_proj,w_proj,v_proj"])
def test_a_name_that_no_layer_has_is_refused(word):
    with pytest.raises(
        ValueError, match=rf"^lora.targets={word}: no linear layer is named w_proj; did you mean \w_proj\?; linear"
    ):
        read_targets(word, random_model())
