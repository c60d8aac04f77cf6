"""Fresh goods: each seed's own products, with other brands, codes, prices, options and pairs of attributes."""

from functools import lru_cache
from random import Random

from envs.common import split_of
from envs.names import INVENTED
from envs.webshop.goods import (
    LEVELS,
    MAKES,
    PARAGRAPHS,
    SMALL_SHOP,
    Catalogue,
    Goal,
    Product,
    catalogue,
    codes,
    make_goal,
    stocked,
)


def canonical(goal: Goal) -> str:
    """Return the canonical task: the instruction and the product that it means."""
    product = goal.product
    return f"webshop:{product.name}, {product.asin} {product.price_tag} {product.options}: {goal.instruction}"


def draw(level: str, split: str, seed: int, rng: Random) -> tuple[Goal, Catalogue, list[Product]]:
    """Draw a goal of a split. Return it, the fresh goods, and the products that the shop sells.

    At level 3 the shop sells the panel's products of the other shelves too.
    """
    first, *others = rng.sample(PARAGRAPHS, SMALL_SHOP)
    source = f"{split} {seed} "
    asins, goods = codes(source), None if level == "1" else _shelf(first, source)
    while True:
        product = rng.choice(list(goods.products.values())) if goods else stocked(first, 0, INVENTED, asins, rng)[0]
        if level == "3" or len(product.options) == int(level) - 1:
            goal = make_goal(product, rng.randint(*LEVELS[level]), rng)
            if split_of(canonical(goal)) == split:
                break
    if goods is None:
        goods = Catalogue([product, *(stocked(other, 0, INVENTED, asins, rng)[0] for other in others)], catalogue())
    sold = list(goods.products.values())
    if level == "3":
        sold += [other for other in catalogue().products.values() if other.shelf != product.shelf]
    return goal, goods, sold


@lru_cache(maxsize=16)  # the episodes of a group have one seed
def _shelf(paragraph: str, source: str) -> Catalogue:
    """Return a shelf's 80 products; `source` seeds them."""
    return Catalogue(stocked(paragraph, MAKES, INVENTED, codes(source), Random(f"webshop {source}")), catalogue())
