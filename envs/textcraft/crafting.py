"""TextCraft's recipes: a book of 471 craftable items from five families of ten materials and a table of forms.

An item is a material and a form ("birch stairs"). A form has the same recipe for every material of its family, so a
held-out goal consists of parts seen in training: `birch` and `stairs`. The name of a form alone ("planks") is a tag:
any material will do. An item that no recipe makes is a base item, which `get` provides.

tasks=fresh makes a small book for each task (`redrawn`): the recipes that the panel would show, with words and counts
drawn anew, so that they must be read.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from random import Random

from envs import names

WOODS = "oak birch spruce pine cedar maple willow elm ash teak"
METALS = "iron copper tin zinc silver gold lead nickel cobalt bronze"
STONES = "granite marble slate basalt quartz chalk jade onyx topaz amber"
COLOURS = "red blue green yellow white black pink purple brown orange"
FRUITS = "apple pear plum cherry lemon peach mango grape melon fig"

# `count result: count ingredient, ...`; the material replaces each *
FORMS = {
    WOODS: """
        4 * planks: 1 * log
        1 * beam: 2 * log
        4 * torch: 1 * log, 1 coal
        4 * stairs: 6 * planks
        3 * slab: 3 * planks
        2 * door: 5 * planks
        1 * chest: 8 * planks
        3 * fence: 4 * planks, 2 stick
        2 * sign: 3 * planks, 1 stick
        1 * gate: 2 * fence, 1 * beam""",
    METALS: """
        2 * bar: 3 * ore, 1 coal
        3 * wire: 1 * ore
        1 * bell: 4 * ore, 1 string
        1 * plate: 2 * bar
        1 * gear: 4 * bar
        1 * bucket: 3 * bar
        2 * chain: 1 * bar, 2 * wire
        1 * sword: 2 * bar, 1 stick
        1 * axe: 3 * bar, 2 stick
        1 * lamp: 1 * plate, 1 glass
        1 * clock: 1 * gear, 1 * plate
        1 * engine: 1 * clock, 2 * wire""",
    STONES: """
        4 * bricks: 2 * rock
        2 * tiles: 1 * rock, 1 sand
        1 * statue: 5 * rock
        4 * stairs: 6 * bricks
        3 * slab: 3 * bricks
        4 * wall: 5 * bricks
        2 * pillar: 2 * bricks
        1 * axe: 3 * bricks, 2 stick
        1 * arch: 2 * pillar, 1 * slab
        1 * bridge: 1 * arch, 4 * bricks""",
    COLOURS: """
        2 * dye: 1 * flower
        1 * candle: 1 * flower, 2 wax
        1 * wreath: 5 * flower, 1 string
        2 * wool: 1 * dye, 4 string
        4 * glass: 1 * dye, 4 sand
        3 * carpet: 3 * wool
        1 * banner: 4 * wool, 1 stick
        1 * bed: 3 * wool, 3 planks
        1 * tent: 2 * carpet, 3 stick""",
    FRUITS: """
        2 * juice: 3 *
        1 * jam: 2 *, 1 sugar
        1 * pie: 3 *, 2 flour
        1 * cake: 2 * jam, 3 flour
        2 * soda: 1 * juice, 1 sugar
        1 * basket: 1 * cake, 1 * soda""",
    "": "4 stick: 2 planks",
}
TAG_FORMS = {"planks": WOODS, "glass": COLOURS}
MOST_MADE, MOST_TAKEN = 4, 6  # of a fresh recipe: products, and pieces of a base item
TAG_SHOWN = 2  # members shown for a tag if the rest of the tree contains none


@dataclass(frozen=True)
class Recipe:
    item: str  # the product as printed: "oak planks"
    count: int  # how many one crafting makes
    ingredients: tuple[tuple[str, int], ...]  # (item or tag, exact count), in printed order

    def __str__(self) -> str:
        return f"craft {self.count} {self.item} using " + ", ".join(f"{n} {name}" for name, n in self.ingredients)


def _counted(text: str) -> tuple[str, int]:
    """Return the item and the count of `2 oak log`."""
    count, name = text.strip().split(" ", 1)
    return name, int(count)


def _read(line: str) -> Recipe:
    """Return the recipe of a line of FORMS, with the material filled in."""
    (item, count), ingredients = _counted(line.split(":")[0]), line.split(":")[1].split(",")
    return Recipe(item, count, tuple(map(_counted, ingredients)))


@dataclass(frozen=True)
class Book:
    recipes: dict[str, Recipe]  # by product
    tags: dict[str, list[str]]  # tag -> its members
    base: set[str]  # items that `get` provides


BOOK = {
    recipe.item: recipe
    for materials, forms in FORMS.items()
    for material in materials.split() or [""]
    for recipe in map(_read, forms.replace("*", material).strip().splitlines())
}
TAGS = {form: [f"{material} {form}" for material in materials.split()] for form, materials in TAG_FORMS.items()}
BASE = {name for recipe in BOOK.values() for name, _ in recipe.ingredients if name not in BOOK and name not in TAGS}
PANEL = Book(BOOK, TAGS, BASE)
USES: dict[str, list[Recipe]] = {}  # ingredient -> recipes that use it
for _recipe in BOOK.values():
    for _name, _ in _recipe.ingredients:
        USES.setdefault(_name, []).append(_recipe)
KIND = {material: materials.split()[0] for materials in FORMS for material in materials.split()}
WORDS = list(dict.fromkeys(word for name in [*BOOK, *TAGS, *sorted(BASE)] for word in name.split() if word not in KIND))


@cache
def depth(name: str) -> int:
    """Return the length of the longest chain of recipes that makes an item; 0 for a base item."""
    if name in TAGS:
        return min(map(depth, TAGS[name]))
    return 1 + max(depth(part) for part, _ in BOOK[name].ingredients) if name in BOOK else 0


def tree(goal: str, rng: Random) -> dict[str, str]:
    """Return {item: role} for every item that the goal is made of. Members of one tag share their roles."""
    roles: dict[str, str] = {}

    def visit(name: str, role: str) -> None:
        if name in TAGS:
            named = [member for member in TAGS[name] if member in roles]
            for member in named or rng.sample(TAGS[name], TAG_SHOWN):
                visit(member, role)
        elif name not in roles:
            roles[name] = role
            for i, (part, _) in enumerate(BOOK[name].ingredients if name in BOOK else ()):
                visit(part, f"{role}.{i}")

    visit(goal, goal)
    return roles


def shown(roles: dict[str, str], distractors: int, rng: Random) -> list[Recipe]:
    """Return the recipes of a tree and at most `distractors` that share an ingredient with one of them, shuffled."""
    needed = [BOOK[name] for name in roles if name in BOOK]
    related = {str(use): use for recipe in needed for part, _ in recipe.ingredients for use in USES[part]}
    others = [use for use in related.values() if use.item not in roles]
    recipes = needed + rng.sample(others, min(len(others), distractors))
    rng.shuffle(recipes)
    return recipes


def redrawn(recipes: list[Recipe], rng: Random) -> tuple[Book, Callable[[str], str]]:
    """Return a book of these recipes with new words and counts, and the function that renames an item.

    A form has the same recipe for every material of its family, as in the panel. The counts of an ingredient and of
    what one crafting makes of it change together, so that one use of it takes as many craftings as before.
    """
    new = dict(zip(KIND, rng.sample(names.MATERIALS, len(KIND)), strict=True))
    new |= zip(WORDS, rng.sample(names.THINGS, len(WORDS)), strict=True)
    rename = lambda name: " ".join(new[word] for word in name.split())  # noqa: E731
    kind = lambda name: " ".join(KIND.get(word, word) for word in name.split())  # noqa: E731
    makes: dict[str, int] = {}  # kind of item -> count that one crafting makes
    takes: dict[tuple[str, str], int] = {}  # (kind of item, kind of ingredient) -> count

    def made(name: str) -> int:
        return makes.setdefault(kind(name), rng.randint(1, MOST_MADE))

    def taken(item: str, name: str, count: int) -> int:
        recipe = BOOK.get(TAGS.get(name, [name])[0])
        low, high = 1, MOST_TAKEN
        if recipe:
            craftings, each = ceil(count / recipe.count), made(recipe.item)
            low, high = (craftings - 1) * each + 1, craftings * each
        return takes.setdefault((kind(item), kind(name)), rng.randint(low, high))

    book = {}
    for recipe in recipes:
        parts = tuple((rename(name), taken(recipe.item, name, count)) for name, count in recipe.ingredients)
        item = rename(recipe.item)
        book[item] = Recipe(item, made(recipe.item), parts)
    tags = {rename(tag): [rename(name) for name in members] for tag, members in TAGS.items()}
    base = {rename(name) for recipe in recipes for name, _ in recipe.ingredients if name in BASE}
    return Book(book, tags, base), rename


def next_action(book: Book, goal: str, inventory: dict[str, int], known: dict[str, str]) -> tuple[str, str]:
    """Return an expert's next action and its reason: make missing items depth first, tags from `known` items."""
    stock = Counter(inventory)

    def pick(name: str, count: int) -> str:
        """Return the member of a tag to use, preferably one in stock or known; return any other item unchanged."""
        members = book.tags.get(name, [name])
        return max(members, key=lambda member: (stock[member] >= count, member in known, stock[member]))

    def want(name: str, count: int, purpose: str) -> tuple[str, str] | None:
        """Return the first action towards `count` of an item. If the stock has them, reserve them and return None."""
        missing = count - stock[name]
        if missing <= 0:
            stock[name] -= count
            return None
        if name not in book.recipes:
            return f"get {missing} {name}", f"{purpose} takes {name}, which no recipe makes: I get {missing}."
        recipe, parts = book.recipes[name], []
        for part, n in recipe.ingredients:
            total = n * ceil(missing / recipe.count)
            part = pick(part, total)
            if action := want(part, total, name):
                return action
            parts.append((part, n))
        return str(Recipe(name, recipe.count, tuple(parts))), f"I have all that {name} takes: I craft it."

    return want(goal, 1, goal)
