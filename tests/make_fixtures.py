"""Model configurations that tests compare with transformers, and frozen results for some of them.

`PYTHONPATH=. python tests/make_fixtures.py` writes fixtures/decoder.safetensors: for a few small models their weights,
ids, and transformers' results in float64 (logits of every twelfth token and the log-probability of each next id); the
config.json of each is in the file's metadata. With them the comparison needs no transformers.
"""

import copy
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from conftest import EXPERTS, SMALL, randomize
from safetensors.torch import save_file

from rl.config import program

FROZEN = Path(__file__).parent / "fixtures" / "decoder.safetensors"

THETA = {"rope_type": "default", "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
NESTED = {
    "full_attention": {**YARN, "rope_theta": 1e5},
    "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e3},
}
SLIDES = {"use_sliding_window": True, "sliding_window": 8}
MULTIPLIERS = {
    "embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.3, "logits_scaling": 4.0,
}  # fmt: skip
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
CASES = {  # the fields that differ from SMALL; all biases are random too
    "qwen2 grouped queries": {"model_type": "qwen2", "head_dim": None, "attention_bias": False},
    "qwen2 tied": {"model_type": "qwen2", "head_dim": None, "tie_word_embeddings": True},
    "qwen2 one kv head, odd vocabulary": {
        "model_type": "qwen2", "head_dim": None, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 131,
    },
    "qwen3 wide heads": {"model_type": "qwen3", "head_dim": 32},
    "qwen3 with biases": {"model_type": "qwen3", "attention_bias": True},
    "qwen3 tied, theta 1e6": {"model_type": "qwen3", "tie_word_embeddings": True, "rope_parameters": THETA},
    "llama one kv head per head": {
        "model_type": "llama", "head_dim": None, "num_key_value_heads": None, "rms_norm_eps": 1e-5,
    },
    "llama with biases": {"model_type": "llama", "head_dim": None, "attention_bias": True, "mlp_bias": True},
    "llama narrow heads": {"model_type": "llama", "head_dim": 8},
    "llama gelu": {"model_type": "llama", "head_dim": None, "hidden_act": "gelu"},
    "qwen2 yarn": {"model_type": "qwen2", "head_dim": 32, "max_position_embeddings": 128, "rope_scaling": YARN},
    "qwen2 yarn, own attention factor": {
        "model_type": "qwen2", "head_dim": 64, "max_position_embeddings": 128,
        "rope_scaling": {**YARN, "attention_factor": 1.0, "beta_fast": 16, "beta_slow": 2},
    },
    "qwen2 sliding from layer 2 on": {
        "model_type": "qwen2", **SLIDES, "num_hidden_layers": 4, "max_window_layers": 2,
    },
    "qwen2 sliding by layer_types": {
        "model_type": "qwen2", **SLIDES, "num_hidden_layers": 3, "layer_types": ALTERNATING,
    },
    "qwen3 nested rope": {
        "model_type": "qwen3", **SLIDES, "num_hidden_layers": 3, "layer_types": ALTERNATING, "rope_parameters": NESTED,
        "max_position_embeddings": 128,
    },
    "qwen3 dynamic, within its length": {
        "model_type": "qwen3", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 96,
    },
    "qwen3 bfloat16 weights": {"model_type": "qwen3", "dtype": "bfloat16"},
    "llama three bands": {
        "model_type": "llama", "head_dim": 64, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 5e5,
        "rope_scaling": LLAMA3,
    },
    "llama linear": {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
    "mistral sliding": {"model_type": "mistral", "sliding_window": 8},
    "ministral": {
        "model_type": "ministral", "sliding_window": 8, "num_hidden_layers": 3, "layer_types": ALTERNATING,
    },
    "mistral without a window": {"model_type": "mistral", "sliding_window": None, "hidden_act": "gelu_pytorch_tanh"},
    "mistral sliding, yarn": {"model_type": "mistral", "sliding_window": 70, "rope_parameters": YARN},
    "smollm3": {"model_type": "smollm3", "num_hidden_layers": 4, "attention_bias": True, "mlp_bias": True},
    "smollm3 by no_rope_layers, sliding": {
        "model_type": "smollm3", **SLIDES, "no_rope_layers": [0, 1], "rope_parameters": YARN,
        "tie_word_embeddings": False,
    },
    "granite": {"model_type": "granite", **MULTIPLIERS, "head_dim": None, "attention_bias": True, "mlp_bias": True},
    "granite tied, yarn": {
        "model_type": "granite", **MULTIPLIERS, "tie_word_embeddings": True, "rope_parameters": YARN,
    },
    "olmo2": {"model_type": "olmo2", "head_dim": None, "attention_bias": True},
    "olmo3": {
        "model_type": "olmo3", "sliding_window": 8, "num_hidden_layers": 4,
        "rope_parameters": {"full_attention": {**YARN, "rope_theta": 1e5}, "sliding_attention": THETA},
    },
    "qwen3_moe": {"model_type": "qwen3_moe", **EXPERTS, "norm_topk_prob": True, "attention_bias": True},
    "qwen3_moe, shares of all experts, tied": {"model_type": "qwen3_moe", **EXPERTS, "tie_word_embeddings": True},
    "phi3": {"model_type": "phi3", "head_dim": None, "sliding_window": None},
    "phi3 sliding, tied": {"model_type": "phi3", "sliding_window": 8, "tie_word_embeddings": True},
}  # fmt: skip
FROZEN_CASES = (
    "qwen2 tied", "qwen3 wide heads", "llama with biases", "qwen2 yarn", "llama three bands", "mistral sliding",
)  # fmt: skip
FROZEN_SIZE = {
    "vocab_size": 29, "hidden_size": 12, "intermediate_size": 20, "num_attention_heads": 2, "num_key_value_heads": 1,
}  # fmt: skip


def raw_config(fields: dict) -> dict:
    """Return a case's config.json: a small model with the case's fields. Null is kept for sliding_window only."""
    raw = copy.deepcopy({**SMALL, **fields})  # transformers writes into the dictionaries that it is given
    return {key: value for key, value in raw.items() if value is not None or key == "sliding_window"}


def oracle(fields: dict):
    """Return a transformers model with random weights, in float32.

    transformers has no nested rotary settings in Qwen, so each layer gets the tables of its type.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = raw_config(fields)
    nested = raw.get("rope_parameters", {}) if "layer_types" in raw and "qwen" in raw["model_type"] else {}
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))  # defaults are beyond the vocabulary
    configs = [
        AutoConfig.for_model(
            **{**raw, **tokens, "dtype": "float32", **({"rope_parameters": nested[k]} if nested else {})}
        )
        for k in (raw["layer_types"] if nested else [""])
    ]
    model = randomize(AutoModelForCausalLM.from_config(configs[0], attn_implementation="sdpa")).eval()
    if nested:
        for layer, config in zip(model.model.layers, configs, strict=True):
            layer.rotary_emb = type(model.model.rotary_emb)(config)
            layer.register_forward_pre_hook(turn_by_layer, with_kwargs=True)
    if raw.get("dtype") == "bfloat16":
        for p in model.parameters():
            p.data = p.data.bfloat16().float()
    return model


def turn_by_layer(layer, args, kwargs):
    return args, {**kwargs, "position_embeddings": layer.rotary_emb(args[0], kwargs["position_ids"])}


def in_float64(model):
    """Return a copy that computes in float64 throughout; the published norms cast to float32."""
    wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = wide_norm.__get__(module)
    return wide


def wide_norm(norm, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight


@dataclass
class Keys:
    out: str = str(FROZEN)  # the file to write


def main(keys: Keys) -> None:
    out = Path(keys.out)
    tensors, configs = {}, {}
    for case in FROZEN_CASES:
        model = oracle({**CASES[case], **FROZEN_SIZE})
        configs[case] = json.dumps(model.config.to_dict())
        weights = {k: v for k, v in model.state_dict().items() if not (k == "lm_head.weight" and "tied" in case)}
        tensors |= {f"{case}/weights/{key}": value.clone() for key, value in weights.items()}
        ids = torch.randint(FROZEN_SIZE["vocab_size"], (1, 96), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            logits = in_float64(model)(ids).logits
        tensors |= {f"{case}/ids": ids, f"{case}/logits": logits[:, ::12].contiguous()}
        tensors[f"{case}/logprobs"] = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].contiguous()
    save_file(tensors, out, metadata=configs)
    print(f"{out}: {out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*program.parse(sys.argv[1:], "tests/make_fixtures.py", Keys, about=__doc__))
