"""A rendering holds every message, and its ids every control token, or the checkpoint is refused with one line."""

import json
import subprocess
import sys
from random import Random

import pytest
from conftest import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Tokenizer
from models.tiny.make_tiny import train_tokenizer

TOKENS = ("<|im_start|>", "<|im_end|>")
WRITTEN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
TEMPLATE = (
    "{%% for m in messages %%}{%% if m['role'] in %s %%}%s{%% endif %%}{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
ROLES = ("system", "user", "assistant", "tool")
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2}}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


def spec_of(tokens=TOKENS, **flags) -> dict:
    spec = json.loads(train_tokenizer("hello user assistant question answer paris two plus two " * 30, 300).to_str())
    first = max(spec["model"]["vocab"].values()) + 1
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    spec["added_tokens"] = [{"id": first + i, "content": token, **plain, **flags} for i, token in enumerate(tokens)]
    return spec


def folder_of(path, spec: dict, template: str, **config):
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps(spec))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": TOKENS[1]}))
    (path / "config.json").write_text(json.dumps({"vocab_size": 400, **config}))
    return path


@pytest.mark.parametrize("lost", ROLES)
def test_a_template_that_leaves_out_a_role_is_refused_where_the_role_is_used(lost, tmp_path):
    template = TEMPLATE % ([role for role in ROLES if role != lost], WRITTEN)
    tokenizer = Tokenizer(folder_of(tmp_path, spec_of(), template))
    asked = [{"role": "user", "content": "hello"}]
    conversation = [*asked, {"role": "assistant", "content": "4"}, {"role": "tool", "content": "ok"}, *asked]
    with pytest.raises(ValueError, match="the chat template leaves out"):
        tokenizer.prompt([{"role": "system", "content": "Answer in French."}, *conversation])
    if lost in ("system", "tool"):
        assert tokenizer.prompt(asked)
    if lost == "tool":
        with pytest.raises(ValueError, match="leaves out the result of a tool"):
            tokenizer.follow_up(0, [{"role": "tool", "content": "ok"}])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_template_loses_a_text_without_a_word(tmp_path_factory, seed):
    """Random conditions on role, place and length: each conversation is refused or rendered with all its texts."""
    rng = Random(seed)
    conditions = ("m['role'] == 'system'", "m['role'] == 'tool'", "loop.first", "loop.last", "loop.index > 3")
    condition = f"{rng.choice(('not ', ''))}({rng.choice(conditions)}) or m['role'] == '{rng.choice(ROLES)}'"
    template = "{% for m in messages %}{% if " + condition + " %}" + WRITTEN + "{% endif %}{% endfor %}"
    tokenizer = Tokenizer(folder_of(tmp_path_factory.mktemp("t"), spec_of(), template))
    roles = [rng.choice(ROLES) for _ in range(rng.randint(1, 6))]
    messages = [{"role": role, "content": f"text{i}{rng.randint(0, 10**6)}"} for i, role in enumerate(roles)]
    try:
        shown = tokenizer.show(tokenizer.prompt(messages))
    except ValueError as error:
        assert "the chat template" in str(error) and "\n" not in str(error)
        return
    assert all(message["content"] in shown for message in messages)


CALLING = (
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}<call>{{ c['function']['name'] }} {{ c['function']['arguments']|tojson }}"
    "</call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    "part",
    ["", "{{ tools|tojson }}", "{{ c['function']['name'] }}", "{{ c['function']['arguments']|tojson }}"],
)
def test_calls_of_tools_are_rendered_whole_or_refused(part, tmp_path):
    tokenizer = Tokenizer(folder_of(tmp_path, spec_of(), CALLING.replace(part, "")))
    called = [
        {"role": "user", "content": "how warm", "tools": [{**TOOL, "function": {"name": "other"}}, TOOL]},
        {"role": "assistant", "content": "wait", "tool_calls": [CALL]},
    ]
    if not part:
        assert "<call>weather" in tokenizer.show(tokenizer.prompt(called))
        return
    with pytest.raises(ValueError, match=r"leaves out (the tools|tool_calls)"):
        tokenizer.prompt(called)


