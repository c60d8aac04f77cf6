"""The house of one SciWorld episode: its rooms, the agent, and the execution of a line of text."""

from random import Random

from envs.sciworld import actions
from envs.sciworld.actions import WAIT, Refused
from envs.sciworld.grammar import AMBIGUOUS, DROPPED, GRAMMAR, SHOWN, UNKNOWN, helped, objects, readings, shown
from envs.sciworld.physics import SOURCES, power, tick
from envs.sciworld.rooms import DOORS, ROOMS
from envs.sciworld.things import Door, Room, Thing, plain

FREE = {"look around", "inventory", "task", "reset task", "teleport"}  # actions that take no time
SIMPLIFICATIONS = ("openDoors", "openContainers", "teleportAction", "selfWateringFlowerPots", "noElectricalAction")
EASY = ("openDoors", "teleportAction", "selfWateringFlowerPots", "noElectricalAction")


class House:
    """The rooms and the agent. `act` executes a line of text. It calls `after` after the action and each iteration."""

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
        self.bees: list[Thing] = []  # those that fly; in most tasks none does
        self.chance: Random | None = None  # which alleles seeds inherit
        self.grammar = {  # the part of GRAMMAR that the simplifications leave
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
        self.living = [thing for thing in things if thing.life]
        for thing in things:
            if thing.form == "cooler":
                thing.on = True
            if thing.lid and "openContainers" in self.simplifications:
                thing.open = True
            if thing.kind == "flower pot" and "selfWateringFlowerPots" in self.simplifications:
                Thing("water").put(thing)
        for door in self.doors:
            door.open = "openDoors" in self.simplifications
        power(self)

    @property
    def room(self) -> Room:
        """The room that the agent is in."""
        return self.agent.holder

    def room_of(self, thing: Thing) -> Thing:
        """Return the room that a thing is in."""
        return ([thing, *thing.chain()])[-1]

    def connected(self) -> set[Room]:
        """Return the agent's room and all rooms to which open doors lead from it."""
        found = [self.room]
        for room in found:
            beyond = [door.other(room) for door in room.doors.values() if door.open]
            found += [other for other in beyond if other not in found]
        return set(found)

    def reach(self) -> list[Thing]:
        """Return all things that the agent can name: in its room or carried, the doors, and the rooms behind them."""
        room = self.room
        doors = [door for _, door in sorted(room.doors.items())]
        held = [self.inventory, *self.inventory.within()]
        return [room, *room.within(), *doors, *(door.other(room) for door in doors), *held]

    def act(self, line: str) -> str:
        """Execute a line of text. Return the reply. Raise Refused if nothing was done."""
        self.focus, self.event = None, ("", ())
        text = plain(line)
        if text in ("help", "objects", "task"):  # actions that keep a pending choice
            return {"help": helped, "objects": objects, "task": actions.do_task}[text](self)
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
        """Execute an action and let its time pass. Return the reply."""
        answer = getattr(actions, "do_" + action.replace(" ", "_"))(self, *things)
        self.event = action, things
        self.after()
        if action not in FREE:
            for _ in range(WAIT if action == "wait" else 1):
                tick(self)
                self.after()
        return answer
