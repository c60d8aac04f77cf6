"""The written cases of tests/files/test_hostile_files.py: {kind: {name: function of an empty folder}}."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import hostile_files as hostile
from cases import cases
from hostile_files import CHATML, DEEP, ESCAPES, LONG, QWEN2, TEXTS, VALUES, put

from rl.config.words import parse

SEARCH = "{% set x = range(9999)|list %}{% set y = x|select('in', x)|list %}"  # seconds in a few steps
WORK = "{% for a in range(9000) %}{% if a == 1 %}{% endif %}{% endfor %}"
TABLES = cases("hostile", CHATML=CHATML, DEEP=DEEP, ESCAPES=ESCAPES, LONG=LONG, SEARCH=SEARCH, WORK=WORK)

Case = Callable[[Path], object]


def fields(load: Callable, base: dict, names: list[str], values: dict = VALUES) -> dict[str, Case]:
    """Return a case for each field and each hostile value in it."""

    def case(name: str, value: object, folder: Path) -> None:
        load(folder, {**base, name: value})

    return {f"{name} is {what}": partial(case, name, value) for name in names for what, value in values.items()}


def texts(load: Callable) -> dict[str, Case]:
    """Return a case for each hostile text of a whole file."""
    return {f"the file is {what}": lambda folder, text=text: load(folder, text) for what, text in TEXTS.items()}


def each(load: Callable, contents: dict[str, object]) -> dict[str, Case]:
    return {name: lambda folder, content=content: load(folder, content) for name, content in contents.items()}


# ------------------------------------------------------------------------------------------------- the command line


def words(*given: str) -> Case:
    return lambda folder: parse([word.replace("FOLDER", str(folder)) for word in given])


OUTS = {
    **TABLES["out"],
    "half a surrogate pair": "runs/\udcff",
}
COMMAND_LINE: dict[str, Case] = {
    **{f"out= has {name}": words(f"out={out}") for name, out in OUTS.items()},
    **{
        f"{key}= is {name}": words(f"{key}={value}")
        for key in ("env", "model", "recipe", "data", "resume", "resume_from", "lr", "epochs", "algo", "plan", "seed")
        for name, value in VALUES.items()
        if isinstance(value, str)
    },
    **{
        f"{key}= is {name}": words(f"{key}={value}")
        for key in ("lr", "epochs", "seed", "lora.r", "lora.alpha", "micro_tokens", "reward.scale", "temperature")
        for name, value in {
            "5,000 digits": "9" * 5000,
            "1e400": "1e400",
            "nan": "nan",
            "-0": "-0",
            "an underscore": "1_0",
            "Arabic digits": "\u0663",
            "a float's largest": "1.7e308",
            "a word of 100 kB": LONG,
        }.items()
    },
    "plan= is 400 digits": words(f"plan={'9' * 400}"),
    "a key of 100 kB": words(f"{LONG}=1"),
    "a key of escape codes": words(f"{ESCAPES}=1"),
    "a word of 100 kB": words(LONG),
    "a word of escape codes": words(ESCAPES),
    "a group of 100 kB": words(f"ppo.{LONG}=1"),
    "a dotted key of 100 kB": words(f"{'a.' * 50_000}a=1"),
    "100,000 words": words(*["lr=1"] * 100_000),
    "10,000 unknown keys": words(*(f"k{i}=1" for i in range(10_000))),
    "env= is 100,000 names": words("env=" + ",".join(["sat"] * 100_000)),
    "env= is 100,000 colons": words("env=sat" + ":" * 100_000),
    "model= is deep": words("model=" + "a/" * 50_000),
    "recipe= is a folder": words("recipe=FOLDER/.toml"),
    "data= is a folder": words("algo=sft", "data=FOLDER"),
    "lora.targets= is a regex bomb": words("lora.targets=((((a+)+)+)+)+b"),
}

# ------------------------------------------------------------------------------------------------------------ recipes

TOML: dict[str, object] = {
    **TABLES["recipe"],
    "not UTF-8": b"out = '\xff'",
    "UTF-16": "lr = 1".encode("utf-16"),
    "1,500 keys": "\n".join(f"k{i} = 1" for i in range(1500)),
    "1,500 headers": "\n".join(f"[a.b{i}]" for i in range(1500)),
    "100 dotted keys of 70 parts": "\n".join(f"{'a.' * 70}k{i} = 1" for i in range(100)),
    "many dotted keys": "\n".join(f"{'a.' * 60}k{i} = 1" for i in range(2000)),
    "many headers": "\n".join(f"[a.b{i}]" for i in range(20_000)),
    "many keys": "\n".join(f"k{i} = 1" for i in range(50_000)),
}
RECIPES = each(hostile.use_recipe, TOML) | {
    f"{key} is {what}": lambda folder, key=key, value=value: hostile.use_recipe(folder, f"{key} = {json.dumps(value)}")
    for key in ("lr", "epochs", "env", "model", "out", "algo", "seed", "thinking", "data", "dtype", "resume_from")
    for what, value in VALUES.items()
    if value is not None and not isinstance(value, dict) and "Infinity" not in json.dumps(value)
}

# ------------------------------------------------------------------------------------------------------ model's config

SIZE_NAMES = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"]
SIZE_NAMES += ["num_key_value_heads", "head_dim", "max_position_embeddings"]
CONFIG_NAMES = [*SIZE_NAMES, "model_type", "rms_norm_eps", "hidden_act", "rope_theta", "rope_scaling"]
CONFIG_NAMES += ["tie_word_embeddings", "attention_bias", "rope_parameters", "layer_types", "sliding_window"]
CONFIG_NAMES += ["use_sliding_window", "max_window_layers", "quantization_config", "dtype", "torch_dtype"]
CONFIG_NAMES += ["partial_rotary_factor", "eos_token_id", "architectures"]
ROPE = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
ROPE_NAMES = ["rope_type", "type", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate"]
ROPE_NAMES += ["attention_factor", "mscale", "mscale_all_dim", "rope_theta", "partial_rotary_factor"]


def load_rope(folder: Path, rope: dict, kind: str = "yarn") -> None:
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    hostile.load_config(folder, {**QWEN2, "rope_scaling": {**more, **rope}})


def all_sizes(size: int) -> dict:
    return {**QWEN2, **dict.fromkeys(SIZE_NAMES, size)}


MODEL_CONFIG = {
    **texts(hostile.load_config),
    **fields(hostile.load_config, QWEN2, CONFIG_NAMES),
    **fields(load_rope, ROPE, ROPE_NAMES),
    **fields(partial(load_rope, kind="llama3"), {**ROPE, "rope_type": "llama3"}, ["low_freq_factor"]),
    **each(
        hostile.load_config,
        {
            **{f"{name} is {size:,}": {**QWEN2, name: size} for name in SIZE_NAMES for size in (5000, 2**20, 2**40)},
            **{f"all sizes are {size:,}": all_sizes(size) for size in (2**16, 2**20, 2**32, 2**62)},
            "a million layer types": {**QWEN2, "layer_types": ["full_attention"] * 1_000_000},
            "layers and their types": {**QWEN2, "num_hidden_layers": 10**6, "layer_types": ["full_attention"] * 10**6},
            "many heads": {**QWEN2, "num_attention_heads": 2**30, "num_key_value_heads": 1, "head_dim": 2},
            "nested rotary settings": {**QWEN2, "rope_parameters": {"full_attention": {"full_attention": {}}}},
            "many rotary settings": {**QWEN2, "rope_parameters": {f"k{i}": {} for i in range(10_000)}},
        },
    ),
}

# --------------------------------------------------------------------------------------------------------------- index


def load_index(folder: Path, content: object) -> None:
    hostile.checkpoint(folder)
    put(folder / "model.safetensors.index.json", content)
    hostile.load_model(str(folder))


INDEX = {
    **texts(load_index),
    **fields(load_index, {}, ["weight_map"]),
    **each(
        load_index,
        {
            f"a shard is {what}": {"weight_map": {"lm_head.weight": value}}
            for what, value in {
                **VALUES,
                "a parent's": "../x.safetensors",
                "absolute": "/etc/passwd",
                "hidden": ".x.safetensors",
                "this folder": ".",
                "a missing file": "x.safetensors",
                "config.json": "config.json",
                "long": "a" * 300 + ".safetensors",
            }.items()
        },
    ),
    "100,000 shards": lambda folder: load_index(
        folder, {"weight_map": {str(i): f"{i}.safetensors" for i in range(100_000)}}
    ),
    "a folder in a shard's place": lambda folder: (
        (folder / "x.safetensors").mkdir(),
        load_index(folder, {"weight_map": {"a": "x.safetensors"}}),
    ),
}

# -------------------------------------------------------------------------------------------------------------- weights


def header(entries: object, size: int | None = None, data: bytes = b"") -> bytes:
    """Return a safetensors file with this header, which says that it has `size` bytes."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def entry(shape: list, start: int, stop: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


