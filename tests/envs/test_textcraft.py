"""TextCraft: exact messages, solvable goals, the recipe book, shown recipes, and rewards."""

from collections import Counter
from itertools import chain, product
from random import Random

import golden
import pytest
from cases import cases
from experts import expert

from envs.common import SEVERAL
from envs.textcraft import GOALS, MAX_ACTION, Config, Env
from envs.textcraft.crafting import BASE, BOOK, FORMS, TAGS, Book, depth, tree

CASES = cases("textcraft")


def at(goal: str, **options) -> Env:
    """Return an environment whose episode has this goal."""
    env = Env(Config(**{"prompt": "short"} | options))
    env.reset(seed=0)
    env.goal, env.roles = goal, tree(goal, Random(0))
    return env


def replay(env: Env, transcript: str) -> None:
    """Check `> action` lines against the reply in the line below each."""
    lines = transcript.strip().splitlines()
    for action, reply in zip(lines[::2], lines[1::2], strict=True):
        assert env.step(action.strip()[2:]).observation == reply.strip().replace("~", " "), action


def test_every_message_is_exact():
    replay(at("oak gate", max_turns=99), CASES["every message"])


def test_brackets_equal_the_plain_form():
    replay(
        at("oak beam"),
        """
        > get[2 oak log]
        Got 2 oak log
        > craft[4 oak planks using 1 oak log]
        Crafted 4 minecraft:oak_planks
        > craft[oak planks]
        Could not execute craft oak planks
        """,
    )


def test_ingredients_in_any_order_and_any_member_of_a_tag():
    for member in TAGS["planks"]:
        env = at("red bed")
        env.inventory = {"red wool": 3, "oak planks": 1, member: 3}
        assert not env.step(f"craft 1 red bed using 3 {member}, 2 red wool").info["valid"]
        step = env.step(f"craft 1 red bed using 3 {member}, 3 red wool")
        assert (step.observation, step.reward, step.terminated) == ("Crafted 1 minecraft:red_bed", 1.0, True)
        assert env.inventory == {"red bed": 1} | ({} if member == "oak planks" else {"oak planks": 1})


def test_native_reads_one_action_and_filters_it():
    env = at("oak beam", prompt="native", max_turns=99)
    said = lambda reply: env.step(reply).observation  # noqa: E731
    assert said("Thought:\nlogs first\n\nAction:\nget 2 oak log") == "Got 2 oak log"
    assert said("Action:   **get  1   coal!**  \nand then I rest") == "Got 1 coal"
    assert said("Action: get[1 sand]") == "Got 1 sand"
    assert said("get 2 oak log") == "Could not execute "
    assert said("Action:") == "Could not execute "
    assert said("Action: Été <|im_end|> 7") == "Could not execute t imend 7"
    step = env.step("Action: inventory\nAction: craft 1 oak beam using 2 oak log")
    assert step.observation == SEVERAL and not step.info["valid"] and not step.terminated
    assert said("Action: inventory") == "Inventory: [oak log] (2) [coal] (1) [sand] (1) "


def test_short_reads_the_first_line():
    env = at("oak beam")
    assert env.step("\n get 2 oak log \nget 3 coal").observation == "Got 2 oak log"
    assert env.inventory == {"oak log": 2}
    assert len(env.step("x" * 10**5).observation) == len("Could not execute ") + MAX_ACTION


def test_prompts():
    native = Env(Config()).reset(seed=4)
    (short,) = Env(Config(prompt="short")).reset(seed=4)
    assert [message["role"] for message in native] == ["user", "assistant", "user"]
    instruction, _, observation = short["content"].partition("\n")
    assert observation == native[2]["content"] and "get N ITEM" in instruction
    head, _, goal = observation.partition("\n\n")
    assert head.splitlines()[0] == "Crafting commands:"
    assert goal.startswith("Goal: craft ") and goal.endswith(".")


EPISODES = [
    ({"difficulty": "1", "prompt": "short", "distractors": 3}, 3, ["inventory", "get 1 stick", "get 1 coal", "dance"]),
    ({"difficulty": "2", "prompt": "native"}, 5, ["inventory", "Action: inventory\nAction: inventory", "Action: x"]),
    ({"difficulty": "4", "prompt": "short"}, 1, []),
]


