"""Rotary settings: frequencies equal to transformers' in every bit from both layouts; invalid settings are refused."""

import copy
import json

import pytest
import torch
from conftest import SMALL, random_model
from make_fixtures import CASES, LLAMA3, YARN, raw_config

from models import load_model
from models.config import parse_config
from models.export import both_layouts, save_model
from models.rope import Rope, frequencies, parse_ropes

FAMILIES = ("qwen2", "qwen3", "llama", "mistral", "granite", "olmo2")
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
KINDS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": DYNAMIC,
    "yarn": YARN,
    "yarn as DeepSeek has it": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False, "factor": None},
    "llama3": LLAMA3,
}


def parsed(**fields) -> Rope:
    """Return the Rope of a config.json with these rotary settings."""
    (rope,) = set(parse_config({**SMALL, "model_type": "llama", **copy.deepcopy(fields)}).ropes)
    return rope


@pytest.mark.parametrize("head_dim", [6, 64, 128])
@pytest.mark.parametrize(
    "settings",
    [
        *KINDS.values(),
        {"rope_type": "linear", "factor": 3.7, "rope_theta": 12345.6},
        {**YARN, "factor": 40, "rope_theta": 1e6, "original_max_position_embeddings": 4096},
        {**YARN, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.0, "rope_theta": 1e6},
        {**YARN, "beta_fast": 2, "beta_slow": 2, "original_max_position_embeddings": 3},  # bounds that coincide
        {**YARN, "mscale": 0.707, "mscale_all_dim": 0},
        {**YARN, "factor": 1.0},
        {"type": "yarn", "factor": 2.0},
        {**LLAMA3, "factor": 32, "rope_theta": 5e5, "original_max_position_embeddings": 8192},
        {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4},
    ],
    ids=str,
)
def test_frequencies_match_transformers_bitwise(settings, head_dim):
    pytest.importorskip("transformers")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    theirs = LlamaConfig(head_dim=head_dim, max_position_embeddings=512, rope_parameters=copy.deepcopy(settings))
    kind = theirs.rope_parameters["rope_type"]
    plain = (1.0 / theirs.rope_parameters["rope_theta"] ** (torch.arange(0, head_dim, 2).float() / head_dim), 1.0)
    inverse, scaling = plain if kind == "default" else ROPE_INIT_FUNCTIONS[kind](theirs)
    got, factor = frequencies(parsed(rope_parameters=settings), head_dim)
    assert got.dtype == torch.float32 and torch.equal(got, inverse) and factor == scaling


@pytest.mark.parametrize("case", ["qwen2 yarn", "qwen2 yarn, own attention factor", "llama three bands"])
def test_cases_cover_kept_blended_and_slowed_pairs(case):
    raw = raw_config(CASES[case])
    (rope,) = set(parse_config(raw).ropes)
    plain, _ = frequencies(Rope(theta=rope.theta), raw["head_dim"])
    slower = plain / frequencies(rope, raw["head_dim"])[0]
    kept, slowed = slower.isclose(torch.tensor(1.0)), slower.isclose(torch.tensor(rope.stretch.factor))
    assert kept.any() and slowed.any() and not (kept | slowed).all()
    assert rope.stretch.original_length < 96  # the tests' sequences go beyond


