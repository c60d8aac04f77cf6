"""Templates whose header opens a thought: tools, histories with calls, and thinking=false, which is refused."""

import json
import re
import shutil

import pytest
import torch
from conftest import run_program
from test_formats import DEEPSEEK, OWN, QWEN3, USER, full, opening, published, rendered, write_folder

import envs
from envs.conversations import conversation
from envs.demos import demonstration
from envs.serve.access import BadRequest
from models import Tokenizer, load_model, load_tokenizer
from models.chat.tools import MOST_DEPTH, qwen_calls
from models.refusal import Refusal
from models.weights import TINY
from rl import data
from rl.config.model_checks import check_thinking
from rl.config.words import parse
from rl.records import Episode
from rl.rollout import add_step
from rl.run.setup import adapt
from rl.serve import protocol
from rl.serve.loading import ModelKeys, load_base
from rl.tools import check_tools, read_action

jinja2 = pytest.importorskip("jinja2.sandbox")

WORDS = ["algo=grpo", "max_len=4096", "history=template", "textcraft.tools=native", "textcraft.prompt=native"]
CALL = {"type": "function", "function": {"name": "craft", "arguments": {"count": 2}}}


@pytest.fixture(scope="module")
def thinkers(tmp_path_factory):
    """Return {name: (its template, a tokenizer)} of Qwen3-Thinking-2507 and QwQ."""
    root = tmp_path_factory.mktemp("thinkers")
    sources = {"qwen3-thinking-2507": opening(), "qwq": opening(drops=True)}
    return {name: (s, Tokenizer(write_folder(root / name, QWEN3, s), rewrites=True)) for name, s in sources.items()}


def with_call(tokenizer: Tokenizer, thought: str, calls: list[dict]) -> list[int]:
    return tokenizer.reply(f"<think>\n{thought}\n</think>\n\n", calls)


@pytest.mark.parametrize("name", ["qwen3-thinking-2507", "qwq"])
def test_a_reply_with_calls_keeps_its_thoughts(name, thinkers):
    _, tokenizer = thinkers[name]
    tokenizer.check_tools()
    for thought in ("", "Two and two."):
        ids = with_call(tokenizer, thought, [CALL])
        text = '\n</think>\n\n<tool_call>\n{"name": "craft", "arguments": {"count": 2}}\n</tool_call><|im_end|>'
        assert tokenizer.show(ids) == thought + text
        assert tokenizer.calls(ids) == ("", [CALL])
    assert tokenizer.reply("", [CALL]) == with_call(tokenizer, "", [CALL])


@pytest.mark.parametrize("name", ["qwen3-thinking-2507", "qwq"])
def test_samples_of_an_episode_with_calls_are_the_templates_renderings(name, thinkers):
    """Each turn reads what transformers renders of messages with `tool_calls`, as a client of a server sends them."""
    source, tokenizer = thinkers[name]
    cfg, world = parse(WORDS), envs.make("textcraft", tools="native", difficulty="3")
    check_tools(tokenizer, cfg)
    messages = list(world.reset(5))
    tools, history, episode, over = messages[0]["tools"], list(messages), Episode("textcraft", 5, 0), False
    plain = [{key: value for key, value in message.items() if key != "tools"} for message in messages]
    episode.append(tokenizer.prompt(messages))
    while not over:
        context = full(tokenizer, rendered(tokenizer, source, plain, tools=tools))
        assert episode.last_sample == context
        action = world.oracle()
        content, calls = world.calls_of(action)
        thought = f"<think>\nMove {len(episode.turns)}.\n</think>\n\n{content}"
        made = json.dumps(calls[0]["function"], separators=(",", ":"))  # the template writes it with spaces
        ids = full(tokenizer, f"{thought.removeprefix('<think>')[1:]}<tool_call>{made}</tool_call><|im_end|>")
        assert read_action(tokenizer, ids, world) == action
        episode.append_turn(ids, [0.0] * len(ids), "stop")
        step = world.step(action)
        over = step.terminated or step.truncated
        said = {"role": "assistant", "content": thought, "tool_calls": calls}
        plain += [said, {"role": world.role, "content": step.observation}]
        add_step(episode, step, tokenizer, cfg, world, history)
    assert len(episode.turns) > 2 and episode.success
    shown = tokenizer.show(episode.last_sample)
    assert ("Move 0." in shown) == (name != "qwq")  # Qwen3's keeps the thoughts since the last question


