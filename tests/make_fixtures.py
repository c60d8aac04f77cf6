"""The configurations that are compared with transformers, and the frozen ones.

`PYTHONPATH=. python tests/make_fixtures.py` writes fixtures/decoder.safetensors: for a few small models their weights,
ids, and what transformers computes in float64 (logits and the log-probability of each next id); the config.json of
each is in the file's metadata. So the comparison bites where transformers is not installed.
"""

import copy
import json
from pathlib import Path

import torch
from conftest import SMALL, randomize
from safetensors.torch import save_file

FROZEN = Path(__file__).parent / "fixtures" / "decoder.safetensors"

THETA = {"rope_type": "default", "rope_theta": 1e6}
CASES = {  # what differs from SMALL; the biases of Qwen2, and whatever the others ask for, are random too
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
}  # fmt: skip
FROZEN_CASES = ("qwen2 tied", "qwen3 wide heads", "llama with biases")
FROZEN_SIZE = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24}


def oracle(fields: dict):
    """A transformers model with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**{key: value for key, value in {**SMALL, **fields}.items() if value is not None})
    return randomize(AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")).eval()


def in_float64(model):
    """A copy in float64 throughout: as published, its norms drop to float32 whatever the weights are."""
    wide = copy.deepcopy(model).double()
    for module in wide.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = wide_norm.__get__(module)
    return wide


def wide_norm(norm, x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.variance_epsilon) * norm.weight


def main() -> None:
    tensors, configs = {}, {}
    for case in FROZEN_CASES:
        model = oracle({**CASES[case], **FROZEN_SIZE})
        configs[case] = json.dumps(model.config.to_dict())
        weights = {k: v for k, v in model.state_dict().items() if not (k == "lm_head.weight" and "tied" in case)}
        tensors |= {f"{case}/weights/{key}": value.clone() for key, value in weights.items()}
        ids = torch.randint(FROZEN_SIZE["vocab_size"], (2, 20), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            logits = in_float64(model)(ids).logits
        tensors |= {f"{case}/ids": ids, f"{case}/logits": logits}
        tensors[f"{case}/logprobs"] = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0].contiguous()
    save_file(tensors, FROZEN, metadata=configs)
    print(f"{FROZEN}: {FROZEN.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
