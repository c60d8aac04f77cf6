"""SciWorld's ten rooms, the doors between them, and the things that every task has in them."""

from random import Random

from envs.sciworld.things import Room, Thing

DOORS = (  # in the order in which a door's name lists its two rooms
    *(("kitchen", "hallway"), ("living room", "hallway"), ("bedroom", "hallway"), ("bathroom", "kitchen")),
    *(("workshop", "hallway"), ("greenhouse", "hallway"), ("art studio", "hallway"), ("kitchen", "outside")),
    *(("greenhouse", "outside"), ("foundry", "outside")),
)
ROOMS = tuple(sorted({room for door in DOORS for room in door}))


def furnish(rooms: dict[str, Room], rng: Random) -> None:
    """Put the things that every task has into the rooms."""

    def add(room: str, *kinds: str) -> list[Thing]:
        return [Thing(kind).put(rooms[room]) for kind in kinds]

    def fill(holder: Thing, *kinds: str) -> None:
        for kind in kinds:
            Thing(kind).put(holder)

    def cups_of_paint(holder: Thing) -> None:
        for colour in ("red", "blue", "yellow"):
            Thing("paint", f"{colour} paint").put(Thing("wood cup").put(holder))

    for room in ("bathroom", "bedroom", "hallway", "kitchen", "living room"):
        artist, subject = rng.choice(("Alexandra", "Bob", "Owen")), rng.choice(("a cow", "a lush green meadow"))
        kind = rng.choice(("drawing", "finger painting", "painting", "picture"))
        Thing(kind, text=f"{subject}. The artist is listed as {artist}").put(rooms[room])

    *_, toilet = add("bathroom", "bathtub", "glass cup", "sink", "toilet")
    fill(toilet, "water")
    bed, *_ = add("bedroom", "bed", "closet", "table")
    fill(Thing("mattress").put(bed), "pillow")
    add("kitchen", "chair", "lighter", "oven", "sink", "soap", "stopwatch", "stove", "thermometer")
    counter, cupboard, fridge, _, table, jar = add(
        "kitchen", "counter", "cupboard", "fridge", "freezer", "table", "glass jar"
    )
    fill(counter, "bowl", "drawer")
    fill(counter.inside[0], "apple", "banana", "orange", "potato")
    fill(cupboard, "ceramic cup", "drawer", "metal pot", "tin cup")
    fill(Thing("wood cup").put(fridge), "orange juice")
    fill(table, "glass cup")
    fill(jar, "sodium chloride")
    _, couch, table = add("living room", "chair", "couch", rng.choice(("desk", "table")))
    fill(couch, "pillow")
    if table.kind == "desk":
        fill(table, "drawer")
    for room in ("bedroom", "living room"):
        if rng.random() < 0.5:
            add(room, "book shelf")
    table, _ = add("workshop", "table", "ultra low temperature freezer")
    for colour in rng.sample(("red", "green", "blue", "yellow", "orange", "violet"), 3):
        Thing("light bulb", f"{colour} light bulb").put(table)
    for colour in rng.sample(("red", "green", "blue", "yellow", "orange", "black"), 3):
        Thing("wire", f"{colour} wire").put(table)
    fill(table, "switch", "battery")
    hive, *_ = add("greenhouse", "bee hive", "jug", "sink")
    for _ in range(5):
        Thing("animal", "bee", label="adult bee", called=("adult bee",), alive="animal").put(hive)
    table, cupboard = add("art studio", "table", "large cupboard")
    fill(table, rng.choice(("glass cup", "bowl", "jug")))
    fill(cupboard, "drawer")
    cups_of_paint(rooms["art studio"])
    cups_of_paint(cupboard)
    *_, fountain = add("outside", "axe", "ground", "fire pit", "wood", "fountain")
    fill(fountain, "water")
    add("foundry", "blast furnace", "sink", "table")
    add(rng.choice(("greenhouse", "outside")), "shovel")
