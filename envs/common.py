"""Functions that the environments share: splits of tasks, checks of options, forms of prompts and replies."""

import os
import re
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

from envs import prompt_file
from envs.base import Step
from envs.refusal import Refusal

SPLITS = ("train", "val", "test")
PROMPTS = ("native", "short")
TASKS = ("panel", "fresh")
SEVERAL = "Error: Only one 'Action' is allowed per response. Please adjust your response."


def split_of(task: str) -> str:
    """Return the split of a task by a hash of its canonical string: 80 % train, 10 % val, 10 % test."""
    bucket = int.from_bytes(sha256(task.encode()).digest()[:8], "big") % 10
    return "val" if bucket == 8 else "test" if bucket == 9 else "train"


def check_split(split: str) -> None:
    """Raise ValueError if `split` is not one of SPLITS."""
    if split not in SPLITS:
        raise Refusal(f"split must be one of {', '.join(SPLITS)}, not {split!r}")


def check_running(running: bool) -> None:
    """Raise RuntimeError if no episode is running."""
    if not running:
        raise RuntimeError("no episode is running: call reset() first, and again after each end")


def check_prompt(prompt: str, *needed: str) -> None:
    """Raise ValueError if `prompt` is not one of PROMPTS, nor a file with {name} for each needed name."""
    if prompt.endswith(prompt_file.ENDINGS):
        prompt_file.check(prompt, needed)
    elif prompt not in PROMPTS:
        raise Refusal(f"prompt must be 'native' or 'short', not {prompt!r}; or a file that ends in .txt or .md")


def check_tasks(tasks: str, data: str = "") -> None:
    """Raise ValueError if `tasks` is not one of TASKS, or is fresh beside a file of tasks."""
    if tasks not in TASKS:
        raise Refusal(f"tasks must be 'panel' or 'fresh', not {tasks!r}")
    if tasks == "fresh" and data:
        raise Refusal(f"tasks=fresh makes up tasks, and data={data} has its own: leave one of the two out")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError if an option is not a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise Refusal(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_file(what: str, path: str, option: str = "data") -> None:
    """Raise ValueError, naming the most similar file, if the value of an option is not a file."""
    place = Path(path)
    if not os.path.isfile(path):  # before Python 3.14 Path.is_file() raises OSError for a name that is too long
        close = get_close_matches(place.name, [other.name for other in place.parent.glob("*") if other.is_file()], n=1)
        meant = f"; did you mean {str(place.with_name(close[0]))!r}?" if close else ""
        raise Refusal(f"{option} must be {what}: no file {path!r}{meant}")


def nearest(word: str, known: list[str]) -> str:
    """Return a hint: the most similar name with the same first word (tau_bench: tau_retail) or, without one, of all
    names; all names if none is similar."""
    first = re.split("[-_]", str(word))[0]
    same = [name for name in known if name.startswith(f"{first}_")] if first != str(word) else []
    close = get_close_matches(str(word), same, n=1, cutoff=0) or get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from: {', '.join(known)}"


def level_list(difficulty: str, known) -> str:
    """Return a comma list of levels without spaces. Raise ValueError for an unknown level."""
    plain = str(difficulty).replace(" ", "")
    if not set(plain.split(",")) <= set(known):
        raise Refusal(f"difficulty must be a comma list of {', '.join(known)}, not {plain!r}")
    return plain


def check_options(config, levels) -> None:
    """Check the options of every environment with several turns: difficulty, max_turns and prompt.

    Store the difficulty without spaces. Raise ValueError for a bad value.
    """
    set_fields(config, difficulty=level_list(config.difficulty, levels))
    check_count("max_turns", config.max_turns)
    check_prompt(config.prompt)


def set_fields(config, **values) -> None:
    """Set fields of a frozen Config, for its __post_init__ alone."""
    for name, value in values.items():
        object.__setattr__(config, name, value)


def outcome(success: bool, terminated: bool, truncated: bool) -> str:
    """Return info["outcome"] of a step."""
    return "correct" if success else "incorrect" if terminated else "timeout" if truncated else "unknown"


def step_info(success: bool, terminated: bool, truncated: bool, valid: bool, shaped: float) -> dict:
    """Return the entries of Step.info that every environment has."""
    verdict = outcome(success, terminated, truncated)
    return {"outcome": verdict, "success": success, "valid": valid, "shaped": shaped}


def only_step(observation: str, success: bool, valid: bool) -> Step:
    """Return the step that ends an episode of one turn; its reward is 1 for success, else 0."""
    reward = float(success)
    return Step(observation, reward, True, False, step_info(success, True, False, valid, reward))


def opening(form: str, observation: str, instructions: str, agreed: str, short: str) -> list[dict]:
    """Return the messages up to the agent's first turn: one in the short form, else AgentGym's three."""
    if form == "short":
        return [{"role": "user", "content": f"{short}\n{observation}"}]
    messages = ("user", prompt_file.chosen(form, instructions)), ("assistant", agreed), ("user", observation)
    return [{"role": role, "content": text} for role, text in messages]


def form_of(config) -> str:
    """Return the form of the replies: an environment with tools reads their calls in the short form."""
    return "short" if config.tools == "native" else config.prompt


def as_reply(form: str, thought: str, action: str) -> str:
    """Return an expert's action as a reply in the form of the prompt."""
    return action if form == "short" else f"Thought:\n{thought}\n\nAction:\n{action}"


def first_line(reply: str, most: int) -> str:
    """Return the action of a reply in the short form: its first line, at most `most` characters."""
    return reply.strip().partition("\n")[0][:most].rstrip()


def last_action(reply: str, most: int) -> str:
    """Return the text after the last `Action:`, at most `most` characters; "" without the marker."""
    _, marker, action = reply.rpartition("Action:")
    return action.strip()[:most].rstrip() if marker else ""


def only_action(reply: str, most: int) -> str | None:
    """Return the line after `Action:`, at most `most` characters; "" without the marker, None with several."""
    actions = re.findall(r"Action:\s*([^\n]*)", reply)
    if len(actions) > 1:
        return None
    return actions[0][:most].rstrip() if actions else ""


def plain_words(action: str) -> str:
    """Return an action reduced to letters, digits, commas and single spaces."""
    return " ".join(re.sub(r"[^A-Za-z0-9, ]", "", action).split())
