"""The numbers in a text, as people and models write them: 1,234.5, -3, 1/2, 1e3, $42, \\boxed{7}."""

import re
from math import isfinite

PLAIN = r"(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][+-]?\d+\b)?"  # 1,234.5 or 1e3
NUMBER = rf"-?(?:(?<![/\d]){PLAIN} ?/ ?{PLAIN}(?! ?/|\d)|{PLAIN})"  # or 1/2, which is no part of a date
NUMBERS = re.compile(NUMBER)
MARKED = re.compile(rf"(?:####|\\boxed\{{)[\s$€£*\\]*({NUMBER})")  # GSM8K's mark of an answer, and LaTeX's
MIXED = r"(?:(?<![\d.,])(\d+) ?)?"  # the whole of LaTeX's 3\frac{1}{2}
FRACTION = re.compile(MIXED + r"\\[dt]?frac(?:\{([\d.,]+)\}\{([\d.,]+)\}|(\d)(\d))")  # or \frac12


def number_of(text: str) -> float | None:
    """Return the value of a finite number without its commas; None for any other text."""
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        return None
    return number if isfinite(number) else None


def quotient_of(text: str) -> float | None:
    """Return the value of a finite number or of a fraction such as 1/2; None for any other text."""
    top, stroke, bottom = (part.strip() for part in text.partition("/"))
    over, under = number_of(top), number_of(bottom) if stroke else 1.0
    return number_of(str(over / under)) if over is not None and under else None


def last_number(text: str) -> float | None:
    """Return the value of the last number in a text; None if there is none, or if it is not finite."""
    found = NUMBERS.findall(text)
    return quotient_of(found[-1]) if found else None


def plain_fraction(found: re.Match) -> str:
    """Return LaTeX's fraction as 1/2, and a mixed number as one fraction: 7/2 for 3\\frac{1}{2}."""
    whole, top, bottom = found[1], found[2] or found[4], found[3] or found[5]
    over, under = number_of(top), number_of(bottom)
    if whole and over is not None and under is not None:
        return f"{int(whole) * under + over:.15g}/{under:.15g}"
    return f"{whole or ''} {top}/{bottom}".strip()


def final_number(text: str) -> float | None:
    """Return the number behind the last `####` or `\\boxed{` that has one; without them the last number, or None."""
    text = FRACTION.sub(plain_fraction, text.replace("\N{MINUS SIGN}", "-"))
    marked = MARKED.findall(text)
    return quotient_of(marked[-1]) if marked else last_number(text)


def plain_text(text: str) -> str:
    """Return a text in one case, with single blanks between its words."""
    return " ".join(text.split()).casefold()
