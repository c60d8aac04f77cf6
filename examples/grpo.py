"""GRPO on a text game, the whole method in one file: python examples/grpo.py

A small language model, which comes with this repository, plays TextCraft: it reads crafting recipes and a goal, and
writes one command per turn until the goal is crafted or its turns are over. Each epoch

    1. plays several episodes of each task with the current policy (`collect`),
    2. compares each episode with the others of its task (`add_advantages`),
    3. makes the tokens of the better episodes more likely and those of the worse ones less (`grpo_loss`).

Only low-rank adapters train (LoRA, Hu et al. 2021); the model's own weights stay frozen. The loop is in `main`.
`python train.py algo=grpo ranks=1 micro_tokens=32768` trains the same adapters, bit for bit, and has the options.
"""

import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

import envs
from lora import inject
from models import choose_threads, fast_matmul, load_model, load_tokenizer
from models.engine import Engine
from models.logprob import token_logprobs

SEED = 0  # of the adapters, the tasks, the sampling and the order of the episodes
EPOCHS = 40
EPISODES = 128  # played per epoch
GROUP_SIZE = 8  # episodes with the same task: their mean score is the baseline
BATCH_SIZE = 32  # episodes per optimizer step; the policy that sampled them is up to three steps old
MICRO_TOKENS = 32768  # most tokens in one forward and backward; a whole step fits
LEARNING_RATE = 3e-3  # at first; it falls linearly to a tenth
CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # the probability ratio is clipped to [0.8, 1.28] (DAPO, Yu et al. 2025)
CLIP_NORM = 1.0  # longer gradients are scaled down to this norm
RANK, ALPHA = 16, 32  # of the adapters: y = W x + ALPHA / RANK * B A x
TEMPERATURE = 1.0  # of sampling, and so of the log-probabilities that train
MAX_NEW_TOKENS = 48  # per turn
MAX_LEN = 768  # tokens per episode
GAME = {"prompt": "short", "difficulty": "1", "tasks": "fresh", "distractors": 5, "max_turns": 8}
HELD_OUT, HELD_OUT_SEED = 100, 2**31  # tasks, which never occur in training, and the seed of their sampling


@dataclass
class Episode:
    """One game as a list of ids that only grows. Sampled ids are never decoded and encoded again."""

    group: int  # number of the task
    ids: list[int]  # the prompt, then replies and observations in turn
    sampled: list[bool]  # True on the ids of replies: only these train
    logprobs: list[float]  # of the sampled ids, under the policy that sampled them
    score: float = 0.0  # sum of the rewards: 1 if the goal was crafted, else 0
    advantage: float = 0.0  # score minus the group's mean score


def collect(engine, tokenizer, seed: int, groups: range, group_size: int, split: str) -> list[Episode]:
    """Play group_size episodes of each group's task, all at once. Return them group by group."""
    episodes, playing = [], {}  # playing: slot of the engine -> (environment, episode)
    for group in groups:
        draw = random.Random(f"{seed} {group} {split}")
        draw.random()  # train.py chooses among several environments with this number
        task, first_slot = draw.randrange(2**31), None
        for number in range(group * group_size, (group + 1) * group_size):
            env = envs.make("textcraft", **GAME)
            prompt = tokenizer.prompt(env.reset(task, split))
            slot = engine.open((seed, number), parent=first_slot)  # each episode has its own random numbers
            if first_slot is None:  # the group's other slots copy the first: its prompt is computed once
                first_slot = slot
                engine.feed(slot, prompt)
            episodes.append(Episode(group, prompt, [False] * len(prompt), []))
            playing[slot] = env, episodes[-1]
    # The engine samples the next token of all slots together, and yields a turn as soon as its reply ends.
    for turn in engine.run(MAX_NEW_TOKENS, TEMPERATURE, tokenizer.eos_ids):
        env, episode = playing[turn.slot]
        episode.ids += turn.ids
        episode.sampled += [True] * len(turn.ids)
        episode.logprobs += turn.logprobs
        step = env.step(tokenizer.answer(turn.ids))
        if turn.stop_reason != "context":  # a reply that MAX_LEN cut off does not count
            episode.score += step.reward
        observation = tokenizer.follow_up(turn.ids[-1], [{"role": "user", "content": step.observation}])
        if step.terminated or step.truncated or len(episode.ids) + len(observation) >= MAX_LEN:
            engine.close(turn.slot)
        else:
            episode.ids += observation
            episode.sampled += [False] * len(observation)
            engine.feed(turn.slot, observation)
    return episodes


def add_advantages(episodes: list[Episode]) -> None:
    """Set each advantage to the score minus the group's mean (Shao et al. 2024, DeepSeekMath): no critic is needed.

    The paper also divides by the group's standard deviation, which gives very easy and very hard tasks more weight.
    """
    for start in range(0, len(episodes), GROUP_SIZE):
        group = episodes[start : start + GROUP_SIZE]
        mean = sum(episode.score for episode in group) / len(group)
        for episode in group:
            episode.advantage = episode.score - mean


