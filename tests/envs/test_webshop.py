"""WebShop: exact pages, buttons and scores, the catalogue, the search, rewards, and the expert."""

import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import golden
import pytest
from cases import cases
from experts import expert
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs import webshop
from envs.common import SPLITS, split_of
from envs.webshop import BASE_COLOURS, LEVELS, MAX_QUERY, SHORT, Config, Env, score, text_ratio, type_score
from envs.webshop.goods import HITS, MAKES, Catalogue, Goal, Product, canonical, catalogue, make_goal, terms

CASES = cases("webshop")

SHOE = Product(
    asin="B000000000",
    name="Norvik Running Shoe, Anti Slip",
    query="running shoes",
    category=("Clothing", "Shoes", "Running Shoes"),
    before=("anti slip", "arch support"),
    having=("rubber sole",),
    use="wet weather",
    description="A shoe by Norvik.",
    bullets=("Anti Slip running shoes", "Washable"),
    price=39.99,
    price_tag="$39.99",
    options={"size": ("7", "8", "x-large"), "color": ("red", "navy | white")},
)
BOOT = Product(
    asin="B000000001",
    name="Aldora Rain Boot, Anti Slip",
    query="rain boots",
    category=("Clothing", "Shoes", "Rain Boots"),
    before=("anti slip", "wide fit"),
    having=("rubber sole",),
    use="long shifts",
    description="",
    bullets=("Anti Slip rain boots",),
    price=31.5,
    price_tag="$25.0 to $45.0",
    options={},
)
GOAL = Goal(SHOE, ["arch support", "rubber sole"], {"color": "red", "size": "7"}, 50.0, "arch support running shoes")
HEAD = (
    "Instruction: [SEP] Find me arch support running shoes with color: red, and size: 7, "
    "and price lower than 50.00 dollars [SEP] "
)
START = f"WebShop [SEP] {HEAD}Search"
ITEM = (
    f"{HEAD}Back to Search [SEP] < Prev [SEP] size [SEP] 7 [SEP] 8 [SEP] x-large [SEP] color [SEP] red [SEP] "
    "navy | white [SEP] Norvik Running Shoe, Anti Slip [SEP] Price: $39.99 [SEP] Rating: N.A. [SEP] Description [SEP] "
    "Features [SEP] Reviews [SEP] Buy Now"
)
RESULTS = (
    f"{HEAD}Back to Search [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] B000000000 [SEP] Norvik Running Shoe, "
    "Anti Slip [SEP] $39.99 [SEP] B000000001 [SEP] Aldora Rain Boot, Anti Slip [SEP] $25.0 to $45.0"
)


@pytest.fixture
def shop(monkeypatch):
    """Return an environment in a shop of two products, where the shoe is the goal."""
    toy = Catalogue([SHOE, BOOT])
    env = Env(Config(prompt="short", max_turns=99))
    env.reset(seed=0)
    monkeypatch.setattr(webshop, "catalogue", lambda: toy)
    env.goal = GOAL
    return env


def replay(env: Env, *pairs: tuple[str, str]) -> None:
    for action, page in pairs:
        assert env.step(action).observation == page, action


