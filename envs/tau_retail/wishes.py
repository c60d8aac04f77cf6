"""The templates of customers' wishes.

A wish has the customer's first line, answers to questions, the calls that fulfil it, and the outputs that the agent
must write. A template is a function from a Draw to a Wish, or to None if this customer lacks a needed order or payment
method.
"""

import json
from dataclasses import replace

from envs.tau_retail.database import Database
from envs.tau_retail.shop import REASONS, new_address
from envs.tau_retail.tools import ADDRESS, call
from envs.tau_retail.wish import Draw, Wish


def _swap(item: dict, variant: dict, whole: bool = False) -> str:
    """Describe a variant by the options in which it differs from an item; with `whole`, by all of its options."""
    old = {} if whole else item["options"]
    new = [f"{key} {value}" for key, value in variant["options"].items() if old.get(key) != value]
    return f"the {item['name']} with {' and '.join(new)}"


def cancel(d: Draw) -> Wish | None:
    order = d.order("pending")
    if order is None:
        return None
    name, number, known = d.reference(order)

    def wish(reason: str, says: str, change: Wish | None = None) -> Wish:
        because = "I no longer need it." if reason == REASONS[0] else "I ordered it by mistake."
        calls = (("cancel_pending_order", {"order_id": order["order_id"], "reason": reason}),)
        facts = {"order": number, "reason": because}
        return Wish("cancel", says, facts, known, calls, reads=tuple(d.lookups(order, known)), change=change)

    first, second = d.rng.sample(REASONS, 2)
    change = wish(second, f"Wait, I have to correct myself about the reason: {second}.")
    return wish(first, f"I would like to cancel {name}.", change if _wavers(d) else None)


def _wavers(d: Draw) -> bool:
    """Draw whether the customer changes the wish when asked to confirm it."""
    return d.level == "3" and d.rng.random() < 0.4


def _swaps(d: Draw, kind: str, status: str, tool: str, verb: str) -> Wish | None:
    """Return a wish to get items of an order in other variants."""
    order = d.order(status)
    if order is None:
        return None
    name, number, known = d.reference(order)
    items = d.rng.sample(order["items"], min(len(order["items"]), d.rng.choice((1, 1, 2))))
    pairs = [(item, d.variant(item)) for item in items]
    if not all(variant for _, variant in pairs):
        return None
    reads = d.lookups(order, known)
    reads += [("get_product_details", {"product_id": item["product_id"]}) for item in items]

    def wish(pairs: list, says: str, change: Wish | None = None) -> Wish | None:
        difference = sum(variant["price"] - item["price"] for item, variant in pairs)
        method = d.method(max(difference, 0.0))
        if method is None:
            return None
        arguments = {
            "order_id": order["order_id"],
            "item_ids": [item["item_id"] for item, _ in pairs],
            "new_item_ids": [variant["item_id"] for _, variant in pairs],
            "payment_method_id": method,
        }
        wanted = " and ".join(_swap(item, variant) for item, variant in pairs)
        facts = {"order": number, "items": f"I want {wanted}; what else there is about it stays as it is."}
        facts["payment"] = f"Use my {d.named(method)} for the difference."
        return Wish(kind, says, facts, known, ((tool, arguments),), reads=tuple(reads), change=change)

    change, again = None, d.variant(pairs[0][0])
    if _wavers(d) and again != pairs[0][1]:
        turned = [(pairs[0][0], again), *pairs[1:]]
        change = wish(turned, f"Hold on. I have thought about it: rather {_swap(*turned[0], whole=True)}.")
        if change:  # stated in the first line, so no question is needed
            change = replace(change, says=f"{change.says} {change.facts['payment']}")
    return wish(pairs, f"I would like to {verb} {' and '.join(item['name'] for item in items)} in {name}.", change)


def modify_items(d: Draw) -> Wish | None:
    return _swaps(d, "modify_items", "pending", "modify_pending_order_items", "change the options of the")


def exchange(d: Draw) -> Wish | None:
    return _swaps(d, "exchange", "delivered", "exchange_delivered_order_items", "exchange the")


def exchange_difference(d: Draw) -> Wish | None:
    wish = _swaps(d, "exchange_difference", "delivered", "exchange_delivered_order_items", "exchange the")
    if wish is None:
        return None
    ends = [_with_difference(each, d) for each in (wish, wish.change) if each]
    says = f"{wish.says} And tell me how much the price differs in all."
    return replace(ends[0], says=says, change=ends[1] if wish.change else None)


def _with_difference(wish: Wish, d: Draw) -> Wish:
    """Return a wish to exchange items that also asks for the price difference."""
    name, arguments = wish.calls[0]
    order = json.loads(call(Database(d.shop), name, arguments))
    amount = _amount(abs(order["exchange_price_difference"]))
    return replace(wish, outputs=(amount,), answer=f"The exchange is arranged. The price differs by {amount} dollars.")


