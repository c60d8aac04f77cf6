"""Tools over rl.serve: what a request may ask for, and how a sampled reply that calls tools is answered."""

import json
import re
from types import SimpleNamespace

import pytest
from test_formats import QWEN3, full, opening, rendered, write_folder
from test_text_is_there import CALLING, folder_of, spec_of
from test_tools import MALFORMED, WEATHER, as_openai, called, load  # noqa: F401  (load is a fixture)

from envs.serve.access import BadRequest
from models import Tokenizer, load_tokenizer
from rl.serve.protocol import Protocol

ASKED = {"messages": [{"role": "user", "content": "How warm is Oslo?"}], "tools": [WEATHER]}
CALLS = {  # family: a reply that calls the tool, and its content
    "qwen2.5": ('I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>', "I look."),
    "qwen3": (
        '<think>\nHm.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
        "<think>\nHm.\n</think>",
    ),
    "llama3.1": ('{"name": "weather", "parameters": {"city": "Oslo"}}', None),
}


class Scripted:
    """A sampler whose reply to each request is a given text."""

    def __init__(self, tokenizer, text: str = "", ends: bool = True):
        self.tokenizer, self.text, self.ends, self.adapters, self.max_len = tokenizer, text, ends, {}, 4096
        self.model = SimpleNamespace(config=SimpleNamespace(vocab_size=4096))

    def submit(self, *requests) -> None:
        self.requests = requests
        for request in requests:
            request.sampled = self.tokenizer._full.encode(self.text, add_special_tokens=False).ids
            request.sampled += [self.tokenizer._end] * self.ends
            request.logprobs = [-1.0] * len(request.sampled)


def sent(sampler: Scripted, **body) -> list[dict]:
    """Return the choices that a request is answered with: one whole one, or the parts of a streamed one."""
    protocol = Protocol(sampler, "tiny", dict.fromkeys((True, False), sampler.tokenizer), False)
    stream = protocol.answer("POST", "/v1/chat/completions", ASKED | body, "127.0.0.1")
    [request] = sampler.requests
    request.reply_to.advance()  # before its end nothing but the streamed role is sent
    request.finish = "stop" if sampler.ends else "length"
    request.reply_to.advance()
    text = b"".join(stream.parts).decode().partition("\r\n\r\n")[2]
    bodies = re.findall("data: ({.*})", text) if body.get("stream") else [text]
    return [json.loads(one)["choices"][0] for one in bodies]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_that_calls_a_tool_has_tool_calls(name, stream, load):  # noqa: F811
    text, content = CALLS[name]
    *first, last = sent(Scripted(load(name), text), stream=stream, tool_choice="auto")
    said = last["delta" if stream else "message"]
    [call] = said["tool_calls"]
    assert [one["delta"] for one in first] == [{"role": "assistant", "content": ""}] * stream
    assert (said["content"], last["finish_reason"]) == (content, "tool_calls")
    assert call.pop("id").startswith("call_") and call.pop("index", 0) == 0
    assert call == {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}


@pytest.mark.parametrize("drops", [False, True])
def test_tools_work_where_the_header_opens_a_thought(drops, tmp_path):
    """In the form of Qwen3-Thinking-2507, which rewrites earlier thoughts, and of QwQ, which drops them all."""
    source = opening(drops)
    tokenizer = Tokenizer(write_folder(tmp_path, QWEN3, source), rewrites=True)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    sampler = Scripted(tokenizer, f"Hm.\n</think>\n\n{call}")
    [said] = sent(sampler)
    plain = rendered(tokenizer, source, ASKED["messages"], tools=[WEATHER])
    assert sampler.requests[0].ids == full(tokenizer, plain) and plain.endswith("assistant\n<think>\n")
    assert (said["message"]["content"], said["finish_reason"]) == ("Hm.\n</think>", "tool_calls")
    assert [one["function"] for one in said["message"]["tool_calls"]] == [
        {"name": "weather", "arguments": '{"city": "Oslo"}'}
    ]
    result = {"role": "tool", "tool_call_id": said["message"]["tool_calls"][0]["id"], "content": "-3"}
    sent(sampler, messages=[*ASKED["messages"], said["message"], result])
    again = [*ASKED["messages"], {**said["message"], "tool_calls": [called("Oslo")]}, result]
    assert sampler.requests[0].ids == full(tokenizer, rendered(tokenizer, source, again, tools=[WEATHER]))