def test_every_page_is_exact(shop):
    second = f"{HEAD}Back to Search [SEP] Page 2 (Total results: 2) [SEP] < Prev [SEP] Next >"
    sub_page = f"{HEAD}Back to Search [SEP] < Prev"
    assert shop.observation == START
    replay(
        shop,
        ("search[anti slip shoes]", RESULTS),
        ("click[next >]", second),
        ("click[Next >]", second.replace("Page 2", "Page 3")),
        ("click[< prev]", second),
        ("click[< Prev]", RESULTS),
        ("click[b000000000]", ITEM),
        ("click[Description]", f"{sub_page} [SEP] A shoe by Norvik."),
        ("click[< Prev]", ITEM),
        ("click[features]", f"{sub_page} [SEP] Anti Slip running shoes [SEP] Washable"),
        ("click[< Prev]", ITEM),
        ("click[Reviews]", sub_page),
        ("click[back to search]", START),
        ("search[aldora boot]", f"{RESULTS.partition('Page')[0]}Page 1 (Total results: 1) [SEP] Next > [SEP] "
         "B000000001 [SEP] Aldora Rain Boot, Anti Slip [SEP] $25.0 to $45.0"),
        ("click[B000000001]", f"{sub_page} [SEP] Aldora Rain Boot, Anti Slip [SEP] Price: $25.0 to $45.0 [SEP] "
         "Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now"),
        ("click[Description]", sub_page),
        ("search[wombat]", f"{HEAD}Back to Search [SEP] Page 1 (Total results: 0) [SEP] Next >"),
        ("search[shoe]", RESULTS.replace("results: 2", "results: 1").partition(" [SEP] B000000001")[0]),
        ("click[B000000000]", ITEM),
        ("click[X-Large]", ITEM),
        ("click[7]", ITEM),
        ("click[navy | white]", ITEM),
        ("click[Red]", ITEM),
        ("click[Buy Now]", "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk "
         'interface.) [SEP] Purchased [SEP] asin [SEP] B000000000 [SEP] options [SEP] {"color": "red", "size": "7"} '
         "[SEP] attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None "
         "[SEP] Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category "
         "[SEP] product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) "
         "[SEP] 1.0 [SEP] Reward Details [SEP] None"),
    )  # fmt: skip


def test_clickables_of_every_page(shop):
    def after(*actions):
        assert all(shop.step(action).info["valid"] for action in actions)
        return shop.clickables()

    assert shop.clickables() == ["search"]
    assert after("search[anti slip shoe]") == ["back to search", "next >", "b000000000", "b000000001"]
    assert after("click[next >]") == ["back to search", "< prev", "next >"]
    options = ["7", "8", "x-large", "red", "navy | white"]
    item = ["back to search", "< prev", "description", "features", "reviews", "buy now"]
    assert after("click[< prev]", "click[b000000000]") == item + options
    for sub_page in ("description", "features", "reviews"):
        assert after(f"click[{sub_page}]") == ["back to search", "< prev"]
        assert after("click[< prev]") == item + options


def test_invalid_actions_change_nothing(shop):
    for prepare, page in (("foo", START), ("search[anti slip shoe]", RESULTS), ("click[b000000000]", ITEM)):
        shop.step(prepare)
        for action in (
            *("", "buy", "search", "search[]", "click[]", "[red]", "search[a", "search a]", "]x[", "Search[shoe]"),
            *("CLICK[buy now]", "click[search]", "click[wombat]", "click[ buy now]", "click [buy now]"),
            *("I search[shoe]", "search[shoe] click[buy now]", "click[a[b]]", "click[b000000009]", "think[it over]"),
            *("click[size]", "click[Rating: N.A.]", "click[page 1]", "click[instruction:]", "buy[now]"),
        ):
            step = shop.step(action)
            assert step.observation == page, action
            assert not step.info["valid"] and step.reward == step.info["shaped"] == 0
    assert not shop.step("click[next >]").info["valid"]
    shop.step("click[description]")
    assert not shop.step("click[buy now]").info["valid"] and not shop.step("click[red]").info["valid"]


def test_leaving_a_product_clears_its_options(shop):
    shop.step("search[shoe]")
    for leave in (
        ["click[< prev]", "click[b000000000]"],
        ["search[shoe]", "click[b000000000]"],
        ["click[back to search]", "search[shoe]", "click[b000000000]"],
    ):
        for action in ["search[shoe]", "click[b000000000]", "click[red]", "click[8]", *leave]:
            shop.step(action)
        assert shop.options == {}
    for action in ["click[red]", "click[7]", "click[features]", "click[< prev]", "click[8]"]:
        shop.step(action)
    assert shop.options == {"color": "red", "size": "8"}  # the last one counts; a sub-page keeps them


