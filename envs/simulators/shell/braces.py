"""Brace expansion: {a,b} alternatives and {1..9..2} sequences turn one word into several."""

import re
from itertools import pairwise

from envs.simulators.shell.tree import Lit, Word, make_word

BRACES = re.compile(r"([{},])")
SEQUENCE = re.compile(r"(-?\d{1,18}|[A-Za-z])\.\.(-?\d{1,18}|[A-Za-z])(?:\.\.(-?\d{1,9}))?")


def braces(sh, word: Word) -> list[Word]:
    """Return the words that brace expansion makes of one word."""
    if not any(type(part) is Lit and "{" in part.text for part in word.parts):
        return [word]
    atoms: list = []
    for part in word.parts:
        atoms += BRACES.split(part.text) if type(part) is Lit else [part]
    atoms = [atom for atom in atoms if atom != ""]
    made = _alternatives(sh, atoms)
    if made == [atoms]:
        return [word]
    sh.machine.tick(len(made) >> 1)
    return [make_word([Lit(atom) if type(atom) is str else atom for atom in _merged(parts)], "") for parts in made]


def _merged(atoms: list) -> list:
    """Return the atoms with neighbouring strings joined."""
    out: list = []
    for atom in atoms:
        if out and type(atom) is str and type(out[-1]) is str:
            out[-1] += atom
        else:
            out.append(atom)
    return out


def _alternatives(sh, atoms: list, depth: int = 0) -> list[list]:
    """Return every list of atoms that brace expansion makes of one list."""
    sh.machine.tick(1 + (len(atoms) >> 6))
    for start, (closing, commas) in sorted(_pairs(atoms).items()) if depth < 30 else ():
        if commas:
            edges = [start, *commas, closing]
            options = [atoms[a + 1 : b] for a, b in pairwise(edges)]
            options = [choice for option in options for choice in _alternatives(sh, option, depth + 1)]
        elif closing == start + 2 and type(atoms[start + 1]) is str:
            members = sequence(atoms[start + 1])
            if members is None:
                continue
            options = [[member] for member in members]
        else:
            continue
        rest = _alternatives(sh, atoms[closing + 1 :], depth + 1)
        sh.machine.tick(len(options) * len(rest) * (4 + (len(atoms) >> 4)) >> 4)
        return [[*atoms[:start], *option, *tail] for option in options for tail in rest]
    return [atoms]


def _pairs(atoms: list) -> dict[int, tuple[int, list[int]]]:
    """Return, for each closed brace, where it is closed and the commas on its own level."""
    found, opened = {}, []
    for i, atom in enumerate(atoms):
        if atom == "{":
            opened.append((i, []))
        elif atom == "," and opened:
            opened[-1][1].append(i)
        elif atom == "}" and opened:
            start, commas = opened.pop()
            found[start] = (i, commas)
    return found


def sequence(text: str) -> list[str] | None:
    """Return the members of `a..b` or `1..9..2`; None if the text is no sequence."""
    match = SEQUENCE.fullmatch(text)
    if not match:
        return None
    low, high, step = match.groups()
    letters = low.isalpha(), high.isalpha()
    if letters[0] != letters[1]:
        return None
    first, end = (ord(low), ord(high)) if letters[0] else (int(low), int(high))
    stride = abs(int(step)) if step else 1
    stride = stride or 1
    numbers = range(first, end + 1, stride) if first <= end else range(first, end - 1, -stride)
    if len(numbers) > 100_000:
        numbers = numbers[:100_000]
    if letters[0]:
        return [chr(number) for number in numbers]
    padded = any(re.match(r"-?0\d", end) for end in (low, high))
    size = max(len(low), len(high)) if padded else 0
    return [f"{number:0{size}d}" for number in numbers]
