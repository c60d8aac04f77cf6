"""The database of one episode: a shop and the episode's changes to it."""

import json
from hashlib import sha256

from envs.tau_retail.shop import Shop


class Database:
    """A shop with copy-on-write: an episode changes copies of records, and the shop stays unchanged."""

    def __init__(self, shop: Shop):
        self.shop, self.products = shop, shop.products
        self.copies: dict[str, dict[str, dict]] = {"orders": {}, "users": {}}

    def order(self, order_id: str) -> dict | None:
        """Return an order as it is now; None if there is none with this id."""
        return self.copies["orders"].get(order_id) or self.shop.orders.get(order_id)

    def user(self, user_id: str) -> dict | None:
        """Return a customer's profile as it is now; None if there is none with this id."""
        return self.copies["users"].get(user_id) or self.shop.users.get(user_id)

    def own_order(self, order_id: str) -> dict:
        """Return a writable copy of an order."""
        return self._own("orders", order_id)

    def own_user(self, user_id: str) -> dict:
        """Return a writable copy of a customer's profile."""
        return self._own("users", user_id)

    def changes(self) -> dict[str, str]:
        """Return the records that differ from the shop's, as JSON with sorted keys."""
        texts = {}
        for table, copies in self.copies.items():
            for name, record in copies.items():
                if (text := _text(record)) != _text(getattr(self.shop, table)[name]):
                    texts[f"{table} {name}"] = text
        return texts

    def fingerprint(self) -> str:
        """Return a hash: equal for two databases of one shop if and only if their records are equal."""
        return sha256(_text(self.changes()).encode()).hexdigest()

    def _own(self, table: str, name: str) -> dict:
        if name not in self.copies[table]:
            self.copies[table][name] = _copied(getattr(self.shop, table)[name])
        return self.copies[table][name]


def _text(record: dict) -> str:
    return json.dumps(record, sort_keys=True)


def _copied(value):
    """Return a deep copy of a JSON value."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
