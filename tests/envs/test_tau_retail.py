"""Retail: the tools' checks, messages and sums, the shop, the customers, the reward, and the original's files."""

import json
import re
from collections import Counter
from copy import deepcopy
from pathlib import Path
from random import Random

import golden
import pytest
from cases import cases
from conftest import no_hang
from experts import expert
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.common import SPLITS, split_of
from envs.requests import Result
from envs.tau_retail import MAX_ACTION, Config, Env, _from_line, _line
from envs.tau_retail.customer import MOODS, STOP, Customer
from envs.tau_retail.database import Database
from envs.tau_retail.original import first_person, load_tasks
from envs.tau_retail.policy import DESCRIPTIONS, NATIVE, schema
from envs.tau_retail.shop import Shop, make_shop
from envs.tau_retail.tasks import MOODS as MOOD_NAMES
from envs.tau_retail.tasks import Task, draw_task
from envs.tau_retail.tools import CHANGING, PARAMETERS, TOOLS, call, failed
from envs.tau_retail.wish import Draw, Wish
from envs.tau_retail.wishes import ASKING, FORBIDDEN, WRITING

CASES = cases("tau_retail")
ERRORS = CASES["errors"]
FAILING = CASES["failing"]
WAVERING = CASES["wavering"]

LEVELS = ("1", "2", "3")
PLACE = {"address1": "1 Ash Street", "address2": "", "city": "Reno", "country": "USA", "state": "NV", "zip": "89501"}
NEW = {"address1": "2 Ivy Street", "address2": "B", "city": "Boise", "state": "ID", "country": "USA", "zip": "83701"}


def item(item_id: str, price: float, product_id: str = "11", name: str = "Lamp") -> dict:
    options = {"id": item_id}
    return {"name": name, "product_id": product_id, "item_id": item_id, "price": price, "options": options}


def order(order_id: str, status: str, items: list, method: str, amount: float) -> dict:
    paid = {"transaction_type": "payment", "amount": amount, "payment_method_id": method}
    head = {"order_id": order_id, "user_id": "ada_berg_1", "address": dict(PLACE), "items": items}
    return head | {"fulfillments": [], "status": status, "payment_history": [paid]}


def toy() -> Shop:
    """Return a shop of one customer, with prices and balances chosen for the tests."""
    prices = {"21": 10.1, "22": 10.4, "23": 99.0, "24": 10.2, "25": 3.0}
    variants = {
        name: {"item_id": name, "options": {"id": name}, "available": name != "24", "price": price}
        for name, price in prices.items()
    }
    products = {
        "11": {"name": "Lamp", "product_id": "11", "variants": variants},
        "12": {
            "name": "Mat",
            "product_id": "12",
            "variants": {"31": {"item_id": "31", "options": {}, "available": True, "price": 5.0}},
        },
    }
    pair = [item("21", 10.1), item("31", 5.0, "12", "Mat")]
    orders = [
        order("#W1", "pending", deepcopy(pair), "gift_card_1", 15.1),
        order("#W2", "delivered", [*deepcopy(pair), item("21", 10.1)], "paypal_1", 25.2),
        order("#W3", "processed", deepcopy(pair), "credit_card_1", 15.1),
        order("#W4", "pending", deepcopy(pair), "paypal_1", 500.0),
        order("#W5", "pending", deepcopy(pair), "paypal_1", 20.0),
    ]
    methods = {
        "credit_card_1": {"source": "credit_card", "brand": "visa", "last_four": "1234", "id": "credit_card_1"},
        "gift_card_1": {"source": "gift_card", "balance": 50.3, "id": "gift_card_1"},
        "paypal_1": {"source": "paypal", "id": "paypal_1"},
    }
    user = {
        "name": {"first_name": "Ada", "last_name": "Berg"},
        "address": dict(PLACE),
        "email": "Ada.Berg1@example.com",
    }
    user |= {"payment_methods": methods, "orders": [each["order_id"] for each in orders]}
    return Shop(products, {each["order_id"]: each for each in orders}, {"ada_berg_1": user})


def lines(text: str) -> list[tuple[str, str]]:
    """Return (call, result) of each line `tool arguments -> result`."""
    pairs = [line.strip().split(" -> ") for line in text.strip().splitlines()]
    return [(action, result) for action, result in pairs]


@pytest.mark.parametrize(("action", "message"), ERRORS)
def test_tools_check_in_the_originals_order(action, message):
    """A call with several errors reports the first and changes nothing."""
    db = Database(toy())
    name, arguments, _ = _from_line(action)
    assert call(db, name, arguments) == message and failed(message)
    assert db.changes() == {} and db.shop == toy()


@pytest.mark.parametrize(("name", "arguments", "message"), CASES["wrong arguments"])
def test_messages_for_wrong_arguments(name, arguments, message):
    swapped = {"order_id": "#W2", "item_ids": "21", "new_item_ids": "22", "payment_method_id": "paypal_1"}
    assert call(Database(toy()), name, swapped if arguments is None else arguments) == message


@pytest.mark.parametrize(("name", "arguments", "message"), CASES["items without ids"])
def test_an_item_without_id_is_missing(name, arguments, message):
    """A null among the items is an item that the order does not have, as in the original."""
    db = Database(toy())
    assert call(db, name, arguments | {"item_ids": [None], "payment_method_id": "paypal_1"}) == message
    assert db.changes() == {}


