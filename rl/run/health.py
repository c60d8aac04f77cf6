"""Signs that a run learns nonsense. Each check returns a sentence, what was found and what it usually means, or None.

Nothing here changes a run. rl/run/watch.py calls the checks and remembers what they need. `records` are the epochs'
lines of metrics.jsonl, the newest last.
"""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

import lora
from models import CausalLM, Tokenizer
from models.logprob import token_logprobs
from rl import ranks
from rl.config.fields import Algorithm, Optim
from rl.config.refusals import Refusal
from rl.ranks import saving
from rl.records import Batch, Episode, StepResult

# What a poor sign must last, in a row: one epoch can be chance, and an epoch may be a single episode.
EPOCHS, EPISODES = 3, 100
EQUAL_EPOCHS, EQUAL_EPISODES = 5, 500  # the same for equal rewards: a task that is solved once in 100 times is not one
FALL = 3  # standard errors by which held-out success must fall: chance does it about once in 700 evaluations
ZERO_STEPS = 2  # optimizer steps in a row without a gradient
DIGITS = 6  # hexadecimal ones of a task's hash
PROMPTS, PROMPT_TOKENS = 4, 128  # of the first batch whose likelihood is looked at

# ---- the start ----


@torch.no_grad()
def logprobs(model: CausalLM, ids: list[int]) -> Tensor:
    """Return the log-probability of each id after the first, [T - 1], float32, by the model as it is."""
    ids_T = torch.tensor(ids, device=model.lm_head.weight.device)
    with ranks.computing():
        return token_logprobs(model(ids_T[None])[0, :-1], model.lm_head.weight, ids_T[1:])[0].cpu()


def new_adapter(model: CausalLM, reference: str | None, ids: list[int], limit: float) -> str | None:
    """Before the first step the adapter computes what the base does, or what the adapter does that training starts
    from (`reference`). limit: in nats, of rounding."""
    own_T = logprobs(model, ids)
    with lora.use_adapter(model, reference):
        gap = (own_T - logprobs(model, ids)).abs().max().item()
    if gap <= limit:
        return None
    start = "resume_from's" if reference else "the base"
    return (
        f"before the first step the adapter differs from {start} by {gap:.2g} nats: B does not start at zero, "
        "another adapter is active, or an adapter was loaded twice"
    )


def tokenizer_ids(tokenizer: Tokenizer, vocabulary: int) -> str | None:
    """The model has a row for each of the tokenizer's ids, and what ends a reply is no text."""
    prompt = tokenizer.prompt([{"role": "user", "content": "?"}])
    if max(prompt) >= vocabulary:
        raise Refusal(
            f"{tokenizer.folder}: a prompt has the id {max(prompt)}, and the model {vocabulary} embeddings: "
            "the tokenizer is another model's"
        )
    if tokenizer.vocab_size > vocabulary:
        return (
            f"the tokenizer has {tokenizer.vocab_size} ids, and the model {vocabulary} embeddings: it is another "
            "model's, or tokens were added without rows for them"
        )
    text = sorted(tokenizer.eos_ids - tokenizer.control_ids)
    if text:
        return (
            f"{tokenizer.folder}: id {text[0]} ends a reply, and in the tokenizer it is the text "
            f"{tokenizer.show(text[:1])!r}: the tokenizer is another model's, or eos_token_id is wrong"
        )
    return None


def unlikely_prompts(model: CausalLM, episodes: list[Episode]) -> str | None:
    """The base gives prompts more probability than tokens drawn at random have. Random weights give as much."""
    prompts = [prompt_of(episode)[:PROMPT_TOKENS] for episode in episodes[:PROMPTS] if len(prompt_of(episode)) > 1]
    if not prompts:
        return None
    with lora.adapters_off(model):
        nats = -torch.cat([logprobs(model, ids) for ids in prompts]).mean().item()
    uniform = math.log(model.config.vocab_size)
    if nats <= uniform + 1:  # random weights of the usual size are within one nat
        return None
    return (
        f"the base expects prompts with {nats:.1f} nats per token, and random tokens would take {uniform:.1f}: "
        "the tokenizer is another model's, or the weights are damaged"
    )