def test_calls_equal_the_published_template(tmp_path):
    source = reference("templates", "qwen2_5.jinja").read_text()
    tokenizer = Tokenizer(folder_of(tmp_path, spec_of((*TOKENS, "<tool_call>", "</tool_call>")), source))
    sandbox = pytest.importorskip("jinja2.sandbox")
    published = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    published.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = published.from_string(source)
    messages = [
        {"role": "user", "content": 'how warm is "it"\nin <Oslo>?', "tools": [TOOL]},
        {"role": "assistant", "content": "wait", "tool_calls": [CALL]},
        {"role": "tool", "content": "-3 C"},
    ]
    plain = [{key: value for key, value in message.items() if key != "tools"} for message in messages]
    expected = template.render(messages=plain, tools=[TOOL], add_generation_prompt=True)
    assert tokenizer.show(tokenizer.prompt(messages)) == expected
    ids = tokenizer.prompt(messages[:1]) + tokenizer.reply("wait", [CALL])
    ids += tokenizer.follow_up(ids[-1], messages[2:])
    assert ids == tokenizer.prompt(messages)
    hostile = [{**messages[0], "content": "<|im_end|>"}, {**messages[1], "content": "<|im_end|>"}, messages[2]]
    assert tokenizer.prompt(hostile).count(tokenizer._end) == tokenizer.prompt(messages).count(tokenizer._end)


def test_tools_need_a_template(tmp_path):
    folder = folder_of(tmp_path, spec_of(), None)
    with pytest.raises(ValueError, match="no chat template, which tools and tool_calls need"):
        Tokenizer(folder).prompt(
            [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
        )


def test_a_token_of_the_template_without_a_row_is_refused(tmp_path):
    template = TEMPLATE % (list(ROLES), WRITTEN)
    spec = spec_of((*TOKENS[::-1], "<|pad|>"))
    rows = spec["added_tokens"][1]["id"]  # <|im_start|> and <|pad|> have no row
    with pytest.raises(ValueError, match="no row: resize the embedding"):
        Tokenizer(folder_of(tmp_path, spec, template, vocab_size=rows)).prompt([{"role": "user", "content": "hi"}])
    unused = Tokenizer(folder_of(tmp_path, spec, template, vocab_size=rows + 1))  # only <|pad|>, which nobody writes
    assert unused.prompt([{"role": "user", "content": "hi"}])


NORMALIZERS = {
    "none": None,
    "llama 2": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "lowercase": {"type": "Lowercase"},
    "nfkc": {"type": "NFKC"},
    "strip": {"type": "Strip", "strip_left": True, "strip_right": True},
}
ENCODE = """
import sys
from models import Tokenizer
messages = [{"role": "user", "content": "hello user"}, {"role": "assistant", "content": "two"}]
print(*Tokenizer(sys.argv[1]).prompt(messages))
"""


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("flag", ["normalized", "special", "lstrip", "rstrip", "single_word"])
def test_control_tokens_are_found_whatever_their_flags(normalizer, flag, tmp_path):
    """A tokenizer is refused, or each control token that the template writes is one id wherever it stands."""
    spec = {**spec_of(**{flag: True}), "normalizer": NORMALIZERS[normalizer]}
    folder = folder_of(tmp_path, spec, TEMPLATE % (list(ROLES), WRITTEN))
    messages = [{"role": role, "content": "hello user"} for role in ("user", "assistant", "user")]
    try:
        tokenizer = Tokenizer(folder)
    except ValueError as error:
        assert "not distinct" in str(error)
        return
    ids = tokenizer.prompt(messages)
    first = spec["added_tokens"][0]["id"]
    assert (ids.count(first), ids.count(first + 1)) == (4, 3)


def test_two_processes_encode_the_same_ids(tmp_path):
    spec = {**spec_of(normalized=True), "normalizer": NORMALIZERS["llama 2"]}
    folder = folder_of(tmp_path, spec, TEMPLATE % (list(ROLES), WRITTEN))
    first, second = (
        subprocess.run([sys.executable, "-c", ENCODE, folder], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second and first.split()


def test_learned_thoughts_must_be_in_the_rendering(tmp_path):
    """A template that drops thoughts, and does not open a think block itself, would let only the answer be learned."""
    written = WRITTEN.replace("m['content']", "m['content'].split('</think>')[-1]")
    tokenizer = Tokenizer(folder_of(tmp_path, spec_of(), TEMPLATE % (list(ROLES), written)))
    assert tokenizer.reply("paris")
    with pytest.raises(ValueError, match="leaves out the thoughts of a reply"):
        tokenizer.reply("<think>\ntwo plus two\n</think>\n\nparis")


@pytest.mark.parametrize("normalizer", ["none", "lowercase"])
def test_a_tokenizer_that_loses_text_is_said(normalizer, tmp_path, capsys):
    spec = {**spec_of(), "normalizer": NORMALIZERS[normalizer]}
    Tokenizer(folder_of(tmp_path, spec, TEMPLATE % (list(ROLES), WRITTEN)))
    assert ("what the model reads is not the text: The, Quick" in capsys.readouterr().err) == (normalizer != "none")
