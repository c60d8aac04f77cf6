"""Actions as calls of tools: prompts of the real templates, experts both ways, malformed calls that are answered."""

import json
import re
from contextlib import suppress
from datetime import datetime
from functools import cache

import pytest
import torch
from conftest import reference, run_program
from test_formats import write_folder
from tqdm import tqdm

import envs
from envs.conversations import conversation
from envs.demos import demonstration
from envs.serve import __main__ as serve
from envs.tools import INVALID
from models import Tokenizer, load_model, load_tokenizer
from models.chat.tools import llama_calls, qwen_calls
from models.refusal import Refusal
from rl import data
from rl.config.words import parse
from rl.data import to_episode
from rl.records import Episode
from rl.rollout import add_step, rollout
from rl.tasks import make_env, make_tasks
from rl.teacher import prompts_of
from rl.tools import check_tools, read_action, write_reply

jinja2 = pytest.importorskip("jinja2.sandbox")

QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>")
QWEN = (*QWEN, "</tool_response>", "<think>", "</think>")
LLAMA = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>")
FAMILIES = {  # name: template's file, control tokens, thinking
    "qwen2.5": ("qwen2_5", QWEN, True),
    "qwen3": ("qwen3", QWEN, True),
    "qwen3 without thinking": ("qwen3", QWEN, False),
    "qwen3-2507": ("qwen3_instruct_2507", QWEN, True),
    "llama3.1": ("llama3_1", LLAMA, True),
    "llama3.2": ("llama3_2", LLAMA, True),
}
ENVIRONMENTS = {
    "textcraft": {"difficulty": "2,3"},
    "tau_retail": {"difficulty": "1,3"},
    "os_interaction": {},
    "db_bench": {},
}
MALFORMED = {  # kind: a reply in Qwen's form, with NAME and ARGUMENTS of a good call (MORE: one too many); in Llama's
    "not JSON": ("<tool_call>\n{name: NAME}\n</tool_call>", "{name: NAME}"),
    "a list": ("<tool_call>\n[1]\n</tool_call>", "<|python_tag|>[1]"),
    "no name": ('<tool_call>\n{"arguments": ARGUMENTS}\n</tool_call>', '{"parameters": ARGUMENTS}'),
    "no arguments": ('<tool_call>\n{"name": "NAME"}\n</tool_call>', '{"name": "NAME"}'),
    "arguments as text": (
        '<tool_call>\n{"name": "NAME", "arguments": "x"}\n</tool_call>',
        '{"name": "NAME", "parameters": "x"}',
    ),
    "another key": (
        '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS, "id": 3}\n</tool_call>',
        '{"name": "NAME", "parameters": ARGUMENTS, "id": 3}',
    ),
    "a key twice": (
        '<tool_call>\n{"name": "NAME", "name": "NAME", "arguments": ARGUMENTS}\n</tool_call>',
        '{"name": "NAME", "name": "NAME", "parameters": ARGUMENTS}',
    ),
    "not closed": ('<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS', '{"name": "NAME", "parameters": ARGUMENTS'),
    "text behind it": (
        '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>\nDone.',
        '{"name": "NAME", "parameters": ARGUMENTS}\nDone.',
    ),
    "two calls": (
        '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>\n' * 2,
        '{"name": "NAME", "parameters": ARGUMENTS}; {"name": "NAME", "parameters": ARGUMENTS}',
    ),
    "an unknown tool": (
        '<tool_call>\n{"name": "dance", "arguments": {}}\n</tool_call>',
        '{"name": "dance", "parameters": {}}',
    ),
    "an unknown argument": (
        '<tool_call>\n{"name": "NAME", "arguments": MORE}\n</tool_call>',
        '{"name": "NAME", "parameters": MORE}',
    ),
    "nested too deeply": (
        '<tool_call>\n{"name": "NAME", "arguments": {"a": ' + "[" * 5000 + "</tool_call>",
        '{"name": "NAME", "parameters": {"a": ' + "[" * 5000,
    ),
    "no number": (
        '<tool_call>\n{"name": "NAME", "arguments": {"a": NaN}}\n</tool_call>',
        '{"name": "NAME", "parameters": {"a": NaN}}',
    ),
}


def published(name: str) -> str:
    return reference("templates", f"{name}.jinja").read_text()