def modify_payment(d: Draw) -> Wish | None:
    order = d.order("pending")
    paid = order and order["payment_history"][0]
    method = paid and d.method(paid["amount"], but=paid["payment_method_id"])
    if not method:
        return None
    name, number, known = d.reference(order)
    calls = (("modify_pending_order_payment", {"order_id": order["order_id"], "payment_method_id": method}),)
    facts = {"order": number, "payment": f"I want to pay with my {d.named(method)}."}
    says = f"I would like to pay {name} in another way."
    return Wish("modify_payment", says, facts, known, calls, reads=tuple(d.lookups(order, known)))


def _spoken(address: dict) -> str:
    """Return the customer's words for a new address."""
    return f"The new address is {', '.join(address[line] for line in ADDRESS if line != 'zip')}, zip {address['zip']}."


def order_address(d: Draw) -> Wish | None:
    order = d.order("pending")
    if order is None:
        return None
    name, number, known = d.reference(order)
    reads = tuple(d.lookups(order, known))

    def wish(says: str, change: Wish | None = None) -> Wish:
        address = new_address(d.rng)
        calls = (("modify_pending_order_address", {"order_id": order["order_id"]} | address),)
        return Wish("order_address", says, {"order": number, "address": _spoken(address)}, known, calls, (), reads,
                    change=change)  # fmt: skip

    change = None
    if _wavers(d):
        change = wish("")
        change = replace(change, says=f"No, wait, I gave you the wrong one. {change.facts['address']}")
    return wish(f"Please send {name} to another address.", change)


def user_address(d: Draw) -> Wish | None:
    address = new_address(d.rng)
    calls = (("modify_user_address", {"user_id": d.user_id} | address),)
    reads = (("get_user_details", {"user_id": d.user_id}),)
    says = "I have moved. Please change the default address of my account."
    return Wish("user_address", says, {"address": _spoken(address)}, (), calls, (), reads)


def give_back(d: Draw, whole: bool = False) -> Wish | None:
    """Return a wish to return some or all items."""
    order = d.order("delivered")
    if order is None:
        return None
    name, number, known = d.reference(order)
    original = order["payment_history"][0]["payment_method_id"]
    method = d.rng.choice(sorted({original} | {m for m in d.methods if "gift_card" in m}))
    count = len(order["items"]) if whole else d.rng.randint(1, max(1, len(order["items"]) - 1))
    items = d.rng.sample(order["items"], count)
    arguments = {"order_id": order["order_id"], "item_ids": [item["item_id"] for item in items]}
    arguments["payment_method_id"] = method
    things = "everything" if whole else " and ".join(f"the {item['name']}" for item in items)
    facts = {"order": number, "items": f"I want to return {things}."}
    facts["payment"] = f"Please refund it to my {d.named(method)}."
    reads = tuple(d.lookups(order, known))
    known += ("items",) if whole else ()
    says = f"I would like to return {'everything' if whole else 'something'} from {name}."
    calls = (("return_delivered_order_items", arguments),)
    return Wish("return_all" if whole else "return", says, facts, known, calls, (), reads)


def return_all(d: Draw) -> Wish | None:
    return give_back(d, whole=True)


# -- questions


def _amount(dollars: float) -> str:
    """Return the text that every spelling of an amount contains: 41 for 41.0 and 41.00."""
    return str(dollars).removesuffix(".0")


def paid(d: Draw) -> Wish | None:
    order = d.order("pending", "processed", "delivered")
    if order is None:
        return None
    name, number, known = d.reference(order)
    amount = _amount(order["payment_history"][0]["amount"])
    answer = f"You have paid {amount} dollars for it."
    says = f"How much have I paid for {name}?"
    return Wish("paid", says, {"order": number}, known, (), (amount,), tuple(d.lookups(order, known)), answer)


def tracking(d: Draw) -> Wish | None:
    order = d.order("processed", "delivered")
    if order is None:
        return None
    name, number, known = d.reference(order)
    parcel = order["fulfillments"][0]["tracking_id"][0]
    answer = f"The tracking number is {parcel}."
    says = f"What is the tracking number of {name}?"
    return Wish("tracking", says, {"order": number}, known, (), (parcel,), tuple(d.lookups(order, known)), answer)


def cheapest(d: Draw) -> Wish | None:
    product = d.rng.choice(list(d.shop.products.values()))
    price = _amount(min(v["price"] for v in product["variants"].values() if v["available"]))
    reads = ("list_all_product_types", {}), ("get_product_details", {"product_id": product["product_id"]})
    answer = f"The cheapest one costs {price} dollars."
    says = f"What does the cheapest {product['name']} cost that I can get at the moment?"
    return Wish("cheapest", says, {}, (), (), (price,), reads, answer)


