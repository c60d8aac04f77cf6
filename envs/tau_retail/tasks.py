"""Draw retail tasks from the templates of wishes, or read the original's from a file."""

import re
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from envs.common import SPLITS, split_of
from envs.tau_retail.database import Database
from envs.tau_retail.shop import REASONS, Shop, load_shop, make_shop, read_json
from envs.tau_retail.tools import ADDRESS, CHANGING, TOOLS, call, failed
from envs.tau_retail.wish import Draw, Wish
from envs.tau_retail.wishes import ASKING, FORBIDDEN, OUT_OF_SCOPE, WRITING, out_of_scope

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
                raise ValueError(f"task {self.name}: {name} gives {result!r}")
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


def draw_task(level: str, split: str, rng: Random) -> Task:
    """Draw a task of a level."""
    shop, users = make_shop(level == "1"), customers(level == "1")[split]
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
        task = Task(canonical(user_id), user_id, tuple(wishes), mood, not hard or rng.random() < 0.5, level == "1")
        try:
            task.truth(shop)
        except ValueError:  # two wishes that exclude each other, such as on one gift card
            continue
        return task
    raise ValueError(f"no task of level {level} can be drawn for split {split}")


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
    arguments = {"summary": d.rng.choice(OUT_OF_SCOPE)}
    return _said(d, "out_of_scope", "transfer_to_human_agents", arguments, "It is about a {summary}.", "A {summary}.")


# -- the original's tasks


@lru_cache(maxsize=2)
def load_tasks(folder: str) -> dict[str, list[Task]]:
    """Return {split: tasks} of tasks.json. Raise ValueError if it has none, or one cannot be played."""
    shop, tasks = load_shop(folder), {split: [] for split in SPLITS}
    for number, row in enumerate(read_json(folder, "tasks.json", list)):
        try:
            task = _from_row(row)
            task.truth(shop)
            shop.users[task.user_id]["name"]
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"data: task {number} of {folder}/tasks.json cannot be played: {error!r}") from None
        tasks[split_of(task.name)].append(task)
    return tasks


def _from_row(row: dict) -> Task:
    """Return a task of the original as one wish, which the customer states completely at once."""
    calls = tuple((each["name"], dict(each.get("kwargs", each.get("arguments", {})))) for each in row["actions"])
    calls = tuple(each for each in calls if each[0] != "respond")
    if unknown := next((name for name, _ in calls if name not in TOOLS), None):
        raise ValueError(f"unknown tool {unknown}")
    outputs = tuple(map(str, row.get("outputs") or ()))
    answer = "I can tell you: " + ", ".join(outputs) if outputs else "I am sorry, I cannot do that."
    opening = first_person(row["instruction"])
    facts = _facts(calls)
    refused = not outputs and not any(name in CHANGING for name, _ in calls)
    wish = Wish("original", opening, facts, tuple(facts), calls, outputs, (), answer, refused)
    name = f"{canonical(row['user_id'])}:{row['instruction']}"
    return Task(name, row["user_id"], (wish,), by_email=False, opening=opening, instruction=row["instruction"])


def _facts(calls: tuple[tuple[str, dict], ...]) -> dict[str, str]:
    """Return the facts that the calls need, in the customer's words."""
    found: dict[str, list[str]] = {"order": [], "reason": [], "items": [], "payment": [], "address": []}
    for _, arguments in calls:
        found["order"] += [arguments["order_id"]] if "order_id" in arguments else []
        found["reason"] += [arguments["reason"]] if "reason" in arguments else []
        new = arguments.get("new_item_ids", [])
        items = arguments.get("item_ids", [])
        found["items"] += [f"{a} for {b}" for a, b in zip(items, new, strict=True)] if new else items
        found["payment"] += [arguments["payment_method_id"]] if "payment_method_id" in arguments else []
        lines = [arguments[line] for line in ADDRESS if arguments.get(line)]
        found["address"] += [", ".join(lines)] if "address1" in arguments else []
    return {topic: f"It is {', '.join(dict.fromkeys(said))}." for topic, said in found.items() if said}


PERSONS = {"you are": "I am", "you're": "I'm", "you": "I", "your": "my", "yours": "mine", "yourself": "myself"}
SECOND = re.compile(r"\b(you are|you're|yourself|yours|your|you)\b", re.IGNORECASE)


def first_person(instruction: str) -> str:
    """Return an instruction to a customer in the first person: your order -> my order."""
    said = SECOND.sub(lambda found: PERSONS[found[0].lower()], instruction)
    return re.sub(r"(^|[.!?] )([a-z])", lambda found: found[1] + found[2].upper(), said)
