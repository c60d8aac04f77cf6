"""Play an environment, or print an expert's demonstrations of it.

    python -m envs textcraft                    play: type an action, ? for the expert's, ! to play that, q to end
    python -m envs textcraft demos=1000         print oracle episodes as plain text, a blank line after each

Keys, for every environment:
    seed=0        the episode; demonstrations take seed, seed + 1, ...
    split=train   train, val or test
    demos=0       how many demonstrations to print; 0 is to play
"""

import inspect
import re
import sys
from dataclasses import fields
from difflib import get_close_matches

import envs
from envs.base import check_count
from envs.terminal import reader_may_leave, typed

KEYS = {"seed": 0, "split": "train", "demos": 0}
ENDS = ("q", "quit", "exit")
QUOTES = '"""'  # a line of it begins and ends a reply of several lines; there q and exit are words as any
TIP = f"? asks the expert, ! plays its move, q ends the game; several lines go between two lines of {QUOTES}"


@reader_may_leave()
def main(args: list[str]) -> int:
    try:
        if not args or {"-h", "--help"} & set(args):
            print(usage(args))
            return 0
        name, *pairs = args
        keys, options = parse(name, pairs)
        env = envs.make(name, **options)
        if keys["demos"]:
            demonstrate(env, **keys)
        else:
            play(env, env.reset(keys["seed"], keys["split"]))
    except (ValueError, RuntimeError) as error:  # the latter of a server, or a world that asks a model
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print()
        return 130
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
    if re.search("[,:]", name):
        raise ValueError(f"one world is played at a time, without a weight, not {name!r}")
    defaults = KEYS | {f.name: f.default for f in fields(envs.config_class(name))}
    values = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise ValueError(f"expected key=value, not {pair!r}")
        if key not in defaults:
            bare = key.removeprefix(f"{name}.")
            if bare in defaults:
                raise ValueError(f"options are bare here: {bare}={text}, not {pair}")
            close = get_close_matches(bare, defaults, n=1, cutoff=0)
            raise ValueError(f"no key {key!r} for {name}; the nearest is {close[0]!r}")
        values[key] = typed(key, text, type(defaults[key]))
    check_count("demos", values.get("demos", 0), 0)
    return KEYS | {k: v for k, v in values.items() if k in KEYS}, {k: v for k, v in values.items() if k not in KEYS}


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
    print(TIP)
    while (reply := entered()) is not None:
        if reply in ("?", "!"):
            try:
                move = env.oracle()
            except RuntimeError as error:  # there is no expert: the game goes on
                print(error)
                continue
            print(move)
            if reply == "?":
                continue
            reply = move
        step = finished(env.step(f"Action: {reply}" if spares and "Action:" not in reply else reply))
        print(f"{step.observation}\nreward {step.reward:g}, shaped {step.info['shaped']:g}, valid {step.info['valid']}")
        if step.terminated or step.truncated:
            print(f"over: {step.info['outcome']}")
            return
    print()


def entered() -> str | None:
    """The reply that is typed next: a line, or those between two lines of quotes; None where the game shall end."""
    line = ""
    while not line.strip():
        print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line or line.strip().lower() in ENDS:
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
    sys.exit(main(sys.argv[1:]))
