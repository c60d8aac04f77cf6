"""The import rule between rooms."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"lora": set(), "models": set(), "envs": set(), "rl": {"lora", "models", "envs"}}
PROGRAMS = {"train", "eval", "merge"}
TINY_PROGRAMS = ("models.tiny.make_tiny", "models.tiny.measure")
# What programs, which nobody imports, may use of rl.
PARSER = {"rl.config.arguments", "rl.config.program", "rl.config.refusals", "rl.config.help", "rl.run.status"}
PARSER |= {"rl.run.early_interrupt"}
RUNTIME = {"torch", "safetensors", "tokenizers", "huggingface_hub", "numpy", "tqdm", "einops", "triton"}
# Only inside a function, where a user or a checkpoint asked for them; jinja2 comes with torch.
OPTIONAL = {"wandb", "tensorboard", "trackio", "matplotlib", "jinja2", "pyarrow"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(p): p for room in ROOMS for p in sorted((ROOT / room).rglob("*.py"))}
FILES |= {name: ROOT / f"{name}.py" for name in sorted(PROGRAMS)}


@cache
def parsed(path: Path) -> ast.Module:
    """Return the file as it runs: without the imports that are for editors."""
    tree = ast.parse(path.read_text())
    tree.body = [node for node in tree.body if not ast.unparse(node).startswith("if TYPE_CHECKING:")]
    return tree


@cache
def imports(path: Path, anywhere: bool = True) -> set[str]:
    """Return the modules that a file imports: at its top level, or `anywhere`.

    `from a import b` is a.b if that is a module.
    """
    tree, found = parsed(path), set()
    for node in ast.walk(tree) if anywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else node.module for name in inner}
    return found


# The rooms of rl, from the lowest to the highest: a file imports only those before its own, directly.
ORDER = ("rl.config", "rl.ranks", "rl.run", "rl.remote", "rl.report", "rl.judge", "rl.merging", "rl.serve")
# What any room may import, because these modules import nothing of a room but one another.
GROUND = {"rl.ranks", "rl.config.arguments", "rl.config.refusals"}
GROUND |= {f"rl.run.{name}" for name in ("early_interrupt", "files", "history", "memory_errors", "phases", "signals")}


@pytest.mark.all_only
def test_rooms_import_only_the_rooms_they_may():
    found = {}
    for module, path in FILES.items():
        room = module.split(".")[0]
        names = imports(path)
        if module.endswith("__main__") or module in TINY_PROGRAMS:
            names = names - PARSER
        if module in ("rl.explain", "rl.library"):
            names = names - {"train"}  # one repeats the stages of the loop, the other runs it
        if module == "eval":
            names = names - {"merge"}  # mode=merge
        tops = {name.split(".")[0] for name in names} & (set(ROOMS) | PROGRAMS | {"tests", "benchmarks"})
        found[module] = tops - {room, *ROOMS.get(room, ROOMS)}
    assert not {module: wrong for module, wrong in found.items() if wrong}, "the import rule"


def test_no_room_of_rl_imports_a_higher_one():
    """Programs, which nobody imports, may use any room."""

    def place(module: str) -> int:
        return ORDER.index(".".join(module.split(".")[:2])) if module.startswith(ORDER) else -1

    wrong = []
    for module, path in FILES.items():
        if place(module) < 0 or module.endswith("__main__") or module == "rl.ranks.join":
            continue
        for name in sorted(imports(path)):
            higher = place(name) >= 0 if module in GROUND else place(name) > place(module)
            if higher and name not in GROUND:
                wrong.append(f"{module} imports {name}")
    assert not wrong, "; ".join(wrong)
    assert {module for module in FILES if place(module) >= 0} >= GROUND


def test_files_import_only_runtime_packages():
    known = {name.split(".")[0] for name in FILES} | sys.stdlib_module_names | RUNTIME
    wrong = {}
    for module, path in FILES.items():
        foreign, at_once = (
            {name.split(".")[0] for name in imports(path, anywhere)} - known for anywhere in (True, False)
        )
        wrong[module] = foreign - OPTIONAL | at_once
    assert not {module: names for module, names in wrong.items() if names}


def test_runtime_packages_match_pyproject():
    import tomllib

    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {line.split(">")[0].replace("-", "_") for line in listed} == RUNTIME


def test_imports_have_no_cycle():
    """A module also imports the packages that contain its imports, except its own."""
    edges = {}
    for module, path in FILES.items():
        around = {module.rsplit(".", n)[0] for n in range(module.count(".") + 1)}
        wanted = {name.rsplit(".", n)[0] for name in imports(path) for n in range(name.count(".") + 1)}
        edges[module] = (wanted & set(FILES)) - around
    done, path = set(), []

    def visit(module: str) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module not in done:
            path.append(module)
            for other in sorted(edges[module]):
                visit(other)
            path.pop()
            done.add(module)

    for module in FILES:
        visit(module)
    assert done == set(FILES) and len(done) > 25


@pytest.mark.parametrize("program", [*(name for name in FILES if name.endswith("__main__")), *TINY_PROGRAMS])
def test_nothing_imports_a_program(program):
    assert [module for module, path in FILES.items() if program in imports(path)] == []