@pytest.mark.parametrize("name", ["qwen3-thinking-2507", "qwq"])
def test_samples_of_a_row_with_calls_are_the_templates_renderings(name, thinkers):
    source, tokenizer = thinkers[name]
    row, _ = demonstration("textcraft", envs.make("textcraft", tools="native", difficulty="3"), 5, "train")
    messages = conversation(json.loads(json.dumps(row)), "prompt", "answer")[0]
    plain = [{key: value for key, value in message.items() if key != "tools"} for message in messages]
    expected = []
    for place, message in enumerate(plain):
        if message["role"] == "assistant":
            context = full(tokenizer, rendered(tokenizer, source, plain[:place], tools=messages[0]["tools"]))
            expected.append(context + with_call(tokenizer, "", message["tool_calls"]))
    flagged = [{"loss": message["role"] == "assistant", **message} for message in messages]
    episode, cut = data.to_samples(tokenizer, flagged, 0, 4096)
    found = [[]]
    for kept, start, stop in episode.samples:
        found.append(found[-1][:kept] + episode.ids_T[start:stop])
    assert found[1:] == expected and len(expected) > 2 and not cut


def test_a_malformed_call_stays_text_in_the_history(thinkers):
    source, tokenizer = thinkers["qwen3-thinking-2507"]
    for call in ('{"name": "craft"}', '{"name": "craft", "arguments": {"a": ' + "[" * 400 + "]" * 400 + "}}"):
        said = f"Hm.\n</think>\n\n<tool_call>\n{call}\n</tool_call>"
        message = tokenizer.message(tokenizer._full.encode(said, add_special_tokens=False).ids, tools=True)
        assert message == {"role": "assistant", "content": f"<think>\n{said}"}
        talk = [USER, message, {"role": "tool", "content": "no"}]
        assert tokenizer.prompt(talk) == full(tokenizer, rendered(tokenizer, source, talk))


@pytest.mark.parametrize("depth", [MOST_DEPTH, MOST_DEPTH + 1])
def test_calls_that_templates_could_not_render_are_malformed(depth):
    inner = "[" * (depth - 1) + "]" * (depth - 1)
    text = f'<tool_call>\n{{"name": "f", "arguments": {{"a": {inner}}}}}\n</tool_call>'
    if depth > MOST_DEPTH:
        with pytest.raises(
            Refusal, match=f"the arguments of a call have lists and objects more than {MOST_DEPTH} deep"
        ):
            qwen_calls(text)
    else:
        assert len(qwen_calls(text)[1]) == 1


def test_a_template_that_rewrites_thoughts_names_the_way_that_works(tmp_path):
    """history=append refuses it and names history=template, which takes tools."""
    folder, words = write_folder(tmp_path / "m", QWEN3, opening()), ["algo=grpo", *WORDS[3:]]
    with pytest.raises(ValueError, match=r"textcraft.tools=native: .* render each turn anew with history=template"):
        check_tools(Tokenizer(folder), parse(words))
    check_tools(Tokenizer(folder, rewrites=True), parse([*words, "history=template"]))


# ------------------------------------------------------------------------------------------------------ thinking=false

ALWAYS = "the chat template opens <think> in every reply, also with thinking=false: take thinking=true"


@pytest.fixture(scope="module")
def r1(tmp_path_factory):
    """Return the embedded model's folder with a template that opens a thought in each header."""
    folder = tmp_path_factory.mktemp("r1") / "model"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    source = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1].strip() }}<|im_end|>\n"
    )
    source += "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
    (folder / "chat_template.jinja").write_text(source)
    return folder


def test_thinking_false_is_refused_where_the_header_opens_a_thought(load_r1):
    on, off = load_r1
    on.check_thinking()
    with pytest.raises(Refusal, match=re.escape(ALWAYS)) as caught:
        off.check_thinking()
    assert "\n" not in str(caught.value) and off.opens_thought


