"""models/tiny: exercises of reading, what is learned of a conversation, and a run that is interrupted."""

import json
from itertools import product
from random import Random

import pytest
import torch
from conftest import run_program

from models import load_model, load_tokenizer
from models.config import parse_config
from models.decoder import CausalLM
from models.tiny import make_tiny
from models.tiny.exercises import SIGNS, at_distance, exercise, share_right, styled, table
from models.tiny.make_tiny import CONFIG, IGNORED, encode, make_careless, teach_copying
from rl.config.arguments import ArgumentError

TALK = [
    {"role": "user", "content": "Goal: craft 12 oak doors.\n"},
    {"role": "assistant", "content": "OK", "loss": False},  # a part of the prompt
    {"role": "user", "content": "begin"},
    {"role": "assistant", "content": "get 3 oak log"},
]


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    """Write a folder of demonstrations."""
    folder = tmp_path_factory.mktemp("demos")
    rows = [[{"role": "user", "content": f"say {n} oak"}, {"role": "assistant", "content": f"{n}"}] for n in range(40)]
    (folder / "a.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    return folder


def make(demos, out, monkeypatch, **keys):
    for key, value in {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}.items():
        monkeypatch.setitem(make_tiny.CONFIG, key, value)
    make_tiny.main(
        make_tiny.Keys(str(demos), str(out), 300, batch_tokens=300, threads=1, bf16=False, copying=0, **keys)
    )
    return out


def test_the_answers_of_an_exercise_follow_from_its_table():
    rng, kinds = Random(0), set()
    for _ in range(200):
        made = styled(rng, table(rng, rng.randint(3, 12)))
        for kind, key in product(SIGNS, made.pairs):
            if asked := made.ask(kind, key):
                kinds.add(kind)
                word, answer = (
                    text.removeprefix(part)
                    for text, part in zip(asked, (SIGNS[kind] + made.style.gap, made.style.answer), strict=True)
                )
                lines = [f"{k}{made.separator}{v}" for k, v in made.pairs.items()]
                two = [f"{word}{made.separator}{k}" for k in made.pairs if f"{k}{made.separator}{answer}" in lines]
                expected = {
                    "copy": f"{word}{made.separator}{answer}",
                    "inverse": f"{answer}{made.separator}{word}",
                    "line": answer,
                }
                assert set(two) & set(lines) if kind == "two steps" else expected[kind] in lines
    assert kinds == set(SIGNS)


def test_an_exercise_shows_each_line_once_and_asks_what_it_was_told():
    first, *others = exercise(Random(3), 8, 5)
    table_text, ask = first["content"].rsplit("\n\n", 1)
    assert len(set(table_text.split("\n"))) == len(table_text.split("\n")) <= 8 and ask
    assert [m["role"] for m in others] == ["assistant", *["user", "assistant"] * 4]


@pytest.mark.parametrize("kind", SIGNS)
def test_an_answer_stands_at_the_distance(kind):
    tokenizer = load_tokenizer("tiny")
    prompt, answer = at_distance(Random(1), kind, 120, tokenizer)
    # Without the last token, its end: the answer is one of the first three lines, in the prompt's first tokens.
    assert 120 < len(prompt) < 200 and tokenizer.answer(answer).removeprefix("= ") in tokenizer.decode(
        prompt[: len(prompt) - 80]
    )


def test_a_lesson_is_what_a_run_samples_and_nothing_else(demos, tmp_path, monkeypatch):
    folder = make(demos, tmp_path / "model", monkeypatch, steps=0)
    tokenizer = load_tokenizer(folder)
    ids, targets = encode(make_tiny.Tokenizer.from_file(str(folder / "tokenizer.json")), TALK)
    prompt = tokenizer.prompt([{k: m[k] for k in ("role", "content")} for m in TALK[:3]])
    reply = tokenizer.reply("get 3 oak log")
    assert ids[: len(prompt + reply)] == prompt + reply
    assert [n for n, target in enumerate(targets) if target != IGNORED] == [
        len(prompt) - 1 + n for n in range(len(reply))
    ]
    assert targets[len(prompt) - 1 :][: len(reply)] == reply


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"question": "q"}', r"a\.jsonl, line 2: a row must be"),
        ('{"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}]}', "line 2: a row must be"),
        ('{"messages": [{"role": "bot", "content": "q"}]}', "line 2: a row must be"),
        ('{"messages": [{"role": "assistant", "content": "", "tool_calls": []}]}', "line 2: a row must be"),
        ("{", r"a\.jsonl, line 2: not valid JSON"),
    ],
)
def test_a_row_that_is_no_conversation_is_one_line(tmp_path, row, said):
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": TALK}) + f"\n{row}\n")
    with pytest.raises(ValueError, match=said):
        make_tiny.read_conversations(tmp_path / "a.jsonl")