@given(st.text("ab[] \nsearchclik", max_size=40))
@example("a[b[]")
@example("a[b]c]d")
def test_actions_are_read_as_in_the_original(text):
    env = Env(Config(prompt="short"))
    found = re.match(r"(.+)\[(.+)\]", text.strip())
    assert env._read(text) == ((found[1], found[2].lower()) if found else ("", ""))


def test_native_reads_everything_after_the_last_marker(shop):
    shop.config = replace(shop.config, prompt="native")
    said = lambda reply: shop.step(reply).observation  # noqa: E731
    assert said("Thought:\nshoes\n\nAction:\nsearch[anti slip shoe]") == RESULTS
    assert said("Action: click[b000000001]\nNo. Action: \n click[B000000000]  \nand so on") == ITEM
    assert said("Thought: no action here") == ITEM
    assert said("back I go: click[< prev]") == ITEM
    assert said("click[< prev]</s>") == RESULTS  # no marker, but the bracket
    assert said("Action: click[b000000000]\nAction:") == RESULTS
    assert said("Action:\nsearch[wombat]").endswith("results: 0) [SEP] Next >")
    assert said("search[anti\nslip]").endswith("results: 0) [SEP] Next >")


def test_short_reads_the_first_line(shop):
    assert shop.step("\n search[anti slip shoe] \nclick[b000000001]").observation == RESULTS
    assert not shop.step("Action:\nclick[b000000000]").info["valid"]


def test_a_search_is_read_up_to_a_limit(shop):
    assert shop.step(f"search[{'x' * (MAX_QUERY - 5)} shoe]").observation.count("B0000") == 1
    assert shop.step(f"search[{'x' * (MAX_QUERY - 4)} shoe]").observation.count("B0000") == 0


def test_prompts():
    native = Env(Config()).reset(seed=4)
    (short,) = Env(Config(prompt="short")).reset(seed=4)
    assert [message["role"] for message in native] == ["user", "assistant", "user"]
    assert short == {"role": "user", "content": f"{SHORT}\n{native[2]['content']}"}
    assert re.fullmatch(
        r"WebShop \[SEP\] Instruction: \[SEP\] Find me .*, and price lower than \d+0\.00 dollars \[SEP\] Search",
        native[2]["content"],
    )
    assert short["content"].isascii()
    lengths = [len(Env(Config(difficulty=1, prompt="short")).reset(seed)[0]["content"]) for seed in range(50)]
    assert max(lengths) < 220


def test_goal_text():
    assert GOAL.instruction == (
        "Find me arch support running shoes with color: red, and size: 7, and price lower than 50.00 dollars"
    )
    for seed in range(200):
        goal = make_goal(SHOE, 3, Random(seed))
        wanted = goal.instruction.partition("Find me ")[2].partition(" with color: ")[0]
        before = ", ".join(text for text in ("anti slip", "arch support") if text in goal.attributes)
        sole = " with rubber sole" if "rubber sole" in goal.attributes else ""
        use = " for wet weather" if "wet weather" in goal.attributes else ""
        assert wanted == f"{before} running shoes{sole}{use}" and len(goal.attributes) == 3
        assert list(goal.options) == ["color", "size"] and goal.price_upper in (50, 60, 70)
    plain = make_goal(BOOT, 1, Random(3))
    assert plain.options == {} and plain.instruction == (
        f"Find me {plain.attributes[0]} rain boots, and price lower than {plain.price_upper:.2f} dollars"
    )


def test_price_limit_is_the_higher_of_two_draws():
    for price, first in ((39.99, 40), (40.0, 50), (4.5, 10)):
        product = Product(**(vars(BOOT) | {"price": price}))
        limits = Counter(make_goal(product, 1, Random(seed)).price_upper for seed in range(600))
        assert sorted(limits) == [first + 10, first + 20, first + 30]
        assert limits[first + 30] == pytest.approx(300, abs=60)  # 3 of the 6 pairs


@pytest.mark.parametrize(("left", "right", "ratio"), CASES["text ratios"])
def test_text_ratio(left, right, ratio):
    assert text_ratio(left, right) == text_ratio(right, left) == ratio


