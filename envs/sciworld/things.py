"""SciWorld's ten rooms and the things in them, with their descriptions and their names.

A thing has a form, which decides its description; rooms, doors and terminals are things too. Lists are sorted by name,
and things of one name by their order of arrival.
"""

from random import Random

DOORS = (  # in the order in which a door's name lists its two rooms
    *(("kitchen", "hallway"), ("living room", "hallway"), ("bedroom", "hallway"), ("bathroom", "kitchen")),
    *(("workshop", "hallway"), ("greenhouse", "hallway"), ("art studio", "hallway"), ("kitchen", "outside")),
    *(("greenhouse", "outside"), ("foundry", "outside")),
)
ROOMS = tuple(sorted({room for door in DOORS for room in door}))
STATES = ("solid", "liquid", "gas")
ARTICLES = ("a", "an", "the")  # ignored in actions and in names

# name: melting point, boiling point, burning point, and its names in the three states
MATTER = {
    "water": (0, 100, None, ("ice", "water", "steam")),
    "air": (-210, -194, None, ("solid air", "liquid air", "air")),
    "orange juice": (0, 100, None, ("solid orange juice", "orange juice", "gaseous orange juice")),
    "apple juice": (0, 100, None, ("solid apple juice", "apple juice", "gaseous apple juice")),
    "chocolate": (35, 500, 150, ("chocolate", "liquid chocolate", "gaseous chocolate")),
    "marshmallow": (45, 500, 150, ("marshmallow", "liquid marshmallow", "gaseous marshmallow")),
    "ice cream": (0, 500, 150, ("ice cream", "liquid ice cream", "gaseous ice cream")),
    "soap": (60, 500, 200, ("soap", "liquid soap", "gaseous soap")),
    "wood": (1000, 2000, 250, ("wood", "liquid wood", "gaseous wood")),
    "mercury": (-39, 357, None, ("solid mercury", "mercury", "gaseous mercury")),
    "gallium": (30, 2400, None, ("gallium", "liquid gallium", "gaseous gallium")),
    "caesium": (28, 671, None, ("caesium", "liquid caesium", "gaseous caesium")),
    "tin": (232, 2602, None, ("tin", "liquid tin", "gaseous tin")),
    "lead": (327, 1749, None, ("lead", "liquid lead", "gaseous lead")),
    "salt water": (-2, 102, None, ("solid salt water", "salt water", "gaseous salt water")),
    "soapy water": (0, 100, None, ("solid soapy water", "soapy water", "gaseous soapy water")),
    **{f"{paint} paint": (-9, 150, None, (f"solid {paint} paint", f"{paint} paint", f"gaseous {paint} paint"))
       for paint in ("red", "yellow", "blue", "green", "violet", "orange", "brown", "yellow-orange", "red-orange",
                     "violet-red", "blue-violet", "green-blue", "yellow-green")},
}  # fmt: skip

