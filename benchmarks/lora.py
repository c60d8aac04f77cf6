"""Decoder layers with LoRA, forward and backward, beside peft and beside the same layers without adapters; and a group
of samples with their prompt computed once, beside each with its own: python -m benchmarks.lora

The input hidden states require a gradient on every side, as in the middle of a model, and the loss is a random
weighting of the output. The floor is ours with the adapters off: the frozen base, and that gradient alone.
"""

import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch

import lora
from benchmarks import common, sides
from benchmarks.common import TOO, Parts, Row
from models import fast_matmul
from models.config import parse_config
from models.logprob import token_logprobs
from models.sizes import sizes_of
from rl.batch import forward, make_batch
from rl.config.arguments import Positive
from rl.records import Episode, Turn


@dataclass
class Options(common.Options):
    shape: Literal[*sides.SHAPES] = "0.5b"  # of the layers
    layers: Positive[int] = 4  # of them
    tokens: Positive[int] = 512  # one sequence
    dtypes: str = "float32,bfloat16"  # by comma
    group_shape: Literal[*sides.SHAPES] = "quarter"  # of a whole model that trains on a group; then the layers above do
    prompt: Positive[int] = 512  # tokens that the group shares
    completion: Positive[int] = 512  # tokens of each sample
    group: Positive[int] = 8  # samples


# ---- the layers ----


@fast_matmul()
def our_pass(model, ids_BT, grad_BTD) -> None:
    model(ids_BT).backward(grad_BTD)


@fast_matmul()
def floor_pass(model, ids_BT, grad_BTD) -> None:
    with lora.adapters_off(model):
        model(ids_BT).backward(grad_BTD)


def peer_pass(peer, ids_BT, grad_BTD) -> None:
    decoder = peer.base_model.model.model
    decoder(input_ids=ids_BT, use_cache=False).last_hidden_state.backward(grad_BTD)


def entering_gradient(model) -> None:
    """Make the embeddings require a gradient."""
    model.model.embed_tokens.register_forward_hook(lambda module, inputs, output: output.requires_grad_())


def gradients(parameters: dict[str, torch.Tensor], run: Callable[[], None]) -> dict[str, torch.Tensor]:
    """Return the gradients of one run, in float64."""
    for p in parameters.values():
        p.grad = None
    run()
    return {name: p.grad.double() for name, p in parameters.items()}


