"""Play an environment, or print an expert's demonstrations of it.

    python -m envs textcraft                    play: type an action, ? for the oracle's move, q to quit
    python -m envs textcraft demos=1000         print oracle episodes as plain text, a blank line after each

Keys, for every environment:
    seed=0        the episode; demonstrations take seed, seed + 1, ...
    split=train   train, val or test
    demos=0       how many demonstrations to print; 0 is to play
"""

import inspect
import os
import re
import sys
from contextlib import contextmanager
from dataclasses import fields
from difflib import get_close_matches

import envs

KEYS = {"seed": 0, "split": "train", "demos": 0}


@contextmanager
def reader_may_leave():
    """Around what prints: where nobody reads on (| head), it ends there without a word."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the end


@reader_may_leave()
def main(args: list[str]) -> int:
    try:
        if not args or {"-h", "--help"} & set(args):
            print(usage(args))
            return 0
        name, *pairs = args
        keys, options = parse(name, pairs)
        env = envs.make(name, **options)
        messages = env.reset(keys["seed"], keys["split"])
    except (ValueError, envs.WorldFailed) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        if keys["demos"]:
            demonstrate(env, **keys)
        else:
            play(env, messages)
    except RuntimeError as error:  # of a server that fails, or has no expert; of a world that asks a model
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
    return 0


def usage(args: list[str]) -> str:
    names = [arg for arg in args if not arg.startswith("-") and "=" not in arg] or envs.NAMES
    return __doc__ + "".join(f"\nKeys of {name}:\n{options_help(name)}" for name in names)


def options_help(name: str) -> str:
    """Every field of an environment's Config, with its default and the comment behind it."""
    config = envs.config_class(name)
    comments = dict(re.findall(r"^ +(\w+): .*?  # (.*)$", inspect.getsource(config), re.M))
    return "".join(f"    {f'{f.name}={f.default}':<24}{comments[f.name]}\n" for f in fields(config))


def parse(name: str, pairs: list[str]) -> tuple[dict, dict]:
    """The keys of this program and the options of the environment, each as the type of its default."""
    defaults = KEYS | {f.name: f.default for f in fields(envs.config_class(name))}
    values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"expected key=value, not {pair!r}")
        if key not in defaults:
            close = get_close_matches(key, defaults, n=1, cutoff=0)
            raise ValueError(f"no key {key!r} for {name}; the nearest is {close[0]!r}")
        values[key] = typed(key, text, type(defaults[key]))
    return KEYS | {k: v for k, v in values.items() if k in KEYS}, {k: v for k, v in values.items() if k not in KEYS}


def typed(key: str, text: str, kind: type):
    """The value of a word, as the type of its key's default."""
    if kind is bool and text not in ("true", "false"):
        raise ValueError(f"{key} must be true or false, not {text!r}")
    try:
        return text == "true" if kind is bool else kind(text)
    except ValueError:
        raise ValueError(f"{key} must be a {'whole ' if kind is int else ''}number, not {text!r}") from None


def demonstrate(env, seed: int, split: str, demos: int) -> None:
    for episode in range(seed, seed + demos):
        texts = [message["content"] for message in env.reset(episode, split)]
        over = False
        while not over:
            texts.append(env.oracle())
            step = finished(env.step(texts[-1]))
            texts.append(step.observation)
            over = step.terminated or step.truncated
        print("\n".join(texts), end="\n\n")


def finished(step: envs.Step) -> envs.Step:
    """The step; RuntimeError if it asks a model, which is not here."""
    if step.requests:
        raise RuntimeError(step.observation)
    return step


def play(env, messages: list[dict]) -> None:
    for message in messages:
        print(message["content"], end="\n\n")
    spares = any("\nAction:\n" in message["content"] for message in messages)  # typing what each reply begins with
    while True:
        print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line or line.strip() == "q":
            print()
            return
        if not line.strip():
            continue
        if line.strip() == "?":
            try:
                print(env.oracle())
            except RuntimeError as error:  # there is no expert: the game goes on
                print(error)
            continue
        step = finished(env.step(f"Action: {line}" if spares and "Action:" not in line else line))
        print(f"{step.observation}\nreward {step.reward:g}, shaped {step.info['shaped']:g}, valid {step.info['valid']}")
        if step.terminated or step.truncated:
            print(f"over: {step.info['outcome']}")
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