WEIGHTS_FILES: dict[str, bytes] = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "no header": header(b""),
    "a header past the end": header({}, 2**40),
    "a header past all sizes": header({}, 2**64 - 1),
    "a deep header": header(b'{"a":' * 10_000),
    "deep lists": header(DEEP.encode()),
    "not UTF-8": header(b"\xff\xfe"),
    "a list": header([1]),
    "a huge shape": header({"a": entry([2**62, 2**62], 0, 4)}, data=b"\0" * 4),
    "a shape that overflows": header({"a": entry([2**32, 2**32], 0, 0)}),
    "negative offsets": header({"a": entry([1], -4, 0)}),
    "offsets past the end": header({"a": entry([1], 0, 4)}),
    "overlap": header({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, data=b"\0" * 4),
    "an unknown dtype": header({"a": entry([1], 0, 4, "X32")}, data=b"\0" * 4),
    "a name of escape codes": header({ESCAPES: entry([1], 0, 4)}, data=b"\0" * 4),
    "a name of 100 kB": header({LONG: entry([1], 0, 4)}, data=b"\0" * 4),
    "an empty name": header({"": entry([1], 0, 4)}, data=b"\0" * 4),
    "metadata of 100 kB": header({"__metadata__": {"a": LONG}, "a": entry([1], 0, 4)}, data=b"\0" * 4),
    "50,000 empty tensors": header({f"t{i}": entry([0], 0, 0) for i in range(50_000)}),
    "a tensor of rank 10,000": header({"a": entry([1] * 10_000, 0, 4)}, data=b"\0" * 4),
    "zeros": b"\0" * 1_000_000,
}


