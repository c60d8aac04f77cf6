"""WebShop: find a described product in a web shop, choose its options, buy it.

Task.     `Find me quick drying hand towels with color: red, and size: 20 x 32, and price lower than 40.00 dollars`: one
          product of a catalogue, some of its attributes, a value of each of its options, a price limit. The levels of
          difficulty:
    1     a shop of eight products, each of another shelf; one attribute, no options; 3 turns
    2     a shop of one shelf, 80 products; two attributes, one option; at least 4 turns
    3     all 1,200 products, on 15 shelves; two or three attributes, up to three options; at least 3 to 6 turns

Actions.  A name and an argument: the text of the first line before its last `[`, and from there to its last `]`.
    search[words]     from any page; leaves the product and forgets the options
    click[button]     a button of the page in any case; `Search` cannot be clicked
          Results: Back to Search, < Prev (from page 2 on), Next > (always, even past the end), the products' codes.
          A product: Back to Search, < Prev (to the results; forgets the options), Description, Features, Reviews,
          Buy Now, the options' values, of which the last one clicked counts. Its sub-pages: Back to Search, < Prev.

Replies.  The page, its parts joined by ` [SEP] `. After any other action, the same page again.
    WebShop [SEP] Instruction: [SEP] {goal} [SEP] Search
    Instruction: [SEP] {goal} [SEP] Back to Search [SEP] Page 1 (Total results: 2) [SEP] Next > [SEP] B000000000 [SEP]
          {name} [SEP] $39.99 [SEP] ...                              the best 50, ten per page
    Instruction: [SEP] {goal} [SEP] Back to Search [SEP] < Prev [SEP] color [SEP] red [SEP] navy | white [SEP] {name}
          [SEP] Price: $39.99 [SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now
    Instruction: [SEP] {goal} [SEP] Back to Search [SEP] < Prev [SEP] {text}       one part per feature; no reviews
    Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] ... [SEP] Your score (min 0.0, max 1.0) [SEP] 1.0
          [SEP] Reward Details [SEP] None

Prompts.  native: instructions, an "Ok.", the page. A reply is `Thought:\\n...\\n\\nAction:\\n...`; the action is
          everything after the last `Action:`; without one, the whole reply if it contains `search[` or `click[`.
          short: one message, an instruction line and the page; the action is the reply's first line.

Tasks.    panel: the products of one catalogue. fresh: each seed draws its own goods, with other brands, codes, prices,
          options and pairs of attributes; at level 3, those of the wanted product's shelf.

Reward.   At Buy Now: type x (attributes found + options right + price kept) / (attributes + options + 1).
          attributes: one of the product's attributes is similar (text_ratio above 85), or its name, features or
                      description contain it
          options:    a chosen value, cut to its first base colour, is similar to the pair of option and value; so
                      `large` will do for `x-large`
          price:      1 if it is at most the limit
          type:       0 if the product's name has none of the nouns of the wanted name, 0.1 if it has under a tenth of
                      them; 0.5 if it has at most a fifth, belongs to another query and shares fewer than two levels
                      of category; else 1
          info["shaped"]: 0.1 for the first page of results that shows the wanted product; 0.3 the first time that any
          product is opened that can earn a reward of 1; the reward at Buy Now.

Ending.   Terminated by Buy Now: "correct" (a success) if the reward is 1, else "incorrect". Truncated, outcome
          "timeout", after `max_turns` replies of any kind.

From WebShop (princeton-nlp) and AgentGym's server for it (both MIT), in its text mode, with its synthetic goals.
The differences:
- The catalogue is ours. No product has a rating or a review.
- A search ranks by a small BM25 of our own with a rough stemmer; `<r>`, `<a>`, `<c>`, `<q>` are words like any other.
- Nouns are the words of a name that are in no attribute and not in a list of stop words; the original uses a parser.
- A goal's attributes and its price limit are drawn with the episode. A hash of the product's name decides the split, so
  that a held-out product is never the goal in training.
- The instructions are in our words. Only 400 characters of a search are read.
"""

from dataclasses import dataclass
from json import dumps
from random import Random

from envs import common
from envs.base import Configured, Step
from envs.webshop import fresh
from envs.webshop.goods import LEVELS, SMALL_SHOP, Catalogue, Goal, Product, canonical, catalogue, make_goal

