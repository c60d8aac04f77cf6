"""What the README says is there, is there."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_map_is_the_tree():
    section = README.split("## The map")[1].split("##")[0]
    named = set(re.findall(r"^    (\S+)", section, re.M))
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:  # not a git checkout: what lies there
        tracked = [str(p.relative_to(ROOT)) for p in ROOT.glob("*/*") if "." not in p.parts[-2]]
    folders = {path.split("/")[0] + "/" for path in tracked if "/" in path and not path.startswith(".")}
    programs = {path for path in tracked if "/" not in path and path.endswith(".py")}
    assert named == folders | programs


def test_every_file_of_the_reading_order_is_there():
    section = README.split("## Reading order")[1].split("##")[0]
    paths = re.findall(r"`([\w/]+\.py)`", section)
    assert len(paths) > 8
    assert [path for path in paths if not (ROOT / path).is_file()] == []


def test_every_command_is_there():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"\bmake ([a-z][\w-]*)\b", README)) <= targets
    for script in re.findall(r"python (\w+\.py)", README):
        assert (ROOT / script).is_file()


def test_every_key_in_a_command_is_a_key():
    import merge
    from eval import Keys
    from rl.config import help_text

    known = set(re.findall(r"^  ([\w.]+)=", help_text("train.py", Keys), re.M)) | set(merge.KEYS)
    used = set(re.findall(r"(?<=[ `])([a-z][\w.]*)=[\w./{]", README)) - {"VENV"}
    assert used - known - {"torch", "yours.option"} == set()
