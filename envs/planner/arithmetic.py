"""Compute the planner's lines of arithmetic, and translate them from and to words.

In the lines `3*12` and `a-5`, the letter a is the result of the first line, b of the second, and so on. In words they
are `3 times 12` and `result 1 minus 5`.
"""

import re
from math import isfinite

from envs.answers import GROUPED

LETTERS = "abcdefgh"  # names of the lines' results, in order
NUMBERED = {str(number): letter for number, letter in enumerate(LETTERS, 1)}  # "1" of `result 1` -> a
ATOM = re.compile(r"\d+(?:\.\d+)?|\.\d+|[a-h]|[-+*/()]")  # a number, letter, sign or parenthesis of a line
SIGNS = {"plus": "+", "minus": "-", "times": "*", "divided by": "/", "multiplied by": "*", "x": "*"}
SIGNS |= {"\N{MULTIPLICATION SIGN}": "*", "\N{DIVISION SIGN}": "/"}
WORDS = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}
PIECE = re.compile(  # the same in words: a result, a number, a sign in words, a sign
    rf"result (?:of (?:part|step|subproblem) )?(\d+)\b|\$?({GROUPED}(?!\d)|\d+(?:\.\d+)?|\.\d+)"
    r"|\b(plus|minus|times|divided by|multiplied by|x)\b|([-+*/()\u00d7\u00f7])"
)
PRECEDENCE = {"(": 0, "+": 1, "-": 1, "*": 2, "/": 2}


def plain(number: float) -> str:
    """Return a number as people write it: 24, 0.5."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def work_out(lines: list[str]) -> list[float | None]:
    """Return the result of each line of arithmetic (None if it has none); a, b, ... are the earlier results."""
    results: list[float | None] = []
    for line in lines:
        atoms = ATOM.findall(line)
        whole = "".join(atoms) == line.replace(" ", "")
        results.append(value_of(atoms, results) if whole else None)
    return results


def with_results(line: str, results: list[float]) -> str:
    """Return a line of arithmetic with its letters replaced by numbers."""
    return re.sub("[a-h]", lambda letter: plain(results[LETTERS.index(letter[0])]), line)


def value_of(atoms: list[str], results: list[float | None]) -> float | None:
    """Return the value of a sequence of numbers, letters, signs and parentheses, in linear time.

    Return None if it is not arithmetic, has a letter without a result, or has no finite value.
    """
    values, pending = [], []

    def apply() -> None:
        """Replace the last two values with the result of the last pending sign."""
        sign, right, left = pending.pop(), values.pop(), values.pop()
        values.append({"+": left + right, "-": left - right, "*": left * right}[sign] if sign != "/" else left / right)

    wants_value = True
    try:
        for atom in atoms:
            if wants_value != (atom == "(" or atom not in "+-*/)"):
                return None
            if atom == "(":
                pending.append(atom)
            elif atom == ")":
                while pending[-1] != "(":
                    apply()
                pending.pop()
            elif atom in PRECEDENCE:
                while pending and PRECEDENCE[pending[-1]] >= PRECEDENCE[atom]:
                    apply()
                pending.append(atom)
                wants_value = True
            else:
                values.append(float(atom if atom not in LETTERS else results[LETTERS.index(atom)]))
                wants_value = False
        while pending:
            apply()
    except (IndexError, KeyError, TypeError, ZeroDivisionError):
        return None
    return values[0] if len(values) == 1 and not wants_value and isfinite(values[0]) else None


def arithmetic_in(part: str) -> str:
    """Return the last calculation in a subproblem as a line of arithmetic; "" if it has none."""
    pieces, end = [[]], 0
    for found in PIECE.finditer(part):
        if part[end : found.start()].strip():
            pieces.append([])
        result, number, word, sign = found.groups()
        letter = result and NUMBERED.get(result, "?")  # a character that no arithmetic has
        pieces[-1].append(letter or (number and number.replace(",", "")) or SIGNS.get(word or sign) or sign)
        end = found.end()
    computing = [piece for piece in pieces if len(piece) > 2 and set(piece) & {*WORDS}]
    if computing:
        return " ".join(computing[-1]).strip(" +-*/")
    return pieces[0][0] if PIECE.fullmatch(part.strip()) else ""


def in_words(line: str) -> str:
    """Return a line of arithmetic in words."""
    atoms = ATOM.findall(line)
    said = [f"result {LETTERS.index(atom) + 1}" if atom.isalpha() else WORDS.get(atom, atom) for atom in atoms]
    return " ".join(said)
