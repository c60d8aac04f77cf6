"""A customer's wish, and the draws from which a template makes one."""

from dataclasses import dataclass, field
from random import Random

from envs.tau_retail.shop import Shop
from envs.tau_retail.tools import CHANGING

OUT_OF_SCOPE = (
    *("claim for a broken parcel", "matching a lower price", "repair under warranty", "copy of an old invoice"),
    *("discount code that fails", "change of email address", "bulk order for an office", "complaint about a courier"),
)


@dataclass(frozen=True)
class Wish:
    """One request of a customer."""

    kind: str  # the template's name
    says: str  # the customer's first line
    facts: dict[str, str] = field(default_factory=dict)  # topic -> the answer to a question about it
    known: tuple[str, ...] = ()  # topics that `says` already answers
    calls: tuple[tuple[str, dict], ...] = ()  # (tool, arguments) of the calls that fulfil it
    outputs: tuple[str, ...] = ()  # texts that the agent must write
    reads: tuple[tuple[str, dict], ...] = ()  # calls with which an expert looks things up first
    answer: str = ""  # an expert's last line
    refused: bool = False  # whether the rules forbid it
    change: "Wish | None" = None  # the wish that replaces it when the agent asks for confirmation
    objection: str = ""  # the reply to a request to agree, if the customer wants no change any more
    vain: tuple[tuple[str, dict], ...] = ()  # calls of the original's ground truth that fail

    @property
    def changes(self) -> int:
        """The number of changes that fulfil it; of two to one part of a record only the last counts."""
        return len({(name, _record(arguments)) for name, arguments in self.calls if name in CHANGING})

    def fails(self, name: str, arguments: dict) -> bool:
        """Return whether a call that failed is one of those that the original's ground truth tries in vain."""
        return any((name, _record(arguments)) == (tool, _record(tried)) for tool, tried in self.vain)


def _record(arguments: dict) -> str:
    """Return the id of the record that a call changes."""
    return str(arguments.get("order_id", arguments.get("user_id")))


def method_words(record: dict) -> str:
    """Return the customer's words for a payment method."""
    if record["source"] == "credit_card":
        return f"credit card ending in {record['last_four']}"
    return "PayPal account" if record["source"] == "paypal" else "gift card"


class Draw:
    """Draw what the templates need for one customer. No two wishes get the same order."""

    def __init__(self, shop: Shop, user_id: str, rng: Random, level: str):
        self.shop, self.rng, self.level = shop, rng, level
        self.user_id, self.user = user_id, shop.users[user_id]
        self.methods: dict[str, dict] = self.user["payment_methods"]
        self.free = rng.sample(self.user["orders"], len(self.user["orders"]))

    def order(self, *statuses: str) -> dict | None:
        """Draw an order with one of these statuses that no other wish uses; None if there is none."""
        for order_id in self.free:
            if (order := self.shop.orders[order_id])["status"] in statuses:
                self.free.remove(order_id)
                return order
        return None

    def reference(self, order: dict) -> tuple[str, str, tuple[str, ...]]:
        """Return the customer's words for an order, the answer about its number, and the topics answered already."""
        number = order["order_id"]
        orders = [self.shop.orders[each] for each in self.user["orders"]]
        held = [item["name"] for each in orders for item in each["items"]]
        alone = [item["name"] for item in order["items"] if held.count(item["name"]) == 1]
        if self.level == "3" and alone and self.rng.random() < 0.5:
            thing = self.rng.choice(alone)
            return f"my order with the {thing}", f"I do not have the number. It is the one with the {thing}.", ()
        return f"my order {number}", f"The order number is {number}.", ("order",)

    def lookups(self, order: dict, known: tuple[str, ...]) -> list[tuple[str, dict]]:
        """Return the reads that find an order: itself if its number is known, else all orders up to it."""
        orders = self.user["orders"]
        wanted = [order["order_id"]] if known else orders[: orders.index(order["order_id"]) + 1]
        profile = [("get_user_details", {"user_id": self.user_id})]
        return profile + [("get_order_details", {"order_id": order_id}) for order_id in wanted]

    def method(self, least: float = 0.0, but: str = "") -> str | None:
        """Draw a payment method of the customer that covers an amount; None if there is none."""
        able = [name for name, m in self.methods.items() if m.get("balance", least) >= least and name != but]
        return self.rng.choice(able) if able else None

    def topic(self) -> str:
        """Draw a matter that is not the agent's; in a fresh shop it has a number."""
        return self.rng.choice(OUT_OF_SCOPE) + (f", case {self.rng.randint(1000, 9999)}" if self.shop.fresh else "")

    def named(self, method: str) -> str:
        """Return the customer's words for a payment method."""
        return method_words(self.methods[method])

    def variant(self, item: dict, available: bool = True) -> dict | None:
        """Draw another variant of an ordered item; None if there is none."""
        variants = self.shop.products[item["product_id"]]["variants"].values()
        others = [v for v in variants if v["available"] == available and v["item_id"] != item["item_id"]]
        return self.rng.choice(others) if others else None
