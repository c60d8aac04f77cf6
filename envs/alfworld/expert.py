"""ALFWorld's expert. It knows only what the agent has seen, and searches for the rest."""

from envs.alfworld.house import House
from envs.alfworld.rooms import CONTAINS, LAMPS, TOOLS, kind_of


def next_action(house: House) -> tuple[str, str]:
    """Return an expert's next action and its reason."""
    task, kind, target = house.goal
    word = house.word(kind)
    held = house.held
    if held and kind_of(held) != kind:
        places = [place for place in house.room.spots if kind_of(held) in CONTAINS[kind_of(place)]]
        place = max(places, key=lambda place: (place in house.near, house.is_open(place)))
        return _reach(house, place) or (f"move {held} to {place}", f"I need my hands for a {word}: I put this down.")
    if held and task == "look":
        for place in house.room.spots:
            if place in house.seen and (lamps := house.lamps([place])):
                reason = f"I hold the {word} at the {house.word(target)}: I turn it on."
                return _reach(house, place) or (f"use {lamps[0]}", reason)
        return _search(house, target, LAMPS[target])
    if held and not house.ready(held):
        tool = next(place for place in house.room.spots if kind_of(place) == TOOLS[task][0])
        go = f"go to {tool}", f"I {task} the {word} at the {kind_of(tool)}."
        return (f"{task} {held} with {tool}", f"I am at the {kind_of(tool)}.") if tool in house.near else go
    home = house.home()[0] if task != "look" else ""
    if held:
        return _reach(house, home) or (f"move {held} to {home}", f"This is the place for the {word}: I put it here.")
    known = [
        (place, thing)
        for place in house.room.spots
        for thing in house.inside[place]
        if kind_of(thing) == kind and place in house.seen and not (place == home and house.ready(thing))
    ]
    if known:
        place, thing = max(known, key=lambda candidate: candidate[0] in house.near)
        return _reach(house, place) or (f"take {thing} from {place}", f"There is a {word}: I take it.")
    places = [place for place in CONTAINS if kind in CONTAINS[place] and (task, place) != ("place", target)]
    return _search(house, kind, places)


def _reach(house: House, place: str) -> tuple[str, str] | None:
    """Return the next action towards a receptacle and its reason; None if the agent stands at it and it is open."""
    if place not in house.near:
        return f"go to {place}", f"I want to be at the {place}."
    return None if house.is_open(place) else (f"open {place}", f"The {place} is closed.")


def _search(house: House, kind: str, places) -> tuple[str, str]:
    """Return the next action of a search in unseen receptacles of these kinds, near and open ones first."""
    unseen = [place for place in house.room.spots if place not in house.seen and kind_of(place) in places]
    place = max(unseen, key=lambda place: (place in house.near, house.is_open(place)))
    action, _ = _reach(house, place) or (f"examine {place}", "")
    return action, f"There may be a {house.word(kind)} in or on the {place}."


def turns_needed(house: House, most: int) -> int:
    """Play the expert on a house. Return its number of actions, or `most` + 1 if it needs more than `most`."""
    turns = 0
    while turns <= most and not house.done():
        house.do(*house.meant(next_action(house)[0]))
        turns += 1
    return turns
