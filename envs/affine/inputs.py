"""Draw the inputs of the programs in envs/affine/templates.py.

Each function here returns an input, or returns a function of a random generator that returns one.
"""

from random import Random

_WORDS = """
ant arm art bag bed bee box bus cat cow cup dog ear egg fan fox hat hen ice ink jar key kit leg map mat net nut oak owl
pan pen pie pig pot rat red rug sea sky sun tea ten toy tub van web zoo apple bread chair dance eagle level river stone
table tiger water wheel queen noon radar banana coffee letter little summer pepper kitten
"""
WORDS = _WORDS.split()


def number(low: int, high: int):
    """Return a function that draws a number."""
    return lambda rng: str(rng.randint(low, high))


def numbers(low: int, high: int, least: int = 3, most: int = 7):
    """Return a function that draws `least` to `most` numbers on one line."""
    return lambda rng: " ".join(str(rng.randint(low, high)) for _ in range(rng.randint(least, most)))


def word(rng: Random) -> str:
    """Draw a word."""
    return rng.choice(WORDS)


def words(rng: Random) -> str:
    """Draw two to five words on one line."""
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 5)))


def lines(*makers):
    """Return a function that draws a line with each of the functions `makers`."""
    return lambda rng: "\n".join(make(rng) for make in makers)


def counted(make, least: int = 2, most: int = 5):
    """Return a function that draws a number of lines, then the lines, each with the function `make`."""

    def draw(rng: Random) -> str:
        count = rng.randint(least, most)
        return "\n".join([str(count), *(make(rng) for _ in range(count))])

    return draw


def matrix(low: int, high: int, square: bool = False):
    """Return a function that draws the size of a matrix, then its rows."""

    def draw(rng: Random) -> str:
        height, width = rng.randint(2, 4), rng.randint(2, 4)
        width = height if square else width
        rows = [" ".join(str(rng.randint(low, high)) for _ in range(width)) for _ in range(height)]
        return "\n".join([str(height) if square else f"{height} {width}", *rows])

    return draw


def scored(rng: Random) -> str:
    """Draw a word and its score."""
    return f"{rng.choice(WORDS)} {rng.randint(0, 30)}"


def letters(rng: Random) -> str:
    """Draw runs of equal letters."""
    return "".join(rng.choice("abc") * rng.randint(1, 4) for _ in range(rng.randint(2, 5)))


def brackets(rng: Random) -> str:
    """Draw balanced brackets."""
    text, depth = "", 0
    for _ in range(rng.randint(3, 8)):
        opens = depth == 0 or rng.random() < 0.55
        text, depth = text + ("(" if opens else ")"), depth + (1 if opens else -1)
    return text + ")" * depth


def multiples(rng: Random) -> str:
    """Draw two numbers with a common divisor, one per line."""
    divisor = rng.randint(2, 9)
    return f"{rng.randint(1, 9) * divisor}\n{rng.randint(1, 9) * divisor}"


def repeated(rng: Random) -> str:
    """Draw words on one line, some of them repeated."""
    return " ".join(rng.choices(rng.sample(WORDS, 3), k=rng.randint(3, 7)))


def stretch(rng: Random) -> str:
    """Draw numbers on one line, then two places in them."""
    return f"{numbers(0, 20, 5, 8)(rng)}\n{rng.randint(1, 3)} {rng.randint(3, 5)}"


def mirrored(rng: Random) -> str:
    """Draw a word, or a word and its reversal in one, which reads the same from both ends."""
    half = word(rng)
    return rng.choice([half, half + half[::-1]])


def arguments(*most):
    """Return a function that draws arguments: a number from 0 to `most` for each `most`, a list of them for [most]."""

    def draw(rng: Random) -> list:
        one = lambda top: rng.randint(0, top)  # noqa: E731
        return [[one(top[0]) for _ in range(rng.randint(3, 7))] if isinstance(top, list) else one(top) for top in most]

    return draw
