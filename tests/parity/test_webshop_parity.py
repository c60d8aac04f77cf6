"""WebShop's text ratio against the one that scored the original: the PyPI package thefuzz."""

from random import Random

import pytest

from envs.webshop import BASE_COLOURS, text_ratio
from envs.webshop.goods import catalogue

pytestmark = pytest.mark.all_only

fuzz = pytest.importorskip("thefuzz.fuzz", reason="thefuzz is not installed")

ALPHABETS = [  # few letters, so that words meet
    "ab ",
    "aab bcd  ",
    "abc de-_,.|/'\"()",
    "xyz XYZ 0123456789",
    " \t\n\r\v\f\x1c\x85\xa0\u2003\u3000ab",
    "éèñßÀ\xb5ab \xff",
    "ŝžĀāабв漢字\u0130\u0131 ab",
    "\u0301e\u0308o \U0001f600ab\u200d",
]
AWKWARD = [
    *("", " ", "a", "A", "_", "a_b", "a b", "b a", "a a a", "--", "navy | white", "('size', '6.5')", "6.5", "x-large"),
    *("large", "('size', 'x-large')", "long lasting", "long-lasting", "lasting", "t-shirt", "T SHIRT", "café", "caf"),
    *("\x00", "ß", "\u017f", "ﬁ", "Ⅷ", "²", "٣", "İstanbul", "x" * 500, "ab " * 300, "a" * 70 + " b", "b" + "a" * 70),
]


def same(left: str, right: str) -> None:
    for a, b in ((left, right), (right, left)):
        assert text_ratio(a, b) == fuzz.token_set_ratio(a, b), (a, b)


def test_awkward_pairs():
    for left in AWKWARD:
        for right in AWKWARD:
            same(left, right)


@pytest.mark.parametrize("count", [600, pytest.param(2500, marks=pytest.mark.full)])
@pytest.mark.parametrize("alphabet", ALPHABETS)
def test_random_texts(alphabet, count):
    rng = Random(alphabet)
    for _ in range(count):
        same(*("".join(rng.choices(alphabet, k=rng.randint(0, rng.choice((4, 12, 40))))) for _ in range(2)))


@pytest.mark.parametrize("count", [1500, pytest.param(10_000, marks=pytest.mark.full)])
def test_text_ratio_of_the_rewards_texts(count):
    products = catalogue().products.values()
    attributes = sorted({text for product in products for text in product.attributes})
    pairs = sorted(
        {(name, value) for product in products for name, values in product.options.items() for value in values}
    )
    rng = Random(0)
    for _ in range(count):
        same(rng.choice(attributes), rng.choice(attributes))
    for _ in range(count):
        same(rng.choice([rng.choice(pairs)[1], rng.choice(BASE_COLOURS.split())]), str(rng.choice(pairs)))


def test_every_character_of_the_blocks_that_no_longer_grow():
    """Between letters; further on, the two sides may know different versions of Unicode."""
    for code in range(0x860):
        same(f"ab{chr(code)}cd", "ab cd")
        same(f"ab{chr(code)}cd {chr(code)}", f"cd {chr(code)}")
