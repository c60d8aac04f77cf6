"""The grammar of SciWorld's actions: a verb, the name of a thing within reach, a preposition, another name.

Words match as prefixes, as in the original. A line with more than one reading is ambiguous.
"""

from envs.sciworld.things import Thing

GRAMMAR = {  # action: its verbs, then the words before each of its things; the first ones are shown
    "open": (("open",), ()),
    "close": (("close",), ()),
    "activate": (("activate", "turn on"), ()),
    "deactivate": (("deactivate", "turn off"), ()),
    "connect": (("connect",), (), ("to", "in", "into")),
    "disconnect": (("disconnect",), ()),
    "use": (("use",), (), ("on", "with")),
    "look around": (("look around", "look"),),
    "look at": (("look at", "look on", "examine"), ()),
    "look in": (("look in",), ()),
    "read": (("read",), ()),
    "move": (("move", "put"), (), ("to", "in", "into", "on")),
    "pick up": (("pick up", "get", "take"), ()),
    "put down": (("put down", "drop"), ()),
    "pour": (("pour",), (), ("in", "into", "on", "to")),
    "dunk": (("dunk",), (), ("in", "into")),
    "mix": (("mix", "stir"), ()),
    "go": (
        *(("go", "go through", "walk through", "move through", "go to", "walk to", "move to", "go into", "move into"),),
        (),
    ),
    "eat": (("eat", "consume"), ()),
    "flush": (("flush",), ()),
    "focus": (("focus on", "focus"), ()),
    "wait": (("wait",),),
    "wait1": (("wait1",),),
    "inventory": (("inventory",),),
    "task": (("task",),),
    "reset task": (("reset task",),),
    "teleport": (("teleport", "teleport to"), ()),
}
UNKNOWN = "No known action matches that input."
DROPPED = "Unknown action.  Type 'help' for a list of actions, and 'objects' for a list of possible object referents. "
AMBIGUOUS = "Ambiguous request: Please enter the number for the action you intended (or blank to cancel):\n"
SHOWN = 30  # most readings of an ambiguous action listed
MAX_NAMES = 60  # most names that `objects` lists


def readings(house, text: str) -> list[tuple[str, tuple]]:
    """Return every (action, things) that the whole text can mean."""
    found, things = [], None
    for action, (verbs, *words) in house.grammar.items():
        rests = [text[len(verb) :].strip() for verb in verbs if text.startswith(verb)]
        if rests and things is None:
            things = _candidates(house, text)
        for rest in rests:
            found += [(action, match) for match in _match(house, rest, words, things, action)]
    return list(dict.fromkeys(found))


def names(house, thing: Thing, contents: bool = False) -> tuple:
    """Return a thing's names in the agent's room; with `contents`, also names of a vessel by its content."""
    if thing.form == "door":
        other = thing.other(house.room).name
        return "door", f"door to {other}", f"{other} door"
    return thing.names(contents)


def shown(action: str, things: tuple) -> str:
    """Return a reading as a line of the list from which the agent chooses."""
    verbs, *words = GRAMMAR[action]
    parts = [verbs[0]]
    for thing, before in zip(things, words, strict=True):
        chain = ", ".join(f"in {holder.name}" for holder in thing.chain())
        parts += [*before[:1], f"{thing.label} ({chain})" if chain else thing.label]
    return " ".join(parts)


def helped(house) -> str:
    """Return the answer to `help`."""
    lines = []
    for verbs, *words in house.grammar.values():
        lines.append(" ".join([verbs[0], *(" ".join([*before[:1], "OBJ"]) for before in words)]))
    return "Possible actions: " + "".join(f"\n\t{line}" for line in sorted(lines))


def objects(house) -> str:
    """Return the answer to `objects`."""
    lines = sorted({names(house, thing)[thing.form == "door"] for thing in house.reach()})
    return "Possible object references: " + "".join(f"\n\t{line}" for line in lines[:MAX_NAMES])


def _candidates(house, text: str) -> list[tuple[Thing, tuple]]:
    """Return reachable things and their names; terminals and names by content only if the text can mean them."""
    things = house.reach()
    if "terminal" in text or "anode" in text or "cathode" in text:
        things = [each for thing in things for each in (thing, *_ends(thing))]
    contents = " containing " in text
    return [(thing, names(house, thing, contents)) for thing in things]


def _ends(thing: Thing) -> tuple:
    return () if thing.form in ("terminal", "door") else thing.terminals


def _match(house, text: str, words: list[tuple], things: list[tuple], action: str) -> list[tuple]:
    """Return the things of every match of an action's remaining parts with the remaining text."""
    if not words:
        return [()] if not text else []
    before, *rest = words
    if before:
        tails = [text[len(word) :].strip() for word in before if text.startswith(word)]
        return [one for tail in dict.fromkeys(tails) for one in _match(house, tail, [(), *rest], things, action)]
    if action == "teleport":
        return [(room,) for room in house.rooms.values() if room.name == text]
    matches = []
    for thing, called in things:
        for name in called:
            if text.startswith(name):
                for tail in _tails(text[len(name) :], thing):
                    matches += [(thing, *one) for one in _match(house, tail, rest, things, action)]
    return matches


def _tails(text: str, thing: Thing) -> list[str]:
    """Return the possible texts after a thing's name, with and without "in its container"."""
    tails = [text.strip()]
    if thing.holder and text.startswith((" in ", " on ")):
        for name in thing.holder.names("containing" in text):
            if text.startswith(name, 4):
                tails.append(text[4 + len(name) :].strip())
    return tails
