"""The sixteen tools of the agent, with the original's order of checks, messages and arithmetic.

`call` executes a tool by its name. A result is a string: the record read or changed as JSON, or a line that begins with
`Error: `.
"""

import json
from collections.abc import Callable
from inspect import signature

from envs.tau_retail.calculator import evaluate
from envs.tau_retail.database import Database
from envs.tau_retail.shop import REASONS

MAX_ERROR = 300  # most characters of an error
ADDRESS = ("address1", "address2", "city", "state", "country", "zip")


def call(db: Database, name: str, arguments: dict) -> str:
    """Execute a tool by its name. Return its result, or an error in the original's words."""
    if name not in TOOLS:
        result = f"Unknown action {name}"
    elif wrong := misfit(name, arguments):
        result = f"Error: {wrong}"
    else:
        try:
            result = TOOLS[name](db, **arguments)
        except Exception as error:  # arguments of a wrong type: the original replies with Python's message
            result = f"Error: {error}"
    return whole(result[:MAX_ERROR]) if failed(result) else result


def key(name: str, arguments: dict) -> str:
    """Return a call as one string, equal for equal calls."""
    return f"{name} {json.dumps(arguments, sort_keys=True)}"


def whole(text: str) -> str:
    """Return a text without lone surrogates, which JSON can contain but UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def failed(result: str) -> bool:
    """Return whether a tool's result is an error."""
    return result.startswith(("Error: ", "Unknown action "))


# -- tools that read


def calculate(db: Database, expression: str) -> str:
    return evaluate(expression)


def find_user_id_by_email(db: Database, email: str) -> str:
    wanted = email.lower()
    return next((name for name, user in _users(db) if user["email"].lower() == wanted), "Error: user not found")


def find_user_id_by_name_zip(db: Database, first_name: str, last_name: str, zip: str) -> str:
    wanted = first_name.lower(), last_name.lower()
    for user_id, user in _users(db):
        name = user["name"]
        if user["address"]["zip"] == zip and (name["first_name"].lower(), name["last_name"].lower()) == wanted:
            return user_id
    return "Error: user not found"


def get_order_details(db: Database, order_id: str) -> str:
    order = db.order(order_id)
    return "Error: order not found" if order is None else json.dumps(order)


def get_product_details(db: Database, product_id: str) -> str:
    product = db.products.get(product_id)
    return "Error: product not found" if product is None else json.dumps(product)


def get_user_details(db: Database, user_id: str) -> str:
    user = db.user(user_id)
    return "Error: user not found" if user is None else json.dumps(user)


def list_all_product_types(db: Database) -> str:
    return json.dumps(dict(sorted((product["name"], product["product_id"]) for product in db.products.values())))


def think(db: Database, thought: str) -> str:
    return ""


def transfer_to_human_agents(db: Database, summary: str) -> str:
    return "Transfer successful"


# -- tools that write


def cancel_pending_order(db: Database, order_id: str, reason: str) -> str:
    order = db.order(order_id)
    if error := _not_in(order, "pending", "cancelled"):
        return error
    if reason not in REASONS:
        return "Error: invalid reason"
    order = db.own_order(order_id)
    refunds = [_entry("refund", paid["amount"], paid["payment_method_id"]) for paid in order["payment_history"]]
    for refund in refunds:
        if "gift_card" in refund["payment_method_id"]:
            _credit(db, order, refund["payment_method_id"], refund["amount"])
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    order["payment_history"] += refunds
    return json.dumps(order)


