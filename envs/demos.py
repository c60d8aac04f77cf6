"""Collect experts' demonstrations as JSON Lines: a conversation in each line, as train.py's data= reads it.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}, ...], "env": "sat",
     "seed": 3, "score": 1.0}

The expert's replies are the assistant's messages; one that belongs to the prompt has "loss": false, so that it is not
learned. With tools=native a row has the columns and messages of tool calls. Episodes that the expert does not solve,
and those whose environment fails, are rejected and counted.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from envs.base import Environment, EnvironmentFailed
from envs.checked import entry
from envs.refusal import Refusal

COUNTS = ("written", "unsolved", "failed")  # of an environment's episodes


def collect(
    environments: dict[str, Environment], seeds: range, split: str, out: Path, buffer: int
) -> dict[str, Counter]:
    """Write a row for each seed, the environments in turn, and return each environment's COUNTS.

    Rows are written in groups of `buffer` to OUT.partial, which becomes `out` at the end. Raise ValueError if no row is
    left, FileExistsError if `out` is there.
    """
    if out.exists():
        raise FileExistsError(f"out={out} is there already; remove it, or choose another out=")
    counts, names = {name: Counter() for name in environments}, list(environments)
    partial, waiting = out.with_name(f"{out.name}.partial"), []
    with open(partial, "w", encoding="utf-8") as file:
        for number, seed in enumerate(seeds):
            name = names[number % len(names)]
            row, kind = demonstration(name, environments[name], seed, split)
            counts[name][kind] += 1
            waiting += [json.dumps(row, ensure_ascii=False) + "\n"] if kind == "written" else []
            if len(waiting) >= buffer:
                file.write("".join(waiting))
                file.flush()
                waiting.clear()
        file.write("".join(waiting))
        file.flush()
        os.fsync(file.fileno())
    if not any(count["written"] for count in counts.values()):
        partial.unlink()
        raise Refusal(f"none of {len(seeds)} episodes was solved by its expert, so {out} is not written")
    os.rename(partial, out)
    return counts


def demonstration(name: str, env: Environment, seed: int, split: str) -> tuple[dict, str]:
    """Return the row of the expert's episode, and which of COUNTS it is. Print why an environment failed."""
    try:
        messages = [_context(message) for message in env.reset(seed, split)]
        score, over = 0.0, False
        while not over:
            reply = expert(env)
            step = env.step(reply)
            messages += [_said(env, reply), {"role": env.role, "content": step.observation}]
            score, over = score + step.reward, step.terminated or step.truncated
        success = entry(step.info, "success")
    except EnvironmentFailed as error:
        print(f"{name}: {error}; the episode is left out", file=sys.stderr)
        return {}, "failed"
    tools = {"tools": messages[0].pop("tools")} if env.tools else {}  # a row declares them in a column
    row = {"messages": messages[:-1], **tools, "env": name, "seed": seed, "score": score}
    return row, "written" if success else "unsolved"


def _said(env: Environment, reply: str) -> dict:
    """Return an expert's reply as a message, with tools as calls."""
    content, calls = env.calls_of(reply) if env.tools else (reply, [])
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})


def expert(env: Environment) -> str:
    """Return the expert's action. Raise ValueError if the environment has no expert."""
    try:
        return env.oracle()
    except EnvironmentFailed:
        raise
    except RuntimeError as error:
        raise Refusal(str(error) or f"{type(env).__module__}: oracle() raised {type(error).__name__}") from None


def lines(counts: dict[str, Counter], out: Path) -> Iterator[str]:
    """Yield the lines that report the counts."""
    for name, count in counts.items():
        rejected = count["unsolved"] + count["failed"]
        reasons = ", ".join(f"{count[kind]} {kind}" for kind in COUNTS[1:] if count[kind])
        yield f"{name}: {count['written']} written, {rejected} rejected{reasons and f' ({reasons})'}"
    total = sum(count["written"] for count in counts.values())
    yield f"{total} rows in {out}; train.py algo=sft data={out} reads them"


def _context(message: dict) -> dict:
    """Return a message of the prompt; one of the assistant's is not learned."""
    return {**message, "loss": False} if message["role"] == "assistant" else dict(message)
