"""The lines of the files that `python train.py algo=ppo` executes: python -m benchmarks.reading_path

models/fast/, which only makes it faster, and the environments are left out; envs/__init__.py and envs/base.py count.
"""

import ast
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ORDER = [
    "train.py",
    *(f"rl/{name}.py" for name in ("records", "ppo", "core", "kl", "reward", "rollout", "tasks", "batch")),
]
ORDER += [f"rl/{name}.py" for name in ("update", "critic", "state", "setup", "config")]
ROOMS = ["train.py", "rl", "lora", "models", "envs"]
PROGRAM = """
import json, runpy, sys
sys.argv[1:] = ["algo=ppo", "epochs=1", "episodes=8", "batch_size=8", "eval_episodes=2", f"out={sys.argv[1]}/run"]
runpy.run_path("train.py", run_name="__main__")
print(json.dumps([module.__file__ for module in list(sys.modules.values()) if getattr(module, "__file__", None)]))
"""


def reading_path() -> dict[str, int]:
    """Run a small PPO run in a process of its own. Return the lines of each file of ours that it executed, in reading
    order."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", PROGRAM, folder]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    paths = [Path(name) for name in json.loads(done.stdout.splitlines()[-1])]
    files = {path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)} | {"train.py"}
    found = [name for name in files if name.split("/")[0] in ROOMS and not name.startswith("models/fast/")]
    found = [name for name in found if name.split("/")[0] != "envs" or name in ("envs/__init__.py", "envs/base.py")]

    def place(name: str) -> tuple:
        return ROOMS.index(name.split("/")[0]), ORDER.index(name) if name in ORDER else len(ORDER), name

    return {name: lines(name) for name in sorted(found, key=place)}


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


if __name__ == "__main__":
    print(table(reading_path()))