INSTRUCTIONS = """\
You are shopping on a website. An instruction says what to buy. Each turn you see the page that you are on, its parts \
separated by [SEP], and you answer with one action:
search[words]: search the shop for words of your choice.
click[button]: press a button of the page. Buttons are the code of a product, the value of an option, Back to Search, \
< Prev, Next >, Description, Features, Reviews and Buy Now.
Choose the words of a search with care. An action that the page does not offer does nothing. Choose the options that \
the instruction asks for before you press Buy Now, which ends the visit.
Write each reply in this form:
Thought:
why this action is next

Action:
the action"""
AGREED = "Ok."
SHORT = "Reply search[words] or click[button]. End with click[Buy Now]."
PER_PAGE = 10  # results per page
MAX_QUERY = 400  # characters read of a search
FOUND, OPENED = 0.1, 0.3  # shaped rewards, each paid once
SUB_PAGES = ("description", "features", "reviews")
# `_cut` reduces a chosen value to the first of these that it contains anywhere, even "tan" in "standard"
BASE_COLOURS = """alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown
burgundy camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral
cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green
grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint
mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal
rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet
walnut wheat white wine yellow"""


@dataclass(frozen=True)
class Config:
    difficulty: str = "3"  # levels 1 to 3, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    max_turns: int = 10  # agent turns before the episode is truncated
    prompt: str = "native"  # "native": instructions and Thought/Action replies; "short": one message, bare actions
    tasks: str = "panel"  # "panel": goals of one catalogue; "fresh": other goods for each seed

    def __post_init__(self):
        common.check_options(self, LEVELS)
        common.check_tasks(self.tasks)


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config

    @property
    def task(self) -> str:
        """The canonical task: the product alone, so that a held-out product is never wanted in training.

        A fresh task is the instruction and the product.
        """
        return canonical(self.goal.product) if self.config.tasks == "panel" else fresh.canonical(self.goal)

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"webshop {split} {seed}")
        level = rng.choice(self.config.difficulty.split(","))
        self.goods: Catalogue | None = None  # a fresh task's own
        if self.config.tasks == "panel":
            product = rng.choice(catalogue().goals[split, int(level)])
            self.goal = make_goal(product, rng.randint(*LEVELS[level]), rng)
            self.shop = _shop(product, level, rng)
        else:
            self.goal, self.goods, self.shop = fresh.draw(level, split, seed, rng)
        self.paid: set[float] = set()
        self.turns = 0
        self.running = True
        self._start()
        return common.opening(self.config.prompt, self.observation, INSTRUCTIONS, AGREED, SHORT)

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        name, argument = self._read(action_text)
        valid = True
        if name == "search" and argument:
            self._search(argument)
        elif name == "click" and argument in self.clickables() and argument != "search":
            self._click(argument)
        else:
            valid = False
        bought = self.page == "done"
        reward = self.score if bought else 0.0
        truncated = not bought and self.turns >= self.config.max_turns
        self.running = not (bought or truncated)
        success = bought and reward == 1
        info = common.step_info(success, bought, truncated, valid, reward or self._progress())
        return Step(self.observation, reward, bought, truncated, info)

    def oracle(self) -> str:
        """Return an expert's reply in the current state."""
        common.check_running(self.running)
        action, reason = self._next_action()
        return common.as_reply(self.config.prompt, reason, action)

    def clickables(self) -> list[str]:
        """Return the buttons of the page, in lower case."""
        if self.page == "start":
            return ["search"]
        if self.page == "done":
            return []
        buttons = ["back to search"]
        if self.page == "results":
            buttons += ["< prev"] if self.number > 1 else []
            return [*buttons, "next >", *(product.asin.lower() for product in self._listed())]
        buttons.append("< prev")
        if self.page == "item":
            buttons += [*SUB_PAGES, "buy now"]
            buttons += [value for values in self.product.options.values() for value in values]
        return buttons

    @property
    def observation(self) -> str:
        """The text of the page."""
        goal = ["Instruction:", self.goal.instruction]
        if self.page == "start":
            return _joined("WebShop", *goal, "Search")
        if self.page == "done":
            return _receipt(self.product, self.options, self.score)
        if self.page == "results":
            turning = [*(["< Prev"] if self.number > 1 else []), "Next >"]
            listed = (text for product in self._listed() for text in (product.asin, product.name, product.price_tag))
            count = f"Page {self.number} (Total results: {len(self.hits)})"
            return _joined(*goal, "Back to Search", count, *turning, *listed)
        parts = [*goal, "Back to Search", "< Prev"]
        product = self.product
        if self.page == "description":
            return _joined(*parts, *filter(None, [product.description]))
        if self.page == "features":
            return _joined(*parts, *product.bullets)
        if self.page == "reviews":
            return _joined(*parts)
        choices = (text for name, values in product.options.items() for text in (name, *values))
        about = product.name, f"Price: {product.price_tag}", "Rating: N.A."
        return _joined(*parts, *choices, *about, "Description", "Features", "Reviews", "Buy Now")

    def _read(self, reply: str) -> tuple[str, str]:
        """Return the name and the argument of the action in a reply; two empty strings without an action."""
        if self.config.prompt == "short":
            action = reply
        else:
            _, marker, action = reply.rpartition("Action:")
            if not marker and "search[" not in reply and "click[" not in reply:
                action = ""
        line = action.strip().partition("\n")[0]
        end = line.rfind("]")
        start = line.rfind("[", 0, max(end - 1, 0))  # the argument is not empty
        return (line[:start], line[start + 1 : end][:MAX_QUERY].lower()) if start > 0 else ("", "")

    def _start(self) -> None:
        """Show the start page."""
        self.page, self.hits, self.query = "start", [], ""
        self.product, self.options = None, {}

    def _search(self, query: str) -> None:
        """Show the first page of results."""
        self._start()
        self.page, self.number, self.query = "results", 1, query
        self.hits = (self.goods or catalogue()).search(query, self.shop)

    def _click(self, button: str) -> None:
        """Click a button of the page."""
        if button == "buy now":
            self.page, self.score = "done", score(self.product, self.goal, self.options)
        elif button == "back to search":
            self._start()
        elif self.page == "results" and button in ("next >", "< prev"):
            self.number += 1 if button == "next >" else -1
        elif self.page == "results":
            self.page = "item"
            self.product = next(product for product in self._listed() if product.asin.lower() == button)
        elif button == "< prev" and self.page == "item":
            self.page, self.product, self.options = "results", None, {}
        elif button == "< prev":
            self.page = "item"
        elif button in SUB_PAGES:
            self.page = button
        else:
            name = [name for name, values in self.product.options.items() if button in values][-1]
            self.options[name] = button

    def _progress(self) -> float:
        """Return the shaped reward of reaching the page, paid once."""
        if self.page == "results" and FOUND not in self.paid and self.goal.product in self._listed():
            earned = FOUND
        elif self.page == "item" and OPENED not in self.paid and _can_score_1(self.product, self.goal):
            earned = OPENED
        else:
            return 0.0
        self.paid.add(earned)
        return earned

    def _listed(self) -> list[Product]:
        """Return the products on the page of results."""
        return self.hits[(self.number - 1) * PER_PAGE : self.number * PER_PAGE]

    def _next_action(self) -> tuple[str, str]:
        """Return the next action, and its reason, of an expert that knows the product."""
        goal = self.goal
        if self.page == "item" and self.product == goal.product:
            for name, value in goal.options.items():
                if self.options.get(name) != value:
                    return f"click[{value}]", f"The {name} has to be {value}."
            return "click[Buy Now]", "This is the product, and its options are chosen."
        if self.page in SUB_PAGES and self.product == goal.product:
            return "click[< Prev]", "This is the product; I go back to its page."
        if self.page == "results" and goal.product in self.hits:
            if goal.product in self._listed():
                return f"click[{goal.product.asin}]", f"{goal.product.name} is what I look for."
            if self.query == goal.wish.lower() and self.hits.index(goal.product) >= self.number * PER_PAGE:
                return "click[Next >]", "None of these is right; I look at the next page."
        return f"search[{goal.wish}]", "I search for what the instruction asks for."