@pytest.fixture(scope="module")
def load_r1(tmp_path_factory):
    source, tokens, config = OWN["r1"]
    folder = write_folder(tmp_path_factory.mktemp("r1"), tokens, source, **config)
    assert tokens is DEEPSEEK
    return [Tokenizer(folder, thinking) for thinking in (True, False)]


def test_thinking_false_needs_no_thoughts_to_be_accepted(tmp_path):
    for number, source in enumerate((published("qwen3"), OWN["smollm3"][0], OWN["olmo3"][0], OWN["phi4"][0])):
        Tokenizer(write_folder(tmp_path / str(number), QWEN3, source, eos_token="<|im_end|>"), False).check_thinking()
    load_tokenizer("tiny", thinking=False).check_thinking()


def test_a_system_message_that_names_the_tag_opens_no_thought(tmp_path):
    source = "<|im_start|>system\nWrite your thoughts behind <think>.<|im_end|>\n"
    source += "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    source += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    tokenizer = Tokenizer(write_folder(tmp_path, QWEN3, source, eos_token="<|im_end|>"), thinking=False)
    tokenizer.check_thinking()
    assert tokenizer.answer(tokenizer.encode("4")) == "4"


@pytest.mark.parametrize("program", ["train.py", "eval.py"])
def test_programs_refuse_thinking_false_before_the_weights_are_read(program, r1, tmp_path):
    words = [f"model={r1}", "thinking=false", "env=sat", "device=cpu", "threads=1", "ranks=1"]
    words += [f"out={tmp_path}/run", "algo=grpo"] if program == "train.py" else ["n=1"]
    status, out, err = run_program(program, *words)
    assert status and ALWAYS in err and not (tmp_path / "run").exists() and "products:" not in out + err


def test_eval_refuses_an_unusable_template_before_the_weights_are_read(r1, tmp_path):
    shutil.copytree(r1, folder := tmp_path / "model")
    (folder / "chat_template.jinja").write_text(opening())
    words = [f"model={folder}", "env=sat", "n=1", "device=cpu", "threads=1", "ranks=1"]
    status, out, err = run_program("eval.py", *words)
    assert status and "render each turn anew with history=template" in err and "products:" not in out + err


def test_servers_refuse_thinking_false(r1, load_r1):
    with pytest.raises(Refusal, match=re.escape(ALWAYS)):
        load_base(ModelKeys(model=str(r1), thinking=False), 1, rewrites=True)
    on, off = load_r1
    sampler = type("Sampler", (), {"tokenizer": on, "adapters": {}, "max_len": 100, "model": None})()
    asked = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}
    with pytest.raises(BadRequest, match=re.escape(ALWAYS)) as caught:
        protocol.Protocol(sampler, "m", {True: on, False: off}, False).answer("POST", "/v1/chat/completions", asked, "")
    assert caught.value.args[0] == 400


# ------------------------------------------------------------------------------------------- settings that do little


def test_a_budget_of_thoughts_without_thoughts_is_named(capsys, r1):
    cfg = parse(["algo=grpo", "max_thinking_tokens=4"])
    check_thinking(cfg, load_tokenizer("tiny"))
    said = "max_thinking_tokens=4 bounds only replies that open <think> themselves: "
    assert capsys.readouterr().out == f"{said}the chat template of tiny has no thoughts\n"
    check_thinking(cfg, Tokenizer(r1))
    check_thinking(parse(["algo=grpo"]), load_tokenizer("tiny"))
    assert capsys.readouterr().out == ""


def test_moments_of_a_byte_are_named_for_what_they_save_of_an_adapter(capsys):
    torch.manual_seed(0)
    for optimizer, lines in (("adamw8bit", 1), ("adamw", 0)):
        adapt(load_model("tiny"), parse(["algo=grpo", f"optimizer={optimizer}", "lora.r=4"]))
        out = capsys.readouterr().out
        trained = int(re.search(r"([\d,]+) of [\d,]+ parameters train", out)[1].replace(",", ""))
        saved = f"optimizer=adamw8bit saves at most {6 * trained / 2**20:.1f} MiB of this adapter's moments and rounds"
        assert out.count(saved) == lines == out.count("adamw8bit")