# ---- collected episodes ----


def prompt_of(episode: Episode) -> list[int]:
    return episode.ids_T[: episode.turns[0].start] if episode.turns else episode.ids_T


def task_hashes(episodes: list[Episode]) -> str:
    """Return a hash of the environment and seed of each group, 6 hexadecimal digits, one after another."""
    tasks = dict.fromkeys((e.group, e.env, e.seed) for e in episodes)
    hashes = (hashlib.sha256(repr(task[1:]).encode()).hexdigest() for task in tasks)
    return "".join(digest[:DIGITS] for digest in hashes)


def hashes_of(record: dict) -> set[str]:
    """Return the hashes of an epoch's tasks."""
    text = record.get("tasks", "")
    return {text[i : i + DIGITS] for i in range(0, len(text), DIGITS)}


def weights_hash(weights: dict[str, Tensor]) -> str:
    """Return a hash of the names and bits of the weights, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, p in weights.items():
        digest.update(name.encode())
        digest.update(saving.whole(p).detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def sampler_hash(model: CausalLM) -> str:
    """Return `weights_hash` of the adapters that the model computes with at this moment, or of its trainable weights if
    it has no adapters: that of TrainState.adapter_hash() if they are the ones that train."""
    layers = lora.lora_layers(model)
    if not layers:
        return weights_hash({name: p for name, p in model.named_parameters() if p.requires_grad})
    active = [(f"{path}.adapters.{layer.active}", layer.adapter) for path, layer in layers if layer.active]
    return weights_hash({f"{name}.{f}": getattr(adapter, f) for name, adapter in active for f in "AB"})


def other_weights(episodes: list[Episode], adapter_hash: str) -> str | None:
    """The sampler used the adapter that trains."""
    others = sum(episode.adapter_hash != adapter_hash for episode in episodes)
    if not others:
        return None
    return (
        f"{others} of {len(episodes)} episodes were sampled with other weights than those that train: the adapter was "
        "off, another one was active, or the sampler has a copy"
    )


def unequal_groups(episodes: list[Episode], size: int) -> str | None:
    """Members of a group have the same task and the same prompt, and there are `size` of them."""
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.group, []).append(episode)
    for number, members in groups.items():
        tasks = {(e.env, e.seed) for e in members}
        prompts = {tuple(prompt_of(e)) for e in members if not e.infrastructure_failed}
        if len(members) != size or len(tasks) > 1 or len(prompts) > 1:
            return (
                f"group {number} has {len(members)} episodes, {len(tasks)} tasks and {len(prompts)} prompts instead of "
                f"{size}, 1 and 1: its mean is no baseline; tasks are mixed up, or an environment ignores its seed"
            )
    return None


def repeated_tasks(records: Sequence[dict]) -> str | None:
    """The newest epoch has other tasks than each earlier one, all but a few that are equal by chance."""
    *earlier, newest = records
    tasks = hashes_of(newest)
    for record in earlier:
        again = len(tasks & hashes_of(record))
        if again > len(tasks) / 4:
            return (
                f"{again} of {len(tasks)} tasks are those of epoch {record['epoch']} again: the count of groups does "
                "not move as it should, so the run learns a few tasks by heart"
            )
    return None


def equal_tasks(episodes: list[Episode]) -> str | None:
    """The groups of an epoch have different tasks, all but a few that are equal by chance."""
    groups, tasks = len({e.group for e in episodes}), len({(e.env, e.seed) for e in episodes})
    if tasks > groups / 2:
        return None
    return f"{groups} groups have {tasks} different tasks: they are drawn from the same random numbers"


def failed_episodes(batch: Batch) -> str | None:
    """No episode whose environment failed is learned from."""
    failed = sum(episode.infrastructure_failed for episode in batch.episodes)
    if not failed:
        return None
    return (
        f"{failed} of {len(batch.episodes)} episodes in the batch have an environment that failed: the agent is taught "
        "that its play was wrong"
    )


def newest(records: Sequence[dict], epochs: int = EPOCHS, episodes: int = EPISODES) -> Sequence[dict]:
    """Return the fewest newest epochs that are at least `epochs` and hold `episodes`; [] if all together are fewer."""
    held = 0
    for count, record in enumerate(reversed(records), 1):
        held += record["episodes"]
        if count >= epochs and held >= episodes:
            return records[-count:]
    return []


def equal_rewards(records: Sequence[dict]) -> str | None:
    """The rewards of several epochs are not all the same, unless all tasks are solved."""
    last = newest(records, EQUAL_EPOCHS, EQUAL_EPISODES)
    rewards = {record["reward_mean"] for record in last}
    equal = len(rewards) == 1 and not any(record["reward_std"] for record in last)
    if not equal or all(record["accuracy"] == 1 for record in last):
        return None
    return (
        f"every episode of {len(last)} epochs has the reward {rewards.pop():g}: nothing can be learned; tasks are "
        "too hard, replies are not understood, or the reward rule pays nothing"
    )


def all_cut(records: Sequence[dict]) -> str | None:
    """Some replies end by themselves, or some task is solved."""
    last = newest(records)
    cut = all(0 < record["cut_by_length"] == round(record["turns_mean"] * record["episodes"]) for record in last)
    if not last or not cut or any(record["accuracy"] for record in last):
        return None
    return (
        f"every reply of {len(last)} epochs was cut by max_new_tokens or max_len, and no task was solved: the limits "
        "are too low, the end token is wrong, or the chat format is another model's"
    )


def invalid_actions(records: Sequence[dict]) -> str | None:
    """Environments understand some of the actions, or some task is solved."""
    last = newest(records)
    invalid = all(record["invalid_actions"] > 0.99 for record in last)
    if not last or not invalid or any(record["accuracy"] for record in last):
        return None
    return (
        f"environments understood hardly an action in {len(last)} epochs, and no task was solved: the model does not "
        "know the form of a reply (demonstrations teach it: algo=sft), the replies are cut, or the chat format is "
        "another model's"
    )


# ---- evaluations ----


def held_out(first: dict, now: dict) -> str | None:
    """Success on held-out tasks is not far below that of the first evaluation, which is before training.

    first, now: results of rl.evaluate.evaluate. The ends of an 80 % interval are 1.28 standard errors from its middle.
    """
    errors = [(result["high"] - result["low"]) / (2 * 1.28) for result in (first, now)]
    if first["success"] - now["success"] <= FALL * math.hypot(*errors):
        return None
    return (
        f"success on held-out tasks is {now['success']:.1%} and was {first['success']:.1%} before training: lr is too "
        "high, or the reward pays for something else than success"
    )


# ---- the update ----


def rounding(exact: str, dtype: str) -> float:
    """Return the largest difference of log-probabilities, in nats, that rounding explains: 0 if the trial said yes."""
    return 0.0 if exact == "yes" else 1e-2 if dtype == "float32" else 0.5


def sampler_gap(gap: float | None, exact: str, dtype: str) -> str | None:
    """Sampling and training give a token the same probability."""
    if gap is None or gap <= rounding(exact, dtype):
        return None
    if gap <= rounding("no", dtype):
        cause = (
            "although the trial at the start found equal bits: this machine's kernels differ where the trial did not "
            "look (threads=1 or another products= may be exact), a copy of the weights was stale, or the episodes of "
            "rollouts= were sampled with other products= or threads="
        )
    else:
        cause = (
            f"and rounding explains {rounding(exact, dtype):g}: the adapter was off or scaled twice, a copy of the "
            "weights was stale, or mask, positions, temperature or dropout differ"
        )
    return f"sampling and training differ by {gap:.2g} nats on a token, {cause}"


def dropout(model: CausalLM, wanted: bool) -> str | None:
    """Dropout is active in supervised fine-tuning, and only there. A rounding of 16 bits could hide a small one."""
    if all(layer.training == wanted for _, layer in lora.lora_layers(model) if layer.dropout):
        return None
    if wanted:
        return "lora.dropout is not active: the model is in evaluation mode while it learns"
    return "dropout is active in reinforcement learning: the policy that trains is not the one that sampled"


def checksums(parameters: dict[str, Tensor]) -> dict[str, int]:
    """Return the sum of each float32 parameter's bits as integers, which changes with any entry."""
    sums = [p.detach().view(torch.int32).sum(dtype=torch.int64) for p in parameters.values()]
    return dict(zip(parameters, torch.stack(sums).tolist(), strict=True)) if sums else {}


