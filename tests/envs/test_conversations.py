"""A stranger's row is read whole: each key is honoured, refused by name, or reported as unread, never dropped."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.conversations import FLAGS, HARMLESS, MEANINGFUL, UNLEARNED, conversation, message

ASKED, SAID = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
READ_CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
OFF, ON = (False, 0, 0.0, "false", "False", "no", "0"), (True, 1, 1.0, "true", "yes", "1")


def read(row, prompt="prompt", answer="answer"):
    return conversation(row, prompt, answer)[0]


@pytest.mark.parametrize("key", FLAGS)
def test_every_spelling_of_a_flag_excludes_a_message(key):
    for value in OFF:
        assert read({"messages": [ASKED, SAID | {key: value}]})[1]["loss"] is False
    for value in ON:
        assert read({"messages": [ASKED, SAID | {key: value}]})[1]["loss"] is True


@pytest.mark.parametrize("key", UNLEARNED)
def test_flags_that_exclude_are_read_the_other_way_round(key):
    assert read({"messages": [ASKED, SAID | {key: True}]})[1]["loss"] is False
    assert read({"messages": [ASKED, SAID | {key: 0}]})[1]["loss"] is True


@pytest.mark.parametrize("value", [0.5, 2, -1, "maybe", "", [], [1], {}, float("nan")])
def test_a_flag_that_is_no_yes_or_no_is_refused(value):
    with pytest.raises(ValueError, match="weight must be true or false"):
        message(SAID | {"weight": value})


def test_flags_of_a_row_are_those_of_its_messages():
    row = {"system": "Be brief.", "messages": [ASKED, SAID, ASKED, SAID], "loss_mask": [0, 0, 0, 1]}
    assert [one.get("loss") for one in read(row)] == [None, None, False, None, True]
    with pytest.raises(ValueError, match="3 entries for 4 messages"):
        read({**row, "loss_mask": [0, 0, 1]})
    with pytest.raises(ValueError, match="only the assistant's are"):
        read({**row, "loss_mask": [1, 0, 0, 1]})
    with pytest.raises(ValueError, match="otherwise than the flag"):
        read({"messages": [ASKED, SAID | {"loss": True}], "loss_mask": [0, 0]})
    with pytest.raises(ValueError, match="weight must be"):
        read({"messages": [ASKED, SAID], "weight": 0.5})
    with pytest.raises(ValueError, match="train=False of a whole row"):
        read({"messages": [ASKED, SAID], "train": False})


def test_contradicting_flags_are_refused():
    with pytest.raises(ValueError, match="contradict"):
        message(SAID | {"weight": 1, "loss": False})
    with pytest.raises(ValueError, match="only the assistant's are"):
        message(ASKED | {"train": True})
    assert message(ASKED | {"train": False}) == ASKED


@pytest.mark.parametrize("content", ["", None, "Let me look."])
def test_calls_of_tools_are_read_with_their_arguments(content):
    said = message({"role": "assistant", "content": content, "tool_calls": [CALL]})
    assert said == {"role": "assistant", "content": content or "", "tool_calls": [READ_CALL]}
    legacy = message({"role": "assistant", "content": content, "function_call": CALL["function"]})
    assert legacy == said
    bare = message(
        {"role": "assistant", "content": content, "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]}
    )
    assert bare == said


@pytest.mark.parametrize("calls", ["[]", 1, [1], [{}], [{"function": "f"}], [{"name": "f", "arguments": "no json"}]])
def test_a_call_that_cannot_be_read_is_refused(calls):
    with pytest.raises(ValueError, match="tool"):
        message({"role": "assistant", "content": "x", "tool_calls": calls})


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)])
def test_declared_tools_stand_in_the_first_message(tools):
    assert read({"messages": [ASKED, SAID], "tools": tools})[0] == ASKED | {"tools": TOOLS}


def test_thoughts_beside_a_content_are_put_before_it():
    for key in ("reasoning_content", "reasoning", "thinking"):
        assert message(SAID | {key: "2+2"})["content"] == "<think>\n2+2\n</think>\n\n4"
    with pytest.raises(ValueError, match="twice"):
        message({"role": "assistant", "content": "<think>a</think>4", "thinking": "b"})


def test_the_rows_own_system_prompt_comes_first():
    for key in ("system", "system_prompt"):
        row = {
            key: "In French.",
            "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Salut"}],
        }
        assert [one["content"] for one in read(row)] == ["In French.", "Hi", "Salut"]
        assert [one["content"] for one in read({key: "In hex.", "question": "10?"}, "question", "")] == [
            "In hex.",
            "10?",
        ]
    system = {"role": "system", "content": "In French."}
    assert read({"system": "In French.", "messages": [system, ASKED, SAID]}) == [system, ASKED, SAID]
    with pytest.raises(ValueError, match="differ"):
        read({"system": "In German.", "messages": [system, ASKED, SAID]})


def test_named_columns_go_before_messages():
    both = {"messages": [ASKED, {"role": "assistant", "content": "old"}], "question": "2+2?", "answer": "4"}
    messages, unread = conversation(both, "question", "answer")
    assert [one["content"] for one in messages] == ["2+2?", "4"] and unread == {"messages"}
    messages, unread = conversation(both, "question", "")
    assert [one["content"] for one in messages] == ["2+2?"] and unread == {"messages", "answer"}
    messages, unread = conversation(both, "prompt", "answer")
    assert messages[1]["content"] == "old" and unread == {"question", "answer"}


def test_alpacas_input_and_history_are_part_of_the_question():
    row = {"instruction": "Add.", "input": "2 and 2", "output": "4", "history": [["Hi", "Hello"]]}
    messages = read(row, "instruction", "output")
    assert [one["content"] for one in messages] == ["Hi", "Hello", "Add.\n2 and 2", "4"]
    assert [one.get("loss") for one in messages] == [None, False, None, True]
    assert read({**row, "input": "", "history": []}, "instruction", "output")[0]["content"] == "Add."
    with pytest.raises(ValueError, match="instruction beside the input"):
        read(row, "input", "output")
    with pytest.raises(ValueError, match="history must be a list"):
        read({**row, "history": "Hi"}, "instruction", "output")


def test_two_lists_that_differ_are_refused():
    with pytest.raises(ValueError, match="differ"):
        read({"messages": [ASKED, SAID], "conversations": [ASKED]})
    with pytest.raises(ValueError, match="differ"):
        message({"role": "user", "from": "gpt", "content": "x"})
    with pytest.raises(ValueError, match="differ"):
        message({"role": "user", "content": "x", "value": "y"})


def test_a_content_of_parts_is_its_text():
    parts = [{"type": "text", "text": "2+"}, {"type": "text", "text": "2?"}]
    assert message({"role": "user", "content": parts}) == ASKED
    with pytest.raises(ValueError, match="only parts of type text"):
        message({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]})


VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
)
VALUES |= st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
NAMES = st.text(min_size=1, max_size=12) | st.sampled_from(sorted({*MEANINGFUL, *FLAGS, *UNLEARNED, *HARMLESS, "name"}))


@settings(max_examples=300, deadline=None)
@given(NAMES, VALUES, st.sampled_from(["user", "assistant", "system", "tool"]))
def test_no_key_of_a_message_is_dropped(key, value, role):
    """A key changes what is read, is refused by its name, is empty, or is known to be harmless."""
    plain = {"role": role, "content": "text"}
    if key in ("role", "from", "content", "value"):
        return
    try:
        said = message(plain | {key: value})
    except ValueError as error:
        assert repr(key)[1:-1] in str(error) or key in ("tool_calls", "function_call")
        return
    harmless = key in HARMLESS or (role == "tool" and key in ("name", "tool_call_id"))
    assert said != plain or harmless or not value or (role != "assistant" and key in UNLEARNED)


@settings(max_examples=300, deadline=None)
@given(NAMES, VALUES, st.booleans())
def test_no_column_of_a_row_is_dropped(key, value, as_list):
    """A column changes what is read, is refused, is empty, or is reported as unread."""
    plain = {"messages": [ASKED, SAID]} if as_list else {"prompt": "2+2?", "answer": "4"}
    if key in plain or key in ("prompt", "answer"):
        return
    try:
        messages, unread = conversation(plain | {key: value}, "prompt", "answer")
    except ValueError:
        return
    empty = value is None or value in ("", [], {})
    flag = key in (*FLAGS, *UNLEARNED)  # True for a row: learned, as it would be
    assert messages != read(plain) or key in unread or empty or flag


@pytest.mark.parametrize("name", ["context", "passage", "choices", "options", "documents", "input", "Context"])
@pytest.mark.parametrize("answer", ["answer", ""])
def test_a_column_that_belongs_to_the_prompt_is_refused(name, answer):
    with pytest.raises(ValueError, match=f"the column '{name}' is not read"):
        conversation({"prompt": "Who?", "answer": "Ann", name: "Ann came first."}, "prompt", answer)


@pytest.mark.parametrize(
    "name", ["System", "SYSTEM_PROMPT", "system_message", "instructions", "images", "response_format"]
)
def test_a_column_that_changes_every_prompt_is_refused(name):
    for row in ({"prompt": "Who?", "answer": "Ann"}, {"messages": [ASKED, SAID]}):
        with pytest.raises(ValueError, match=f"the column '{name}' is not read"):
            conversation({**row, name: "x"}, "prompt", "answer")


@pytest.mark.parametrize("name", ["assistant_masks", "loss_masks", "weights", "train_on_turn", "flags", "Learned"])
def test_flags_under_any_name_are_refused(name):
    for flags in ([0, 1], [False, True], [0.0, 1.0]):
        with pytest.raises(ValueError, match=f"the column '{name}' looks like a flag for each message"):
            conversation({"messages": [ASKED, SAID], name: flags}, "prompt", "answer")


@pytest.mark.parametrize(
    ("name", "value"), [("weight", 2.5), ("train", "A"), ("loss", "3 %"), ("reasoning", "x"), ("prefix", "x")]
)
def test_columns_about_learning_do_not_concern_a_question(name, value):
    messages, unread = conversation({"question": "Who?", "answer": "Ann", name: value}, "question")
    assert messages == [{"role": "user", "content": "Who?"}] and unread == {"answer", name}


def test_other_lists_as_long_as_the_conversation_are_only_named():
    assert conversation({"messages": [ASKED, SAID], "turn_ids": [0, 1]}, "prompt", "answer")[1] == {"turn_ids"}


def test_a_flag_inside_a_part_is_refused():
    with pytest.raises(ValueError, match="parts of type text"):
        message({"role": "assistant", "content": [{"type": "text", "text": "4", "weight": 0}]})
