"""The shop's data: fifty products in some six hundred variants, five hundred customers, a thousand orders.

Records have tau-bench's layout and order of keys. A shop is made once per process, or read from the original's JSON
files, and never changed: an episode writes to copies of the few records that it changes (database.py).
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from envs import data_files
from envs.read_once import read_once
from envs.refusal import Refusal
from envs.tau_retail.goods import CITIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, STREETS

SIZE = (500, 1000)  # customers, orders
SHORT_SIZE = (400, 700)  # there are 900 order numbers of three digits
FRESH_SIZE = (24, 48)
MOST_ORDERS = 4  # per customer
STATUSES = {"pending": 423, "delivered": 373, "processed": 102, "cancelled": 102}  # shares as in the original
REASONS = ("no longer needed", "ordered by mistake")
NAME = {"first_name": str, "last_name": str}
RECORDS = {  # the original's tables and the required fields of their records, with their types
    "products": {"name": str, "product_id": str, "variants": dict},
    "orders": {"order_id": str, "user_id": str, "address": dict, "items": list, "status": str, "payment_history": list},
    "users": {"name": NAME, "address": {"zip": str}, "email": str, "payment_methods": dict, "orders": list},
}


@dataclass(frozen=True)
class Shop:
    """The tables, each from id to record."""

    products: dict[str, dict]
    orders: dict[str, dict]
    users: dict[str, dict]
    fresh: bool = False  # whether it is one seed's own


class _Ids:
    """Draw unique ids with a fixed number of digits; `order` is the number of digits of a short order's."""

    def __init__(self, rng: Random, short: bool, order: int):
        self.rng, self.short, self.order, self.taken = rng, short, order, set()

    def new(self, prefix: str, digits: int, short: int) -> str:
        count = short if self.short else digits
        while (made := f"{prefix}{self.rng.randrange(10 ** (count - 1), 10**count)}") in self.taken:
            pass
        self.taken.add(made)
        return made


@lru_cache(maxsize=2)
def make_shop(short: bool = False) -> Shop:
    """Return the generated shop. A `short` one has ids of few digits, for models that copy badly."""
    return _drawn(f"tau_retail shop {short}", short, *(SHORT_SIZE if short else SIZE))


@lru_cache(maxsize=16)  # the episodes of a group have one seed
def fresh_shop(short: bool, seed: str) -> Shop:
    """Return a seed's own small shop, with other customers, orders, prices and ids."""
    return _drawn(f"tau_retail shop {short} {seed}", short, *FRESH_SIZE, fresh=True)


def _drawn(source: str, short: bool, customers: int, count: int, fresh: bool = False) -> Shop:
    """Draw a shop with this many customers and orders; `source` seeds it."""
    rng = Random(source)
    ids = _Ids(rng, short, 4 if fresh else 3)  # nine hundred numbers would be too few for many tasks
    products = {}
    for line in PRODUCTS.strip().splitlines():
        product = _product(line, rng, ids)
        products[product["product_id"]] = product
    users = {}
    while len(users) < customers:
        user_id, user = _user(rng, ids)
        users[user_id] = user
    orders = {}
    stock = list(products.values())
    owners = list(users) + rng.sample([name for name in users for _ in range(MOST_ORDERS - 1)], count - customers)
    for owner in owners:
        order = _order(owner, users[owner], stock, rng, ids)
        orders[order["order_id"]] = order
        users[owner]["orders"].append(order["order_id"])
    return Shop(products, orders, users, fresh)


@read_once
def load_shop(folder: str) -> Shop:
    """Return the shop in a folder's users.json, products.json and orders.json. Raise ValueError for bad files."""
    tables = {name: read_json(folder, f"{name}.json", dict) for name in RECORDS}
    for name, table in tables.items():
        for key, record in table.items():
            if not isinstance(record, dict) or not record.keys() >= set(RECORDS[name]):
                raise Refusal(f"data: {key!r} of {folder}/{name}.json must have {', '.join(RECORDS[name])}")
            if place := misfit(record, RECORDS[name]):
                raise Refusal(f"data: {key!r} of {folder}/{name}.json has no such {place} as the original's")
    return Shop(**tables)


