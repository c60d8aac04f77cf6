"""SciWorld's things: their state, names and descriptions. Rooms, doors and terminals are things too.

A thing's form (table, vessel, part, ...) decides how it is described. Lists of things are sorted by name, and those of
one name by their order of arrival.
"""

from functools import lru_cache

from envs.sciworld.kinds import CALLED, CONTAINERS, KINDS, MATTER, READS, SEALED, STATES, TEMPERATURE

ARTICLES = ("a", "an", "the")  # ignored in actions and in names


class Thing:
    """Anything that an action can name. `holder` is the thing that it is in, `inside` the things in it."""

    __slots__ = (
        *("kind", "name", "label_", "form", "called", "reads", "fixed", "lid", "open", "on", "switchable", "broken"),
        *("temperature", "matter", "burning", "edible", "alive", "conducts", "number", "text"),
        *("holder", "inside", "terminals_", "life", "stage", "genes", "parent"),
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
        self.life, self.stage = (), 0  # the stages of life, and which of them it is in
        self.genes = self.parent = None  # a plant's genes, a grain of pollen's plant
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
        """One of STATES, depending on the temperature."""
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
        """Yield everything inside, except behind closed lids."""
        for thing in self.inside:
            yield thing
            if thing.open:
                yield from thing.within()

    def everything(self):
        """Yield everything inside, behind closed lids too."""
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
        """Return the thing's description in a list; with `detail`, the one for an agent that looks at it."""
        own = self.reads.format(self.label)
        the, state = self.name, "on" if self.on else "off"
        match self.form:
            case "plain" | "substance" | "ground" | "tool":
                return own
            case "living" if self.kind == "plant":
                return f"{own}. On the {the} you see: {self.contents()}. " if self.inside else own
            case "living":
                return f"{own}, that is covered in pollen" if detail and self.inside else own
            case "pollen":
                return f"{self.text}{own}" if detail else own  # in one word, as in the original
            case "flower":
                return f"{own}. Inside the flower is: {self.contents()}" if detail else own
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
        self.life, self.stage = (), 0
        self.holder, self.inside = owner, []
        self.called = tuple(map(plain, ("terminal", name, f"{name} on {owner.name}", f"{owner.name} {name}")))

    @property
    def other(self) -> "Terminal":
        """The other terminal of the same thing."""
        first, second = self.holder.terminals
        return second if self is first else first

    def look(self, detail: bool = False) -> str:
        return (
            f"a {self.name}. it is connected to: {_linked(self)}. "
            if detail
            else f"a {self.name} on {self.holder.name}"
        )


class Room(Thing):
    """A room. `doors` maps the name of each neighbouring room to the door between them."""

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
    """A door. Its names and its description depend on the room from which the agent sees it."""

    __slots__ = ("rooms",)

    def __init__(self, first: Room, second: Room):
        KINDS.setdefault("door", ("door", frozenset(("bare", "fixed", "lid"))))
        super().__init__("door", label=f"door between {first.name} and {second.name}")
        self.rooms, self.open = (first, second), False
        first.doors[second.name] = second.doors[first.name] = self

    def other(self, room: Room) -> Room:
        """Return the room on the other side."""
        return self.rooms[room is self.rooms[0]]

    def seen_from(self, room: Room) -> str:
        return f"A door to the {self.other(room).name} (that is {'open' if self.open else 'closed'})"


@lru_cache(maxsize=4096)  # a house has a few hundred names, and each episode builds them anew
def plain(text: str) -> str:
    """Return text normalised for comparing names: lower case, single spaces, no articles."""
    return " ".join(word for word in text.lower().split() if word not in ARTICLES)


def in_order(things: list[Thing]) -> list[Thing]:
    """Return things in the order in which descriptions list them."""
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


def create(name: str) -> Thing:
    """Create a thing by its full name."""
    for kind in ("paint", "sandwich", "box", "wire", "light bulb"):
        if name.endswith(" " + kind):
            return Thing(kind, name)
    return Thing(name)


def remove(thing: Thing) -> None:
    """Remove a thing from the house."""
    thing.disconnect()
    thing.holder.inside.remove(thing)
    thing.holder = None