@cache
def special(name: str) -> dict[str, str]:
    return {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"} if name.startswith("llama") else {}


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    """Return a function that makes the tokenizer of a family: the embedded vocabulary, its control tokens, template."""

    @cache
    def make(name: str) -> Tokenizer:
        file, tokens, thinking = FAMILIES[name]
        source = published(file)
        spec = json.loads((load_tokenizer("tiny").folder / "tokenizer.json").read_text())
        token, first = spec["added_tokens"][0], 1 + max(spec["model"]["vocab"].values())
        spec["added_tokens"] = [
            {**token, "content": text, "id": first + i, "special": text.startswith("<|")}
            for i, text in enumerate(tokens)
        ]
        folder = tmp_path_factory.mktemp("family")
        (folder / "tokenizer.json").write_text(json.dumps(spec))
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **special(name)}))
        return Tokenizer(folder, thinking)

    return make


def rendered(name: str, messages: list[dict], header: bool) -> str:
    """Return a conversation as transformers' apply_chat_template(tools=...) renders it."""
    environment = jinja2.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    environment.globals["strftime_now"] = lambda form: datetime(2024, 7, 26).strftime(form)
    file, _, thinking = FAMILIES[name]
    source = re.sub(r"\{%(-?) *(end)?generation *(-?)%\}", "", published(file))
    plain = [{key: value for key, value in message.items() if key != "tools"} for message in messages]
    variables = special(name) | ({} if thinking else {"enable_thinking": False})
    return environment.from_string(source).render(
        messages=plain, tools=messages[0].get("tools"), add_generation_prompt=header, **variables
    )


def play(env: envs.Environment):
    """Yield the expert's actions of an episode, each before it is executed."""
    over = False
    while not over:
        action = env.oracle()
        yield action
        step = env.step(action)
        over = step.terminated or step.truncated
    assert step.info["success"]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_prompt_with_tools_equals_the_published_template(env, name, load):
    tokenizer = load(name)
    messages = envs.make(env, tools="native", **ENVIRONMENTS[env]).reset(3)
    expected = tokenizer._full.encode(rendered(name, messages, True), add_special_tokens=False).ids
    assert tokenizer.prompt(messages) == expected


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_an_experts_reply_is_read_back_as_its_action(env, name, load):
    tokenizer, world = load(name), envs.make(env, tools="native", **ENVIRONMENTS[env])
    for seed in range(6):
        world.reset(seed)
        for action in play(world):
            ids = write_reply(tokenizer, action, world)
            assert ids[-1] in tokenizer.eos_ids
            assert read_action(tokenizer, ids, world) == action


@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_every_action_becomes_a_call_that_means_it(env):
    world, called = envs.make(env, tools="native", **ENVIRONMENTS[env]), set()
    for seed in range(40):
        world.reset(seed)
        for action in play(world):
            content, calls = world.calls_of(action)
            assert world.action_of(content, calls) == action
            called |= {call["function"]["name"] for call in calls}
    assert len(called) >= {"textcraft": 2, "tau_retail": 8, "os_interaction": 2, "db_bench": 2}[env]


@pytest.mark.parametrize("name", ["qwen2.5", "llama3.1"])
@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_a_malformed_call_is_answered(env, kind, name, load):
    tokenizer, world = load(name), envs.make(env, tools="native", **ENVIRONMENTS[env])
    world.reset(1)
    called = next(calls[0] for action in play(world) if (calls := world.calls_of(action)[1]))["function"]
    text = MALFORMED[kind][name.startswith("llama")].replace("NAME", called["name"])
    text = text.replace("ARGUMENTS", json.dumps(called["arguments"]))
    text = text.replace("MORE", json.dumps({**called["arguments"], "speed": 3}))
    action = read_action(tokenizer, tokenizer.encode(text), world)
    step = world.step(action)
    assert step.info["valid"] is False
    assert step.observation
    assert action.startswith(INVALID) or env == "tau_retail"  # which has words of its own for unknown names
    assert world.role == "tool"
    episode = Episode(env, 1, 0)
    episode.append(tokenizer.prompt([{"role": "user", "content": "?"}]))
    episode.append_turn(tokenizer.encode(text), [0.0] * len(tokenizer.encode(text)), "stop")
    add_step(episode, step, tokenizer, parse([]), world)
    assert episode.invalid == 1