def test_careless_lessons_have_tokens_of_the_context():
    ids, targets = list(range(100, 140)), [IGNORED] * 20 + list(range(20))
    assert make_careless(Random(0), (ids, targets), 0.0) == (ids, targets)
    counts, rng = [], Random(0)
    for _ in range(500):
        same, changed = make_careless(rng, (ids, targets), 2.0)
        slips = [n for n, target in enumerate(targets) if changed[n] != target]
        assert same == ids and all(n >= 20 and changed[n] in ids[: n + 1] for n in slips)
        counts.append(len(slips))
    assert 1.8 < sum(counts) / len(counts) < 2.2


def test_an_interrupted_run_goes_on(demos, tmp_path, monkeypatch):
    keys, batch, parts = {"steps": 5, "save_every": 2}, make_tiny.batch, tmp_path / "parts"
    whole = load_model(str(make(demos, tmp_path / "whole", monkeypatch, **keys)))
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(make_tiny, "batch", lambda step, *rest: batch(step, *rest) if step < 3 else _interrupt())
        make(demos, parts, monkeypatch, **keys)
    resumed = load_model(str(make(demos, parts, monkeypatch, **keys)))
    for (name, p), q in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q), name
    with pytest.raises(ArgumentError, match="is of a run with other settings; remove it, or choose another out="):
        make(demos, parts, monkeypatch, **keys, seed=1)


def _interrupt():
    raise KeyboardInterrupt


def test_the_measure_tells_a_model_that_copies_from_random_weights(demos, tmp_path, monkeypatch):
    assert share_right(load_model("tiny"), load_tokenizer("tiny"), "copy", n=20, distance=30) > 0.8
    folder = make(demos, tmp_path / "model", monkeypatch, steps=0)
    assert share_right(load_model(str(folder)), load_tokenizer(folder), "copy", n=20, distance=30) == 0


@pytest.mark.full
def test_copying_generalises_beyond_its_training_lines(demos):
    torch.manual_seed(0)
    small = {"hidden_size": 96, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 24, "vocab_size": 40}
    model = CausalLM(parse_config({**CONFIG, **small}))
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.05)
    ids_V = torch.arange(4, 28)
    assert teach_copying(model, ids_V, make_tiny.Keys(str(demos), copying=200)) < 0.5  # guessing has log 24 = 3.2
    word_BT, between_BT = (torch.rand(64, 24).argsort(1)[:, :n] for n in (8, 9))
    line_BT = ids_V[torch.cat([word_BT, between_BT, word_BT], 1)]
    with torch.no_grad():
        hidden_BTD = model(line_BT)[:, -7:-1]
    right_BT = (hidden_BTD @ model.lm_head.weight.T).argmax(-1) == line_BT[:, -6:]
    assert right_BT.float().mean() > 0.7


def test_a_measure_of_no_folder_is_one_line(tmp_path):
    status, _, err = run_program("models/tiny/measure.py", str(tmp_path / "none"))
    assert status == 1 and "no such folder" in err and len(err.splitlines()) == 1
