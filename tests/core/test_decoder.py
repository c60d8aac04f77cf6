"""The decoder matches transformers for every configuration; the layout of its input changes no bit."""

import copy
import dataclasses
import itertools
import json
from collections.abc import Iterable, Iterator

import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL, random_model
from make_fixtures import CASES, FROZEN, FROZEN_CASES, LLAMA3, MULTIPLIERS, SLIDES, YARN, in_float64, oracle, raw_config
from safetensors import safe_open

from models import load_model
from models.attention import ExactAttention, attend, in_blocks, masked_attention
from models.cache import KVCache
from models.config import parse_config
from models.decoder import CausalLM, segments_to_sequences
from models.logprob import token_logprobs

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10}


def random_ids(*shape: int, vocab: int = 97, seed: int = 0) -> torch.Tensor:
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def logits_of(model: CausalLM, ids_BT: torch.Tensor, **arrangement) -> torch.Tensor:
    return model(ids_BT, **arrangement) @ model.lm_head.weight.T


def through_cache(model: CausalLM, ids_BT: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    """Return hidden states of sequences that reach the model in pieces."""
    B, cache, hidden, start = ids_BT.shape[0], KVCache(model, ids_BT.shape[0]), [], 0
    for n in pieces:
        view = cache.view(torch.arange(B), torch.full((B,), start), n)
        positions_BT = (start + torch.arange(n)).expand(B, n)
        hidden.append(model(ids_BT[:, start : start + n], positions_BT, cache=view))
        start += n
    assert start == ids_BT.shape[1]
    return torch.cat(hidden, 1)


def arrangements(sequences: list[torch.Tensor]):
    """Yield (name, ids_BT, segments_BT): the same sequences padded right, left, on both sides, and packed in a row."""
    longest = max(map(len, sequences))
    for name in ("right", "left", "both"):
        before = [{"right": 0, "left": longest - len(s), "both": 3}[name] for s in sequences]
        width = longest + (5 if name == "both" else 0)
        pad = [(n, width - n - len(s)) for n, s in zip(before, sequences, strict=True)]
        ids_BT = torch.stack([F.pad(s, p) for s, p in zip(sequences, pad, strict=True)])
        segments_BT = torch.stack(
            [F.pad(torch.zeros_like(s), p, value=-1) for s, p in zip(sequences, pad, strict=True)]
        )
        yield name, ids_BT, segments_BT
    ids_BT = torch.cat([*sequences, torch.zeros(3, dtype=torch.long)])[None]
    runs = [torch.full_like(s, i) for i, s in enumerate(sequences)] + [torch.full((3,), -1)]
    yield "packed", ids_BT, torch.cat(runs)[None]


# ------------------------------------------------------------------------------------------------ against transformers


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """Return transformers' model, and ours loaded from its files."""
    pytest.importorskip("transformers")
    theirs, raw = oracle(CASES[request.param]), raw_config(CASES[request.param])
    folder = tmp_path_factory.mktemp("model")
    copy.deepcopy(theirs).to(getattr(torch, raw.get("dtype", "float32"))).save_pretrained(folder)
    if "nested" in request.param:
        config = json.loads((folder / "config.json").read_text()) | {"rope_parameters": raw["rope_parameters"]}
        (folder / "config.json").write_text(json.dumps(config))
    ours = load_model(str(folder)).requires_grad_(True)
    assert ours.config == parse_config(raw), "what transformers writes says the same as what the case says"
    return theirs, ours, folder


def by_name_in_files(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor), those of an expert apart: transformers joins all experts of a layer."""
    for name, tensor in tensors:
        if ".experts." not in name:
            yield name, tensor
            continue
        path, joined = name.rsplit(".", 1)
        for i, expert in enumerate(tensor):
            parts = {"down_proj": expert}
            if joined == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True))
            yield from ((f"{path}.{i}.{part}.weight", value) for part, value in parts.items())


def test_sharded_and_single_files_load_the_same(pair, tmp_path):
    theirs, ours, _ = pair
    theirs.save_pretrained(tmp_path, max_shard_size="30KB")
    assert (tmp_path / "model.safetensors.index.json").is_file() and not (tmp_path / "model.safetensors").exists()
    sharded = load_model(str(tmp_path)).state_dict()
    for name, value in by_name_in_files(theirs.state_dict().items()):
        assert torch.equal(ours.state_dict()[name], value) and torch.equal(sharded[name], value), name


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.full)], ids=str)
def test_logits_and_gradients_match_transformers(pair, dtype):
    theirs, ours, folder = pair
    if dtype == torch.float64:
        if ours.config.num_experts:
            pytest.skip("transformers' product of all experts takes no float64")
        theirs, ours = in_float64(theirs), load_model(str(folder), dtype).requires_grad_(True)
    theirs.zero_grad()
    ids = random_ids(3, 96)
    probe = torch.rand(3, 95, generator=torch.Generator().manual_seed(1), dtype=dtype)

    expected_logits = theirs(ids).logits
    expected = expected_logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    (expected * probe).mean().backward()

    hidden_BTD = ours(ids)
    got, _ = token_logprobs(hidden_BTD[:, :-1].flatten(0, 1), ours.lm_head.weight, ids[:, 1:].flatten())
    (got.view(3, 95) * probe).mean().backward()

    # Granite's attention_multiplier is in the tables of cos and sin, which are float32.
    tolerance = 1e-7 if ours.config.model_type == "granite" and dtype == torch.float64 else TOLERANCE[dtype]
    close = {"atol": tolerance, "rtol": tolerance}
    torch.testing.assert_close(hidden_BTD @ ours.lm_head.weight.T, expected_logits, **close)
    torch.testing.assert_close(got.view(3, 95), expected, **close)
    gradients = dict(ours.named_parameters())
    for name, expected_grad in by_name_in_files((name, p.grad) for name, p in theirs.named_parameters()):
        assert expected_grad.abs().max() > 0, name
        torch.testing.assert_close(
            gradients.pop(name).grad, expected_grad, **close, msg=lambda m, name=name: f"{name}: {m}"
        )
        ours.get_parameter(name).grad = None
    assert not gradients


@torch.no_grad()
def test_padded_packed_and_cached_match_transformers(pair):
    theirs, ours, _ = pair
    sequences = [random_ids(n, seed=n) for n in (5, 96, 1, 18)]
    expected = torch.cat([theirs(s[None]).logits[0] for s in sequences])
    for name, ids_BT, segments_BT in arrangements(sequences):
        got = logits_of(ours, ids_BT, segments_BT=segments_BT)
        assert got.isfinite().all(), name
        torch.testing.assert_close(got[segments_BT >= 0], expected, atol=2e-5, rtol=2e-5)

    ids_BT = random_ids(2, 96)
    expected = theirs(ids_BT).logits
    for pieces in ([86] + [1] * 10, [1, 30, 2, 63], [96]):
        got = through_cache(ours, ids_BT, pieces) @ ours.lm_head.weight.T
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=2e-5)


@torch.no_grad()
def test_a_row_is_bitwise_the_same_alone_and_among_eight(pair):
    _, ours, _ = pair
    ids_BT = random_ids(8, 96)
    for row, alone in zip(ours(ids_BT), ids_BT, strict=True):
        assert torch.equal(ours(alone[None])[0], row)


@torch.no_grad()
def test_far_positions_rotate_as_in_transformers():
    """Rotary angles past 10,000 need float32 throughout; positions that are given are used."""
    pytest.importorskip("transformers")
    theirs = oracle(CASES["qwen2 tied"])
    ours = random_model(**{"head_dim": None, **CASES["qwen2 tied"]})
    ours.load_state_dict(theirs.state_dict())
    ids, positions = random_ids(1, 20), torch.arange(20)[None] ** 2 * 50
    expected = theirs(ids, position_ids=positions).logits
    torch.testing.assert_close(logits_of(ours, ids, positions_BT=positions), expected, atol=1e-4, rtol=1e-4)
    assert (expected - logits_of(ours, ids)).abs().max() > 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", ["qwen2 yarn", "qwen3 bfloat16 weights", "llama three bands", "mistral sliding"])
@torch.no_grad()
def test_half_precision_errs_no_more_than_transformers_does(case, dtype, tmp_path):
    """The truth is float32 with the same rounded weights; transformers in that dtype sets the allowed error."""
    pytest.importorskip("transformers")
    ids, rounded = random_ids(4, 96), oracle(CASES[case]).to(dtype)
    rounded.save_pretrained(tmp_path)
    truth = logits_of(load_model(str(tmp_path), torch.float32), ids)
    ours = logits_of(load_model(str(tmp_path), dtype), ids)
    budget = (rounded(ids).logits.float() - truth).abs()
    error = (ours.float() - truth).abs()
    assert ours.dtype == dtype and 0 < error.mean() <= 1.2 * budget.mean() and error.max() <= 2 * budget.max()


@torch.no_grad()
def test_far_positions_lose_no_precision_in_bfloat16():
    """The rotary angles are float32 for all weights."""
    model, ids = random_model(dtype=torch.bfloat16), random_ids(4, 50)
    places = {"near": torch.arange(50).expand(4, 50), "far": 19_000 + 11 * torch.arange(50).expand(4, 50)}
    got = {name: logits_of(model, ids, positions_BT=positions) for name, positions in places.items()}
    model = model.float()
    error = {name: (got[name] - logits_of(model, ids, positions_BT=p)).abs().mean() for name, p in places.items()}
    assert 0 < error["far"] < 1.3 * error["near"]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", FROZEN_CASES)
def test_frozen_results_of_transformers(case: str, dtype: torch.dtype):
    """Compare with the float64 results of make_fixtures.py, without transformers."""
    with safe_open(FROZEN, "pt") as file:
        tensors = {k.removeprefix(f"{case}/"): file.get_tensor(k) for k in file.keys() if k.startswith(case)}  # noqa: SIM118
        model = CausalLM(parse_config(json.loads(file.metadata()[case]))).to(dtype)
    weights = {key.removeprefix("weights/"): value for key, value in tensors.items() if key.startswith("weights/")}
    model.load_state_dict(weights, strict=not model.config.tie_word_embeddings)
    ids = tensors["ids"]
    hidden_BTD = model(ids)
    logprobs, _ = token_logprobs(hidden_BTD[:, :-1].flatten(0, 1), model.lm_head.weight, ids[:, 1:].flatten())
    close = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype], "check_dtype": False}
    torch.testing.assert_close((hidden_BTD @ model.lm_head.weight.T)[:, ::12], tensors["logits"], **close)
    torch.testing.assert_close(logprobs, tensors["logprobs"].flatten(), **close)


# -------------------------------------------------------------------------------------------------- the configuration


FAMILIES = ("qwen2", "qwen3", "llama", "mistral")  # the others have some of their settings
OTHERS = ("smollm3", "granite", "olmo2", "olmo3", "phi3", "qwen3_moe")
QWEN = ("qwen2", "qwen3")
LINEAR = {"rope_type": "linear", "factor": 2.0}
FULL, SLIDING = "full_attention", "sliding_attention"


def same_weights(before: CausalLM, fields: dict) -> CausalLM:
    """Return a model of another configuration with these weights, cut if it has fewer or narrower heads."""
    after = random_model(seed=0, **fields)
    weights = before.state_dict()
    assert set(after.state_dict()) <= set(weights), "the mutation must change the computation alone"
    for name, p in after.named_parameters():
        p.data = weights[name][tuple(slice(n) for n in p.shape)].clone()
        assert p.shape == after.state_dict()[name].shape and (p.shape == weights[name].shape or "attn" in name), name
    return after


def changes(before: dict, after: dict, *families: str) -> list:
    return [(family, before, after) for family in families or FAMILIES]


MATTER = [
    *changes({}, {"rope_theta": 5e5}),
    *changes({"rope_theta": 1e4}, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    *changes({}, {"rope_scaling": {"type": "default", "rope_theta": 1e6}}),
    *changes({}, {"rope_parameters": LINEAR}),
    *changes({}, {"rope_scaling": {"type": "linear", "factor": 1.5}}),
    *changes({"rope_scaling": LINEAR}, {"rope_scaling": {**LINEAR, "factor": 3.0}}),
    *changes({}, {"rope_scaling": YARN}),
    *(
        change
        for key, value in {
            "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.0, "beta_fast": 1.5,
            "beta_slow": 3, "truncate": False, "rope_theta": 5e5,
        }.items()
        for change in changes({"rope_scaling": YARN}, {"rope_scaling": {**YARN, key: value}})
    ),
    *changes({"rope_scaling": YARN}, {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}}),
    *changes({"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
             {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8}}),
    *changes({"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
             {"rope_scaling": {**YARN, "mscale": 2.0, "mscale_all_dim": 0.5}}),
    *changes({"rope_scaling": {**YARN, "factor": None}, "max_position_embeddings": 64},
             {"rope_scaling": {**YARN, "factor": None}, "max_position_embeddings": 256}),
    *changes({"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 64},
             {"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 256}),
    *changes({}, {"rope_scaling": LLAMA3}),
    *(
        change
        for key, value in {
            "factor": 2.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0, "original_max_position_embeddings": 64,
        }.items()
        for change in changes({"rope_scaling": LLAMA3}, {"rope_scaling": {**LLAMA3, key: value}})
    ),
    *changes({"rope_scaling": YARN}, {"rope_scaling": YARN, "original_max_position_embeddings": 64}),
    *changes({}, {"rms_norm_eps": 1e-2}),
    *changes({}, {"hidden_act": "gelu"}),
    *changes({"hidden_act": "gelu"}, {"hidden_act": "gelu_pytorch_tanh"}),
    *changes({}, {"hidden_act": "relu"}),
    *changes({}, {"tie_word_embeddings": True}),
    *changes({"tie_word_embeddings": False}, {}, "smollm3"),
    *changes({}, {"head_dim": 8, "num_attention_heads": 8, "num_key_value_heads": 4}),
    *changes({}, {"head_dim": 12}),
    *changes({}, {"num_key_value_heads": 1}),
    *changes({"attention_bias": True}, {}, "qwen3", "llama"),
    *changes({"mlp_bias": True}, {}, "llama"),
    ("qwen3", {}, {"model_type": "llama"}),  # the norms of queries and keys
    ("qwen2", {}, {"model_type": "llama"}),  # the biases of q, k, v
    *changes({"max_window_layers": 0}, {**SLIDES, "max_window_layers": 0}, *QWEN),
    *changes({**SLIDES, "max_window_layers": 0}, {**SLIDES, "max_window_layers": 1}, *QWEN),
    *changes({**SLIDES, "max_window_layers": 1}, {**SLIDES, "max_window_layers": 2}, *QWEN),
    *changes({**SLIDES, "max_window_layers": 0}, {**SLIDES, "max_window_layers": 0, "sliding_window": 9}, *QWEN),
    *changes({**SLIDES, "max_window_layers": 0}, {**SLIDES, "max_window_layers": 0, "sliding_window": None}, *QWEN),
    *changes({**SLIDES, "max_window_layers": 0}, {**SLIDES, "layer_types": [SLIDING, FULL]}, *QWEN),
    *changes({**SLIDES, "layer_types": [SLIDING, FULL]}, {**SLIDES, "layer_types": [FULL, SLIDING]}, *QWEN),
    *changes({}, {"sliding_window": 8}, "mistral"),
    *changes({"sliding_window": 8}, {"sliding_window": 9}, "mistral"),
    *changes({"sliding_window": 8}, {"sliding_window": None}, "mistral"),
    *changes({"sliding_window": 8}, {"sliding_window": 9}, "ministral"),  # all of its layers slide by default
    *changes({"sliding_window": 8}, {"sliding_window": 8, "layer_types": [FULL, SLIDING]}, "mistral"),
    *changes({}, {"no_rope_layers": [1, 0]}, "smollm3"),
    *changes({"no_rope_layers": [1, 0]}, {"no_rope_layers": [0, 1]}, "smollm3"),
    *changes({}, {"no_rope_layer_interval": 2}, "smollm3"),
    *changes({"no_rope_layers": [1, 0]}, {"no_rope_layers": [1, 0], **SLIDES}, "smollm3"),
    *(change for key, value in MULTIPLIERS.items() for change in changes({}, {key: value}, "granite")),
    *changes({"attention_bias": True}, {}, "granite", "olmo2", "olmo3"),
    *changes({}, {"sliding_window": 8}, "olmo3", "phi3"),
    *changes({"sliding_window": 8}, {"sliding_window": 8, "layer_types": [SLIDING, FULL]}, "olmo3"),
    *changes({}, {"rope_scaling": YARN, "layer_types": [SLIDING, FULL]}, "olmo3"),
    *changes({}, {"rope_theta": 1e3}, "olmo3", "smollm3", "phi3", "granite"),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "before", "after"), MATTER, ids=str)
@torch.no_grad()
def test_every_field_that_matters_changes_the_logits(model_type, before, after):
    ids, model = random_ids(2, 70), random_model(model_type, **before)
    changed = same_weights(model, {"model_type": model_type, **after})
    assert (logits_of(model, ids) - logits_of(changed, ids)).abs().max() > 1e-3


IGNORED = [
    *changes({}, {"attention_bias": True}, "qwen2", "mistral"),
    *changes({}, {"mlp_bias": True}, "qwen2", "qwen3", "mistral"),
    *changes({}, {"sliding_window": 8}, "qwen2", "qwen3", "llama"),
    *changes({}, {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0}, "qwen2", "qwen3", "llama"),
    *changes({}, {**SLIDES, "max_window_layers": 2}, *QWEN),  # of two layers
    *changes({}, {**SLIDES, "sliding_window": None, "max_window_layers": 0}, *QWEN),
    *changes({}, {"max_window_layers": 0}),
    *changes({}, {"layer_types": [FULL, FULL]}, *QWEN, "llama"),
    *changes({}, {**SLIDES, "max_window_layers": 0}, "llama"),
    *changes({}, {**SLIDES, "layer_types": [SLIDING, FULL]}, "llama"),
    *changes({"sliding_window": 8}, {"sliding_window": 8, "use_sliding_window": False}, "mistral"),
    *changes(
        {"sliding_window": 8}, {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 2}, "mistral"
    ),
    *changes({}, {"sliding_window": 4096}, "mistral"),  # the default
    *changes({}, {"pretraining_tp": 2, "attention_dropout": 0.5, "pad_token_id": 3, "initializer_range": 9.0}),
    *changes({}, {"original_max_position_embeddings": 16, "partial_rotary_factor": 1.0}),
    *changes({}, {"rope_scaling": None, "quantization_config": None, "layer_types": None, "rope_parameters": {}}),
    *changes({"rope_scaling": YARN}, {"rope_scaling": {**YARN, "mscale": 2.0, "mscale_all_dim": 0}}),
    *changes({"rope_scaling": YARN}, {"rope_scaling": {**YARN, "beta_fast": None, "attention_factor": None}}),
]


@pytest.mark.parametrize(("model_type", "before", "after"), IGNORED, ids=str)
def test_fields_that_do_not_matter_change_nothing(model_type, before, after):
    raw = {**SMALL, "model_type": model_type}
    assert parse_config({**raw, **after}) == parse_config({**raw, **before})


@pytest.mark.parametrize("model_type", (*FAMILIES, *OTHERS))
@pytest.mark.parametrize("field", [{"max_position_embeddings": 128}, {"dtype": "float16"}, {"torch_dtype": "bfloat16"}])
def test_length_and_stored_dtype_are_read_and_change_no_logit(model_type, field):
    raw = {**SMALL, "model_type": model_type}
    before, after = parse_config(raw), parse_config({**raw, **field})
    name = {"torch_dtype": "dtype"}.get(*field, *field)
    assert getattr(after, name) == next(iter(field.values())) != getattr(before, name)
    assert dataclasses.replace(after, **{name: getattr(before, name)}) == before


@pytest.mark.parametrize("model_type", (*FAMILIES, *OTHERS))
def test_defaults_of_absent_fields_match_transformers(model_type):
    auto = pytest.importorskip("transformers").AutoConfig
    sizes = {"vocab_size": 50, "hidden_size": 2048, "intermediate_size": 9, "num_hidden_layers": 40}
    raw = {"model_type": model_type, **sizes, "num_attention_heads": 32}
    for fields in ({}, {"use_sliding_window": True} if model_type != "qwen3_moe" else {}):
        ours, theirs = parse_config({**raw, **fields}), auto.for_model(**raw, **fields)
        for name in ("num_key_value_heads", "rms_norm_eps", "hidden_act", "tie_word_embeddings"):
            assert getattr(ours, name) == getattr(theirs, name), name
        assert ours.max_position_embeddings == theirs.max_position_embeddings
        assert ours.head_dim == (getattr(theirs, "head_dim", None) or 64)
        settings = theirs.rope_parameters
        settings = settings.values() if model_type == "olmo3" else [settings]
        angles = {rope.theta for rope in ours.ropes if rope.kind != "none"}
        assert angles == {each["rope_theta"] for each in settings}
        window = getattr(theirs, "sliding_window", None)
        kinds = getattr(theirs, "layer_types", [SLIDING] * 40)
        assert ours.windows == tuple(window if kind == SLIDING else None for kind in kinds)
    if model_type != "mistral":
        assert parse_config({**raw, "num_key_value_heads": None}).num_key_value_heads == 32


@pytest.mark.parametrize("model_type", (*FAMILIES, *OTHERS))
def test_null_heads_share_hidden_size_and_swish_is_silu(model_type):
    """The first as in vLLM; transformers has 128 for Qwen3."""
    raw = SMALL | {"model_type": model_type}
    assert parse_config(raw | {"head_dim": None}).head_dim == raw["hidden_size"] // raw["num_attention_heads"]
    ids = torch.arange(9)[None]
    swish, silu = (random_model(model_type, hidden_act=name)(ids) for name in ("swish", "silu"))
    assert torch.equal(swish, silu)


# ------------------------------------------------------------------------------------------------- bitwise, on the CPU


SHAPES = {
    "grouped queries": {},
    "one head of 24, odd widths": {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "hidden_size": 35,
    },
    "eight query heads a key head": {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 8},
    "wide": {"hidden_size": 256, "intermediate_size": 700, "num_attention_heads": 8, "head_dim": 32},
    "window of 8": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
    "window of 70, every other layer": {
        "use_sliding_window": True,
        "sliding_window": 70,
        "num_hidden_layers": 4,
        "layer_types": [FULL, SLIDING] * 2,
        "rope_parameters": {FULL: {"rope_theta": 1e5}, SLIDING: LINEAR},
    },
}


QUICK_SHAPES = ("one head of 24, odd widths", "wide", "window of 70, every other layer")


@pytest.mark.parametrize(
    "shape", [pytest.param(name, marks=[pytest.mark.full] * (name not in QUICK_SHAPES)) for name in SHAPES]
)
@torch.no_grad()
def test_hidden_states_are_bitwise_independent_of_the_layout(shape):
    model = random_model("qwen3", **SHAPES[shape])
    sequences = [random_ids(n, seed=n) for n in (1, 7, 64, 65, 130, 300)]
    alone = [model(s[None])[0] for s in sequences]
    for name, ids_BT, segments_BT in arrangements(sequences):
        assert torch.equal(model(ids_BT, segments_BT=segments_BT)[segments_BT >= 0], torch.cat(alone)), name
    full = alone[-1]
    batch = torch.stack([sequences[-1], random_ids(300, seed=1), sequences[-1]])
    assert torch.equal(model(batch)[2], full)
    for n in (1, 2, 63, 64, 129):
        assert torch.equal(model(sequences[-1][None, :n])[0], full[:n]), f"a prefix of {n}"
    for pieces in ([299, 1], [1] * 70 + [230], [64, 64, 172], [5, 130, 1, 1, 163]):
        assert torch.equal(through_cache(model, batch, pieces)[2], full), pieces


def test_padding_takes_no_place_in_attention():
    for name, _, segments_BT in arrangements([random_ids(n) for n in (5, 31, 1, 18)]):
        assert segments_to_sequences(segments_BT).shape == (4, 31), name


@pytest.mark.parametrize("shape", ["grouped queries", "window of 8", "window of 70, every other layer"])
@torch.no_grad()
def test_shared_prefixes_are_bitwise_separate_sequences(shape):
    model, ids_BT = random_model("qwen3", **SHAPES[shape]), random_ids(1, 160)
    branches = [torch.arange(100), *(torch.cat((torch.arange(n), torch.arange(*rest))) for n, *rest in SHARING)]
    longest = max(map(len, branches))
    sequences_ST = torch.stack([F.pad(places, (0, longest - len(places)), value=-1) for places in branches])
    hidden_ND = model(ids_BT, sequences_ST=sequences_ST)[0]
    for places in branches:
        assert torch.equal(hidden_ND[places], model(ids_BT[:, places])[0])


SHARING = ((100, 100, 130), (70, 130, 150), (70, 150, 160))  # (rows of the first sequence, then these rows)


@pytest.mark.parametrize("count", [0, 1, 5, 60])
@pytest.mark.parametrize("shape", ["grouped queries", "window of 8", "window of 70, every other layer"])
@torch.no_grad()
def test_wanted_hidden_states_match_a_whole_forward(shape, count):
    """For every layout and every shared prefix."""
    model, draw = random_model("qwen3", **SHAPES[shape]), torch.Generator().manual_seed(count)
    shared = torch.cat((torch.arange(70), torch.arange(70, 80)))
    sequences_ST = torch.stack((shared, torch.cat((torch.arange(70), torch.arange(80, 90)))))
    for ids_BT, how in [
        (random_ids(3, 80), {}),
        (random_ids(1, 90), {"sequences_ST": sequences_ST}),
        *((ids_BT, {"segments_BT": segments_BT}) for _, ids_BT, segments_BT in arrangements([random_ids(70)] * 2)),
    ]:
        hidden_ND = model(ids_BT, **how).flatten(0, 1)
        real = (how.get("segments_BT", torch.zeros_like(ids_BT)).flatten() >= 0).nonzero()[:, 0]
        wanted = real[torch.randint(len(real), (count,), generator=draw)]
        assert torch.equal(model(ids_BT, wanted=wanted, **how), hidden_ND[wanted])


@torch.no_grad()
def test_cache_is_filled_without_any_wanted_rows():
    model, ids_BT = random_model("qwen3"), random_ids(3, 80)
    caches, nothing = [KVCache(model, 3) for _ in range(2)], torch.empty(0, dtype=torch.long)
    for cache, how in zip(caches, ({}, {"wanted": nothing}), strict=True):
        view = cache.view(torch.arange(3), torch.zeros(3, dtype=torch.long), 80)
        model(ids_BT, torch.arange(80).expand(3, 80), cache=view, **how)
    for one, other in zip(*((*c.keys, *c.values) for c in caches), strict=True):
        assert torch.equal(one, other) and one.any()


def test_every_token_being_padding_is_refused():
    with pytest.raises(ValueError, match="every token of the batch is padding"):
        random_model()(random_ids(2, 3), segments_BT=torch.full((2, 3), -1))


# ----------------------------------------------------------------------------------------------------------- attention


def attention_inputs(B, H, K, T, L, E, dtype=torch.float64, seed=0):
    """Return q, k, v that require gradients, and ascending positions of T queries that end at key L - 1."""
    g = torch.Generator().manual_seed(seed)
    shapes = ((B, H, T, E), (B, K, L, E), (B, K, L, E))
    q, k, v = (torch.randn(s, generator=g, dtype=dtype).requires_grad_() for s in shapes)
    return q, k, v, torch.arange(L - T, L).expand(B, T)


def visible(positions_BT, L: int, window: int | None):
    key_L = torch.arange(L)
    mask_BTL = key_L <= positions_BT[..., None]
    return mask_BTL if window is None else mask_BTL & (key_L > positions_BT[..., None] - window)


@pytest.mark.parametrize("window", [None, 1, 8, 70])
@pytest.mark.parametrize(
    ("B", "H", "K", "T", "L", "E"),
    [(2, 4, 2, 150, 150, 8), (1, 4, 4, 64, 64, 16), (2, 6, 1, 1, 200, 4), (1, 2, 1, 7, 7, 6), (1, 2, 2, 257, 300, 4)],
)
def test_attention_and_its_gradient_match_torch(B, H, K, T, L, E, window):
    q, k, v, positions_BT = attention_inputs(B, H, K, T, L, E)
    probe = torch.randn(B, H, T, E, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    mask = visible(positions_BT, L, window)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None], enable_gqa=True)
    got = attend(q, in_blocks(k).mT, in_blocks(v), positions_BT, window)
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)
    wanted = torch.autograd.grad((expected * probe).sum(), (q, k, v))
    for mine, theirs in zip(torch.autograd.grad((got * probe).sum(), (q, k, v)), wanted, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("window", [None, 1, 8, 70, 300])
def test_attention_in_half_precision_sees_the_same_keys(window):
    """Values are one-hot, so the output shows which keys were seen."""
    q, _, _, positions_BT = attention_inputs(2, 4, 2, 150, 200, 8, torch.bfloat16)
    k, v = torch.zeros(2, 2, 200, 8, dtype=torch.bfloat16), torch.eye(200).bfloat16().expand(2, 2, 200, 200)
    got = attend(q.repeat(1, 1, 1, 25), in_blocks(k.repeat(1, 1, 1, 25)).mT, in_blocks(v), positions_BT, window)
    seen = visible(positions_BT, 200, window)[:, None].expand(2, 4, 150, 200)
    assert torch.equal(got > 0, seen)
    torch.testing.assert_close(got.float(), seen / seen.sum(-1, keepdim=True), atol=0, rtol=2**-7)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_in_half_precision_errs_no_more_than_torchs(dtype, window):
    """Scores, weights and sums are float32: only the inputs and the results are rounded."""
    q, k, v, positions_BT = attention_inputs(2, 4, 2, 150, 150, 16, dtype)
    probe = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).to(dtype)

    def errors(function, wide):
        tensors = [x.detach().to(torch.float64 if wide else dtype).requires_grad_() for x in (q, k, v)]
        out = function(tensors[0], in_blocks(tensors[1]).mT, in_blocks(tensors[2]), positions_BT, window)
        return [out.detach(), *torch.autograd.grad(out, tensors, probe.to(out.dtype))]

    truth = errors(attend, wide=True)
    for mine, theirs, true in zip(errors(attend, False), errors(masked_attention, False), truth, strict=True):
        assert mine.dtype == dtype and (mine - true).abs().mean() <= (theirs - true).abs().mean() * 1.05


@pytest.mark.parametrize(
    ("window", "H", "K", "T", "L"),
    [
        (None, 2, 1, 3, 3), (2, 4, 2, 2, 5), (2, 1, 1, 1, 1),
        *(pytest.param(*x, marks=pytest.mark.full) for x in ((2, 2, 1, 3, 3), (None, 4, 2, 2, 5), (None, 1, 1, 1, 1))),
    ],
)  # fmt: skip
def test_attention_passes_gradcheck(H, K, T, L, window):
    q, k, v, positions_BT = attention_inputs(2, H, K, T, L, 4)
    assert torch.autograd.gradcheck(
        lambda q, k, v: ExactAttention.apply(q, in_blocks(k).mT, in_blocks(v), positions_BT, window), (q, k, v)
    )


UNSEEN = [
    (300, 13, None, torch.float32), (300, 13, 1, torch.float32), (300, 13, 64, torch.bfloat16),
    (300, 8, 8, torch.float16), (300, 8, 70, torch.bfloat16), (300, 8, 70, torch.float32),
    (2000, 64, None, torch.float32), (2000, 64, None, torch.bfloat16), (2000, 64, 70, torch.float16),
]  # fmt: skip
EVERY_UNSEEN = [
    (L, E, window, dtype)
    for (L, E), window, dtype in itertools.product(
        ((300, 8), (300, 13), (2000, 64)), (None, 1, 8, 64, 70), (torch.float32, torch.bfloat16, torch.float16)
    )
]


@pytest.mark.parametrize(
    ("L", "E", "window", "dtype"),
    [pytest.param(*case, marks=[pytest.mark.full] * (case not in UNSEEN)) for case in EVERY_UNSEEN],
    ids=str,
)
def test_a_query_is_bitwise_independent_of_unseen_keys(L, E, window, dtype):
    q, k, v, positions_BT = attention_inputs(2, 4, 2, L, L, E, dtype)
    run = lambda q, k, v, positions_BT: attend(q, in_blocks(k).mT, in_blocks(v), positions_BT, window)  # noqa: E731
    full = run(q, k, v, positions_BT)
    for t in (0, 1, 63, 64, 127, 128, 200, L // 3, L // 2, L - 1):
        one = slice(t, t + 1)
        assert torch.equal(run(q[:, :, one], k, v, positions_BT[:, one]), full[:, :, one]), t
        n = t + 1
        assert torch.equal(run(q[:, :, one], k[:, :, :n], v[:, :, :n], positions_BT[:, one]), full[:, :, one]), t
        for other in (0, L - 1):  # beside a query that reads many more blocks of keys, or begins at the first
            two = torch.tensor([[t], [other]])
            ends = torch.stack((q[0, :, one], q[1, :, other : other + 1]))
            assert torch.equal(run(ends, k, v, two)[0], full[0, :, one]), t
        junk_k, junk_v = k.detach().clone(), v.detach().clone()
        for unseen in (slice(n, None), slice(0, 0 if window is None else max(n - window, 0))):
            junk_k[:, :, unseen], junk_v[:, :, unseen] = 1e4, 1e4
        assert torch.equal(run(q[:, :, one], junk_k, junk_v, positions_BT[:, one]), full[:, :, one]), t