@pytest.mark.parametrize(
    "fields",
    [
        {"rope_theta": 2e6},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 2e6}},
        {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default", "rope_theta": 2e6}},
        {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 2e6}},
        {"rope_theta": 2e6, "rope_scaling": YARN, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
        {"rope_theta": 2e6, "rope_scaling": None, "rope_parameters": YARN},
        {"rope_theta": 2e6, "rope_scaling": {}, "rope_parameters": YARN},
        {"rope_theta": 2e6, "rope_scaling": {**YARN, "type": "linear"}},
        {"rope_theta": 2e6, "rope_scaling": {"type": "linear", "factor": 4}},
        {"rope_theta": 2e6, "rope_scaling": YARN, "original_max_position_embeddings": 64},
        {"rope_theta": 2e6, "rope_scaling": LLAMA3, "original_max_position_embeddings": 64},
        {"rope_theta": 2e6, "rope_scaling": {"type": "yarn", "factor": 4.0}},
    ],
    ids=str,
)
def test_layouts_have_the_precedence_of_transformers(fields):
    pytest.importorskip("transformers")
    from transformers import AutoModelForCausalLM, LlamaConfig

    theirs = AutoModelForCausalLM.from_config(LlamaConfig(**SMALL, **copy.deepcopy(fields))).model.rotary_emb
    ours = parsed(**fields)
    inverse, scaling = frequencies(ours, SMALL["head_dim"])
    assert ours.theta == 2e6 and ours.kind == theirs.rope_type
    assert torch.equal(inverse, theirs.inv_freq) and scaling == theirs.attention_scaling


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", ["old", "new"])
@torch.no_grad()
def test_old_and_new_readers_agree_on_saved_settings(kind, family, layout, tmp_path):
    settings = {**KINDS[kind], "rope_theta": 5e5}
    if layout == "old":
        settings["type"] = settings.pop("rope_type")
        fields = {"rope_theta": settings.pop("rope_theta"), "rope_scaling": settings}
    else:
        fields = {"rope_parameters": settings}
    raw = {**SMALL, "model_type": family, "max_position_embeddings": 128, **fields}
    before, model = copy.deepcopy(raw), random_model(**raw)
    save_model(model, tmp_path, raw, torch.float32)
    assert raw == before and load_model(str(tmp_path)).config == model.config
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["rope_theta"] == saved["rope_parameters"]["rope_theta"] == 5e5
    old = {key: value for key, value in saved.items() if key != "rope_parameters"}
    assert ("rope_scaling" in old) is (kind != "default")
    for name in ("type", "rope_type"):
        assert kind == "default" or old["rope_scaling"][name] == KINDS[kind]["rope_type"]
    new = {key: value for key, value in saved.items() if key not in ("rope_theta", "rope_scaling")}
    assert parse_config(old) == parse_config(new) == model.config

    auto = pytest.importorskip("transformers").AutoModelForCausalLM
    ids = torch.randint(97, (2, 96), generator=torch.Generator().manual_seed(0))
    expected = auto.from_pretrained(tmp_path)(ids).logits
    torch.testing.assert_close(model(ids) @ model.lm_head.weight.T, expected, atol=2e-5, rtol=2e-5)


def test_scaling_of_olmo3_is_for_layers_without_a_window():
    """Its published layout has rope_scaling beside rope_theta; merging keeps it."""
    kinds = ["sliding_attention", "full_attention"]
    raw = {**SMALL, "model_type": "olmo3", "layer_types": kinds, "rope_theta": 7e4, "rope_scaling": YARN}
    sliding, full = parse_config(raw).ropes
    assert sliding == Rope(theta=7e4) and (full.kind, full.theta) == ("yarn", 7e4)
    assert both_layouts(raw) == raw


def test_nested_settings_apply_by_layer_and_stay_nested():
    raw = raw_config(CASES["qwen3 nested rope"])
    nested = raw.pop("rope_parameters")
    sliding, full, _ = parse_config({**raw, "rope_parameters": nested}).ropes
    assert (sliding.kind, sliding.theta, full.kind, full.theta) == ("linear", 1e3, "yarn", 1e5)
    del nested["full_attention"]["rope_theta"]  # then the setting beside it counts
    for name in ("rope_parameters", "rope_scaling"):
        written = both_layouts({**raw, "rope_theta": 77.0, name: nested})
        assert "rope_theta" not in written and "rope_scaling" not in written
        full = {**nested["full_attention"], "rope_theta": 77.0}
        assert written["rope_parameters"] == {"full_attention": full, "sliding_attention": nested["sliding_attention"]}
        assert parse_config(written) == parse_config({**raw, "rope_theta": 77.0, name: nested})