def difference(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """Return the largest relative difference of a tensor, by norms."""
    return max(((mine[name] - theirs[name]).norm() / theirs[name].norm()).item() for name in theirs)


def our_factors(model) -> dict[str, torch.Tensor]:
    """Return A and B of every layer."""
    layers = lora.lora_layers(model)
    return {f"{path}.{name}": p for path, layer in layers for name, p in layer.adapters["default"].named_parameters()}


def layer_parts(name: str, raw: dict, tokens: int, dtype, options, targets: dict, device: str = "cpu") -> Parts:
    """Return the rows of one dtype.

    targets: {"peft": ..., "floor": ...} of the time. peft's holds against the faster of its two ways: adapters in
    float32 (its default, and ours) or in the base's dtype.
    """
    has_peft = not common.absent("transformers", "peft")
    generator = torch.Generator(device).manual_seed(0)
    ids_BT = torch.randint(raw["vocab_size"], (1, tokens), device=device, generator=generator)
    grad_BTD = torch.randn(1, tokens, raw["hidden_size"], device=device, generator=generator).to(dtype)
    dropped: dict[str, str] = {}  # sides that could not be made

    @cache
    def made() -> tuple:
        """Return (our model, the pass by side, A and B by side)."""
        common.choose_products(options, sizes_of(parse_config(raw)), device, dtype)
        model = sides.adapted(sides.random(raw, dtype, device))
        entering_gradient(model)
        passes, factors = {"ours": partial(our_pass, model, ids_BT, grad_BTD)}, {"ours": our_factors(model)}
        widths = ((True, False) if dtype != torch.float32 else (True,)) if has_peft else ()
        twins = {"peft" if wide else "peft, narrow adapters": partial(sides.twin, model, raw, wide) for wide in widths}
        for side, (peer, theirs) in common.each_side(twins, dropped).items():
            entering_gradient(peer.base_model.model)
            passes[side], factors[side] = partial(peer_pass, peer, ids_BT, grad_BTD), theirs
        return model, passes, factors

    def time(row: str) -> Row:
        model, passes, factors = made()
        works = dict(passes)
        if "peft" in passes and device == "cpu" and dtype == torch.float32:
            works[f"peft, {TOO}"] = fast_matmul()(passes["peft"])
        works["floor"] = partial(floor_pass, model, ids_BT, grad_BTD)
        timed = common.timed(row, works, options, device, tokens=tokens, dropped=dict(dropped))
        peers = [side for side in factors if side in timed.values and side != "ours"]
        if peers and "peft" in targets:
            timed.targets[min(peers, key=timed.median)] = targets["peft"]
        timed.targets |= {side: bound for side, bound in targets.items() if side == "floor"}
        return timed

    def errors(row: str) -> Row:
        model, passes, factors = made()
        exact = deepcopy(model).double()
        truth = gradients(our_factors(exact), partial(our_pass, exact, ids_BT, grad_BTD.double()))
        error = lambda side: difference(gradients(factors[side], passes[side]), truth)  # noqa: E731
        works = {side: partial(error, side) for side in factors}
        return common.valued(row, works, "of their norm", dropped=dict(dropped))

    def apart(row: str) -> Row:
        _, passes, factors = made()
        if "peft" not in factors:
            return Row(row, {}, dropped=dropped)
        mine, theirs = (gradients(factors[side], passes[side]) for side in ("ours", "peft"))
        return Row(row, {"ours": [difference(mine, theirs)]}, "relative", targets={"ours": 1e-5})

    rows = {f"{name}, forward and backward": time, f"{name}, error of the gradients of A and B": errors}
    if has_peft and dtype == torch.float32:
        rows[f"{name}, gradients of A and B against peft"] = apart
    return rows


# ---- the group ----


def make_group(prompt: int, completion: int, group: int, vocab: int, seed: int = 0) -> list[Episode]:
    """Return samples of random ids that begin with the same prompt."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randint(vocab, (prompt,), generator=generator).tolist()
    episodes = []
    for _ in range(group):
        ids = shared + torch.randint(vocab, (completion,), generator=generator).tolist()
        turn = Turn(prompt, len(ids), 0.0, "length")
        episodes.append(Episode("", 0, 0, ids, [0] * prompt + [1] * completion, [0.0] * len(ids), [turn]))
    return episodes


@fast_matmul()
def shared_pass(model, episodes: list[Episode], grad_N: torch.Tensor) -> None:
    """Run a pass as rl/update.py does: rl/batch.py packs the samples' common prompt once."""
    forward(make_batch(episodes), model, 1.0).logprobs_N.backward(grad_N)


@fast_matmul()
def unshared_pass(model, episodes: list[Episode], grad_N: torch.Tensor) -> None:
    """Run the same forward with one row of ids per sample, without padding: all have one length."""
    device = model.lm_head.weight.device
    ids_BT = torch.tensor([episode.ids_T for episode in episodes], device=device)
    taken_BT = torch.tensor([episode.action_mask_T for episode in episodes], dtype=torch.bool, device=device)
    taken_N = taken_BT.flatten().nonzero()[:, 0]
    hidden_ND = model(ids_BT, wanted=taken_N - 1)
    logprobs_N, _ = token_logprobs(hidden_ND, model.lm_head.weight, ids_BT.flatten()[taken_N])
    logprobs_N.cpu().backward(grad_N)


def group_parts(
    name: str, raw: dict, sizes: tuple[int, int, int], dtype, options, targets: dict, device: str = "cpu"
) -> Parts:
    """Return the rows of a group of (prompt, completion, group) tokens and samples. targets: of the speed."""
    prompt, completion, group = sizes

    @cache
    def made() -> tuple:
        """Return (our model, the pass by side)."""
        common.choose_products(options, sizes_of(parse_config(raw)), device, dtype)
        model = sides.adapted(sides.random(raw, dtype, device))
        words = model, make_group(*sizes, raw["vocab_size"])
        grad_N = torch.randn(group * completion, generator=torch.Generator().manual_seed(1))
        return model, {"ours": partial(shared_pass, *words, grad_N), "unshared": partial(unshared_pass, *words, grad_N)}

    def time(row: str) -> Row:
        tokens = group * (prompt + completion)
        return common.timed(row, made()[1], options, device, speedup=True, targets=targets, tokens=tokens)

    def apart(row: str) -> Row:
        model, passes = made()
        found = [gradients(our_factors(model), run) for run in passes.values()]
        exact = {"ours": 1e-5} if dtype == torch.float32 else {}
        return Row(row, {"ours": [difference(*found)]}, "relative", targets=exact)

    return {f"{name}, forward and backward": time, f"{name}, gradients against unshared": apart}


def main(options: Options) -> None:
    dtypes = common.dtypes_of(options.dtypes)
    torch.set_num_threads(options.threads)
    raw, made = sides.layers_of(options.shape, options.layers), {}
    for word, dtype in dtypes.items():
        stated = common.as_stated(options, "shape", "layers", "tokens")
        targets = {"peft": 0.55 if dtype == torch.float32 else 0.85} if stated else {}
        made |= layer_parts(word, raw, options.tokens, dtype, options, targets)
    sizes = options.prompt, options.completion, options.group
    groups = {
        options.group_shape: (sides.SHAPES[options.group_shape], ["group_shape"]),
        f"{options.layers} layers of {options.shape}": (raw, ["shape", "layers"]),
    }
    for word, (group_raw, of) in groups.items():
        stated = common.as_stated(options, *of, "prompt", "completion", "group")
        targets, name = {"unshared": 1.7} if stated else {}, f"group prefix sharing, {word}, float32"
        made |= group_parts(name, group_raw, sizes, torch.float32, options, targets)
    about = {"layers": f"{options.layers} of {options.shape}", "tokens": options.tokens, "lora": "r=16 all-linear"}
    about |= {"group": f"{options.group} x {options.completion} tokens after {options.prompt}"}
    notes = [
        "peft has float32 adapters, as ours; narrow: in the base's dtype. The target holds against the faster.",
        "error of the gradients: against float64, the same weights and inputs, of the tensor that is furthest away.",
        "floor: ours with the adapters off, the entering hidden states' gradient alone. Its hooks are on every side.",
        "group prefix sharing: log-probabilities of the sampled tokens included (a layer's vocabulary has 64 words); "
        "tok/s counts the tokens of all samples, prompts included.",
    ]
    common.measure_and_report("lora", made, options, notes, about, ("transformers", "peft"))


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
