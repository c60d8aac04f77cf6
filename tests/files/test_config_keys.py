"""A key of config.json that may change the computation is read or refused by name; a harmless one changes nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.config import HARMLESS, ONLY, READ, parse_config

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
SMALL |= {"num_key_value_heads": 2}
FAMILIES = ("qwen2", "qwen3", "llama", "mistral", "smollm3", "granite", "olmo2", "olmo3", "phi3", "qwen3_moe")
VALUES = st.booleans() | st.integers() | st.text(max_size=4) | st.dictionaries(st.text(max_size=2), st.integers())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_keys_that_transformers_writes_are_known(family):
    transformers = pytest.importorskip("transformers")
    written = transformers.AutoConfig.for_model(family, **SMALL).to_dict()
    parse_config(written | {"architectures": [f"{family.title()}ForCausalLM"]})


@given(st.sampled_from(FAMILIES), st.text(min_size=1, max_size=20), VALUES)
def test_an_unknown_key_is_refused_by_name(family, key, value):
    if key not in READ | ONLY.keys() | HARMLESS:
        with pytest.raises(ValueError) as caught:
            parse_config({**SMALL, "model_type": family, key: value})
        assert repr(key) in str(caught.value) and "\n" not in str(caught.value)


@given(st.sampled_from(sorted(HARMLESS)), VALUES)
def test_a_harmless_key_changes_nothing(key, value):
    plain = {**SMALL, "model_type": "llama"}
    assert parse_config({**plain, key: value}) == parse_config(plain)


@pytest.mark.parametrize(("key", "only"), ONLY.items())
def test_a_key_with_one_computed_value_takes_no_other(key, only):
    plain = {**SMALL, "model_type": "llama"}
    assert parse_config({**plain, key: only}) == parse_config(plain)
    for other in (not only, "x", 3):
        if other != only:
            with pytest.raises(ValueError, match=key):
                parse_config({**plain, key: other})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"is_causal": False}, "is_causal False is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "no causal language model"),
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Own"}}, "code of the checkpoint's own"),
        ({"rms_norm_epss": 1e-5}, "did you mean 'rms_norm_eps'"),
        ({"num_experts": 8}, "'num_experts' is not known"),
        ({"quantization": {"bits": 4}}, "'quantization' is not known"),
        ({"attn_logit_softcapping": 50.0}, "'attn_logit_softcapping' is not known"),
        ({"residual_multiplier": 0.2}, "'residual_multiplier' is not known"),
    ],
)
def test_what_would_compute_otherwise_is_one_line(keys, message):
    with pytest.raises(ValueError, match=message):
        parse_config({**SMALL, "model_type": "llama", **keys})


def test_the_config_of_a_published_model_is_read():
    """SmolLM2-135M-Instruct's keys, which name the library and the program that wrote them."""
    extra = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}
    extra |= {"pretraining_tp": 1, "rope_scaling": None, "rope_theta": 100000, "initializer_range": 0.04}
    assert parse_config({**SMALL, "model_type": "llama", "architectures": ["LlamaForCausalLM"], **extra})
