"""Decoder language models from Hugging Face checkpoints: configuration, weights, tokenizer, generation,
log-probabilities.

    model = load_model("tiny")                  # the embedded default; or a folder, or a hub id
    tokenizer = load_tokenizer("tiny")
    hidden_BTD = model(ids_BT)

Nothing in here knows of LoRA, environments or reinforcement learning.
"""

from models.chat.tokenizer import Tokenizer, load_tokenizer
from models.decoder import CausalLM
from models.fast.process import choose_threads, keep_memory
from models.linear import by_onednn
from models.weights import load_model, save_model

__all__ = [
    "CausalLM",
    "Tokenizer",
    "by_onednn",
    "choose_threads",
    "keep_memory",
    "load_model",
    "load_tokenizer",
    "save_model",
]