def load_weights(folder: Path, content: bytes) -> None:
    put(hostile.checkpoint(folder) / "model.safetensors", content)
    hostile.load_model(str(folder))


def load_sparse(folder: Path, shape: list[int]) -> None:
    """A file with a hole of hundreds of GB, which takes no room on the disk."""
    names = {"model.embed_tokens.weight": entry(shape, 0, 4 * shape[0] * shape[1])}
    put(hostile.checkpoint(folder) / "model.safetensors", header(names))
    with open(folder / "model.safetensors", "r+b") as file:
        file.truncate((folder / "model.safetensors").stat().st_size + 4 * shape[0] * shape[1])
    hostile.load_model(str(folder))


WEIGHTS = each(load_weights, WEIGHTS_FILES) | {
    "a hole of 400 GB": lambda folder: load_sparse(folder, [10**6, 10**5]),
    "a hole of 2 GB": lambda folder: load_sparse(folder, [10**6, 500]),
}

# ------------------------------------------------------------------------------------------------------- adapter config

ADAPTER_NAMES = ["peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "exclude_modules"]
ADAPTER_NAMES += ["rank_pattern", "alpha_pattern", "layers_to_transform", "layers_pattern", "revision", "bias"]
ADAPTER_NAMES += ["base_model_name_or_path", "init_lora_weights", "hostile"]
PATTERNS = {
    **TABLES["expressions of layers"],
    "5 kB of letters": LONG[:5000],
    "20,000 alternatives": "|".join(f"a{i}" for i in range(20_000)),
}


def load_pattern(folder: Path, place: str, pattern: str) -> None:
    edit = {place: {pattern: 4}} if place.endswith("_pattern") and place != "layers_pattern" else {place: pattern}
    if place == "layers_pattern":
        edit |= {"layers_to_transform": [0, 1]}
    hostile.load_adapter(folder, edit)


PLACES = ("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern", "layers_pattern")
ADAPTER_CONFIG = {
    **texts(hostile.load_adapter),
    **fields(hostile.load_adapter, {}, ADAPTER_NAMES),
    **{
        f"{place} has {name}": lambda folder, place=place, pattern=pattern: load_pattern(folder, place, pattern)
        for place in PLACES
        for name, pattern in PATTERNS.items()
    },
    **each(
        hostile.load_adapter,
        {
            f"{table} has 10,000 {what}": {table: {pattern % i: 4 for i in range(10_000)}}
            for table in ("rank_pattern", "alpha_pattern")
            for what, pattern in {"names": "x%d_proj", "expressions": "(.*)+x%d", "long names": "%d" + "y" * 60}.items()
        },
    ),
    "100,000 targets": lambda folder: hostile.load_adapter(folder, {"target_modules": [str(i) for i in range(10**5)]}),
    "100,000 layers": lambda folder: hostile.load_adapter(folder, {"layers_to_transform": list(range(10**5))}),
    **{
        f"the weights are {name}": lambda folder, content=content: hostile.load_adapter(folder, tensors=content)
        for name, content in WEIGHTS_FILES.items()
    },
    "a pickle": lambda folder: (
        put(folder / "adapter_model.bin", b"\x80\x04cos\nsystem\n(S'true'\ntR."),
        put(folder / "adapter_config.json", hostile.adapter_files()[0]),
        hostile.lora.load_adapter(hostile.model(), folder),
    ),
}

# ------------------------------------------------------------------------------------------------------ tokenizer files


def load_tokenizer_json(folder: Path, content: object) -> None:
    put(hostile.tokenizer(folder) / "tokenizer.json", content)
    hostile.talk(folder)


def component(**parts: object) -> dict:
    """Return a tokenizer.json with these parts in the place of its own."""
    spec = json.loads(hostile.tokenizer_json())
    model = parts.pop("model", {})
    return {**spec, **parts, "model": {**spec["model"], **model}}


def split(pattern: object) -> dict:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def replace(old: object, new: str) -> dict:
    return {"type": "Replace", "pattern": old, "content": new}


def nested(kind: str, part: dict, depth: int) -> dict:
    for _ in range(depth):
        part = {"type": "Sequence", kind: [part, part] if depth < 30 else [part]}
    return part


def added(**changes: object) -> dict:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": 299, "content": "zz", "special": True, **flags, **changes}


CHARSMAPS = ("", "AAAA", "/////wAAAAD///8=", "BAAAAP////9hYgA=", "*", "A" * 1000)
PADDING = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"}
TRUNCATION = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
NORMALIZERS = {
    **TABLES["normalizers"],
    **{f"a character map {text[:8]}": {"type": "Precompiled", "precompiled_charsmap": text} for text in CHARSMAPS},
    "an empty replacement": replace({"String": ""}, "xx"),
    "an empty expression": replace({"Regex": ""}, "xx"),
    "a regex bomb": replace({"Regex": "(a+)+$"}, "x"),
    "30 doublings": {"type": "Sequence", "normalizers": [replace({"String": "a"}, "aa")] * 30},
    "an expansion": replace({"Regex": "."}, "x" * 1_000_000),
    "deep": nested("normalizers", {"type": "NFC"}, 100),
    "wide": nested("normalizers", {"type": "NFKD"}, 16),
}
PRE_TOKENIZERS = {
    **{
        f"the expression {name}": split({"Regex": pattern})
        for name, pattern in {
            **TABLES["expressions of pre-tokenizers"],
            "4 kB of alternatives": "|".join(["a"] * 2000),
            "100 kB of alternatives": "|".join(["a"] * 50_000),
        }.items()
    },
    "an empty text": split({"String": ""}),
    "no pattern": {"type": "Split"},
    "length 0": {"type": "FixedLength", "length": 0},
    "a long delimiter": {"type": "CharDelimiterSplit", "delimiter": "ab"},
    "a long mark": {"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always", "split": True},
    "deep": nested("pretokenizers", {"type": "Whitespace"}, 100),
    "wide": nested("pretokenizers", {"type": "Whitespace"}, 16),
    "an unknown kind": {"type": "Unheard"},
}
DECODERS = {
    "30 doublings": {"type": "Sequence", "decoders": [replace({"String": "a"}, "aa")] * 30},
    "an expansion": replace({"String": "a"}, "x" * 1_000_000),
    "a regex bomb": replace({"Regex": "(a+)+$"}, "x"),
    "an empty replacement": replace({"String": ""}, "xx"),
    "a large strip": {"type": "Strip", "content": " ", "start": 10**18, "stop": 10**18},
    "no start": {"type": "Strip", "content": " "},
    "empty marks": {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
    "an empty prefix": {"type": "WordPiece", "prefix": "", "cleanup": True},
    "deep": nested("decoders", {"type": "Fuse"}, 100),
    "an unknown kind": {"type": "Unheard"},
}
VOCAB = {chr(i): i for i in range(33, 127)}
MODELS = {
    **TABLES["models of tokenizers"],
    "ids past all sizes": {"vocab": {**VOCAB, "a": 2**32 - 1}},
    "ids past 64 bits": {"vocab": {**VOCAB, "a": 2**64}},
    "negative ids": {"vocab": {**VOCAB, "a": -1}},
    "ids of a billion": {"vocab": {**VOCAB, "a": 10**9}},
    "ids twice": {"vocab": dict.fromkeys(VOCAB, 7)},
    "ids that are floats": {"vocab": {**VOCAB, "a": 1.5}},
    "a piece of 100 kB": {"vocab": {**VOCAB, LONG: 300}},
    "half a surrogate pair": {"vocab": {**VOCAB, "\ud800": 300}},
}
ADDED = {
    "null": None,
    "a number": 3,
    "a list of numbers": [1],
    "a token without a text": [{"id": 1}],
    "an empty text": [added(content="")],
    "a far id": [added(id=4_000_000_000)],
    "an id past 64 bits": [added(id=2**64)],
    "a negative id": [added(id=-1)],
    "an id of a word": [added(id="a")],
    "escape codes": [added(content=ESCAPES)],
    "100 kB": [added(content=LONG)],
    "spaces": [added(content=" "), added(content="\n", id=298)],
    "letters": [added(content=c, id=i) for i, c in enumerate("abcdefg")],
    "the same text twice": [added(), added(id=298)],
    "the same id twice": [added(), added(content="yy")],
    "100,000 of them": [added(content=f"<{i}>", id=i + 300) for i in range(100_000)],
    "names like the format's": [added(content="<|im_start|>"), added(content="<|im_end|>", id=10**9)],
    "a text that is a list": [added(content=["a"])],
    "flags of no kind": [added(lstrip="yes")],
}
PROCESSORS = {
    "padding of a terabyte": {"padding": {**PADDING, "strategy": {"Fixed": 10**12}}},
    "padding to a multiple of 0": {"padding": {**PADDING, "strategy": "BatchLongest", "pad_to_multiple_of": 0}},
    "a truncation": {"truncation": TRUNCATION},
    "a stride past the length": {"truncation": {**TRUNCATION, "stride": 5}},
    "a truncation to 0": {"truncation": {**TRUNCATION, "max_length": 0}},
    "an unknown special token": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [],
            "special_tokens": {},
        }
    },
    "no version": {"version": None},
    "another version": {"version": "99"},
    "unknown parts": {"unheard": DEEP[:100]},
}
TOKENIZER_JSON = {
    **texts(load_tokenizer_json),
    **each(
        lambda folder, parts: load_tokenizer_json(folder, component(**parts)),
        {
            **{f"the normalizer is {name}": {"normalizer": part} for name, part in NORMALIZERS.items()},
            **{f"the pre-tokenizer is {name}": {"pre_tokenizer": part} for name, part in PRE_TOKENIZERS.items()},
            **{f"the decoder is {name}": {"decoder": part} for name, part in DECODERS.items()},
            **{f"the model has {name}": {"model": part} for name, part in MODELS.items()},
            **{f"the added tokens are {name}": {"added_tokens": part} for name, part in ADDED.items()},
            **{f"it has {name}": part for name, part in PROCESSORS.items()},
        },
    ),
    **fields(
        load_tokenizer_json,
        component(),
        ["model", "added_tokens", "normalizer", "pre_tokenizer", "decoder", "post_processor", "padding", "truncation"],
        {name: VALUES[name] for name in ("true", "one and a half", "a word", "a list of null", "an object")},
    ),
}


