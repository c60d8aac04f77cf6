"""Regular expressions for layers mean what Python's re says, and none takes long."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lora import targets
from lora.targets import Patterns, check_used, matching

pytestmark = pytest.mark.all_only

NAMES = ["a", "b", "a.b", "ab.0.a", "aab.10.ba", "b.a.0b", "a.a.a", "0", "..", "abab", "ba.b", "model.layers.1.q_proj"]
ATOMS = ["a", "b", r"\.", ".", "[ab]", "[^a]", r"\d", r"\w", r"\W", "0", r"\b", r"\B", "^", "$", "[a-c0]", r"\Z"]
ATOMS += ["q_proj", r"model\.layers", r"[^\d.]", "_"]
REPEATS = ["*", "+", "?", "*?", "+?", "{2}", "{1,3}", "{0,2}?", "{2,}"]


def expressions(repeats: int):
    """Return a strategy of expressions with at most so many repetitions, because re takes years for some with more."""
    return st.recursive(
        st.sampled_from(ATOMS),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map("".join),
            st.builds("(?:{}|{})".format, inner, inner),
            st.builds("({}){}".format, inner, st.sampled_from(REPEATS)),
            st.builds("(?{}{})".format, st.sampled_from("=!"), inner),
        ),
        max_leaves=8,
    ).filter(lambda text: sum(text.count(f"){repeat[0]}") for repeat in "*+?{") <= repeats)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.full)])
def test_expressions_match_as_in_re(count):
    @settings(max_examples=count, deadline=None, derandomize=True)
    @given(text=expressions(repeats=2))
    def check(text):
        whole, patterns = re.compile(text), Patterns()
        assert [name for name in NAMES if patterns.matches(text, name)] == [
            name for name in NAMES if whole.fullmatch(name)
        ]
        if "^" not in text:  # which is the beginning of a name here, and of the expression there
            parts = re.compile(rf"(.*\.)?({text})$")
            found = [name for name in NAMES if patterns.matches(text, name, parts=True)]
            assert found == [name for name in NAMES if parts.match(name)]

    check()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=expressions(repeats=9))
def test_no_expression_takes_long(text):
    began = time.process_time()
    matching(NAMES * 50, text)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("text", ["(?:(?:(?:(?:(?:b)*?)?){2,}){1,3}){2,}", "(a+)+b", "((a*)*)*!", "(.*)" * 12 + "!"])
def test_expressions_that_keep_re_busy_end(text):
    began = time.process_time()
    assert matching(["a" * 60, "model.layers.0.self_attn.q_proj"], text) == []
    assert time.process_time() - began < 1


def test_steps_are_bounded(monkeypatch):
    monkeypatch.setattr("lora.targets.STEPS", 50)
    with pytest.raises(ValueError, match="take more than 50 steps to match"):
        matching(["a" * 60], "((a*)*)*")


def test_all_keys_of_a_pattern_share_the_steps(monkeypatch):
    paths = [f"model.layers.{n}.q_proj" for n in range(8)]
    keys = [rf"layers.{n}.(q|k|v)_pro[j]" for n in range(8)]
    check_used(paths, dict.fromkeys(keys, 8))
    patterns = Patterns()
    for path in paths:
        patterns.matches(keys[-1], path, parts=True)
    alone = targets.STEPS - patterns.steps  # what the slowest key takes
    monkeypatch.setattr("lora.targets.STEPS", 2 * alone)
    check_used(paths, {keys[-1]: 8})
    with pytest.raises(ValueError, match="steps to match"):
        check_used(paths, dict.fromkeys(keys, 8))
