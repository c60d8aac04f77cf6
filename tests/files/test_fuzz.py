"""Random files, words and actions: only our own errors, in one line, within two seconds and 500 MB."""

import json
import tempfile
from pathlib import Path

import hostile_cases
import hostile_files as hostile
import pytest
from cases import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.chat import tokenizer_file
from rl.config.words import parse

pytestmark = pytest.mark.all_only
CASES = cases("fuzz")

SCALARS = st.sampled_from([value for value in hostile.VALUES.values() if not isinstance(value, list | dict)])
SCALARS |= st.integers() | st.floats() | st.text(max_size=20) | st.none() | st.booleans()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))
NAMES = st.text(alphabet="abclmoqrv_.*+?()[]{}|\\^$d0123,", max_size=30)


def fields(names: list[str], values=VALUES, most: int = 4):
    """Return a strategy of objects with some of these fields."""
    return st.dictionaries(st.sampled_from(names), values, max_size=most)


def damaged(content: str | bytes):
    """Return a strategy of a file's bytes with a few pieces replaced, half of them in its first kilobytes."""

    def apply(edits: list[tuple[int, int, bytes]]) -> bytes:
        found = content.encode() if isinstance(content, str) else content
        for start, length, new in edits:
            start %= len(found) + 1
            found = found[:start] + new + found[start + length :]
        return found

    pieces = st.binary(max_size=4) | st.sampled_from([b"[" * 50, b'"', b"{", b"}", b"NaN", b"-1", b"1e999", b"\x00"])
    places, lengths = st.integers(0, 4000) | st.integers(0, 10**6), st.integers(0, 60) | st.just(10**6)
    return st.lists(st.tuples(places, lengths, pieces), min_size=1, max_size=4).map(apply)


def tokens(*words: str, most: int = 30):
    """Return a strategy of texts made of these words."""
    return st.lists(st.sampled_from(words) | st.text(max_size=3), max_size=most).map("".join)


TOML = tokens(*CASES["TOML"])
JINJA = tokens(*CASES["JINJA"], hostile.CHATML)
KINDS = sorted({kind for _, kinds in tokenizer_file.KINDS.values() for kind in kinds})
KINDS += ["Sequence", "Precompiled", "FixedLength", "CTC"]
PATTERNS = st.dictionaries(st.sampled_from(["Regex", "String"]), st.text(alphabet="a b*+?()[]{}|\\d^$1,", max_size=12))
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(KINDS)},
    optional={
        **{"pattern": PATTERNS, "content": st.text(max_size=5), "prepend": st.text(max_size=5)},
        **{"behavior": st.sampled_from(["Isolated", "Removed", "MergedWithNext"]), "invert": st.booleans()},
        **{"start": st.integers(0, 2**40), "stop": st.integers(0, 2**40), "individual_digits": st.booleans()},
        **{"length": st.integers(0, 3), "replacement": st.text(max_size=2), "prepend_scheme": st.just("always")},
        **{"prefix": st.text(max_size=2), "cleanup": st.booleans(), "add_prefix_space": st.booleans()},
        **{"trim_offsets": st.booleans(), "use_regex": st.booleans(), "suffix": st.text(max_size=2)},
        **{"strip_left": st.booleans(), "strip_right": st.booleans(), "lowercase": st.booleans()},
    },
)
STAGES = PARTS | st.builds(
    lambda parts, name: {"type": "Sequence", name: parts},
    st.lists(PARTS, max_size=4),
    st.sampled_from(["normalizers", "pretokenizers", "decoders"]),
)
PIECES = st.sampled_from(["a", "b", "é", "ab", "aé", "", " ", "<|im_end|>"])
MODELS = st.fixed_dictionaries(
    {},
    optional={
        "vocab": st.dictionaries(PIECES, st.integers(-1, 2**33), max_size=6) | VALUES,
        "merges": st.lists(st.lists(PIECES, max_size=3) | st.just("a b"), max_size=4) | VALUES,
        "type": st.sampled_from(["BPE", "Unigram", "WordLevel", "WordPiece"]),
        "unk_token": PIECES | st.none(),
        "byte_fallback": st.booleans(),
        "end_of_word_suffix": PIECES,
        "continuing_subword_prefix": PIECES | st.none(),
    },
)
PART_NAMES = ["normalizer", "pre_tokenizer", "decoder", "post_processor", "padding", "truncation", "added_tokens"]
TOKENIZERS = st.dictionaries(st.sampled_from(["normalizer", "pre_tokenizer", "decoder"]), STAGES, max_size=2)
TOKENIZERS |= st.dictionaries(st.sampled_from(PART_NAMES), VALUES, max_size=1)
TOKENIZERS |= MODELS.map(lambda model: {"model": model})
MESSAGES = st.fixed_dictionaries({}, optional={name: VALUES for name in ("role", "content", "loss", "from", "value")})
ROWS = st.fixed_dictionaries(
    {}, optional={name: VALUES | st.lists(MESSAGES, max_size=3) for name in ("messages", "prompt", "answer", "x")}
)
WORDS = st.builds(
    lambda key, value: f"{key}={value}",
    st.sampled_from(["out", "lr", "env", "algo", "recipe", "model", "seed", "lora.targets", "ppo.clip", "data", "plan"])
    | st.text(max_size=10),
    st.text(max_size=30) | tokens("{algo", "{seed", "}", ":>99", "!r", ".__class__", "sat", ":", ",", "1e", "9" * 400),
)
ADAPTERS = fields(hostile_cases.ADAPTER_NAMES)
ADAPTERS |= st.dictionaries(st.sampled_from(["target_modules", "exclude_modules", "layers_pattern"]), NAMES)
ADAPTERS |= st.dictionaries(st.sampled_from(["rank_pattern", "alpha_pattern"]), st.dictionaries(NAMES, st.just(4)))