# form and flags: names. fixed: cannot be moved. lid: can be opened. off: can be switched. dead: only power turns it on.
# bare: a thermometer reads nothing from it. conducts: conducts electricity
KINDS = {
    name.strip(): (form.split()[0], frozenset(form.split()[1:]))
    for line in """
        seat: bed, chair, couch, mattress
        table: counter, desk, table
        cabinet lid: bee hive, closet, cupboard, large cupboard
        cooler lid fixed off bare: freezer, fridge, ultra low temperature freezer
        oven lid fixed off bare: blast furnace, oven
        stove fixed off bare: stove
        basin fixed off: bathtub, sink
        toilet fixed off: toilet
        drawer lid: drawer
        vessel: bowl, ceramic cup, glass cup, jug, paper cup, plastic cup, tin cup, wood cup, book shelf, flower pot
        vessel: fire pit, fountain
        vessel conducts: metal pot
        vessel lid: glass jar
        vessel bare: box
        vessel fixed bare: inventory
        picture: drawing, finger painting, painting, picture
        plain: pillow, shovel, wood block, metal fork, plastic fork, aluminum foil
        plain: paper clip, unknown substance, soil
        plain bare: agent
        ground: ground
        tool: axe, lighter
        plain edible bare: almond, apple, banana, bread, cashew, jam, orange, peanut, potato
        plain edible bare: mixed nuts, sandwich, smores
        plain edible: apple juice, chocolate, ice cream, marshmallow, orange juice, paint
        substance: acetic acid, air, caesium, gallium, lead, mercury, salt water, soap, soapy water, sodium acetate
        substance: sodium bicarbonate, sodium chloride, sugar, sugar water, tin, water, wood
        thermometer: thermometer
        stopwatch off bare: stopwatch
        recipe: recipe
        plane bare: inclined plane
        battery bare conducts: battery
        wire conducts: wire
        part dead bare conducts: electric buzzer, electric motor, light bulb, solar panel
        part off bare conducts: gas generator, switch
        living bare: animal, plant
    """.strip().splitlines()
    for form, _, names in [line.partition(":")]
    for name in names.split(",")
}
READS = {  # descriptions other than "a NAME"
    **{name: "an {}" for name in ("axe", "orange")},
    **{name: "the {}" for name in ("agent", "ground")},
    **{name: "A {}" for name in ("aluminum foil", "metal fork", "plastic fork", "paper clip")},
    **dict.fromkeys(("almond", "bread", "cashew", "chocolate", "ice cream", "marshmallow", "peanut", "smores"), "{}"),
    **dict.fromkeys(("apple juice", "orange juice", "paint", "mixed nuts", "soil", "unknown substance"), "{}"),
    **{"apple": "a red {}", "jam": "red {}", "pillow": "a white {}"},
}
CALLED = {  # more names; a vessel is also called by the last word of its name and by its content
    **dict.fromkeys(("light bulb",), ("light", "light bulb")),
    **dict.fromkeys(("solar panel", "gas generator"), ("generator",)),
    **dict.fromkeys(("wire", "switch"), ("component",)),
    **{"wood block": ("block",), "pillow": ("white pillow",), "bowl": ("wood bowl",)},
    **{"unknown substance": ("unknown substance",)},
}
CONTAINERS = ("seat", "table", "cabinet", "cooler", "oven", "stove", "basin", "toilet", "drawer", "vessel", "plane")
CONTAINERS += ("ground", "room")
SEALED = ("tool", "thermometer", "stopwatch")  # containers that stay closed
TEMPERATURE = 10.0  # initial temperature unless a task sets another


