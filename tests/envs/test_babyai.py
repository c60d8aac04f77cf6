"""BabyAI: the view, the primitives, exact messages and verdicts, the 40 levels, the expert, and rewards."""

import re
from collections import Counter
from random import Random

import golden
import pytest
from cases import cases
from experts import expert
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.babyai import DIFFICULTY, LEVELS, MAX_ACTION, UNKNOWN, Config, Env, canonical, grid
from envs.babyai.grid import BALL, BOX, DOOR, DROP, FORWARD, KEY, LEFT, PICKUP, RIGHT, TOGGLE
from envs.babyai.missions import And, Desc, Game, GoTo, Open, PickUp, PutNext, Sequence, descs, parts
from envs.babyai.text import look
from envs.common import SEVERAL

CASES = cases("babyai")

BY_LETTER = {colour[0]: colour for colour in grid.COLOURS if colour != "grey"} | {"e": "grey"}
KINDS = {"k": KEY, "b": BALL, "x": BOX, "O": DOOR, "C": DOOR, "L": DOOR}


def draw(plan: str) -> grid.Grid:
    """Return rooms of 8 from a drawing: `rk` a red key, `ex` a grey box, `gC` a green closed door, `> ` the agent."""
    lines = [line.split("|")[1] for line in plan.strip().splitlines()]
    width, height = len(lines[0]) // 3, len(lines)
    world = grid.Grid(8, height // 7, width // 7)
    for y, line in enumerate(lines):
        for x in range(width):
            sign, place = line[3 * x : 3 * x + 2], grid.cell(x, y)
            what = grid.WALL if sign == "##" else grid.EMPTY
            if sign[0] in ">v<^":
                world.pos, world.dir = place, ">v<^".index(sign[0])
            elif sign[1] in KINDS:
                what = grid.code(KINDS[sign[1]], BY_LETTER[sign[0]], max(0, "OCL".find(sign[1])))
            world.put(place, what, len(world.things) + 1 if sign[1] in KINDS else None)
    return world


def bound(world: grid.Grid, mission, steps: int = 64) -> Game:
    for desc in descs(mission):
        desc.bind(world)
    return Game(world, mission, steps)


def at(world: grid.Grid, mission, steps: int = 64, **options) -> Env:
    """Return an environment in an episode of this mission."""
    env = Env(Config(**{"prompt": "native", "max_turns": 99} | options))
    env.reset(seed=0)
    env.game = bound(world, mission, steps)
    env.sight = look(world)
    return env


def does(env: Env, action: str) -> str:
    """Return the reply to an action without the list of actions."""
    reply = env.step(f"Action: {action}" if env.config.prompt == "native" else action)
    return reply.observation.partition("\nAvailable actions: ")[0]


ROOM = """
|## ## ## ## ## ## ## ## |
|## .  .  .  .  .  .  ## |
|## .  ek .  .  .  .  ## |
|## >  .  .  rb .  .  ## |
|## .  .  .  .  .  .  ## |
|## .  .  .  .  .  .  ## |
|## .  .  .  .  .  .  ## |
|## ## ## ## ## ## ## ## |"""


def test_observation_is_exact():
    env = at(draw(ROOM), GoTo(Desc(BALL, "red")))
    assert env.step("Action: dance").observation == (
        "The action is not recognized. Please check valid actions.\n"
        'Available actions: ["turn left", "turn right", "move forward", "pickup grey key 1", "pickup red ball 1", '
        '"go to grey key 1", "go to red ball 1", "check available actions"]'
    )
    assert env.sight.native() == (
        "In front of you in this room, you can see several objects: There is a grey key 1 1 steps in front of you and "
        "1 steps to your left.  There is a red ball 1 right in front of you 3 steps away.  The room has walls around "
        "you. You are facing a wall 6 steps away. You are not carrying anything."
    )
    assert env.sight.short() == "grey key 1: ahead 1 left 1\nred ball 1: ahead 3\nwall: ahead 6\ncarry nothing"
    assert does(env, "pickup grey key 1") == (
        "In front of you in this room, you can see several objects: There is a red ball 1 0 steps in front of you and "
        "2 steps to your right.  The room has walls around you. You are facing a wall 3 steps away. "
        "You are carrying a grey key."
    )


def test_objects_are_named_from_near_to_far_and_counted_by_name():
    world = draw(
        """
        |## ## ## ## ## ## ## ## |
        |## rb .  .  .  gb .  ## |
        |## .  .  .  .  .  .  ## |
        |## .  .  rb .  .  rb ## |
        |## .  .  rx .  .  .  ## |
        |## .  .  .  .  .  .  ## |
        |## .  rb ^  rb .  .  ## |
        |## ## ## ## ## ## ## ## |"""
    )
    assert look(world).things == [  # name, number, steps ahead, steps to the right
        ("red ball", 1, 0, -1),
        ("red ball", 2, 0, 1),
        ("red box", 1, 2, 0),
        ("red ball", 3, 3, 0),
        ("red ball", 4, 3, 3),
        ("red ball", 5, 5, -2),
        ("green ball", 1, 5, 2),
    ]
    assert look(world).facing == ("box", 2)


def rows(world: grid.Grid) -> list[str]:
    """Return the view as a drawing, the farthest row first; a blank is unseen."""
    letters = ""
    for what in world.view():
        letters += {0: " ", grid.EMPTY: ".", grid.WALL: "#"}.get(what) or {KEY: "k", BALL: "b", BOX: "x"}.get(
            what & 7, "OCL"[what >> 6]
        )
    return [letters[i : i + 7] for i in range(0, 49, 7)]


BEYOND = """
    |## ## ## ## ## ## ## ## ## ## ## ## ## ## ## |
    |## .  .  .  .  .  .  ## .  .  .  .  .  .  ## |
    |## .  .  .  .  .  .  ## .  .  .  .  .  .  ## |
    |## .  .  .  .  >  .  DD .  .  .  bb .  .  ## |
    |## .  .  .  .  .  .  ## .  gk .  .  .  .  ## |
    |## .  .  .  .  .  .  ## rx .  .  .  .  .  ## |
    |## .  .  .  .  .  .  ## .  .  .  .  .  .  ## |
    |## ## ## ## ## ## ## ## ## ## ## ## ## ## ## |"""


def test_only_walls_and_closed_doors_block_the_view():
    blind = ["       "] * 4
    assert rows(draw(BEYOND.replace("DD", "yC"))) == [*blind, "###C###", "#......", "#......"]
    assert rows(draw(BEYOND.replace("DD", "yL"))) == [*blind, "###L###", "#......", "#......"]
    beyond = ["#..b...", "#......", "#...k..", "#....x."]
    assert rows(draw(BEYOND.replace("DD", "yO"))) == [*beyond, "###O###", "#......", "#......"]
    assert rows(draw(BEYOND.replace("DD", "rb"))) == [*beyond, "###b###", "#......", "#......"]
    aside = draw(BEYOND.replace("DD", "yO"))  # light goes through the door at a slant, and spreads along each row
    aside.pos = grid.cell(4, 1)
    assert rows(aside) == ["  #....", "  #...k", "  #....", "  ###O#", "  #....", "  #....", "  #...."]


def test_agents_own_cell_shows_the_carried_object():
    world = draw(ROOM)
    assert rows(world)[6][3] == "."
    world.held = 7, grid.code(KEY, "blue")
    assert rows(world)[6][3] == "k" and look(world).held == "blue key"


def test_an_empty_hall_without_walls_in_view():
    world = grid.Grid(20, 1, 1)
    world.pos, world.dir = grid.cell(10, 10), 0
    assert look(world).native() == (
        "You cannot see any objects within sight.The room has walls around you. You are not carrying anything."
    )
    env = at(world, GoTo(Desc(BALL)))
    env.game.play([FORWARD, LEFT, LEFT])  # the view stays as it was: only the first is done
    assert grid.xy(world.pos) == (11, 10) and world.dir == 0


def test_primitives():
    world = draw(
        """
        |## ## ## ## ## ## ## ## |
        |## .  .  .  .  .  .  ## |
        |## .  .  rL .  .  .  ## |
        |## .  gC >  bb .  .  ## |
        |## .  .  ex .  .  .  ## |
        |## .  .  .  .  .  .  ## |
        |## .  .  .  .  .  .  ## |
        |## ## ## ## ## ## ## ## |"""
    )
    world.contents[world.things[grid.cell(3, 4)]] = 99, grid.code(KEY, "red")
    start = world.pos

    def there() -> str:
        return grid.NAMES.get(world.cells[world.front], "nothing")

    for primitive, facing, held in [
        (FORWARD, "blue ball", None),
        (TOGGLE, "blue ball", None),
        (PICKUP, "nothing", "blue ball"),
        (PICKUP, "nothing", "blue ball"),
        (DROP, "blue ball", None),
        (DROP, "blue ball", None),
        (PICKUP, "nothing", "blue ball"),
        (RIGHT, "grey box", "blue ball"),
        (DROP, "grey box", "blue ball"),
        (PICKUP, "grey box", "blue ball"),
        (TOGGLE, "red key", "blue ball"),
        (PICKUP, "red key", "blue ball"),
        (LEFT, "nothing", "blue ball"),
        (DROP, "blue ball", None),
        (LEFT, "red locked door", None),
        (TOGGLE, "red locked door", None),
        (FORWARD, "red locked door", None),
        (RIGHT, "blue ball", None),
        (RIGHT, "red key", None),
        (PICKUP, "nothing", "red key"),
        (RIGHT, "green closed door", "red key"),
        (DROP, "green closed door", "red key"),
        (TOGGLE, "green open door", "red key"),
        (DROP, "green open door", "red key"),
        (TOGGLE, "green closed door", "red key"),
        (FORWARD, "green closed door", "red key"),
        (RIGHT, "red locked door", "red key"),
        (TOGGLE, "red open door", "red key"),
        (TOGGLE, "red closed door", "red key"),
        (TOGGLE, "red open door", "red key"),
    ]:
        world.act(primitive)
        assert (there(), grid.NAMES.get(world.held and world.held[1]), world.pos) == (facing, held, start)
    world.act(FORWARD)
    assert grid.xy(world.pos) == (3, 2) and world.steps == 31


PLAN = """
    |## ## ## ## ## ## ## ## ## ## ## ## ## ## ## |
    |## .  .  .  .  .  .  ## .  .  .  .  .  .  ## |
    |## .  .  .  .  .  .  yC .  .  .  .  .  .  ## |
    |## rk .  >  .  .  bb ## .  .  .  .  .  .  ## |
    |## .  .  .  .  .  .  rL .  .  .  .  .  .  ## |
    |## .  .  .  .  .  ex ## .  .  .  .  .  .  ## |
    |## .  .  .  .  ex gb ## .  .  .  .  .  .  ## |
    |## ## ## ## ## ## ## ## ## ## ## ## ## ## ## |"""


def replay(env: Env, transcript: str) -> None:
    """Check `> action` lines against the line below each: the beginning of the reply or, after `...`, its end."""
    lines = [line.strip() for line in transcript.strip().splitlines()]
    for action, reply in zip(lines[::2], lines[1::2], strict=True):
        said = does(env, action[2:])
        assert said.endswith(reply[3:]) if reply.startswith("...") else said.startswith(reply), (action, said)


def test_every_message_is_exact():
    env = at(draw(PLAN), GoTo(Desc(KEY, "grey")))
    replay(env, CASES["every message"])


def test_messages_about_keys_and_doors_are_exact():
    world = draw(PLAN.replace("rk", "bk").replace("gb", ". "))
    world.put(grid.cell(3, 6), grid.code(KEY, "red"), 50)
    replay(at(world, GoTo(Desc(BALL, "green"))), CASES["keys and doors"])
    assert grid.xy(world.pos) == (7, 4) and world.dir == 0


def first_found(blocked, goals: set, direction: int) -> list[int] | None:
    """Search as the original does: a queue with repetitions, where the last parent of a pose counts."""
    right_free, behind_free = direction in (1, 2), direction in (0, 1)
    columns, behind = range(-3, 5 if right_free else 4), range(-1 if behind_free else 0, 7)
    start = (0, 0), 0  # steps to the right and ahead; 0 ahead, 1 right, 2 behind, 3 left
    queue, popped, came = [start], set(), {}
    while queue:
        place, facing = pose = queue.pop(0)
        popped.add(pose)
        if pose in goals:
            way = []
            while pose != start:
                pose, primitive = came[pose]
                way.append(primitive)
            return way[::-1]
        dx, dy = ((0, 1), (1, 0), (0, -1), (-1, 0))[facing]
        on = (place[0] + dx, place[1] + dy), facing
        for primitive, then in ((FORWARD, on), (LEFT, (place, (facing - 1) % 4)), (RIGHT, (place, (facing + 1) % 4))):
            (x, y), _ = then
            if x in columns and y in behind and then not in popped and (x, y) not in blocked:
                queue.append(then)
                came[then] = pose, primitive
    return None


def test_paths_equal_the_originals():
    """The original's search takes exponential time in open rooms, hence the many walls."""
    found = Counter()
    rng = Random(5)
    for _ in range(60):
        world = grid.Grid(8, 3, 3)
        for place in (grid.cell(x, y) for x in range(22) for y in range(22)):
            if world.cells[place] == grid.EMPTY and rng.random() < 0.4:
                kind = rng.choice((DOOR, DOOR, KEY, BALL, BOX))
                world.put(place, grid.code(kind, rng.choice(grid.COLOURS), rng.randrange(3) * (kind == DOOR)), place)
        world.pos, world.dir = grid.cell(rng.randrange(1, 7), rng.randrange(8, 14)), rng.randrange(4)
        blocked, things = set(), []
        for i, what in enumerate(world.view()):
            place = i % 7 - 3, 6 - i // 7
            if place != (0, 0) and what in grid.NAMES:
                things.append((what, place))
            if place != (0, 0) and (what == grid.WALL or what & 7 > DOOR):
                blocked.add(place)
        things.sort(key=lambda thing: abs(thing[1][0]) + thing[1][1])
        actions = {action: way for action, way in look(world).actions.items() if action.startswith("go")}
        number = Counter()
        for what, (x, y) in things:
            name = grid.NAMES[what]
            beside = {((x - dx, y - dy), d) for d, (dx, dy) in enumerate(((0, 1), (1, 0), (0, -1), (-1, 0)))}
            way = first_found(blocked, beside, world.dir)
            number["go to " + name] += way is not None
            if way is not None:
                assert actions.pop(f"go to {name} {number['go to ' + name]}") == way
                found[len(way)] += 1
            number["through " + name] += 1
            if name.endswith("open door"):
                way = first_found(blocked, {((x, y), d) for d in range(4)}, world.dir)
                assert actions.pop(f"go through {name} {number['through ' + name]}", None) == way
        assert not actions
    assert sum(found.values()) > 100 and max(found) > 5


@pytest.mark.all_only
def test_actions_number_only_reachable_objects():
    world = draw(
        """
        |## ## ## ## ## ## ## ## |
        |## rb gx .  .  .  rb ## |
        |## ex .  .  .  .  .  ## |
        |## .  .  .  .  .  .  ## |
        |## .  .  ^  .  .  .  ## |
        |## .  .  .  .  .  .  ## |
        |## .  .  .  .  .  .  ## |
        |## ## ## ## ## ## ## ## |"""
    )
    env = at(world, PickUp(Desc(BALL, "red")))
    balls = [thing for thing in env.sight.things if thing[0] == "red ball"]
    assert balls == [("red ball", 1, 3, -2), ("red ball", 2, 3, 3)]  # the first is walled in by boxes
    assert "go to red ball 2" not in env.sight.actions
    assert env.step("Action: pickup red ball 1").terminated and grid.xy(world.front) == (6, 1)


WORDS = [
    (GoTo(Desc(BALL, "red")), "go to the red ball"),
    (GoTo(Desc(BOX)), "go to a box"),
    (GoTo(Desc(DOOR, "yellow")), "go to the yellow door"),
    (Open(Desc(DOOR)), "open a door"),
    (Open(Desc(DOOR, None, "right")), "open the door on your right"),
    (PickUp(Desc(None, "red")), "pick up a red object"),
    (PickUp(Desc(None, "green")), "pick up the green object"),
    (PickUp(Desc(KEY, None, "behind")), "pick up the key behind you"),
    (PickUp(Desc(BOX, "grey", "front")), "pick up the grey box in front of you"),
    (PickUp(Desc(BOX, None, "left")), "pick up the box on your left"),
    (PutNext(Desc(KEY), Desc(BALL, "green")), "put the key next to the green ball"),
    (And(GoTo(Desc(BALL, "red")), Open(Desc(DOOR, "yellow"))), "go to the red ball and open the yellow door"),
    (Sequence(GoTo(Desc(KEY)), PickUp(Desc(KEY))), "go to the key, then pick up the key"),
    (Sequence(GoTo(Desc(KEY)), PickUp(Desc(KEY)), after=True), "pick up the key after you go to the key"),
]
MANY = """
    |## ## ## ## ## ## ## ## ## ## ## ## ## ## ## |
    |## .  .  .  .  .  .  ## .  .  .  .  .  .  ## |
    |## .  bx .  .  .  .  yC .  .  .  .  .  ex ## |
    |## rk .  >  .  .  .  ## .  .  .  .  .  .  ## |
    |## .  .  .  .  .  .  rL .  rb .  .  .  .  ## |
    |## .  .  .  .  ex .  ## .  .  .  .  .  .  ## |
    |## .  .  .  .  .  gb ## .  .  .  .  .  .  ## |
    |## ## ## ## ## ## ## ## ## ## ## ## ## ## ## |"""


@pytest.mark.parametrize(("mission", "words"), WORDS)
def test_texts_of_missions(mission, words):
    world = draw(MANY)
    for desc in descs(mission):
        desc.bind(world)
    assert str(mission) == words


def test_grey_objects_are_several_because_of_the_walls():
    """Minigrid counts the walls as grey objects: its level PickupDist asks for "a grey object", never "the"."""
    world = draw(MANY)
    only = next(position for position in world.things if world.cells[position] == grid.code(BOX, "grey"))
    world.put(only, grid.EMPTY)
    desc = Desc(None, "grey").bind(world)
    assert len(desc.meant) == 1 and str(desc) == "a grey object"
    level = pytest.importorskip("minigrid.envs.babyai.pickup").PickupDist
    asked = {level(debug=True).reset(seed=seed)[0]["mission"] for seed in range(100)}
    assert "pick up a grey object" in asked and "pick up the grey object" not in asked


def test_goto_obj_s6_is_the_room_of_agentgyms_minigrid():
    """Minigrid registered GoToObjS6-v0, which AgentGym plays, with a room of 4 x 4 cells; v1 has 6 x 6."""
    env = Env(Config(level="GoToObjS6"))
    env.reset(0)
    assert (env.game.grid.pitch + 1, env.game.max_steps) == (4, 16)


def test_the_goal_line_hides_the_order():
    shown = Env(Config(level="OpenRedBlueDoorsDebug")).reset(0)[-1]["content"]
    assert shown.startswith("Your goal: open the red door, and open the blue door\n")
    env, goals = Env(Config(level="OpenDoorsOrderN4Debug")), {}
    for seed in range(30):
        goal = env.reset(seed)[-1]["content"].splitlines()[0]
        goals[goal] = str(env.game.mission)
    assert any("after you" in mission for mission in goals.values())
    assert not any("then" in goal or "after" in goal for goal in goals)


HALL = """
    |## ## ## ## ## ## ## ## |
    |## .  .  .  .  .  .  ## |
    |## .  .  .  .  .  .  ## |
    |## .  >  rb gk .  .  ## |
    |## .  .  .  .  .  .  ## |
    |## .  bx .  .  .  .  ## |
    |## .  .  .  .  .  .  ## |
    |## ## ## ## ## ## ## ## |"""
NOT, DONE, FAILED = None, True, False


@pytest.mark.parametrize(
    ("mission", "moves"),
    [
        (GoTo(Desc(BALL)), [(LEFT, NOT), (RIGHT, DONE), (TOGGLE, DONE), (RIGHT, NOT)]),
        (GoTo(Desc(BALL)), [(PICKUP, DONE), (LEFT, NOT), (RIGHT, DONE)]),  # where it was, until something is dropped
        (GoTo(Desc(BALL)), [(PICKUP, DONE), (LEFT, NOT), (DROP, DONE), (RIGHT, NOT)]),
        (PickUp(Desc(BALL)), [(FORWARD, NOT), (PICKUP, DONE), (LEFT, NOT), (DROP, NOT), (PICKUP, DONE)]),
        (PickUp(Desc(BALL)), [(PICKUP, DONE), (FORWARD, NOT), (PICKUP, NOT)]),  # the hands are full
        (PickUp(Desc(KEY)), [(PICKUP, NOT), (FORWARD, NOT), (PICKUP, NOT), (LEFT, NOT), (DROP, NOT), (RIGHT, NOT)]),
        (PickUp(Desc(KEY), strict=True), [(PICKUP, FAILED), (LEFT, NOT), (DROP, NOT), (PICKUP, FAILED)]),
        (PutNext(Desc(BALL), Desc(KEY)), [(PICKUP, NOT), (DROP, DONE), (PICKUP, NOT), (LEFT, NOT), (DROP, NOT)]),
        (PutNext(Desc(KEY), Desc(BALL)), [(PICKUP, NOT), (DROP, NOT)]),  # the one is moved, not the other
        (And(GoTo(Desc(BALL)), PickUp(Desc(BALL))), [(LEFT, NOT), (RIGHT, NOT), (PICKUP, DONE), (LEFT, DONE)]),
        (Sequence(PickUp(Desc(BALL)), GoTo(Desc(BALL))), [(LEFT, NOT), (RIGHT, NOT), (PICKUP, DONE)]),
        (Sequence(GoTo(Desc(BALL)), PickUp(Desc(BALL))), [(PICKUP, DONE)]),
        (Sequence(GoTo(Desc(KEY)), GoTo(Desc(BALL))), [(LEFT, NOT), (RIGHT, NOT), (PICKUP, NOT), (FORWARD, NOT)]),
    ],
)
def test_verdicts(mission, moves):
    game = bound(draw(HALL), mission)
    for i, (primitive, verdict) in enumerate(moves):
        assert game.act(primitive) is verdict, i


def test_mission_refers_to_objects_that_matched_at_the_start():
    """The ball in front is put down on the right: it matches the mission only afterwards."""
    game = bound(draw(HALL.replace("bx", "rb")), GoTo(Desc(BALL, None, "right")))
    assert str(game.mission) == "go to the ball on your right"
    assert [game.act(p) for p in (PICKUP, RIGHT, DROP, LEFT, RIGHT)] == [NOT] * 5
    assert [game.act(p) for p in (PICKUP, FORWARD)] == [NOT, DONE]


def test_verdicts_on_doors():
    for strict, second in ((False, NOT), (True, FAILED)):
        game = bound(draw(BEYOND.replace("DD", "yC")), Open(Desc(DOOR, "yellow"), strict))
        other = bound(draw(BEYOND.replace("DD", "yC")), Open(Desc(DOOR, "green"), strict))
        assert [game.act(p) for p in (TOGGLE, FORWARD, TOGGLE, TOGGLE)] == [NOT, NOT, DONE, second]
        assert [other.act(p) for p in (FORWARD, TOGGLE, LEFT)] == [NOT, second, NOT]


def test_last_primitive_of_an_action_decides():
    """Going through the door leaves it open, so the mission to open it stays unsolved."""
    env = at(draw(BEYOND.replace("DD", "yC")), Open(Desc(DOOR)))
    step = env.step("Action: toggle and go through yellow closed door 1")
    assert not step.terminated and step.reward == 0 and "The task is completed." not in step.observation
    assert env.oracle().endswith("check available actions")
    env = at(draw(BEYOND.replace("DD", "yC")), Open(Desc(DOOR)))
    env.step("Action: go to yellow closed door 1")
    step = env.step("Action: toggle")
    assert step.terminated and step.reward == 1 - 0.9 * 2 / 64
    assert "\n The task is completed.\nAvailable actions: [" in step.observation
    env = at(draw(BEYOND.replace("DD", "yC")), And(Open(Desc(DOOR)), Open(Desc(DOOR))))  # here it counts
    assert env.step("Action: toggle and go through yellow closed door 1").info["success"]


def test_late_success_and_failure_do_not_end_the_episode():
    env = at(draw(HALL), PickUp(Desc(BALL)), steps=1)
    for reply in ("Action: pickup red ball 1", "Action: drop", "Action: pickup red ball 1"):
        step = env.step(reply)
        assert ("The task is completed." in step.observation) == ("pickup" in reply)
        assert not step.terminated and step.reward == step.info["shaped"] == 0 and step.info["outcome"] == "unknown"
    env = at(draw(HALL), PickUp(Desc(KEY), strict=True))
    step = env.step("Action: pickup red ball 1")
    assert step.observation.partition("\nAvail")[0].endswith("\n The task is completed.") and not step.terminated
    step = expert(env)[-1]
    assert step.info["success"] and step.info["shaped"] == 1


def test_brackets_equal_the_plain_form():
    for prompt in ("native", "short"):
        env = at(draw(HALL), Sequence(PickUp(Desc(BOX)), GoTo(Desc(KEY))), prompt=prompt)
        assert does(env, "turn[right]") == (env.sight.short() if prompt == "short" else env.sight.native())
        assert env.sight.held is None and env.game.grid.dir == 1
        does(env, "pickup[blue box 1]")
        assert env.sight.held == "blue box"
        does(env, "drop[]")
        assert env.sight.held is None
        does(env, "turn [left]")
        does(env, "GOTO[ green key 1 ]")
        assert grid.NAMES[env.game.grid.cells[env.game.grid.front]] == "green key"


def test_native_reads_one_action_and_filters_it():
    env = at(draw(HALL), PickUp(Desc(KEY)))
    assert does(env, "  **Turn   LEFT!**  \nand then I rest").startswith("In front")
    assert env.game.grid.dir == 3
    step = env.step("turn left")
    assert step.observation.startswith("No change in state.\nAvailable actions: [") and not step.info["valid"]
    step = env.step("Action: turn left\nAction: turn right")
    assert step.observation == SEVERAL and not step.info["valid"] and env.game.grid.dir == 3
    assert does(env, "turn left" + "x" * 10**5) == UNKNOWN
    assert MAX_ACTION == 400


def test_short_reads_one_line_and_replies_briefly():
    env = at(draw(HALL), PickUp(Desc(KEY)), prompt="short")
    assert env.step("\n turn right \nturn right").observation == (
        "red ball 1: ahead 0 left 1\nblue box 1: ahead 2\ngreen key 1: ahead 0 left 2\nbox: ahead 2\ncarry nothing"
    )
    assert env.game.grid.dir == 1
    assert env.step("dance").observation == UNKNOWN
    (message,) = Env(Config(prompt="short", difficulty="1")).reset(1)
    instruction, goal, *seen = message["content"].splitlines()
    assert "turn left" in instruction and goal.startswith("Your goal: go to the ") and seen[-1] == "carry nothing"
    assert message["content"].isascii()


@pytest.mark.all_only
def test_every_level_matches_its_family():
    numbers = {number: name for number, name in enumerate(LEVELS, 1)}
    assert len(LEVELS) == 40 and numbers[1] == "GoToRedBallGrey" and numbers[40] == "BossLevelNoUnlock"
    assert sorted(number for group in DIFFICULTY.values() for number in group) == list(numbers)
    found: dict[int, Counter] = {}
    for number, name in numbers.items():
        env = Env(Config(level=str(number)))
        found[number] = Counter()
        for seed in range(3):
            env.reset(seed)
            assert env.level == name
            world, mission = env.game.grid, env.game.mission
            room, rows, cols = LEVELS[name].room, LEVELS[name].rows, LEVELS[name].cols
            assert (world.pitch + 1, world.rows, world.cols) == (room, rows, cols)
            assert env.game.max_steps == (LEVELS[name].steps or mission.walks * room**2 * rows * cols)
            assert world.cells[world.pos] == grid.EMPTY
            for part in parts(mission):
                if isinstance(part, PutNext):
                    assert not part.moved.meant & part.fixed.meant and not any(map(part.adjacent, part.moved.places))
            found[number].update(type(part) for part in parts(mission))
    only = {GoTo: range(1, 12), Open: [*range(12, 17), 24, 25, 26], PutNext: (22, 23, 34)}
    only[PickUp] = [*range(17, 22), 27, 28, 29, 31, 32, 33]
    for kind, group in only.items():
        for number in group:
            assert set(found[number]) == {kind}, number
    for level, budget in (("GoToLocalS8N7", 64), ("GoToImpUnlock", 576), ("PutNextS7N4Carrying", 392), ("13", 50)):
        env = Env(Config(level=level))
        env.reset(0)
        assert env.game.max_steps == budget


NAMES = """
    GoToRedBallGrey GoToRedBall GoToRedBallNoDists GoToObjS6 GoToLocalS8N7 GoToObjMazeS7 GoToImpUnlock GoToSeqS5R2
    GoToRedBlueBall GoToDoor GoToObjDoor Open OpenRedDoor OpenDoorLoc OpenRedBlueDoorsDebug OpenDoorsOrderN4Debug
    Pickup UnblockPickup PickupLoc PickupDistDebug PickupAbove PutNextLocalS6N4 PutNextS7N4Carrying Unlock
    UnlockLocalDist KeyInBox UnlockPickupDist BlockedUnlockPickup UnlockToUnlock ActionObjDoor FindObjS7
    KeyCorridorS6R3 OneRoomS20 MoveTwoAcrossS8N9 SynthS5R2 SynthLoc SynthSeq MiniBossLevel BossLevel
    BossLevelNoUnlock
"""


def test_the_levels_are_the_originals_in_its_order():
    assert list(LEVELS) == NAMES.split() and len(LEVELS) == 40


@pytest.mark.all_only
def test_levels_by_name_and_difficulties_by_weight():
    env = Env(Config(level="BossLevel, 3"))
    drawn = Counter()
    for seed in range(12):
        env.reset(seed)
        drawn[env.level] += 1
    assert set(drawn) == {"BossLevel", "GoToRedBallNoDists"}
    env, names = Env(Config(difficulty="1,1,3")), list(LEVELS)
    drawn = Counter()
    for seed in range(120):
        env.reset(seed)
        drawn[names.index(env.level) + 1 in DIFFICULTY["1"]] += 1
    assert drawn[True] == pytest.approx(80, abs=18)


def solve(difficulty: str, seeds: range, split: str = "train", **options) -> Counter:
    """Return the number of the expert's turns; assert that it succeeds."""
    turns = Counter()
    env = Env(Config(difficulty=difficulty, **options))
    for seed in seeds:
        env.reset(seed, split)
        steps = expert(env)
        assert steps[-1].info["success"] and steps[-1].reward > 0.5, (difficulty, seed)
        assert all(step.info["valid"] for step in steps) and len(steps) <= env.config.max_turns
        assert [step.info["shaped"] for step in steps] == [0.0] * (len(steps) - 1) + [1.0]
        turns[len(steps)] += 1
    return turns


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("difficulty", DIFFICULTY)
def test_the_expert_solves_every_task(difficulty, prompt):
    turns = solve(difficulty, range(20), prompt=prompt)
    assert difficulty != "1" or max(turns) <= 5
    solve(difficulty, range(3), "test", prompt=prompt)


@pytest.mark.all_only
def test_a_task_fits_the_turn_limit(monkeypatch):
    monkeypatch.setattr("envs.babyai.TRIES", 100)
    assert max(solve("5", range(6), max_turns=6)) <= 6
    env = Env(Config(level="29", max_turns=2))
    with pytest.raises(ValueError, match="no task of level UnlockToUnlock can be done in max_turns=2"):
        env.reset(0)


@pytest.mark.all_only
@pytest.mark.parametrize(
    "level", ["GoToLocalS8N7", "PickupLoc", "PutNextLocalS6N4", "UnlockPickupDist", "UnlockToUnlock"]
)
def test_expert_continues_from_any_state(level):
    env, rng = Env(Config(level=level, max_turns=60)), Random(level)
    for seed in range(6):
        env.reset(seed)
        env.game.max_steps = 10**4
        for _ in range(8):
            if env.running:
                env.step("Action: " + rng.choice(list(env.sight.actions)))
        if env.running:
            assert expert(env)[-1].info["success"], (level, seed)


def test_no_reward_before_the_end():
    env, rng = Env(Config(difficulty="2,3,4", max_turns=100)), Random(1)
    ends = Counter()
    for seed in range(25):
        env.reset(seed)
        while env.running:
            step = env.step("Action: " + rng.choice(list(env.sight.actions)))
            assert bool(step.reward) == bool(step.info["shaped"]) == step.terminated == step.info["success"]
            assert not step.terminated or 0.5 < step.reward < 1
        ends[step.info["outcome"]] += 1
    assert ends["correct"] and ends["timeout"] and set(ends) <= {"correct", "timeout"}


def test_task_string_covers_the_initial_state():
    seen = {}
    for change in (
        lambda world: None,
        lambda world: setattr(world, "dir", 1),
        lambda world: setattr(world, "pos", grid.cell(2, 2)),
        lambda world: setattr(world, "held", (9, grid.code(KEY, "red"))),
        lambda world: world.put(grid.cell(6, 6), grid.code(BOX, "red"), 60),
        lambda world: world.contents.update({world.things[grid.cell(2, 5)]: (9, grid.code(KEY, "red"))}),
    ):
        for mission in (GoTo(Desc(BALL)), PickUp(Desc(BALL)), Sequence(GoTo(Desc(BALL)), PickUp(Desc(KEY)))):
            world = draw(HALL)
            change(world)
            seen[canonical(bound(world, mission))] = mission
    assert len(seen) == 18
    assert canonical(bound(draw(HALL), PickUp(Desc(BALL)))) in seen


WILD = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="[]() \n:,", max_size=200),
    st.sampled_from(["go to ", "pickup ", "toggle and go through "]).flatmap(
        lambda v: st.text(max_size=40).map(v.__add__)
    ),
)


