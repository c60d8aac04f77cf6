"""The families beside Qwen, Llama and Mistral keep the promise of exactness."""

import pytest
import torch
from conftest import random_model

import lora
from models.trial import first_difference

GRANITE = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}
FAMILIES = {"smollm3": {}, "granite": GRANITE | {"attention_multiplier": 0.0156}, "olmo2": {}, "olmo3": {}, "phi3": {}}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_sampling_and_training_agree_bit_for_bit(family, dtype):
    model = random_model(family, hidden_size=96, head_dim=32, **FAMILIES[family]).to(dtype)
    lora.inject(model, r=16)
    assert first_difference(model) is None
