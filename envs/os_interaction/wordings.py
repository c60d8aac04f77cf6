"""Say an instruction in other words: two other wordings of each template, made by rules."""

import re
from functools import cache

PLAIN = (  # (pattern, replacement), in this order
    (r"\bdirectories\b", "folders"), (r"\bdirectory\b", "folder"), (r"\bCreate\b", "Make"), (r"\bcreate\b", "make"),
    (r"\bcreated\b", "made"), (r"\bDelete\b", "Remove"), (r"\bdelete\b", "remove"), (r"\bdeleted\b", "removed"),
    (r"\bWrite\b", "Save"), (r"\bwrite\b", "save"), (r"\bAdd the line\b", "Append the line"),
    (r"\badd the line\b", "append the line"), (r"\bSet the mode\b", "Change the mode"),
    (r"\bset the mode\b", "change the mode"), (r"\b([Rr])eplace every (\w+) with (\w+)", r"\1eplace all \2 by \3"),
    (r"\bMake (\w+) the (\w+) of", r"Let \1 be the \2 of"), (r"\bone in each line\b", "one per line"),
    (r"\bat any depth\b", "however deep"), (r"\bthe number alone\b", "just the number"),
    (r"\bexists? already\b", "can be found already"), (r"\bRename the file (\S+) to\b", r"Let the file \1 be called"),
    (r"\bMove\b", "Transfer"), (r"\bmove\b", "transfer"), (r"\bCopy the (\w+ \S+)(.*?) to\b",
    r"Make a copy of the \1\2 at"),
    (r"\bChange the login shell\b", "Set the login shell"), (r"\bin alphabetical order\b", "alphabetically"),
)  # fmt: skip
POLITE = (
    (r"\bCreate\b", "Set up"), (r"\bcreate\b", "set up"), (r"\bDelete\b", "Get rid of"), (r"\bdelete\b", "get rid of"),
    (r"\bWrite\b", "Store"), (r"\bwrite\b", "store"),
    (r"\b([Ww])ith mode\b", r"\1ith the permissions"), (r"\bmode of\b", "permissions of"),
    (r"\bdoes not exist yet\b", "is not there yet"), (r"\bwith all that is in it\b", "with everything in it"),
    (r"\ball that is below it\b", "everything below it"),
)  # fmt: skip
VERBS = """
Add Archive Back Change Clean Close Copy Create Delete Edit Get Give Lay Let Lock Make Move Prepare Put Queue Release
Rename Remove Retire Separate Set Sort Store Tidy
"""


@cache
def wordings(instruction: str) -> tuple[str, ...]:
    """Return an instruction and two others that ask for the same."""
    plain, polite = _said(instruction, PLAIN), _said(instruction, POLITE)
    if plain == instruction:
        plain = f"Your task: {instruction}"
    first = polite.partition(" ")[0]
    known = first in VERBS.split()
    return instruction, plain, f"Please {polite[0].lower()}{polite[1:]}" if known else f"I need help. {polite}"


def _said(text: str, rules: tuple) -> str:
    for pattern, new in rules:
        text = re.sub(pattern, new, text)
    return text
