"""Compare the simulated shell with real bash on more than two thousand scripts, in a root of their own."""

import pytest
from conftest import also_full
from parity import agents, shell
from test_shell import run_in_work

reason = shell.available()
pytestmark = [pytest.mark.all_only, pytest.mark.skipif(bool(reason), reason=reason)]


@pytest.mark.parametrize("count", ["a sample", *also_full(2000)])
def test_scripts_match_bash(count):
    scripts = shell.written() + shell.generated(2000)
    if count == "a sample":
        scripts = shell.written()[::8] + shell.generated(400)[200::10]
    for script, expected in zip(scripts, shell.real(scripts), strict=True):
        assert run_in_work(script) == expected, script


@pytest.mark.parametrize("count", [40, *also_full(2000)])
def test_nine_of_ten_agents_scripts_match_bash(count):
    assert len(agents.compare(count)) <= count // 10