def modify_pending_order_address(
    db: Database, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> str:
    order = db.order(order_id)
    if error := _not_in(order, "pending", "modified"):
        return error
    order = db.own_order(order_id)
    order["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(order)


def modify_pending_order_items(
    db: Database, order_id: str, item_ids: list, new_item_ids: list, payment_method_id: str
) -> str:
    order = db.order(order_id)
    if error := _not_in(order, "pending", "modified"):
        return error
    difference = _difference(db, order, item_ids, new_item_ids)  # unrounded, as in the original's history
    if isinstance(difference, str):
        return difference
    method = db.user(order["user_id"])["payment_methods"].get(payment_method_id)
    if error := _cannot_pay(method, difference, "the new item"):
        return error
    order = db.own_order(order_id)
    kind = "payment" if difference > 0 else "refund"
    order["payment_history"].append(_entry(kind, abs(difference), payment_method_id))
    if method["source"] == "gift_card":
        _credit(db, order, payment_method_id, -difference)
    for item_id, new_id in zip(item_ids, new_item_ids, strict=True):
        item = _item(order, item_id)
        variant = db.products[item["product_id"]]["variants"][new_id]
        item.update(item_id=new_id, price=variant["price"], options=variant["options"])
    order["status"] = "pending (item modified)"
    return json.dumps(order)


def modify_pending_order_payment(db: Database, order_id: str, payment_method_id: str) -> str:
    order = db.order(order_id)
    if error := _not_in(order, "pending", "modified"):
        return error
    method = db.user(order["user_id"])["payment_methods"].get(payment_method_id)
    if method is None:
        return "Error: payment method not found"
    first = order["payment_history"][0]
    if len(order["payment_history"]) > 1 or first["transaction_type"] != "payment":
        return "Error: there should be exactly one payment for a pending order"
    former, amount = first["payment_method_id"], first["amount"]
    if former == payment_method_id:
        return "Error: the new payment method should be different from the current one"
    if method["source"] == "gift_card" and method["balance"] < amount:
        return "Error: insufficient gift card balance to pay for the order"
    order = db.own_order(order_id)
    order["payment_history"] += [_entry("payment", amount, payment_method_id), _entry("refund", amount, former)]
    if method["source"] == "gift_card":
        _credit(db, order, payment_method_id, -amount)
    if "gift_card" in former:
        _credit(db, order, former, amount)
    return json.dumps(order)


def modify_user_address(
    db: Database, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
) -> str:
    if db.user(user_id) is None:
        return "Error: user not found"
    user = db.own_user(user_id)
    user["address"] = _address(address1, address2, city, state, country, zip)
    return json.dumps(user)


def exchange_delivered_order_items(
    db: Database, order_id: str, item_ids: list, new_item_ids: list, payment_method_id: str
) -> str:
    order = db.order(order_id)
    if error := _not_in(order, "delivered", "exchanged"):
        return error
    difference = _difference(db, order, item_ids, new_item_ids)
    if isinstance(difference, str):
        return difference
    difference = round(difference, 2)
    method = db.user(order["user_id"])["payment_methods"].get(payment_method_id)
    if error := _cannot_pay(method, difference, "the price difference"):
        return error
    order = db.own_order(order_id)
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return json.dumps(order)


def return_delivered_order_items(db: Database, order_id: str, item_ids: list, payment_method_id: str) -> str:
    order = db.order(order_id)
    if error := _not_in(order, "delivered", "returned"):
        return error
    if payment_method_id not in db.user(order["user_id"])["payment_methods"]:
        return "Error: payment method not found"
    if "gift_card" not in payment_method_id and payment_method_id != order["payment_history"][0]["payment_method_id"]:
        return "Error: payment method should be either the original payment method or a gift card"
    if _surplus(order, item_ids):
        return "Error: some item not found"
    order = db.own_order(order_id)
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return json.dumps(order)


# -- shared helpers


def _not_in(order: dict | None, status: str, verb: str) -> str:
    """Return the error for an order that does not exist or is in another status; "" if it is in this one."""
    if order is None:
        return "Error: order not found"
    return "" if order["status"] == status else f"Error: non-{status} order cannot be {verb}"


def _cannot_pay(method: dict | None, amount: float, what: str) -> str:
    """Return the error for a payment method that does not exist or does not cover an amount; "" if it does."""
    if method is None:
        return "Error: payment method not found"
    poor = method["source"] == "gift_card" and method["balance"] < amount
    return f"Error: insufficient gift card balance to pay for {what}" if poor else ""


def _address(*lines: str) -> dict:
    return dict(zip(ADDRESS, lines, strict=True))


def _users(db: Database):
    """Yield each customer's id and profile, in the shop's order."""
    return ((name, db.copies["users"].get(name, user)) for name, user in db.shop.users.items())


def _entry(kind: str, amount: float, method: str) -> dict:
    """Return an entry of an order's payment history."""
    return {"transaction_type": kind, "amount": amount, "payment_method_id": method}


def _credit(db: Database, order: dict, method: str, amount: float) -> None:
    """Add an amount to a gift card of the order's customer."""
    card = db.own_user(order["user_id"])["payment_methods"][method]
    card["balance"] = round(card["balance"] + amount, 2)


def _item(order: dict, item_id: str) -> dict:
    """Return the first item of an order with this id."""
    return next(item for item in order["items"] if item["item_id"] == item_id)


def _surplus(order: dict, item_ids: list) -> list:
    """Return the first item that is listed more often than it was ordered, alone in a list; [] if there is none."""
    ordered = [item["item_id"] for item in order["items"]]
    return next(([item_id] for item_id in item_ids if item_ids.count(item_id) > ordered.count(item_id)), [])


def _difference(db: Database, order: dict, item_ids: list, new_item_ids: list) -> float | str:
    """Return the price difference, summed as floats in the items' order; if it has none, the error."""
    if missing := _surplus(order, item_ids):
        return f"Error: {missing[0]} not found"
    if len(item_ids) != len(new_item_ids):
        return "Error: the number of items to be exchanged should match"
    difference = 0
    for item_id, new_id in zip(item_ids, new_item_ids, strict=True):
        item = _item(order, item_id)
        variant = db.products[item["product_id"]]["variants"].get(new_id)
        if not (variant and variant["available"]):
            return f"Error: new item {new_id} not found or available"
        difference += variant["price"] - item["price"]
    return difference


def misfit(name: str, arguments: dict) -> str:
    """Return Python's message about unexpected or missing arguments of a tool; "" if they fit."""
    called = name.title().replace("_", "") + ".invoke()"
    wanted = PARAMETERS[name]
    foreign = next((key for key in arguments if key not in wanted), None)
    if foreign is not None:
        return f"{called} got an unexpected keyword argument '{foreign}'"
    missing = [repr(key) for key in wanted if key not in arguments]
    if not missing:
        return ""
    listed = ", ".join(missing[:-1]) + ("," if len(missing) > 2 else "") + " and " if len(missing) > 1 else ""
    plural = "s" if len(missing) > 1 else ""
    return f"{called} missing {len(missing)} required positional argument{plural}: {listed}{missing[-1]}"


WRITES = (
    *(cancel_pending_order, exchange_delivered_order_items, modify_pending_order_address, modify_pending_order_items),
    *(modify_pending_order_payment, modify_user_address, return_delivered_order_items),
)
READS = (
    *(calculate, find_user_id_by_email, find_user_id_by_name_zip, get_order_details, get_product_details),
    *(get_user_details, list_all_product_types, think, transfer_to_human_agents),
)
TOOLS: dict[str, Callable] = {tool.__name__: tool for tool in sorted(WRITES + READS, key=lambda tool: tool.__name__)}
CHANGING = {tool.__name__ for tool in WRITES}
PARAMETERS = {name: list(signature(tool).parameters)[1:] for name, tool in TOOLS.items()}
