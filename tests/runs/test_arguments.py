"""The parser of key=value: words become typed values, and a wrong word is one line with the nearest valid key."""

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from cases import cases

from rl.config import arguments, program
from rl.config.arguments import NotNegative, Positive

CASES = cases("arguments")

SOURCE = Path(arguments.__file__)
PARSER = ("arguments", "program", "refusals", "help")


@dataclass(frozen=True)
class Keys:
    out: str  # where it goes
    rate: Positive[float] = 0.5  # how fast
    limit: Positive[int] | None = None  # most steps
    seed: NotNegative[int] = 0  # of everything
    mode: Literal["fast", "exact"] = "fast"  # how
    force: bool = False  # go on
    names: str = "a,b"  # some names


@dataclass(frozen=True)
class Group:
    size: int = 3  # how many

    def __post_init__(self):
        if self.size == 13:
            raise ValueError("size must not be 13")


def parse(*words: str) -> tuple[Keys, Group]:
    return tuple(program.parse(["out=x", *words], "prog.py", Keys, about="About it.", team=Group))


@pytest.mark.parametrize(("word", "value"), CASES["values"])
def test_words_become_values_of_the_fields_type(word, value):
    found = getattr(parse(word)[0], word.lstrip("-").partition("=")[0])
    assert found == value and type(found) is type(value)


def test_later_words_win_and_groups_have_their_prefix():
    keys, group = parse("rate=2", "rate=3", "team.size=4")
    assert (keys.rate, keys.out, group.size) == (3.0, "x", 4)


@pytest.mark.parametrize(("word", "line"), CASES["wrong words"])
def test_wrong_word_is_one_line_and_status_2(word, line, capsys):
    with pytest.raises(SystemExit) as end:
        parse(word)
    assert end.value.code == 2
    assert capsys.readouterr() == ("", f"prog.py: {line}\n")


def test_missing_key_is_named(capsys):
    with pytest.raises(SystemExit) as end:
        program.parse([], "prog.py", Keys)
    assert end.value.code == 2 and capsys.readouterr().err == "prog.py: out= is missing; --help lists the keys\n"


def test_first_bare_word_sets_the_positional_key(capsys):
    [keys] = program.parse(["here", "rate=2"], "prog.py", Keys, positional="out")
    assert (keys.out, keys.rate) == ("here", 2.0)
    with pytest.raises(SystemExit):
        program.parse(["rate=2", "here"], "prog.py", Keys, positional="out")
    assert "'here' is not key=value" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_every_key_default_and_comment(word, capsys):
    with pytest.raises(SystemExit) as end:
        parse("rate=quick", word)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert end.value.code == 0
    assert "About it." in lines
    for line in ("out= where it goes", "rate=0.5 how fast", "limit=none most steps", "force=false go on"):
        assert line in lines
    assert "mode=fast how: fast | exact" in lines and "team.size=3 how many" in lines


@pytest.mark.parametrize("full", [False, True])
def test_help_to_a_closed_pipe_or_full_disk_has_no_traceback(full):
    program = "from rl.config.help import print_and_exit; print_and_exit('x' * 100000)"
    read, write = os.pipe()
    os.close(read)
    with open("/dev/full", "w") as disk:
        out = disk if full else write
        done = subprocess.run([sys.executable, "-c", program], stdout=out, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == ((1, b"cannot print: No space left on device\n") if full else (0, b""))


def test_parser_imports_the_standard_library_and_its_own_files():
    for path in [SOURCE.with_name(f"{name}.py") for name in PARSER]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [f"{node.module}.{a.name}" for a in node.names] if isinstance(node, ast.ImportFrom) else []
            ours = [name.split(".")[1:3] for name in names if name.startswith("rl.")]
            assert all(room == "config" and file in PARSER for room, file in ours)
            assert all(name.partition(".")[0] in {*sys.stdlib_module_names, "rl"} for name in names)
