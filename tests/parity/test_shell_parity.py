"""Compare the simulated shell with real bash on more than two thousand scripts, in a root of their own."""

import pytest
from parity import agents, shell
from test_shell import run_in_work

reason = shell.available()
pytestmark = [pytest.mark.all_only, pytest.mark.skipif(bool(reason), reason=reason)]


def compare(scripts: list[str]) -> None:
    for script, expected in zip(scripts, shell.real(scripts), strict=True):
        assert run_in_work(script) == expected, script


def test_sampled_scripts_match_bash():
    compare(shell.written()[::8] + shell.generated(400)[200::10])


def test_sampled_agents_scripts_match_bash():
    assert len(agents.compare(40)) <= 4


@pytest.mark.full
def test_nine_of_ten_agents_scripts_match_bash():
    assert len(agents.compare(2000)) <= 200


@pytest.mark.full
def test_two_thousand_scripts_match_bash():
    compare(shell.written() + shell.generated(2000))