def balance(d: Draw) -> Wish | None:
    card = next((m for m in d.methods.values() if m["source"] == "gift_card"), None)
    if card is None:
        return None
    amount = _amount(card["balance"])
    reads = (("get_user_details", {"user_id": d.user_id}),)
    answer = f"There are {amount} dollars on your gift card."
    return Wish("balance", "How much is left on my gift card?", {}, (), (), (amount,), reads, answer)


# -- wishes that the rules forbid


def _refused(d: Draw, kind: str, order: dict, says: str, why: str, **facts: str) -> Wish:
    """Return a wish about an order that the agent must refuse. `says` has `{}` in place of the order."""
    name, number, known = d.reference(order)
    answer = f"I am sorry, I cannot do that: {why}."
    answers = {"order": number} | facts
    return Wish(kind, says.format(name), answers, known, (), (), tuple(d.lookups(order, known)), answer, refused=True)


def cancel_sent(d: Draw) -> Wish | None:
    order = d.order("processed", "delivered")
    why = order and f"order {order['order_id']} is {order['status']}, and only pending orders can be cancelled"
    return order and _refused(d, "cancel_sent", order, "I would like to cancel {}.", why, reason="I no longer need it.")


def other_reason(d: Draw) -> Wish | None:
    order = d.order("pending")
    why = "we accept only two reasons, no longer needed and ordered by mistake"
    reason = "I found it cheaper elsewhere, and that is the only reason."
    return order and _refused(d, "other_reason", order, "I would like to cancel {}.", why, reason=reason)


def other_product(d: Draw) -> Wish | None:
    order = d.order("pending", "delivered")
    if order is None:
        return None
    old = d.rng.choice(order["items"])["name"]
    new = d.rng.choice([p["name"] for p in d.shop.products.values() if p["name"] != old])
    says, items = f"I would like to swap the {old} in {{}} for a {new}.", f"A {new} instead of the {old}, any will do."
    return _refused(d, "other_product", order, says, "an item can only become another variant of itself", items=items)


def unavailable(d: Draw) -> Wish | None:
    order = d.order("pending", "delivered")
    item = order and d.rng.choice(order["items"])
    variant = item and d.variant(item, available=False)
    if not variant:
        return None
    says, items = f"I would like another {item['name']} in {{}}.", f"I want {_swap(item, variant)}, and no other."
    return _refused(d, "unavailable", order, says, "this variant is not available at the moment", items=items)


def other_method(d: Draw) -> Wish | None:
    order = d.order("delivered")
    original = order and order["payment_history"][0]["payment_method_id"]
    method = order and next((m for m in d.methods if m != original and "gift_card" not in m), None)
    if not method:
        return None
    item = d.rng.choice(order["items"])["name"]
    says = f"I would like to return the {item} from {{}}, with the refund to my {d.named(method)}."
    why = "a refund goes to the payment method of the order or to a gift card"
    fact = f"It has to be my {d.named(method)}, or I keep it."
    return _refused(d, "other_method", order, says, why, items=f"The {item}.", payment=fact)


def poor_gift_card(d: Draw) -> Wish | None:
    order = d.order("pending")
    card = next((m for m in d.methods.values() if m["source"] == "gift_card"), None)
    if order is None or card is None:
        return None
    payments = [d.shop.orders[each]["payment_history"][0] for each in d.user["orders"]]
    refunds = sum(paid["amount"] for paid in payments if paid["payment_method_id"] == card["id"])  # wishes'
    if card["balance"] + refunds >= order["payment_history"][0]["amount"]:
        return None
    says, fact = "I would like to pay {} with my gift card instead.", "With my gift card, nothing else."
    return _refused(d, "poor_gift_card", order, says, "the gift card does not hold enough", payment=fact)


def of_a_friend(d: Draw) -> Wish | None:
    order = d.rng.choice(list(d.shop.orders.values()))
    owner = d.shop.users[order["user_id"]]["name"]
    if order["user_id"] == d.user_id:
        return None
    number = order["order_id"]
    says = f"Could you cancel order {number} for my friend {owner['first_name']} {owner['last_name']}?"
    answer = "I am sorry, I cannot do that: it is the order of another customer."
    facts = {"order": f"The order number is {number}.", "reason": "It is no longer needed."}
    return Wish("of_a_friend", says, facts, ("order",), answer=answer, refused=True)


# -- wishes that no tool can fulfil


def out_of_scope(d: Draw) -> Wish:
    topic = d.topic()
    calls = (("transfer_to_human_agents", {"summary": topic}),)
    return Wish("out_of_scope", f"I need help with something else, namely {topic}.", calls=calls)


WRITING = (
    *(cancel, modify_items, modify_payment, order_address, user_address),
    *(give_back, return_all, exchange, exchange_difference),
)
ASKING = (paid, tracking, cheapest, balance)
FORBIDDEN = (cancel_sent, other_reason, other_product, unavailable, other_method, poor_gift_card, of_a_friend)