class Thing:
    """Anything that can be named. `form` and `flags` are its properties, `holder` and `inside` its place."""

    __slots__ = (
        *("kind", "name", "label_", "form", "called", "reads", "fixed", "lid", "open", "on", "switchable", "broken"),
        *("temperature", "matter", "burning", "edible", "alive", "conducts", "number", "text"),
        *("holder", "inside", "terminals_"),
    )

    def __init__(self, kind: str, name: str = "", label: str = "", called: tuple = (), **given):
        self.kind, self.name, self.label_ = kind, name or kind, label
        self.form, flags = KINDS[kind]
        self.reads = READS.get(kind, "a substance called {}" if self.form == "substance" else "a {}")
        self.fixed, self.lid, self.edible = "fixed" in flags, "lid" in flags, "edible" in flags
        self.open = "lid" not in flags if self.form in CONTAINERS else False if self.form in SEALED else None
        self.on = False if flags & {"off", "dead"} else None
        self.switchable, self.broken, self.burning = "off" in flags, False, False
        self.temperature = None if "bare" in flags else TEMPERATURE
        self.matter = MATTER.get(self.name)
        self.conducts = "conducts" in flags
        self.alive = self.text = None
        self.number = 0  # ticks, per cent of the plane, per cent per iteration
        self.holder, self.inside, self.terminals_ = None, [], None
        names = (self.name, *called, *CALLED.get(kind, ()), *(self.matter[3] if self.matter else ()))
        if self.form == "substance" or self.matter:
            names += ("substance",)
        if self.form == "vessel":
            names += (self.kind.split()[-1],)
        if self.form == "living":
            names += ("living thing", "organism")
        self.called = tuple(dict.fromkeys(map(plain, names)))
        for key, value in given.items():
            setattr(self, key, value)

    @property
    def state(self) -> str:
        """solid, liquid or gas, depending on the temperature."""
        if not self.matter:
            return "solid"
        return STATES[(self.temperature >= self.matter[0]) + (self.temperature >= self.matter[1])]

    @property
    def label(self) -> str:
        """The name with the visible condition."""
        label = self.label_ or (self.matter[3][STATES.index(self.state)] if self.matter else self.name)
        return f"{label} (on fire)" if self.burning else label

    @property
    def terminals(self) -> tuple:
        """The two connection points, created on first use."""
        if self.terminals_ is None:
            names = ("anode", "cathode") if self.form in ("battery", "part") else ("terminal 1", "terminal 2")
            self.terminals_ = tuple(Terminal(self, name) for name in names)
        return self.terminals_

    def names(self, contents: bool = False) -> tuple:
        """Return the thing's names; with `contents`, also names of a vessel by its content."""
        if contents and self.form == "vessel":
            held = " and ".join(sorted(thing.label for thing in self.inside)) or "nothing"
            return self.called + tuple(f"{name} containing {plain(held)}" for name in self.called)
        return self.called

    def put(self, holder: "Thing") -> "Thing":
        """Move the thing into another one."""
        if self.holder:
            self.holder.inside.remove(self)
        self.holder = holder
        holder.inside.append(self)
        return self

    def within(self):
        """Return everything that can be reached in an open container."""
        for thing in self.inside:
            yield thing
            if thing.open:
                yield from thing.within()

    def everything(self):
        """Return everything in the thing, behind lids too."""
        for thing in self.inside:
            yield thing
            yield from thing.everything()

    def chain(self) -> list:
        """Return the containers of the thing, from the innermost to the room."""
        return [] if self.holder is None else [self.holder, *self.holder.chain()]

    def disconnect(self) -> bool:
        """Remove every connection. Return whether there was one."""
        linked = [terminal for terminal in self.terminals_ or () if terminal.link]
        for terminal in linked:
            terminal.link.link = None
            terminal.link = None
        return bool(linked)

    def look(self, detail: bool = False) -> str:
        """Return the thing's description in a list or, with `detail`, when the agent looks at it."""
        own = self.reads.format(self.label)
        the, state = self.name, "on" if self.on else "off"
        match self.form:
            case "plain" | "substance" | "living" | "ground" | "tool":
                return own
            case "vessel":
                return f"{own} (containing {self.contents()})"
            case "seat":
                return f"{own}. On the {the} is: {self.contents()}."
            case "table":
                return f"{own}. On the {the} is: {self.contents(detail)}{'' if detail else '.'}"
            case "cabinet" | "cooler" | "oven":
                own += f", which is turned {state}" if self.form == "oven" else ""
                if not self.open:
                    return f"{own}. The {the} door is closed. "
                lines = detail and self.form != "cooler"
                return f"{own}. The {the} door is open. In the {the} is: {self.contents(lines)}{'' if lines else '.'}"
            case "drawer":
                inside = f"In the drawer is: {self.contents(True)}" if self.open else "The drawer is closed."
                return f"{own}. {inside}" if detail else own
            case "stove":
                return f"{own}, which is turned {state}. On the {the} is: {self.contents()}."
            case "basin":
                drain = " The drain is open." if detail else ""
                return f"{own}, which is turned {state}. In the {the} is: {self.contents()}.{drain}"
            case "toilet":
                drain = f"A drain, which is {'open' if self.on else 'closed'}"
                inside = ", ".join([drain, *(thing.look() for thing in self.inside)])
                return f"{own}{', which is flushing' * bool(self.on)}. In the {the} is: {inside}."
            case "picture":
                return f"{own} of {self.text}." if detail else own
            case "thermometer":
                return f"{own}, currently reading a temperature of {self.temperature:.0f} degrees celsius"
            case "stopwatch":
                time = f"The time reads {self.number} ticks." if detail else ""
                return f"{own}, which is {'' if self.on else 'de'}activated. {time}"
            case "recipe":
                return f"A recipe titled instructions to make {self.text[0]}"
            case "plane":
                return f"an {self.label}" + "".join(f", with: {_slid(thing)}" for thing in self.inside)
            case "wire":
                return own + _connections(self, detail)
            case "battery":
                return own + _connections(self, detail, ". ")
            case "part":
                return f"{own}, which is {state}" + _connections(self, detail, ". ")

    def contents(self, lines: bool = False) -> str:
        """Return the list of contents, on one line or on a line each."""
        texts = [thing.look() for thing in in_order(self.inside)] or ["nothing"]
        return "".join(f"\n\t{text}" for text in texts) if lines else ", ".join(texts)


