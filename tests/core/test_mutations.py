"""Known bugs, put in on purpose: each must make a property of the other tests fail.

A mutation is a function that takes the right function and returns a wrong one, which replaces it in every module. If
possible it wraps the right one and changes an argument, the result or the gradient.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pytest
import test_batch
import test_core
import test_decoder
import test_exact_gradients
import test_linear
import test_logprob
import test_lora
import torch
from planting import plant
from torch import Tensor

from lora import export, layer
from lora.fused import FusedLoRA
from models import attention, logprob, rope
from models.decoder import CausalLM
from rl import batch as batches
from rl import core, kl, ppo, reinforce

pytestmark = pytest.mark.all_only

# ---- The properties, as functions without arguments. ----


def slabs():
    """Check values and gradients over a vocabulary of two slabs."""
    before, logprob.SLAB = logprob.SLAB, 10
    try:
        test_logprob.test_values_and_gradients_match_the_full_softmax(None, 17, 0.3, "hidden")
    finally:
        logprob.SLAB = before


def side_by_side():
    test_linear.test_outputs_and_gradients_match_the_formula(None, test_linear.adapted, 3)


def rloo():
    options = {"baseline": "leave_one_out", "group_size": 2}
    test_exact_gradients.test_reinforce("free", True, options, 2, {}, 1.0)


def kl_in_reward():
    test_exact_gradients.check_k1_in_the_reward("free", *test_exact_gradients.KL_CASES["rloo"])


def pieces(algorithm: str) -> Callable:
    return partial(test_core.test_micro_batches_sum_to_the_whole, algorithm)


def frozen(case: str) -> Callable:
    return partial(test_decoder.test_frozen_results_of_transformers, case, torch.float32)


LAYOUT = partial(test_batch.test_gradient_is_independent_of_the_layout, "grpo")
ALONE = test_batch.test_logprobs_match_each_episode_alone
ENVIRONMENT = partial(test_batch.test_observation_tokens_have_exactly_zero_gradient, "ppo")
NO_ADVANTAGE = test_batch.test_dropping_zero_advantages_changes_no_gradient
SURROGATE = partial(test_core.test_clipped_surrogate, *test_core.CLIP_HIGHER)
REINFORCE = partial(test_core.test_at_ratio_one_the_gradient_is_reinforce, "ppo")
SIGNS = test_core.test_the_signs_of_the_ppo_loss
DELTAS, GROUP = test_core.test_gae_of_ragged_episodes_is_the_sum_of_discounted_deltas, test_core.test_group_advantages
CISPO = test_exact_gradients.test_cispo_weighs_the_score_function_by_clipped_ratios
OVERLONG = test_exact_gradients.test_the_overlong_penalty_is_part_of_the_score
FORMULA = partial(test_lora.test_the_formula, False, 6 / 4, (3, 5), True)
FOLDED = partial(test_lora.test_folded_equals_adapted, "qwen3")
YARN, LLAMA3, WINDOW = map(frozen, ("qwen2 yarn", "llama three bands", "mistral sliding"))


# ---- The mutations: @mutation(name, owner of the function, its name there, the property that must fail). ----


@dataclass(frozen=True)
class Mutation:
    name: str
    owner: object  # a module or a class
    function: str
    check: Callable
    wrong: Callable  # from the right function to the wrong one


MUTATIONS = []


def mutation(name: str, owner, function: str, check: Callable):
    def add(wrong):
        MUTATIONS.append(Mutation(name, owner, function, check, wrong))
        return wrong

    return add


def arguments(name: str, owner, function: str, check: Callable, change: Callable):
    """Return a mutation that changes the arguments: `change` gets them and returns the positional ones."""
    mutation(name, owner, function, check)(lambda right: lambda *args, **options: right(*change(*args, **options)))


def result(name: str, owner, function: str, check: Callable, change: Callable):
    """Return a mutation that changes the result: `change` gets the right one, then the arguments."""
    mutation(name, owner, function, check)(
        lambda right: lambda *args, **options: change(right(*args, **options), *args, **options)
    )


def with_slope_of(value: Tensor, other: Tensor) -> Tensor:
    """Return the value of one tensor with the gradient of another."""
    return value.detach() + (other - other.detach())


def counted_alone(batch):
    """Return a piece of a step that uses its own counts as denominators."""
    turns = int(batch.turn_first_N.sum())
    counts = {"total_tokens": len(batch.episode_N), "total_turns": turns, "total_episodes": len(batch.episodes)}
    return replace(batch, **counts)


# -- rl/core.py: surrogates

arguments("advantage sign flipped", core, "clipped_surrogate", REINFORCE, lambda r, a, *more: (r, -a, *more))
arguments(
    "clip range the wrong way round", core, "clipped_surrogate", SURROGATE,
    lambda r, a, low, high, dual=None: (r, a, high, low, dual),
)  # fmt: skip
arguments(
    "log-probability detached", core, "clipped_surrogate", SURROGATE, lambda r, *more: (r.detach() + 0 * r, *more)
)


@mutation("the optimist's side of the clip", core, "clipped_surrogate", SURROGATE)
def _(right):
    def wrong(log_ratio_N, advantages_N, low, high, dual=None):
        _, ratio_N, clipped_N = right(log_ratio_N, advantages_N, low, high, dual)
        return (
            -torch.maximum(ratio_N * advantages_N, ratio_N.clamp(1 - low, 1 + high) * advantages_N),
            ratio_N,
            clipped_N,
        )

    return wrong


@mutation("clip counted where it does not bind", core, "clipped_surrogate", SURROGATE)
def _(right):
    def wrong(log_ratio_N, advantages_N, low, high, dual=None):
        loss_N, ratio_N, _ = right(log_ratio_N, advantages_N, low, high, dual)
        return loss_N, ratio_N, ((ratio_N < 1 - low) | (ratio_N > 1 + high)).to(ratio_N.dtype)

    return wrong


@mutation("the bound of the dual clip on good tokens", core, "clipped_surrogate", test_core.test_dual_clip)
def _(right):
    def wrong(log_ratio_N, advantages_N, low, high, dual=None):
        loss_N, ratio_N, clipped_N = right(log_ratio_N, advantages_N, low, high)
        if dual is not None:
            loss_N = torch.where(advantages_N > 0, torch.minimum(loss_N, -dual * advantages_N), loss_N)
        return loss_N, ratio_N, clipped_N

    return wrong


@mutation("weights with a gradient", core, "weighted_surrogate", CISPO)
def _(right):
    def wrong(log_ratio_N, logprobs_N, advantages_N, low, high):
        weight_N = log_ratio_N.exp().clamp(1 - low, 1 + high)
        return -weight_N * advantages_N * logprobs_N, *right(log_ratio_N, logprobs_N, advantages_N, low, high)[1:]

    return wrong


arguments(
    "weights not clipped", core, "weighted_surrogate", CISPO,
    lambda r, logprobs, a, low, high: (r, logprobs, a, math.inf, math.inf),
)  # fmt: skip
result(
    "sums of log-ratios instead of means", core, "sequence_log_ratio", test_core.test_gspo,
    lambda mean_N, _, episode_N: mean_N * torch.bincount(episode_N)[episode_N],
)  # fmt: skip

# -- rl/core.py: returns and advantages

arguments(
    "no bootstrap after a cut", core, "gae", DELTAS,
    lambda rewards, values, episode, last, *more: (rewards, values, episode, torch.zeros_like(last), *more),
)  # fmt: skip
arguments(
    "value of the next episode", core, "gae", DELTAS,
    lambda rewards, values, episode, *more: (rewards, values, torch.full_like(episode, int(episode[-1])), *more),
)  # fmt: skip
arguments(
    "gamma forgotten in the recursion", core, "gae", DELTAS,
    lambda rewards, values, episode, last, gamma, lam: (rewards, values, episode, last, gamma, lam / gamma),
)  # fmt: skip
result("returns without values", core, "gae", DELTAS, lambda found, *_: (found[0], found[0]))


@mutation("biased deviation", core, "group_advantages", GROUP)
def _(right):
    def wrong(scores_B, group_B, divide_by_std, eps=1e-4):
        advantages_B = right(scores_B, group_B, False)
        for g in group_B.unique() if divide_by_std else ():
            advantages_B[group_B == g] /= scores_B[group_B == g].std(correction=0) + eps
        return advantages_B

    return wrong


arguments(
    "baseline of all groups", core, "group_advantages", GROUP,
    lambda scores, group, *more: (scores, torch.zeros_like(group), *more),
)  # fmt: skip
result(
    "an episode in its own baseline", core, "leave_one_out", rloo,
    lambda _, scores_B, group_B: scores_B - core.group_advantages(scores_B, group_B, False),
)  # fmt: skip
result(
    "baseline less return", reinforce, "advantages", rloo,
    lambda batch, *_: replace(batch, advantages_N=-batch.advantages_N),
)  # fmt: skip
result("length rewarded", core, "overlong_penalty", OVERLONG, lambda penalty_B, *_: -penalty_B)
result(
    "KL rewarded", kl, "in_reward", kl_in_reward,
    lambda paid, batch, cfg: replace(paid, reward_N=2 * batch.reward_N - paid.reward_N),
)  # fmt: skip

# -- rl/core.py, rl/ppo.py, rl/reinforce.py: losses and their denominators

arguments(
    "token mean per micro-batch", core, "aggregate", pieces("grpo"),
    lambda loss, episode, kind, tokens, episodes, constant=1, turn_first_N=None:
    (loss, episode, kind, len(loss), episodes, constant, turn_first_N),
)  # fmt: skip
for algorithm, loss_name in (("grpo as published", "sequence mean"), ("dr grpo", "constant")):
    arguments(
        f"{loss_name} per micro-batch", core, "aggregate", pieces(algorithm),
        lambda loss, episode, kind, tokens, episodes, constant=1, turn_first_N=None:
        (loss, episode, kind, tokens, int(episode.max()) + 1, constant, turn_first_N),
    )  # fmt: skip
arguments(
    "reinforce pushes what was good down", reinforce, "loss", rloo,
    lambda batch, cfg: (replace(batch, advantages_N=-batch.advantages_N), cfg),
)  # fmt: skip
arguments(
    "policy mean per micro-batch", ppo, "loss", pieces("ppo"),
    lambda batch, cfg: (replace(batch, total_tokens=len(batch.logprobs_N)), cfg),
)  # fmt: skip
arguments(
    "value mean per micro-batch", ppo, "loss", pieces("ppo"),
    lambda batch, cfg: (replace(batch, total_turns=int(batch.turn_first_N.sum())), cfg),
)  # fmt: skip
arguments(
    "entropy fought", ppo, "loss", SIGNS,
    lambda batch, cfg: (batch, replace(cfg, entropy_coef=-cfg.entropy_coef)),
)  # fmt: skip


@mutation("value at every token of a turn", ppo, "loss", SIGNS)
def _(right):
    def wrong(batch, cfg):
        loss, metrics = right(batch, cfg)
        value_N = core.value_loss(batch.values_N, batch.old_values_N, batch.returns_N, cfg.value_clip)
        return loss + cfg.vf_coef * value_N[~batch.turn_first_N].sum() / batch.total_turns, metrics

    return wrong


arguments(
    "turns and tokens confused", ppo, "advantages", test_core.test_turn_level_gae,
    lambda batch, cfg: (batch, replace(cfg, level="token" if cfg.level == "turn" else "turn")),
)  # fmt: skip

# -- rl/batch.py


@mutation("reward on the turn's first token", batches, "make_batch", test_core.test_gae_steps_over_observations)
def _(right):
    def wrong(episodes):
        batch = right(episodes)
        first_N = batch.turn_first_N
        reward_K = batch.reward_N.new_zeros(int(first_N.sum())).index_add(0, first_N.cumsum(0) - 1, batch.reward_N)
        return replace(batch, reward_N=torch.zeros_like(batch.reward_N).masked_scatter(first_N, reward_K))

    return wrong


def of_other_episodes(change: Callable) -> Callable:
    """Return a mutation that computes the result for a batch with other fields in its episodes."""

    def mutate(right):
        def wrong(batch, *args, **options):
            others = [replace(episode, **change(episode)) for episode in batch.episodes]
            found = right(replace(batch, episodes=others), *args, **options)
            return replace(found, episodes=batch.episodes)

        return wrong

    return mutate


mutation("an episode that is over bootstrapped", batches, "add_values", test_batch.test_values_before_the_update)(
    of_other_episodes(lambda e: {"turns": [*e.turns[:-1], replace(e.turns[-1], stop=e.turns[-1].stop - 1)]})
)
mutation("action mask dropped", batches, "forward", ALONE)(
    of_other_episodes(lambda episode: {"action_mask_T": [0] + [1] * (len(episode.ids_T) - 1)})
)
mutation("environment's tokens trained", batches, "forward", ENVIRONMENT)(
    of_other_episodes(lambda episode: {"action_mask_T": episode.action_mask_T[::-1]})
)
arguments(
    "targets shifted by one", logprob, "token_logprobs", ALONE,
    lambda hidden, weight, targets, *more: (hidden, weight, targets.roll(1), *more),
)  # fmt: skip
arguments(
    "hidden state of the token itself", logprob, "token_logprobs", ALONE,
    lambda hidden, *more: (hidden.roll(-1, 0), *more),
)  # fmt: skip
arguments(
    "temperature forgotten", logprob, "token_logprobs", ALONE,
    lambda hidden, weight, targets, temperature, *more: (hidden, weight, targets, 1.0, *more),
)  # fmt: skip


@mutation("packed episodes see one another", CausalLM, "forward", LAYOUT)
def _(right):
    def wrong(model, ids_BT, *, sequences_ST, **options):
        return right(model, ids_BT, sequences_ST=torch.arange(ids_BT.numel())[None], **options)

    return wrong


@mutation("equal ids taken for equal prefixes", CausalLM, "forward", LAYOUT)
def _(right):
    def wrong(model, ids_BT, *, sequences_ST, wanted):
        first_T = (ids_BT[0][:, None] == ids_BT[0]).int().argmax(1)  # the first row with the same id
        sequences_ST = torch.where(sequences_ST >= 0, first_T[sequences_ST], -1)
        return right(model, ids_BT, sequences_ST=sequences_ST, wanted=first_T[wanted])

    return wrong


@mutation("denominators per micro-batch", batches, "micro_batches", LAYOUT)
def _(right):
    return lambda batch, micro_tokens: map(counted_alone, right(batch, micro_tokens))


mutation("critic trains the policy", Tensor, "detach", test_batch.test_the_value_gradient_stays_in_the_critic)(
    lambda right: lambda tensor: tensor
)
result(
    "episodes without an advantage in the denominators", batches, "drop_zero_advantage", NO_ADVANTAGE,
    lambda fewer, batch: counted_alone(fewer),
)  # fmt: skip

# -- models/logprob.py


def log_probabilities(name: str, check: Callable):
    """Add a mutation of token_logprobs: the decorated function gets the right result, then the arguments."""

    def add(change):
        @mutation(name, logprob, "token_logprobs", check)
        def _(right):
            def wrong(hidden_ND, weight_VD, targets_N, temperature=1.0, entropy_grad=False):
                given = hidden_ND, weight_VD, targets_N, temperature, entropy_grad
                return change(*right(*given), *given)

            return wrong

    return add


@log_probabilities("temperature out of the gradient made later", ALONE)
def _(logprobs_N, entropy_N, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    return (with_slope_of(logprobs_N, logprobs_N * temperature) if entropy_grad else logprobs_N), entropy_N


@log_probabilities("temperature out of the gradient", slabs)
def _(logprobs_N, entropy_N, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    return (logprobs_N if entropy_grad else with_slope_of(logprobs_N, logprobs_N * temperature)), entropy_N


@log_probabilities("the taken token's share twice", slabs)
def _(logprobs_N, entropy_N, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    share_N = logprobs_N.detach().exp() * (hidden_ND * weight_VD[targets_N]).sum(-1) / temperature
    return with_slope_of(logprobs_N, logprobs_N - share_N), entropy_N


@log_probabilities("slabs merged as equals", slabs)
def _(logprobs_N, entropy_N, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    logits_NV = hidden_ND @ weight_VD.mT / temperature
    parts = [(part_NV.softmax(-1) * part_NV).sum(-1) for part_NV in logits_NV.split(logprob.SLAB, -1)]
    return logprobs_N, with_slope_of(logits_NV.logsumexp(-1) - sum(parts) / len(parts), entropy_N)


@log_probabilities("entropy's gradient flipped", ALONE)
def _(logprobs_N, entropy_N, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    return logprobs_N, with_slope_of(entropy_N, -entropy_N)


# -- models/: attention and rotary embedding

arguments(
    "a window of one key more", attention, "attend", WINDOW,
    lambda q, k, v, positions, window, *more: (q, k, v, positions, window + 1, *more),
)  # fmt: skip
arguments(
    "window forgotten", attention, "attend", WINDOW,
    lambda q, k, v, positions, window, *more: (q, k, v, positions, None, *more),
)  # fmt: skip


@mutation("first blocks of a window skipped too soon", attention, "attend", WINDOW)
def _(right):
    def wrong(q_BHTE, k_UZEL, v_UZLE, positions_BT, window, *more):
        """Keys before the window of a tile's last query are not read for its first ones either."""
        tiles = []
        for q, positions in zip(q_BHTE.split(64, 2), positions_BT.split(64, 1), strict=True):
            skipped = max(int(positions.max()) + 1 - window, 0) // attention.KEY_BLOCK
            positions = (positions - skipped * attention.KEY_BLOCK).clamp(min=0)
            tiles.append(right(q, k_UZEL[skipped:], v_UZLE[skipped:], positions, window, *more))
        return torch.cat(tiles, 2)

    return wrong