@pytest.mark.parametrize(("expression", "result"), CASES["sums"])
def test_calculate(expression, result):
    assert call(Database(toy()), "calculate", {"expression": expression}) == result


def test_reading():
    db = Database(toy())
    assert call(db, "find_user_id_by_email", {"email": "ADA.berg1@Example.com"}) == "ada_berg_1"
    assert (
        call(db, "find_user_id_by_name_zip", {"first_name": "aDA", "last_name": "BERG", "zip": "89501"}) == "ada_berg_1"
    )
    assert call(db, "list_all_product_types", {}) == '{"Lamp": "11", "Mat": "12"}'
    assert call(db, "get_order_details", {"order_id": "#W1"}) == json.dumps(toy().orders["#W1"])
    assert call(db, "get_product_details", {"product_id": "12"}) == json.dumps(toy().products["12"])
    assert call(db, "get_user_details", {"user_id": "ada_berg_1"}) == json.dumps(toy().users["ada_berg_1"])
    assert call(db, "think", {"thought": "hm"}) == ""
    assert call(db, "transfer_to_human_agents", {"summary": "hm"}) == "Transfer successful"
    assert db.changes() == {}


def after(*actions: str) -> tuple[Database, dict]:
    """Return the database after actions in the short form, and the result of the last action."""
    db = Database(toy())
    for action in actions:
        name, arguments, _ = _from_line(action)
        result = call(db, name, arguments)
        assert not failed(result), result
    return db, json.loads(result)


def card(db: Database) -> float:
    return db.user("ada_berg_1")["payment_methods"]["gift_card_1"]["balance"]


def test_cancelling_refunds_a_gift_card_at_once():
    db, result = after("cancel_pending_order #W1 ordered by mistake")
    refund = {"transaction_type": "refund", "amount": 15.1, "payment_method_id": "gift_card_1"}
    former = toy().orders["#W1"]
    history = [*former["payment_history"], refund]
    wanted = former | {"status": "cancelled", "payment_history": history, "cancel_reason": "ordered by mistake"}
    assert result == wanted == db.order("#W1") and list(result) == list(wanted)
    assert card(db) == 65.4 and set(db.changes()) == {"orders #W1", "users ada_berg_1"}
    assert set(after("cancel_pending_order #W4 no longer needed")[0].changes()) == {"orders #W4"}


def test_modifying_items_keeps_rounding_errors():
    db, result = after("modify_pending_order_items #W1 21 22 gift_card_1")
    entry = {"transaction_type": "payment", "amount": 10.4 - 10.1, "payment_method_id": "gift_card_1"}
    assert result["payment_history"][1] == entry and entry["amount"] == 0.3000000000000007
    assert result["items"][0] == item("22", 10.4) and result["status"] == "pending (item modified)"
    assert card(db) == 50.0
    refunded = after("modify_pending_order_items #W1 21 25 paypal_1")[1]["payment_history"][1]
    assert (refunded["transaction_type"], refunded["amount"]) == ("refund", abs(3.0 - 10.1))
    again = {"order_id": "#W1", "item_ids": ["22"], "new_item_ids": ["21"], "payment_method_id": "paypal_1"}
    assert call(db, "modify_pending_order_items", again) == "Error: non-pending order cannot be modified"


def test_modifying_the_payment():
    db, result = after("modify_pending_order_payment #W1 paypal_1")
    kinds = [(entry["transaction_type"], entry["payment_method_id"]) for entry in result["payment_history"]]
    assert kinds == [("payment", "gift_card_1"), ("payment", "paypal_1"), ("refund", "gift_card_1")]
    assert result["status"] == "pending" and card(db) == 65.4
    more = {"order_id": "#W1", "payment_method_id": "credit_card_1"}
    message = "Error: there should be exactly one payment for a pending order"
    assert call(db, "modify_pending_order_payment", more) == message
    assert card(after("modify_pending_order_payment #W5 gift_card_1")[0]) == 30.3


def test_exchanging_rounds_and_leaves_the_balance():
    db, result = after("exchange_delivered_order_items #W2 31,21,21 31,25,22 gift_card_1")
    assert result["exchange_items"] == ["21", "21", "31"] and result["exchange_new_items"] == ["22", "25", "31"]
    assert result["exchange_price_difference"] == -6.8 and result["exchange_payment_method_id"] == "gift_card_1"
    assert result["status"] == "exchange requested" and card(db) == 50.3
    assert result["items"] == toy().orders["#W2"]["items"]


def test_returning():
    db, result = after("return_delivered_order_items #W2 31,21 gift_card_1")
    added = {"return_items": ["21", "31"], "return_payment_method_id": "gift_card_1"}
    assert result == toy().orders["#W2"] | {"status": "return requested"} | added
    assert set(db.changes()) == {"orders #W2"}


def test_addresses():
    words = "; ".join(NEW.values())
    db, result = after(f"modify_pending_order_address #W1; {words}", f"modify_user_address ada_berg_1; {words}")
    assert result["address"] == db.order("#W1")["address"] == NEW
    assert (
        call(db, "find_user_id_by_name_zip", {"first_name": "Ada", "last_name": "Berg", "zip": "83701"}) == "ada_berg_1"
    )


