"""A trial at the start of a run: do sampling and training compute the same bits on this machine's kernels?

Which kernel multiplies two matrices depends on the CPU, the library, the shapes and the number of threads, so no
property of the code can promise it. The trial samples a few tokens and computes their log-probabilities again as
training does. `sampler_gap` measures the same on what is trained with the weights that sampled it.
"""

import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils.rnn import pad_sequence

from models.attention import KEY_BLOCK, SMALL_PRODUCT
from models.decoder import MLP, Attention, CausalLM, RMSNorm
from models.engine import Engine
from models.hooks import hooks
from models.linear import ROW_MULTIPLE, LinearLayer
from models.logprob import token_logprobs
from models.memory import return_host_memory
from models.moe import SparseMLP
from models.stacked import groups, random_factors

ROWS = 32  # sequences that are sampled at once, where a caller does not know
ONE_THREAD = 10_000_000  # parameters, below which a model takes one thread
VECTOR = 8  # numbers; MKL multiplies a thread's last columns by another kernel, whose sums depend on alignment
SEQUENCES = 33  # so the decoder meets 16, 32 and 48 rows (16 of a LARGE model), and training hundreds
ALONE = 5  # every fifth sequence by length is also trained alone
LARGE = 1_000_000_000  # parameters, from which on half as many sequences are tried: a trial should take seconds


def choose_threads(
    model: CausalLM, threads: int = 0, trial: bool = False, products: str = "auto", rows: int = ROWS
) -> tuple[str, str]:
    """Choose how products are computed, print it, and give torch that many CPU threads.

    threads: 0: `default_threads`; where that many fail in the trial, the largest number is searched that does not, by
    halving the interval.
    products: on a CPU "auto" | "onednn" | "mkl" | "plain". With "auto" another is taken where the first fails in the
    trial.
    rows: sequences that are sampled at once: which library is faster depends on it.

    Return (exact, products): "yes" if the trial succeeds, else the first thing that differs, or "" without `trial`; and
    the library that was chosen on a CPU.
    """
    weight = model.lm_head.weight
    torch.set_num_threads(threads or default_threads(model))
    hooks(weight).choose_products(model, products, rows)
    exact = _tried_threads(model, threads, products) if trial else ""
    return_host_memory()
    return exact, hooks(weight).library() if weight.device.type == "cpu" else products


def default_threads(model: nn.Module) -> int:
    """Return 1 for a small model and the number of this process's cores for others: steps of a small model are so short
    that waiting for a second thread costs more than it saves."""
    if sum(p.numel() for p in model.parameters()) < ONE_THREAD:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _tried_threads(model: CausalLM, threads: int, products: str) -> str:
    """Try the settings, and others where `choose_threads` may change them. Return "yes" or the first difference."""
    on_cpu = model.lm_head.weight.device.type == "cpu"
    most, difference = torch.get_num_threads(), first_difference(model)
    if not difference:
        return "yes"
    if on_cpu and products == "auto":
        for library in hooks("cpu").other_libraries():
            if not first_difference(model):
                print(f"products: {library}, because others are not exact here")
                return "yes"
    if threads or not on_cpu:
        return difference
    exact, inexact = 0, most
    while inexact - exact > 1:
        middle = (exact + inexact + 1) // 2
        exact, inexact = (exact, middle) if _differs(model, middle) else (middle, inexact)
    torch.set_num_threads(exact or most)
    return "yes" if exact else difference


def _differs(model: CausalLM, threads: int) -> bool:
    torch.set_num_threads(threads)
    return first_difference(model) is not None


def first_difference(model: CausalLM) -> str | None:
    """Return None if training gives every sampled token the log-probability of sampling, bit for bit, with random
    adapters; else one line: where the two first differ, and by how much."""
    weight = model.lm_head.weight
    if weight.device.type != "cpu" and not model.exact:
        return "sampling and training take different kernels on this device; exact=true takes the same"
    refused = _refused(model) if weight.device.type == "cpu" else None
    if refused:
        return refused
    with random_factors(model):
        sequences, sampled = _sample(model)
        by_length = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
        few = [[i] for i in by_length[::ALONE]] + [by_length[1:3]]  # threads share the work of few in other ways
        for chosen in (by_length, *few):
            apart = _gap(model, [sequences[i] for i in chosen], [sampled[i] for i in chosen])
            if apart:
                beside = "others" if len(chosen) > 2 else "at most one other"
                line = f"log-probabilities of sampling and of training beside {beside} differ by {apart:.1e}"
                return _first_module(model, sequences) or line
    return None


def _gap(model: CausalLM, sequences: list[list[int]], sampled: list[list[float]]) -> float:
    """Return the largest difference from the log-probabilities that training computes for these sequences together.

    sequences: ids. sampled: the log-probabilities of each one's last ids.
    """
    ids, rows, sequences_ST = _packed(model, sequences)
    own = [row[-len(logprobs) :] for row, logprobs in zip(rows, sampled, strict=True)]
    places = torch.cat(own).to(ids.device)
    nothing: Any = lambda _: None  # noqa: E731  (no backward follows, so that nothing need be kept for it)
    with torch.enable_grad(), saved_tensors_hooks(nothing, nothing):
        hidden_ND = model(ids[None], sequences_ST=sequences_ST, wanted=places - 1)
        logprobs_N = token_logprobs(hidden_ND, model.lm_head.weight, ids[places])[0].detach().cpu()
    return (logprobs_N - torch.tensor([logprob for turn in sampled for logprob in turn])).abs().max().item()


