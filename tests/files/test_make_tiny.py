"""models/tiny/make_tiny.py teaches a model of random weights to copy."""

import pytest
import torch

from models.config import parse_config
from models.decoder import CausalLM
from models.tiny.make_tiny import CONFIG, teach_copying


@pytest.mark.full
def test_copying_generalises_beyond_its_training_lines():
    torch.manual_seed(0)
    small = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 24, "vocab_size": 40}
    model = CausalLM(parse_config({**CONFIG, **small}))
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.05)
    ids_V = torch.arange(4, 28)
    assert teach_copying(model, ids_V, steps=200, tokens=768) < 0.5  # guessing has log 24 = 3.2
    word_BT, between_BT = (torch.rand(64, 24).argsort(1)[:, :n] for n in (8, 9))
    line_BT = ids_V[torch.cat([word_BT, between_BT, word_BT], 1)]
    with torch.no_grad():
        hidden_BTD = model(line_BT)[:, -7:-1]
    right_BT = (hidden_BTD @ model.lm_head.weight.T).argmax(-1) == line_BT[:, -6:]
    assert right_BT.float().mean() > 0.7
