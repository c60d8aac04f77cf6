"""Bugs that have been made elsewhere, put in on purpose: for each one a property of the other tests must fail.

A mutation replaces one piece of a module's source. The module is compiled anew, and the one function that came out
different lends its code to the running one.
"""

import importlib
import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType

import pytest
import test_batch
import test_core
import test_decoder
import test_exact_gradients
import test_linear
import test_logprob
import test_lora
import torch

from models import logprob


@dataclass(frozen=True)
class Mutation:
    name: str
    module: str
    check: FunctionType  # must fail
    old: str  # occurs once in the module's source
    new: str


LAYOUT = test_batch.check_the_gradient_hangs_on_no_layout
ALONE = test_batch.check_logprobs_are_those_of_each_episode_alone
ENVIRONMENT = test_batch.check_what_the_environment_said_gets_exactly_no_gradient
PIECES, SURROGATE = test_core.check_micro_batches_sum_to_the_whole, test_core.check_clipped_surrogate
REINFORCE, SIGNS = test_core.check_at_ratio_one_the_gradient_is_reinforce, test_core.check_the_signs_of_the_ppo_loss
DELTAS, GROUP = test_core.check_gae_is_the_sum_of_discounted_deltas, test_core.check_group_advantages
FORMULA, FOLDED = test_lora.check_the_formula, test_lora.check_folded_equals_adapted


def pieces(algorithm: str):
    def check_micro_batches():
        PIECES(algorithm)

    return check_micro_batches


def frozen(case: str):
    def check_frozen_results():
        test_decoder.check_frozen_results(case, torch.float32)

    return check_frozen_results


def check_slabs():
    before, logprob.SLAB = logprob.SLAB, 10
    try:
        test_logprob.test_values_and_gradients_are_those_of_the_full_softmax(None, 17, 0.3, "hidden")
    finally:
        logprob.SLAB = before


def check_together():
    test_linear.test_outputs_and_gradients_are_those_of_the_formula(None, test_linear.adapted, 3)


def exactly(test: str, *args):
    def check_exact_gradient():
        getattr(test_exact_gradients, test)(*args)

    return check_exact_gradient


RLOO = exactly("test_reinforce", "free", True, {"baseline": "leave_one_out", "group_size": 2}, 2, {}, 1.0)
CISPO = exactly("test_cispo_weighs_the_score_function_by_clipped_ratios")
OVERLONG = exactly("test_the_overlong_penalty_is_part_of_the_score")
SLABS, TOGETHER = check_slabs, check_together
NO_ADVANTAGE = test_batch.test_episodes_without_an_advantage_are_not_computed_and_change_no_gradient
KL = exactly("check_k1_in_the_reward", "free", *test_exact_gradients.KL_CASES["rloo"])
YARN, LLAMA3, WINDOW = map(frozen, ("qwen2 yarn", "llama three bands", "mistral sliding"))