result("attention factor forgotten", rope, "frequencies", YARN, lambda found, *_: (found[0], 1.0))
result("ramp the wrong way round", rope, "yarn_ramp", YARN, lambda ramp, *_: 1 - ramp)


def with_betas(change: Callable) -> Callable:
    return lambda settings, *more: (replace(settings, **change(settings.beta_fast, settings.beta_slow)), *more)


arguments(
    "rotations counted in radians", rope, "yarn_ramp", YARN,
    with_betas(lambda fast, slow: {"beta_fast": fast / (2 * math.pi), "beta_slow": slow / (2 * math.pi)}),
)  # fmt: skip
arguments(
    "ends of the ramp swapped", rope, "yarn_ramp", YARN,
    with_betas(lambda fast, slow: {"beta_fast": slow, "beta_slow": fast}),
)  # fmt: skip
result("every pair slowed down", rope, "llama3_ramp", LLAMA3, lambda keep, *_: torch.zeros_like(keep))
result("no band between", rope, "llama3_ramp", LLAMA3, lambda keep, *_: keep.round())

# -- lora/layer.py


@mutation("alpha and r swapped", layer.Adapter, "__init__", FORMULA)
def _(right):
    def wrong(adapter, inputs, outputs, r, alpha, *more, **options):
        right(adapter, inputs, outputs, r, alpha, *more, **options)
        adapter.scale = r / alpha

    return wrong


