"""The actions of SciWorld: `do_open(house, thing)` executes `open`, and so on.

Each function returns the reply, or raises Refused without having changed anything.
"""

from envs.sciworld.kinds import SEALED
from envs.sciworld.things import Door, Room, Terminal, Thing, create, in_order, remove

WAIT = 10  # iterations of `wait`
LIGHTER = 10  # degrees that a lighter adds
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


def do_open(house, thing: Thing) -> str:
    if not thing.lid:
        raise Refused(f"The {thing.name} is not openable.")
    if thing.open:
        raise Refused(f"The {thing.name} is already open.")
    thing.open = True
    return f"The {thing.name} is now open."


def do_close(house, thing: Thing) -> str:
    if not thing.lid:
        raise Refused(f"The {thing.name} is not closeable.")
    if not thing.open:
        raise Refused(f"The {thing.name} is already closed.")
    thing.open = False
    return f"The {thing.name} is now closed."


def do_activate(house, thing: Thing, on: bool = True) -> str:
    if not thing.switchable:
        raise Refused(f"The {thing.name} is not something that can be activated.")
    if thing.broken:
        raise Refused(f"The {thing.name} appears broken, and can't be activated or deactivated.")
    state = "activated" if on else "deactivated"
    if bool(thing.on) == on:
        raise Refused(f"The {thing.name} is already {state}.")
    thing.on = on
    return f"The {thing.name} is now {state}."


def do_deactivate(house, thing: Thing) -> str:
    return do_activate(house, thing, on=False)


def do_connect(house, first: Thing, second: Thing) -> str:
    a, b = _terminal(first), _terminal(second)
    if a is b or first is second:
        raise Refused("Something can't be connected to itself.")
    for end in (a, b):
        if end.link:
            raise Refused(_taken(f"{end.name} on {end.holder.name}"))
    a.link, b.link = b, a
    return f"{a.name} on {a.holder.name} is now connected to {b.name} on {b.holder.name}"


def do_disconnect(house, thing: Thing) -> str:
    if thing.form == "terminal":
        owner = thing.holder.name
        raise Refused(f"You must disconnect entire objects (such as {owner}) instead of just single terminals")
    thing.disconnect()
    return f"{thing.name} has been disconnected"


def do_use(house, tool: Thing, thing: Thing) -> str:
    if tool.kind not in ("thermometer", "lighter", "axe", "shovel"):
        raise Refused(f"I'm not sure how to use the {tool.name}.")
    if tool.kind == "thermometer":
        if thing.temperature is None:
            raise Refused("That thing doesn't appear to have a temperature that the thermometer can read.")
        return f"the thermometer measures a temperature of {thing.temperature:.0f} degrees celsius"
    if tool.kind == "shovel" and thing.form == "ground":
        for kind in ("hole", "soil"):
            Thing(kind).put(house.room)
        return "You dig a hole in the ground, and place the soil nearby."
    if tool.kind != "lighter" or thing.temperature is None or thing.burning:
        raise Refused("I'm not sure how to use those two things together.")
    burns = thing.matter and thing.matter[2]
    if not burns:
        thing.temperature += LIGHTER
        return f"The {tool.name} heats up the {thing.name} a small amount."
    thing.burning, thing.temperature = True, max(burns, thing.temperature)
    return f"The {thing.name} catches fire."


def do_look_around(house) -> str:
    return house.room.look(True)


def do_look_at(house, thing: Thing) -> str:
    return (thing.seen_from(house.room) if thing.form == "door" else thing.look(True)).strip()


def do_look_in(house, thing: Thing) -> str:
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


def do_read(house, thing: Thing) -> str:
    if thing.form != "recipe":
        raise Refused("It's not clear how to read that.")
    made, parts = thing.text
    return f"The recipe reads:\nTo make {made}, you need to mix {parts}."


def do_move(house, thing: Thing, to: Thing) -> str:
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
    if thing is house.agent:  # the agent can only walk
        raise Refused(f"The {thing.name} is not moveable.")
    apart = f"(disconnecting {thing.name})" if thing.disconnect() else ""
    thing.put(to)
    if to.form == "plane":
        thing.number = 0
    return f"{apart}You move the {thing.name} to the {to.name}."


def do_pick_up(house, thing: Thing) -> str:
    return do_move(house, thing, house.inventory)


def do_put_down(house, thing: Thing) -> str:
    return do_move(house, thing, house.room)


def do_pour(house, thing: Thing, to: Thing) -> str:
    out = thing.open is not None and thing.form not in ("door", *SEALED)  # a container is poured out
    if thing.fixed:
        raise Refused(f"The {thing.name} is not moveable.")
    if not out and (thing.holder.fixed or thing.holder is house.room):
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


def do_dunk(house, vessel: Thing, source: Thing) -> str:
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


def do_mix(house, thing: Thing) -> str:
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
        remove(part)
    create(made).put(thing)
    return said


def do_go(house, thing: Thing) -> str:
    room = house.room
    if isinstance(thing, Door):
        _pass(thing)
        other = thing.other(room)
        house.agent.put(other)
        return f"You move through the door to the {other.name}."
    if not isinstance(thing, Room):
        raise Refused(f"Its not clear how to go to/through a {thing.name}.")
    if thing.name not in room.doors:
        raise Refused("It's not clear how to get there from here.")
    _pass(room.doors[thing.name])
    house.agent.put(thing)
    return f"You move to the {thing.name}."


def do_teleport(house, room: Room) -> str:
    house.agent.put(room)
    return f"You teleport to the {room.name}."


def do_eat(house, thing: Thing) -> str:
    if not thing.edible or thing.kind == "paint":
        raise Refused(f"The {thing.name} is not edible.")
    remove(thing)
    return f"The {thing.name} was delicious."


def do_flush(house, thing: Thing) -> str:
    if thing.form != "toilet":
        raise Refused("It's not clear how to flush that.")
    thing.on = True
    return f"The {thing.name} is now flushing."


def do_focus(house, thing: Thing) -> str:
    house.focus = thing
    return f"You focus on the {thing.label}."


def do_wait(house) -> str:
    return f"You decide to wait for {WAIT} iterations."


def do_wait1(house) -> str:
    return "You decide to wait for 1 iterations."


def do_inventory(house) -> str:
    held = [thing.look(True) for thing in in_order(house.inventory.inside)] or ["nothing"]
    return ("In your inventory, you see:" + "".join(f"\n\t{text}" for text in held)).rstrip()


def do_task(house) -> str:
    return f"Task description:\n{house.description}"


def do_reset_task(house) -> str:
    return "You reset the goal progress and focus."


def _pass(door: Door) -> None:
    """Raise Refused if a door is closed."""
    if not door.open:
        raise Refused("The door is not open.")


def _terminal(thing: Thing) -> Terminal:
    """Return the terminal to connect: the thing itself, or the first free one of a thing that is not electrical."""
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
    """Return the refusal to connect something twice."""
    return f"{name} is already connected, and must be disconnected before it can be connected to something else"