@pytest.mark.parametrize(("change", "goal", "chosen", "expected"), CASES["scores"])
def test_score(shop, change, goal, chosen, expected):
    change = {name: tuple(value) if isinstance(value, list) else value for name, value in change.items()}
    product, wanted = Product(**(vars(SHOE) | change)), Goal(**(vars(GOAL) | goal))
    assert score(product, wanted, chosen) == pytest.approx(expected, abs=1e-15)


def test_type_of_a_product(shop):
    """Counted over the nouns that both names share, as a part of the nouns of the goal."""
    nouns = "one two three four five six seven eight nine ten eleven"
    wanted = Product(**(vars(SHOE) | {"name": nouns}))
    far = {"query": "x", "category": ("x", "Shoes", "y")}
    for name, change, expected in [
        (nouns, far, 1.0),
        ("one two three", far, 1.0),  # more than a fifth
        ("one two", far, 0.5),
        ("one two", {"query": "running shoes", "category": ()}, 1.0),
        ("one two", {"query": "x", "category": ("y", "Shoes", "Clothing")}, 1.0),  # levels in any order
        ("one", far, 0.1),
        ("one", {}, 0.1),
        ("zero", {}, 0.0),
    ]:
        assert type_score(Product(**(vars(SHOE) | change | {"name": name})), wanted) == expected, (name, change)
    nameless = Product(**(vars(SHOE) | {"name": "Anti Slip"}))  # no nouns at all counts as a fifth
    assert type_score(Product(**(vars(SHOE) | far)), nameless) == 0.5 and type_score(SHOE, nameless) == 1.0


def test_score_is_the_reward_and_on_the_last_page(shop):
    for action in ("search[boots]", "click[b000000001]"):
        assert shop.step(action).reward == 0
    step = shop.step("click[buy now]")
    assert step.reward == step.info["shaped"] == 0 and step.terminated and step.info["outcome"] == "incorrect"
    assert (
        "Your score (min 0.0, max 1.0) [SEP] 0.0 [SEP]" in step.observation and "options [SEP] {} " in step.observation
    )


def test_partial_scores_are_no_success(shop):
    for action in ("search[shoe]", "click[b000000000]", "click[red]"):
        shop.step(action)
    step = shop.step("click[buy now]")
    assert step.reward == 0.8 and not step.info["success"] and step.info["outcome"] == "incorrect"
    assert "[SEP] 0.8 [SEP] Reward Details" in step.observation


# -- the catalogue


def test_catalogue_is_large_and_consistent():
    goods = catalogue()
    products = list(goods.products.values())
    assert len(products) == 1200 and len(goods.by_shelf) == 15 and len({p.name for p in products}) == 1200
    assert set(Counter(p.query for p in products).values()) == {MAKES}
    assert len({(p.query, p.before) for p in products}) == 1200
    order = [p.asin for p in products]
    assert 500 < sum(one < other for one, other in pairwise(order)) < 700  # a code says nothing of the place
    for p in products:
        assert re.fullmatch(r"B0[A-Z0-9]{8}", p.asin) and len(set(p.category)) == 3
        texts = [p.name, p.description, *p.bullets, *p.attributes, *p.options]
        values = [value for group in p.options.values() for value in group]
        assert all(text.isascii() and text.isprintable() for text in texts + values)
        assert len(set(values)) == len(values) and not set(values) & set(webshop.SUB_PAGES)
        assert all(value == value.lower().strip() and not set(value) & set("[]/") for value in values)
        assert re.fullmatch(r"\$\d+\.\d{1,2}( to \$\d+\.\d{1,2})?", p.price_tag)
        low, _, high = p.price_tag.replace("$", "").partition(" to ")
        assert float(low) <= p.price <= float(high or low) < 950
    assert {len(p.options) for p in products} == {0, 1, 2, 3}
    assert any(" to " in p.price_tag for p in products) and any(p.price_tag == "$100.0" for p in products)
    assert any(not p.description for p in products)


def test_the_catalogue_is_built_once():
    assert catalogue() is catalogue()


