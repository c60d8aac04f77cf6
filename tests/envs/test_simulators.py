"""The simulators stand alone: they import nothing of the environments that run on them."""

import ast
from pathlib import Path

import pytest

pytestmark = pytest.mark.all_only

ROOT = Path(__file__).parents[2]
SIMULATORS = "envs.simulators"
# The matcher of the shell and MySQL; errors worded for the user; fcntl, or the line that names Linux.
SHARED = (f"{SIMULATORS}.regex.", "envs.refusal.", "envs.linux.")
FILES = sorted((ROOT / "envs" / "simulators").rglob("*.py"))


def own_imports(path: Path) -> set[str]:
    """Return the modules of this project that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("envs", "models", "lora", "rl", "train", "eval", "merge")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "envs" / "simulators")))
def test_simulators_import_only_their_own_simulator(path):
    own = path.relative_to(ROOT / "envs" / "simulators").parts[0].removesuffix(".py")
    foreign = {name for name in own_imports(path) if not name.startswith((f"{SIMULATORS}.{own}", *SHARED))}
    assert foreign - {f"{SIMULATORS}.{own}"} == set(), "a simulator imports only itself and what SHARED names"
