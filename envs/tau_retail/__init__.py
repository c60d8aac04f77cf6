"""Retail service: answer a customer of an online shop, by the shop's rules, with tools that read and change its data.

Task.     `Hi. I would like to cancel my order #W3420226.` A customer has wishes, facts that are told only when asked
          for, a mood, and may change their mind when asked for a yes. The levels of difficulty:
    1         everything is in the first line, ids are short, one call does it: cancel, pay otherwise, return, exchange,
              change an item, hand over
    2         one wish, the order's number is known; at times something forbidden before it, or out of scope after it
    3         one to four wishes in any mood; orders may be known by an item only, minds change, who has forgotten the
              email gives name and zip code
          21 templates: cancel, modify_items, modify_payment, order_address, user_address, return, return_all, exchange,
          exchange_difference; paid, tracking, cheapest, balance (to be answered); cancel_sent, other_reason,
          other_product, unavailable, other_method, poor_gift_card, of_a_friend (to be refused); out_of_scope (to be
          handed over).

Actions.  One for each reply: a tool with its arguments, or `respond` with `content`, which the customer hears.
    calculate(expression)                                       think(thought)
    find_user_id_by_email(email)                                find_user_id_by_name_zip(first_name, last_name, zip)
    get_user_details(user_id)     get_order_details(order_id)   get_product_details(product_id)
    list_all_product_types()                                    transfer_to_human_agents(summary)
    cancel_pending_order(order_id, reason)
    modify_pending_order_payment(order_id, payment_method_id)
    modify_pending_order_items(order_id, item_ids, new_item_ids, payment_method_id)
    exchange_delivered_order_items(order_id, item_ids, new_item_ids, payment_method_id)
    return_delivered_order_items(order_id, item_ids, payment_method_id)
    modify_pending_order_address(order_id, address1, address2, city, state, country, zip)
    modify_user_address(user_id, address1, address2, city, state, country, zip)

Replies.  What the customer says, `###STOP###` at the end; or `API output: ` and the tool's result:
    {"order_id": "#W3420226", ...}                  the record that was read or changed, as JSON; a user id, a number
    Transfer successful                             and an empty line of think
    Error: order not found                          also user, product
    Error: non-pending order cannot be cancelled    also modified; non-delivered order cannot be exchanged, returned
    Error: 6086499569 not found                     return says: some item not found
    Error: new item 6086499569 not found or available
    Error: insufficient gift card balance to pay for the price difference      ... for the new item, ... for the order
    Error: GetOrderDetails.invoke() missing 1 required positional argument: 'order_id'
    Unknown action dance

Prompts.  native: a system message with the rules, the tools as JSON schemas and the form; the customer's first line. A
          reply is `Thought:\\n...\\nAction:\\n{"name": ..., "arguments": {...}}`; what follows the last `Action:` is
          read, and heard by the customer if it is no such JSON.
          short: one message. The action is the reply's first line, `cancel_pending_order #W123 no longer needed`:
          a tool and its arguments, parted by spaces, the last one taking the rest; or all parted by `;`. Items of a
          list are parted by commas. `respond TEXT`, or anything that begins with no tool, is heard by the customer.

Reward.   At the end, and 0 before: 1 if the database equals the one after the task's calls in every record, and the
          agent has told the customer every output that the task has (in any case, without commas); else 0.
          info["shaped"]: 0.1 for finding the customer's user id; 0.1 for the first reading of each order that a call is
          about, 0.2 for each right call that changes something, once each and at most 0.9 for both; 1 on success.
          info["valid"]: a tool that gave no error, or a well-formed respond.

Ending.   Terminated by `###STOP###`, by transfer_to_human_agents, and at difficulty 1 by the first change, with outcome
          "correct" or "incorrect". Truncated, outcome "timeout", after `max_turns` replies: worth 0.

From tau-bench's retail domain (MIT) at 59a200c, with these differences:
- Shop, rules' wording, tools' descriptions and customers are ours. `data=folder` plays the original's users.json,
  products.json, orders.json, and its tasks, which are Python there, as tasks.json: a list of objects with user_id,
  instruction, actions [{name, kwargs}] and outputs. Their scripted customer says the whole instruction at once.
- The scripted customer never leaves before the wishes are met or refused: a customer who is only put off, or passed on
  too early, is worth 0. Each drawn task has something to change, to tell or to hand over, so that idleness never pays.
- `user=model`: the base model is the customer, as in the original, asked through Step.requests; the first line is still
  the scripted one (of the original's tasks: its first sentence).
- calculate takes 200 characters and says in its own words what is no arithmetic. Python's text on arguments that do not
  fit is that of version 3.11. Of an action 8,000 characters are read, of an error 300 shown.
- Drawn tasks are split by their customer: who calls in a test never called in training.
"""