@pytest.mark.all_only
def test_every_goal_can_score_1():
    goods = catalogue()
    for i, product in enumerate(goods.products.values()):
        goal = make_goal(product, 1 + i % 3, Random(i))
        assert score(product, goal, goal.options) == 1, goal.instruction
        for name, values in product.options.items():  # one at a time: options do not meet
            for value in values:
                wanted = Goal(product, goal.attributes, {name: value}, goal.price_upper, goal.wish)
                assert score(product, wanted, {name: value}) == 1, (name, value)


@pytest.mark.all_only
def test_another_type_of_product_is_worth_little():
    products = list(catalogue().products.values())
    rng = Random(0)
    scores = []
    for _ in range(400):
        bought, wanted = rng.sample(products, 2)
        if bought.query != wanted.query:
            scores.append(score(bought, make_goal(wanted, 2, rng), {}))
    assert sum(scores) / len(scores) < 0.03 and max(scores) < 1


def test_every_split_has_goals_of_every_level():
    goods = catalogue()
    for (split, level), products in goods.goals.items():
        assert len(products) >= 20 and all(split_of(canonical(p)) == split for p in products)
        assert level == 3 or all(len(p.options) == level - 1 for p in products)
    assert sum(len(goods.goals[split, 3]) for split in SPLITS) == 1200


def test_search_ranks_by_the_words_of_the_query():
    goods = catalogue()
    assert goods.search("wombat") == goods.search("the of and") == goods.search("  ") == []
    assert len(goods.search("free")) == HITS
    for product in list(goods.products.values())[::7]:
        hits = goods.search(f"{product.name}")
        assert hits[0] is product and len(hits) <= HITS
        shelf = goods.search(product.query, goods.by_shelf[product.shelf])
        assert {hit.shelf for hit in shelf} == {product.shelf}
        assert Counter(hit.query for hit in shelf[:MAKES]).most_common(1)[0][0] == product.query
    assert goods.search("gold gold gold lamp")[0] != goods.search("gold lamp lamp lamp")[0]
    assert (
        " ".join(terms("Women's Dresses, Brushes & Batteries: the bus of 6.5")) == "women dress brush battery bus 6 5"
    )


def test_bm25_by_hand():
    """Two documents of five terms on average; a term occurs twice in one of them."""
    blank = {"options": {}, "description": "", "query": "", "before": (), "having": ()}
    one = Product(**(vars(SHOE) | blank | {"name": "lamp lamp red", "bullets": ("blue",)}))
    two = Product(**(vars(BOOT) | blank | {"name": "red table door green pink", "bullets": ("white",)}))
    postings = Catalogue([one, two]).postings
    idf, norm = 0.6931471805599453, 0.9 * (0.6 + 0.4 * 4 / 5)  # ln(1 + 1.5 / 1.5)
    assert postings["lamp"] == {one.asin: pytest.approx(idf * 2 / (2 + norm))}
    assert postings["red"][two.asin] == pytest.approx(0.1823215567939546 / (1 + 0.9 * (0.6 + 0.4 * 6 / 5)))


# -- the episode


def play(env: Env, seed: int, split: str) -> tuple[list, float]:
    env.reset(seed, split)
    steps = []
    while env.running:
        steps.append(env.step(env.oracle()))
        assert steps[-1].info["valid"], (seed, split)
    return steps, sum(step.info["shaped"] for step in steps)


def solve(level: str, prompt: str, seeds: range) -> None:
    env = Env(Config(difficulty=level, prompt=prompt))
    for seed in seeds:
        steps, shaped = play(env, seed, SPLITS[seed % 3])
        assert steps[-1].info["success"] and steps[-1].reward == 1 and shaped == pytest.approx(1.4), (seed, env.task)
        assert len(steps) >= 3 + len(env.goal.options) and (level != "1" or len(steps) == 3)


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_buys_the_right_product(level, prompt):
    solve(level, prompt, range(60))


