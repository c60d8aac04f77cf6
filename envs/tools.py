"""Actions as calls of tools (ENV.tools=native): schemas, and the checks that the environments share.

An environment with tools offers JSON schemas in its first message. A call becomes the environment's own action text
(Environment.action_of); a malformed one becomes INVALID and the reason, which the environment answers by its own rules.
"""

from envs.refusal import Refusal

INVALID = "invalid tool call: "  # the start of the action text of a malformed call
TOOLS = ("none", "native")
TEXT, COUNT = {"type": "string"}, {"type": "integer"}
TEXTS = {"type": "array", "items": TEXT}


class Malformed(ValueError):
    """A call is not one that the environment offers; the error's text is the reason."""


def check_tools(tools: str, prompt: str) -> None:
    """Raise ValueError if `tools` is not one of TOOLS, or is native beside a form of the prompt that it replaces."""
    if tools not in TOOLS:
        raise Refusal(f"tools must be 'none' or 'native', not {tools!r}")
    if tools == "native" and prompt != "native":
        raise Refusal(f"tools=native has a prompt of its own, in place of prompt=native; here prompt={prompt}")


def function(name: str, description: str, **properties: dict) -> dict:
    """Return a tool as a JSON schema, in the layout of function calling. All properties are required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def call_of(name: str, **arguments: object) -> tuple[str, list[dict]]:
    """Return an expert's action as a reply's content, which is empty, and its one call."""
    return "", [{"type": "function", "function": {"name": name, "arguments": arguments}}]


def only_call(calls: list[dict]) -> tuple[str, dict]:
    """Return the name and the arguments of a reply's only call. Raise Malformed for none and for several."""
    if len(calls) != 1:
        raise Malformed(f"a reply has one call, not {len(calls)}")
    made = calls[0]["function"]
    return made["name"], made["arguments"]


def known_call(calls: list[dict], tools: list[dict]) -> tuple[str, dict]:
    """Return the name and the arguments of a reply's only call, which fit a tool's schema. Raise Malformed if not."""
    name, arguments = only_call(calls)
    schemas = {tool["function"]["name"]: tool["function"]["parameters"]["properties"] for tool in tools}
    if name not in schemas:
        raise Malformed(f"there is no tool {name[:40]!r}, only {', '.join(schemas)}")
    for key in arguments:
        if key not in schemas[name]:
            raise Malformed(f"{name} has no argument {key[:40]!r}")
    for key, kind in schemas[name].items():
        if key not in arguments:
            raise Malformed(f"{name} needs the argument {key!r}")
        if not _fits(arguments[key], kind):
            raise Malformed(f"{name}: {key} must be of type {kind['type']}, not {str(arguments[key])[:40]!r}")
    return name, arguments


def _fits(value: object, kind: dict) -> bool:
    """Return whether a value of JSON has the type of a schema."""
    if kind["type"] == "array":
        return isinstance(value, list) and bool(value) and all(_fits(one, kind["items"]) for one in value)
    return type(value) is {"string": str, "integer": int}[kind["type"]]