@torch.no_grad()
def test_dynamic_equals_default_up_to_its_length():
    plain = random_model("qwen3", max_position_embeddings=50)
    dynamic = random_model("qwen3", max_position_embeddings=50, rope_scaling=DYNAMIC)
    assert [{rope.kind for rope in model.config.ropes} for model in (dynamic, plain)] == [{"dynamic"}, {"default"}]
    ids = torch.arange(51)[None]
    assert torch.equal(dynamic(ids[:, :50]), plain(ids[:, :50])) and plain(ids).isfinite().all()
    with pytest.raises(ValueError, match=r"51 tokens is longer than max_position_embeddings 50.*dynamic"):
        dynamic(ids)
    with pytest.raises(ValueError, match="dynamic"):
        dynamic(ids[:, :2], positions_BT=torch.tensor([[3, 50]]))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope type 'longrope'.*default, linear, dynamic, yarn, llama3"),
        ({"rope_type": ["yarn"]}, r"rope type \['yarn'\] is not supported"),
        ({"rope_type": None}, "rope type None is not supported"),
        ({"type": "su"}, "rope type 'su' is not supported"),
        ({"rope_theta": None}, "rope_theta must be a positive number, not None"),
        ({"rope_theta": True}, "rope_theta must be a positive number, not True"),
        ({"rope_theta": 10**400}, "rope_theta must be a positive number, not 1000"),
        ({"rope_theta": float("nan")}, "rope_theta must be a positive number, not nan"),
        ({"rope_type": "linear"}, "factor is missing, which linear needs"),
        ({"rope_type": "dynamic"}, "factor is missing, which dynamic needs"),
        ({"rope_type": "yarn"}, "factor is missing, which yarn needs"),
        ({**LLAMA3, "factor": None}, "factor must be a number not less than 1, not None"),
        ({"rope_type": "linear", "factor": None}, "factor must be a number not less than 1, not None"),
        ({"rope_type": "linear", "factor": 0.5}, "factor must be a number not less than 1, not 0.5"),
        ({"rope_type": "dynamic", "factor": "2"}, "factor must be a number not less than 1, not '2'"),
        ({**YARN, "factor": -4.0}, "factor must be a number not less than 1, not -4.0"),
        ({**YARN, "factor": float("inf")}, "factor must be a number not less than 1, not inf"),
        ({**YARN, "beta_fast": 0}, "beta_fast must be a positive number, not 0"),
        ({**YARN, "beta_slow": "1"}, "beta_slow must be a positive number, not '1'"),
        ({**YARN, "beta_slow": 33}, "beta_fast 32.0 must not be less than beta_slow 33.0"),
        ({**YARN, "attention_factor": 0}, "attention_factor must be a positive number, not 0"),
        ({**YARN, "mscale": "1"}, "mscale must be a positive number, not '1'"),
        ({**YARN, "mscale_all_dim": -1}, "mscale_all_dim must be a positive number, not -1"),
        ({**YARN, "truncate": None}, "truncate must be true or false, not None"),
        ({**YARN, "rope_theta": 1}, "rope_theta must be greater than 1 for yarn, not 1"),
        (
            {**YARN, "original_max_position_embeddings": 0},
            "original_max_position_embeddings must be a positive integer",
        ),
        ({**LLAMA3, "original_max_position_embeddings": 32.0}, "original_max_position_embeddings must be a positive"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor must be a positive number, not None"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor 1.0 must be greater than low_freq_factor 1.0"),
        ({**YARN, "partial_rotary_factor": 0.5}, "partial_rotary_factor other than 1 is not supported"),
        ({"full_attention": {"rope_type": "default"}}, "nested by layer type is not supported for llama"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
def test_invalid_settings_are_refused(settings, words, name):
    with pytest.raises(ValueError, match=words) as caught:
        parsed(**{name: settings})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sliding_attention": {}}, "nested by layer type but has no entry for full_attention"),
        ({"full_attention": None}, "nested by layer type, so full_attention must be an object, not None"),
        ({"full_attention": {}, "rope_theta": 1e6}, "nested by layer type, so rope_theta must be an object"),
        ({"full_attention": {"rope_type": "linear"}}, "rotary settings of full_attention: factor is missing"),
        ({"full_attention": {"rope_type": "su"}}, "rope type 'su' is not supported"),
    ],
    ids=str,
)
def test_invalid_nested_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        parse_ropes({"rope_parameters": settings}, ("full_attention",), 512, "qwen2")