@pytest.mark.all_only
@pytest.mark.parametrize("per_page", [10, 2])
def test_the_expert_finds_every_product_within_the_limit(per_page, monkeypatch):
    monkeypatch.setattr(webshop, "PER_PAGE", per_page)
    env = Env(Config(prompt="short"))
    env.reset(seed=0)
    pages = Counter()
    for i, product in enumerate(list(catalogue().products.values())[:: 1 if per_page == 10 else 4]):
        env.goal, env.turns, env.running, env.paid = make_goal(product, 1 + i % 3, Random(i)), 0, True, set()
        env._start()
        step = expert(env)[-1]
        assert step.info["success"], env.goal.instruction
        pages[env.turns - 2 - len(env.goal.options)] += 1
    assert set(pages) <= {1, 2} if per_page == 10 else pages[2] > 10 and max(pages) > 2, pages


@pytest.mark.all_only
@pytest.mark.parametrize("level", LEVELS)
def test_expert_continues_from_any_state(level):
    env = Env(Config(difficulty=level, prompt="short", max_turns=60))
    rng = Random(level)
    for seed in range(60):
        env.reset(seed)
        for _ in range(rng.randint(1, 12)):
            buttons = [button for button in env.clickables() if button != "buy now"]
            words = rng.choice([env.goal.product.query, env.goal.product.name, "red cotton", "wombat"])
            env.step(rng.choice([f"search[{words}]", f"click[{rng.choice(buttons)}]", f"click[{rng.choice(buttons)}]"]))
        while env.running:
            step = env.step(env.oracle())
            assert step.info["valid"]
        assert step.info["success"], seed


def test_the_shop_of_every_level():
    goods = catalogue()
    for level, size in (("1", 8), ("2", 80), ("3", 1200)):
        env = Env(Config(difficulty=level))
        for seed in range(40):
            env.reset(seed)
            shop = list(goods.products.values()) if env.shop is None else env.shop
            shelves = {product.shelf for product in shop}
            assert len(shop) == size and env.goal.product in shop
            assert len(shelves) == {"1": 8, "2": 1, "3": 15}[level]
            low, high = LEVELS[level]
            assert low <= len(env.goal.attributes) <= high
            env.step(f"Action: search[{env.goal.product.category[0]} free steel red cotton lamp]")
            assert set(env.hits) <= set(shop)


@pytest.mark.all_only
def test_difficulty_weighs():
    env = Env(Config(difficulty="1,1,2"))
    drawn = Counter()
    for seed in range(600):
        env.reset(seed)
        drawn[len(env.goal.options)] += 1
    assert set(drawn) == {0, 1} and drawn[0] == pytest.approx(400, abs=50)


# -- reward hacks


def test_shaped_reward_pays_each_step_once(shop):
    paid = CASES["paid"]
    for action, shaped in paid:
        step = shop.step(action)
        assert step.info["shaped"] == shaped, action
        assert step.reward == (shaped == 1.0)


def test_equally_good_product_pays_the_same(shop, monkeypatch):
    twin = Product(**(vars(SHOE) | {"asin": "B000000002"}))
    poor = Product(**(vars(SHOE) | {"asin": "B000000003", "options": {"size": ("7",)}}))
    toy = Catalogue([SHOE, poor, twin])
    monkeypatch.setattr(webshop, "catalogue", lambda: toy)
    shop.step("search[shoe]")
    assert shop.step("click[b000000003]").info["shaped"] == 0
    shop.step("click[< prev]")
    assert shop.step("click[b000000002]").info["shaped"] == 0.3
    shop.step("click[red]")
    shop.step("click[7]")
    step = shop.step("click[buy now]")
    assert step.info["shaped"] == 1 and step.info["success"]


