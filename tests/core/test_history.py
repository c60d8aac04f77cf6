"""history=template and max_thinking_tokens, against a loop that builds each turn's sample by hand from the template."""

import importlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from conftest import ROOT, reference, run_program
from tokenizers import Tokenizer as FastTokenizer
from tqdm import tqdm

from models import Tokenizer, load_model
from models.engine import Engine
from models.logprob import token_logprobs
from models.weights import TINY
from rl import data, grpo
from rl.batch import add_values, forward, make_batch, micro_batches, policy_logprobs, select
from rl.config.words import parse
from rl.report import episodes as look
from rl.rollout import difference, rollout
from rl.run import replay
from rl.run.files import plain
from rl.run.log import rollout_stats
from rl.tasks import make_env, make_tasks

pytest.importorskip("jinja2.sandbox")

# ChatML whose header opens a thought, and which drops the thoughts of replies, as DeepSeek-R1's template does.
THINKS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content.split('</think>')[-1].strip() if m.role == 'assistant' else m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
WORDS = ["algo=grpo", "grpo.group_size=3", "episodes=6", "textcraft.max_turns=3", "textcraft.prompt=short"]
WORDS += ["max_new_tokens=9", "reward.rule=shaped"]
THOUGHTFUL = [*WORDS, "history=template", "max_thinking_tokens=3"]


def written(messages: list[dict]) -> list[int]:
    """Return the ids of a conversation and a header, written without a template."""
    text = ""
    for message in messages:
        said = message["content"]
        said = said.split("</think>")[-1].strip() if message["role"] == "assistant" else said
        text += f"<|im_start|>{message['role']}\n{said}<|im_end|>\n"
    text += "<|im_start|>assistant\n<think>\n"
    return FastTokenizer.from_file(str(TINY / "tokenizer.json")).encode(text, add_special_tokens=False).ids