def load_beside(name: str) -> Callable[[Path, object], None]:
    """Return a loader of a tokenizer with this other file."""

    def load(folder: Path, content: object) -> None:
        hostile.talk(hostile.tokenizer(folder, **{name: content}))

    return load


BESIDE = {
    "tokenizer_config": ["chat_template", "eos_token", "bos_token", "added_tokens_decoder"],
    "generation_config": ["eos_token_id"],
    "config": ["eos_token_id", "vocab_size"],
    "special_tokens_map": ["bos_token"],
}
TOKENIZER_FILES = {
    f"{name}: {what}": case
    for name, names in BESIDE.items()
    for what, case in {
        **texts(load_beside(name)),
        **fields(load_beside(name), {"chat_template": CHATML}, names),
    }.items()
} | each(
    load_beside("tokenizer_config"),
    {
        "names of templates that are lists": {"chat_template": [{"name": ["default"], "template": CHATML}]},
        "templates without names": {"chat_template": [{}, {"template": 3}]},
        "a template of no kind": {"chat_template": [{"name": "default", "template": 3}]},
        "100,000 templates": {"chat_template": [{"name": ESCAPES + str(i), "template": ""} for i in range(100_000)]},
        "special tokens of 1 MB": {"chat_template": "{{ bos_token }}" * 10 + CHATML, "bos_token": LONG * 10},
        "special tokens that are lists": {"eos_token": {"content": ["a"]}},
    },
)