def test_fingerprint_covers_all_records():
    """The original hashes the whole database; both tell the same databases apart."""
    actions = [
        action
        for action, _ in lines("""
        cancel_pending_order #W1 ordered by mistake -> x
        cancel_pending_order #W4 no longer needed -> x
        return_delivered_order_items #W2 21 paypal_1 -> x
        modify_user_address ada_berg_1; 1 Ash Street; ; Reno; NV; USA; 89501 -> x""")
    ]
    seen: dict[str, str] = {}
    rng = Random(0)
    for _ in range(60):
        db, shop = Database(toy()), toy()
        for action in rng.sample(actions, rng.randint(0, 4)):
            name, arguments, _ = _from_line(action)
            call(db, name, arguments)
        whole = json.dumps(
            [{**shop.orders, **db.copies["orders"]}, {**shop.users, **db.copies["users"]}], sort_keys=True
        )
        assert seen.setdefault(whole, db.fingerprint()) == db.fingerprint()
    assert len(seen) == 8 == len(set(seen.values()))  # the address is what it was


# -- the shop


@pytest.mark.all_only
@pytest.mark.parametrize("short", [False, True])
def test_shop_is_as_large_as_the_original(short):
    shop = make_shop(short)
    variants = [v for product in shop.products.values() for v in product["variants"].values()]
    assert len(shop.products) == 50 and len(variants) >= 591 and {v["available"] for v in variants} == {True, False}
    assert (len(shop.users), len(shop.orders)) == ((400, 700) if short else (500, 1000))
    assert {each["status"] for each in shop.orders.values()} == {"pending", "delivered", "processed", "cancelled"}
    for product in shop.products.values():
        chosen = [json.dumps(v["options"]) for v in product["variants"].values()]
        assert len(chosen) == len(set(chosen)) >= 8
    names = {(json.dumps(user["name"]), user["address"]["zip"]) for user in shop.users.values()}
    assert len(names) == len({user["email"] for user in shop.users.values()}) == len(shop.users)
    for order_id, each in shop.orders.items():
        assert order_id in shop.users[each["user_id"]]["orders"]
        first = each["payment_history"][0]
        assert first["amount"] == round(sum(one["price"] for one in each["items"]), 2)
        assert first["payment_method_id"] in shop.users[each["user_id"]]["payment_methods"]
        assert bool(each["fulfillments"]) == (each["status"] in ("processed", "delivered"))


def test_the_layout_of_the_records():
    shop = make_shop()
    one = next(iter(shop.orders.values()))
    assert " ".join(list(one)[:7]) == "order_id user_id address items fulfillments status payment_history"
    assert " ".join(one["items"][0]) == "name product_id item_id price options"
    assert " ".join(one["address"]) == "address1 address2 city country state zip"
    user_id, user = next(iter(shop.users.items()))
    assert " ".join(user) == "name address email payment_methods orders"
    assert user_id.rpartition("_")[0] == " ".join(user["name"].values()).lower().replace(" ", "_")
    assert len(one["order_id"]) == 9 and len(one["items"][0]["item_id"]) == 10


@pytest.mark.all_only
def test_episodes_do_not_write_to_the_shop():
    before = json.dumps([make_shop(short).orders for short in (False, True)])
    for level in LEVELS:
        solve(level, "short", range(20))
    assert json.dumps([make_shop(short).orders for short in (False, True)]) == before


# -- tasks


@pytest.mark.all_only
def test_every_template_is_drawn():
    kinds = Counter(wish.kind for seed in range(400) for wish in draw_task("3", "train", Random(seed)).wishes)
    assert len(WRITING) + len(ASKING) + len(FORBIDDEN) + 1 == len(kinds) == 21 and min(kinds.values()) > 2
    easy = Counter(draw_task("1", "train", Random(seed)).wishes[0].kind for seed in range(200))
    assert set(easy) == {"cancel", "modify_payment", "return", "modify_items", "exchange", "out_of_scope"}


@pytest.mark.all_only
def test_refused_wishes_cannot_be_fulfilled():
    """No tool would do it, or only the rules forbid the wish."""
    tried = Counter()
    for seed in range(1500):
        draw = Draw(make_shop(), Random(seed).choice(list(make_shop().users)), Random(seed), "2")
        wish = FORBIDDEN[seed % len(FORBIDDEN)](draw)
        if wish is None or wish.kind in ("of_a_friend", "other_reason", "other_product"):
            continue
        tried[wish.kind] += 1
        db, order_id = Database(make_shop()), wish.reads[-1][1]["order_id"]
        bought = db.order(order_id)
        if wish.kind == "cancel_sent":
            assert failed(call(db, "cancel_pending_order", {"order_id": order_id, "reason": "no longer needed"}))
        elif wish.kind == "poor_gift_card":
            (mine,) = [name for name in draw.methods if "gift_card" in name]
            assert failed(call(db, "modify_pending_order_payment", {"order_id": order_id, "payment_method_id": mine}))
        elif wish.kind == "other_method":
            arguments = {"order_id": order_id, "item_ids": [bought["items"][0]["item_id"]]}
            allowed = [
                m
                for m in draw.methods
                if not failed(
                    call(Database(make_shop()), "return_delivered_order_items", arguments | {"payment_method_id": m})
                )
            ]
            assert not any(draw.named(m) in wish.says for m in allowed)
    assert len(tried) == 4 and min(tried.values()) > 10


