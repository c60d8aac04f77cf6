"""AlfWorld against the original: our rooms, written as its PDDL problems, stepped in the PyPI TextWorld engine.

Needs `pip install "textworld[pddl]" alfworld` (some 100 MB, no game data), and is skipped without.
"""

import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from cases import cases

from envs.alfworld import Config, Env
from envs.alfworld.rooms import CONTAINS, LAMPS, OPENABLE, SLICEABLE, TEMPLATES, TOOLS, VESSELS, Goal, Room, kind_of

textworld = pytest.importorskip("textworld")
alfworld = pytest.importorskip("alfworld")
arguments = list(sys.argv)
pddl = pytest.importorskip("textworld.envs.pddl")
sys.argv = arguments  # which fast_downward overwrites

from alfworld.agents.utils.misc import Demangler  # noqa: E402
from alfworld.gen import constants, goal_library  # noqa: E402

pytestmark = pytest.mark.all_only

DATA = Path(alfworld.__file__).parent / "data"
CAMEL = {name.lower(): name for name in constants.OBJECTS}
TYPES = {
    "place": "pick_and_place_simple",
    "look": "look_at_obj_in_light",
    "clean": "pick_clean_then_place_in_recep",
    "heat": "pick_heat_then_place_in_recep",
    "cool": "pick_cool_then_place_in_recep",
    "two": "pick_two_obj_and_place",
}
ABLE = {"clean": "cleanable", "heat": "heatable", "cool": "coolable"}


class Named(textworld.core.Wrapper):
    """Give every entity the name that ALFWorld gives it."""

    def load(self, *args, **kwargs):
        super().load(*args, **kwargs)
        demangler = Demangler(game_infos=self._entity_infos)
        for info in self._entity_infos.values():
            info.name = demangler.demangle_alfred_name(info.id)


def entity(name: str) -> str:
    """Return an id that is read back as the name; ids count backwards."""
    kind, number = CAMEL[kind_of(name)], 99 - int(name.split()[1])
    part = "_bar_" + kind if kind.endswith("Basin") else ""
    return f"{kind.removesuffix('Basin')}_bar__plus_{number:02d}_dot_1{part}"


def problem(env: Env) -> str:
    """Return the room and the goal of an episode as a PDDL problem."""
    places = list(env.room.spots)
    things = [thing for place in places for thing in env.room.inside[place]]
    spots = {place: f"loc_{spot}" for place, spot in env.room.spots.items()}
    rtypes = sorted({kind_of(place) for place in places} | {"fridge", "microwave", "sinkbasin"})
    otypes = sorted({kind_of(thing) for thing in things} | {"knife", "butterknife", env.goal.kind})
    objects = ["agent1 - agent", "loc_start - location"]
    objects += [f"{entity(thing)} - object" for thing in things] + [f"{entity(place)} - receptacle" for place in places]
    objects += [f"{spot} - location" for spot in sorted(set(spots.values()))]
    objects += [f"{CAMEL[kind]}Type - otype" for kind in otypes] + [f"{CAMEL[kind]}Type - rtype" for kind in rtypes]
    facts = ["= (total-cost) 0", "atLocation agent1 loc_start"]
    for place in places:
        kind = kind_of(place)
        facts += [
            f"receptacleType {entity(place)} {CAMEL[kind]}Type",
            f"receptacleAtLocation {entity(place)} {spots[place]}",
        ]
        facts += [f"openable {entity(place)}"] if CAMEL[kind] in constants.OPENABLE_CLASS_SET else []
        for thing in env.room.inside[place]:
            facts += [
                f"inReceptacle {entity(thing)} {entity(place)}",
                f"objectAtLocation {entity(thing)} {spots[place]}",
            ]
    for thing in things:
        kind = CAMEL[kind_of(thing)]
        facts += [f"objectType {entity(thing)} {kind}Type"]
        facts += [] if kind_of(thing) in LAMPS else [f"pickupable {entity(thing)}"]
        facts += [f"isReceptacleObject {entity(thing)}"] if kind in constants.MOVABLE_RECEPTACLES else []
        facts += [
            f"{able} {entity(thing)}"
            for able in ("cleanable", "heatable", "coolable", "sliceable", "toggleable")
            if kind in constants.VAL_ACTION_OBJECTS[able.capitalize()]
        ]
    for rtype in rtypes:
        contents = constants.VAL_RECEPTACLE_OBJECTS[CAMEL[rtype]]
        facts += [f"canContain {CAMEL[rtype]}Type {CAMEL[otype]}Type" for otype in otypes if CAMEL[otype] in contents]
    task, kind, target = env.goal
    names = {"obj": CAMEL[kind], "recep": CAMEL[target], "toggle": CAMEL[target]}
    goal = goal_library.gdict[TYPES[task]]["pddl"].format(**names).replace("#", "-")
    lines = ["(define (problem ours) (:domain alfred)", "(:objects", *objects, ")", "(:init"]
    lines += [f"({fact})" for fact in facts]
    return "\n".join([*lines, ")", goal.rstrip()[:-1], "(:metric minimize (total-cost)))"])


def older(grammar: str) -> str:
    """Return the grammar before 0.4: undo what ALFWorld's own script changed in its games."""
    grammar = grammar.replace("You arrive at {r.name}.", "You arrive at {lend.name}.").replace(
        "move {o} to", "put {o} in/on"
    )
    return grammar.replace("You move the {o.name} to the", "You put the {o.name} in/on the").partition("action help")[0]


