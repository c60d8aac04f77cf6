"""Small checkpoints that transformers and bitsandbytes saved, and what bitsandbytes says their weights are.

`PYTHONPATH=. python tests/make_quantised.py` (with transformers, accelerate and bitsandbytes installed) writes
fixtures/bitsandbytes/KIND: config.json, model.safetensors, and dense.json, the SHA-256 of each layer's float32 weight.
The weights are whole numbers over 512, so that every machine draws the same ones.
"""

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import torch
from conftest import SMALL

from models.config import parse_config
from models.decoder import CausalLM
from models.export import save_model

FROZEN = Path(__file__).parent / "fixtures" / "bitsandbytes"
RAW = {**SMALL, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": True}
RAW |= {"hidden_size": 64, "intermediate_size": 320, "num_hidden_layers": 1}  # 320 blocks: two groups of scales
SKIPPED = "model.layers.0.mlp.up_proj"  # stays in bfloat16 in the nf4 checkpoint
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
SETTINGS = {
    "nf4": NF4 | {"llm_int8_skip_modules": ["lm_head", SKIPPED]},
    "nf4-double": NF4 | {"bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}


def original(folder: Path) -> Path:
    """Write the checkpoint that was quantised, in bfloat16."""
    model, generator = CausalLM(parse_config(RAW)), torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.data.copy_(torch.randint(-128, 128, p.shape, generator=generator) / 512)
    save_model(model, folder, RAW, torch.bfloat16)
    return folder


def digest(weight: torch.Tensor) -> str:
    return hashlib.sha256(weight.float().contiguous().numpy().tobytes()).hexdigest()


def save_by_bitsandbytes(source: Path, folder: Path, kind: str, **options) -> dict[str, str]:
    """Quantise the checkpoint in `source` by transformers and save it. Return the digest of each dense weight."""
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import dequantize_bnb_weight

    settings = BitsAndBytesConfig(**SETTINGS[kind])
    model = AutoModelForCausalLM.from_pretrained(
        source, quantization_config=settings, device_map="cpu", dtype=torch.bfloat16
    )
    model.save_pretrained(folder, **options)
    dense = {}
    for name, layer in model.named_modules():
        if name.endswith("_proj"):
            if "Params4bit" in type(layer.weight).__name__:
                layer.weight.quant_state.dtype = torch.float32  # else it casts to the checkpoint's bfloat16
            dense[name] = digest(dequantize_bnb_weight(layer.weight, getattr(layer, "state", None)).detach())
    return dense


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        source = original(Path(temporary))
        for kind in SETTINGS:
            folder = FROZEN / kind
            shutil.rmtree(folder, ignore_errors=True)
            dense = save_by_bitsandbytes(source, folder, kind)
            (folder / "generation_config.json").unlink(missing_ok=True)
            (folder / "dense.json").write_text(json.dumps(dense, indent=2) + "\n")