import json
from dataclasses import dataclass
from random import Random

from envs import base
from envs.base import Environment, Request, Result, Step
from envs.tau_retail.customer import HEARD, STOP, Customer, model_chat, says
from envs.tau_retail.expert import next_action
from envs.tau_retail.policy import NATIVE, SHORT, SHORTEST
from envs.tau_retail.shop import load_shop, make_shop
from envs.tau_retail.tasks import draw_task, load_tasks
from envs.tau_retail.tools import CHANGING, PARAMETERS, Database, call, failed, key, whole

MAX_ACTION = 8000  # characters of an action that are read
MAX_ANSWER = 1000  # characters of a model customer's line
FOUND, READ, CHANGED, MOST = 0.1, 0.1, 0.2, 0.9  # shaped rewards; MOST for reading and changing together
LISTS = ("item_ids", "new_item_ids")


@dataclass
class Config:
    difficulty: str = "3"  # levels 1 to 3, drawn uniformly from this comma list; repeats weigh: "1,1,2"
    max_turns: int = 30  # agent turns before the episode is truncated
    prompt: str = "native"  # "native": the rules, tools as JSON, Thought/Action; "short": one message, bare actions
    user: str = "rules"  # who plays the customer: "rules", a script; "model", the base model
    data: str = ""  # a folder with the original's users, products, orders and tasks.json; empty: our own shop

    def __post_init__(self):
        self.difficulty = base.level_list(self.difficulty, "123")
        base.check_count("max_turns", self.max_turns)
        base.check_prompt(self.prompt)
        if self.user not in ("rules", "model"):
            raise ValueError(f"user must be 'rules' or 'model', not {self.user!r}")
        if self.data:
            load_tasks(self.data)


