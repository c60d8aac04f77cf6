"""From episodes to log-probabilities and gradients: neither packing nor order changes the results."""

import hashlib
import random
from dataclasses import dataclass, replace

import pytest
import torch
from test_lora import adapted_model

import lora
from models import load_model
from rl import grpo, opd, ppo, ranks, sft
from rl.batch import (
    _hidden_of_prefixes,
    add_values,
    drop_zero_advantage,
    forward,
    likeliest,
    make_batch,
    micro_batches,
    optimizer_steps,
    policy_logprobs,
    select,
)
from rl.ppo import Critic
from rl.records import Batch, Episode, Turn

TEMPERATURE = 0.7
ALGORITHMS = {
    "sft": (sft, sft.Config()),
    "ppo": (ppo, ppo.Config()),
    "ppo by token": (ppo, ppo.Config(level="token")),
    "grpo": (grpo, grpo.Config(kl_coef=0.1)),
    "grpo as published": (grpo, grpo.Config(kl_coef=0.1, divide_by_std=True, aggregation="sequence")),
    "grpo with echo": (grpo, grpo.Config(echo_coef=0.5)),
    "opd": (opd, opd.Config(privileged=True, top_k=3)),
}


def play(seed: int, group: int, turns: int, truncated: bool, cut: bool = False) -> Episode:
    """Return an episode of random ids: 1 to 6 prompt or observation ids before each turn of 1 to 5 sampled ids, and
    after the last turn if it was truncated and not cut by max_len."""
    draw = torch.Generator().manual_seed(seed)
    pick = lambda low, high: int(torch.randint(low, high + 1, (1,), generator=draw))  # noqa: E731
    episode = Episode("fake", seed, group, terminated=not truncated, truncated=truncated)
    for _ in range(turns):
        for n, sampled in ((pick(1, 6), 0), (pick(1, 5), 1)):
            if sampled:
                start = len(episode.ids_T)
                episode.turns.append(Turn(start, start + n, float(pick(-2, 2)), "stop"))
            episode.ids_T += [pick(0, 66) for _ in range(n)]
            episode.action_mask_T += [sampled] * n
            episode.logprobs_T += [-pick(1, 60) / 10 * sampled for _ in range(n)]
    if truncated and not cut:
        episode.append([pick(0, 66) for _ in range(pick(1, 6))])
    return episode