@pytest.mark.parametrize(("reader", "key"), [(qwen_calls, "arguments"), (llama_calls, "parameters")])
def test_readers_return_calls_or_refuse(reader, key):
    """Any text is read or refused; each prefix of a good reply too."""
    good = json.dumps({"name": "f", key: {"x": "</tool_call>\n<tool_call>", "y": [1, {"z": None}]}})
    good = f"<tool_call>\n{good}\n</tool_call>" if reader is qwen_calls else good
    assert reader(good) == (
        "",
        [
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "arguments": json.loads(json.dumps({"x": "</tool_call>\n<tool_call>", "y": [1, {"z": None}]})),
                },
            }
        ],
    )
    for end in range(len(good)):
        with suppress(Refusal):
            assert reader(good[:end])[1] == []


def test_a_reply_without_a_call_is_for_the_customer(load):
    tokenizer, world = load("qwen2.5"), envs.make("tau_retail", tools="native")
    world.reset(2)
    action = read_action(tokenizer, tokenizer.encode("Hello! What is your email address?"), world)
    step = world.step(action)
    assert json.loads(action) == {"name": "respond", "arguments": {"content": "Hello! What is your email address?"}}
    assert (step.info["valid"], world.role) == (True, "user")
    assert not step.observation.startswith("API output")


def test_a_checkpoint_without_a_tool_format_is_refused():
    with pytest.raises(Refusal, match="the chat template leaves out the tools that a conversation declares"):
        load_tokenizer("tiny").check_tools()


def test_a_run_with_tools_is_refused_for_such_a_checkpoint():
    tokenizer = load_tokenizer("tiny")
    check_tools(tokenizer, parse(["env=textcraft,sat"]))
    with pytest.raises(ValueError, match=r"^textcraft.tools=native: .*leaves out the tools"):
        check_tools(tokenizer, parse(["env=sat,textcraft", "textcraft.tools=native", "textcraft.prompt=native"]))


def test_servers_are_refused_with_tools():
    words = ["env=textcraft", "textcraft.tools=native", "textcraft.prompt=native"]
    code, _, err = run_program("eval.py", *words, "server=http://127.0.0.1:9/v1", "model=tiny")
    assert code in (1, 2)
    assert "textcraft.tools=native is not played over server=" in err
    with pytest.raises(ValueError, match=r"textcraft\.tools=native is not served"):
        serve.parse(words[:2])


@pytest.mark.all_only
def test_rollouts_read_calls_and_write_results_of_tools(load):
    """The transcript replays in the environment; experts' episodes too."""
    tokenizer, model = load("qwen2.5"), load_model("tiny").eval()
    old = model.lm_head.weight.data
    grown = torch.nn.Parameter(torch.cat([old, old[: tokenizer.vocab_size - len(old)]]), requires_grad=False)
    model.model.embed_tokens.weight = model.lm_head.weight = grown
    cfg = parse(["textcraft.tools=native", "textcraft.prompt=native", "max_new_tokens=3", "textcraft.max_turns=2"])
    tasks = make_tasks(cfg, 0, 2, 1, "train", 0)
    sampled = rollout(model, tokenizer, tasks, cfg, 1.0, tqdm(disable=True))
    for task, episode in zip(tasks * 2, sampled + data.demonstrations(tokenizer, tasks, cfg, tqdm()), strict=True):
        world = make_env(cfg, task.env)
        ids = tokenizer.prompt(world.reset(task.seed, task.split))
        for turn in episode.turns:
            assert episode.ids_T[: turn.start] == ids
            step = world.step(read_action(tokenizer, episode.ids_T[turn.start : turn.stop], world))
            ids = episode.ids_T[: turn.stop]
            ids = ids + tokenizer.follow_up(ids[-1], [{"role": "tool", "content": step.observation}])
        assert (episode.success, episode.turns[-1].reward) == (step.info["success"], step.reward)


def test_a_privileged_prompt_has_the_experts_calls(load):
    cfg = parse(["algo=opd", "opd.privileged=true", "textcraft.tools=native", "textcraft.prompt=native"])
    tokenizer = load("qwen2.5")
    plain, privileged = (tokenizer.show(ids) for ids in prompts_of("textcraft", 3, tokenizer, cfg))
    assert '"tools"' not in plain and '{"name": "craft", "arguments": {"count": ' not in plain
    assert '{"name": "craft", "arguments": {"count": ' in privileged