def transcript() -> list[dict]:
    """Return the cases of the golden file: episodes that begin with these replies, and continue with the expert's."""
    cases = []
    for options, seed, replies in EPISODES:
        env = Env(Config(**options, max_turns=40))
        cases += [golden.start(env.reset(seed, "test"), seed, "test", **options), *golden.play(env, replies)]
    return cases


def shown(env: Env, seed: int, split: str = "train") -> list[str]:
    text = env.reset(seed, split)[-1]["content"]
    return text.partition("Crafting commands:\n")[2].partition("\n\n")[0].splitlines()


@pytest.mark.parametrize("distractors", [0, 3, 10])
def test_shown_recipes_are_the_tree_and_related_distractors(distractors):
    env = Env(Config(difficulty="1,2,3,4", distractors=distractors))
    places = Counter()
    for seed in range(200):
        lines = shown(env, seed)
        recipes = {str(recipe): recipe for recipe in BOOK.values()}
        listed = [recipes[line] for line in lines]
        needed = [recipe for recipe in listed if recipe.item in env.roles]
        assert {recipe.item for recipe in needed} == {item for item in env.roles if item in BOOK}
        assert len(set(lines)) == len(lines) <= len(needed) + distractors
        parts = {part for recipe in needed for part, _ in recipe.ingredients}
        for recipe in listed:
            assert recipe in needed or parts & {part for part, _ in recipe.ingredients}
        places[lines.index(str(BOOK[env.goal])) == 0] += 1
    assert places[True] and places[False]  # shuffled: the goal's recipe has no fixed place


def test_tree_suffices_to_craft_the_goal():
    for goal in BOOK:
        roles = tree(goal, Random(goal))
        for item in roles:
            assert item in BOOK or item in BASE
            for part, _ in BOOK[item].ingredients if item in BOOK else ():
                assert part in roles or set(TAGS.get(part, ())) & set(roles)


@pytest.mark.all_only
def test_the_expert_crafts_every_goal_within_the_limit():
    for (_, level), goals in GOALS.items():
        for goal in goals:
            env = at(goal)
            while env.running:
                step = env.step(env.oracle())
                assert step.info["valid"], (goal, step)
                assert set(env.inventory) <= set(env.roles)  # it works from what the list shows
            assert step.info["success"], goal
            assert level <= env.turns <= 18


@pytest.mark.all_only
def test_expert_continues_from_any_state():
    for goal in ("oak fence", "red bed", "iron lamp", "apple basket", "jade bridge"):
        env = at(goal, max_turns=40)
        rng = Random(goal)
        needed = [item for item in env.roles if item in BASE]
        for _ in range(3):
            env.step(f"get {rng.randint(1, 3)} {rng.choice(needed)}")
            env.step(env.oracle())
        step = expert(env)[-1]
        assert step.info["success"], goal


def test_expert_reserves_ingredients_of_later_craftings():
    env = at("oak fence")
    actions = []
    while env.running:
        actions.append(env.oracle())
        env.step(actions[-1])
    assert actions == [
        "get 1 oak log",
        "craft 4 oak planks using 1 oak log",
        "get 1 oak log",
        "craft 4 oak planks using 1 oak log",
        "craft 4 stick using 2 oak planks",
        "craft 3 oak fence using 4 oak planks, 2 stick",
    ]


def test_expert_uses_a_tag_member_in_stock():
    env = at("red bed")
    first, second = (item for item in TAGS["planks"] if item in env.roles)
    other = next(item for item in TAGS["planks"] if item not in env.roles)
    for held, action in [
        ({}, f"get 1 {first.replace('planks', 'log')}"),
        ({second: 1}, f"get 1 {second.replace('planks', 'log')}"),
        ({first: 1, second: 3}, f"craft 1 red bed using 3 red wool, 3 {second}"),
        ({first: 1, other: 3}, f"craft 1 red bed using 3 red wool, 3 {other}"),
    ]:
        env.inventory = {"red wool": 3} | held
        assert env.oracle() == action


def test_recipe_book_is_compositional():
    words = {word for name in [*BOOK, *BASE, *TAGS] for word in name.split()}
    assert len(words) <= 120
    assert all(word.isalpha() and word.islower() for word in words)  # what the native filter lets through
    for materials, forms in FORMS.items():
        if materials:
            assert len(materials.split()) >= 8
            for form in forms.strip().splitlines():
                made = [form.strip().replace("*", material) for material in materials.split()]
                for line in made:
                    recipe = BOOK[line.split(" ", 1)[1].split(":")[0]]
                    assert str(recipe) == "craft " + line.replace(":", " using")
    for recipe in BOOK.values():
        names = [name for name, _ in recipe.ingredients]
        assert 1 <= len(names) <= 2 and len(set(names)) == len(names) and 1 <= recipe.count <= 4
        if depth(recipe.item) == 1:
            assert set(names) <= BASE and all(1 <= n <= 6 for _, n in recipe.ingredients)