def micro_batches(episodes: list[Episode]) -> list[list[Episode]]:
    """Cut a step's episodes into pieces of at most MICRO_TOKENS ids, group by group, the longest first."""
    longest = {}
    for episode in episodes:
        longest[episode.group] = max(len(episode.ids), longest.get(episode.group, 0))
    pieces, tokens = [[]], 0
    for episode in sorted(episodes, key=lambda episode: (-longest[episode.group], episode.group)):
        if tokens + len(episode.ids) > MICRO_TOKENS and pieces[-1]:
            pieces, tokens = [*pieces, []], 0
        pieces[-1].append(episode)
        tokens += len(episode.ids)
    return pieces


def sampled_logprobs(model, episodes: list[Episode]) -> torch.Tensor:
    """Return the log-probability of every sampled id under the current policy, episode after episode.

    One forward pass takes all episodes, without padding. Each distinct prefix of ids is one row of it, so a prompt that
    a group shares is computed once; an episode is a path of rows, each of which attends to the rows before it.
    """
    row_of, paths = {}, []  # row_of: (row of the prefix without its last id, last id) -> row
    for episode in episodes:
        row, path = -1, []
        for token in episode.ids:
            row = row_of.setdefault((row, token), len(row_of))
            path.append(row)
        paths.append(torch.tensor(path))
    ids = torch.tensor([token for _, token in row_of])
    masks = [torch.tensor(episode.sampled) for episode in episodes]
    targets = torch.cat([ids[path[mask]] for path, mask in zip(paths, masks, strict=True)])
    # The row before a sampled id predicts it. roll(-1) moves each mark there; the first id is prompt, so none wraps.
    before = torch.cat([path[mask.roll(-1)] for path, mask in zip(paths, masks, strict=True)])
    # Not read here. train.py computes them for critics, and with the same rows the products have the same bits.
    ends = torch.stack([path[-1] for path in paths])
    wanted, place = torch.cat((before, ends)).unique(return_inverse=True)  # the last layer leaves out other rows
    hidden = model(ids[None], sequences_ST=pad_sequence(paths, batch_first=True, padding_value=-1), wanted=wanted)
    return token_logprobs(hidden[place[: len(before)]], model.lm_head.weight, targets, TEMPERATURE)[0]


def grpo_loss(logprobs: torch.Tensor, episodes: list[Episode], count: int) -> torch.Tensor:
    """Return the clipped surrogate loss of PPO: the mean over an episode's sampled ids, then over episodes.

    train.py's key for this mean is grpo.aggregation=sequence, which recipes/embedded.toml sets for the embedded model.
    count: episodes of the whole optimizer step, so that the gradients of its micro-batches add up to the step's.
    """
    lengths = torch.tensor([len(episode.logprobs) for episode in episodes])
    old_logprobs = torch.tensor([logprob for episode in episodes for logprob in episode.logprobs])
    advantages = torch.tensor([episode.advantage for episode in episodes]).repeat_interleave(lengths)
    ratio = (logprobs - old_logprobs).exp()  # exactly 1 in the epoch's first step
    # The larger loss of the two: a token that has already moved far enough in its direction gets no more gradient.
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH))
    return (losses / lengths.repeat_interleave(lengths)).sum() / count


def success(episodes: list[Episode]) -> float:
    return sum(episode.score for episode in episodes) / len(episodes)


def main() -> None:
    torch.manual_seed(SEED)
    model, tokenizer = load_model("tiny"), load_tokenizer("tiny")
    inject(model, RANK, ALPHA)  # in every linear layer; A is random and B zero, so training starts from the model
    choose_threads(model, trial=True, rows=EPISODES)  # and products with which sampling and training have equal bits
    engine = Engine(model, max_rows=EPISODES, max_len=MAX_LEN)  # samples from the very weights that train
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, LEARNING_RATE, weight_decay=0.0)
    groups, last = EPISODES // GROUP_SIZE, EPOCHS * EPISODES // BATCH_SIZE - 1
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - 0.9 * min(1.0, step / last))
    held_out = engine, tokenizer, HELD_OUT_SEED, range(HELD_OUT), 1, "val"
    print(f"held-out success before training: {success(collect(*held_out)):.1%}", flush=True)

    for epoch in range(EPOCHS):
        began, losses, norms = time.monotonic(), [], []
        episodes = collect(engine, tokenizer, SEED, range(epoch * groups, (epoch + 1) * groups), GROUP_SIZE, "train")
        add_advantages(episodes)
        random.Random(f"{SEED} {epoch} 0").shuffle(episodes)
        for start in range(0, EPISODES, BATCH_SIZE):
            batch = episodes[start : start + BATCH_SIZE]
            learned = [episode for episode in batch if episode.advantage] or batch  # the others have no gradient
            for micro in micro_batches(learned):
                loss = grpo_loss(sampled_logprobs(model, micro), micro, len(batch))
                with fast_matmul():  # float32 products by the CPU's faster library
                    loss.backward()  # adds to the gradients of the step's micro-batches before
                losses.append(loss.item())
            norms.append(torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM).item())
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        line = f"epoch {epoch + 1:>2}/{EPOCHS}  success {success(episodes):.1%}  loss {sum(losses) / len(norms):+.6f}"
        line += f"  grad norm {sum(norms) / len(norms):.4f}  {time.monotonic() - began:.1f} s"
        print(line, flush=True)

    print(f"held-out success after training: {success(collect(*held_out)):.1%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    with suppress(KeyboardInterrupt):
        main()