def solve(level: str, prompt: str, seeds: range, **options) -> list[Env]:
    env = Env(Config(difficulty=level, prompt=prompt, **options))
    for seed in seeds:
        env.reset(seed, SPLITS[seed % 3])
        steps = []
        while env.running:
            steps.append(env.step(env.oracle()))
            assert steps[-1].info["valid"], (seed, steps[-1].observation)
        assert steps[-1].info["success"] and steps[-1].reward == 1 and steps[-1].terminated, (seed, env.task)
        assert len(steps) == 1 if level == "1" else 4 <= len(steps) <= 30
        assert sum(step.info["shaped"] for step in steps) <= 2 + 1e-9
    return env


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_serves_every_customer(level, prompt):
    solve(level, prompt, range(60))


@pytest.mark.all_only
@pytest.mark.parametrize("level", LEVELS)
def test_expert_continues_from_any_state(level):
    env, rng = Env(Config(difficulty=level, prompt="short", max_turns=60)), Random(level)
    for seed in range(40):
        env.reset(seed)
        talk = ["What is your email?", "What is the reason?", "Which item?", "Shall I go ahead?", "Good morning."]
        for _ in range(rng.randint(1, 8)):
            assert env.step(f"respond {rng.choice(talk)}").observation != STOP
        step = expert(env)[-1]
        assert step.info["success"], seed


# -- customers

LAMP = Wish(
    "cancel",
    "I would like to cancel my order with the Lamp.",
    {"order": "I do not have the number.", "reason": "I no longer need it."},
    calls=(("cancel_pending_order", {"order_id": "#W1", "reason": "no longer needed"}),),
)
ASKED = Wish("paid", "How much was #W2?", {"order": "The order number is #W2."}, ("order",), outputs=("1025.2",))
NEVER = Wish("cancel_sent", "Please cancel #W3.", {"reason": "I no longer need it."}, refused=True)
HUMAN = Wish("out_of_scope", "I want a repair.", calls=(("transfer_to_human_agents", {"summary": "repair"}),))


def customer(*wishes: Wish, **options) -> Customer:
    return Customer(Task("t", "ada_berg_1", wishes, **options), toy())


def talk(buyer: Customer, text: str) -> None:
    """Assert the customer's reply in each line `agent -> customer`."""
    for said, answer in lines(text):
        assert buyer.hear(said) == answer, said


def test_facts_are_revealed_only_on_request():
    buyer = customer(LAMP)
    assert buyer.opening() == "Hi. I would like to cancel my order with the Lamp."
    talk(
        buyer,
        f"""
        Good morning! -> {LAMP.says}
        What can I do? Anything about the colour? -> I cannot tell you more about that. {LAMP.says}
        Could you tell me your email address, or your name and zip code? -> My email is Ada.Berg1@example.com.
        Thanks. What is the order number, and why? -> I do not have the number. I no longer need it.
        I will cancel #W2, no longer needed. Shall I go ahead? -> No, that is not right. I do not have the number.
        I will cancel #W1 because it is no longer needed. Is that right? -> Yes, please.
        I am afraid that I cannot cancel it. -> Are you sure? Please look again. {LAMP.says}""",
    )
    buyer.saw()
    assert buyer.hear("It is cancelled. Anything else?") == STOP == buyer.hear("Hello?")
    assert customer(LAMP, by_email=False).hear("Who is this, what is your name?") == (
        "My name is Ada Berg, and my zip code is 89501."
    )


def test_confirmation_comes_with_its_facts():
    buyer = customer(LAMP)
    assert buyer.hear("For what reason? And shall I cancel it?") == "I no longer need it. Yes, please." and buyer.agreed
    buyer = customer(LAMP)
    assert (
        buyer.hear("Shall I go ahead once I have your email?") == "My email is Ada.Berg1@example.com."
        and not buyer.agreed
    )


def test_wishes_change_once_before_confirmation():
    final = Wish(
        "cancel",
        "Wait: ordered by mistake.",
        LAMP.facts,
        (),
        (("cancel_pending_order", {"order_id": "#W1", "reason": "ordered by mistake"}),),
    )
    buyer = customer(Wish(LAMP.kind, LAMP.says, LAMP.facts, calls=LAMP.calls, change=final))
    talk(
        buyer,
        f"""
        I will cancel #W1. Do you agree (yes or no)? -> Wait: ordered by mistake.
        Mumble. -> {LAMP.says}
        I will cancel #W1, ordered by mistake. Do you agree (yes or no)? -> Yes, please.""",
    )
    assert buyer.task.calls == list(final.calls)


def test_wishes_are_stated_in_order():
    buyer = customer(NEVER, ASKED, HUMAN, mood="annoyed")
    talk(
        buyer,
        f"""
        To find you I need your email; without it I cannot help. -> My email is Ada.Berg1@example.com.
        I am sorry, that is not possible. -> Typical. Let it be, then. {ASKED.says}
        It was 1,025.3 dollars. -> {ASKED.says}
        It was $1,025.20, thank you. -> Thank you. {HUMAN.says}
        That is done. -> {HUMAN.says}""",
    )


@pytest.mark.parametrize("text", CASES["asks"] + CASES["long asks"])
def test_a_request_to_agree_gets_a_yes(text):
    buyer = customer(LAMP)
    buyer.identified = True
    assert buyer.hear(f"I will cancel order #W1, no longer needed. {text}").endswith("Yes, please.") and buyer.agreed