def test_every_split_has_goals_of_every_depth():
    by_depth = Counter(depth(item) for item in BOOK)
    assert len(BOOK) >= 300
    assert by_depth[1] >= 100 and by_depth[2] >= 100 and by_depth[3] >= 50 and by_depth[4] >= 15
    for split in ("train", "val", "test"):
        assert all(len(GOALS[split, level]) >= 8 for level in (1, 2, 3))
        assert GOALS[split, 4]
    assert len(GOALS["train", 4]) >= 10
    assert sorted(goal for goals in GOALS.values() for goal in goals) == sorted(BOOK)


def test_parts_of_a_held_out_goal_are_in_training():
    family = {material: materials for materials in FORMS for material in materials.split()}
    parts = lambda goal: {goal.split()[0], (family.get(goal.split()[0]), goal.split()[-1])}  # noqa: E731
    trained = {
        part for (split, _), goals in GOALS.items() if split == "train" for goal in goals for part in parts(goal)
    }
    assert all(parts(goal) <= trained for goals in GOALS.values() for goal in goals)


def test_difficulty_is_the_depth_and_repeats_add_weight():
    env = Env(Config(difficulty="1,1,3"))
    drawn = Counter()
    for seed in range(900):
        env.reset(seed)
        drawn[depth(env.goal)] += 1
    assert set(drawn) == {1, 3} and drawn[1] == pytest.approx(600, abs=60)


def test_shaped_reward_pays_progress_once():
    env = at("oak fence")
    paid = CASES["paid"]
    for action, shaped in paid:
        step = env.step(action)
        assert step.info["shaped"] == shaped, action
        assert step.reward == (1.0 if shaped == 1.0 else 0.0)


@pytest.mark.all_only
def test_shaped_reward_of_wandering_is_capped_by_the_roles():
    env = at("red bed", max_turns=10**4)  # its planks may be of either of two woods: one role for log, one for planks
    woods = [item for item in env.roles if item.endswith("planks")]
    assert len(woods) == 2
    actions = [f"get 20 {item}" for item in sorted(BASE)]
    actions += [str(recipe) for recipe in BOOK.values() if recipe.item != "red bed"]
    total = sum(env.step(action).info["shaped"] for action in actions * 3)
    assert total == pytest.approx(0.15 * 6)  # flower, dye, string, wool, log, planks


@pytest.mark.all_only
def test_random_play_keeps_the_inventory_consistent():
    rng = Random(0)
    items = ["oak log", "oak planks", "stick", "planks", "coal", "red dye", "", "0", "oak_planks"]
    for _ in range(300):
        env = at("oak gate", max_turns=30)
        while env.running:
            parts = ", ".join(f"{rng.choice([0, 1, 2, 4])} {rng.choice(items)}" for _ in range(rng.randint(1, 3)))
            craft, get = f"craft {rng.choice(items)} using {parts}", f"get {rng.randint(0, 3)} {rng.choice(items)}"
            before = dict(env.inventory)
            step = env.step(rng.choice([craft, get, env.oracle()]))
            assert step.info["valid"] or env.inventory == before
            assert all((count > 0 and item in BOOK) or item in BASE for item, count in env.inventory.items())
            assert min(env.inventory.values(), default=0) >= 0  # 0 after get 0


def height(name: str, book: Book) -> int:
    """Return the length of the longest chain of a book's recipes that makes an item or a member of a tag."""
    made = [book.recipes[item] for item in book.tags.get(name, [name]) if item in book.recipes]
    return 1 + max(height(part, book) for part, _ in made[0].ingredients) if made else 0


def test_a_fresh_book_is_as_deep_as_the_panels_and_has_no_short_cut():
    for level, seed in product("1234", range(50)):
        env = Env(Config(difficulty=level, tasks="fresh"))
        assert sorted(shown(env, seed)) == sorted(map(str, env.book.recipes.values()))
        assert height(env.goal, env.book) == int(level)
        made = {*env.book.recipes, *env.book.tags, *chain(*env.book.tags.values())}
        assert not env.book.base & made  # `get` provides nothing that a recipe would have to make
