"""The rules of SciWorld: reach, the effect and reply of each action, and the passing of time."""

from envs.sciworld.grammar import AMBIGUOUS, DROPPED, GRAMMAR, SHOWN, UNKNOWN, helped, objects, readings, shown
from envs.sciworld.things import DOORS, ROOMS, SEALED, Door, Room, Terminal, Thing, in_order, plain

FREE = {"look around", "inventory", "task", "reset task"}  # actions that take no time
WAIT = 10  # iterations of `wait`
FLUSH = 3  # iterations for which a toilet flushes
LIGHTER = 10  # degrees that a lighter adds
SIMPLIFICATIONS = ("openDoors", "openContainers", "teleportAction", "selfWateringFlowerPots", "noElectricalAction")
EASY = ("openDoors", "teleportAction", "selfWateringFlowerPots", "noElectricalAction")
SOURCES = {  # device: final temperature of its contents, degrees per iteration
    "stove": (350, 10),
    "oven": (350, 10),
    "blast furnace": (2000, 100),
    "fridge": (4, -1),
    "freezer": (-20, -1),
    "ultra low temperature freezer": (-80, -5),
}
MIXES = (  # (ingredients, product, reply)
    ("sodium chloride, water", "salt water", "Sodium chloride and water mix to produce salt water."),
    ("soap, water", "soapy water", "Soap and water mix to produce soapy water."),
    ("sugar, water", "sugar water", "Sugar and water mix to produce sugar water."),
    (
        *("acetic acid, sodium bicarbonate", "sodium acetate"),
        "Sodium bicarbonate and acetic acid mix to produce sodium acetate.",
    ),
    ("chocolate, marshmallow", "smores", "Chocolate and marshmallow mix to produce smores."),
    ("peanut, almond, cashew", "mixed nuts", "Peanuts, almonds, and cashews mix to produce mixed nuts."),
    ("peanut, bread", "peanut butter sandwich", "Bread and peanuts mix to produce a peanut butter sandwich."),
    ("banana, bread", "banana sandwich", "Bread and peanuts mix to produce a banana sandwich."),
    ("jam, bread", "jam sandwich", "Bread and peanuts mix to produce a jam sandwich."),
    (
        *("peanut, jam, bread", "peanut butter with jam sandwich"),
        "Bread and peanuts and jam mix to produce a peanut butter with jam sandwich.",
    ),
    ("red paint, blue paint", "violet paint", "Red and blue paint mix to produce violet paint."),
    ("blue paint, yellow paint", "green paint", "Blue and yellow paint mix to produce green paint."),
    ("yellow paint, red paint", "orange paint", "Yellow and red paint mix to produce orange paint."),
    (
        "yellow paint, orange paint",
        "yellow-orange paint",
        "Yellow and orange paint mix to produce yellow-orange paint.",
    ),
    ("red paint, orange paint", "red-orange paint", "Red and orange paint mix to produce red-orange paint."),
    ("violet paint, red paint", "violet-red paint", "Violet and red paint mix to produce violet-red paint."),
    ("blue paint, violet paint", "blue-violet paint", "Blue and violet paint mix to produce blue-violet paint."),
    ("blue paint, green paint", "green-blue paint", "Blue and green paint mix to produce blue green paint."),
    ("green paint, yellow paint", "yellow-green paint", "Green and yellow paint mix to produce yellow-green paint."),
)
RECIPES = {frozenset(parts.split(", ")): (made, said) for parts, made, said in MIXES}


class Refused(Exception):
    """The action cannot be executed; the error's text is the observation."""