def test_several_calls_have_ids_of_their_own(load):  # noqa: F811
    text = "\n".join([CALLS["qwen2.5"][0].removeprefix("I look.\n")] * 2)
    calls = sent(Scripted(load("qwen2.5"), text), stream=True)[-1]["delta"]["tool_calls"]
    assert [call["index"] for call in calls] == [0, 1] and len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize("name", ["qwen2.5", "llama3.1"])
@pytest.mark.parametrize("kind", sorted(MALFORMED.keys() - {"two calls", "an unknown tool", "an unknown argument"}))
def test_a_malformed_call_stays_text(kind, name, load):  # noqa: F811
    text = MALFORMED[kind][name.startswith("llama")].replace("NAME", "weather").replace("ARGUMENTS", "{}")
    [said] = sent(Scripted(load(name), text))
    content = text.removeprefix("<|python_tag|>")  # a control token, which no text has
    assert said["message"] == {"role": "assistant", "content": content} and said["finish_reason"] == "stop"


def test_a_call_that_a_limit_or_a_stop_text_cut_stays_text(load):  # noqa: F811
    text = CALLS["qwen2.5"][0]
    [cut] = sent(Scripted(load("qwen2.5"), text, ends=False))
    [stopped] = sent(Scripted(load("qwen2.5"), text), stop="</tool_call>")
    assert (cut["message"]["content"], cut["finish_reason"]) == (text, "length")
    assert (stopped["message"]["content"], stopped["finish_reason"]) == (text.removesuffix("</tool_call>"), "stop")


def test_tool_choice_none_offers_no_tools(load):  # noqa: F811
    sampler = Scripted(load("qwen2.5"), CALLS["qwen2.5"][0])
    [said] = sent(sampler, tool_choice="none")
    assert sampler.requests[0].ids == load("qwen2.5").prompt(ASKED["messages"])
    assert "tool_calls" not in said["message"] and said["finish_reason"] == "stop"
    [said] = sent(sampler)
    assert sampler.requests[0].ids == load("qwen2.5").prompt([ASKED["messages"][0] | {"tools": [WEATHER]}])
    assert said["finish_reason"] == "tool_calls"


def test_a_reply_and_the_tools_result_continue_the_conversation(load):  # noqa: F811
    """The prompt of the next request is the first prompt, the sampled reply, and the result."""
    sampler = Scripted(load("qwen2.5"), CALLS["qwen2.5"][0])
    [said] = sent(sampler)
    played = sampler.requests[0].ids + sampler.requests[0].sampled
    result = {"role": "tool", "tool_call_id": said["message"]["tool_calls"][0]["id"], "content": "-3"}
    sent(sampler, messages=[*ASKED["messages"], said["message"], result])
    assert sampler.requests[0].ids == played + load("qwen2.5").follow_up(
        played[-1], [{"role": "tool", "content": "-3"}]
    )


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ({"tool_choice": "required"}, "tool_choice='required' is not supported, only none and auto"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice={"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice='required'"),
        ({"tools": "x"}, "tools must be a list of objects, not x"),
        ({"tools": [{}]}, "tools: each needs the type function and a function with a name, not {}"),
        ({"tools": [{**WEATHER, "type": "custom"}]}, "tools: each needs the type function"),
        ({"tools": [{**WEATHER, "function": {"name": "f", "strict": True}}]}, "strict=true is not supported"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls=false is not supported"),
        ({"functions": [{"name": "f"}]}, "functions=["),
    ],
)
def test_what_cannot_be_ensured_is_refused_by_name(body, line, load):  # noqa: F811
    with pytest.raises(BadRequest, match=re.escape(line)) as caught:
        sent(Scripted(load("qwen2.5")), **body)
    assert caught.value.args[0] == 400 and "\n" not in caught.value.args[1]


def test_a_template_without_tools_is_refused():
    with pytest.raises(BadRequest, match="the chat template leaves out the tools that a conversation declares"):
        sent(Scripted(load_tokenizer("tiny")))


def test_another_form_of_calls_is_refused(tmp_path):
    """A reply that calls a tool in it would be sent as text."""
    with pytest.raises(BadRequest, match=r"writes calls of tools as .*<call>kzqv .* neither Qwen"):
        sent(Scripted(Tokenizer(folder_of(tmp_path, spec_of(), CALLING))))


def test_deeply_nested_arguments_are_refused(load):  # noqa: F811
    deep = as_openai({"role": "assistant", "content": "", "tool_calls": [called("x")]})
    deep["tool_calls"][0]["function"]["arguments"] = '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"
    with pytest.raises(BadRequest) as caught:
        sent(Scripted(load("qwen2.5")), messages=[*ASKED["messages"], deep])
    assert caught.value.args[0] == 400