TOKENIZER_CONFIG = {
    "chat_template": [{"name": "default", "template": hostile.CHATML}, {"name": "tool_use", "template": ""}],
    "eos_token": {"content": "<|im_end|>", "special": True},
    "bos_token": "<|im_start|>",
    "added_tokens_decoder": {"298": {"content": "<|im_start|>"}, "299": {"content": "<|im_end|>"}},
    "tokenizer_class": "Qwen2Tokenizer",
}

FUZZED = {  # what is fuzzed: (the contents, what reads them from an empty folder)
    "command line": (st.lists(WORDS, max_size=3), lambda folder, words: parse(words)),
    "recipe": (TOML | damaged("lr = 1\n[ppo]\nclip = 0.1\n[tiny]\nepochs = 3\n"), hostile.use_recipe),
    "config.json": (
        fields(hostile_cases.CONFIG_NAMES).map(lambda new: {**hostile.QWEN2, **new})
        | damaged(json.dumps(hostile.QWEN2)),
        hostile.load_config,
    ),
    "rotary settings": (
        fields(hostile_cases.ROPE_NAMES).map(lambda new: {**hostile_cases.ROPE, **new}),
        hostile_cases.load_rope,
    ),
    "index": (
        st.dictionaries(st.sampled_from(["weight_map", "metadata"]), VALUES)
        | damaged('{"weight_map": {"lm_head.weight": "model.safetensors"}}'),
        hostile_cases.load_index,
    ),
    "weights": (
        st.dictionaries(st.text(max_size=5), fields(["dtype", "shape", "data_offsets"])).map(hostile_cases.header)
        | st.binary(max_size=200)
        | damaged(hostile.weights()),
        hostile_cases.load_weights,
    ),
    "adapter's weights": (
        damaged(hostile.adapter_files()[1]),
        lambda folder, tensors: hostile.load_adapter(folder, tensors=tensors),
    ),
    "adapter": (ADAPTERS | damaged(json.dumps(hostile.adapter_files()[0])), hostile.load_adapter),
    "tokenizer.json": (
        TOKENIZERS.map(lambda parts: hostile_cases.component(**parts)) | damaged(hostile.tokenizer_json()),
        hostile_cases.load_tokenizer_json,
    ),
    "tokenizer_config.json": (
        fields(hostile_cases.BESIDE["tokenizer_config"]).map(lambda new: {**TOKENIZER_CONFIG, **new})
        | fields(hostile_cases.BESIDE["tokenizer_config"])
        | damaged(json.dumps(TOKENIZER_CONFIG)),
        hostile_cases.load_beside("tokenizer_config"),
    ),
    "chat template": (JINJA, hostile_cases.load_template),
    "data rows": (
        ROWS.map(json.dumps) | damaged(json.dumps(hostile_cases.message()) + "\n" + json.dumps(hostile_cases.ROW)),
        hostile.load_rows,
    ),
}


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", FUZZED)
def test_random_files_end_in_one_line(kind, count):
    contents, load = FUZZED[kind]

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(content=contents)
    def check(content):
        with tempfile.TemporaryDirectory() as folder:
            (place := Path(folder, "x")).mkdir()
            hostile.judge(lambda: load(place, content))

    check()
