"""ALFWorld's tables (which receptacles hold which objects, which tools work on them), goals, and random rooms.

A name is a kind and a number, "mug 1". Lists sort kinds ascending and numbers descending: cabinet 2, cabinet 1.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain
from random import Random
from typing import NamedTuple

from envs.common import SPLITS, split_of

_SOFT = "basketball book box cellphone cloth creditcard keychain laptop newspaper pillow remotecontrol"
_DRESSER = """alarmclock basketball book bowl box candle cd cellphone cloth creditcard cup glassbottle keychain laptop
    mug newspaper pen pencil plate remotecontrol spraybottle statue tennisracket tissuebox toiletpaper toiletpaperroll
    vase watch wateringcan winebottle"""
_TABLE = """alarmclock apple baseballbat basketball book bowl box bread butterknife candle cd cellphone cloth
    creditcard cup dishsponge egg fork glassbottle handtowel kettle keychain knife ladle laptop lettuce mug newspaper
    pan papertowel pen pencil peppershaker plate pot potato remotecontrol saltshaker soapbar soapbottle spatula spoon
    spraybottle statue tennisracket tissuebox toiletpaper toiletpaperroll tomato vase watch wateringcan winebottle"""
CONTAINS = {  # receptacle -> the objects that may be put there, however many
    "armchair": _SOFT,
    "bathtubbasin": "cloth dishsponge handtowel soapbar",
    "bed": "baseballbat basketball book cellphone laptop newspaper pillow tennisracket",
    "cabinet": """book bowl box candle cd cloth cup dishsponge glassbottle handtowel kettle ladle mug newspaper pan
        peppershaker plate plunger pot saltshaker soapbar soapbottle spraybottle tissuebox toiletpaper toiletpaperroll
        vase wateringcan winebottle""",
    "cart": """candle cloth dishsponge handtowel mug papertowel plunger soapbar soapbottle spraybottle statue
        tissuebox toiletpaper toiletpaperroll vase""",
    "coffeemachine": "mug",
    "coffeetable": _TABLE,
    "countertop": _TABLE,
    "desk": _DRESSER + " soapbottle",
    "diningtable": _TABLE,
    "drawer": """book butterknife candle cd cellphone cloth creditcard dishsponge fork handtowel keychain knife ladle
        newspaper pen pencil peppershaker remotecontrol saltshaker soapbar soapbottle spatula spoon spraybottle
        tissuebox toiletpaper toiletpaperroll watch wateringcan""",
    "dresser": _DRESSER,
    "fridge": "apple bowl bread cup egg glassbottle lettuce mug pan plate pot potato tomato winebottle",
    "garbagecan": """apple bread cd cloth dishsponge egg handtowel lettuce newspaper papertowel pen pencil potato
        soapbar soapbottle spraybottle tissuebox toiletpaper toiletpaperroll tomato winebottle""",
    "handtowelholder": "handtowel",
    "laundryhamper": "cloth",
    "microwave": "apple bowl bread cup egg glassbottle mug plate potato tomato",
    "ottoman": _SOFT,
    "safe": "cd cellphone creditcard keychain statue vase watch",
    "shelf": """alarmclock book bowl box candle cd cellphone cloth creditcard cup dishsponge glassbottle handtowel
        kettle keychain mug newspaper papertowel pen pencil peppershaker plate pot remotecontrol saltshaker soapbar
        soapbottle spraybottle statue tissuebox toiletpaper toiletpaperroll vase watch wateringcan winebottle""",
    "sidetable": _TABLE,
    "sinkbasin": """apple bowl butterknife cloth cup dishsponge egg fork glassbottle handtowel kettle knife ladle
        lettuce mug pan plate pot potato soapbar spatula spoon tomato""",
    "sofa": _SOFT,
    "stoveburner": "kettle pan pot",
    "toaster": "",
    "toilet": """candle cloth dishsponge handtowel newspaper papertowel soapbar soapbottle spraybottle tissuebox
        toiletpaper toiletpaperroll""",
    "toiletpaperhanger": "toiletpaper toiletpaperroll",
    "towelholder": "towel",
    "tvstand": "tissuebox",
}
CONTAINS = {place: frozenset(kinds.split()) for place, kinds in CONTAINS.items()}
OPENABLE = {"cabinet", "drawer", "fridge", "microwave", "safe"}
SLICEABLE = {"apple", "bread", "egg", "lettuce", "potato", "tomato"}
KNIVES = {"butterknife", "knife"}
VESSELS = {"bowl", "box", "cup", "mug", "pan", "plate", "pot"}  # `examine` says that they contain nothing
_ALIASES = """
    alarmclock clockradio timepiece, apple pear peach, armchair recliner rocker, baseballbat cricketbat hockeystick,
    basketball football volleyball, bathtubbasin bathbasin showertray, bed bunk cot, book atlas diary, bowl dish tureen,
    box carton crate, bread bagel loaf, butterknife tableknife cheeseknife, cabinet cupboard locker, candle taper torch,
    cart trolley wagon, cd dvd tape, cellphone handset telephone, cloth rag duster, coffeemachine coffeemaker coffeeurn,
    coffeetable lowtable glasstable, countertop worktop bartop, creditcard bankcard idcard, cup goblet beaker, desk
    bureau workbench, diningtable kitchentable longtable, dishsponge dishbrush scouringpad, drawer chest trunk, dresser
    vanity tallboy, egg radish onion, fork skewer spork, garbagecan trashbin wastebasket, glassbottle waterbottle
    milkbottle, handtowel washcloth facetowel, handtowelholder handtowelring handtowelrail, kettle teapot coffeepot,
    keychain keyring lanyard, knife cleaver breadknife, ladle scoop dipper, laptop tablet notebook, laundryhamper
    laundrybasket laundrybag, lettuce cabbage spinach, mug stein tankard, newspaper magazine journal, ottoman footstool
    pouf, pan wok skillet, papertowel napkin serviette, pen marker crayon, pencil quill stylus, peppershaker peppermill
    spiceshaker, pillow cushion bolster, plate saucer platter, plunger toiletbrush drainrod, pot saucepan casserole,
    potato carrot turnip, remotecontrol gamecontroller tvremote, safe strongbox vault, saltshaker saltmill sugarshaker,
    shelf rack ledge, sidetable endtable nightstand, soapbar soapcake bathsoap, soapbottle gelbottle lotionjar, sofa
    couch settee, spatula turner whisk, spoon teaspoon scooper, spraybottle mistbottle atomizer, statue figurine bust,
    stoveburner hotplate gasburner, tennisracket squashracket paddle, tissuebox hankybox wipesbox, toaster toastmaker
    grill, toilet lavatory latrine, toiletpaper bathtissue toilettissue, toiletpaperhanger toiletpaperhook
    toiletpaperstand, toiletpaperroll toiletroll bathtissueroll, tomato cucumber pepper, towel bathsheet bathtowel,
    towelholder towelrail towelrack, tvstand tvtable mediastand, vase urn jug, watch stopwatch bracelet, wateringcan
    gardencan sprinklercan, winebottle beerbottle juicebottle"""  # each kind, and its other names in fresh rooms
ALIASES = {line.split()[0]: line.split() for line in _ALIASES.split(",")}
KINDS = {alias: kind for kind, aliases in ALIASES.items() for alias in aliases}
LAMPS = {  # lamp -> receptacles that it may stand on; a lamp cannot be taken
    "desklamp": ("desk", "dresser", "shelf", "sidetable"),
    "floorlamp": ("coffeetable", "dresser", "sidetable"),
}
TOOLS = {  # verb -> the receptacle needed, the resulting adjective, the objects it works on
    "clean": (
        "sinkbasin",
        "clean",
        """apple bowl butterknife cloth cup dishsponge egg fork kettle knife ladle lettuce mug pan plate pot potato
        soapbar spatula spoon tomato""",
    ),
    "cool": ("fridge", "cool", "apple bowl bread cup egg lettuce mug pan plate pot potato tomato winebottle"),
    "heat": ("microwave", "hot", "apple bread cup egg mug plate potato tomato"),
}
TOOLS = {verb: (tool, adjective, frozenset(kinds.split())) for verb, (tool, adjective, kinds) in TOOLS.items()}
MOST_NUMBER = 9  # of a name in a fresh room with at most nine of its kind
TEMPLATES = {
    "place": ("put a {kind} in {target}", "put some {kind} on {target}"),
    "look": ("look at {kind} under the {target}", "examine the {kind} with the {target}"),
    "clean": ("put a clean {kind} in {target}", "clean some {kind} and put it in {target}"),
    "heat": ("put a hot {kind} in {target}", "heat some {kind} and put it in {target}"),
    "cool": ("put a cool {kind} in {target}", "cool some {kind} and put it in {target}"),
    "two": ("put two {kind} in {target}", "find two {kind} and put them in {target}"),
}
ROOMS = {  # room -> its task types; least and most of each receptacle; its objects
    "kitchen": (
        "place clean heat cool two",
        """cabinet 4-14, coffeemachine 1-1, countertop 1-3, diningtable 0-1, drawer 2-8, fridge 1-1, garbagecan 1-1,
        microwave 1-1, shelf 0-3, sidetable 0-1, sinkbasin 1-1, stoveburner 4-4, toaster 1-1""",
        """apple book bowl bread butterknife cellphone creditcard cup dishsponge egg fork glassbottle kettle knife ladle
        lettuce mug pan papertowel peppershaker plate pot potato saltshaker soapbottle spatula spoon spraybottle statue
        tomato vase winebottle""",
    ),
    "bedroom": (
        "place look two",
        """armchair 0-1, bed 1-1, desk 1-2, drawer 2-8, dresser 0-1, garbagecan 1-1, laundryhamper 0-1, safe 0-1,
        shelf 0-6, sidetable 1-2""",
        """alarmclock baseballbat basketball book bowl box candle cd cellphone cloth creditcard keychain laptop mug
        newspaper pen pencil pillow remotecontrol statue tennisracket tissuebox vase watch""",
    ),
    "living room": (
        "place look two",
        """armchair 1-2, cabinet 0-4, coffeetable 1-1, diningtable 0-1, drawer 0-5, dresser 0-1, garbagecan 1-1,
        ottoman 0-1, safe 0-1, shelf 0-5, sidetable 1-3, sofa 1-1, tvstand 0-1""",
        """basketball book bowl box candle cellphone creditcard keychain laptop newspaper pen pencil pillow plate
        remotecontrol statue tissuebox vase watch wateringcan winebottle""",
    ),
    "bathroom": (
        "place clean two",
        """bathtubbasin 0-1, cabinet 2-5, cart 0-1, countertop 1-1, drawer 0-5, garbagecan 1-1, handtowelholder 1-2,
        shelf 0-2, sinkbasin 1-2, toilet 1-1, toiletpaperhanger 1-1, towelholder 1-1""",
        """candle cloth dishsponge handtowel papertowel plunger soapbar soapbottle spraybottle tissuebox toiletpaper
        toiletpaperroll towel""",
    ),
}


def _counts(text: str) -> dict[str, tuple[int, int]]:
    """Return {receptacle: (least, most)} of a line of ROOMS."""
    pairs = (part.split() for part in text.split(","))
    return {kind: tuple(map(int, span.split("-"))) for kind, span in pairs}


ROOMS = {room: (tasks.split(), _counts(places), kinds.split()) for room, (tasks, places, kinds) in ROOMS.items()}


@dataclass(frozen=True)
class Level:
    tasks: tuple[str, ...]  # drawn uniformly
    receptacles: tuple[int, int] | None  # least and most; None: as in the room's table
    objects: tuple[int, int]  # least and most objects besides the task's
    turns: int  # most turns that the expert may need
    doors: bool = True  # whether there are receptacles that open
    shared: float = 0.0  # chance that a receptacle shares the place of the previous one of its kind


LEVELS = {
    "1": Level(("place", "look"), (2, 2), (0, 2), 4, doors=False),
    "2": Level(("place", "look", "clean", "heat", "cool"), (3, 4), (1, 4), 8),
    "3": Level(tuple(TEMPLATES), (6, 9), (5, 10), 15, shared=0.1),
    "original": Level(tuple(TEMPLATES), None, (15, 30), 30, shared=0.2),
}


class Goal(NamedTuple):
    task: str  # one of the six types
    kind: str  # the object's kind
    target: str  # the kind of receptacle to put it in; for "look" the kind of lamp


class Room(NamedTuple):
    spots: dict[str, int]  # receptacle -> its place; several may share one
    inside: dict[str, list[str]]  # receptacle -> its objects


@cache  # of the few thousand names that rooms have
def kind_of(name: str) -> str:
    """Return the kind in a name, which may be an alias."""
    word = name[: name.rindex(" ")]
    return KINDS.get(word, word)


def order(name: str) -> tuple[str, int]:
    """Return the sort key of a name."""
    kind, number = name.split(" ")
    return kind, -int(number)


def targets(task: str, kind: str, room: str, level: Level) -> list[str]:
    """Return the possible target kinds (receptacles, or lamps for "look") of a task and object in a room."""
    if task == "look":
        return [lamp for lamp in LAMPS if _stands(lamp, room)]
    tool = TOOLS[task][0] if task in TOOLS else None
    if tool and kind not in TOOLS[task][2]:
        return []
    return [place for place in _places(room, level) if kind in CONTAINS[place] and place != tool]


def sources(goal: Goal, room: str, level: Level) -> list[str]:
    """Return the kinds of receptacle that a goal's object may start in."""
    return [place for place in _places(room, level) if goal.kind in CONTAINS[place] and place != goal.target]


