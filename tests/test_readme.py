"""Files, links, commands and keys in the README and docs/ exist."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
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
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_where_things_happen_names_functions():
    section = README.split("## Where things happen")[1].split("##")[0]
    rows = [line.split("|")[2:4] for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 8
    for files, functions in rows:
        paths = re.findall(r"[\w/]+\.py", files) + (["rl/grpo.py"] if "the algorithm's file" in files else [])
        source = "".join((ROOT / path).read_text() for path in paths)
        names = set(re.findall(r"`(\w+)`", functions))
        assert names or functions.strip() == "see their headers", files
        assert paths and names <= set(re.findall(r"def (\w+)", source)), files


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
    scripts = {ROOT / script for script in re.findall(r"python (\w+\.py)", text)}
    modules = {ROOT / module.replace(".", "/") for module in re.findall(r"python -m ([\w.]+)", text)}
    modules = {ROOT / "tests" / path.relative_to(ROOT) if path.parent.name == "parity" else path for path in modules}
    scripts |= {path / "__main__.py" if path.is_dir() else path.with_suffix(".py") for path in modules}
    assert [script for script in scripts if not script.is_file()] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_key_in_a_command_is_a_key(page, capsys):
    import merge
    from benchmarks import learning
    from envs import __main__ as envs_program
    from envs.serve import __main__ as serve
    from eval import Keys
    from examples import pipeline
    from rl.config.arguments import keys_of
    from rl.config.parse import parse
    from rl.serve import __main__ as rl_serve

    text = re.sub(r"```python.*?```", "", (ROOT / page).read_text(), flags=re.S)
    with pytest.raises(SystemExit):
        parse(["--help", "all"], "train.py", Keys)
    known = set(re.findall(r"^  ([\w.]+)=", capsys.readouterr().out, re.M))
    known |= {
        *keys_of(envs_program.Keys),
        *pipeline.DEFAULTS,
        *keys_of(learning.Keys),
        *keys_of(merge.Keys),
        *keys_of(serve.Keys),
        *keys_of(rl_serve.Keys),
        "track",  # short for track.to
    }
    used = set(re.findall(r"(?<=[ `])([a-z][\w.]*)=[\w./{]", text))
    others = {"torch", "yours.option", "yours.clip", "base_url", "mine"}  # placeholders
    others |= {"guess.numbers", "raft.group_size"}  # of the code in docs/bring_your_own.md
    others |= {
        "copies",
        "times",
        "worlds",
        "demos",
        "distractors",
        "difficulty",
        "growth",
        "matrix",
        "models",
        "prompt",
        "random",
        "readme",
    }  # of other programs
    others |= {
        "before",
        "before_products",
        "clock",
        "now_products",
        "size",
        "large",
        "small",
        "docs",
        "make",
    }  # of benchmarks
    others |= {"dtypes", "kernels", "new", "only", "peaks", "repeats", "rows"}  # likewise
    others |= {"shapes", "tokens", "turns", "warmup"}
    assert used - known - others == set()


def test_derivations_use_the_codes_names():
    """Every name with an underscore is one of rl/ or of lora/layer.py."""
    section = (ROOT / "docs" / "algorithms.md").read_text().split("## Derivations")[1].split("\n## ")[0]
    source = "".join(path.read_text() for path in [*(ROOT / "rl").glob("*.py"), ROOT / "lora" / "layer.py"])
    formulas = {"a_t", "s_t", "r_t", "delta_t", "A_t", "E_pi", "E_old", "E_expert", "s_t+1", "A_t+1"}
    named = set(re.findall(r"\b[a-zA-Z]+_\w+\b", " ".join(re.findall(r"`([^`]+)`", section)))) - formulas
    assert len(named) > 25 and {name for name in named if not re.search(rf"\b{name}\b", source)} == set()
