"""The lines of the files that `python train.py algo=ppo` executes: python -m benchmarks.reading_path

models/fast/ (speed alone), rl/guard/ (locks, signals, files, refusals: no number of a run), rl/ranks/ (several
processes), rl/look/ (report.html, track=) and the environments are left out; envs/__init__.py and envs/base.py count.
"""

import ast
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rl import program

ROOT = Path(__file__).parents[1]
READING_ORDER = {  # a step of README's table: its files
    "the loop and its records": ["train.py", "rl/records.py", "rl/state.py"],
    "an algorithm": ["rl/ppo.py", "rl/core.py", "rl/kl.py"],
    "episodes": ["rl/rollout.py", "rl/tasks.py", "rl/reward.py", "envs/base.py", "envs/__init__.py"],
    "learning": ["rl/batch.py", "rl/update.py", "rl/critic.py"],
    "adapters": ["lora/layer.py", "lora/fused.py"],
    "the decoder": [
        f"models/{name}.py"
        for name in ("config", "kernels", "decoder", "layout", "attention", "linear", "rope", "logprob")
    ],
    "sampling": ["models/engine.py", "models/cache.py", "models/random.py"],
    "the configuration": [f"rl/{name}.py" for name in ("config", "arguments", "setup")],
    "logs and evaluation": [f"rl/{name}.py" for name in ("log", "report", "evaluate", "stats")],
}
REST = "files and chat formats"
MARKER = "<!-- python -m benchmarks.reading_path readme=true -->\n"
BESIDE = ("models/fast/", "rl/guard/", "rl/ranks/", "rl/look/")
ROOMS = ["train.py", "rl", "lora", "models", "envs"]
PROGRAM = """
import json, runpy, sys
words = "algo=ppo epochs=1 episodes=2 batch_size=2 eval_episodes=1 ranks=1 products=plain".split()
words += "textcraft.max_turns=1 max_new_tokens=8".split()
sys.argv[1:] = [*words, f"out={sys.argv[1]}/run"]
runpy.run_path("train.py", run_name="__main__")
print(json.dumps([module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)]))
"""


@cache
def reading_path() -> dict[str, int]:
    """Run a small PPO run in a process of its own. Return the lines of each file of ours that it executed, in reading
    order."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", PROGRAM, folder]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    paths = [Path(name) for name in json.loads(done.stdout.splitlines()[-1])]
    files = {path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)} | {"train.py"}
    found = [name for name in files if name.split("/")[0] in ROOMS and not name.startswith(BESIDE)]
    found = [name for name in found if name.split("/")[0] != "envs" or name in ("envs/__init__.py", "envs/base.py")]

    order = [name for names in READING_ORDER.values() for name in names]
    found.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    return {name: lines(name) for name in found}


def lines(name: str) -> int:
    return len((ROOT / name).read_text().splitlines())


def decoder_files() -> dict[str, int]:
    """Return the lines of models/decoder.py and of the files it imports directly, models/fast/ left out."""
    names = {"models/decoder.py"}
    for node in ast.walk(ast.parse((ROOT / "models/decoder.py").read_text())):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        names |= {f"{module.replace('.', '/')}.py" for module in modules}
    return {name: lines(name) for name in sorted(names) if (ROOT / name).is_file() and "/fast/" not in name}


def table(found: dict[str, int]) -> str:
    """Return one line per file, `lines file`, and the total."""
    return "\n".join(f"{count:>5} {name}" for name, count in [*found.items(), ("in all", sum(found.values()))])


def readme_table(found: dict[str, int]) -> str:
    """Return README's table of the reading order: a row per step with its files and their lines."""
    placed = {name for names in READING_ORDER.values() for name in names}
    steps = READING_ORDER | {REST: [name for name in found if name not in placed]}
    rows = ["| read | lines | files, with their lines |", "| --- | ---: | --- |"]
    for step, names in steps.items():
        counts = {name: found[name] for name in names if name in found}
        listed = ", ".join(f"`{name}` {count}" for name, count in counts.items())
        rows.append(f"| {step} | {sum(counts.values()):,} | {listed} |")
    return "\n".join([*rows, f"| in all | {sum(found.values()):,} | {len(found)} files |"]) + "\n"


def in_readme(text: str, block: str) -> str:
    """Return README's text with the table between its two markers replaced."""
    before, _, after = text.split(MARKER)
    return before + MARKER + block + MARKER + after


@dataclass
class Keys:
    readme: bool = False  # also write the table of the reading order into README.md


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "benchmarks.reading_path", Keys, about=__doc__)
    found = reading_path()
    print(table(found))
    if keys.readme:
        path = ROOT / "README.md"
        path.write_text(in_readme(path.read_text(), readme_table(found)))