def score(product: Product, goal: Goal, chosen: dict[str, str]) -> float:
    """Return the reward for buying a product with the options that were chosen."""
    texts = product.name.lower(), " ".join(product.bullets).lower(), product.description.lower()
    attributes = sum(
        any(text_ratio(own, wanted) > 85 for own in product.attributes) or any(wanted in text for text in texts)
        for wanted in goal.attributes
    )
    values = [_cut(value) for value in chosen.values()]
    pairs = [_cut(pair) for pair in goal.options.items()]
    options = sum(any(text_ratio(value, str(pair)) > 85 for value in values) for pair in pairs)
    kept = product.price <= goal.price_upper
    met = (attributes + options + kept) / (len(goal.attributes) + len(pairs) + 1)
    return met * type_score(product, goal.product)


def type_score(product: Product, wanted: Product) -> float:
    """Return the factor of the reward for the type of the product bought."""
    named, nouns = set(catalogue().nouns(product.name)), catalogue().nouns(wanted.name)
    overlap = len(named & set(nouns)) / len(nouns) if nouns else 0.2
    related = product.query == wanted.query or len(set(product.category) & set(wanted.category)) >= 2
    if overlap < 0.1:
        return 0.1 if overlap else 0.0
    return 1.0 if related or overlap > 0.2 else 0.5


