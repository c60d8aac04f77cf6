"""How a line of SciWorld is read: a verb, a name of a thing within reach, a preposition, another name.

The words are matched as prefixes, as in the original. Each way to read the whole line counts: two make it ambiguous.
"""

from envs.sciworld.things import Thing

GRAMMAR = {  # action: its verbs, then for each thing that it takes the words before it; the first ones are shown
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
SHOWN = 30  # the most readings of an ambiguous action that are listed
MAX_NAMES = 60  # the most names that `objects` lists


def readings(world, text: str) -> list[tuple[str, tuple]]:
    """Every action and its things that the whole text can stand for."""
    found, things = [], None
    for action, (verbs, *words) in world.actions.items():
        rests = [text[len(verb) :].strip() for verb in verbs if text.startswith(verb)]
        if rests and things is None:
            things = _candidates(world, text)
        for rest in rests:
            found += [(action, match) for match in _match(world, rest, words, things, action)]
    return list(dict.fromkeys(found))


def names(world, thing: Thing, contents: bool = False) -> tuple:
    """What a thing is called where the agent is; with `contents`, a vessel also by what it contains."""
    if thing.form == "door":
        other = thing.other(world.room).name
        return "door", f"door to {other}", f"{other} door"
    return thing.names(contents)


def shown(action: str, things: tuple) -> str:
    """A reading in the words of the list among which the agent chooses."""
    verbs, *words = GRAMMAR[action]
    parts = [verbs[0]]
    for thing, before in zip(things, words, strict=True):
        chain = ", ".join(f"in {holder.name}" for holder in thing.chain())
        parts += [*before[:1], f"{thing.label} ({chain})" if chain else thing.label]
    return " ".join(parts)


def helped(world) -> str:
    """The answer to `help`."""
    lines = []
    for verbs, *words in world.actions.values():
        lines.append(" ".join([verbs[0], *(" ".join([*before[:1], "OBJ"]) for before in words)]))
    return "Possible actions: " + "".join(f"\n\t{line}" for line in sorted(lines))


def objects(world) -> str:
    """The answer to `objects`."""
    lines = sorted({names(world, thing)[thing.form == "door"] for thing in world.reach()})
    return "Possible object references: " + "".join(f"\n\t{line}" for line in lines[:MAX_NAMES])


def _candidates(world, text: str) -> list[tuple[Thing, tuple]]:
    """The things in reach with their names; terminals, and names by contents, only where the text can mean them."""
    things = world.reach()
    if "terminal" in text or "anode" in text or "cathode" in text:
        things = [each for thing in things for each in (thing, *_ends(thing))]
    contents = " containing " in text
    return [(thing, names(world, thing, contents)) for thing in things]


def _ends(thing: Thing) -> tuple:
    return () if thing.form in ("terminal", "door") else thing.terminals


def _match(world, text: str, words: list[tuple], things: list[tuple], action: str) -> list[tuple]:
    """Every way to find the rest of an action in the whole text: the things of each."""
    if not words:
        return [()] if not text else []
    before, *rest = words
    if before:
        tails = [text[len(word) :].strip() for word in before if text.startswith(word)]
        return [one for tail in dict.fromkeys(tails) for one in _match(world, tail, [(), *rest], things, action)]
    if action == "teleport":
        return [(room,) for room in world.rooms.values() if room.name == text]
    matches = []
    for thing, called in things:
        for name in called:
            if text.startswith(name):
                for tail in _tails(text[len(name) :], thing):
                    matches += [(thing, *one) for one in _match(world, tail, rest, things, action)]
    return matches


def _tails(text: str, thing: Thing) -> list[str]:
    """What follows a thing's name, with or without "in its container"."""
    tails = [text.strip()]
    if thing.holder and text.startswith((" in ", " on ")):
        for name in thing.holder.names("containing" in text):
            if text.startswith(name, 4):
                tails.append(text[4 + len(name) :].strip())
    return tails