class World:
    """The rooms and the agent. `act` executes a line of text; `after` is called once per iteration of time."""

    def __init__(self, simplifications=()):
        self.rooms = {name: Room(name) for name in ROOMS}
        self.doors = [Door(self.rooms[first], self.rooms[second]) for first, second in DOORS]
        for room in self.rooms.values():
            Thing("air").put(room)
        self.agent = Thing("agent").put(self.rooms["hallway"])
        self.inventory = Thing("inventory", open=True).put(self.agent)
        Thing("orange").put(self.inventory)
        self.simplifications = simplifications
        self.pending: list[tuple] = []  # the readings from which the agent must choose
        self.description = ""
        self.focus: Thing | None = None  # the thing that the agent has just focused on
        self.event: tuple = ("", ())  # the last action and its things
        self.iteration = 0
        self.after = lambda: None
        self.target: Thing | None = None  # the task's subject, for its expert
        self.actions = {
            name: spec
            for name, spec in GRAMMAR.items()
            if not (name == "teleport" and "teleportAction" not in simplifications)
            and not (name in ("connect", "disconnect") and "noElectricalAction" in simplifications)
        }

    def ready(self) -> None:
        """Collect the things that time acts on and apply the simplifications. Call it once the house is furnished."""
        things = [thing for room in self.rooms.values() for thing in room.everything()]
        self.sources = [thing for thing in things if thing.kind in SOURCES]
        self.basins = [thing for thing in things if thing.form in ("basin", "toilet")]
        self.planes = [thing for thing in things if thing.form == "plane"]
        self.clocks = [thing for thing in things if thing.form == "stopwatch"]
        self.parts = [thing for thing in things if thing.form == "part"]
        for thing in things:
            if thing.form == "cooler":
                thing.on = True
            if thing.lid and "openContainers" in self.simplifications:
                thing.open = True
            if thing.kind == "flower pot" and "selfWateringFlowerPots" in self.simplifications:
                Thing("water").put(thing)
        for door in self.doors:
            door.open = "openDoors" in self.simplifications
        self._power()

    @property
    def room(self) -> Room:
        return self.agent.holder

    def room_of(self, thing: Thing) -> Thing:
        """Return the room that a thing is in."""
        return ([thing, *thing.chain()])[-1]

    def reach(self) -> list[Thing]:
        """Return all things that the agent can name: open to reach in its room, doors and their rooms, carried ones."""
        room = self.room
        doors = [door for _, door in sorted(room.doors.items())]
        held = [self.inventory, *self.inventory.within()]
        return [room, *room.within(), *doors, *(door.other(room) for door in doors), *held]

    def act(self, line: str) -> str:
        """Execute a line. Return the reply. Raise Refused if nothing was done."""
        self.focus, self.event = None, ("", ())
        text = plain(line)
        if text in ("help", "objects", "task"):  # actions that keep a pending choice
            return {"help": lambda: helped(self), "objects": lambda: objects(self), "task": self.do_task}[text]()
        if self.pending:
            pending, self.pending = self.pending, []
            if not (text.isascii() and text.isdigit() and len(text) < 4 and int(text) < len(pending)):
                raise Refused(DROPPED)
            return self._run(*pending[int(text)])
        found = readings(self, text)
        if not found:
            raise Refused(UNKNOWN)
        if len(found) > 1:
            self.pending = found[:SHOWN]
            raise Refused(AMBIGUOUS + "".join(f"{i}:\t{shown(*one)}\n" for i, one in enumerate(self.pending)))
        return self._run(*found[0])

    def _run(self, action: str, things: tuple) -> str:
        answer = getattr(self, "do_" + action.replace(" ", "_"))(*things)
        self.event = action, things
        self.after()
        if action not in FREE:
            for _ in range(WAIT if action == "wait" else 1):
                self.tick()
                self.after()
        return answer

    def do_open(self, thing: Thing) -> str:
        if not thing.lid:
            raise Refused(f"The {thing.name} is not openable.")
        if thing.open:
            raise Refused(f"The {thing.name} is already open.")
        thing.open = True
        return f"The {thing.name} is now open."

    def do_close(self, thing: Thing) -> str:
        if not thing.lid:
            raise Refused(f"The {thing.name} is not closeable.")
        if not thing.open:
            raise Refused(f"The {thing.name} is already closed.")
        thing.open = False
        return f"The {thing.name} is now closed."

    def do_activate(self, thing: Thing, on: bool = True) -> str:
        if not thing.switchable:
            raise Refused(f"The {thing.name} is not something that can be activated.")
        if thing.broken:
            raise Refused(f"The {thing.name} appears broken, and can't be activated or deactivated.")
        state = "activated" if on else "deactivated"
        if bool(thing.on) == on:
            raise Refused(f"The {thing.name} is already {state}.")
        thing.on = on
        return f"The {thing.name} is now {state}."

    def do_deactivate(self, thing: Thing) -> str:
        return self.do_activate(thing, on=False)

    def do_connect(self, first: Thing, second: Thing) -> str:
        a, b = _terminal(first), _terminal(second)
        if a is b or first is second:
            raise Refused("Something can't be connected to itself.")
        for end in (a, b):
            if end.link:
                raise Refused(_taken(f"{end.name} on {end.holder.name}"))
        a.link, b.link = b, a
        return f"{a.name} on {a.holder.name} is now connected to {b.name} on {b.holder.name}"

    def do_disconnect(self, thing: Thing) -> str:
        if thing.form == "terminal":
            owner = thing.holder.name
            raise Refused(f"You must disconnect entire objects (such as {owner}) instead of just single terminals")
        thing.disconnect()
        return f"{thing.name} has been disconnected"

    def do_use(self, tool: Thing, thing: Thing) -> str:
        if tool.kind not in ("thermometer", "lighter", "axe", "shovel"):
            raise Refused(f"I'm not sure how to use the {tool.name}.")
        if tool.kind == "thermometer":
            if thing.temperature is None:
                raise Refused("That thing doesn't appear to have a temperature that the thermometer can read.")
            return f"the thermometer measures a temperature of {thing.temperature:.0f} degrees celsius"
        if tool.kind != "lighter" or thing.temperature is None or thing.burning:
            raise Refused("I'm not sure how to use those two things together.")
        burns = thing.matter and thing.matter[2]
        if not burns:
            thing.temperature += LIGHTER
            return f"The {tool.name} heats up the {thing.name} a small amount."
        thing.burning, thing.temperature = True, max(burns, thing.temperature)
        return f"The {thing.name} catches fire."

    def do_look_around(self) -> str:
        return self.room.look(True)

    def do_look_at(self, thing: Thing) -> str:
        return (thing.seen_from(self.room) if thing.form == "door" else thing.look(True)).strip()

    def do_look_in(self, thing: Thing) -> str:
        if thing.open is None or thing.form == "door":
            raise Refused("It's not clear how to look inside of that.")
        if not thing.open:
            raise Refused(f"The {thing.name} isn't open, so you can't see inside.")
        if thing.form == "ground" and not thing.inside:
            return f"There is nothing in the {thing.name}."
        answer = f"Inside the {thing.name} is: {thing.contents(True)}"
        if thing.form == "room":
            doors = ", ".join(door.seen_from(thing) for _, door in sorted(thing.doors.items()))
            return f"{answer}\n\n You also see: {doors}."
        if thing.form in ("basin", "toilet"):
            drain = "open" if thing.form == "basin" or thing.on else "closed"
            return f"{answer}\n You also see: A drain, which is {drain}."
        return answer

    def do_read(self, thing: Thing) -> str:
        if thing.form != "recipe":
            raise Refused("It's not clear how to read that.")
        made, parts = thing.text
        return f"The recipe reads:\nTo make {made}, you need to mix {parts}."

    def do_move(self, thing: Thing, to: Thing) -> str:
        if thing.fixed:
            raise Refused(f"The {thing.name} is not moveable.")
        if thing is to or thing in to.chain():
            raise Refused("You can't move something into itself.")
        if thing.state == "liquid":
            raise Refused(
                "You can't pick up a liquid directly. Try pouring it from one container to another, "
                "or dunking empty containers into containers filled with the liquid."
            )
        if thing.state == "gas":
            raise Refused("You can't pick up a gas directly.")
        if to.open is None or to.form == "door":
            raise Refused("That can't be moved there.")
        if not to.open:
            raise Refused(f"That can't be moved there, because the {to.name} isn't open.")
        if thing is self.agent:  # the agent can only walk
            raise Refused(f"The {thing.name} is not moveable.")
        apart = f"(disconnecting {thing.name})" if thing.disconnect() else ""
        thing.put(to)
        if to.form == "plane":
            thing.number = 0
        return f"{apart}You move the {thing.name} to the {to.name}."

    def do_pick_up(self, thing: Thing) -> str:
        return self.do_move(thing, self.inventory)

    def do_put_down(self, thing: Thing) -> str:
        return self.do_move(thing, self.room)

    def do_pour(self, thing: Thing, to: Thing) -> str:
        out = thing.open is not None and thing.form not in ("door", *SEALED)  # a container is poured out
        if thing.fixed:
            raise Refused(f"The {thing.name} is not moveable.")
        if not out and (thing.holder.fixed or thing.holder is self.room):
            raise Refused(f"The {thing.holder.name} the {thing.name} is in is not movable.")
        if out and not thing.open:
            raise Refused(f"The {thing.name} can't be poured out, because it's not open.")
        if not out and thing.state == "solid" and thing.temperature is not None:
            raise Refused("I'm not sure how to pour a solid.")
        if not out and thing.state == "gas":
            raise Refused("You can't pour a gas directly.")
        if to.open is None or to.form == "door":
            raise Refused("That can't be moved there, because it's not a container.")
        if not to.open:
            raise Refused(f"That can't be moved there, because the {to.name} isn't open.")
        if thing is to or thing in to.chain():
            raise Refused("You can't move something into itself.")
        poured = [each for each in thing.inside if not each.fixed] if out else [thing]
        apart = "".join(f"(disconnecting {each.name})\n" for each in poured if each.disconnect())
        for each in poured:
            each.put(to)
        what = f"contents of the {thing.name}" if out else thing.name
        return f"{apart}You pour the {what} into the {to.name}."

    def do_dunk(self, vessel: Thing, source: Thing) -> str:
        if vessel is source or vessel in source.chain():
            raise Refused("You can't dunk something into itself.")
        if vessel.fixed:
            raise Refused(f"The {vessel.name} is not moveable.")
        if vessel.open is None or vessel.form == "door":
            raise Refused(f"The {vessel.name} is not a container.")
        if not vessel.open:
            raise Refused(f"The {vessel.name} is not open.")
        liquids = [thing for thing in source.inside if thing.state == "liquid"]
        if not liquids:
            raise Refused(f"The {source.name} does not contain any liquids to dunk into.")
        for liquid in liquids:
            liquid.put(vessel)
        names = ", ".join(liquid.name for liquid in liquids)
        return f"You dunk the {vessel.name} in the {source.name}, moving the liquids ({names}) to the {vessel.name}."

    def do_mix(self, thing: Thing) -> str:
        nothing = f"Mixing the contents of the {thing.label} does not appear to produce anything new."
        if thing.form in ("battery", "part", "wire"):
            raise Refused(nothing)
        if not thing.inside:
            raise Refused("That container is empty, so there are no items to mix.")
        if len(thing.inside) == 1:
            raise Refused(f"There is only one thing ({thing.inside[0].label})")
        made, said = RECIPES.get(frozenset(part.name for part in thing.inside), ("", ""))
        if thing.fixed or len({part.name for part in thing.inside}) < len(thing.inside):
            made = ""
        paints = all(part.kind == "paint" for part in thing.inside) and len(thing.inside) <= 4
        if not made and paints:
            made, said = "brown paint", "The paints mix to produce brown paint."
        if not made:
            raise Refused(nothing)
        for part in list(thing.inside):
            self._remove(part)
        create(made).put(thing)
        return said

    def do_go(self, thing: Thing) -> str:
        room = self.room
        if isinstance(thing, Door):
            self._pass(thing)
            other = thing.other(room)
            self.agent.put(other)
            return f"You move through the door to the {other.name}."
        if not isinstance(thing, Room):
            raise Refused(f"Its not clear how to go to/through a {thing.name}.")
        if thing.name not in room.doors:
            raise Refused("It's not clear how to get there from here.")
        self._pass(room.doors[thing.name])
        self.agent.put(thing)
        return f"You move to the {thing.name}."

    def do_teleport(self, room: Room) -> str:
        self.agent.put(room)
        return f"You teleport to the {room.name}."

    def do_eat(self, thing: Thing) -> str:
        if not thing.edible or thing.kind == "paint":
            raise Refused(f"The {thing.name} is not edible.")
        self._remove(thing)
        return f"The {thing.name} was delicious."

    def do_flush(self, thing: Thing) -> str:
        if thing.form != "toilet":
            raise Refused("It's not clear how to flush that.")
        thing.on = True
        return f"The {thing.name} is now flushing."

    def do_focus(self, thing: Thing) -> str:
        self.focus = thing
        return f"You focus on the {thing.label}."

    def do_wait(self) -> str:
        return f"You decide to wait for {WAIT} iterations."

    def do_wait1(self) -> str:
        return "You decide to wait for 1 iterations."

    def do_inventory(self) -> str:
        held = [thing.look(True) for thing in in_order(self.inventory.inside)] or ["nothing"]
        return ("In your inventory, you see:" + "".join(f"\n\t{text}" for text in held)).rstrip()

    def do_task(self) -> str:
        return f"Task description:\n{self.description}"

    def do_reset_task(self) -> str:
        return "You reset the goal progress and focus."

    def _pass(self, door: Door) -> None:
        if not door.open:
            raise Refused("The door is not open.")

    def _remove(self, thing: Thing) -> None:
        thing.disconnect()
        thing.holder.inside.remove(thing)
        thing.holder = None

    # time

    def tick(self) -> None:
        """Advance time by one iteration: heat, taps, sliding blocks, clocks, circuits."""
        self.iteration += 1
        for source in self.sources:
            if source.on and source.inside:
                _warm(source, *SOURCES[source.kind])
        for basin in self.basins:
            if basin.on:
                self._run_water(basin)
            if basin.form == "basin":  # the drain is open
                for liquid in [thing for thing in basin.inside if thing.state == "liquid"]:
                    self._remove(liquid)
        for plane in self.planes:
            for thing in plane.inside:
                thing.number = min(100, thing.number + plane.number)
        for clock in self.clocks:
            clock.number += bool(clock.on)
        self._power()

    def _run_water(self, basin: Thing) -> None:
        if basin.form == "toilet":  # its contents vanish; it fills again when the flush ends
            for liquid in [thing for thing in basin.inside if thing.state == "liquid"]:
                self._remove(liquid)
            basin.number = (basin.number + 1) % FLUSH
            if basin.number == 0:
                basin.on = False
                Thing("water").put(basin)
            return
        for vessel in basin.inside:
            if vessel.form == "vessel" and vessel.open and not any(thing.name == "water" for thing in vessel.inside):
                Thing("water").put(vessel)

    def _power(self) -> None:
        """Turn on each part whose anode connects to the cathode of a power source and whose cathode to an anode, one
        iteration after it is connected."""
        for part in self.parts:
            if part.kind == "solar panel":
                part.on = part.holder is self.rooms["outside"]
        for part in self.parts:
            if part.kind not in ("solar panel", "gas generator", "switch"):
                closed = all(source(part, end) for end in (0, 1))
                part.on, part.number = closed and bool(part.number), closed


