"""Episodes of random ids, and how far their sampled log-probabilities are from those that training computes."""

import random
from collections.abc import Sequence

import torch

import lora
from models import CausalLM
from models.engine import Engine
from rl.batch import forward, make_batch, micro_batches
from rl.records import Episode

MICRO_TOKENS = (300, 8192)
# (episodes, rows of the engine, turns, sampled tokens of a turn, prompt tokens), the last two at most
NEW, CHANGED, LARGE, SHORT = (20, 16, 3, 6, 60), (18, 16, 2, 8, 150), (5, 4, 2, 4, 40), (4, 4, 1, 2, 20)


def play(model: CausalLM, episodes: int, rows: int, turns: int, sampled: int, longest: int) -> list[Episode]:
    """Return episodes of random prompts, four of each, and observations. Groups fork as in rl/rollout.py."""
    rng, vocabulary, waiting, playing = random.Random(0), model.config.vocab_size, [], {}
    engine = Engine(model, rows, 1024, lora.adapter_version(model))
    for i in range(episodes):
        waiting.append(Episode("random", i, i // 4))
        same = i % 4 and waiting[-2].ids_T
        waiting[-1].append(list(same or random_ids(rng, 5, longest, vocabulary)))
    every = list(waiting)

    def start() -> None:
        group = slot = None  # of the episode before
        while waiting and engine.free:
            episode = waiting.pop(0)
            parent, group = slot if episode.group == group else None, episode.group
            slot = engine.open((0, episode.seed), parent)
            if parent is None:
                engine.feed(slot, episode.ids_T)
            playing[slot] = episode

    start()
    for row in engine.run(sampled, 1.0, frozenset(range(0, vocabulary, 37))):
        episode = playing[row.slot]
        episode.append_turn(row.ids, row.logprobs, row.stop_reason)
        if len(episode.turns) < turns:
            observation = random_ids(rng, 1, 40, vocabulary)
            episode.append(observation)
            engine.feed(row.slot, observation)
        else:
            engine.close(row.slot)
            start()
    return every


def random_ids(rng: random.Random, least: int, most: int, vocabulary: int) -> list[int]:
    return [rng.randrange(vocabulary) for _ in range(rng.randint(least, most))]


def gaps_of(model: CausalLM, episodes: list[Episode], sizes: Sequence[int] = MICRO_TOKENS) -> torch.Tensor:
    """Return |sampled - trained log-probability| of every token, for micro-batches of each of `sizes` tokens."""
    pieces = [piece for size in sizes for piece in micro_batches(make_batch(episodes), size)]
    return torch.cat([(forward(p, model, 1.0).logprobs_N.detach() - p.old_logprobs_N).abs() for p in pieces])
