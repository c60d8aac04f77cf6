"""Decoder language models from Hugging Face checkpoints: weights, tokenizer, generation, log-probabilities.

model, tokenizer = load_model("tiny"), load_tokenizer("tiny")  # the embedded default; or a folder, or a hub id
"""

from models.chat.tokenizer import Tokenizer, load_tokenizer
from models.decoder import CausalLM
from models.kernels import fast_matmul, kernels
from models.weights import load_model

__all__ = ["CausalLM", "Tokenizer", "choose_threads", "fast_matmul", "keep_memory", "load_model", "load_tokenizer"]

try:
    from models.fast import install
except ImportError as error:
    if error.name != "models.fast":
        raise
else:
    install()
choose_threads, keep_memory = kernels.choose_threads, kernels.keep_memory
