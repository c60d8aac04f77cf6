"""The state of one ALFWorld episode: the possible commands, their effects and replies, and the goal's completion."""

from envs.alfworld.rooms import CONTAINS, KNIVES, LAMPS, OPENABLE, SLICEABLE, TOOLS, VESSELS, Goal, Room, kind_of, order

HELP = """Available commands:
  look:                             look around your current location
  inventory:                        check your current inventory
  go to (receptacle):               move to a receptacle
  open (receptacle):                open a receptacle
  close (receptacle):               close a receptacle
  take (object) from (receptacle):  take an object from a receptacle
  move (object) to (receptacle):  place an object in or on a receptacle
  examine (something):              examine a receptacle or an object
  use (object):                     use an object
  heat (object) with (receptacle):  heat an object using a receptacle
  clean (object) with (receptacle): clean an object using a receptacle
  cool (object) with (receptacle):  cool an object using a receptacle
  slice (object) with (object):     slice an object using a sharp object
"""


class House:
    """A room with its objects, the agent in it, and a goal."""

    def __init__(self, goal: Goal, room: Room, words: dict[str, str] | None = None):
        self.goal, self.room = goal, room
        self.words = words or {}  # kind -> its alias in this room
        self.inside = {place: list(objects) for place, objects in room.inside.items()}
        self.goes = {f"go to {place}": ("go to", "", place) for place in room.spots}
        self.homes = [place for place in room.spots if kind_of(place) == goal.target]
        self.near: list[str] = []  # the receptacles at the agent's place; none in the middle of the room
        self.held = ""  # the object in the agent's hand
        self.opened: set[str] = set()
        self.states: set[tuple[str, str]] = set()  # (adjective, object): clean, hot, cool, sliced, on
        self.left: set[tuple[str, str]] = set()  # (object, the receptacle that the agent took it from)
        self.seen: set[str] = set()  # receptacles whose contents the agent has seen

    def commands(self) -> dict[str, tuple[str, str, str]]:
        """Return all possible commands as {command: (verb, object, receptacle)}; "" where there is none."""
        return {text: act for text, act in self.goes.items() if act[2] not in self.near} | self._here()

    def meant(self, command: str) -> tuple[str, str, str] | None:
        """Return (verb, object, receptacle) of a command; None if it is not possible.

        Same result as `self.commands().get(command)`, without listing every place to go to.
        """
        go = self.goes.get(command)
        return self._here().get(command) if go is None else None if go[2] in self.near else go

    def _here(self) -> dict[str, tuple[str, str, str]]:
        """Return the possible commands other than going elsewhere."""
        held = self.held
        found = {verb: (verb, "", "") for verb in ("look", "inventory", "help")}
        if held:
            found[f"examine {held}"] = ("examine", held, "")
        for place in self.near:
            kind = kind_of(place)
            found[f"examine {place}"] = ("examine", "", place)
            if kind in OPENABLE:
                verb = "close" if place in self.opened else "open"
                found[f"{verb} {place}"] = (verb, "", place)
            if held and self.is_open(place) and kind_of(held) in CONTAINS[kind]:
                found[f"move {held} to {place}"] = ("move", held, place)
            for thing in self.inside[place]:
                if kind_of(thing) in LAMPS:
                    found[f"use {thing}"] = ("use", thing, place)
                elif not held and self.is_open(place):
                    found[f"take {thing} from {place}"] = ("take", thing, place)
                elif held and kind_of(held) in KNIVES and kind_of(thing) in SLICEABLE:
                    found[f"slice {thing} with {held}"] = ("slice", thing, place)
            for verb, (tool, _, able) in TOOLS.items():
                if held and kind == tool and kind_of(held) in able:
                    found[f"{verb} {held} with {place}"] = (verb, held, place)
        return found

    def word(self, kind: str) -> str:
        """Return the word for a kind in this room."""
        return self.words.get(kind, kind)

    def is_open(self, place: str) -> bool:
        """Return whether a receptacle is open, or is of a kind that does not close."""
        return kind_of(place) not in OPENABLE or place in self.opened

    def do(self, verb: str, thing: str, place: str) -> str:
        """Execute a possible action. Return the reply."""
        if verb == "go to":
            self.near = [name for name, spot in self.room.spots.items() if spot == self.room.spots[place]]
            return f"You arrive at {place}. {self._view(place)}"
        if verb == "open":
            self.opened.add(place)
            return f"You open the {place}. {self._view(place)}"
        if verb == "close":
            self.opened.remove(place)
            return f"You close the {place}."
        if verb == "take":
            self.inside[place].remove(thing)
            self.held = thing
            self.left.add((thing, place))
            return f"You pick up the {thing} from the {place}."
        if verb == "move":
            self.inside[place] = sorted([*self.inside[place], thing], key=order)
            self.held = ""
            self.left.discard((thing, place))
            return f"You move the {thing} to the {place}."
        if verb in TOOLS:
            self.states -= {("hot", thing), ("cool", thing)} if verb != "clean" else set()
            self.states.add((TOOLS[verb][1], thing))
            return f"You {verb} the {thing} using the {place}."
        if verb == "use":
            self.states.add(("on", thing))
            return f"You turn on the {thing}."
        if verb == "slice":
            self.states.add(("sliced", thing))
            return f"You sliced the {thing} with the {self.held}."
        if verb == "examine":
            return self._view(place) if place else self._nature(thing)
        if verb == "look":
            return self._around()
        if verb == "inventory":
            return f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."
        return HELP

    def _view(self, place: str) -> str:
        """Describe a receptacle and, if it is open, its contents."""
        if not self.is_open(place):
            return f"The {place} is closed."
        self.seen.add(place)
        where = f"The {place} is open. In it" if kind_of(place) in OPENABLE else f"On the {place}"
        return f"{where}, you see {listed(self.inside[place])}."

    def _nature(self, thing: str) -> str:
        """Describe the object in hand."""
        if kind_of(thing) in VESSELS:
            return f"This is a normal {thing}. In it, you see nothing."
        hot, cool, clean, sliced = (
            (adjective, thing) in self.states for adjective in ("hot", "cool", "clean", "sliced")
        )
        if cool and not clean and not sliced:
            return f"This is a cold {thing}."
        treated = " and ".join(["hot"] * hot + ["cool"] * cool + ["clean"] * clean)
        words = " ".join(filter(None, [treated, "sliced" * sliced]))
        return f"This is a {words} {thing}." if words else f"There's nothing special about {thing}."

    def _around(self) -> str:
        """Describe the agent's place: its receptacles, and objects moved from one of them to another."""
        if not self.near:
            return "You are in the middle of a room. Looking quickly around you, you see nothing."
        things = sorted((thing for place in self.near for thing in self.inside[place]), key=order)
        loose = [thing for thing in things for place in self.near if (thing, place) in self.left]
        return f"You are facing the {_joined(self.near)}. Next to it, you see {listed(loose)}."

    def ready(self, thing: str) -> bool:
        """Return whether an object has the goal's kind and the goal's treatment (clean, hot, cool)."""
        task, kind, _ = self.goal
        return kind_of(thing) == kind and (task not in TOOLS or (TOOLS[task][1], thing) in self.states)

    def done(self) -> bool:
        """Return whether the goal is reached."""
        if self.goal.task == "look":
            lit = any(("on", lamp) in self.states for lamp in self.lamps(self.near))
            return bool(self.held) and kind_of(self.held) == self.goal.kind and lit
        return self.home()[1] >= 1 + (self.goal.task == "two")

    def lamps(self, places) -> list[str]:
        """Return the goal's lamps at some receptacles."""
        return [thing for place in places for thing in self.inside[place] if kind_of(thing) == self.goal.target]

    def home(self) -> tuple[str, int]:
        """Return the target receptacle and how many of the goal's objects it contains.

        Among the receptacles of the target kind, it is the one with most of these objects. If none has any, it is the
        one where the agent stands, else an open one, else the first.
        """
        counts = {place: sum(map(self.ready, self.inside[place])) for place in self.homes}
        if any(counts.values()):
            home = max(counts, key=counts.get)
        else:
            home = max(counts, key=lambda place: (place in self.near, self.is_open(place)))
        return home, counts[home]


def _joined(words) -> str:
    """Return words joined by commas; "nothing" without any."""
    words = list(words)
    return ", ".join(words[:-1]) + ", and " + words[-1] if len(words) > 1 else "".join(words) or "nothing"


def listed(names) -> str:
    """Return names as a list in words: "a pen 1, and a mug 1"."""
    return _joined(f"a {name}" for name in names)