def engine(env: Env, wording: str):
    game = Named(pddl.PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True)))
    domain, grammar = ((DATA / f"alfred.{kind}").read_text() for kind in ("pddl", "twl2"))
    if env.config.dialect == "0.3":
        domain, grammar = domain.partition("(:action help")[0] + ")", older(grammar)
    game.load(
        {"pddl_domain": domain, "grammar": grammar.replace("UNKNOWN GOAL", wording), "pddl_problem": problem(env)}
    )
    return game


def compare(env: Env, game, action: str) -> bool:
    """Step both; assert that all their replies are equal; return whether the episode is over."""
    ours = env.step(action)
    state, _, over = game.step(action)
    said = state.feedback
    if said.startswith("You arrive at loc"):  # as AgentGym's server does with the replies of 0.3
        said = said.partition(". ")[2]
    assert ours.observation == said, action
    assert ours.info["valid"] == (state.feedback != "Nothing happens."), action
    assert (ours.terminated, ours.reward) == (over, float(state["won"])), action
    assert env.admissible() == state["admissible_commands"], action
    return over


EVERY = [*(("0.4", seed) for seed in range(60)), *(("0.3", seed) for seed in range(12))]
QUICK = ("0.4", 0), ("0.4", 7), ("0.4", 15), ("0.4", 23), ("0.3", 2), ("0.3", 7)  # every level, and all that is played


@pytest.mark.parametrize(
    ("dialect", "seed"), [case if case in QUICK else pytest.param(*case, marks=pytest.mark.full) for case in EVERY]
)
def test_replies_and_possible_actions_are_the_engines(dialect, seed):
    """Episodes of the expert, of random play, and of both in alternation, with impossible actions in between."""
    level = ["1", "2", "3", "3", "3", "original"][seed % 6]
    env = Env(Config(difficulty=level, prompt="short", max_turns=10**6, dialect=dialect))
    rng = Random(seed)
    around, wording = env.reset(seed)[0]["content"].split("\n")[1:]
    game = engine(env, wording.removeprefix("Your task is to: ").removesuffix("."))
    state = game.reset()
    banner, *rest = state.feedback.split("\n\n")
    assert banner == "-= Welcome to TextWorld, ALFRED! =-" and rest == [around, wording]
    assert env.admissible() == state["admissible_commands"]
    chance = [0.0, 0.5, 0.9][seed // 6 % 3]
    tried, over = ["look", "xyzzy", "help", "take mug 1 from desk 1", "Look", "look around"], False
    for _ in range(45):
        action = env.oracle()
        if rng.random() < chance:
            local = [command for command in env.admissible() if not command.startswith("go to")]
            action = rng.choice(rng.choice([local, local, env.admissible(), tried]))
        tried.append(action)
        over = compare(env, game, action)
        if over:
            break
    assert over or chance


CROWDED = Room(**cases("alfworld_parity")["a crowded room"])


@pytest.mark.parametrize(
    ("seed", "steps"), [(3, 40), *(pytest.param(seed, 200, marks=pytest.mark.full) for seed in range(3))]
)
def test_a_crowded_room_where_every_verb_is_at_hand(seed, steps):
    """Random play seldom meets it: three receptacles at one place, tools side by side, knives, every adjective."""
    env = Env(Config(max_turns=10**6, prompt="short"))
    env.begin(Goal("cool", "cup", "countertop"), CROWDED)
    rng, game, done = Random(seed), engine(env, "put a cool cup in countertop"), Counter()
    game.reset()
    for _ in range(steps):
        verbs = {command.split()[0] for command in env.admissible()}
        verb = min(sorted(verbs - {"help", "inventory"}), key=lambda verb: (done[verb] + rng.random() * 15, verb))
        action = rng.choice([command for command in env.admissible() if command.startswith(verb)])
        done[verb] += 1
        if compare(env, game, action):
            env.begin(env.goal, CROWDED)
            game.reset()
    assert " ".join(sorted(done)) == "clean close cool examine go heat look move open slice take use"
    compare(env, game, "help")


def test_the_tables_are_the_originals():
    objects = {
        kind for kinds in constants.VAL_RECEPTACLE_OBJECTS.values() for kind in kinds if not kind.endswith("Sliced")
    }
    movable = {"Bowl", "Box", "Cup", "Mug", "Pan", "Plate", "Pot"}
    theirs = {
        place.lower(): {kind.lower() for kind in kinds & objects}
        for place, kinds in constants.VAL_RECEPTACLE_OBJECTS.items()
        if place not in movable
    }
    assert theirs == CONTAINS
    assert {kind.lower() for kind in constants.OPENABLE_CLASS_SET - {"Box"}} == OPENABLE
    assert {kind.lower() for kind in constants.MOVABLE_RECEPTACLES} == VESSELS
    able = {
        name: {kind.lower() for kind in kinds & (objects | {"DeskLamp", "FloorLamp"})}
        for name, kinds in constants.VAL_ACTION_OBJECTS.items()
    }
    assert {name: TOOLS[verb][2] for verb, name in ABLE.items()} == {
        name: able[name.capitalize()] for name in ABLE.values()
    }
    assert set(SLICEABLE) == able["Sliceable"] and set(LAMPS) == able["Toggleable"]


def test_the_wordings_are_the_originals():
    for task, templates in TEMPLATES.items():
        theirs = goal_library.gdict[TYPES[task]]["templates"]
        names = {"obj": "{kind}", "recep": "{target}", "toggle": "{target}", "mrecep": ""}
        assert [text.format(**names) for text in theirs] == list(templates)