arguments(
    "scale forgotten", FusedLoRA, "forward", FORMULA,
    lambda ctx, x, bases, scales, *more: (ctx, x, bases, [scale and 1.0 for scale in scales], *more),
)  # fmt: skip
arguments(
    "B not transposed", FusedLoRA, "forward", FORMULA,
    lambda ctx, *more: (ctx, *more[:-1], more[-1].reshape(more[-1].mT.shape).mT),
)  # fmt: skip
result(
    "base left out", FusedLoRA, "forward", FORMULA,
    lambda y, ctx, x, bases, *_: y - bases[0].joint_product(x, bases),
)  # fmt: skip


@mutation("A's gradient without scale", FusedLoRA, "backward", side_by_side)
def _(right):
    def wrong(ctx, grad):
        grad_x, bases, scales, lean, again, *factors = right(ctx, grad)
        factors[::2] = [grad_A / scale for grad_A, scale in zip(factors[::2], filter(None, ctx.scales), strict=True)]
        return grad_x, bases, scales, lean, again, *factors

    return wrong


result(
    "the adapters' share of the way back left out", FusedLoRA, "backward", side_by_side,
    lambda grads, ctx, grad: (ctx.bases[0].joint_gradient(grad, ctx.bases), *grads[1:]),
)  # fmt: skip


def base_changed(right, change: Callable):
    def wrong(model):
        for _, lora_layer in layer.lora_layers(model):
            adapter = lora_layer.adapter
            lora_layer.base_layer.weight.data += change(adapter.B.data @ adapter.A.data, adapter.scale)
        return right(model)

    return wrong


@mutation("folded without scale", export, "fold", FOLDED)
def _(right):
    return base_changed(right, lambda product, scale: product - scale * product)


@mutation("folded transposed", export, "fold", FOLDED)
def _(right):
    return base_changed(right, lambda product, scale: scale * (product.mT.reshape(product.shape) - product))


# ---- The tests. ----


CHECKS = {repr(mutation.check): mutation.check for mutation in MUTATIONS}


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: getattr(check, "__name__", "of a case"))
def test_the_property_holds(check):
    check()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_mutation_is_caught(mutation, monkeypatch):
    plant(monkeypatch, mutation.owner, mutation.function, mutation.wrong)
    with pytest.raises(AssertionError):
        mutation.check()
