"""Demonstrations from files: which tokens are learned, which rows are held out, where rows are cut."""

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import cases
from conftest import reference

import train
from envs.rows import row_places
from models import load_model, load_tokenizer
from rl import data
from rl.batch import forward, make_batch
from rl.config.words import parse
from rl.data import held_out_loss

CASES = cases("data")

PAIR = {"prompt": "How many planks?", "answer": "Four."}
CHAT = {
    "messages": [
        {"role": "system", "content": "You craft."},
        {"role": "user", "content": "get 1 log"},
        {"role": "assistant", "content": "Got 1 log"},
        {"role": "user", "content": "and <|im_end|> planks"},
        {"role": "assistant", "content": "craft 4 planks using 1 log"},
    ]
}
AGENTGYM = {
    "item_id": "textcraft_3",
    "conversations": [
        {"from": "human", "loss": None, "value": "Instructions"},
        {"from": "gpt", "loss": False, "value": "OK."},
        {"from": "human", "loss": None, "value": "Goal: planks"},
        {"from": "gpt", "loss": True, "value": "Action: get 1 log"},
    ],
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("tiny")


def written(tmp_path, *rows) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def loaded(tokenizer, path: str, *words: str) -> data.Demonstrations:
    return data.load(parse(["algo=sft", f"data={path}", *words]), tokenizer)


def learned(tokenizer, episode) -> list[str]:
    return [tokenizer.show(episode.ids_T[turn.start : turn.stop]) for turn in episode.turns]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (PAIR, ["Four.<|im_end|>"]),
        (CHAT, ["Got 1 log<|im_end|>", "craft 4 planks using 1 log<|im_end|>"]),
        (AGENTGYM, ["Action: get 1 log<|im_end|>"]),
    ],
    ids=["pair", "messages", "agentgym"],
)
def test_only_the_assistants_messages_are_learned(tokenizer, tmp_path, row, said):
    (episode,) = loaded(tokenizer, written(tmp_path, row)).train
    assert learned(tokenizer, episode) == said
    mask = [0] * len(episode.ids_T)
    for turn in episode.turns:
        mask[turn.start : turn.stop] = [1] * (turn.stop - turn.start)
    assert episode.action_mask_T == mask and len(episode.logprobs_T) == len(mask)


def test_conversation_has_the_ids_of_a_rollout(tokenizer, tmp_path):
    (episode,) = loaded(tokenizer, written(tmp_path, CHAT)).train
    *before, last = CHAT["messages"]
    whole = tokenizer.prompt([*before]) + tokenizer.reply(last["content"])
    assert episode.ids_T == whole
    assert sum(i in tokenizer.eos_ids for i in episode.ids_T) == 5, "a control string in a text is that text"


def test_columns_have_names(tokenizer, tmp_path):
    path = written(tmp_path, {"question": "2+2?", "solution": "4"})
    (episode,) = loaded(tokenizer, path, "sft.prompt_column=question", "sft.answer_column=solution").train
    assert learned(tokenizer, episode) == ["4<|im_end|>"]


def test_a_tenth_of_distinct_rows_is_held_out(tokenizer, tmp_path):
    rows = [{"prompt": f"p{i % 100}", "answer": f"a{i % 100}"} for i in range(130)]
    found = loaded(tokenizer, written(tmp_path, *rows))
    texts = {name: {tuple(e.ids_T) for e in getattr(found, name)} for name in ("train", "held_out")}
    assert len(texts["train"]) == 90 and len(texts["held_out"]) == 10 and not texts["train"] & texts["held_out"]
    assert len(found.train) + len(found.held_out) == 130
    again = loaded(tokenizer, written(tmp_path, *reversed(rows)))
    assert {tuple(e.ids_T) for e in again.held_out} == texts["held_out"], "whatever their order"


def test_held_out_rows_share_no_prompt_with_learned_ones(tokenizer, tmp_path):
    """Several answers to one prompt are held out together, whatever the white space of the prompt."""
    rows = [{"prompt": f"p{i}{' ' * (j % 2)}", "answer": f"a{j}"} for i in range(40) for j in range(5)]
    found = loaded(tokenizer, written(tmp_path, *rows))
    prompts = [
        {tokenizer.show(e.ids_T[: e.turns[0].start]).replace(" ", "") for e in episodes}
        for episodes in (found.train, found.held_out)
    ]
    assert not prompts[0] & prompts[1] and len(prompts[1]) == 4 and len(found.held_out) == 20