# fmt: off
MUTATIONS = [
    Mutation("advantage sign flipped", "rl.core", REINFORCE,
             "plain_N, clipped_N = -advantages_N * ratio_N",
             "plain_N, clipped_N = advantages_N * ratio_N"),
    Mutation("the optimist's side of the clip", "rl.core", SURROGATE,
             "torch.maximum(plain_N, clipped_N)",
             "torch.minimum(plain_N, clipped_N)"),
    Mutation("clip range the wrong way round", "rl.core", SURROGATE,
             "-advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)",
             "-advantages_N * ratio_N.clamp(1 - clip_high, 1 + clip_low)"),
    Mutation("log-probability detached", "rl.core", SURROGATE,
             "log_ratio_N.clamp(-20, 20)",
             "log_ratio_N.detach().clamp(-20, 20)"),
    Mutation("clip counted where it does not bind", "rl.core", SURROGATE,
             "clipped_N > plain_N",
             "clipped_N != plain_N"),
    Mutation("no bootstrap after a cut", "rl.core", DELTAS,
             "else last[episode[k]]",
             "else 0.0"),
    Mutation("value of the next episode", "rl.core", DELTAS,
             "inside = k + 1 < len(rewards) and episode[k + 1] == episode[k]",
             "inside = k + 1 < len(rewards)"),
    Mutation("gamma forgotten in the recursion", "rl.core", DELTAS,
             "+ gamma * lam * next_advantage",
             "+ lam * next_advantage"),
    Mutation("returns without values", "rl.core", DELTAS,
             "return advantages_K, advantages_K + values_K",
             "return advantages_K, advantages_K"),
    Mutation("biased deviation", "rl.core", GROUP,
             "scores.std()",
             "scores.std(correction=0)"),
    Mutation("baseline of all groups", "rl.core", GROUP,
             "scores - scores.mean()",
             "scores - scores_B.mean()"),
    Mutation("token mean per micro-batch", "rl.core", pieces("grpo"),
             "return loss_N.sum() / total_tokens",
             "return loss_N.mean()"),
    Mutation("sequence mean per micro-batch", "rl.core", pieces("grpo as published"),
             "return (loss_N / length_N).sum() / total_episodes",
             "return (loss_N / length_N).sum() / (int(episode_N.max()) + 1)"),
    Mutation("constant per micro-batch", "rl.core", pieces("dr grpo"),
             "/ (total_episodes * (constant",
             "/ ((int(episode_N.max()) + 1) * (constant"),
    Mutation("an episode in its own baseline", "rl.core", RLOO,
             "(total_G[index_B] - scores_B) / others_B.clamp(min=1)",
             "total_G[index_B] / others_B.clamp(min=1)"),
    Mutation("baseline less return", "rl.reinforce", RLOO,
             "earned_K - baseline_B[episode_K]",
             "baseline_B[episode_K] - earned_K"),
    Mutation("reinforce pushes what was good down", "rl.reinforce", RLOO,
             "kl_N - batch.advantages_N * batch.logprobs_N",
             "kl_N + batch.advantages_N * batch.logprobs_N"),
    Mutation("KL rewarded", "rl.kl", KL,
             "batch.reward_N - batch.kl_coef * kl_N",
             "batch.reward_N + batch.kl_coef * kl_N"),
    Mutation("weights with a gradient", "rl.core", CISPO,
             "log_ratio_N.detach().clamp(-20, 20)",
             "log_ratio_N.clamp(-20, 20)"),
    Mutation("weights not clipped", "rl.core", CISPO,
             "weight_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)",
             "weight_N = ratio_N"),
    Mutation("length rewarded", "rl.grpo", OVERLONG,
             "scores_B + core.overlong_penalty",
             "scores_B - core.overlong_penalty"),
    Mutation("the bound of the dual clip on good tokens", "rl.core", test_core.check_dual_clip,
             "torch.where(advantages_N < 0, -dual",
             "torch.where(advantages_N > 0, -dual"),
    Mutation("sums of log-ratios instead of means", "rl.core", test_core.check_gspo,
             "(sum_B / count_B)[episode_N]",
             "sum_B[episode_N]"),
    Mutation("policy mean per micro-batch", "rl.ppo", PIECES,
             "(surrogate_N + kl.in_loss(batch, cfg)).sum() / batch.total_tokens",
             "(surrogate_N + kl.in_loss(batch, cfg)).mean()"),
    Mutation("value mean per micro-batch", "rl.ppo", PIECES,
             "value_N[batch.turn_first_N].sum() / batch.total_turns",
             "value_N[batch.turn_first_N].mean()"),
    Mutation("entropy fought", "rl.ppo", SIGNS,
             "- cfg.entropy_coef * entropy",
             "+ cfg.entropy_coef * entropy"),
    Mutation("value at every token of a turn", "rl.ppo", SIGNS,
             "value_N[batch.turn_first_N].sum()",
             "value_N.sum()"),
    Mutation("turns and tokens confused", "rl.ppo", test_core.check_turn_level_gae,
             'first_N = batch.turn_first_N if cfg.level == "turn"',
             'first_N = batch.turn_first_N if cfg.level != "turn"'),
    Mutation("reward on the turn's first token", "rl.batch", test_core.check_gae_steps_over_what_the_environment_said,
             "[0.0] * (n - 1) + [t.reward]",
             "[t.reward] + [0.0] * (n - 1)"),
    Mutation("a terminated episode bootstrapped", "rl.batch", test_batch.check_values_before_the_update,
             "torch.where(terminated_B, 0.0,",
             "torch.where(terminated_B, critic(last_BD).cpu(),"),
    Mutation("action mask dropped", "rl.batch", ALONE,
             "where_N = mask_R.nonzero()[:, 0]",
             "where_N = torch.arange(1, len(mask_R))"),
    Mutation("environment's tokens trained", "rl.batch", ENVIRONMENT,
             "m for e in batch.episodes for m in e.action_mask_T",
             "m for e in batch.episodes for m in reversed(e.action_mask_T)"),
    Mutation("targets shifted by one", "rl.batch", ALONE,
             "ids_P[taken_N]",
             "ids_P[before_N]"),
    Mutation("hidden state of the token itself", "rl.batch", ALONE,
             "torch.cat((before_N, last_B))",
             "torch.cat((taken_N, last_B))"),
    Mutation("temperature forgotten", "rl.batch", ALONE,
             "targets_N, temperature, entropy_grad)",
             "targets_N, 1.0, entropy_grad)"),
    Mutation("packed episodes see one another", "rl.batch", LAYOUT,
             "sequences_ST=sequences_ST.to(device)",
             "sequences_ST=torch.arange(len(ids_P))[None]"),
    Mutation("equal ids taken for equal prefixes", "rl.batch", LAYOUT,
             "prefixes.setdefault((row, token), len(prefixes))",
             "prefixes.setdefault((0, token), len(prefixes))"),
    Mutation("denominators per micro-batch", "rl.batch", LAYOUT,
             "    if piece:\n        yield select(batch, piece)",
             "    if piece:\n        yield _as_step(select(batch, piece))"),
    Mutation("critic trains the policy", "rl.batch", test_batch.check_the_value_gradient_stays_in_the_critic,
             "critic(hidden_ND.detach())",
             "critic(hidden_ND)"),
    Mutation("temperature out of the gradient made later", "models.logprob", ALONE,
             "grad = (grad / ctx.temperature)",
             "grad = grad"),
    Mutation("temperature out of the gradient", "models.logprob", SLABS,
             "slope_ND[rows] = ((own - others[:n]) / temperature)",
             "slope_ND[rows] = (own - others[:n])"),
    Mutation("the taken token's share twice", "models.logprob", SLABS,
             "probs[inside, word] = 0",
             "pass"),
    Mutation("slabs merged as equals", "models.logprob", SLABS,
             "means = [(x * shares[:, :1]).addcmul_(y, shares[:, 1:])",
             "means = [(x * 0.5).add_(y * 0.5)"),
    Mutation("entropy's gradient flipped", "models.logprob", ALONE,
             "(of_logp + (logp + entropy) * of_entropy)",
             "(of_logp - (logp + entropy) * of_entropy)"),
    Mutation("a window of one key more", "models.attention", WINDOW,
             "(key <= positions_BT[..., None] - window)",
             "(key < positions_BT[..., None] - window)"),
    Mutation("window forgotten", "models.decoder", WINDOW,
             "layout.last_key_ST, self.window, layout.exact)",
             "layout.last_key_ST, None, layout.exact)"),
    Mutation("first blocks of a window skipped too soon", "models.attention", WINDOW,
             "max(least + 1 - window, 0)",
             "max(most + 1 - window, 0)"),
    Mutation("attention factor forgotten", "models.decoder", YARN,
             "angles.cos() * scaling, angles.sin() * scaling",
             "angles.cos(), angles.sin()"),
    Mutation("ramp the wrong way round", "models.rope_scaling", YARN,
             "keep = 1 - yarn_ramp(rope, head_dim, device)",
             "keep = yarn_ramp(rope, head_dim, device)"),
    Mutation("turns counted in radians", "models.rope_scaling", YARN,
             "(rotations * 2 * math.pi)",
             "rotations"),
    Mutation("ends of the ramp swapped", "models.rope_scaling", YARN,
             "for rotations in (rope.beta_fast, rope.beta_slow)",
             "for rotations in (rope.beta_slow, rope.beta_fast)"),
    Mutation("every pair slowed down", "models.rope_scaling", LLAMA3,
             "(1 - keep) * plain / rope.factor + keep * plain",
             "plain / rope.factor"),
    Mutation("no band between", "models.rope_scaling", LLAMA3,
             "rope.low_freq_factor)).clamp(0, 1)",
             "rope.low_freq_factor)).clamp(0, 1).round()"),
    Mutation("alpha and r swapped", "lora.layer", FORMULA,
             "else alpha / r\n",
             "else r / alpha\n"),
    Mutation("scale forgotten", "lora.fused", FORMULA,
             "As = [A * scale for",
             "As = [A for"),
    Mutation("B not transposed", "lora.fused", FORMULA,
             "out.addmm_(low, B.mT) if",
             "out.addmm_(low, B) if"),
    Mutation("base left out", "lora.fused", FORMULA,
             "y = bases[0].product(x, bases)",
             "y = torch.zeros_like(bases[0].product(x, bases))"),
    Mutation("A's gradient without scale", "lora.fused", TOGETHER,
             "grad_A.to(factors[0].dtype).mul_(scale)",
             "grad_A.to(factors[0].dtype)"),
    Mutation("the adapters' share of the way back left out", "lora.fused", TOGETHER,
             "grad_x.addmm_(grad_low, A[: grad_low.shape[1]])",
             "pass"),
    Mutation("episodes without an advantage in the denominators", "rl.batch", NO_ADVANTAGE,
             "return replace(batch, learned_tokens=len(batch.episode_N))",
             "return replace(_as_step(batch), learned_tokens=len(batch.episode_N))"),
    Mutation("folded without scale", "lora.layer", FOLDED,
             "base.weight.to(wide) + adapter.scale * (",
             "base.weight.to(wide) + 1 * ("),
    Mutation("folded transposed", "lora.layer", FOLDED,
             "(adapter.B.to(wide) @ adapter.A.to(wide))",
             "(adapter.A.to(wide).mT @ adapter.B.to(wide).mT)"),
]
# fmt: on