def naive_samples(tokenizer, task, episode, cfg) -> list[tuple[list[int], list[int], list[float]]]:
    """Return (context, reply, mask of the reply) of each turn; the environment plays the replies again."""
    env = make_env(cfg, task.env)
    messages, samples = env.reset(task.seed, task.split), []
    for turn in episode.turns:
        reply, mask = (x[turn.start : turn.stop] for x in (episode.ids_T, episode.action_mask_T))
        samples.append((written(messages), reply, mask))
        ended = reply[-1] in tokenizer.eos_ids
        said = "<think>\n" + tokenizer.decode(reply[:-1] if ended else reply)
        said = said if "</think>" in said else f"{said}</think>"
        step = env.step(said.split("</think>")[-1].lstrip("\n"))
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": step.observation}]
    return samples


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Return (model, tokenizer, cfg, tasks, episodes) of a checkpoint that thinks."""
    folder = tmp_path_factory.mktemp("thinks") / "model"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__", "model.safetensors"))
    (folder / "chat_template.jinja").write_text(THINKS)
    model, tokenizer, cfg = load_model("tiny").eval(), Tokenizer(folder, rewrites=True), parse(THOUGHTFUL)
    tasks = make_tasks(cfg, 0, 2, 3, "train", 0)
    episodes = rollout(model, tokenizer, tasks, cfg, 1.0, tqdm(disable=True), keep_hidden=True)
    return model, tokenizer, cfg, tasks, episodes


def test_each_turn_reads_what_the_template_renders(played):
    _, tokenizer, cfg, tasks, episodes = played
    assert sum(len(e.kept) for e in episodes) >= 6
    for task, e in zip(tasks, episodes, strict=True):
        ids, found = [], []
        for kept, start, stop in e.samples:
            ids = ids[:kept] + e.ids_T[start:stop]
            found.append(ids)
        assert found == [context + reply for context, reply, _ in naive_samples(tokenizer, task, e, cfg)]


def test_logprobs_and_gradient_match_the_samples_one_by_one(played):
    """Old log-probabilities are those of sampling, and each sample has the advantage of its episode. The means of an
    episode run over the tokens of all its samples."""
    model, tokenizer, cfg, tasks, episodes = played
    scores = torch.arange(6.0)  # so that no two advantages are equal
    for e, score in zip(episodes, scores.tolist(), strict=True):
        e.turns[-1].reward += score - e.score
    batch = grpo.advantages(make_batch(episodes), cfg.grpo)
    weight, naive, totals = model.lm_head.weight, [], {"token": 0.0, "sequence": 0.0, "turn": 0.0}
    with torch.enable_grad():
        weight.requires_grad_()
        new = forward(batch, model, 1.0)
        for number, (task, e) in enumerate(zip(tasks, episodes, strict=True)):
            advantage = scores[number] - scores[number // 3 * 3 :][:3].mean()
            for context, reply, mask in naive_samples(tokenizer, task, e, cfg):
                hidden = model(torch.tensor([context + reply]))[0, len(context) - 1 : -1]
                logprobs, _ = token_logprobs(hidden, weight, torch.tensor(reply))
                naive.append(logprobs[torch.tensor(mask) == 1])
                counts = {"token": batch.total_tokens, "sequence": 6 * sum(e.action_mask_T)}
                counts["turn"] = 6 * len(e.turns) * sum(mask)
                for kind, count in counts.items():
                    totals[kind] -= advantage * (naive[-1] - naive[-1].detach()).exp().sum() / count
        for kind, total in totals.items():
            loss, _ = grpo.loss(new, replace(cfg.grpo, aggregation=kind))
            found, expected = (torch.autograd.grad(x, weight, retain_graph=True)[0] for x in (loss, total))
            torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-4)
        weight.requires_grad_(False)
    assert torch.equal(new.logprobs_N.detach(), batch.old_logprobs_N)
    torch.testing.assert_close(torch.cat(naive).detach(), batch.old_logprobs_N, atol=2e-5, rtol=1e-5)


def test_pieces_of_a_batch_keep_the_samples(played):
    model, episodes = played[0], played[-1]
    batch = make_batch(episodes)
    assert len(list(micro_batches(batch, 300))) > 1
    assert torch.equal(policy_logprobs(batch, model, 1.0, 300), batch.old_logprobs_N)
    cut = select(batch, [4, 1])
    assert cut.episodes == [episodes[4], episodes[1]] and len(cut.episode_N) == sum(
        sum(e.action_mask_T) for e in cut.episodes
    )


def test_common_prefixes_are_computed_once(played):
    """A forward pass gets fewer rows than the samples have tokens, and no more than the episodes have ids."""
    model, episodes, rows = played[0], played[-1], []
    hook = model.register_forward_pre_hook(lambda _, args: rows.append(args[0].numel()))
    with torch.no_grad():
        forward(make_batch(episodes), model, 1.0)
    hook.remove()
    lengths = [kept + stop - start for e in episodes for kept, start, stop in e.samples]
    assert rows[0] <= sum(len(e.ids_T) for e in episodes) < sum(lengths)


def test_the_closing_tag_is_forced_and_not_learned(played):
    _, tokenizer, cfg, _, episodes = played
    forced = cut = 0
    for e in episodes:
        for turn in e.turns:
            mask, reply = e.action_mask_T[turn.start : turn.stop], e.ids_T[turn.start : turn.stop]
            assert sum(mask) <= cfg.max_new_tokens and sum(mask[: turn.thoughts]) <= cfg.max_thinking_tokens
            assert turn.stop_reason != "length" or sum(mask) == cfg.max_new_tokens
            cut += turn.stop_reason == "length"
            if 0 in mask:
                forced += 1
                assert mask[:3] == [1] * 3
                assert [i for i, m in zip(reply, mask, strict=True) if not m] == tokenizer.end_of_thought
                assert tokenizer.decode(reply[: turn.thoughts]).endswith("</think>")
    assert forced >= 10 and cut >= 1
    thoughts = sum(sum(e.action_mask_T[t.start : t.start + t.thoughts]) for e in episodes for t in e.turns)
    stats = rollout_stats(episodes)
    assert stats["thought_tokens"] == thoughts > 0
    assert stats["sampled_tokens"] == sum(sum(e.action_mask_T) for e in episodes) > thoughts


@pytest.mark.parametrize("room", [2, 5, 12, 18, 24])
def test_samples_are_never_longer_than_max_len(played, room):
    """room: ids behind the longest prompt. The closing tag is not forced where it leaves none for an answer."""
    model, tokenizer, cfg, tasks, episodes = played
    most = max(e.turns[0].start for e in episodes) + room
    for e in rollout(model, tokenizer, tasks, replace(cfg, max_len=most), 1.0, tqdm(disable=True)):
        assert all(kept + stop - start <= most for kept, start, stop in e.samples)
        assert not e.infrastructure_failed and e.turns[-1].stop == len(e.ids_T)


def test_a_critic_reads_the_states_before_the_sampled_tokens(played):
    """Those that sampling kept are those of a forward pass over the samples."""
    model, episodes = played[0], played[-1]
    critic = torch.nn.Sequential(torch.nn.Linear(192, 1), torch.nn.Flatten(0))
    kept, computed = (
        add_values(make_batch([replace(e, hidden=e.hidden * keep) for e in episodes]), model, critic, 400)
        for keep in (1, 0)
    )
    assert torch.equal(kept.old_values_N, computed.old_values_N) and kept.old_values_N.std() > 0


def test_a_critic_bootstraps_from_the_history_as_rendered(played):
    """An episode that the turn limit ends has the value of the state that the template renders next."""
    model, tokenizer, _, tasks, _ = played
    cfg = parse([*THOUGHTFUL[5:], "algo=ppo", "ppo.bootstrap=true", "textcraft.max_turns=2", "textcraft.prompt=short"])
    episodes = rollout(model, tokenizer, tasks[:3], cfg, 1.0, tqdm(disable=True))
    critic = torch.nn.Sequential(torch.nn.Linear(192, 1), torch.nn.Flatten(0))
    found = add_values(make_batch(episodes), model, critic, 10**6).last_values_B
    with torch.no_grad():
        last = [critic(model(torch.tensor([e.last_sample]))[0, -1:])[0] for e in episodes]
    assert all(len(e.kept) == len(e.turns) == 2 and e.truncated for e in episodes)
    torch.testing.assert_close(found, torch.stack(last), atol=1e-5, rtol=1e-5)


def test_a_reply_that_max_len_cuts_has_no_state_after_it(played):
    """The environment did not see it. Without its thoughts the history would fit again, and an empty message after it,
    which nobody wrote, would get a value."""
    model, tokenizer, _, tasks, before = played
    most = max(e.turns[0].start for e in before) + 60
    words = [*THOUGHTFUL[5:], "algo=ppo", "ppo.bootstrap=true", "textcraft.prompt=short", f"max_len={most}"]
    cfg = parse([*words, "max_new_tokens=200", "max_thinking_tokens=0"])
    episodes = rollout(model, tokenizer, tasks, cfg, 3.0, tqdm(disable=True))
    cut = [e for e in episodes if e.turns[-1].stop_reason == "context"]
    assert cut and all(e.turns[-1].stop == len(e.ids_T) for e in cut)


def test_the_report_tells_thoughts_and_forced_tags_apart(played):
    _, tokenizer, _, _, episodes = played
    advantages = [[float(n) for n in range(sum(e.action_mask_T))] for e in episodes]
    known = {place: look.Learned(a, a, a) for place, a in enumerate(advantages)}
    lines = look.epoch_lines(tokenizer, 1, episodes, known, 10**6).splitlines()
    rows, shown = json.loads(lines[0])["rows"], json.loads(lines[1])["shown"]
    for e, row, values in zip(episodes, rows, advantages, strict=True):
        for turn, found in zip(e.turns, shown[row[-1]]["turns"], strict=True):
            mask = e.action_mask_T[turn.start : turn.stop]
            thoughts, forced, start = [*found, 0, 0, 0][5:8]
            assert thoughts == turn.thoughts and mask == [1] * start + [0] * forced + [1] * (len(mask) - start - forced)
            assert found[3] == values[sum(e.action_mask_T[: turn.start])]
    assert look.learned_before(lines, episodes)[0].advantages == advantages[0]


def test_saved_episodes_are_read_back(played):
    episodes = [replace(e, hidden=[]) for e in played[-1]]
    lines = [json.loads(json.dumps(plain(e), default=plain)) for e in episodes]
    assert [replay._episode(line, 2000) for line in lines] == episodes
    line = next(line for line in lines if line["kept"])
    line["kept"][0] = 10**6
    with pytest.raises(ValueError, match="begins with 1000000 ids"):
        replay._episode(line, 2000)


def test_an_appended_history_saves_what_it_did(played):
    model = played[0]
    cfg = parse(WORDS)
    tasks = make_tasks(cfg, 0, 1, 3, "train", 0)
    for e in rollout(model, Tokenizer(TINY), tasks, cfg, 1.0, tqdm(disable=True)):
        assert e.samples == [(0, 0, len(e.ids_T))]
        assert "kept" not in plain(e) and all("thoughts" not in plain(turn) for turn in e.turns)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_rewound_slot_samples_as_a_new_one(ahead):
    """ahead: as on CUDA, where steps are enqueued before the host has read the last ones."""
    model, ids = load_model("tiny").eval(), list(range(100, 140))
    engine = Engine(model, 4, 128, graph=ahead)
    slot = engine.open((1, 1))
    engine.feed(slot, ids, limit=3)
    (first,) = engine.run(8, 1.0, frozenset())
    assert len(first.ids) == 3
    child = engine.open((2, 2), parent=slot)  # it waits for keys that the rewound slot is about to lose
    engine.feed(child, [], limit=3)
    engine.rewind(slot, 25)
    engine.feed(slot, ids[5:15])
    turns = {turn.slot: turn for turn in engine.run(8, 1.0, frozenset())}
    alone = Engine(model, 1, 128, graph=ahead)
    other = alone.open((2, 2))
    alone.feed(other, ids + first.ids, limit=3)
    alone._slots[other].turn = 0  # the streams of the child's turn
    (child_alone,) = alone.run(8, 1.0, frozenset())
    assert (turns[child].ids, turns[child].logprobs) == (child_alone.ids, child_alone.logprobs)
    alone.close(other)
    other = alone.open((1, 1))
    alone.feed(other, ids[:25] + ids[5:15])
    alone._slots[other].turn = 0
    (again,) = alone.run(8, 1.0, frozenset())
    assert (turns[slot].ids, turns[slot].logprobs) == (again.ids, again.logprobs)


@pytest.mark.all_only
def test_qwen3_reads_its_history_without_thoughts(tmp_path):
    """The published template, and a variant of it that only the template itself can write."""
    template, ids = reference("templates", "qwen3.jinja").read_text(), {}
    shutil.copy(reference("qwen", "tokenizer.json"), tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    for name, source in (
        ("published", template),
        ("variant", template.replace("+ '\\n' + content", "+ ':\\n' + content")),
    ):
        (tmp_path / "chat_template.jinja").write_text(source)
        tokenizer = Tokenizer(tmp_path, rewrites=True)
        talk = [{"role": "user", "content": "2 + 2?"}]
        prompt = tokenizer.prompt(talk)
        reply = tokenizer.encode("<think>\nTwo") + tokenizer.end_of_thought + tokenizer.encode("4<|im_end|>")
        talk += [tokenizer.message(reply), {"role": "user", "content": "3 + 3?"}]
        after = tokenizer.prompt(talk)
        kept, new = difference(prompt + reply, after)
        ids[name] = tokenizer.show(after)
        assert 0 < kept <= len(prompt) and prompt[:kept] + new == after and "Two" not in ids[name]
    assert ids["variant"].replace(":\n", "\n") == ids["published"]


ROW = [
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "<think>\nSmall.\n</think>\n\n3"},
    {"role": "user", "content": "No."},
    {"role": "assistant", "content": "A guess.", "loss": False},
    {"role": "user", "content": "Again."},
    {"role": "assistant", "content": "<think>\nTwo more.\n</think>\n\n4"},
]


def test_learned_replies_of_a_row_are_samples_of_their_own(played, tmp_path):
    """Each behind what the template renders of the messages before it, its thoughts learned, earlier ones gone."""
    model, tokenizer, *_ = played
    (tmp_path / "rows.jsonl").write_text(json.dumps({"messages": ROW}) + "\n")
    row = data.read_rows(tmp_path / "rows.jsonl", "", "")[0]
    episode, cut = data.to_samples(tokenizer, row, 0, 1000)
    encode = FastTokenizer.from_file(str(TINY / "tokenizer.json")).encode
    wanted = []
    for place in (1, 5):
        said = ROW[place]["content"].removeprefix("<think>\n") + "<|im_end|>"
        wanted.append((written(ROW[:place]), encode(said, add_special_tokens=False).ids))
    ids, found = [], []
    for kept, start, stop in episode.samples:
        ids = ids[:kept] + episode.ids_T[start:stop]
        found.append(ids)
    assert found == [context + reply for context, reply in wanted] and not cut
    assert [episode.ids_T[turn.start : turn.stop] for turn in episode.turns] == [reply for _, reply in wanted]
    assert sum(episode.action_mask_T) == sum(len(reply) for _, reply in wanted)
    naive = 0.0
    for context, reply in wanted:
        hidden = model(torch.tensor([context + reply]))[0, len(context) - 1 : -1]
        naive -= token_logprobs(hidden, model.lm_head.weight, torch.tensor(reply))[0].sum().item()
    cfg = replace(parse(["algo=sft"]), micro_tokens=1000)
    assert data.held_out_loss(model, [episode], cfg)["eval_loss"] == pytest.approx(naive / sum(episode.action_mask_T))
    shorter, cut = data.to_samples(tokenizer, row, 0, len(found[0]))
    assert cut and len(shorter.turns) == 1 and shorter.ids_T == found[0]
    assert data.to_samples(tokenizer, row, 0, len(found[0]) - 1)[0].turns == []


def test_sft_learns_rows_of_a_template_that_rewrites_replies(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    folder, keeps_the_last = tmp_path / "model", importlib.import_module("thoughts").TEMPLATE
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "chat_template.jinja").write_text(keeps_the_last)
    (tmp_path / "rows.jsonl").write_text((json.dumps({"messages": ROW}) + "\n") * 4)
    words = [
        "train.py",
        "algo=sft",
        f"model={folder}",
        f"data={tmp_path}/rows.jsonl",
        f"out={tmp_path}/run",
        "epochs=8",
    ]
    words += ["lr=3e-3", "batch_size=4", "max_len=200", "threads=1", "ranks=1", "device=cpu", "products=plain"]
    status, _, said = run_program(*words, "history=template")
    assert status == 0, said
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if "loss" in record]
    assert len(losses) == 8 and losses[-1] < losses[0] / 2
    demos = data.load(parse([*words[1:], "history=template"]), Tokenizer(folder, rewrites=True))
    assert all(len(episode.samples) == 2 for episode in demos.train), "a sample for each reply"
    status, _, said = run_program(*words, f"out={tmp_path}/other")
    assert status and "train.py and eval.py render each turn anew with history=template" in said


def test_the_example_teaches_a_model_that_thinks(tmp_path, monkeypatch):
    """Its rows fit its template: thoughts are learned, and earlier replies have none."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    thoughts = importlib.import_module("thoughts")
    shutil.copytree(TINY, folder := tmp_path / "model", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "chat_template.jinja").write_text(thoughts.TEMPLATE)
    tokenizer, rows = Tokenizer(folder, rewrites=True), thoughts.rows(1)
    for turn, row in enumerate(rows):
        *before, last = row["messages"]
        assert [message.get("loss") for message in before if message["role"] == "assistant"] == [False] * turn
        messages = [{"loss": message["role"] == "assistant", **message} for message in row["messages"]]
        episode, _ = data.to_samples(tokenizer, messages, 0, 1000)
        learned = episode.ids_T[episode.turns[0].start : episode.turns[0].stop]
        assert len(episode.turns) == 1 and tokenizer.decode(learned) == last["content"].removeprefix("<think>\n")
        assert 0 < tokenizer.thoughts(learned) < len(learned)
    assert len(rows) > 1