def source(part: Thing, end: int) -> Thing | None:
    """Return the running power source whose opposite terminal a part's anode (0) or cathode (1) connects to."""
    here, wanted = part.terminals[end], 1 - end
    for _ in range(20):
        there = here.link
        if there is None:
            return None
        thing = there.holder
        if thing.kind in ("battery", "solar panel", "gas generator"):
            running = thing.kind == "battery" or thing.on
            return thing if running and there is thing.terminals[wanted] else None
        if not thing.conducts or (thing.kind == "switch" and not thing.on):
            return None
        here = there.other
    return None


def create(name: str) -> Thing:
    """Create a thing by its full name."""
    for kind in ("paint", "sandwich", "box", "wire", "light bulb"):
        if name.endswith(" " + kind):
            return Thing(kind, name)
    return Thing(name)


def _terminal(thing: Thing) -> Terminal:
    if thing.form == "terminal":
        return thing
    points = {"battery": "polarized", "part": "polarized", "wire": "unpolarized"}.get(thing.form)
    if points:
        names = "anode, cathode" if points == "polarized" else "terminal 1, terminal 2"
        raise Refused(
            f"Connections must specify specific points of contact on {points} electrical components (e.g. {names})"
        )
    for end in thing.terminals:
        if not end.link:
            return end
    raise Refused(_taken(thing.name))


def _taken(name: str) -> str:
    return f"{name} is already connected, and must be disconnected before it can be connected to something else"


def _warm(holder: Thing, target: float, step: float) -> None:
    """Bring everything in a heat source closer to the source's temperature."""
    for thing in holder.inside:
        if thing.temperature is not None and (target - thing.temperature) * step > 0:
            thing.temperature += step
            if (target - thing.temperature) * step < 0:
                thing.temperature = target
            if thing.matter and thing.matter[2] and thing.temperature >= thing.matter[2]:
                thing.burning = True
        _warm(thing, target, step)
