"""Read the conversations of strangers' rows and requests: each key is honoured, refused by name, or reported as unread.

A message becomes {"role", "content"}, and where the row has them
    "loss"        whether the assistant's message is learned; every spelling of FLAGS is read
    "tool_calls"  [{"type": "function", "function": {"name": text, "arguments": object}}, ...]
    "tools"       in the first message: the JSON schemas of the tools that the conversation declares
Whether a chat format can write tool calls is models/chat's to say. Thoughts beside a content are put before it, between
<think> and </think>, as the templates of Qwen3 and DeepSeek-R1 write them.
"""

import json
import re

from envs.refusal import Refusal
from envs.rows import unpack

ROLES = {"human": "user", "gpt": "assistant"} | {role: role for role in ("system", "user", "assistant", "tool")}
FLAGS = ("loss", "weight", "train", "trainable", "training", "learn", "loss_mask", "loss_weight")
UNLEARNED = ("masked", "no_loss", "ignore_loss")  # flags that are true where the message is not learned
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
CALLS = ("tool_calls", "function_call")
OF_TOOLS = ("tool_call_id", "name")  # of a tool's message; the templates that are supported do not write them
# keys of a message that say nothing about its text
HARMLESS = ("id", "index", "created", "created_at", "timestamp", "finish_reason", "stop_reason", "model", "annotations")
# columns that would change a row's text or its loss, but are not understood: of every row, of rows with answers,
# and of rows whose prompt is a column
MEANINGFUL = {
    *("functions", "function_call", "tool_choice", "response_format", "chat_template", "chat_template_kwargs"),
    *("enable_thinking", "system_message", "system_messages", "instructions", "image", "images", "video", "videos"),
    *("audio", "audios"),
}
LEARNED = {"prefix", "suffix", *THOUGHTS}
BESIDE_PROMPT = {"context", "passage", "document", "documents", "choices", "options", "input", "instruction"}
FLAG_LIKE = re.compile("mask|loss|train|learn|weight|flag", re.IGNORECASE)  # names of lists of flags
LISTS = ("messages", "conversations")


def conversation(row: object, prompt: str, answer: str = "") -> tuple[list[dict], set[str]]:
    """Return the messages of a row, and its columns that were not read.

    prompt, answer: names of columns; without `answer` the conversation ends with the question. The columns go before
    messages that the row has too; a row without them has its conversation under `messages` or `conversations`.
    Raise ValueError with one line for a row that has neither, and for a key that is not understood.
    """
    if not isinstance(row, dict):
        raise Refusal("not a JSON object")
    if _is_table(row):
        raise Refusal('one object of columns, not rows: pandas writes rows with orient="records", lines=True')
    row = {name: value for name, value in row.items() if not _is_empty(value) or name in (prompt, answer, *LISTS)}
    read, refused = {"system", "system_prompt", "tools"}, MEANINGFUL | (LEARNED if answer else set())
    if row.get(prompt) is not None and (not answer or row.get(answer) is not None):
        messages, used = _of_columns(row, prompt, answer)
        refused = refused | BESIDE_PROMPT
    else:
        messages, used = _of_list(row, prompt, answer)
    if not messages:
        raise Refusal("a conversation is a list of messages, and there are none")
    read |= used
    if answer:  # a question has no loss
        read |= {*FLAGS, *UNLEARNED}
        _mark(messages, row)
    for name in sorted(row.keys() - read):
        if name.lower() in refused | {"system", "system_prompt"}:
            raise Refusal(f"the column {name!r} is not read, and the row may say something else without it")
        if answer and FLAG_LIKE.search(name) and _are_flags(row[name], messages):
            known = ", ".join(FLAGS)
            raise Refusal(f"the column {name!r} looks like a flag for each message; rename it to one of {known}")
    messages = _with_system(messages, row)
    if tools := declared_tools(row.get("tools")):
        if messages[0]["role"] == "assistant":
            raise Refusal("it declares tools, and begins with a message of the assistant")
        messages[0] = {**messages[0], "tools": tools}
    return messages, row.keys() - read


def _is_table(row: dict) -> bool:
    """Return whether an object has columns: {"0": value, ...} under each key, as pandas writes them, or equal lists.

    A row that can be read is no table: it has a text, or a list with an object for each message.
    """
    columns = [value for value in row.values() if value]
    if columns and all(isinstance(column, dict) for column in columns):
        return all(str(key).isdecimal() for column in columns for key in column)
    lists = [column for column in columns if isinstance(column, list) and not any(isinstance(v, dict) for v in column)]
    return len(lists) == len(columns) > 1 and len({*map(len, lists)}) == 1