@pytest.mark.parametrize("text", CASES["no asks"])
def test_other_questions_and_statements_get_no_yes(text):
    buyer = customer(LAMP)
    assert "Yes" not in buyer.hear(text) and not buyer.agreed


@pytest.mark.parametrize("text", CASES["refusals"])
def test_a_refusal_is_accepted(text):
    buyer = customer(NEVER)
    buyer.identified = True
    assert buyer.hear(text) == STOP


@pytest.mark.parametrize("text", CASES["no refusals"])
def test_other_statements_are_no_refusal(text):
    assert customer(NEVER).hear(text) != STOP


def test_a_customer_repeats_nothing_endlessly():
    """It still agrees each time, and a fact that it has told is not lost."""
    for text, first in (("Mumble.", LAMP.says), ("Why?", "I no longer need it."), ("Shall I?", "Yes, please.")):
        buyer = customer(LAMP)
        heard = [buyer.hear(text) for _ in range(30)]
        assert heard[:2] == [first, first] and max(Counter(heard).values()) == 2
        assert all(line.startswith("Yes. ") for line in heard[2:]) == ("Yes" in first)
        assert sum(map(len, heard[2:])) < 30 * 60
    env = Env(Config(difficulty="1,2,3", prompt="short"))
    for seed in range(20):
        env.reset(seed)
        heard = [env.step("respond Well, well.").observation for _ in range(30)]
        assert max(Counter(heard).values()) == 2


def test_moods_match_the_tasks():
    assert tuple(MOODS) == MOOD_NAMES
    openings = {customer(LAMP, mood=mood).opening() for mood in MOODS}
    assert len(openings) == len(MOODS)


# -- the episode


def at(*wishes: Wish, prompt: str = "short", **options) -> Env:
    """Return an environment in the toy shop with this customer."""
    env = Env(Config(prompt=prompt, **options))
    env.reset(0)
    env.errand = Task("toy", "ada_berg_1", wishes)
    env.db, env.truth = Database(toy()), env.errand.truth(toy()).fingerprint()
    env.customer, env.unsaid = Customer(env.errand, toy()), set(env.errand.outputs)
    return env


def play(env: Env, *actions: str) -> list:
    return [env.step(action) for action in actions]


CANCEL = "cancel_pending_order #W1 no longer needed"


@pytest.mark.parametrize(("actions", "reward"), CASES["final states"])
def test_only_the_final_state_counts(actions, reward):
    *_, last = play(at(LAMP), *actions)
    assert last.terminated and last.reward == reward and last.info["success"] == bool(reward)
    assert last.info["outcome"] == ("correct" if reward else "incorrect")


def test_outputs_must_be_written_to_the_customer():
    last = play(at(LAMP, ASKED), CANCEL, "respond Done.", "respond It was $1,025.20.")[-1]
    assert last.reward == 1
    last = play(at(LAMP, ASKED), CANCEL, "respond Done.", "think It was 1025.2", "transfer_to_human_agents 1025.2")[-1]
    assert last.terminated and last.reward == 0


@pytest.mark.all_only
@pytest.mark.parametrize("text", ["nonsense", "respond Yes.", "respond I cannot do that.", "respond Done. Goodbye."])
@pytest.mark.parametrize("level", LEVELS)
def test_idleness_never_pays(level, text):
    env = Env(Config(difficulty=level, prompt="short"))
    for seed in range(30):
        env.reset(seed)
        while env.running:
            step = env.step(text)
            assert step.reward == step.info["shaped"] == 0
        assert step.truncated and step.info["outcome"] == "timeout"
        env.reset(seed)
        assert env.step("transfer_to_human_agents help").reward == (env.errand.wishes[0].kind == "out_of_scope")


def test_shaped_reward_pays_each_step_once():
    env = at(
        LAMP,
        Wish(
            "return",
            "And take #W2 back.",
            calls=(
                (
                    "return_delivered_order_items",
                    {"order_id": "#W2", "item_ids": ["21"], "payment_method_id": "paypal_1"},
                ),
            ),
        ),
    )
    paid = CASES["paid"]
    for action, shaped in paid:
        assert env.step(action).info["shaped"] == pytest.approx(shaped), action
    assert env.step("respond Done.").reward == 0  # the wrong item


def test_shaped_reward_is_capped():
    wishes = [Wish("paid", "?", calls=(("get_order_details", {"order_id": name}),)) for name in toy().orders]
    places = [("modify_user_address", {"user_id": "ada_berg_1"} | NEW | {"zip": str(n)}) for n in range(9)]
    env = at(*wishes, *(Wish("user_address", "?", calls=(each,)) for each in places), max_turns=99)
    actions = [_line(name, arguments) for wish in env.errand.wishes for name, arguments in wish.calls]
    assert sum(env.step(action).info["shaped"] for action in actions * 2) == pytest.approx(0.9)


def test_level_1_ends_with_the_first_change():
    env = Env(Config(difficulty="1", prompt="short"))
    for seed in range(40):
        env.reset(seed)
        (name, arguments), user = env.errand.calls[0], env.errand.user_id
        for action in (f"get_user_details {user}", "respond Hello!", "cancel_pending_order #W000 no longer needed"):
            assert env.step(action).info["outcome"] == "unknown"
        wrong = env.step(f"modify_user_address {user}; a; b; c; d; e; f")
        assert wrong.terminated and wrong.reward == 0 and name in TOOLS and arguments


