"""Golden files: tests/golden/NAME.jsonl holds one case per line, {"input": ..., "output": ...}, in a fixed order.

`make golden` writes them anew and `git diff` then shows which case changed; `make golden ONLY="sat shell"` writes some.
The environments' files are transcripts: a case starts an episode or is one action. mysql, shell and shell_commands hold
what MariaDB, bash and Debian's programs answered, and are skipped, by name, on a machine without these.
"""

import importlib
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rl.config import program
from rl.config.refusals import hint

FOLDER = Path(__file__).with_name("golden")
ENVIRONMENTS = ["abd", "alfworld", "babyai", "db_bench", "ded", "os_interaction", "planner", "qa", "sat", "sciworld"]
ENVIRONMENTS += ["sums", "tau_retail", "textcraft", "webshop"]
RECORDED = {"mysql": "parity.mariadb", "shell": "parity.shell", "shell_commands": "parity.shell_commands"}


def case(input, output) -> dict:
    return {"input": input, "output": output}


def start(messages: list[dict], seed: int, split: str, **options) -> dict:
    """Return the case that starts an episode: the options that the test chose, and the messages as one text."""
    return case({**options, "split": split, "seed": seed}, "\n".join(f"{m['role']}: {m['content']}" for m in messages))


def action(said: str, step, digits: int | None = None) -> dict:
    """Return the case of one action. `digits` rounds numbers that depend on the machine's mathematical library."""
    output = {"observation": step.observation, "reward": step.reward, **step.info}
    return case(said, output if digits is None else rounded(output, digits))


def rounded(value, digits: int):
    if isinstance(value, dict):
        return {key: rounded(x, digits) for key, x in value.items()}
    return round(value, digits) if isinstance(value, float) else value


def play(env, actions: Iterable[str], digits: int | None = None) -> Iterator[dict]:
    """Yield the case of each action, then of the expert's actions, until the episode is over."""
    actions = iter(actions)
    while env.running:
        said = next(actions, None)
        said = env.oracle() if said is None else said
        yield action(said, env.step(said), digits)


def lines(cases: Iterable[dict]) -> list[str]:
    return [json.dumps(each, ensure_ascii=False) for each in cases]


def read(name: str) -> list[dict]:
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def write(name: str, cases: Iterable[dict]) -> None:
    text = "".join(f"{line}\n" for line in lines(cases))
    (FOLDER / f"{name}.jsonl").write_text(text, encoding="utf-8")


def check(name: str, made: Iterable[dict]) -> None:
    """Assert that the cases equal the file's. Show the first case that differs as {input, output}."""
    expected, found = read(name), [json.loads(line) for line in lines(made)]
    for number, (wanted, got) in enumerate(zip(expected, found, strict=False), 1):
        assert got == wanted, f"tests/golden/{name}.jsonl, line {number}"
    assert len(found) == len(expected) > 0, f"tests/golden/{name}.jsonl"


def cases(name: str) -> list[dict] | str:
    """Return the cases of a golden file made anew, or the reason why the real program cannot be run here."""
    if name in ENVIRONMENTS:
        return importlib.import_module(f"test_{name}").transcript()
    program = importlib.import_module(RECORDED[name])
    return program.available() or program.cases()


@dataclass
class Keys:
    only: str = ""  # the files to write, separated by spaces or commas; all of them by default

    def __post_init__(self) -> None:
        known = [*ENVIRONMENTS, *RECORDED]
        self.names = self.only.replace(",", " ").split() or known
        for name in self.names:
            if name not in known:
                raise ValueError(f"only={name} is not one of {', '.join(known)}{hint(name, known)}")


def main(keys: Keys) -> None:
    for name in keys.names:
        made = cases(name)
        if isinstance(made, str):
            print(f"{name}: not written: {made}")
        else:
            write(name, made)
            print(f"{name}: {len(made)} cases")


if __name__ == "__main__":
    sys.path[:0] = [str(FOLDER.parent / room) for room in ("", "envs", "parity")]  # as pytest puts them
    main(*program.parse(sys.argv[1:], "tests/golden.py", Keys, about=__doc__))