@pytest.mark.all_only
@settings(max_examples=40, deadline=None)
@given(WILD, st.sampled_from(["native", "short"]), st.booleans())
def test_any_reply_gets_an_observation(text, prompt, marked):
    env = Env(Config(difficulty="1", prompt=prompt))
    env.reset(0)
    actions = {*env.sight.actions}
    step = env.step("Action: " + text if marked else text)
    assert len(step.observation) < 1200 and step.reward == 0
    assert not step.info["valid"] or "check" in text.lower() or actions & {*re.split(r"\n|\[|\]", text.lower())}


def transcript() -> list[dict]:
    """Play the options and actions of the golden file again; return the cases."""
    cases, env = [], None
    for said in (case["input"] for case in golden.read("babyai")):
        if isinstance(said, dict):
            options = {name: value for name, value in said.items() if name not in ("split", "seed")}
            env, seed, split = Env(Config(**options)), said["seed"], said["split"]
            cases.append(golden.start(env.reset(seed, split), seed, split, **options))
        elif said == "mission":
            cases.append(golden.case(said, str(env.game.mission)))
        else:
            step = env.step(f"Action: {said}" if env.config.prompt == "native" else said)
            cases.append(golden.action(said, step, digits=4))
    return cases


def test_golden_file_has_twelve_episodes():
    assert sum(isinstance(case["input"], dict) for case in golden.read("babyai")) >= 12