class Terminal(Thing):
    """A connection point: the anode or the cathode of a part, or an end of anything else."""

    __slots__ = ("link",)

    def __init__(self, owner: Thing, name: str):
        self.kind = self.form = "terminal"
        self.name, self.label_, self.reads = name, "", "a {}"
        self.fixed, self.lid, self.open, self.on = True, False, None, None
        self.switchable = self.broken = self.burning = self.edible = self.conducts = False
        self.temperature = self.matter = self.alive = self.text = self.terminals_ = self.link = None
        self.holder, self.inside = owner, []
        self.called = tuple(map(plain, ("terminal", name, f"{name} on {owner.name}", f"{owner.name} {name}")))

    @property
    def other(self) -> "Terminal":
        first, second = self.holder.terminals
        return second if self is first else first

    def look(self, detail: bool = False) -> str:
        return (
            f"a {self.name}. it is connected to: {_linked(self)}. "
            if detail
            else f"a {self.name} on {self.holder.name}"
        )


class Room(Thing):
    """A room, with its doors by the rooms that they lead to."""

    __slots__ = ("doors",)

    def __init__(self, name: str):
        KINDS.setdefault("room", ("room", frozenset(("bare", "fixed"))))
        super().__init__("room", name)
        self.doors: dict[str, Door] = {}

    def look(self, detail: bool = False) -> str:
        outside = self.name == "outside"
        where = f"This {'outside location' if outside else 'room'} is called the {self.name}. "
        things = f"{'Here' if outside else 'In it,'} you see: {self.contents(True)}"
        doors = "".join(f"\n\t{door.seen_from(self)}" for _, door in sorted(self.doors.items()))
        return f"{where}{things}\nYou also see:{doors}"


class Door(Thing):
    """A door; its name depends on the room from which it is seen."""

    __slots__ = ("rooms",)

    def __init__(self, first: Room, second: Room):
        KINDS.setdefault("door", ("door", frozenset(("bare", "fixed", "lid"))))
        super().__init__("door", label=f"door between {first.name} and {second.name}")
        self.rooms, self.open = (first, second), False
        first.doors[second.name] = second.doors[first.name] = self

    def other(self, room: Room) -> Room:
        return self.rooms[room is self.rooms[0]]

    def seen_from(self, room: Room) -> str:
        return f"A door to the {self.other(room).name} (that is {'open' if self.open else 'closed'})"


def plain(text: str) -> str:
    """Return text normalised for comparing names: lower case, single spaces, no articles."""
    return " ".join(word for word in text.lower().split() if word not in ARTICLES)


def in_order(things: list[Thing]) -> list[Thing]:
    return sorted(things, key=lambda thing: (thing.name, thing.label_))


def _connections(thing: Thing, detail: bool, before: str = "") -> str:
    if not detail:
        return ""
    return before + "".join(f"its {end.name} is connected to: {_linked(end)}. " for end in thing.terminals)


def _linked(terminal: Terminal) -> str:
    return terminal.link.look() if terminal.link else "nothing"


def _slid(thing: Thing) -> str:
    if thing.number >= 100:
        return f"{thing.look()} at the bottom of the plane"
    return f"{thing.look()} approximately {int(thing.number)}% down the plane"


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