TURNS = (2, 1, 4, 3, 1, 2, 5, 2)
EPISODES = [play(i, i // 3, turns, truncated=i % 3 == 1, cut=i == 4) for i, turns in enumerate(TURNS)]
EMPTY = Episode("fake", 99, 0, ids_T=[1, 2, 3], action_mask_T=[0, 0, 0], logprobs_T=[0.0] * 3)


def make_model():
    return adapted_model().double()


def make_critic() -> Critic:
    torch.manual_seed(3)
    critic = Critic(32, 8)
    torch.nn.init.normal_(critic.down.weight)
    return critic


def prepared(name: str, model, critic, episodes, micro_tokens: int):
    """Return the batch with all fields that its algorithm needs."""
    module, cfg = ALGORITHMS[name]
    batch = make_batch(episodes)
    if cfg.critic:
        batch = add_values(batch, model, critic, micro_tokens)
    if cfg.reference:
        with lora.adapters_off(model):
            ref_logprobs_N = policy_logprobs(batch, model, TEMPERATURE, micro_tokens)
        batch = replace(batch, ref_logprobs_N=ref_logprobs_N)
    if module is opd:
        with lora.adapters_off(model):
            grades = likeliest(batch, model, TEMPERATURE, micro_tokens, cfg.top_k, len(model.lm_head.weight))
        names = "teacher_logprobs_N", "choices_N", "teacher_choices_N"
        batch = replace(batch, **dict(zip(names, grades, strict=True)))
    return module.advantages(batch, cfg)


def gradients(name: str, episodes, micro_tokens: int) -> dict[str, torch.Tensor]:
    """Return the gradients of all trainable parameters from one optimizer step over the episodes."""
    module, cfg = ALGORITHMS[name]
    model, critic = make_model(), make_critic()
    batch = prepared(name, model, critic, episodes, micro_tokens)
    for micro in micro_batches(batch, micro_tokens):
        micro = forward(micro, model, TEMPERATURE, critic if cfg.critic else None, cfg.entropy_grad)
        module.loss(micro, cfg)[0].backward()
    named = {**dict(model.named_parameters()), **dict(critic.named_parameters())}
    return {key: p.grad for key, p in named.items() if p.grad is not None}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_gradient_is_independent_of_the_layout(name):
    whole = gradients(name, EPISODES, 10**6)
    assert sum(".adapters." in key for key in whole) == 28 and all(g.any() for g in whole.values())
    shuffled = [EPISODES[i] for i in (5, 2, 7, 0, 6, 1, 4, 3)]
    for episodes, micro_tokens in ((EPISODES, 1), (EPISODES, 40), (shuffled, 10**6), (shuffled, 25)):
        other = gradients(name, episodes, micro_tokens)
        assert other.keys() == whole.keys()
        for key, g in whole.items():
            atol = 1e-6 * g.abs().max().item()  # the critic and the reference's log-probabilities are in float32
            torch.testing.assert_close(other[key], g, atol=atol, rtol=0, msg=lambda text, key=key: f"{key}: {text}")


def test_dropping_zero_advantages_changes_no_gradient():
    """Two of three groups have equal scores: a third of the episodes gives the same gradient."""
    episodes = [replace(e, group=i // 3) for i, e in enumerate([*EPISODES, *EPISODES[:1]])]
    model, cfg = make_model(), grpo.Config()
    batch = make_batch(episodes)
    batch.reward_N = torch.where(batch.episode_N < 6, 0.0, batch.reward_N)
    batch = grpo.advantages(batch, cfg)
    fewer, found = drop_zero_advantage(batch), []
    assert [e.seed for e in fewer.episodes] == [6, 7, 0] and fewer.learned_tokens == len(fewer.advantages_N)
    assert (fewer.total_tokens, fewer.total_episodes) == (batch.total_tokens, batch.total_episodes)
    for piece in (batch, fewer):
        model.zero_grad()
        loss, metrics = grpo.loss(forward(piece, model, TEMPERATURE), cfg)
        loss.backward()
        found.append(({name: p.grad for name, p in model.named_parameters() if p.requires_grad}, loss.item(), metrics))
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-9) and found[0][2]["entropy"] != found[1][2]["entropy"]
    for name, gradient in found[0][0].items():
        torch.testing.assert_close(found[1][0][name], gradient, atol=1e-10, rtol=1e-9)
    assert drop_zero_advantage(fewer) is fewer, "the batch is returned unchanged"
    equal = replace(batch, advantages_N=torch.zeros_like(batch.advantages_N))
    assert drop_zero_advantage(equal) is equal, "a step needs something to compute"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_episode_without_a_sampled_token_is_left_out(name):
    without, beside = (gradients(name, episodes, 25) for episodes in (EPISODES, [EMPTY, *EPISODES, EMPTY]))
    assert all(torch.equal(beside[key], g) for key, g in without.items())


def test_a_turn_without_a_token_moves_no_reward():
    episode = Episode("textcraft", 0, 0)
    for ids, reward in (([1], 1.0), ([], 5.0), ([2, 3], 2.0)):
        episode.append([9])
        episode.append_turn(ids, [-1.0] * len(ids), "stop")
        episode.turns[-1].reward = reward
    assert make_batch([episode]).reward_N.tolist() == [1.0, 0.0, 2.0]


def test_a_batch_needs_a_sampled_token():
    with pytest.raises(ValueError, match="none of the episodes has a sampled token"):
        make_batch([EMPTY])


def test_logprobs_match_each_episode_alone():
    """By definition: logits of the episode alone, over the temperature; position t - 1 predicts token t."""
    model = make_model()
    found = forward(make_batch(EPISODES), model, TEMPERATURE, entropy_grad=True)
    logprobs, entropies = [], []
    for episode in EPISODES:
        logits_TV = model(torch.tensor([episode.ids_T]))[0] @ model.lm_head.weight.mT / TEMPERATURE
        logp_TV = logits_TV.log_softmax(-1)
        for t, sampled in enumerate(episode.action_mask_T):
            if sampled:
                logprobs.append(logp_TV[t - 1, episode.ids_T[t]])
                entropies.append(-(logp_TV[t - 1].exp() * logp_TV[t - 1]).sum())
    torch.testing.assert_close(found.logprobs_N, torch.stack(logprobs), atol=1e-10, rtol=0)
    torch.testing.assert_close(found.entropy_N, torch.stack(entropies), atol=1e-10, rtol=0)
    weights, parameters = torch.randn(len(logprobs)), [p for p in model.parameters() if p.requires_grad]
    for mine, theirs in ((found.logprobs_N, logprobs), (found.entropy_N, entropies)):
        mine = torch.autograd.grad((weights * mine).sum(), parameters, retain_graph=True)
        theirs = torch.autograd.grad((weights * torch.stack(theirs)).sum(), parameters, retain_graph=True)
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("micro_tokens", [1, 10**6])
def test_likeliest_words_and_choices_match_the_full_softmax(micro_tokens):
    """The last two words of the vocabulary may not be chosen; their probability counts."""
    model, batch = make_model(), make_batch(EPISODES)
    words = len(model.lm_head.weight) - 2
    logprobs_N, ids, values = likeliest(batch, model, TEMPERATURE, micro_tokens, 3, words)
    rows = [
        (model(torch.tensor([e.ids_T]))[0] @ model.lm_head.weight.T / TEMPERATURE).log_softmax(-1)[at - 1]
        for e in batch.episodes
        for turn in e.turns
        for at in range(turn.start, turn.stop)
    ]
    targets = [i for e in batch.episodes for i, sampled in zip(e.ids_T, e.action_mask_T, strict=True) if sampled]
    wanted = torch.stack(rows).detach()
    top = wanted[:, :words].topk(3)
    assert torch.equal(ids, top.indices)
    torch.testing.assert_close(values, top.values.float())
    torch.testing.assert_close(logprobs_N, wanted.gather(1, torch.tensor(targets)[:, None])[:, 0].float())
    found = forward(replace(batch, choices_N=ids), model, TEMPERATURE).choice_logprobs_N
    torch.testing.assert_close(found.detach(), top.values)
    assert found.requires_grad


def test_echo_reads_exactly_the_observations():
    """By definition: the cross-entropy at temperature 1 of each id after the first turn that was not sampled."""
    model = make_model()
    batch = replace(make_batch(EPISODES), reads_observations=True)
    found = forward(batch, model, TEMPERATURE).observation_nll_B
    wanted, count = [], 0
    for episode in EPISODES:
        logits_TV = model(torch.tensor([episode.ids_T]))[0] @ model.lm_head.weight.mT
        sampled, start = torch.tensor(episode.action_mask_T), episode.turns[0].stop
        places = [t for t in range(start, len(sampled)) if not sampled[t]]
        targets = torch.tensor(episode.ids_T)[places]
        wanted.append(torch.nn.functional.cross_entropy(logits_TV[[t - 1 for t in places]], targets, reduction="sum"))
        count += len(places)
    torch.testing.assert_close(found, torch.stack(wanted), atol=1e-9, rtol=0)
    assert batch.total_observed == count and found.max() > 1
    alone = forward(replace(make_batch(EPISODES), reads_observations=False), model, TEMPERATURE)
    assert alone.observation_nll_B is None
    assert not grpo.Config(echo_coef=0.1).drops_zero_advantage, "episodes of equal groups are read too"


def test_echo_of_episodes_without_observations_is_0():
    episodes = [play(9, 0, 1, truncated=False), play(10, 0, 1, truncated=False)]
    cfg, model = grpo.Config(echo_coef=0.5), make_model()
    loss, metrics = grpo.loss(forward(grpo.advantages(make_batch(episodes), cfg), model, TEMPERATURE), cfg)
    assert metrics["observation_nll"] == 0 and loss.isfinite()


def share_a_prompt(count: int) -> list[Episode]:
    """Return two groups, each with one prompt of 40 ids and equal first turns; the two prompts share 25 ids."""
    draw = torch.Generator().manual_seed(0)
    ids = lambda n: torch.randint(0, 67, (n,), generator=draw).tolist()  # noqa: E731
    system, first = ids(25), ids(3)
    episodes = []
    for group in range(2):
        prompt = system + ids(15)
        for _ in range(count):
            second = ids(4)
            turns = [Turn(40, 43, 1.0, "stop"), Turn(45, 49, float(len(episodes)), "stop")]
            mask = [0] * 40 + [1] * 3 + [0] * 2 + [1] * 4
            ids_T = prompt + first + [1, 2] + second
            episodes.append(Episode("fake", group, group, ids_T, mask, [0.0] * 49, turns, terminated=True))
    return episodes


def test_shared_prefixes_are_computed_once():
    model, episodes, rows = adapted_model(), share_a_prompt(3), []
    handle = model.model.embed_tokens.register_forward_hook(lambda module, inputs, _: rows.append(len(inputs[0])))
    together = forward(make_batch(episodes), model, TEMPERATURE).logprobs_N
    alone = torch.cat([forward(make_batch([e]), model, TEMPERATURE).logprobs_N for e in episodes])
    handle.remove()
    distinct = 25 + 2 * (15 + 3 + 2) + 6 * 4
    assert rows == [distinct + -distinct % 16] + 6 * [64]
    assert torch.equal(together, alone)
    parameters, weights = [p for p in model.parameters() if p.requires_grad], torch.randn(len(alone))
    pairs = (torch.autograd.grad((x * weights).sum(), parameters) for x in (together, alone))
    for mine, theirs in zip(*pairs, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6 * theirs.abs().max().item(), rtol=0)


def test_a_group_stays_together_in_a_micro_batch():
    episodes = share_a_prompt(2)
    episodes = [episodes[i] for i in (3, 0, 2, 1)]
    groups = [{e.group for e in piece.episodes} for piece in micro_batches(make_batch(episodes), 2 * 49)]
    assert list(map(list, groups)) == [[0], [1]], "groups of equal length in the order of their numbers"


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "grpo with echo"])
def test_observation_tokens_have_exactly_zero_gradient(name):
    """Exactly the hidden states before a sampled token have a gradient."""
    module, cfg = ALGORITHMS[name]
    model, critic = make_model(), make_critic()
    batch, run, seen = prepared(name, model, critic, EPISODES, 10**6), model.forward, {}

    def forward_all(ids_BT, sequences_ST, wanted):
        hidden_ND = run(ids_BT, sequences_ST=sequences_ST)[0]
        hidden_ND.retain_grad()
        seen.update(hidden=hidden_ND, sequences=sequences_ST.tolist())
        return hidden_ND[wanted]

    model.forward = forward_all
    micro = forward(batch, model, TEMPERATURE, critic if cfg.critic else None, cfg.entropy_grad)
    (micro.logprobs_N.sum() + module.loss(micro, cfg)[0]).backward()
    sampled = [[*e.action_mask_T[1:], 0] for e in EPISODES]
    before = {row for s, mask in enumerate(sampled) for row, m in zip(seen["sequences"][s], mask, strict=False) if m}
    assert set(seen["hidden"].grad.any(-1).nonzero()[:, 0].tolist()) == before


def test_action_mask_covers_exactly_the_sampled_ids():
    batch = make_batch(EPISODES)
    sampled = [i for e in EPISODES for t in e.turns for i in e.ids_T[t.start : t.stop]]
    masked = [i for e in EPISODES for i, m in zip(e.ids_T, e.action_mask_T, strict=True) if m]
    with torch.no_grad():
        assert _hidden_of_prefixes(batch, make_model())[2][0].tolist() == sampled == masked
    assert batch.old_logprobs_N.tolist() == pytest.approx([x for e in EPISODES for x in e.logprobs_T if x])
    assert batch.scores_B.tolist() == [e.score for e in EPISODES]
    assert (batch.total_tokens, batch.total_turns, batch.total_episodes) == (len(sampled), 20, 8)
    turns = [(b, u) for b, e in enumerate(EPISODES) for u, t in enumerate(e.turns) for _ in range(t.start, t.stop)]
    assert list(zip(batch.episode_N.tolist(), batch.turn_N.tolist(), strict=True)) == turns
    last = [x != y for x, y in zip(turns, [*turns[1:], None], strict=True)]
    assert not batch.reward_N[~torch.tensor(last)].any(), "a turn's reward is on its last token"


def test_values_before_the_update():
    """A value is of the state before a token. The last one is the critic's where ids follow the last turn, else 0."""
    model, critic = make_model(), make_critic()
    for micro_tokens in (1, 30, 10**6):
        batch = add_values(make_batch(EPISODES), model, critic, micro_tokens)
        with torch.no_grad():
            alone = [critic(model(torch.tensor([e.ids_T]))[0]) for e in EPISODES]
        before = [v[:-1][torch.tensor(e.action_mask_T[1:], dtype=bool)] for v, e in zip(alone, EPISODES, strict=True)]
        torch.testing.assert_close(batch.old_values_N, torch.cat(before), atol=1e-6, rtol=0)
        last = [v[-1].item() if e.seed in (1, 7) else 0.0 for v, e in zip(alone, EPISODES, strict=True)]
        assert batch.last_values_B.tolist() == pytest.approx(last, abs=1e-6)
        assert batch.last_values_B.nonzero()[:, 0].tolist() == [1, 7], "4 was cut by max_len, the others terminated"


@pytest.mark.parametrize("micro_tokens", [1, 30, 10**6])
def test_reference_logprobs_match_the_base(micro_tokens):
    model = make_model()
    with lora.adapters_off(model), torch.no_grad():
        batch = make_batch(EPISODES)
        base_N = policy_logprobs(batch, model, TEMPERATURE, micro_tokens)
        expected_N = forward(batch, model, TEMPERATURE).logprobs_N
    torch.testing.assert_close(base_N, expected_N.float(), atol=1e-6, rtol=0)
    assert (base_N - forward(batch, model, TEMPERATURE).logprobs_N).abs().max() > 0.1


def test_a_new_field_is_cut_with_the_others_or_refused():
    """A loss that adds a field per token must not get the whole batch's in each piece."""

    @dataclass
    class Bigger(Batch):
        scores_of_a_judge_N: torch.Tensor | None = None
        weight_B: torch.Tensor | None = None

    batch = make_batch(EPISODES)
    n = len(batch.episode_N)
    bigger = Bigger(**vars(batch), scores_of_a_judge_N=torch.arange(n), weight_B=torch.arange(len(EPISODES)))
    piece = select(bigger, [2, 0])
    assert torch.equal(piece.scores_of_a_judge_N, piece.place_N) and piece.weight_B.tolist() == [2, 0]
    with pytest.raises(IndexError, match="scores_of_a_judge_N has 3 entries"):
        select(replace(bigger, scores_of_a_judge_N=torch.zeros(3)), [0])


def test_the_value_gradient_stays_in_the_critic():
    model, critic = make_model(), make_critic()
    forward(make_batch(EPISODES), model, TEMPERATURE, critic).values_N.sum().backward()
    assert all(p.grad.any() for p in critic.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_select_keeps_totals_and_takes_each_token_along():
    batch = make_batch(EPISODES)
    marks = torch.arange(len(batch.episode_N), dtype=torch.float32)
    batch = replace(batch, advantages_N=marks, last_values_B=torch.arange(8.0))
    chosen = [6, 0, 3]
    part = select(batch, chosen)
    assert part.episodes == [EPISODES[i] for i in chosen] and part.last_values_B.tolist() == chosen
    assert part.advantages_N.tolist() == [n for i in chosen for n in marks[batch.episode_N == i].tolist()]
    assert part.old_logprobs_N.tolist() == batch.old_logprobs_N[part.advantages_N.long()].tolist()
    counts = [len(marks[batch.episode_N == i]) for i in chosen]
    assert part.episode_N.tolist() == [0] * counts[0] + [1] * counts[1] + [2] * counts[2]
    assert part.values_N is part.returns_N is None
    for total in ("total_tokens", "total_turns", "total_episodes"):
        assert getattr(part, total) == getattr(batch, total)


@pytest.mark.parametrize(("batch_size", "sizes"), [(3, [3, 3, 2]), (8, [8]), (100, [8])])
def test_optimizer_steps_take_every_episode_once(batch_size, sizes):
    batch = make_batch(EPISODES)
    steps = list(optimizer_steps(batch, batch_size, "1 2 3"))
    assert [len(step.episodes) for step in steps] == sizes
    order = [e.seed for step in steps for e in step.episodes]
    assert sorted(order) == list(range(8)) and order != list(range(8))
    assert order == [e.seed for step in optimizer_steps(batch, batch_size, "1 2 3") for e in step.episodes]
    assert order != [e.seed for step in optimizer_steps(batch, batch_size, "1 2 4") for e in step.episodes]
    for step in steps:  # its own counts are the denominators
        sampled = sum(sum(e.action_mask_T) for e in step.episodes)
        turns = sum(len(e.turns) for e in step.episodes)
        assert (step.total_tokens, step.total_turns, step.total_episodes) == (sampled, turns, len(step.episodes))


@pytest.mark.parametrize("micro_tokens", [1, 30, 45, 10**6])
def test_micro_batches_are_whole_episodes_of_bounded_length(micro_tokens):
    batch = make_batch(EPISODES)
    pieces = list(micro_batches(batch, micro_tokens))
    assert sorted(e.seed for piece in pieces for e in piece.episodes) == list(range(8))
    for piece in pieces:
        assert len(piece.episodes) == 1 or sum(len(e.ids_T) for e in piece.episodes) <= micro_tokens
        assert piece.total_tokens == batch.total_tokens
    assert len(pieces) == {1: 8, 10**6: 1}.get(micro_tokens, len(pieces))


@pytest.mark.parametrize("micro_tokens", [250, 900])
@pytest.mark.parametrize("world", [2, 4])
def test_ranks_have_about_as_many_and_as_long_pieces(world, micro_tokens):
    """Attention costs the square of a length; in the order of lengths the last of two ranks would have 1.7 times
    that of the first, the last of four 3 times."""
    episodes = [play(i, i, turns=2 + i % 29, truncated=False) for i in range(58)]
    pieces = list(micro_batches(make_batch(episodes), micro_tokens))
    mine = [[pieces[n] for n in ranks.share(len(pieces), rank, world)] for rank in range(world)]
    costs = [sum(len(e.ids_T) ** 2 for piece in some for e in piece.episodes) for some in mine]
    assert len(pieces) % 2 == 0
    assert max(costs) < (1.25 if world == 2 else 1.8) * min(costs)


@pytest.mark.parametrize("seed", range(8))
def test_two_ranks_have_as_many_tokens_each(seed):
    """Pieces that come as long and short ones could end as five, of which one rank had 63 % of the tokens."""
    turns = random.Random(seed)
    episodes = [play(i, i, turns=turns.randint(2, 14), truncated=False) for i in range(32)]
    lengths = sum(len(e.ids_T) for e in episodes)
    for micro_tokens in (lengths // 4, lengths * 2 // 7, lengths // 3, lengths * 2 // 5, lengths - 1):
        pieces = [sum(len(e.ids_T) for e in p.episodes) for p in micro_batches(make_batch(episodes), micro_tokens)]
        mine = [sum(pieces[n] for n in ranks.share(len(pieces), rank, 2)) for rank in range(2)]
        assert len(pieces) % 2 == 0 and max(pieces) <= micro_tokens and max(mine) < 0.53 * sum(mine)


def test_equal_updates_have_equal_gradients_on_several_threads():
    """All episodes share the row that predicts their first token. On a CPU the race of threads decides in which order
    torch adds up the gradient of x[rows]."""
    model = load_model("tiny")
    lora.inject(model, 2, 4)
    weights = [p for p in model.parameters() if p.requires_grad]
    draw, episodes, before = random.Random(0), [], torch.get_num_threads()
    prompt = [draw.randrange(1000) for _ in range(20)]
    for _ in range(32):
        reply = [draw.randrange(1000) for _ in range(24)]
        episodes.append(Episode("fake", 0, 0, ids_T=prompt + reply, action_mask_T=[0] * 20 + [1] * 24))
        episodes[-1].turns, episodes[-1].logprobs_T = [Turn(20, 44, 1.0, "stop")], [-1.0] * 44
    with torch.no_grad():
        for _, layer in lora.lora_layers(model):
            layer.adapters["default"].B.normal_()
    batch, found = make_batch(episodes), set()
    try:
        torch.set_num_threads(8)
        for _ in range(12):
            grads = torch.autograd.grad(forward(batch, model, 1.0).logprobs_N.square().sum(), weights)
            found.add(hashlib.md5(b"".join(g.numpy().tobytes() for g in grads)).hexdigest())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1
