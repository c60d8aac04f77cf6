"""What is installed: files of a wheel, targets of make, the Python that make takes."""

import os
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch

import pytest
from conftest import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_a_wheel_has_every_file_that_is_read():
    data, missing = SETUPTOOLS["package-data"], []
    for room in ("envs", "lora", "models", "recipes", "rl"):
        assert any(fnmatch(room, pattern) for pattern in SETUPTOOLS["packages"]["find"]["include"])
        for path in (ROOT / room).rglob("*.*"):
            name = path.relative_to(ROOT / room).as_posix()
            read = path.is_file() and "__pycache__" not in name and path.suffix not in (".py", ".md")
            if read and not any(fnmatch(name, pattern) for pattern in data[room]):
                missing.append(f"{room}/{name}")
    assert missing == []
    assert SETUPTOOLS["py-modules"] == sorted((path.stem for path in ROOT.glob("*.py")), key="train eval merge".find)


@pytest.mark.all_only
def test_an_installed_copy_trains_as_a_module_with_its_own_recipes(tmp_path):
    pytest.importorskip("setuptools", reason="builds the package without an index")
    source, installed = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs", "*.egg-info", "build"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, f"--target={installed}", source], check=True)
    shutil.rmtree(source)
    words = ["algo=grpo", "recipe=dr_grpo", "epochs=1", "episodes=16", "eval_episodes=0", "ranks=1", "out=run"]
    env = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-m", "train", *words], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0 and "recipe dr_grpo: " in done.stdout, done.stderr
    found = subprocess.run(
        [sys.executable, "-c", "import train; print(train.__file__)"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == str(installed / "train.py")


def test_make_alone_lists_its_targets():
    # Below `make test` make would also print the folders that it enters.
    alone = ["make", "--no-print-directory"]
    said = subprocess.run(alone, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = [line.split()[1] for line in said.splitlines()]
    declared = MAKEFILE.split(".PHONY: ")[1].split()
    assert listed == [name for name in declared if name != "clean"] and len(listed) > 10


@pytest.mark.parametrize("version", ["3, 10, 4", "3, 15, 0"])
def test_make_refuses_another_python_before_it_makes_an_environment(version, tmp_path):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; sys.version_info = ({version}); exec(sys.argv[1])" "$2"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        ["make", f"PYTHON={python}", f"VENV={tmp_path}/venv", "train"], cwd=ROOT, capture_output=True, text=True
    )
    said = f"this needs Python 3.11 to 3.14, and {python} is {version[:-3].replace(', ', '.')}: name another one"
    assert done.returncode and done.stderr.startswith(said) and not (tmp_path / "venv").exists()