def _of_columns(row: dict, prompt: str, answer: str) -> tuple[list[dict], set[str]]:
    """Return the messages of a question and its answer, with alpaca's `input` and `history`; and the columns read."""
    asked, used = row[prompt], {prompt, answer, "history"}
    if prompt == "input" and "instruction" in row:
        raise Refusal("it has an instruction beside the input: name instruction as the prompt's column")
    if prompt == "instruction" and "input" in row and answer != "input":
        if not isinstance(asked, str) or not isinstance(row["input"], str):
            raise Refusal(f"its instruction and its input must be texts, not {_short([asked, row['input']])}")
        asked, used = f"{asked}\n{row['input']}", used | {"input"}
    messages = _history(row.get("history"))
    if isinstance(asked, list):
        messages += [message(one) for one in asked]
    elif isinstance(asked, str):
        messages += [{"role": "user", "content": asked}]
    else:
        raise Refusal(f"there must be a text or messages under {prompt!r}, not {_short(asked)}")
    if answer:
        if not isinstance(row[answer], str):
            raise Refusal(f"there must be a text under {answer!r}, not {_short(row[answer])}")
        messages += [{"role": "assistant", "content": row[answer], "loss": True}]
        messages[:-1] = [one | {"loss": False} if one["role"] == "assistant" else one for one in messages[:-1]]
    return messages, used


def _history(pairs: object) -> list[dict]:
    """Return alpaca's earlier turns, a list of [question, answer], as messages that are context."""
    if pairs is None:
        return []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair) for pair in pairs
    ):
        raise Refusal(f"its history must be a list of [question, answer], not {_short(pairs)}")
    earlier = []
    for question, reply in pairs:
        earlier += [{"role": "user", "content": question}, {"role": "assistant", "content": reply, "loss": False}]
    return earlier


def _of_list(row: dict, prompt: str, answer: str) -> tuple[list[dict], set[str]]:
    """Return the messages of a conversation's list, and the columns read."""
    names = [name for name in LISTS if row.get(name) is not None]
    if not names:
        nulls = [name for name in (*LISTS, prompt, answer) if name in row and row[name] is None]
        if nulls and (nulls[0] in LISTS or {prompt, answer or prompt} <= row.keys()):
            raise Refusal(f"its {nulls[0]!r} is null: leave the row out")
        wanted = f"a text under {prompt!r}" + (f" and {answer!r}" if answer else "")
        there = ", ".join(repr(name)[1:-1][:80] for name in list(row)[:20])
        other = " (sft.prompt_column= and sft.answer_column= name other columns)" if answer else ""
        raise Refusal(f"neither messages nor conversations nor {wanted}; there is: {there}{other}")
    if len(names) == 2 and row[names[0]] != row[names[1]]:
        raise Refusal("it has messages and conversations, which differ: leave one of them out")
    listed = row[names[0]]
    if not isinstance(listed, list):
        raise Refusal(f"a conversation is a list of messages, not {_short(listed)}")
    return [message(one) for one in listed], set(names)


def _are_flags(value: object, messages: list[dict]) -> bool:
    """Return whether a column's value is a list with a yes or no for each message."""
    return isinstance(value, list) and len(value) == len(messages) and all(flag in (0, 1) for flag in value)


def _with_system(messages: list[dict], row: dict) -> list[dict]:
    """Return the messages behind the row's own system message."""
    texts = [row[name] for name in ("system", "system_prompt") if name in row]
    if not texts:
        return messages
    if not isinstance(texts[0], str) or texts[0] != texts[-1]:
        raise Refusal(f"its system prompt must be one text, not {_short(texts)}")
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": texts[0]}, *messages]
    if messages[0]["content"] != texts[0]:
        raise Refusal("it has a system column and a system message, which differ: leave one of them out")
    return messages


def _mark(messages: list[dict], row: dict) -> None:
    """Set "loss" where the row has a list with a flag for each message. Raise ValueError for one flag for the row."""
    for name in (*FLAGS, *UNLEARNED):
        flags = row.get(name)
        if flags is None or (not isinstance(flags, list) and _flag(name, flags)):
            continue
        if not isinstance(flags, list):
            raise Refusal(f"{name}={_short(flags)} of a whole row is not supported: leave the row out of the file")
        if len(flags) != len(messages):
            raise Refusal(f"its {name} has {len(flags)} entries for {len(messages)} messages")
        for one, learned in zip(messages, [_flag(name, value) for value in flags], strict=True):
            if one["role"] == "assistant":
                if one.setdefault("loss", learned) is not learned:
                    raise Refusal(f"its {name} says otherwise than the flag of a message")
            elif learned and name in FLAGS:
                raise Refusal(
                    f"its {name} wants a message of the {one['role']} to be learned; only the assistant's are"
                )