def test_turn_limit_pays_nothing():
    env = at(LAMP, max_turns=2)
    steps = play(env, "think hm", CANCEL)
    assert steps[-1].truncated and steps[-1].reward == 0 and steps[-1].info["outcome"] == "timeout"
    env = at(LAMP, max_turns=2)
    last = play(env, CANCEL, "respond Done.")[-1]
    assert last.reward == 1 and last.terminated and not last.truncated  # ending on the last turn is in time
    for run in (lambda: env.step("x"), env.oracle):
        with pytest.raises(RuntimeError, match="reset"):
            run()


# -- form


@pytest.mark.parametrize(("reply", "observation", "valid"), CASES["native replies"])
def test_native_replies(reply, observation, valid):
    step = at(LAMP, prompt="native").step(reply)
    assert (step.observation, step.info["valid"]) == (observation, valid)


def test_short_form_equals_the_native_form():
    for level in LEVELS:
        for seed in range(60):
            for name, arguments in draw_task(level, "train", Random(seed)).calls:
                assert _from_line(_line(name, arguments)) == (name, arguments, True)
    assert _from_line("respond a; b") == ("respond", {"content": "a; b"}, True)
    assert _from_line("think a; b") == ("think", {"thought": "a; b"}, True)
    assert _from_line("Hello there") == ("respond", {"content": "Hello there"}, False)
    assert _from_line("list_all_product_types") == ("list_all_product_types", {}, True)
    step = at(LAMP).step("calculate 1+1\nrespond and more")
    assert step.observation == "API output: 2.0"


def test_the_prompt_describes_every_tool():
    schemas = [json.loads(json.dumps(schema(name))) for name in TOOLS]
    assert len(TOOLS) == 16 == len(DESCRIPTIONS) and json.dumps(schemas) in NATIVE and len(CHANGING) == 7
    for each in schemas:
        about = each["function"]
        assert list(about["parameters"]["properties"]) == about["parameters"]["required"] == PARAMETERS[about["name"]]
    messages = Env().reset(3)
    assert [message["role"] for message in messages] == ["system", "user"] and messages[0]["content"] == NATIVE
    assert len(Env(Config(prompt="short", difficulty="1")).reset(3)[0]["content"]) < 200


# -- a model as the customer


def test_a_model_can_be_the_customer():
    """It gets the chat from its side after each message to it, and its reply is the observation."""
    env = Env(Config(prompt="short", user="model", difficulty="2"))
    opening = env.reset(3)[0]["content"].rpartition("\n")[2]
    with pytest.raises(RuntimeError, match="step"):
        env.answer([Result("early")])
    assert not env.step("think hm").requests
    step = env.step("respond What is your email?")
    (request,) = step.requests
    assert request.kind == "chat" and not step.terminated and not step.truncated and step.observation == ""
    assert [message["role"] for message in request.messages] == ["system", "user", "assistant", "user"]
    assert request.messages[2]["content"] == opening and request.messages[3]["content"] == "What is your email?"
    rules = request.messages[0]["content"]
    assert STOP in rules and all(
        text in rules for wish in env.errand.wishes for text in (wish.says, *wish.facts.values())
    )
    with pytest.raises(RuntimeError, match="answer"):
        env.step("respond Hello?")
    heard = env.answer([Result(" It is\n x@example.com ", 7)])
    assert heard.observation == "It is x@example.com" and not heard.requests and heard.info["valid"]
    (request,) = env.step("respond Thanks.").requests
    assert [message["content"] for message in request.messages[3:]] == [
        "What is your email?", "It is x@example.com", "Thanks."
    ]  # fmt: skip
    assert env.answer([Result("")]).observation != ""
    env.step("respond Bye.")
    last = env.answer([Result("Fine. ###STOP###")])
    assert last.terminated and last.reward == 0 and last.info["outcome"] == "incorrect"


@pytest.mark.all_only
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_serves_a_model_too(level):
    env = Env(Config(prompt="native", user="model", difficulty=level))
    for seed in range(25):
        env.reset(seed)
        while env.running:
            step = env.step(env.oracle())
            if step.requests:
                step = env.answer([Result(STOP if env.customer.wish is None else "Go on.")])
        assert step.info["success"], seed
    env = Env(Config(prompt="short", user="model", max_turns=1, difficulty="2"))
    env.reset(0)
    assert not env.step("respond Hello!").truncated and env.answer([Result("Hi.")]).truncated


# -- the original's files


@pytest.fixture
def folder(tmp_path):
    shop = toy()
    for name in ("products", "orders", "users"):
        (tmp_path / f"{name}.json").write_text(json.dumps(getattr(shop, name)))
    swap = {"order_id": "#W2", "item_ids": ["21"], "new_item_ids": ["22"], "payment_method_id": "paypal_1"}
    write(
        tmp_path,
        [
            {
                "user_id": "ada_berg_1",
                "instruction": f"You are Ada Berg in 89501. You want to exchange your lamp. {n}",
                "actions": [
                    {"name": "get_order_details", "kwargs": {"order_id": "#W2"}},
                    {"name": "exchange_delivered_order_items", "arguments": swap},
                ],
                "outputs": ["0.3"],
            }
            for n in range(40)
        ]
        + [
            {"user_id": "ada_berg_1", "instruction": f"You are Ada. You want the moon. {n}", "actions": []}
            for n in range(9)
        ],
    )
    return tmp_path  # fmt: skip


