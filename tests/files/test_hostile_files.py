"""Hostile files and words end in one clear line, in two seconds and 500 MB. tests/hostile_cases.py has the cases."""

import sys
import time
import warnings

import hostile_files
import pytest
from hostile_cases import CASES
from hostile_files import judge

from rl.config.refusals import LINE, one_line

pytestmark = pytest.mark.all_only


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("a\nb\x1b[2J\x9b\u202e\ud800", r"a\nb\x1b[2J\x9b\u202e\ud800"),
        ("日本 é", "日本 é"),
        ("x" * 10_000 + "end", None),
        ("\x1b" * 10_000, None),
    ],
)
def test_messages_are_cleaned_and_cut(message, line):
    found = one_line(message)
    assert found == line if line else (len(found) == LINE and " ... " in found and found.isprintable())
    assert found.endswith(line or message[-3:].replace("\x1b", r"\x1b")[-3:])


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", CASES)
def test_hostile_files_end_in_one_line(kind, every, tmp_path):
    for i, (name, case) in enumerate(list(CASES[kind].items())[::every]):
        folder = tmp_path / str(i)
        folder.mkdir()
        try:
            judge(lambda case=case, folder=folder: case(folder))
        except BaseException as error:
            raise AssertionError(f"{kind}: {name}") from error


def work() -> None:
    start = time.process_time()
    while time.process_time() - start < hostile_files.SECONDS:
        pass


def warn() -> None:
    warnings.warn("a warning", FutureWarning, stacklevel=1)
    raise ValueError("a line")


@pytest.mark.parametrize(
    ("call", "found", "seconds"),
    [
        (lambda: bytearray(b"x") * 1_200_000_000, "took [0-9]+ MiB", hostile_files.SECONDS),  # more than glibc may keep
        (work, "took [0-9.]+ s", 0.3),
        (warn, "a warning", hostile_files.SECONDS),
        (lambda: print("beside", file=sys.stderr), "beside", hostile_files.SECONDS),
    ],
)
def test_judge_finds_costly_cases_and_stray_lines(call, found, seconds, monkeypatch):
    """That of memory also after an earlier case that took as much."""
    monkeypatch.setattr(hostile_files, "SECONDS", seconds)
    if "MiB" in found:
        del [bytearray(b"x") * 1_300_000_000][:]
    with pytest.raises(AssertionError, match=found):
        judge(call)
