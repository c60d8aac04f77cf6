"""Compare the simulated commands with the real ones on random lines, on the same files, by the same users.

Known differences, which the drawn lines avoid or shell_commands.KNOWN leaves out:
- folders are listed and walked in the order of their names; the real order is the file system's
- a folder's size is 4096 bytes and it takes 4 kilobytes, as on ext4; link counts and inodes are ours
- of a usage text only the first lines are printed, of --help and --version nothing
- sort -m sorts; grep -T pads otherwise; awk's printf does not know %5%
- no backups of /etc/passwd and its like are kept under names that end in -
"""

import golden
import pytest
import shell_commands
from test_shell_commands import ours

reason = shell_commands.available()
pytestmark = [pytest.mark.all_only, pytest.mark.skipif(bool(reason), reason=reason)]


def differing(seeds: range) -> list[str]:
    lines = shell_commands.drawn(seeds)
    pairs = zip(lines, shell_commands.real(lines), strict=True)
    return [f"$ {line}\n{real}\n-- ours:\n{mine}" for line, real in pairs if (mine := ours(line)) != real]


def test_sampled_lines_match_the_real_programs():
    assert not differing(range(60))


@pytest.mark.full
def test_a_thousand_lines_match_the_real_programs():
    assert not differing(range(shell_commands.DRAWN, shell_commands.DRAWN + 1000))


@pytest.mark.full
def test_golden_file_matches_the_real_programs():
    cases = golden.read("shell_commands")
    assert len(cases) > 2000
    assert shell_commands.real([case["input"] for case in cases]) == [case["output"] for case in cases]