# ------------------------------------------------------------------------------------------------------ chat templates


def load_template(folder: Path, template: str | bytes) -> None:
    put(hostile.tokenizer(folder) / "chat_template.jinja", template)
    hostile.talk(folder)


TEMPLATES = {
    **TABLES["chat templates"],
    "slow when it ends": CHATML + WORK * 4,
    "not UTF-8": b"\xff" + CHATML.encode(),
    "10,000 variables": "".join(f"{{% set a{i} = {i} %}}" for i in range(8000)) + CHATML,
}
CHAT_TEMPLATES = each(load_template, TEMPLATES)

# ---------------------------------------------------------------------------------------------------------------- rows

ROW = {"prompt": "q", "answer": "a"}
GOOD = json.dumps(ROW).encode() + b"\n"


def message(**changes: object) -> dict:
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", **changes}]}


def row(folder: Path, value: object) -> None:
    hostile.load_rows(folder, json.dumps(value) + "\n")


ROWS = {
    **{
        f"a row is {what}": lambda folder, text=text: hostile.load_rows(folder, GOOD + text + b"\n" + GOOD)
        for what, text in TEXTS.items()
    },
    **{
        f"a {name} is {what}": lambda folder, value=value, name=name: row(folder, message(**{name: value}))
        for name in ("role", "content", "loss", "hostile")
        for what, value in VALUES.items()
    },
    **{
        f"{name} is {what}": lambda folder, value=value, name=name: row(folder, {**ROW, name: value})
        for name in ("prompt", "answer", "messages", "conversations", "hostile")
        for what, value in VALUES.items()
    },
    **each(
        hostile.load_rows,
        {
            "a byte order mark": b"\xef\xbb\xbf" + GOOD,
            "a byte order mark in the middle": GOOD + b"\xef\xbb\xbf" + GOOD,
            "UTF-16 lines": "\n".join([json.dumps(ROW)] * 3).encode("utf-16"),
            "carriage returns": GOOD.replace(b"\n", b"\r\n") * 3,
            "carriage returns alone": GOOD.replace(b"\n", b"\r") * 3,
            "NUL at the end": GOOD + b"\0" * 100_000,
            "a million empty lines": b"\n" * 1_000_000 + GOOD,
            "a line of 40 MB": b'{"prompt": "' + b"x" * 40_000_000 + b'", "answer": "a"}\n',
            "an answer of 3 MB": json.dumps({"prompt": "q", "answer": "ab " * 1_000_000}),
            "a word of 1 MB": json.dumps({"prompt": "q", "answer": "a" * 1_000_000}),
            "a line of 40 MB of lists": b"[" * 40_000_000,
            "100,000 messages": json.dumps({"messages": [{"role": "user", "content": "a"}] * 100_000}),
            "100,000 replies": json.dumps({"messages": [{"role": "assistant", "content": "a"}] * 100_000}),
            "a role twice": b'{"messages": [{"role": "user", "role": "assistant", "content": "a"}]}',
            "messages twice": b'{"messages": [], "messages": [{"role": "assistant", "content": "a"}]}',
            "a row cut short": GOOD[:-5],
            "columns of escape codes": json.dumps({ESCAPES: 1, LONG: 2}),
            "100,000 columns": json.dumps({f"k{i}": 1 for i in range(100_000)}),
        },
    ),
    "a folder": lambda folder: parse(["algo=sft", f"data={folder}"]),
    "the null device": lambda folder: parse(["algo=sft", "data=/dev/null"]),
}

CASES: dict[str, dict[str, Case]] = {
    "command line": COMMAND_LINE,
    "recipe": RECIPES,
    "config.json": MODEL_CONFIG,
    "index": INDEX,
    "weights": WEIGHTS,
    "adapter": ADAPTER_CONFIG,
    "tokenizer.json": TOKENIZER_JSON,
    "tokenizer's other files": TOKENIZER_FILES,
    "chat template": CHAT_TEMPLATES,
    "data rows": ROWS,
}