@pytest.mark.parametrize("greeting", [[], [{"role": "system", "content": "Be brief."}]])
def test_prompts_behind_a_greeting_are_held_out_too(tokenizer, tmp_path, greeting):
    """ShareGPT's conversations may begin with the assistant."""
    hello = {"role": "assistant", "content": "How can I help?"}
    rows = [
        {
            "messages": [
                *greeting,
                hello,
                {"role": "user", "content": f"p{i}"},
                {"role": "assistant", "content": f"a{j}"},
            ]
        }
        for i in range(40)
        for j in range(3)
    ]
    found = loaded(tokenizer, written(tmp_path, *rows))
    prompts = [
        {tokenizer.show(e.ids_T[: e.turns[-1].start]) for e in episodes} for episodes in (found.train, found.held_out)
    ]
    assert not prompts[0] & prompts[1] and len(prompts[1]) == 4


def test_rows_that_begin_with_the_same_rules_have_prompts_of_their_own(tokenizer, tmp_path, capsys):
    """As the experts' episodes of AgentGym's environments do: the rules, an "OK." that is not learned, the task."""
    rules = [{"role": "user", "content": "Rules."}, {"role": "assistant", "content": "OK.", "loss": False}]
    tasks = [[{"role": "user", "content": f"p{i}"}, {"role": "assistant", "content": "a"}] for i in range(40)]
    found = loaded(tokenizer, written(tmp_path, *({"messages": [*rules, *task]} for task in tasks)))
    assert len(found.train) == 36 and len(found.held_out) == 4
    capsys.readouterr()
    loaded(tokenizer, written(tmp_path, *[{"messages": [*rules, *tasks[0]]}] * 40))
    assert "0 held out (there are fewer than ten distinct prompts)" in capsys.readouterr().out


def test_a_named_column_that_no_row_has_is_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"sft.prompt_column=instruction, and no row has it; there is: messages"):
        loaded(tokenizer, written(tmp_path, CHAT), "sft.prompt_column=instruction")


@pytest.mark.parametrize("content", ["", " ", []])
def test_an_empty_reply_is_not_learned(tokenizer, tmp_path, content):
    row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]}
    with pytest.raises(ValueError, match="empty"):
        loaded(tokenizer, written(tmp_path, row))


def test_all_tokens_learns_what_follows_the_last_reply(tokenizer, tmp_path):
    said = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    (episode,) = loaded(tokenizer, written(tmp_path, {"messages": said}), "sft.all_tokens=true").train
    assert (
        episode.ids_T == tokenizer.prompt(said, header=False) and sum(episode.action_mask_T) == len(episode.ids_T) - 1
    )
    (episode,) = loaded(tokenizer, written(tmp_path, {"messages": said[:2]}), "sft.all_tokens=true").train
    assert tokenizer.show(episode.ids_T).endswith("b<|im_end|>")


@pytest.mark.parametrize("function", [{"name": ""}, {"name": "f", "arguments": '{"a": NaN}'}])
def test_calls_that_no_reader_takes_are_refused(tokenizer, tmp_path, function):
    said = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    with pytest.raises(ValueError, match=r"a tool call (needs a name|has arguments that JSON cannot write)"):
        loaded(tokenizer, written(tmp_path, {"messages": [{"role": "user", "content": "Hi"}, said]}))


def test_conversations_beyond_the_models_positions_are_refused(tmp_path, capsys):
    path = written(tmp_path, {"prompt": "word " * 5000, "answer": "a"})
    words = ["algo=sft", f"data={path}", "max_len=100000", "epochs=1", "eval_episodes=0", "threads=1", "ranks=1"]
    with pytest.raises(ValueError, match=r"tokens, more than the model's max_position_embeddings; max_len=4096 cuts"):
        train.main(parse([*words, f"out={tmp_path}/run"]))


def test_all_tokens_does_not_learn_a_message_that_is_marked(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="all_tokens=true learns every token"):
        loaded(tokenizer, written(tmp_path, AGENTGYM), "sft.all_tokens=true")


