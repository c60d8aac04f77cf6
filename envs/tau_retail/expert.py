"""The expert. It knows the task, but still asks, looks things up, and requests confirmation before each change."""

from envs.tau_retail.customer import Customer
from envs.tau_retail.database import Database
from envs.tau_retail.tasks import Task
from envs.tau_retail.tools import ADDRESS, CHANGING, key
from envs.tau_retail.wish import Wish

ASKS = {
    "identity": "Hello! Please tell me your email, or else your name and zip code.",
    "reason": "What is the reason?",
    "items": "Which items do you mean, and which options would you like?",
    "payment": "Which payment method should be used?",
    "address": "What is the new address?",
}
HUMAN = "transfer_to_human_agents"
ELSE = "Is there anything else that I can do for you?"


def next_action(task: Task, customer: Customer, db: Database, known: bool, done: set[str]) -> tuple[str, dict, str]:
    """Return an expert's next call: tool, arguments and reason.

    known: whether the customer has been looked up. done: the `key` of each successful call.
    """
    if not known:
        return _look_up(task, customer, db)
    wish = customer.wish
    if wish is None:
        return _say(ELSE, "All is done.")
    for name, arguments in () if task.easy else wish.reads:
        if key(name, arguments) not in done:
            return name, arguments, "I look this up."
    missing = [topic for topic in wish.facts if topic not in customer.revealed and topic != "order"]  # already found
    if missing:
        return _say(" ".join(ASKS[topic] for topic in missing), f"I have to ask about: {', '.join(missing)}.")
    if wish.refused:
        return _say(wish.answer, "The rules do not allow this.")
    calls = [each for each in wish.calls if key(*each) not in done]
    if calls and calls[0][0] == HUMAN and customer.unsaid:
        return _say(wish.answer, "I tell the customer, since handing over ends the conversation.")
    if calls and calls[0][0] in CHANGING and not customer.agreed and not task.easy:
        return _say(_proposal(wish), "Before I change anything, the customer has to agree.")
    if calls:
        return *calls[0], "This is what the customer wants."
    return _say(wish.answer or f"That is done. {ELSE}", "I tell the customer.")


def _look_up(task: Task, customer: Customer, db: Database) -> tuple[str, dict, str]:
    why = "First I find out who the customer is."
    if not customer.identified and not task.instruction:
        return _say(ASKS["identity"], why)
    user = db.user(task.user_id)
    if task.by_email:
        return "find_user_id_by_email", {"email": user["email"]}, why
    return "find_user_id_by_name_zip", user["name"] | {"zip": user["address"]["zip"]}, why


def _proposal(wish: Wish) -> str:
    """Return the description of a change for the customer to confirm."""
    return (
        f"This is what I am going to do: {'; '.join(_plain(*each) for each in wish.calls)}. Do you agree (yes or no)?"
    )


def _plain(name: str, arguments: dict) -> str:
    """Return a call in words."""
    order, method = arguments.get("order_id"), arguments.get("payment_method_id")
    items = ", ".join(arguments.get("item_ids", ()))
    new = ", ".join(arguments.get("new_item_ids", ()))
    address = ", ".join(arguments[line] for line in ADDRESS if arguments.get(line))
    return {
        "cancel_pending_order": f"cancel order {order}, reason: {arguments.get('reason')}",
        "modify_pending_order_items": f"change {items} in order {order} to {new}, the difference with {method}",
        "modify_pending_order_payment": f"let {method} pay for order {order}",
        "modify_pending_order_address": f"send order {order} to {address}",
        "modify_user_address": f"change your address to {address}",
        "return_delivered_order_items": f"take back {items} of order {order} and refund {method}",
        "exchange_delivered_order_items": f"exchange {items} of order {order} for {new}, the difference with {method}",
    }.get(name, name)


def _say(text: str, thought: str) -> tuple[str, dict, str]:
    return "respond", {"content": text}, thought