class Env(Environment):
    """One episode at a time; the module's docstring is its specification."""

    def __init__(self, config: Config | None = None):
        self.config = config or Config()
        self.running = False

    @property
    def task(self) -> str:
        """The canonical task: the customer, or a row of the file."""
        return self.errand.name

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed: the messages up to the agent's first turn."""
        base.check_split(split)
        rng = Random(f"tau_retail {split} {seed}")
        if self.config.data:
            tasks, shop = load_tasks(self.config.data)[split], load_shop(self.config.data)
            if not tasks:
                raise ValueError(f"data: {self.config.data} has no task in split {split}")
            self.errand = rng.choice(tasks)
        else:
            self.errand = draw_task(rng.choice(self.config.difficulty.split(",")), split, rng)
            shop = make_shop(self.errand.easy)
        self.db = Database(shop)
        self.truth = self.errand.truth(shop).fingerprint()
        self.customer = Customer(self.errand, shop)
        self.chat = model_chat(self.errand, self.customer)
        self.unsaid = set(self.errand.outputs)
        self.known = self.errand.easy  # the agent has looked up who the customer is
        ends = [end for wish in self.errand.wishes for end in (wish, wish.change) if end]
        self.awaited = {key(*each) for end in ends for each in end.calls}
        self.done: set[str] = set()  # the awaited calls and the readings that succeeded, each by its key
        self.paid = 0.0
        self.turns, self.running, self.waiting = 0, True, False
        opening = self.chat[-1]["content"] if self.config.user == "model" else self.customer.opening()
        if self.config.prompt == "short":
            return [{"role": "user", "content": f"{SHORTEST if self.errand.easy else SHORT}\n{opening}"}]
        return [{"role": "system", "content": NATIVE}, {"role": "user", "content": opening}]

    def step(self, action_text: str) -> Step:
        """Carry out the agent's reply; every reply counts as a turn. With `requests` the customer is yet to answer."""
        base.check_running(self.running)
        if self.waiting:
            raise RuntimeError("the customer has not answered yet: call answer() first")
        self.turns += 1
        name, arguments, formed = self._read(action_text)
        if name == "respond":
            return self._respond(arguments, formed)
        result = call(self.db, name, arguments)
        valid = not failed(result)
        shaped = self._progress(name, arguments, result) if valid else 0.0
        over = valid and (name == "transfer_to_human_agents" or (name in CHANGING and self.errand.easy))
        return self._result(f"API output: {result}", valid, shaped, over)

    def answer(self, results: list[Result]) -> Step:
        """What the step came to that asked for these results: one, the customer's line."""
        base.check_running(self.running)
        if not self.waiting:
            raise RuntimeError("nothing was asked for: call step() first")
        self.waiting = False
        line = " ".join(results[0].text.split())[:MAX_ANSWER] or "Could you say that again?"
        self.chat.append({"role": "assistant", "content": line})
        return self._result(line, self.formed, 0.0, STOP in line)

    def oracle(self) -> str:
        """The reply that an expert would give in the current state."""
        base.check_running(self.running)
        name, arguments, thought = next_action(self.errand, self.customer, self.db, self.known, self.done)
        if self.config.prompt == "native":
            action = json.dumps({"name": name, "arguments": arguments})
            return f"Thought:\n{thought}\nAction:\n{action}"
        return _line(name, arguments)

    def _read(self, reply: str) -> tuple[str, dict, bool]:
        """The name and the arguments of the action in a reply, and whether it has the form that was asked for."""
        if self.config.prompt == "short":
            return _from_line(reply.strip().partition("\n")[0][:MAX_ACTION])
        action = reply.rpartition("Action:")[2].strip()[:MAX_ACTION]
        try:
            made = json.loads(action)
        except (ValueError, RecursionError):
            made = None
        if isinstance(made, dict) and isinstance(made.get("name"), str) and isinstance(made.get("arguments"), dict):
            return made["name"], made["arguments"], True
        return "respond", {"content": action}, False

    def _respond(self, arguments: dict, formed: bool) -> Step:
        text = arguments.get("content")
        self.formed = formed and isinstance(text, str)
        text = whole(text) if isinstance(text, str) else ""
        self.unsaid = {output for output in self.unsaid if not says(text, output)}
        line = self.customer.hear(text)
        if self.config.user == "rules":
            return self._result(line, self.formed, 0.0, line == STOP)
        self.chat.append({"role": "user", "content": text[:HEARD]})
        self.waiting = True
        info = {"outcome": "unknown", "success": False, "valid": self.formed, "shaped": 0.0}
        request = Request("chat", messages=[dict(message) for message in self.chat], max_tokens=128, temperature=1.0)
        return Step("", 0.0, False, False, info, [request])

    def _progress(self, name: str, arguments: dict, result: str) -> float:
        """The shaped reward of a call that succeeded; takes note of it."""
        if name.startswith("find_user_id") and result == self.errand.user_id and not self.known:
            self.known = True
            return FOUND
        if name in CHANGING:
            self.customer.saw()
        this = key(name, arguments)
        first = this not in self.done
        if this in self.awaited or name.startswith(("get_", "list_")):
            self.done.add(this)
        right = any(key(*each) == this for each in self.errand.calls)
        about = any(arguments.get("order_id") == each.get("order_id") for _, each in self.errand.calls)
        worth = CHANGED if name in CHANGING and right else READ if name == "get_order_details" and about else 0.0
        earned = min(worth, MOST - self.paid) if first else 0.0
        self.paid += earned
        return earned

    def _result(self, observation: str, valid: bool, shaped: float, over: bool) -> Step:
        """The step, with the reward if it is the last one."""
        won = over and not self.unsaid and self.db.fingerprint() == self.truth
        truncated = not over and self.turns >= self.config.max_turns
        self.running = not (over or truncated)
        shaped = 1.0 if won else shaped
        info = {"outcome": base.outcome(won, over, truncated), "success": won, "valid": valid, "shaped": shaped}
        return Step(observation, float(won), over, truncated, info)


def _line(name: str, arguments: dict) -> str:
    """An action in the short form."""
    values = [arguments[field] for field in PARAMETERS.get(name, arguments)]
    words = [",".join(map(str, value)) if isinstance(value, list) else str(value) for value in values]
    plain = all(word and " " not in word for word in words[:-1])
    return " ".join([name, *words]) if plain else f"{name} {'; '.join(words)}"


def _from_line(line: str) -> tuple[str, dict, bool]:
    """The reverse of _line; what begins with no tool is said to the customer."""
    name, _, rest = line.partition(" ")
    if name == "respond":
        return name, {"content": rest}, True
    if name not in PARAMETERS:
        return "respond", {"content": line}, False
    wanted = PARAMETERS[name]
    if len(wanted) == 1:
        words = [rest.strip()] if rest.strip() else []
    elif ";" in rest:
        words = [word.strip() for word in rest.split(";", len(wanted) - 1)]
    else:
        words = rest.split(None, max(len(wanted) - 1, 0))
    values = [word.split(",") if field in LISTS else word for field, word in zip(wanted, words, strict=False)]
    return name, dict(zip(wanted, values, strict=False)), True