def text_ratio(left: str, right: str) -> int:
    """Return the similarity of two texts as sets of words, 0 to 100: thefuzz's token_set_ratio."""
    words, others = set(_words(left)), set(_words(right))
    if not words or not others:
        return 0
    shared, rest, other_rest = words & others, words - others, others - words
    if shared and not (rest and other_rest):
        return 100
    a, b = " ".join(sorted(rest)), " ".join(sorted(other_rest))
    common = len(" ".join(shared))
    with_a, with_b = (common + bool(common) + len(text) for text in (a, b))
    ratios = [_similarity(len(a) + len(b) - 2 * _common_subsequence(a, b), with_a + with_b)]
    if common:
        ratios += [_similarity(with_a - common, common + with_a), _similarity(with_b - common, common + with_b)]
    return round(max(ratios))


def _similarity(distance: int, length: int) -> float:
    """Return a similarity of 0 to 100, given the edit distance and the sum of the lengths."""
    return 100.0 - 100.0 * distance / length


def _words(text: str) -> list[str]:
    """Return the lower-case words of letters and digits, without characters 128 to 255, as in thefuzz."""
    kept = (c for c in text if not "\x80" <= c <= "\xff")
    return "".join(c.lower()[0] if c.isalnum() else " " for c in kept).split()


def _common_subsequence(a: str, b: str) -> int:
    """Return the length of the longest common subsequence, computed with one bit per character of a."""
    places: dict[str, int] = {}
    for i, c in enumerate(a):
        places[c] = places.get(c, 0) | 1 << i
    full = (1 << len(a)) - 1
    unmatched = full
    for c in b:
        met = unmatched & places.get(c, 0)
        unmatched = (unmatched + met | unmatched - met) & full
    return len(a) - unmatched.bit_count()


def _cut(text: str | tuple[str, str]) -> str | tuple[str, str]:
    """Return the first base colour in a value, or the item of an (option, value) pair that is a base colour."""
    return next((colour for colour in BASE_COLOURS.split() if colour in text), text)


def _can_score_1(product: Product, goal: Goal) -> bool:
    """Return whether a product can earn a reward of 1."""
    offered = {name: value for name, value in goal.options.items() if value in product.options.get(name, ())}
    return score(product, goal, offered) == 1


def _shop(product: Product, level: str, rng: Random) -> list[Product] | None:
    """Return the products that an episode's shop sells, or None for all products."""
    if level == "3":
        return None
    shelves = catalogue().by_shelf
    if level == "2":
        return shelves[product.shelf]
    others = rng.sample([shelf for shelf in shelves if shelf != product.shelf], SMALL_SHOP - 1)
    return [product, *(rng.choice(shelves[shelf]) for shelf in others)]


def _joined(*parts: str) -> str:
    """Return the text of a page."""
    return " [SEP] ".join(parts)


def _receipt(product: Product, options: dict[str, str], reward: float) -> str:
    """Return the last page, with most fields empty as in the original."""
    chosen = dumps(options, sort_keys=True).replace("'", "\\u0027")
    purchased = "asin", product.asin, "options", chosen, "attrs", "None", "category", "None", "query", "None"
    target = "asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"
    return _joined(
        *("Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"),
        *("Purchased", *purchased, "product category", "None", "Target", *target, "Goal", "None", "Reward"),
        *("Your score (min 0.0, max 1.0)", str(reward), "Reward Details", "None"),
    )