@pytest.mark.all_only
def test_shaped_reward_of_wandering_is_capped():
    env = Env(Config(difficulty="1,2,3", prompt="short", max_turns=200))
    rng = Random(0)
    hasty = []
    for seed in range(40):
        env.reset(seed)
        words = [env.goal.wish, env.goal.product.name, "red", "free", "a lamp of steel"]
        total = 0.0
        while env.running:
            buttons = [button for button in env.clickables() if button != "buy now"]
            total += env.step(rng.choice([f"search[{rng.choice(words)}]", f"click[{rng.choice(buttons)}]"])).info[
                "shaped"
            ]
        assert total <= 0.4 + 1e-9
        env.reset(seed)
        steps = [env.step("search[free]")]
        if env.hits:
            steps += [env.step(f"click[{env.hits[0].asin}]"), env.step("click[buy now]")]
        hasty.append(sum(step.info["shaped"] for step in steps))
    assert sum(hasty) / len(hasty) < 0.5


def test_last_clicked_value_of_an_option_counts(shop):
    for action in ("search[shoe]", "click[b000000000]", *["click[red]", "click[navy | white]"] * 5, "click[8]"):
        shop.step(action)
    assert shop.step("click[buy now]").reward == 0.6


# -- determinism, robustness, options


def transcript() -> list[dict]:
    """Return the cases of the golden file: three experts and a walk over every page."""
    walk = """search[towels] | click[next >] | click[next >] | click[< prev] | click[search] | click[next >]
        click[NEXT >] | search[gluten free crackers] | click[< prev]
        click[buy now]"""
    cases = []
    for difficulty, prompt, seed, actions in (
        *(("1", "short", 0, ""), ("2", "short", 1, ""), ("3", "native", 5, "")),
        ("3", "short", 7, walk.replace("\n", "|")),
    ):
        env = Env(Config(difficulty=difficulty, prompt=prompt, max_turns=30))
        cases.append(golden.start(env.reset(seed, "test"), seed, "test", difficulty=difficulty, prompt=prompt))
        script = [action.strip() for action in actions.split("|") if action.strip()]
        script += ["click[{0}]", "click[features]", "click[< prev]", "click[description]", "click[reviews]"] * bool(
            script
        )
        script += ["click[< prev]", "click[reviews]", "click[< prev]", "click[buy now]"] * bool(script)
        # A generator, since {0} is the first product of the page that is shown when the action comes.
        named = (action.format(env._listed()[0].asin) if "{0}" in action else action for action in script)
        cases += golden.play(env, named)
    return cases


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.builds("{}[{}]".format, st.sampled_from(["search", "click", "Action: search"]), st.text(max_size=40)),
    st.builds(lambda text, n: text * n, st.text(min_size=1, max_size=3), st.integers(10_000, 33_000)),
    st.sampled_from(["search[" + "red " * 25_000 + "]", "[" * 100_000, "]" * 100_000, "search[" * 14_000, "\ud800[x]"]),
)


@pytest.mark.all_only
@settings(max_examples=40, deadline=None)
@given(st.lists(HOSTILE, min_size=1, max_size=6), st.sampled_from(["native", "short"]), st.integers(0, 9))
def test_hostile_replies_are_answered(replies, prompt, seed):
    env = Env(Config(difficulty="1,2,3", prompt=prompt, max_turns=20))
    env.reset(seed)
    for reply in (*replies, env.oracle(), *replies):
        before = env.observation
        step = env.step(reply)
        assert len(step.observation) < 2000 and step.reward == 0
        assert step.info["valid"] or step.observation == before


def test_truncation_at_the_turn_limit():
    env = Env(Config(max_turns=3, prompt="short"))
    for last, outcome in (("click[next >]", "timeout"), ("click[buy now]", "incorrect")):
        env.reset(seed=0)
        asin = catalogue().search("lamps")[0].asin
        steps = [env.step(action) for action in ("search[lamps]", f"click[{asin}]", last)]
        assert [step.truncated or step.terminated for step in steps] == [False, False, True]
        assert steps[-1].info["outcome"] == outcome and steps[-1].truncated == (outcome == "timeout")
        for call in (lambda: env.step("x"), env.oracle):
            with pytest.raises(RuntimeError, match="reset"):
                call()


def test_base_colours_are_words_in_alphabetical_order():
    colours = BASE_COLOURS.split()
    assert len(colours) == 102 and colours == sorted(set(colours)) and all(map(str.isalpha, colours))