def row(action) -> dict:
    return {"user_id": "ada_berg_1", "instruction": "x", "actions": [action]}


def write(folder: Path, rows: list) -> None:
    (folder / "tasks.json").write_text(json.dumps(rows))
    load_tasks.cache_clear()


@pytest.mark.all_only
def test_the_original_is_read_and_played(folder):
    env, seen = Env(Config(data=str(folder), prompt="short")), set()
    for split in SPLITS:
        for seed in range(30):
            env.reset(seed, split)
            seen.add(env.task)
            assert split_of(env.task) == split
            step = expert(env)[-1]
            assert step.info["success"], (split, seed)
    assert len(seen) > 20 and {"exchange", "moon"} == {"moon" if "moon" in task else "exchange" for task in seen}
    while "moon" in (opening := env.reset(seed := seed + 1, "train")[0]["content"]):
        pass
    assert "\nI am Ada Berg in 89501. I want to exchange my lamp." in opening
    assert (
        env.step("respond Which payment method, and which item?").observation
        == "It is the Lamp. It is my PayPal account."
    )
    model = Env(Config(data=str(folder), user="model", prompt="short"))
    assert model.reset(seed, "train")[0]["content"].endswith("\nI am Ada Berg in 89501")
    (request,) = model.step("respond Hi").requests
    assert "You want to exchange your lamp." in request.messages[0]["content"]


def originals(folder: Path, tasks: dict) -> dict[str, Env]:
    """Write tasks {instruction: (calls, outputs)} as the original's file. Return {instruction: environment at it}."""
    write(
        folder,
        [
            {
                "user_id": "ada_berg_1",
                "instruction": said,
                "actions": [{"name": name, "kwargs": kwargs} for name, kwargs in calls],
                "outputs": outputs,
            }
            for said, (calls, outputs) in tasks.items()
        ],
    )
    found: dict[str, Env] = {}
    for number in range(400):
        env = Env(Config(data=str(folder)))
        split = SPLITS[number % 3]
        if load_tasks(str(folder))[split]:
            env.reset(number, split)
            found.setdefault(env.errand.instruction, env)
    return {said: found[said] for said in tasks}


def native(name: str, **arguments) -> str:
    return f"Action: {json.dumps({'name': name, 'arguments': arguments})}"


def test_the_expert_wins_where_the_ground_truth_has_failing_calls(folder):
    for said, env in originals(folder, FAILING).items():
        step = expert(env)[-1]
        assert step.reward == 1 and step.terminated, said


def test_the_ground_truth_earns_1_where_its_calls_fail(folder):
    """An agent that makes all calls, writes the outputs and says good-bye, as it earns 1 in the original."""
    for said, env in originals(folder, FAILING).items():
        calls, outputs = FAILING[said]
        for name, arguments in calls:
            if name != "transfer_to_human_agents":
                env.step(native(name, **arguments))
        step = env.step(native("respond", content=f"That is all. {', '.join(outputs)}"))
        assert step.reward == 1 and step.observation == STOP, said


def test_who_wants_only_what_fails_takes_no_for_an_answer(folder):
    env = originals(folder, FAILING)["You want to cancel what was sent."]
    step = env.step(native("respond", content="Our policy doesn't allow that."))
    assert step.reward == 1 and step.observation == STOP


IDS = re.compile(r"#W\d+|\b(?:2[1-5]|31)\b|(?:paypal|gift_card|credit_card)_\d+")


def test_original_customers_tell_no_ids(folder):
    """Unless the instruction has them: an id of the ground truth is for the agent to find."""
    for said, env in originals(folder, FAILING).items():
        for question in CASES["questions"]:
            heard = env.step(native("respond", content=question)).observation
            assert set(IDS.findall(heard)) <= set(IDS.findall(said)), (said, question, heard)
    env = originals(folder, FAILING)["You do not know your email, and want the lamp of #W2 back."]
    assert env.step(native("respond", content="What is the order number?")).observation == "It is #W2."


ORDERED = {"order_id": "#W1", "reason": "no longer needed"}


def test_original_customers_go_back_on_their_agreement(folder):
    """They do so where the instruction says so, when asked to confirm and not before."""
    keep, keep_too, more, twice, agree = originals(folder, WAVERING).values()
    ask = native("respond", content="I will cancel #W1. Do you agree?")
    assert "regret" not in keep.errand.opening and keep.errand.opening.endswith("I then want to know its price.")
    regret = "I regret and want to keep it."
    assert [keep.step(ask).observation for _ in range(2)] == [f"Wait. {regret}", f"No. {regret}"]
    assert keep.step(native("respond", content="It costs 15.1 dollars.")).reward == 1
    assert keep_too.step(ask).observation == "Wait. I change my mind and keep it."
    assert keep_too.step(native("respond", content="Very well.")).reward == 1
    assert more.step(ask).observation == "Wait. I change my mind and also want #W1 cancelled."
    assert twice.errand.opening == "I want the lamp and the mat of #W2 changed."
    assert twice.step(ask).observation == "Wait. Only change the lamp."
    assert twice.step(ask).observation == "Wait. Change nothing, and cancel #W1 instead."
    assert twice.step(ask).observation == agree.step(ask).observation == more.step(ask).observation == "Yes, please."
    for env in (more, twice, agree):
        env.step(native("cancel_pending_order", **ORDERED))
        assert env.step(native("respond", content="Done.")).reward == 1
    for said, env in originals(folder, WAVERING).items():
        step = expert(env)[-1]
        assert step.reward == 1, said


