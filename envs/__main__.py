"""Play an environment, or print an expert's demonstrations of it.

    python -m envs textcraft                    play: type an action, ? shows the expert's, ! plays it, q quits
    python -m envs textcraft demos=1000         print the expert's episodes as plain text, a blank line after each
    python -m envs affine demos=300 out=x.jsonl write them as rows for train.py's data=, the three in turn
    python -m envs textcraft --help             list textcraft's own keys too

Several environments by comma, or a group, have keys with their names: python -m envs sat,abd sat.difficulty=1 ...
Environments: textcraft alfworld babyai webshop sciworld sat abd ded os_interaction db_bench tau_retail planner sums qa http
"""  # noqa: E501  (--help shows the names in one line)

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import envs
from envs import demos
from envs.checked import entry
from envs.demos import expert
from envs.requests import check_no_model
from rl.config import arguments, program
from rl.config.arguments import ArgumentError, NotNegative, Positive
from rl.config.help import quiet_on_closed_pipe
from rl.run import status

QUIT = ("q", "quit", "exit")
QUOTES = '"""'  # a line of these starts and ends a reply of several lines; within it, q and exit are ordinary text
TIP = f"? shows the expert's action, ! plays it, q quits; write several lines between two lines of {QUOTES}"


@dataclass
class Keys:
    env: str  # the environment; it comes first
    seed: int = 0  # the episode; demonstrations use seed, seed + 1, ...
    split: Literal["train", "val", "test"] = "train"  # the split to draw the task from
    demos: NotNegative[int] = 0  # number of the expert's episodes to print or write; 0 plays
    out: str = ""  # write them to this new file, JSON Lines for train.py's data=, and report counts
    buffer: Positive[int] = 100  # rows that are written at a time


def main(words: list[str]) -> None:
    """Run the program. Exit with 2 on a wrong word, with 1 on a failure and with 130 on Ctrl-C."""
    try:
        keys, *configs = parse(words)
        check(keys, configs)
    except ValueError as error:
        arguments.fail("envs", error)
    with status.ends_in_one_line("envs"), quiet_on_closed_pipe():
        made = {name: envs.make(name, **vars(config)) for name, config in zip(names_of(keys.env), configs, strict=True)}
        if keys.out:
            seeds, out = range(keys.seed, keys.seed + keys.demos), Path(keys.out)
            print(*demos.lines(demos.collect(made, seeds, keys.split, out, keys.buffer), out), sep="\n")
        elif keys.demos:
            demonstrate(list(made.values()), keys)
        else:
            [env] = made.values()
            play(env, env.reset(keys.seed, keys.split))


def names_of(text: str) -> list[str]:
    """Return the environments that "a,b" or a group's name stands for. Raise ValueError for one given twice."""
    names = [member for name in text.split(",") for member in envs.GROUPS.get(name.strip(), [name.strip()])]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"{name} is named twice")
    return names


def check(keys: Keys, configs: list) -> None:
    """Raise ArgumentError for keys that do not go together."""
    if len(configs) > 1 and not keys.demos:
        raise ArgumentError(f"{keys.env} are several environments; choose one to play, or give demos=")
    if keys.out and not keys.demos:
        raise ArgumentError(f"out={keys.out} needs demos=, the number of the expert's episodes to write")
    for name in names_of(keys.env) if keys.demos else ():
        if not envs.has_expert(name):
            raise ArgumentError(f"demos={keys.demos} asks an expert, and {name} has none: its Env has no oracle()")
    if keys.out and not Path(keys.out).absolute().parent.is_dir():
        raise ArgumentError(f"out={keys.out} is not in an existing folder")


def parse(words: list[str]) -> list:
    """Return this program's Keys and each environment's Config. Raise ValueError for an unknown environment, and for
    one that would have to ask a model."""
    words = words[:] or ["--help"]
    if arguments.wants_help(words[:1]):
        return program.parse(words, "envs", Keys, about=__doc__, positional="env")
    names = names_of(words[0].removeprefix("env="))
    classes = {name: envs.config_class(name) for name in names}
    for name in names:
        words[1:1] = [f"{name}.{key}={value}" for key, value in envs.WITHOUT_MODEL.get(name, {}).items()]
    if len(names) == 1:
        words[1:] = [word.removeprefix(f"{names[0]}.") for word in words[1:]]  # train.py's form of the keys works too
        found = program.parse(words, "envs", Keys, classes[names[0]], about=__doc__, positional="env")
    else:
        found = program.parse(words, "envs", Keys, about=__doc__, positional="env", **classes)
    for name, config in zip(names, found[1:], strict=True):
        check_no_model(name, vars(config))
    return found


def demonstrate(made: list[envs.Environment], keys: Keys) -> None:
    """Print the experts' episodes, the environments in turn."""
    for number, seed in enumerate(range(keys.seed, keys.seed + keys.demos)):
        env = made[number % len(made)]
        texts = [message["content"] for message in env.reset(seed, keys.split)]
        over = False
        while not over:
            texts.append(expert(env))
            step = env.step(texts[-1])
            texts.append(step.observation)
            over = step.terminated or step.truncated
        print(visible("\n".join(texts)), end="\n\n")


def play(env: envs.Environment, messages: list[dict]) -> None:
    """Print the messages, then read replies and print steps until the episode is over or the person quits."""
    for message in messages:
        print(visible(message["content"]), end="\n\n")
    add_marker = any("\nAction:\n" in message["content"] for message in messages)  # so that nobody has to type it
    print(TIP)
    while (reply := read_reply()) is not None:
        if reply in ("?", "!"):
            try:
                action = expert(env)
            except ValueError as error:
                print(visible(str(error)))
                continue
            print(visible(action))
            if reply == "?":
                continue
            reply = action
        step = env.step(f"Action: {reply}" if add_marker and "Action:" not in reply else reply)
        print(visible(step.observation))
        print(f"reward {step.reward:g}, shaped {entry(step.info, 'shaped'):g}, valid {entry(step.info, 'valid')}")
        if step.terminated or step.truncated:
            print(f"over: {entry(step.info, 'outcome')}")
            return
    print()


def visible(text: str) -> str:
    """Return a text with its control characters, such as the escape codes of a server or a file, written as escapes."""
    return "".join(c if unicodedata.category(c)[0] != "C" or c in "\n\t" else ascii(c)[1:-1] for c in text)


def read_reply() -> str | None:
    """Read the next reply, one line or the lines between two lines of QUOTES. Return None to quit."""
    line = ""
    while not line.strip():
        print("> ", end="", flush=True)
        line = sys.stdin.readline() if sys.stdin else ""  # None: the program was started without
        if not line or line.strip().lower() in QUIT:
            return None
    if line.strip() != QUOTES:
        return line.strip()
    lines = []
    while line:
        print("... ", end="", flush=True)
        line = sys.stdin.readline()
        if line.strip() == QUOTES:
            return "".join(lines)
        lines.append(line)
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