def misfit(value: Any, form: Any, name: str = "") -> str:
    """Return the name of the first field of a value that has not its form in RECORDS, or ""."""
    if not isinstance(form, dict):
        return "" if isinstance(value, form) else name
    if not isinstance(value, dict):
        return name
    return next(filter(None, (misfit(value.get(key), inner, key) for key, inner in form.items())), "")


def read_json(folder: str, name: str, kind: type):
    """Return the dict or list in a file of the folder. Raise ValueError if it has none."""
    path = Path(folder, name)
    if not path.is_file():
        raise Refusal(f"data must be a folder with users, products, orders and tasks.json: there is no {path}")
    found = data_files.read_json(path)
    if not isinstance(found, kind) or not found:
        raise Refusal(f"data: {path} must be a {'list' if kind is list else 'table'} that is not empty")
    return found


def new_address(rng: Random) -> dict:
    """Return an address with its keys in the order of the data."""
    city, state, zone = rng.choice(CITIES)
    return {
        "address1": f"{rng.randint(100, 999)} {rng.choice(STREETS.split(', '))}",
        "address2": f"Suite {rng.randint(100, 999)}",
        "city": city,
        "country": "USA",
        "state": state,
        "zip": f"{zone}{rng.randint(0, 99):02}",
    }


def _product(line: str, rng: Random, ids: _Ids) -> dict:
    head, *options = line.split(" | ")
    name, price = head.split(", ")
    pairs = [(key, values.split(", ")) for key, values in (option.split(": ") for option in options)]
    combinations = [{}]
    for key, values in pairs:
        combinations = [{**made, key: value} for made in combinations for value in values]
    variants = {}
    for chosen in rng.sample(combinations, min(len(combinations), rng.randint(11, 14))):
        variant = {
            "item_id": ids.new("", 10, 4),
            "options": chosen,
            "available": rng.random() < 0.75,
            "price": round(float(price) * rng.uniform(0.85, 1.15), 2),
        }
        variants[variant["item_id"]] = variant
    return {"name": name, "product_id": ids.new("", 10, 4), "variants": variants}


def _user(rng: Random, ids: _Ids) -> tuple[str, dict]:
    first, last = rng.choice(FIRST_NAMES.split()), rng.choice(LAST_NAMES.split())
    methods = [
        {
            "source": "credit_card",
            "brand": rng.choice(("visa", "mastercard")),
            "last_four": f"{rng.randrange(10**4):04}",
        },
        {"source": "paypal"},
        {"source": "gift_card", "balance": float(rng.randint(5, 100))},
    ]
    chosen = rng.sample(methods, rng.choice((1, 2, 2, 3)))
    chosen = [{**method, "id": ids.new(f"{method['source']}_", 7, 3)} for method in chosen]
    user = {
        "name": {"first_name": first, "last_name": last},
        "address": new_address(rng),
        "email": f"{first.lower()}.{last.lower()}{rng.randint(1000, 9999)}@example.com",
        "payment_methods": {method["id"]: method for method in chosen},
        "orders": [],
    }
    return ids.new(f"{first}_{last}_".lower(), 4, 2), user


def _order(owner: str, user: dict, stock: list[dict], rng: Random, ids: _Ids) -> dict:
    items = []
    for product in rng.sample(stock, rng.choice((1, 1, 2, 2, 3, 4, 5))):
        variant = rng.choice(list(product["variants"].values()))
        items.append(
            {
                "name": product["name"],
                "product_id": product["product_id"],
                "item_id": variant["item_id"],
                "price": variant["price"],
                "options": variant["options"],
            }
        )
    status = rng.choices(list(STATUSES), list(STATUSES.values()))[0]
    sent = status in ("processed", "delivered")
    parcel = {"tracking_id": [f"{rng.randrange(10**11, 10**12)}"], "item_ids": [item["item_id"] for item in items]}
    amount, method = round(sum(item["price"] for item in items), 2), rng.choice(list(user["payment_methods"]))
    kinds = ("payment", "refund") if status == "cancelled" else ("payment",)
    order = {
        "order_id": ids.new("#W", 7, ids.order),
        "user_id": owner,
        "address": dict(user["address"]),
        "items": items,
        "fulfillments": [parcel] if sent else [],
        "status": status,
        "payment_history": [
            {"transaction_type": kind, "amount": amount, "payment_method_id": method} for kind in kinds
        ],
    }
    return order | ({"cancel_reason": rng.choice(REASONS)} if status == "cancelled" else {})
