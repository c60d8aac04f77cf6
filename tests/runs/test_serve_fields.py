"""A field of a request is read, is known to change nothing, or answers 400 with its name."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.serve.access import BadRequest
from models import load_tokenizer
from rl.serve.protocol import IGNORED, NO_EFFECT, READ, UNSUPPORTED, _messages, check_fields
from rl.serve.replies import ChatReply

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
VALUES = st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
VALUES |= st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
ASKED = {  # what clients of other servers send, with a value that would change the reply
    **{"min_tokens": 12, "guided_choice": ["a", "b"], "guided_json": {"type": "object"}, "guided_regex": "a+"},
    **{"structured_outputs": {"choice": ["a"]}, "bad_words": ["x"], "allowed_token_ids": [5]},
    **{"include_stop_str_in_output": True, "continue_final_message": True, "add_generation_prompt": False},
    **{"prompt_logprobs": 1, "truncate_prompt_tokens": 4, "length_penalty": 2.0, "use_beam_search": True},
    **{"typical_p": 0.5, "chat_template": "{{ x }}", "reasoning_effort": "low", "logits_processors": ["f"]},
    **{"thinking": {"type": "enabled"}, "frobnicate": 1, "repetition_penalty": 1.1, "min_p": 0.1, "best_of": 2},
    **{"suffix": "x", "echo": True, "functions": [{}]},
    **{"response_format": {"type": "json_object"}, "logit_bias": {"5": 1}, "presence_penalty": True},
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("name", ASKED)
def test_a_field_that_would_change_the_reply_is_refused(name, path):
    with pytest.raises(BadRequest, match=name) as caught:
        check_fields(path, {name: ASKED[name]})
    assert caught.value.args[0] == 400
    check_fields(path, {name: None})  # null is a field's absence


@pytest.mark.parametrize(("name", "value"), [("tools", [{}]), ("tool_choice", "required")])
def test_tools_of_a_completion_are_refused(name, value):
    """Of a chat they are read (tests/runs/test_serve_tools.py)."""
    with pytest.raises(BadRequest, match=f"{name}=.* is not supported"):
        check_fields(COMPLETIONS, {name: value})


@pytest.mark.parametrize("path", READ)
@settings(max_examples=150, deadline=None)
@given(st.text(min_size=1, max_size=16) | st.sampled_from(sorted(UNSUPPORTED)), VALUES)
def test_an_unknown_field_is_refused_by_name(path, name, value):
    empty = name in UNSUPPORTED and value in ("", [], {})
    if name not in READ[path] | IGNORED | NO_EFFECT.keys() and not empty:
        with pytest.raises(BadRequest, match="is not supported"):
            check_fields(path, {name: value})


@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        *((CHAT, "temprature", "temperature"), (CHAT, "max_completion_token", "max_completion_tokens")),
        *((COMPLETIONS, "promt", "prompt"), (COMPLETIONS, "stop_tokens_ids", "stop_token_ids")),
        ("/v1/load_lora_adapter", "lora_pth", "lora_path"),
    ],
)
def test_a_misspelt_field_names_the_right_one(path, name, meant):
    with pytest.raises(BadRequest, match=rf"{name} is not supported; did you mean {meant}\?"):
        check_fields(path, {name: 1})


def test_fields_that_change_nothing_pass():
    for path in READ:
        check_fields(path, dict.fromkeys(IGNORED, "x"))
        for name, values in NO_EFFECT.items():
            for value in values:
                sampled = {"return_token_ids": True} if path in (CHAT, COMPLETIONS) else {}
                check_fields(path, {name: value, **sampled})
    with pytest.raises(BadRequest, match="skip_special_tokens=false is not supported without return_token_ids=true"):
        check_fields(CHAT, {"skip_special_tokens": False})


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "user", "content": "x", "name": "bob"}, "'name'"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "a tool call needs a name"),
        ({"role": "assistant", "content": "x", "prefix": True}, "'prefix'"),
        ({"role": "assistant", "content": None}, "a message needs a role"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "parts of type text"),
        ({"role": "author", "content": "x"}, "a message needs a role"),
    ],
)
def test_a_key_of_a_message_is_honoured_or_refused(message, said):
    with pytest.raises(BadRequest, match=said):
        _messages([message])


def test_what_openai_returns_can_be_sent_back():
    """A client appends the reply as it came: null fields, calls of tools, thoughts."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    reply = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None}
    reply |= {"function_call": None, "tool_calls": [call]}
    said = _messages([{"role": "user", "content": "x"}, reply, {"role": "tool", "tool_call_id": "c1", "content": "2"}])
    assert said[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}} and said[1]["content"] == ""
    thought = _messages([{"role": "assistant", "content": "4", "reasoning_content": "2+2"}])
    assert thought == [{"role": "assistant", "content": "<think>\n2+2\n</think>\n\n4"}]


def test_log_probabilities_of_a_chat_have_the_bytes_of_each_token():
    """A token may be a part of a character: only the bytes of all tokens together are the text's."""
    tokenizer = load_tokenizer("tiny")
    reply = SimpleNamespace(tokenizer=tokenizer)
    tokens = [ChatReply._token(reply, token, -1.0) for token in tokenizer.encode("数 é 🙂")]
    assert bytes(byte for token in tokens for byte in token["bytes"]) == "数 é 🙂".encode()
    assert any("\ufffd" in token["token"] for token in tokens)