def message(given: object) -> dict:
    """Return one message of a stranger's conversation. Raise ValueError for a key or value that is not understood."""
    fields = {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else {}
    for key, other in (("role", "from"), ("content", "value")):
        if key in fields and fields.get(other, fields[key]) != fields[key]:
            raise Refusal(f"a message has {key} and {other}, which differ")
    role, content = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
    calls = _calls(fields)
    content = _text(content) if content is not None else "" if calls else None
    if not (isinstance(role, str) and role in ROLES and isinstance(content, str)):
        raise Refusal(f"a message needs a role of {', '.join(ROLES)} and a text, not {_short(given)}")
    said = {"role": ROLES[role], "content": content}
    is_assistant = said["role"] == "assistant"
    allowed = {"role", "from", "content", "value", *HARMLESS}
    if is_assistant:
        allowed |= {*FLAGS, *UNLEARNED, *THOUGHTS, *CALLS}
        said["content"] = _with_thoughts(fields, content)
        flags = {_flag(name, fields[name]) for name in (*FLAGS, *UNLEARNED) if name in fields}
        if len(flags) > 1:
            raise Refusal(f"two flags of a message contradict each other: {_short(given)}")
        if flags:
            said["loss"] = flags.pop()
        said |= {"tool_calls": calls} if calls else {}
    if said["role"] == "tool":
        allowed |= {*OF_TOOLS}
    for key in sorted(fields.keys() - allowed):
        if key in FLAGS and _flag(key, fields[key]):
            raise Refusal(f"{key} wants a message of the {said['role']} to be learned; only the assistant's are")
        if key not in (*FLAGS, *UNLEARNED) and not _is_empty(fields[key]):
            known = ", ".join(sorted(allowed - {"from", "value", *HARMLESS}))
            raise Refusal(f"the key {key!r} of a message of the {said['role']} is not supported; there are {known}")
    return said


def _text(content: object) -> object:
    """Return the text of OpenAI's list of parts; any other content as it is."""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return content
    for part in content:
        if part.keys() - {"type", "text"} or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Refusal(f"only parts of type text are supported in a content, not {_short(part)}")
    return "".join(part["text"] for part in content)


def _with_thoughts(fields: dict, content: str) -> str:
    """Return the content behind the thoughts that stand beside it."""
    thoughts = {fields[name] for name in THOUGHTS if isinstance(fields.get(name), str) and fields[name]}
    if odd := [name for name in THOUGHTS if not isinstance(fields.get(name, ""), str)]:
        raise Refusal(f"{odd[0]} must be a text, not {_short(fields[odd[0]])}")
    if not thoughts:
        return content
    if len(thoughts) > 1 or "</think>" in content:
        raise Refusal("a message has its thoughts twice: leave one of them out")
    return f"<think>\n{thoughts.pop()}\n</think>\n\n{content}"


def _calls(fields: dict) -> list[dict]:
    """Return the calls of tools in OpenAI's form, their arguments as objects."""
    calls = fields.get("tool_calls") or []
    if function := fields.get("function_call"):
        calls = [*calls, {"function": function}] if isinstance(calls, list) else calls
    if not isinstance(calls, list):
        raise Refusal(f"tool_calls must be a list, not {_short(calls)}")
    read = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, dict) else {}
        name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else (0, 0)
        arguments = unpack(arguments or "{}") if isinstance(arguments, str) else arguments
        if not isinstance(name, str) or not name or not isinstance(arguments, dict):
            raise Refusal(f"a tool call needs a name and an object of arguments, not {_short(call)}")
        try:
            json.dumps(arguments, allow_nan=False)
        except (ValueError, TypeError, RecursionError):
            raise Refusal(f"a tool call has arguments that JSON cannot write: {_short(call)}") from None
        read.append({"type": "function", "function": {"name": name, "arguments": arguments}})
    return read


def without_flag(message: dict) -> dict:
    """Return a message without its flag `loss`, which says whether it is learned."""
    return {key: value for key, value in message.items() if key != "loss"}


def declared_tools(given: object) -> list[dict]:
    """Return the declared tools, which may stand in a text of JSON. Raise ValueError for any other value."""
    tools = unpack(given) if isinstance(given, str) else given
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise Refusal(f"tools must be a list of objects, not {_short(given)}")
    return tools or []


def _flag(name: str, value: object) -> bool:
    """Return whether a flag of a message says that it is learned. Raise ValueError for a value that is no yes or no."""
    words = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
    flag = words.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(flag, int | float) or flag not in (0, 1):
        raise Refusal(f"{name} must be true or false, 1 or 0, not {_short(value)}: a message has no other weight")
    return bool(flag) is not (name in UNLEARNED)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _short(value: object) -> str:
    return str(value)[:80]
