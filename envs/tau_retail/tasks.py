"""Draw retail tasks from the templates of wishes."""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

from envs.common import SPLITS, split_of
from envs.refusal import Refusal
from envs.tau_retail.database import Database
from envs.tau_retail.shop import REASONS, Shop, make_shop
from envs.tau_retail.tools import call, failed
from envs.tau_retail.wish import Draw, Wish
from envs.tau_retail.wishes import ASKING, FORBIDDEN, WRITING, out_of_scope

MOODS = ("plain", "brisk", "friendly", "annoyed", "unsure", "talkative")  # moods at level 3; see customer.MOODS
TRIES = 2000  # draws before a plan counts as impossible


@dataclass(frozen=True)
class Task:
    """A customer with all wishes."""

    name: str  # the canonical task
    user_id: str
    wishes: tuple[Wish, ...]
    mood: str = "plain"
    by_email: bool = True  # whether the customer knows the account's email address; else name and zip code
    easy: bool = False  # whether the customer is identified already and leaves after the first change
    opening: str = ""  # the first line; "": made from the first wish
    instruction: str = ""  # the original's instruction to the customer model, if any

    @property
    def calls(self) -> list[tuple[str, dict]]:
        """The calls that fulfil every wish in its final form."""
        return [each for wish in self.wishes for each in (wish.change or wish).calls]

    @property
    def outputs(self) -> list[str]:
        """The texts that the agent must write for every wish in its final form."""
        return [text for wish in self.wishes for text in (wish.change or wish).outputs]

    def truth(self, shop: Shop) -> Database:
        """Return the right final database. Raise ValueError if a call fails."""
        db = Database(shop)
        for name, arguments in self.calls:
            if failed(result := call(db, name, arguments)):
                raise Refusal(f"task {self.name}: {name} gives {result!r}")
        return db


def canonical(user_id: str) -> str:
    """Return the canonical task: the customer alone, so that customers of test tasks never appear in training."""
    return f"tau_retail:{user_id}"


@lru_cache(maxsize=2)
def customers(short: bool) -> dict[str, list[str]]:
    """Return {split: customers}."""
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for user_id in make_shop(short).users:
        names[split_of(canonical(user_id))].append(user_id)
    return names


def canonical_fresh(user_id: str, wishes: list[Wish]) -> str:
    """Return the canonical task in a fresh shop: the customer, and what each wish needs or else says."""
    ends = [end for wish in wishes for end in (wish, wish.change) if end]
    return (
        f"{canonical(user_id)}: {[(end.calls, end.outputs) if end.calls or end.outputs else end.says for end in ends]}"
    )


def draw_task(level: str, split: str, rng: Random, fresh: Shop | None = None) -> Task:
    """Draw a task of a level in the generated shop, or in a fresh one."""
    shop = fresh or make_shop(level == "1")
    users = list(fresh.users) if fresh else customers(level == "1")[split]
    for attempt in range(TRIES):
        if attempt % 50 == 0:  # perhaps no customer has all the orders that the last plan needs
            drawn = _easy_plan(rng) if level == "1" else _plan(level, rng)
        user_id = rng.choice(users)
        draw = Draw(shop, user_id, rng, level)
        wishes = [template(draw) for template in drawn]
        if None in wishes:
            continue
        hard = level == "3"
        mood = rng.choice(MOODS) if hard else "plain"
        hidden = level == "1"  # an agent that need not look the customer up does not see who it is
        name = canonical_fresh("" if hidden else user_id, wishes) if fresh else canonical(user_id)
        if fresh and split_of(name) != split:
            continue
        task = Task(name, user_id, tuple(wishes), mood, not hard or rng.random() < 0.5, level == "1")
        try:
            task.truth(shop)
        except ValueError:  # two wishes that exclude each other, such as on one gift card
            continue
        return task
    raise Refusal(f"no task of level {level} can be drawn for split {split}")


def _plan(level: str, rng: Random) -> list:
    """Draw the templates of a task: at least one feasible wish; a transfer to a human agent comes last."""
    plan = [rng.choice(WRITING if rng.random() < 0.75 else ASKING)]
    if level == "3" and rng.random() < 0.5:
        second = rng.choice([template for template in WRITING + ASKING if template is not plan[0]])
        plan.insert(0 if second in ASKING else 1, second)  # questions first: changes could change their answers
    if rng.random() < (0.4 if level == "3" else 0.25):
        plan.insert(rng.randint(0, len(plan)), rng.choice(FORBIDDEN))
    return [*plan, out_of_scope] if rng.random() < 0.15 else plan


# -- level 1: the first line says everything


def _easy_plan(rng: Random) -> list:
    """Draw the only template of a task of level 1."""
    return [rng.choice((_cancel_now, _cancel_now, _pay_now, _return_now, _swap_now, _transfer_now))]


def _said(d: Draw, kind: str, tool: str, arguments: dict, *phrases: str) -> Wish:
    """Return a wish for one call, stated in one of the phrases with the call's arguments."""
    words = {"order": arguments.get("order_id"), "payment": arguments.get("payment_method_id")} | arguments
    return Wish(kind, d.rng.choice(phrases).format(**words), calls=((tool, arguments),))


def _cancel_now(d: Draw) -> Wish | None:
    order = d.order("pending")
    reason = d.rng.choice(REASONS)
    arguments = order and {"order_id": order["order_id"], "reason": reason}
    phrases = "Cancel order {order}, {reason}.", "Please cancel {order}. It is {reason}."
    return order and _said(d, "cancel", "cancel_pending_order", arguments, *phrases)


def _pay_now(d: Draw) -> Wish | None:
    order = d.order("pending")
    paid = order and order["payment_history"][0]
    method = paid and d.method(paid["amount"], but=paid["payment_method_id"])
    arguments = method and {"order_id": order["order_id"], "payment_method_id": method}
    phrases = "Pay order {order} with {payment}.", "Please let {payment} pay for {order}."
    return _said(d, "modify_payment", "modify_pending_order_payment", arguments, *phrases) if method else None


def _return_now(d: Draw) -> Wish | None:
    order = d.order("delivered")
    if order is None:
        return None
    item, paid = d.rng.choice(order["items"])["item_id"], order["payment_history"][0]["payment_method_id"]
    arguments = {"order_id": order["order_id"], "item_ids": [item], "payment_method_id": paid}
    phrases = (
        "Return item {item_ids[0]} of order {order} to {payment}.",
        "Send {item_ids[0]} of {order} back, {payment}.",
    )
    return _said(d, "return", "return_delivered_order_items", arguments, *phrases)


def _swap_now(d: Draw) -> Wish | None:
    order = d.order("delivered", "pending")
    item = order and d.rng.choice(order["items"])
    variant = item and d.variant(item)
    method = variant and d.method(max(variant["price"] - item["price"], 0.0))
    if not method:
        return None
    arguments = {"order_id": order["order_id"], "item_ids": [item["item_id"]], "new_item_ids": [variant["item_id"]]}
    arguments["payment_method_id"] = method
    if order["status"] == "pending":
        says = "Change item {item_ids[0]} of order {order} to {new_item_ids[0]}, {payment}."
        return _said(d, "modify_items", "modify_pending_order_items", arguments, says)
    says = "Exchange item {item_ids[0]} of order {order} for {new_item_ids[0]}, {payment}."
    return _said(d, "exchange", "exchange_delivered_order_items", arguments, says)


def _transfer_now(d: Draw) -> Wish:
    arguments = {"summary": d.topic()}
    return _said(d, "out_of_scope", "transfer_to_human_agents", arguments, "It is about a {summary}.", "A {summary}.")