@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_has_the_rows_of_its_lines(tokenizer, tmp_path, indent):
    rows = [PAIR, CHAT, AGENTGYM]
    expected = loaded(tokenizer, written(tmp_path, *rows)).train
    path = tmp_path / "rows.json"
    path.write_text("\ufeff" + json.dumps(rows, indent=indent))
    assert [e.ids_T for e in loaded(tokenizer, str(path)).train] == [e.ids_T for e in expected]
    path.write_text(json.dumps(PAIR, indent=2))
    assert [e.ids_T for e in loaded(tokenizer, str(path)).train] == [expected[0].ids_T]
    path.write_text(json.dumps([*rows, {"prompt": "p"}], indent=indent))
    with pytest.raises(ValueError, match="row 4: neither messages"):
        loaded(tokenizer, str(path))
    path.write_text(json.dumps(rows, indent=indent)[:-2])
    with pytest.raises(ValueError, match=r"rows.json: not valid JSON"):
        loaded(tokenizer, str(path))


def test_columns_that_are_not_read_are_named(tokenizer, tmp_path, capsys):
    loaded(tokenizer, written(tmp_path, {**PAIR, "topic": "wood", "source": "x"}, {**PAIR, "topic": "stone"}))
    assert "are not read: 'topic' (2 rows), 'source' (1 rows)" in capsys.readouterr().out
    both = {**PAIR, **CHAT}
    (episode,) = loaded(tokenizer, written(tmp_path, both)).train
    assert learned(tokenizer, episode) == ["Four.<|im_end|>"]
    assert "are not read: 'messages' (1 rows)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "mark"),
    [
        ({"prompt": "<|im_start|>user\nq<|im_end|>\n", "answer": "a"}, "<|im_start|>"),
        ({"prompt": "[INST] q", "answer": "a"}, "[INST]"),
        ({"prompt": "q", "answer": "a<|endoftext|>"}, "<|endoftext|>"),  # only the vocabulary has it
        ({"prompt": "a < b, [i], <b>", "answer": "<think>\nyes\n</think>\n\na"}, None),
    ],
)
def test_marks_of_a_template_in_a_text_are_printed(tokenizer, tmp_path, capsys, row, mark):
    loaded(tokenizer, written(tmp_path, row, PAIR))
    said = f"data: 1 rows contain {mark} as text, which is read as letters: give the conversation without its template"
    out = capsys.readouterr().out
    assert said in out if mark else "as text" not in out


def test_tags_of_the_vocabulary_are_no_marks_of_a_template(capsys):
    vocabulary = SimpleNamespace(control_ids=[0, 1], show=lambda ids: ("<b>", "[gMASK]")[ids[0]])
    data.say_marks([[{"content": "<b>q</b>"}]], vocabulary)
    assert capsys.readouterr().out == ""
    data.say_marks([[{"content": "<b>q"}, {"content": "[gMASK]"}]], vocabulary)
    assert "1 rows contain [gMASK] as text" in capsys.readouterr().out


def test_a_prompt_is_not_its_own_answer(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"sft\.answer_column are both 'answer'"):
        loaded(tokenizer, written(tmp_path, PAIR), "sft.prompt_column=answer")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b"\x1f\x8b\x08", "is compressed with gzip: gunzip it"),
        (
            "a.jsonl",
            b"version https://git-lfs.github.com/spec/v1\n",
            "is a Git LFS pointer, not the file: git lfs pull",
        ),
        ("a.csv", b"a,b\n", "is CSV: the forms of rows are JSON Lines, one JSON array, and Parquet"),
        (".", b"", "is a folder"),
        ("pipe", b"", "is a stream"),
        ("rows.jsonl,rows.jsonl", b"", "names several files"),
        ("openai/gsm8k", b"", "hf download openai/gsm8k --repo-type dataset"),
        ("openai/gsm8k.jsonl", b"", "no file 'openai/gsm8k.jsonl'"),
        ("row.jsonl", b"", "did you mean 'rows.jsonl'?"),
    ],
)
def test_what_is_no_file_of_rows_is_named(tmp_path, monkeypatch, name, content, said):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    written(tmp_path, PAIR)
    if content:
        Path(name).write_bytes(content)
    for read in (lambda: data.read_rows(Path(name), "prompt", "answer"), lambda: row_places(name, str)):
        with pytest.raises(ValueError) as caught:
            read()
        assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_call_without_a_template_for_it_is_refused(tokenizer, tmp_path):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    row = {"messages": [{"role": "user", "content": "How warm?"}, said]}
    with pytest.raises(ValueError, match=r"rows.jsonl, conversation 1: .* the chat template leaves out tool_calls"):
        loaded(tokenizer, written(tmp_path, row))