def _packed(model: CausalLM, sequences: list[list[int]]) -> tuple[torch.Tensor, tuple, torch.Tensor]:
    """Return (ids [N] of the sequences one after another, the rows of each, the same as sequences_ST)."""
    device = model.lm_head.weight.device
    ids = torch.tensor([token for ids in sequences for token in ids], device=device)
    rows = torch.arange(len(ids)).split([len(ids) for ids in sequences])
    return ids, rows, pad_sequence(rows, batch_first=True, padding_value=-1).to(device)


def _refused(model: CausalLM) -> str | None:
    """Return a line about a part that is known to differ, which so small a trial may miss: an activation whose bits
    depend on the thread, a single product whose sums threads share, a number of inputs that VECTOR does not divide, or
    a layer so narrow that torch uses another library for few rows than for many."""
    threads, act = torch.get_num_threads(), model.config.hidden_act
    if threads > 2 and (act == "gelu_pytorch_tanh" or (act == "gelu" and model.lm_head.weight.dtype.itemsize == 2)):
        return f"mlp: hidden_act {act} gives other bits from three threads on"
    if model.config.num_key_value_heads == 1 and threads > 1 and hooks("cpu").library() != "onednn":
        return "attention: of one key head, MKL's products give other bits for a single sequence from two threads on"
    for name, layer in _layers(model):
        outputs, inputs = layer.parts().weight.shape
        if threads > 2 and inputs % VECTOR:
            line = f"{name} has {inputs} inputs, no multiple of {VECTOR}"
            return f"{line}: with {threads} threads a row's bits depend on its place"
        width = min(inputs, outputs) if layer.parts().A is not None else inputs * outputs // ROW_MULTIPLE
        if ROW_MULTIPLE**2 * width <= SMALL_PRODUCT:  # an adapter's rank is at least ROW_MULTIPLE, with its padding
            line = f"{name} is narrow, {inputs} to {outputs}"
            return f"{line}: {ROW_MULTIPLE} rows take another kernel than more rows"
    return None


def _layers(model: CausalLM) -> Iterator[tuple[str, LinearLayer]]:
    """Yield (name, layer) of the blocks' linear layers, and of the head."""
    names = {module: name for name, module in model.model.named_modules()}
    for layer in (layer for block in model.model.layers for group in groups(block) for layer in group):
        yield names[layer], layer
    yield "lm_head", model.lm_head


def _sample(model: CausalLM) -> tuple[list[list[int]], list[list[float]]]:
    """Return (ids, the log-probabilities of the last of them, which were sampled) of some sequences.

    Prompts have 1 to 94 tokens, turns two. Some have a second turn and one a third, so that fewer are sampled at once.
    """
    count = SEQUENCES if sum(p.numel() for p in model.parameters()) < LARGE else SEQUENCES // 2
    engine, vocabulary = Engine(model, count, 4 * KEY_BLOCK), model.config.vocab_size
    lengths = [KEY_BLOCK - 1 + i if i % 4 == 3 else 1 + 5 * i % 12 for i in range(count)]
    ids = [[(31 * i + 7 * t) % vocabulary for t in range(lengths[i])] for i in range(count)]
    turns_left = {i: 2 if i == 7 else 1 if i % 7 == 0 else 0 for i in range(count)}
    sequences, sampled = [], []
    for i in range(count):
        engine.feed(engine.open((0, i)), ids[i])
    for turn in engine.run(2, 1.0, frozenset()):
        i = turn.slot
        ids[i] += turn.ids
        sequences.append(list(ids[i]))
        sampled.append(turn.logprobs)
        if turns_left[i]:
            turns_left[i] -= 1
            observation = [token % vocabulary for token in (3, 1, 2)]
            ids[i] += observation
            engine.feed(i, observation)
        else:
            engine.close(i)
    return sequences, sampled


@torch.no_grad()
def _first_module(model: CausalLM, sequences: list[list[int]]) -> str | None:
    """Return the first module that gives a sequence's rows other bits alone than beside the others, and how far off."""
    ids, rows, sequences_ST = _packed(model, sequences)
    together = _outputs(model, ids, sequences_ST)
    for row in rows:
        alone = _outputs(model, ids[row], torch.arange(len(row))[None])
        for name, output in alone.items():
            apart = (output[: len(row)] - together[name][row]).abs().max().item()
            if apart:
                return f"{name} differs by {apart:.1e} beside other rows"
    return None


def _outputs(model: CausalLM, ids: torch.Tensor, sequences_ST: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the output [N, D] of each norm, attention and MLP by its name, in the order of the forward."""
    outputs: dict[str, torch.Tensor] = {}
    removable = []
    for name, module in model.named_modules():
        whole = isinstance(module, RMSNorm | Attention | MLP | SparseMLP) and ".experts." not in name
        if whole and not name.endswith(("q_norm", "k_norm")):
            keep = lambda _module, _inputs, output, name=name: outputs.__setitem__(name, output)  # noqa: E731
            removable.append(module.register_forward_hook(keep))
    try:
        model(ids[None], sequences_ST=sequences_ST.to(ids.device))
    finally:
        for hook in removable:
            hook.remove()
    return outputs
