"""Read a checkpoint's config.json into the numbers that define the decoder's computation.

A setting that the decoder does not implement is refused by name, so that no model is computed slightly differently from
how it was published.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from models.json_file import number, read_object
from models.refusal import Refusal
from models.rope import LAYER_TYPES, Rope, parse_ropes

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")
MOST = dict.fromkeys(SIZES + OPTIONAL_SIZES, 2**20) | {"num_hidden_layers": 512, "max_position_embeddings": 2**31}
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
EXPERT_KEYS = (
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    *("decoder_sparse_step", "mlp_only_layers", "output_router_logits", "router_aux_loss_coef"),
)
WINDOW_KEYS = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}


@dataclass(frozen=True)
class Family:
    """What config.json may leave out, and the keys that a family alone reads."""

    positions: int  # default of max_position_embeddings
    key_heads: int | None = None  # default of num_key_value_heads; None: the query heads
    # Which layers slide: none, "all", those of layer_types by default ("typed"), or only with use_sliding_window
    # ("switched")
    slides: str = "none"
    window: int | None = 4096  # default of sliding_window
    eps: float = 1e-6  # default of rms_norm_eps
    tied: bool = False  # default of tie_word_embeddings
    attention_bias: bool = False  # whether attention_bias is read; others ignore it
    keys: tuple[str, ...] = ()


FAMILIES = {
    "qwen2": Family(32768, key_heads=32, slides="switched"),
    "qwen3": Family(32768, key_heads=32, slides="switched", attention_bias=True),
    "llama": Family(2048, attention_bias=True),
    "mistral": Family(131072, key_heads=8, slides="all"),
    "ministral": Family(131072, key_heads=8, slides="typed"),
    "qwen3_moe": Family(32768, key_heads=4, attention_bias=True, keys=EXPERT_KEYS),
    "granite": Family(2048, attention_bias=True, keys=MULTIPLIERS),
    "phi3": Family(4096, slides="all", window=None, eps=1e-5),
    "olmo2": Family(2048, eps=1e-5, attention_bias=True),
    "olmo3": Family(2048, slides="typed", eps=1e-5, attention_bias=True),
    "smollm3": Family(
        *(32768, 4, "switched", None), tied=True, attention_bias=True, keys=("no_rope_layers", "no_rope_layer_interval")
    ),
}
# Names of the norms before and after attention, before and after the MLP; "" for one that a family lacks.
NORMS_BEFORE = ("input_layernorm", "", "post_attention_layernorm", "")
NORMS_AFTER = ("", "post_attention_layernorm", "", "post_feedforward_layernorm")
READ = {*SIZES, *OPTIONAL_SIZES, *FLAGS, *WINDOW_KEYS, "architectures", "auto_map", "model_type", "rms_norm_eps"} | {
    *("hidden_act", "dtype", "torch_dtype", "quantization_config", "rope_theta", "rope_scaling", "rope_parameters"),
    "partial_rotary_factor",
}
ONLY = {  # keys that change the computation, and the only value with which they do not
    "is_causal": True,
    "use_bidirectional_attention": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "rope_interleaved": False,
    "use_mrope": False,
    "pruned_heads": {},
}
# Keys that change nothing of a forward pass: training, generation, tokens, and who wrote the file.
HARMLESS = set(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path
    attention_dropout attention_probs_dropout_prob attn_implementation attn_pdrop bad_words_ids base_model_tp_plan
    begin_suppress_tokens bos_token bos_token_id chunk_size_feed_forward classifier_dropout
    cross_attention_hidden_size datasets decoder_start_token_id diversity_penalty do_sample early_stopping
    embd_pdrop encoder_no_repeat_ngram_size eos_token eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing hidden_dropout hidden_dropout_prob id2label
    ignore_keys_at_rope_validation initializer_range is_decoder is_llama_config label2id language length_penalty
    license max_length max_new_tokens max_seq_len max_sequence_length min_length model_max_length model_name name
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences original_max_position_embeddings
    output_attentions output_hidden_states output_scores pad_token pad_token_id prefix pretraining_tp problem_type
    quantization_version remove_invalid_values repetition_penalty resid_pdrop return_dict return_dict_in_generate
    sep_token_id seq_length suppress_tokens tags task_specific_params temperature tf_legacy_loss tokenizer_class
    top_k top_p torch_compile torchscript transformers.js_config transformers_version typical_p unk_token_id
    unsloth_fixed unsloth_tiled_mlp unsloth_version use_bfloat16 use_cache use_flash_attention use_flash_attn
    use_return_dict use_sdpa version vocab_file vocab_type
    """.split()  # noqa: SIM905  (a list of 90 quoted names would fill the page)
)
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")  # swish is silu


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that define the computation, under their Hugging Face names."""

    model_type: str  # one of FAMILIES
    vocab_size: int  # V, including the checkpoint's padding rows
    hidden_size: int  # D
    intermediate_size: int  # width of the MLP
    num_hidden_layers: int
    num_attention_heads: int  # H
    num_key_value_heads: int  # K; each is shared by H / K query heads
    head_dim: int  # E
    rms_norm_eps: float
    ropes: tuple[Rope, ...]  # one per layer
    windows: tuple[int | None, ...]  # one per layer: the last keys that a query sees, its own included; None: all
    hidden_act: str
    tie_word_embeddings: bool  # the output head shares the embedding's weight
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: str  # RMSNorm of q and k, before the rotary embedding, over each head ("heads") or all ("width"); "": none
    max_position_embeddings: int
    dtype: str  # dtype of the stored weights, "float32" | "bfloat16" | "float16"
    quant: str  # the blocks' linear layers, as stored or as loaded: "none" | "nf4" | "nf4-double" | "int8"
    norms: tuple[str, str, str, str] = NORMS_BEFORE
    joined_layers: bool = False  # q, k and v are one layer, gate and up another (Phi-3)
    embedding_multiplier: float = 1.0  # of the embedded tokens
    residual_multiplier: float = 1.0  # of what attention and MLP add to the rows
    hidden_multiplier: float = 1.0  # of the final hidden states, and so of the logits
    num_experts: int = 0  # of each layer (models/moe.py); 0: one MLP
    experts_per_token: int = 0
    moe_intermediate_size: int = 0  # width of an expert's MLP
    norm_topk_prob: bool = False  # the chosen experts' probabilities are divided by their sum

    @property
    def stackable(self) -> bool:
        """Whether models/cpu/step.py computes these blocks: norms of what attention and MLP read, and of heads."""
        return self.norms == NORMS_BEFORE and self.qk_norm != "width" and not self.num_experts

    @property
    def plain_blocks(self) -> bool:
        """Whether models/cuda's fused code computes these blocks: Llama's, but for biases, head norms and windows."""
        multiplied = self.embedding_multiplier, self.residual_multiplier, self.hidden_multiplier
        return self.stackable and not self.joined_layers and multiplied == (1, 1, 1)


def read_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`. Raise FileNotFoundError or ValueError with one line that names the field."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found, so this is not a model folder")
    raw = read_object(path)
    try:
        return parse_config(raw)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refusal(f"{path}: {error}") from None


def parse_config(raw: dict) -> ModelConfig:
    """Return the ModelConfig of a config.json's dictionary. Absent keys get their family's default in transformers."""
    # null means absent, except here: as many key heads as query heads, heads that share hidden_size, no window
    nullable = ("num_key_value_heads", "head_dim", "sliding_window")
    raw = {key: v for key, v in raw.items() if v is not None or key in nullable}
    if raw.get("model_type") == "mistral" and "layer_types" in raw:
        raw["model_type"] = "ministral"  # as transformers reads it: Ministral's config.json names the older class
    name, activation = raw.get("model_type", ""), raw.get("hidden_act", "silu")
    check_keys(raw)
    check_values(raw)
    family = FAMILIES[name]
    quant = stored_kind(raw["quantization_config"]) if raw.get("quantization_config") else "none"
    attention_bias, mlp_bias = raw.get("attention_bias", False), raw.get("mlp_bias", False)
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    head_dim = raw.get("head_dim", 128 if name == "qwen3" else None) or hidden // heads
    kv_heads = raw.get("num_key_value_heads", family.key_heads) or heads
    if name == "llama" and not raw.get("head_dim") and hidden % heads:
        raise Refusal(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if heads % kv_heads:
        raise Refusal(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise Refusal(f"head_dim {head_dim} is odd; rotary embedding needs pairs")
    # Qwen2 has biases of q, k and v but not of o, whatever attention_bias says
    attention_bias = attention_bias and family.attention_bias
    positions = raw.get("max_position_embeddings", family.positions)
    layer_types, window = read_windows(raw, family)
    multiplier = {key: number(key, raw.get(key, 1.0)) for key in MULTIPLIERS}
    ropes = without_rope(raw, parse_ropes(raw, layer_types, positions, name))
    if "attention_multiplier" in family.keys:  # scores are that times q k; attention computes q k / sqrt(E)
        factor = (multiplier["attention_multiplier"] * head_dim**0.5) ** 0.5  # cos and sin multiply q as well as k
        ropes = tuple(replace(rope, scaling=rope.scaling * factor) for rope in ropes)
    return ModelConfig(
        model_type=name,
        **{key: raw[key] for key in SIZES},
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=number("rms_norm_eps", raw.get("rms_norm_eps", family.eps)),
        ropes=ropes,
        windows=tuple(window if kind == "sliding_attention" else None for kind in layer_types),
        hidden_act="silu" if activation == "swish" else activation,
        tie_word_embeddings=raw.get("tie_word_embeddings", family.tied),
        qkv_bias=name == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=name in ("llama", "granite", "smollm3") and mlp_bias,
        qk_norm={"qwen3": "heads", "qwen3_moe": "heads", "olmo2": "width", "olmo3": "width"}.get(name, ""),
        norms=NORMS_AFTER if name in ("olmo2", "olmo3") else NORMS_BEFORE,
        max_position_embeddings=positions,
        dtype=str(raw.get("dtype", raw.get("torch_dtype", "float32"))),
        joined_layers=name == "phi3",
        quant=quant,
        embedding_multiplier=multiplier["embedding_multiplier"],
        residual_multiplier=multiplier["residual_multiplier"],
        hidden_multiplier=1 / multiplier["logits_scaling"],
        **(read_experts(raw) if name == "qwen3_moe" else {}),
    )


def check_keys(raw: dict) -> None:
    """Raise ValueError for the first key of a config.json that may change the computation and is not understood."""
    for name in raw.get("architectures", []):
        if not str(name).endswith("ForCausalLM"):
            raise Refusal(f"architectures names {name!r}, which is no causal language model")
    if code := [name for key, name in dict(raw.get("auto_map", {})).items() if key.startswith("AutoModel")]:
        raise Refusal(f"auto_map names code of the checkpoint's own ({code[0]}), which is not executed here")
    known = known_keys(str(raw.get("model_type")))
    for key, value in raw.items():
        if key in ONLY and value != ONLY[key]:
            raise Refusal(f"{key} {value!r} is not supported; supported: {ONLY[key]!r}")
        if key not in known:
            near = [f" (did you mean {name!r}?)" for name in get_close_matches(key, known, 1)]
            raise Refusal(f"the key {key!r} is not known{''.join(near)}, and may change what the model computes")


def known_keys(family: str) -> set[str]:
    """Return the keys that are read, refused by value, or known to change nothing."""
    return {*READ, *ONLY, *HARMLESS, *(FAMILIES[family].keys if family in FAMILIES else ())}


def check_values(raw: dict) -> None:
    """Raise ValueError for the first setting of a config.json that is wrong by itself."""
    if str(raw.get("model_type")) not in FAMILIES:
        raise Refusal(f"model_type {raw.get('model_type')!r} is not supported; supported: {', '.join(FAMILIES)}")
    for key, most in MOST.items():
        size = raw.get(key)
        if size is None and key in OPTIONAL_SIZES:
            continue
        if type(size) is not int or size <= 0:
            raise Refusal(f"{key} must be a positive integer, not {size!r}")
        if size > most:
            raise Refusal(f"{key} {size} is more than {most:,}, the most that is supported")
    for key in FLAGS:
        check_flag(raw, key)
    if raw.get("hidden_act", "silu") not in ACTIVATIONS:
        raise Refusal(f"hidden_act {raw['hidden_act']!r} is not supported; supported: {', '.join(ACTIVATIONS)}")


def check_flag(raw: dict, key: str) -> None:
    """Raise ValueError for a key that is neither absent nor a boolean."""
    if not isinstance(raw.get(key, False), bool):
        raise Refusal(f"{key} must be true or false, not {raw[key]!r}")


def stored_kind(settings) -> str:
    """Return the kind of quantised weights that a quantization_config names. Raise ValueError for others."""
    method = settings.get("quant_method", "bitsandbytes") if isinstance(settings, dict) else settings
    if method != "bitsandbytes":
        raise Refusal(f"quantization_config: quant_method {method!r} is not supported; supported: 'bitsandbytes'")
    for key in ("load_in_8bit", "load_in_4bit"):
        if not isinstance(settings.get(key) or False, bool):
            raise Refusal(f"quantization_config: {key} must be true or false, not {settings[key]!r}")
    if settings.get("load_in_8bit") and settings.get("load_in_4bit"):
        raise Refusal("quantization_config: load_in_8bit and load_in_4bit are both true")
    if settings.get("load_in_8bit"):
        return "int8"
    given = {"bnb_4bit_quant_storage": "uint8", **settings}
    for key, only in (("load_in_4bit", True), ("bnb_4bit_quant_type", "nf4"), ("bnb_4bit_quant_storage", "uint8")):
        if given.get(key) != only:
            raise Refusal(f"quantization_config: {key} {given.get(key)!r} is not supported; supported: {only!r}")
    return "nf4-double" if settings.get("bnb_4bit_use_double_quant") else "nf4"


def read_windows(raw: dict, family: Family) -> tuple[tuple[str, ...], int | None]:
    """Return (the type of each layer, the window of sliding layers). Raise ValueError that names the setting.

    Mistral has one window for all layers. In Qwen, if use_sliding_window is true, the layers that layer_types names
    slide, or if it is absent the layers from max_window_layers on; in SmolLM3 the layers without rotary embedding. In
    Ministral all layers do unless layer_types names them, in OLMo 3 all but each fourth.
    """
    count, window = raw["num_hidden_layers"], raw.get("sliding_window", family.window)
    if family.slides == "none":
        return ("full_attention",) * count, None
    if raw["model_type"] == "mistral" and raw.get("num_key_value_heads", 8) is None:
        raise Refusal("num_key_value_heads is null, which is not supported for mistral: give the number of key heads")
    if family.slides == "switched":
        check_flag(raw, "use_sliding_window")
        window = window if raw.get("use_sliding_window") else None
    if window is not None and (type(window) is not int or not 0 < window <= 2**31):
        raise Refusal(f"sliding_window must be a positive integer or null, not {window!r}")
    if family.slides == "all":
        return ("full_attention" if window is None else "sliding_attention",) * count, window
    first = raw.get("max_window_layers", 28)
    if type(first) is not int or first < 0:
        raise Refusal(f"max_window_layers must be a whole number, not {first!r}")
    by_default = {"olmo3": [(i + 1) % 4 != 0 for i in range(count)], "smollm3": [not rope for rope in rope_layers(raw)]}
    by_default["ministral"] = [True] * count
    slides = by_default.get(raw["model_type"], [i >= first for i in range(count)])
    slides = [window is not None and slide for slide in slides]
    kinds = raw.get("layer_types", [LAYER_TYPES[s] for s in slides])
    if not isinstance(kinds, list):
        raise Refusal(f"layer_types must be a list, not {kinds!r}")
    for kind in kinds:
        if kind not in LAYER_TYPES:
            raise Refusal(f"layer_types names {kind!r}, which is not supported; supported: {', '.join(LAYER_TYPES)}")
    if len(kinds) != count:
        raise Refusal(f"layer_types has {len(kinds)} entries for num_hidden_layers {count}")
    if window is None and "sliding_attention" in kinds:
        raise Refusal(
            "layer_types names sliding-window attention, but use_sliding_window is not true or sliding_window is null"
        )
    return tuple(kinds), window


def rope_layers(raw: dict) -> list[bool]:
    """Return whether each layer has a rotary embedding. SmolLM3: no_rope_layers has 1 where it has, or every
    no_rope_layer_interval-th layer has none. Raise ValueError that names the setting."""
    count, family = raw["num_hidden_layers"], FAMILIES[raw["model_type"]]
    if "no_rope_layers" not in family.keys:
        return [True] * count
    interval = raw.get("no_rope_layer_interval", 4)
    if type(interval) is not int or interval < 1:
        raise Refusal(f"no_rope_layer_interval must be a positive integer, not {interval!r}")
    turned = raw.get("no_rope_layers", [int((i + 1) % interval != 0) for i in range(count)])
    if not isinstance(turned, list) or len(turned) < count or any(value not in (0, 1) for value in turned):
        raise Refusal(f"no_rope_layers must have a 0 or a 1 for each of {count} layers, not {turned!r}")
    return [value == 1 for value in turned[:count]]


def without_rope(raw: dict, ropes: tuple[Rope, ...]) -> tuple[Rope, ...]:
    """Return the Rope of each layer, with those of `rope_layers`."""
    return tuple(rope if has else Rope("none") for rope, has in zip(ropes, rope_layers(raw), strict=True))


def read_experts(raw: dict) -> dict[str, Any]:
    """Return the fields of a mixture of experts. Raise ValueError that names the setting."""
    experts = raw.get("num_experts", raw.get("num_local_experts", 128))  # transformers 5 writes the second
    chosen, width = raw.get("num_experts_per_tok", 8), raw.get("moe_intermediate_size", 768)
    for key, size in {"num_experts": experts, "num_experts_per_tok": chosen, "moe_intermediate_size": width}.items():
        if type(size) is not int or not 0 < size <= 2**20:
            raise Refusal(f"{key} must be a positive integer, not {size!r}")
    if chosen > experts:
        raise Refusal(f"num_experts_per_tok {chosen} is more than num_experts {experts}")
    check_flag(raw, "norm_topk_prob")
    only = {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False, "num_local_experts": experts}
    for key, value in only.items():
        if raw.get(key, value) != value:
            raise Refusal(f"{key} {raw[key]!r} is not supported for {raw['model_type']}; supported: {value!r}")
    sizes = {"num_experts": experts, "experts_per_token": chosen, "moe_intermediate_size": width}
    return {**sizes, "norm_topk_prob": raw.get("norm_topk_prob", False)}
