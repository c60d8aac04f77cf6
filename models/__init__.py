"""Decoder language models from Hugging Face checkpoints: weights, tokenizer, generation, log-probabilities.

model, tokenizer = load_model("tiny"), load_tokenizer("tiny")  # or a folder, a .gguf file, a hub id
"""

from models.chat.tokenizer import Tokenizer, load_tokenizer
from models.decoder import CausalLM
from models.hooks import Hooks, fast_matmul, loaders
from models.memory import keep_memory
from models.trial import choose_threads
from models.weights import load_model

__all__ = ["CausalLM", "Tokenizer", "choose_threads", "fast_matmul", "keep_memory", "load_model", "load_tokenizer"]


def _load_cpu(hooks: Hooks) -> None:
    """Set the hooks for a CPU, if models/cpu is there."""
    try:
        from models.cpu import install  # the folder may be deleted
    except ModuleNotFoundError as error:
        if error.name != "models.cpu":
            raise
    else:
        install(hooks)


def _load_cuda(hooks: Hooks) -> None:
    """Set the hooks for CUDA, if models/cuda is there. It is loaded at the first question for them."""
    try:
        from models.cuda import install  # the folder may be deleted, and a run on a CPU needs none of it
    except ModuleNotFoundError as error:
        if error.name != "models.cuda":
            raise
    else:
        install(hooks)


loaders.update(cpu=_load_cpu, cuda=_load_cuda)