def _places(room: str, level: Level) -> list[str]:
    """Return the kinds of receptacle in a room of a level."""
    return [place for place in ROOMS[room][1] if level.doors or place not in OPENABLE]


def _stands(lamp: str, room: str) -> list[str]:
    """Return the kinds of receptacle in a room that a lamp may stand on."""
    return [place for place in LAMPS[lamp] if place in ROOMS[room][1]]


def _goals() -> dict[tuple[str, str, str], dict[Goal, list[str]]]:
    """Return {(level, split, task type): {goal: rooms}}. A goal has the same split at every level."""
    found = {}
    for name, level in LEVELS.items():
        for room, (tasks, _, kinds) in ROOMS.items():
            for goal in (
                Goal(t, k, p) for t in tasks if t in level.tasks for k in kinds for p in targets(t, k, room, level)
            ):
                if sources(goal, room, level):
                    group = found.setdefault((name, split_of(canonical(goal)), goal.task), {})
                    group.setdefault(goal, []).append(room)
    return found


def canonical(goal: Goal, room: Room | None = None) -> str:
    """Return the canonical task of a goal, or of a goal in a room."""
    goal_text = f"alfworld:{goal.task} {goal.kind} {goal.target}"
    return f"{goal_text}: {room.spots} {room.inside}" if room else goal_text