def test_tools_replace_the_form_of_the_prompt():
    with pytest.raises(
        ValueError, match="tools=native has a prompt of its own, in place of prompt=native; here prompt=short"
    ):
        envs.make("textcraft", tools="native", prompt="short")
    with pytest.raises(ValueError, match="tools must be 'none' or 'native', not 'qwen'"):
        envs.make("db_bench", tools="qwen")


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("env", ENVIRONMENTS)
def test_rows_of_demonstrations_are_the_episodes_that_experts_play(env, name, load):
    """SFT from a written row learns the ids of the expert's own episode, up to the last reply."""
    tokenizer, world = load(name), envs.make(env, tools="native", **ENVIRONMENTS[env])
    row, kind = demonstration(env, world, 3, "train")
    messages, unread = conversation(json.loads(json.dumps(row)), "prompt", "answer")
    messages = [{"loss": message["role"] == "assistant", **message} for message in messages]
    learned = to_episode(tokenizer, messages, 0, 100_000)[0]
    ids = tokenizer.prompt(world.reset(3))
    over = False
    while not over:
        action = world.oracle()
        ids += write_reply(tokenizer, action, world)
        step = world.step(action)
        over = step.terminated or step.truncated
        ids += [] if over else tokenizer.follow_up(ids[-1], [{"role": world.role, "content": step.observation}])
    assert kind == "written"
    assert unread == {"env", "seed", "score"}
    assert learned.ids_T == ids


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Say how warm a city is.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def called(city: str) -> dict:
    return {"type": "function", "function": {"name": "weather", "arguments": {"city": city}}}


TALK = [
    {"role": "user", "content": "How warm is Oslo?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [called("Oslo")]},
    {"role": "tool", "content": "-3 °C"},
    {"role": "assistant", "content": "It is -3 °C."},
    {"role": "user", "content": "And Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [called("Rome"), called('the "eternal" città')]},
    {"role": "tool", "content": "9 °C"},
    {"role": "tool", "content": "There is no such city."},
    {"role": "assistant", "content": "Rome has 9 °C."},
]


def as_openai(message: dict) -> dict:
    """Return a message as files of OpenAI's form have it: the arguments are a text of JSON, calls have ids."""
    calls = [
        {
            "id": f"c{i}",
            **call,
            "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])},
        }
        for i, call in enumerate(message.get("tool_calls", ()))
    ]
    return message | ({"content": message["content"] or None, "tool_calls": calls} if calls else {})


@pytest.mark.all_only
@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "qwen3-2507"])
def test_learned_tokens_of_rows_with_calls_are_those_of_transformers(name, tmp_path):
    """apply_chat_template on Qwen's own tokenizer, cut short, and the templates that mark the assistant's tokens."""
    transformers = pytest.importorskip("transformers")
    file, tokens, _ = FAMILIES[name]
    folder = write_folder(tmp_path / "model", tokens, published(file))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    theirs.chat_template = published(f"{file}_training")
    found = theirs.apply_chat_template(TALK, tools=[WEATHER], return_dict=True, return_assistant_tokens_mask=True)
    ids, mask, line = found["input_ids"], found["assistant_masks"], theirs.encode("\n")[0]
    for i, token in enumerate(ids):  # some templates mark the line breaks around a reply, which are not sampled
        if token == line and not (mask[i - 1] and all(mask[i : i + 2])):
            mask[i] = 0
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": [as_openai(one) for one in TALK], "tools": [WEATHER]}))
    (episode,) = data.load(parse(["algo=sft", f"data={rows}", "max_len=4096"]), Tokenizer(folder)).train
    assert (episode.ids_T, episode.action_mask_T) == (ids[:-1], mask[:-1])  # theirs ends with a line break
    assert len(episode.turns) == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_with_calls_is_learned_by_its_replies(name, load):
    """Llama's template takes one call a message, without text."""
    tokenizer, llama = load(name), name.startswith("llama")
    talk = [{**m, "tool_calls": m["tool_calls"][:1]} if llama and "tool_calls" in m else m for m in TALK]
    talk = [{**m, "content": ""} if llama and "tool_calls" in m else m for m in talk]
    talk = [m for i, m in enumerate(talk) if not (llama and i == 7)]
    row, _ = conversation({"messages": [as_openai(one) for one in talk], "tools": [WEATHER]}, "prompt", "answer")
    messages = [{"loss": message["role"] == "assistant", **message} for message in row]
    episode, _ = to_episode(tokenizer, messages, 0, 100_000)
    read = [tokenizer.calls(episode.ids_T[turn.start : turn.stop]) for turn in episode.turns]
    assert read == [(m["content"], m.get("tool_calls", [])) for m in talk if m["role"] == "assistant"]
    assert sum(episode.action_mask_T) == sum(turn.stop - turn.start for turn in episode.turns)