def test_max_samples_takes_the_first_rows(tokenizer, tmp_path):
    path = written(tmp_path, *({"prompt": f"p{i}", "answer": f"a{i}"} for i in range(8)))
    found = loaded(tokenizer, path, "max_samples=3")
    assert [learned(tokenizer, e) for e in found.train] == [[f"a{i}<|im_end|>"] for i in range(3)]


def test_turns_cut_by_max_len_are_counted(tokenizer, tmp_path):
    long = {"prompt": "p " * 5, "answer": "word " * 50}
    path = written(tmp_path, {"prompt": "p", "answer": "a"}, long, {"prompt": "p " * 60, "answer": "a"})
    found = loaded(tokenizer, path, "max_len=40")
    assert (len(found.train), found.cut, found.empty) == (2, 2, 1)
    assert len(found.train[1].ids_T) == 40 and found.train[1].turns[0].stop == 40
    assert found.train[1].turns[0].stop_reason == "context" and found.train[0].turns[0].stop_reason == "stop"


def test_a_file_of_which_most_rows_are_left_out_is_refused(tokenizer, tmp_path):
    long = {"prompt": "p " * 60, "answer": "a"}
    with pytest.raises(ValueError, match="3 of 4 conversations have nothing to learn within max_len=40"):
        loaded(tokenizer, written(tmp_path, PAIR, long, long, long), "max_len=40")


def test_held_out_loss_is_the_mean_over_tokens(tokenizer, tmp_path):
    model, cfg = load_model("tiny"), parse(["algo=sft", "micro_tokens=16", "temperature=0.5"])
    episodes = loaded(tokenizer, written(tmp_path, PAIR, CHAT)).train
    result = held_out_loss(model, episodes, cfg)
    with torch.no_grad():
        logprobs = torch.cat([forward(make_batch([e]), model, 1.0).logprobs_N for e in episodes])
    assert result["eval_tokens"] == len(logprobs)
    assert result["eval_loss"] == pytest.approx(-logprobs.mean().item(), rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(result["eval_loss"]), rel=1e-9)


@pytest.mark.parametrize(("row", "message"), CASES["bad rows"])
def test_a_bad_row_is_one_clear_line(tokenizer, tmp_path, row, message):
    with pytest.raises(ValueError) as caught:
        loaded(tokenizer, written(tmp_path, PAIR, row))
    assert message in str(caught.value) and "rows.jsonl" in str(caught.value) and "\n" not in str(caught.value)


def test_lines_end_at_newlines_only(tokenizer, tmp_path):
    """Texts may contain other characters that Python takes for line ends."""
    row = {"prompt": "a\u2028b\u0085c", "answer": "e\u2029f"}
    (tmp_path / "rows.jsonl").write_bytes(json.dumps(row, ensure_ascii=False).encode() + b"\r\n")
    (tmp_path / "rows.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "rows.jsonl").read_bytes())
    (episode,) = loaded(tokenizer, str(tmp_path / "rows.jsonl")).train
    assert learned(tokenizer, episode) == ["e\u2029f<|im_end|>"]
    (tmp_path / "rows.jsonl").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ValueError, match=r"rows.jsonl, line 1: not UTF-8"):
        loaded(tokenizer, str(tmp_path / "rows.jsonl"))


def test_empty_file_is_one_clear_line(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="nothing to learn from in 0 rows"):
        loaded(tokenizer, written(tmp_path, "", " "))
    with pytest.raises(ValueError, match="nothing to learn from in 1 rows, 1 cut by max_len"):
        loaded(tokenizer, written(tmp_path, PAIR), "max_len=3")


def test_gsm8k_as_it_is_published(tokenizer):
    path = reference("gsm8k", "test.jsonl")
    found = loaded(tokenizer, str(path), "sft.prompt_column=question", "max_samples=200", "max_len=768")
    assert len(found.train) == 180 and len(found.held_out) == 20
    assert all("####" in learned(tokenizer, e)[0] for e in found.train[:20] if e.turns[0].stop_reason == "stop")