GOALS = _goals()


def draw(rng: Random, level: str, split: str = "") -> tuple[Goal, Room]:
    """Draw a goal of a split (of any for ""), task types uniformly, and a furnished room in which it can be reached."""
    task = rng.choice(LEVELS[level].tasks)
    groups = [GOALS[level, each, task] for each in ([split] if split else SPLITS)]
    goals = groups[0] if split else {goal: rooms for group in groups for goal, rooms in group.items()}
    goal = rng.choice(list(goals))
    return goal, furnish(rng, goal, rng.choice(goals[goal]), LEVELS[level])


def renamed(room: Room, rng: Random) -> tuple[Room, dict[str, str]]:
    """Return a room with an alias for each kind, and other numbers, and {kind: alias}."""
    words = {kind: rng.choice(aliases) for kind, aliases in ALIASES.items()}
    members: dict[str, list[str]] = {}
    for name in [*room.spots, *chain(*room.inside.values())]:
        members.setdefault(kind_of(name), []).append(name)
    new = {}
    for kind, olds in members.items():
        numbers = rng.sample(range(1, max(MOST_NUMBER, len(olds)) + 1), len(olds))
        new |= {old: f"{words.get(kind, kind)} {number}" for old, number in zip(olds, numbers, strict=True)}
    places = sorted(room.spots, key=lambda place: order(new[place]))
    inside = {new[place]: sorted((new[thing] for thing in room.inside[place]), key=order) for place in places}
    return Room({new[place]: room.spots[place] for place in places}, inside), words


