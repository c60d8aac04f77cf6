"""BabyAI against Minigrid: our grids are copied into its environment, and both are compared after every primitive."""

from collections import Counter
from random import Random

import pytest

from envs.babyai import Config, Env, missions
from envs.babyai import grid as ours
from envs.babyai.expert import next_action
from envs.babyai.levels import LEVELS
from envs.babyai.text import look

pytest.importorskip("minigrid")

from minigrid.core import world_object as theirs
from minigrid.core.roomgrid import RoomGrid
from minigrid.envs.babyai.core import verifier
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

pytestmark = pytest.mark.all_only

EPISODES = 10  # of each of the 40 levels
STEPS = 60  # primitives of an episode
QUICK = "GoToSeqS5R2", "PickupLoc", "PutNextS7N4Carrying", "KeyInBox", "BlockedUnlockPickup", "BossLevel"


class Copy(RoomGridLevel):
    """Minigrid's environment with a grid and a mission of ours."""

    def __init__(self, game: missions.Game):
        self.game = game
        world = game.grid
        super().__init__(room_size=world.pitch + 1, num_rows=world.rows, num_cols=world.cols)
        self.reset(seed=0)
        assert game.mission.walks * (world.pitch + 1) ** 2 * world.rows * world.cols == self.max_steps
        self.max_steps = game.max_steps
        if world.held:  # in hand from the start, but on the grid while the mission is bound
            (place,) = game.mission.moved.places
            self.carrying = self.grid.get(*ours.xy(place))
            self.grid.set(*ours.xy(place), None)

    def _gen_grid(self, width, height):
        RoomGrid._gen_grid(self, width, height)
        world = self.game.grid
        for x in range(width):
            for y in range(height):
                place = ours.cell(x, y)
                hidden = world.contents.get(world.things.get(place), (None, ours.EMPTY))[1]
                self.grid.set(x, y, thing(world.cells[place], hidden))
        if world.held:
            (place,) = self.game.mission.moved.places
            self.grid.set(*ours.xy(place), thing(world.held[1]))
        self.agent_pos, self.agent_dir = ours.xy(world.pos), world.dir
        for x in range(width):
            for y in range(height):
                if self.grid.get(x, y):
                    self.grid.get(x, y).cur_pos = (x, y)
        self.instrs = instruction(self.game.mission)
        self.validate_instrs(self.instrs)
        self.mission = self.instrs.surface(self)

    def verdict(self, primitive: int) -> tuple[bool | None, float]:
        _, reward, terminated, _, _ = self.step(primitive)
        return reward > 0 if terminated else None, reward


def thing(code: int, hidden: int = ours.EMPTY) -> theirs.WorldObj | None:
    """Return their object for our code."""
    made = theirs.WorldObj.decode(code & 7, code >> 3 & 7, code >> 6)
    if made and hidden != ours.EMPTY:
        made.contains = thing(hidden)
    return made


def instruction(mission: missions.Mission) -> verifier.Instr:
    match mission:
        case missions.GoTo(desc):
            return verifier.GoToInstr(description(desc))
        case missions.Open(desc, strict):
            return verifier.OpenInstr(description(desc), strict=strict)
        case missions.PickUp(desc, strict):
            return verifier.PickupInstr(description(desc), strict=strict)
        case missions.PutNext(moved, fixed):
            return verifier.PutNextInstr(description(moved), description(fixed))
        case missions.And(first, second):
            return verifier.AndInstr(instruction(first), instruction(second))
        case missions.Sequence(first, second, after):
            if after:
                return verifier.AfterInstr(instruction(second), instruction(first))
            return verifier.BeforeInstr(instruction(first), instruction(second))


def description(desc: missions.Desc) -> verifier.ObjDesc:
    return verifier.ObjDesc(desc.kind and ours.KINDS[desc.kind], desc.colour, desc.where)


def seen(env: Copy) -> bytes:
    image = env.gen_obs()["image"].tolist()
    return bytes(kind | colour << 3 | state << 6 for j in range(7) for kind, colour, state in (row[j] for row in image))


def primitives(game: missions.Game, rng: Random, expert: bool):
    """Yield the expert's primitives mixed with random ones, or random ones alone."""
    while True:
        way = []
        if expert:
            sight = look(game.grid)
            way = sight.actions[next_action(game, sight)[0]]
        yield from way
        if not way or rng.random() < 0.1:
            yield rng.choices(range(6), weights=(2, 2, 5, 2, 1, 2))[0]


def kinds(mission: missions.Mission) -> set[str]:
    words = {f"by place: {desc.where}" for desc in missions.descs(mission) if desc.where}
    words |= {type(part).__name__ for part in (mission, *missions.parts(mission))}
    return words | ({"after"} if isinstance(mission, missions.Sequence) and mission.after else set())


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in LEVELS])
def test_every_step_is_minigrids(name):
    verdicts = Counter()
    for episode in range(EPISODES):
        env = Env(Config(level=name))
        env.reset(episode)
        game, rng = env.game, Random(f"{name} {episode}")
        other = Copy(game)
        assert other.mission == str(game.mission)
        steps = primitives(game, rng, expert=episode % 2 == 0)
        for _ in range(min(STEPS, game.max_steps)):
            assert game.grid.view() == seen(other)
            primitive = next(steps)
            verdict = game.act(primitive)
            their_verdict, reward = other.verdict(primitive)
            assert verdict == their_verdict, (name, episode)
            assert not verdict or game.reward == pytest.approx(reward)
            assert (game.grid.held and thing(game.grid.held[1]).encode()) == (
                other.carrying and other.carrying.encode()
            )
            assert ours.xy(game.grid.pos) == tuple(map(int, other.agent_pos)) and game.grid.dir == other.agent_dir
            verdicts[verdict] += 1
        assert other.grid.encode().tolist() == [
            [
                [code & 7, code >> 3 & 7, code >> 6]
                for y in range(other.grid.height)
                for code in [game.grid.cells[ours.cell(x, y)]]
            ]
            for x in range(other.grid.width)
        ]
    assert verdicts[True] >= 2


@pytest.mark.full
def test_the_episodes_hold_all_kinds_of_missions():
    found = Counter()
    for name in LEVELS:
        for episode in range(EPISODES):
            env = Env(Config(level=name))
            env.reset(episode)
            found.update(kinds(env.game.mission))
    assert EPISODES * len(LEVELS) >= 200
    for kind in ("GoTo", "Open", "PickUp", "PutNext", "And", "Sequence", "after"):
        assert found[kind] >= 6, kind
    for place in ("left", "right", "front", "behind"):
        assert found[f"by place: {place}"] >= 3, place