def unmoved(before: dict[str, int], after: dict[str, int], factor: str) -> str | None:
    """Each layer's factor, "A" or "B", has moved in a step with a gradient."""
    names = [name for name in before if name.endswith(f".{factor}")]
    still = [name for name in names if before[name] == after[name]]
    if not still:
        return None
    return (
        f"{factor} of {len(still)} of {len(names)} layers, such as {still[0]}, did not move in a step with a gradient: "
        "the optimizer does not have it, the graph is cut before it, or the layer is not used"
    )


def zero_gradients(steps: int) -> str | None:
    """The gradient is not 0 where advantages are not. steps: steps in a row, the newest included, in which it was."""
    if steps < ZERO_STEPS:
        return None
    return (
        f"the gradient was 0 in {ZERO_STEPS} steps in a row, though advantages were not: the graph is cut, every token "
        "is clipped, or the parameters that train are not used"
    )


def entropy(records: Sequence[dict], vocabulary: int) -> str | None:
    """The policy neither has one reply left, unless it solves the tasks, nor samples tokens at random."""
    first, now, most = records[0].get("entropy"), records[-1].get("entropy"), math.log(vocabulary)
    if not first or now is None:
        return None
    last = newest(records)
    # of an expert's episodes there is no sampler_gap, and imitating them ends at a low entropy
    played = last and all(record.get("sampler_gap") is not None for record in last)
    collapsed = played and all(record.get("entropy", first) < 0.005 * first for record in last)
    if collapsed and sum((record["accuracy"] - 0.9) * record["episodes"] for record in last) < 0:
        return (
            f"the entropy is {now:.2g} nats per token, and was {first:.2g} in the first epoch: the policy has "
            "collapsed and explores no more; lower lr, or set an entropy bonus"
        )
    if now > max(0.8 * most, 2 * first):
        return (
            f"the entropy is {now:.2g} nats per token of at most {most:.2g}: the policy samples at random; "
            "the update has the wrong sign, or lr is far too high"
        )
    return None


def ratio(records: Sequence[dict]) -> str | None:
    """Steps stay near the policy that sampled."""
    last = newest(records)
    played = last and all(r.get("sampler_gap") is not None for r in last)  # else others sampled
    far = (r.get("clip_fraction", 0) > 0.8 or not -1e-3 <= r.get("approx_kl", 0) <= 1 for r in last)
    if not played or not all(far):
        return None
    now = ", ".join(f"{name} {last[-1][name]:.2g}" for name in ("approx_kl", "clip_fraction") if name in last[-1])
    return (
        f"the policy was far from the one that sampled in {len(last)} epochs ({now}): lr is too high, there are too "
        "many passes, or old log-probabilities are wrong"
    )


def should_learn(step: StepResult, batch: Batch, algo_cfg: Algorithm, cfg: Optim, epoch: int) -> bool:
    """Return whether an optimizer step of an epoch, counted from 0, should have moved the policy."""
    warmup = algo_cfg.critic and epoch < algo_cfg.critic_warmup
    decayed = step.metrics["lr"] == 0 and cfg.min_lr_ratio == 0
    has_advantage = batch.advantages_N is not None and bool((batch.advantages_N != 0).any())
    return not (step.skipped or warmup or decayed) and has_advantage