def furnish(rng: Random, goal: Goal, room: str, level: Level) -> Room:
    """Draw a room's receptacles and objects, with everything that the goal needs. The goal is not reached yet."""
    names = _receptacles(rng, goal, room, level)
    spots: dict[str, int] = {}
    for name, before in zip(names, [None, *names], strict=False):
        with_it = before and kind_of(before) == kind_of(name) and rng.random() < level.shared
        spots[name] = spots[before] if with_it else len(spots)
    inside: dict[str, list[str]] = {name: [] for name in names}
    numbers: dict[str, int] = {}

    def put(kind: str, places) -> None:
        fitting = [name for name in names if kind_of(name) in places]
        if fitting:
            numbers[kind] = numbers.get(kind, 0) + 1
            inside[rng.choice(fitting)].append(f"{kind} {numbers[kind]}")

    for _ in range(1 + (goal.task == "two") + (level.doors and rng.random() < 0.3)):
        put(goal.kind, sources(goal, room, level))
    if "look" in ROOMS[room][0] and (goal.task == "look" or level.doors):
        lamp = goal.target if goal.task == "look" else rng.choice(list(LAMPS))
        put(lamp, LAMPS[lamp])
    for _ in range(rng.randint(*level.objects)):
        kind = rng.choice([kind for kind in ROOMS[room][2] if kind != goal.kind])
        put(kind, [place for place in CONTAINS if kind in CONTAINS[place]])
    return Room(spots, {name: sorted(objects, key=order) for name, objects in inside.items()})


def _receptacles(rng: Random, goal: Goal, room: str, level: Level) -> list[str]:
    """Draw the names of a room's receptacles, among them those that the goal needs."""
    spans = ROOMS[room][1]
    needed = [rng.choice(sources(goal, room, level))]
    needed.append(rng.choice(_stands(goal.target, room)) if goal.task == "look" else goal.target)
    needed += [TOOLS[goal.task][0]] if goal.task in TOOLS else []
    if level.receptacles is None:
        counts = {kind: max(rng.randint(*span), kind in needed) for kind, span in spans.items()}
    else:
        counts = dict.fromkeys(needed, 1)
        for _ in range(rng.randint(*level.receptacles) - len(counts)):
            kind = rng.choice([kind for kind in _places(room, level) if counts.get(kind, 0) < spans[kind][1]])
            counts[kind] = counts.get(kind, 0) + 1
    return sorted((f"{kind} {i + 1}" for kind, count in counts.items() for i in range(count)), key=order)
