"""Actions as calls of tools: between the ids of a reply and the action text of an environment (envs/tools.py)."""

import json

import envs
from envs.tools import INVALID, Malformed
from models import Tokenizer
from models.refusal import Refusal as RefusedByModel
from rl.config.fields import Config
from rl.config.refusals import Refusal


def read_action(tokenizer: Tokenizer, ids: list[int], env: envs.Environment) -> str:
    """Return the action text of a sampled reply. With tools, a malformed call becomes INVALID and the reason."""
    if not env.tools:
        return tokenizer.answer(ids)
    try:
        return env.action_of(*tokenizer.calls(ids))
    except (RefusedByModel, Malformed) as error:
        return INVALID + str(error)
    except RecursionError:
        return f"{INVALID}its arguments are nested too deeply"


def write_reply(tokenizer: Tokenizer, action: str, env: envs.Environment) -> list[int]:
    """Return the ids of an expert's action, as the model would sample it."""
    return tokenizer.reply(*env.calls_of(action)) if env.tools else tokenizer.reply(action)


def as_text(action: str, env: envs.Environment) -> str:
    """Return an expert's action as the text of a prompt: with tools, the content, or the call as JSON."""
    if not env.tools:
        return action
    content, calls = env.calls_of(action)
    return json.dumps(calls[0]["function"], ensure_ascii=False) if calls else content


def with_tools(cfg: Config) -> list[str]:
    """Return the names of the environments whose actions are calls of tools."""
    return [name for name, options in cfg.environments.items() if getattr(options, "tools", "none") == "native"]


def check_tools(tokenizer: Tokenizer, cfg: Config) -> None:
    """Raise ValueError if an environment has tools=native, and the checkpoint has no format for calls of tools."""
    for name in with_tools(cfg):
        try:
            tokenizer.check_tools()
        except RefusedByModel as error:
            raise Refusal(f"{name}.tools=native: {error}") from None