@pytest.mark.parametrize("check", list(dict.fromkeys(m.check for m in MUTATIONS)), ids=lambda check: check.__name__)
def test_the_property_holds(check):
    check()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_the_mutation_is_caught(mutation):
    with mutated(mutation), pytest.raises((AssertionError, RuntimeError)):
        mutation.check()
    mutation.check()


@contextmanager
def mutated(mutation: Mutation):
    module = importlib.import_module(mutation.module)
    source = inspect.getsource(module)
    assert source.count(mutation.old) == 1, f"{mutation.module} has {source.count(mutation.old)} times {mutation.old!r}"
    other = ModuleType(module.__name__)
    exec(compile(source.replace(mutation.old, mutation.new), module.__file__, "exec"), vars(other))
    theirs = functions(other)
    changed = [(f, theirs[name]) for name, f in functions(module).items() if f.__code__ != theirs[name].__code__]
    assert len(changed) == 1, "a mutation changes one function"
    function, code = changed[0][0], changed[0][0].__code__
    try:
        function.__code__ = changed[0][1].__code__
        yield
    finally:
        function.__code__ = code


def functions(owner, prefix: str = "") -> dict[str, FunctionType]:
    """Every function that a module defines, those of its classes and those behind a decorator included."""
    module, found = getattr(owner, "__module__", owner.__name__), {}
    for name, value in vars(owner).items():
        value = inspect.unwrap(getattr(value, "__func__", getattr(value, "fget", None) or value))
        if getattr(value, "__module__", None) == module:
            if isinstance(value, FunctionType):
                found[prefix + name] = value
            elif isinstance(value, type):
                found |= functions(value, f"{prefix}{name}.")
    return found
