"""Names that a fresh house of SciWorld makes up: those that say nothing about the science."""

import re
from hashlib import sha256

from envs.names import MadeUp
from envs.sciworld.house import House

COLOURS = ("red", "green", "blue", "orange", "yellow", "purple", "violet", "black")
COLOURED = ("box", "wire", "light bulb")  # things whose colour only tells them apart; that of a paint does more
WORDS = """
almond apple apricot avocado banana cashew cherry grapefruit jam lemon peach peanut pear
acetate acetic bicarbonate chloride salt sodium sugar
"""
NAME = re.compile(rf"(?i)\b(?:{'|'.join(COLOURS)}) (?:{'|'.join(COLOURED)})\b|[a-z]+")


def draw_labels(made_up: MadeUp) -> dict[str, str]:
    """Return the names that change places, in both directions: {"red box": "lofum box", "lofum": "red", ...}."""
    known = {word: made_up.word(word) for word in (*COLOURS, *WORDS.split())}
    labels = {f"{colour} {thing}": f"{known[colour]} {thing}" for colour in COLOURS for thing in COLOURED}
    for word in WORDS.split():
        labels |= {word: known[word], f"{word}s": f"{known[word]}s", f"{known[word]}s": f"{word}s"}
    return labels | {name: word for word, name in known.items()}


def relabel(text: str, labels: dict[str, str]) -> str:
    """Return a text in which each name has changed places with its other one."""

    def other(found: re.Match) -> str:
        name = labels.get(found[0].lower(), found[0])
        return name.capitalize() if found[0][0].isupper() and name != found[0] else name

    return NAME.sub(other, text) if labels else text


def hash_of(house: House, labels: dict[str, str]) -> str:
    """Return a hash of all that is in a house, as it is named there, and of the chance by which seeds inherit."""
    things = [thing for room in house.rooms.values() for thing in (room, *room.everything())]
    named = relabel("\n".join(f"{thing.label} in {thing.holder and thing.holder.label}" for thing in things), labels)
    state = [
        (thing.reads, thing.text, thing.temperature, thing.number, thing.conducts, thing.on, thing.open)
        + (thing.broken, thing.matter, thing.genes)
        for thing in things
    ]
    chance = house.chance and house.chance.getstate()
    return sha256(repr((named, state, chance)).encode()).hexdigest()
