"""Files, links, commands and keys in the README and docs/ exist."""

import ast
import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ["README.md", "benchmarks/results/README.md"] + [f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")]


def test_the_map_is_the_tree():
    section = README.split("## The map")[1].split("\n\n")[1]
    named = set(re.findall(r"^    (\S+)", section, re.M))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:  # not a git checkout: every file counts
        tracked = [str(p.relative_to(ROOT)) for p in ROOT.glob("*/*") if "." not in p.parts[-2]]
    folders = {path.split("/")[0] + "/" for path in tracked if "/" in path and not path.startswith(".")}
    programs = {path for path in tracked if "/" not in path and path.endswith(".py")}
    assert named == folders | programs


def test_the_reading_order_names_files():
    section = README.split("## Reading order")[1].split("##")[0]
    paths = re.findall(r"[\w/]+\.py", section)
    assert len(paths) > 8 and paths[0] == "examples/grpo.py"
    assert [path for path in paths if not (ROOT / path).is_file()] == []


IMPORTED = """
import sys
from pathlib import Path

import rl.run.early_interrupt
import train
import envs
from models.hooks import hooks
from rl.config import fields

hooks("cpu")  # a run on a CPU loads models/cpu

fields.algorithm_module("ppo")
envs.make("textcraft")
names = {getattr(module, "__file__", None) or "" for module in sys.modules.values()}
root = Path.cwd()
paths = {Path(name).resolve() for name in names if name.startswith(str(root))}
print(*sorted(str(path.relative_to(root)) for path in paths if path.is_file() and ".venv" not in path.parts))
"""


@pytest.fixture(scope="module")
def imported() -> list[str]:
    """Return the files of this repository that `python train.py algo=ppo` imports."""
    done = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def lines_of(paths: list[str]) -> int:
    return sum(len((ROOT / path).read_text().splitlines()) for path in paths)


def numbers_in(text: str, pattern: str) -> list[int]:
    """Return the groups of the pattern in a text without its line breaks, as numbers."""
    found = re.search(pattern, " ".join(text.split()))
    assert found, f"no text like {pattern}"
    return [int(number.replace(",", "")) for number in found.groups()]


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_stated_numbers_of_imported_files_and_lines_are_true(imported, page):
    """They are within 3 %, so that a small change does not need a new number."""
    pattern = r"imports ([\d,]+) files (?:of this repository, )?with ([\d,]+) lines"
    measured = [len(imported), lines_of(imported)]
    assert numbers_in((ROOT / page).read_text(), pattern) == [pytest.approx(n, rel=0.03) for n in measured], measured


def test_files_of_the_method_are_imported(imported):
    section = (ROOT / "docs" / "architecture.md").read_text().split("## The files of the method")[1].split("\n## ")[0]
    named = re.findall(r"^\| `([\w/]+\.py)`", section, re.M)
    assert len(named) > 15 and len(set(named)) == len(named)
    assert "examples/grpo.py" in named and (ROOT / "examples" / "grpo.py").is_file()
    assert set(named) - {"examples/grpo.py"} <= set(imported)


def test_stated_lines_of_the_first_files_are_true():
    """They are within 3 %."""
    section = README.split("## Reading order")[1].split("\n## ")[0]
    paths = re.findall(r"^\| \d \| `([\w/]+\.py)`", section, re.M)
    paths += re.findall(r"`([\w/]+\.py)`", section.split("\nThen ")[1].split(". ")[0])
    assert len(set(paths)) == 9 and "These nine files" in section
    assert numbers_in(section, r"These nine files have about ([\d,]+) lines") == [
        pytest.approx(lines_of(paths), rel=0.03)
    ]


def test_stated_numbers_of_the_methods_files_and_lines_are_true():
    """The number of files is exact, that of lines within 3 %."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("## The files of the method")[1].split("\n## ")[0]
    paths = re.findall(r"^\| `([\w/]+\.py)`", section, re.M)
    measured = [len(paths), pytest.approx(lines_of(paths), rel=0.03)]
    assert numbers_in(README, r"lists the (\d+) files of the method, with about ([\d,]+) lines") == measured
    assert numbers_in(page, r"the (\d+) files of the table above, with about ([\d,]+) lines") == measured


def test_where_things_happen_pairs_files_with_names():
    """The names between two semicolons are defined in the file at the same place; of a single file, all names are."""
    section = (ROOT / "docs" / "architecture.md").read_text().split("## Where things happen")[1].split("##")[0]
    rows = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 30
    for files, names in rows:
        paths = re.findall(r"[\w/]+\.py", files.replace("the algorithm's file", "rl/grpo.py"))
        parts = names.split(";") if len(paths) > 1 else [names]
        assert len(parts) == len(paths), f"{files}: as many parts as files"
        for path, part in zip(paths, parts, strict=True):
            named = set(re.findall(r"`(\w+)`", part))
            defined = set(re.findall(r"^ *(?:def|class) (\w+)", (ROOT / path).read_text(), re.M))
            assert named and named <= defined, f"{path}: {part}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not link.startswith("http") and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists(page):
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:`|^    )make ([a-z][\w-]*)\b", text, re.M)) <= targets
    scripts = {ROOT / script for script in re.findall(r"python\s([\w/]+\.py)", text)}
    modules = {ROOT / module.replace(".", "/") for module in re.findall(r"python -m ([\w.]+)", text)}
    modules = {ROOT / "tests" / path.relative_to(ROOT) if path.parent.name == "parity" else path for path in modules}
    scripts |= {path / "__main__.py" if path.is_dir() else path.with_suffix(".py") for path in modules}
    assert [script for script in scripts if not script.is_file()] == []


def options_of(path: Path) -> set[str]:
    """Return the keys of a program: the fields of its classes Keys, Options and Config."""
    text, names = path.read_text(), ("Keys", "Options", "Config")
    nodes = ast.parse(text).body if any(f"class {name}" in text for name in names) else []
    classes = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name in names]
    return {n.target.id for own in classes for n in own.body if isinstance(n, ast.AnnAssign)}


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """Return the keys of train.py and eval.py, by their help, and those of the other programs, by their source."""
    from eval import Keys
    from rl.config.words import parse

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit):
        parse(["--help", "all"], "train.py", Keys)
    programs = [ROOT / "merge.py", *(ROOT / "rl").glob("*.py"), *(ROOT / "rl" / "report").glob("*.py")]
    programs += (ROOT / "tests").glob("*.py")
    for folder in ("benchmarks", "envs", "examples", "models", "rl/serve", "tests/parity"):
        programs += (ROOT / folder).rglob("*.py")
    return {
        *re.findall(r"^  ([\w.]+)=", printed.getvalue(), re.M),
        *(key for path in programs for key in options_of(path)),
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_key_in_a_command_is_a_key(page, keys):
    text = re.sub(r"```python.*?```", "", (ROOT / page).read_text(), flags=re.S)
    used = set(re.findall(r"(?<=[ `])([a-z][\w.]*)=[\w./{]", text))
    others = {"track"}  # short for track.to
    others |= {"torch", "yours.option", "yours.clip", "base_url", "mine"}  # placeholders
    others |= {"guess.numbers", "raft.group_size"}  # of the code in docs/bring_your_own.md
    assert used - keys - others == set()


def test_derivations_use_the_codes_names():
    """Every name with an underscore is one of rl/ or of lora/layer.py."""
    section = (ROOT / "docs" / "algorithms.md").read_text().split("## Derivations")[1].split("\n## ")[0]
    source = "".join(path.read_text() for path in [*(ROOT / "rl").glob("*.py"), ROOT / "lora" / "layer.py"])
    formulas = {"a_t", "s_t", "r_t", "delta_t", "A_t", "E_pi", "E_old", "E_expert", "s_t+1", "A_t+1"}
    named = set(re.findall(r"\b[a-zA-Z]+_\w+\b", " ".join(re.findall(r"`([^`]+)`", section)))) - formulas
    assert len(named) > 25 and {name for name in named if not re.search(rf"\b{name}\b", source)} == set()