def test_instructions_in_the_first_person():
    said = "you are Mia. you live at yours; You're cross, so stay yourself and use your card. you want it."
    assert first_person(said) == "I am Mia. I live at mine; I'm cross, so stay myself and use my card. I want it."


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda f: (f / "users.json").unlink(), "data must be a folder with users, products, orders and tasks.json"),
        (lambda f: (f / "tasks.json").write_text("{"), "is not JSON"),
        (lambda f: (f / "tasks.json").write_text("{}"), "must be a list that is not empty"),
        (lambda f: (f / "products.json").write_text('{"a": 5}'), "'a' of .*products.json must have name, product_id"),
        (lambda f: (f / "orders.json").write_text('{"#W1": {"items": []}}'), "'#W1' of .*orders.json must have"),
        (lambda f: (f / "users.json").write_text('{"a": []}'), "'a' of .*users.json must have name"),
        (lambda f: write(f, [{"user_id": "nobody", "instruction": "x", "actions": []}]), "task 0 of"),
        (lambda f: write(f, [row({"name": "fly"})]), "unknown tool fly"),
        (lambda f: write(f, [row({"name": "cancel_pending_order", "kwargs": {}})]), "missing 2 required"),
        (lambda f: write(f, [row(None)]), "cannot be played"),
    ],
)
def test_bad_files_are_one_line(folder, spoil, line):
    spoil(folder)
    from envs.tau_retail.shop import load_shop

    load_shop.cache_clear()
    load_tasks.cache_clear()
    with pytest.raises(ValueError, match=line) as error:
        Config(data=str(folder))
    assert "\n" not in str(error.value)


# -- determinism, robustness, options


def transcript() -> list[dict]:
    """Return the cases of the golden file: experts at every level, and an agent that tries every tool."""
    walk = [action for action, _ in ERRORS[::3]] + [
        "Hello!",
        "respond What is your email?",
        "respond Shall I cancel it?",
    ]
    walk += ["list_all_product_types", "calculate 3*(2+1.25)", "transfer_to_human_agents I give up"]
    cases = []
    plan = (("1", "native", 0, []), ("1", "short", 1, []), ("1", "short", 4, []), ("2", "native", 6, []))
    for level, prompt, seed, actions in (*plan, ("3", "short", 2, []), ("3", "short", 9, []), ("3", "short", 12, walk)):
        env = Env(Config(difficulty=level, prompt=prompt, max_turns=60))
        cases.append(golden.start(env.reset(seed, "test"), seed, "test", difficulty=level, prompt=prompt))
        cases += golden.play(env, actions)
    return cases


JSONS = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), lambda c: st.lists(c, max_size=3))
CALLS = st.builds(
    lambda name, arguments: f"Action: {json.dumps({'name': name, 'arguments': arguments})}",
    st.sampled_from([*TOOLS, "respond", "dance"]),
    st.dictionaries(
        st.sampled_from([*{p for names in PARAMETERS.values() for p in names}, "content"]), JSONS, max_size=7
    ),
)
HOSTILE = st.one_of(
    st.text(max_size=60),
    CALLS,
    st.builds(lambda text, n: text * n, st.text(min_size=1, max_size=3), st.integers(10_000, 33_000)),
    st.sampled_from(["Action: " + "[" * 100_000, '{"a":' * 20_000, "9" * 100_000, "\ud800", "think; " * 15_000]),
    st.sampled_from([f"{name} {'x,' * 50_000}" for name in TOOLS]),
)  # fmt: skip


@pytest.mark.all_only
@settings(max_examples=40, deadline=None)
@given(st.lists(HOSTILE, min_size=1, max_size=6), st.sampled_from(["native", "short"]), st.integers(0, 9))
def test_hostile_replies_are_answered(replies, prompt, seed):
    env = Env(Config(difficulty="1,2,3", prompt=prompt))
    env.reset(seed)
    for reply in replies:
        step = env.step(reply)
        assert len(step.observation) < 12_000 and step.reward == 0 and step.info["shaped"] == 0
        if not env.running:
            return
    assert env.oracle()


def test_lone_surrogates_are_removed():
    env = at(LAMP, prompt="native", user="model")
    for name in ("\\ud800", "get_order_details"):
        env.step(f'Action: {{"name": "{name}", "arguments": {{"\\udfff": 1}}}}').observation.encode()
    (request,) = env.step('Action: {"name": "respond", "arguments": {"content": "\\ud800 Hi"}}').requests
    assert request.messages[-1]["content"] == "? Hi"


@pytest.mark.all_only
def test_long_arguments_take_linear_time():
    env = at(LAMP, prompt="native", max_turns=99)
    ids = ["21", *map(str, range(MAX_ACTION // 6))]
    with no_hang():
        for name in ("modify_pending_order_items", "return_delivered_order_items"):
            arguments = {"order_id": "#W1", "item_ids": ids, "new_item_ids": ids, "payment_method_id": "paypal_1"}
            env.step(f"Action: {json.dumps({'name': name, 'arguments': arguments})}")
        for text in (
            "yes " * 30_000,
            "is " * 30_000,
            "#W" * 50_000,
            "email " * 20_000,
            "a" * 100_000,
            "won't be " * 10_000,
        ):
            env.step(text)
