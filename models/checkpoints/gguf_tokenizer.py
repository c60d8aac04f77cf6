"""The tokenizer that a GGUF file's metadata hold, as the files that Hugging Face's tokenizers read.

Only byte-level BPE (tokenizer.ggml.model "gpt2"). A file names the way in which texts are cut into words, and does not
describe it: the expressions below are those of the models' own tokenizer.json, as are what llama.cpp leaves out:
Qwen normalizes to NFC, and Llama 3 takes a word that is a token whole (ignore_merges).
"""

import json
import re

from models.checkpoints.gguf import shown
from models.refusal import Refusal

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # token types; 2 is unknown, 6 a byte, of other tokenizers
TOKEN_TYPES = range(1, 7)
READ = {"model", "pre", "tokens", "token_type", "merges", "add_bos_token"}
HARMLESS = {"scores", "add_eos_token", "add_sep_token", "token_type_count"}  # of other tokenizers and models
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
_CONTRACTIONS, _REST = "(?i:'s|'t|'re|'ve|'m|'ll|'d)", r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(digits: str) -> list[dict]:
    """Return the components that cut a text as Qwen2 and Llama 3 do, but for the digits that are one word."""
    expression = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_REST}"
    pattern = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return [pattern, BYTES | {"use_regex": False}]


PRE_TOKENIZERS = {  # tokenizer.ggml.pre: (pre-tokenizers, normalizer, whether a word that is a token is taken whole)
    "qwen2": (_split(r"\p{N}"), {"type": "NFC"}, False),
    "llama-bpe": (_split(r"\p{N}{1,3}"), None, True),
    "smollm": ([{"type": "Digits", "individual_digits": True}, BYTES | {"use_regex": True}], None, False),
}


def files(metadata: dict, config: dict) -> dict[str, str]:
    """Return {name: text} of tokenizer.json, tokenizer_config.json and generation_config.json.

    Raise ValueError, one line that names the key, for a tokenizer that is damaged or not supported.
    """
    check_keys(metadata)
    tokens, types = texts(metadata, "tokens"), metadata.get("tokenizer.ggml.token_type")
    if len(tokens) != config["vocab_size"]:
        raise Refusal(f"tokenizer.ggml.tokens has {len(tokens):,} tokens, the model {config['vocab_size']:,}")
    if not isinstance(types, list) or len(types) != len(tokens) or not all(kind in TOKEN_TYPES for kind in types):
        raise Refusal("tokenizer.ggml.token_type does not give each token one of the types 1 to 6")
    while types and types[-1] == UNUSED:  # rows of the embedding beyond the vocabulary
        tokens, types = tokens[:-1], types[:-1]
    special = {name: tokens[i] for name, i in ids(metadata).items() if i < len(tokens)}
    bos = special.get("bos_token_id")
    adds_bos = metadata.get("tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.pre"] == "llama-bpe")
    if not isinstance(adds_bos, bool):
        raise Refusal(f"tokenizer.ggml.add_bos_token {shown(adds_bos)} is neither true nor false")
    adds_bos = adds_bos and bool(bos)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        **{name.removesuffix("_id"): token for name, token in special.items()},
        "add_bos_token": adds_bos,
    }
    if (template := metadata.get("tokenizer.chat_template")) is not None:
        if not isinstance(template, str):
            raise Refusal("tokenizer.chat_template is not a text")
        settings["chat_template"] = template
    ends = [token_id(metadata, name, len(tokens)) for name in ("eos", "eot", "eom")]
    ends = sorted({i for i in ends if i is not None})
    spec = specification(tokens, types, merges_of(metadata, tokens), metadata["tokenizer.ggml.pre"])
    if bos and adds_bos:
        spec["post_processor"] = _begin_with(bos, tokens.index(bos))
    return {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2) + "\n",
        "generation_config.json": json.dumps({"eos_token_id": ends} if ends else {}) + "\n",
    }


def check_keys(metadata: dict) -> None:
    """Raise ValueError for another tokenizer than byte-level BPE, and for a key that may change ids and is unknown."""
    if (model := metadata.get("tokenizer.ggml.model")) != "gpt2":
        raise Refusal(f"tokenizer.ggml.model {shown(model)} is not supported; supported: gpt2")
    if not isinstance(pre := metadata.get("tokenizer.ggml.pre"), str) or pre not in PRE_TOKENIZERS:
        raise Refusal(f"tokenizer.ggml.pre {shown(pre)} is not supported; supported: {', '.join(PRE_TOKENIZERS)}")
    for name, value in metadata.items():
        key = name.removeprefix("tokenizer.ggml.")
        if key == name or key in READ | HARMLESS or re.fullmatch(r"\w+_id", key):
            continue
        if key != "add_space_prefix" or value:
            raise Refusal(f"{name} = {shown(value)} is not supported, and may change the ids of a text")


def texts(metadata: dict, key: str) -> list[str]:
    """Return a list of texts of tokenizer.ggml. Raise ValueError if it is another value."""
    value = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise Refusal(f"tokenizer.ggml.{key} is not an array of texts")
    return value


def merges_of(metadata: dict, tokens: list[str]) -> list[str]:
    """Return the merges, each two tokens with a space between. Raise ValueError for one that makes no token."""
    known, merges = set(tokens), texts(metadata, "merges")
    if len(known) < len(tokens):
        raise Refusal("tokenizer.ggml.tokens has a token twice")
    for merge in merges:
        left, space, right = merge.partition(" ")
        if not space or " " in right or not {left, right, left + right} <= known:
            raise Refusal(f"tokenizer.ggml.merges: {merge[:60]!r} does not make a token of two")
    return merges


def token_id(metadata: dict, name: str, count: int) -> int | None:
    """Return tokenizer.ggml.{name}_token_id, None if it is absent. Raise ValueError if no token has it."""
    value = metadata.get(f"tokenizer.ggml.{name}_token_id")
    if value is not None and (type(value) is not int or not 0 <= value < count):
        raise Refusal(f"tokenizer.ggml.{name}_token_id {shown(value)} is not the id of a token")
    return value


def ids(metadata: dict) -> dict[str, int]:
    """Return the ids of the control tokens that config.json names."""
    names = {"bos": "bos_token_id", "eos": "eos_token_id", "padding": "pad_token_id", "unknown": "unk_token_id"}
    found = {ours: token_id(metadata, name, len(texts(metadata, "tokens"))) for name, ours in names.items()}
    return {ours: i for ours, i in found.items() if i is not None}


def specification(tokens: list[str], types: list[int], merges: list[str], pre: str) -> dict:
    """Return the object of a tokenizer.json. pre: a key of PRE_TOKENIZERS."""
    pre_tokenizers, normalizer, whole_words = PRE_TOKENIZERS[pre]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [
        {"id": i, "content": token, **flags, "special": kind == CONTROL}
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    if not all(token["content"] for token in added):
        raise Refusal("tokenizer.ggml.tokens: a control token has no text")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizers},
        "post_processor": None,
        "decoder": BYTES | {"use_regex": True},
        "model": {
            **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None},
            **{"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": whole_words},
            "vocab": {token: i for i, token in enumerate(tokens)},
            # As pairs: the older form, a text, is skipped by the library tokenizers where it begins with "#version".
            "merges": [merge.split(" ") for merge in merges],
        },
    }


def _begin_with(token: str, i: int) -> dict:
    """Return the part of a tokenizer.json that puts a token before plain texts, for other programs."""
    first, text = {"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    pair = [{"SpecialToken": {"id": token, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        **{"type": "TemplateProcessing", "single": [first, text], "pair": [first, text, *pair]},
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]}},
    }
