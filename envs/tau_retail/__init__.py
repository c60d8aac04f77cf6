"""Retail service: serve a customer of an online shop by the shop's rules, with tools that read and change its data.

Task.     `Hi. I would like to cancel my order #W3420226.` A customer has wishes, a mood, and facts to reveal only on
          request, and may change a wish when asked to confirm it. The levels of difficulty:
    1         the first line says everything, ids are short, one call is enough: cancel, change the payment, return,
              exchange, change an item, hand over
    2         one wish, with the order's number; sometimes a forbidden wish before it or one out of scope after it
    3         one to four wishes in any mood; a customer may know an order by its item only, change a wish, or give name
              and zip code instead of a forgotten email address
          The 21 templates: cancel, modify_items, modify_payment, order_address, user_address, return, return_all,
          exchange, exchange_difference; paid, tracking, cheapest, balance (to be answered); cancel_sent, other_reason,
          other_product, unavailable, other_method, poor_gift_card, of_a_friend (to be refused); out_of_scope (to be
          handed over).

Actions.  One per reply: a tool with its arguments, or `respond` with `content`, which the customer reads.
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

Replies.  The customer's line, finally `###STOP###`; or `API output: ` and the tool's result:
    {"order_id": "#W3420226", ...}                  the record read or changed, as JSON; or a user id, a number
    Transfer successful                             (think replies with an empty line)
    Error: order not found                          also user, product
    Error: non-pending order cannot be cancelled    also modified; non-delivered order cannot be exchanged, returned
    Error: 6086499569 not found                     return says: some item not found
    Error: new item 6086499569 not found or available
    Error: insufficient gift card balance to pay for the price difference      ... for the new item, ... for the order
    Error: GetOrderDetails.invoke() missing 1 required positional argument: 'order_id'
    Unknown action dance

Prompts.  native: a system message with the rules, the tools as JSON schemas and the form; the customer's first line. A
          reply is `Thought:\\n...\\nAction:\\n{"name": ..., "arguments": {...}}`; the text after the last
          `Action:` counts; if it is not such JSON, the customer reads it.
          short: one message. The action is the reply's first line, `cancel_pending_order #W123 no longer needed`:
          a tool and its arguments, separated by spaces, the last one taking the rest; or all separated by `;`. Items
          of a list are separated by commas. `respond TEXT`, or a line without a tool's name, goes to the customer.
          The message names the tools, at level 1 none, and no rule: it is for a model that has seen demonstrations.
          tools=native: the rules, and the sixteen tools as the checkpoint's template offers them; a reply without a
          call goes to the customer, a malformed call is answered by `Unknown action invalid tool call: ...`.

Tasks.    panel: the customers of one shop. fresh: each seed draws a small shop, with other customers, orders and ids.

Reward.   At the end: 1 if every record of the database equals the one after the task's own calls, and the agent has
          written every output of the task to the customer (ignoring case and commas; a number by its value); else 0.
          Outputs do not count once it has written more than ten numbers that it has not read, from a tool or customer.
          info["shaped"]: 0.1 for finding the customer's user id; 0.1 for the first reading of each order in the task's
          calls, 0.2 for each right call that changes data, once each and together at most 0.9; 1 on success.
          info["valid"]: a tool without an error, or a well-formed respond.

Ending.   Terminated by `###STOP###`, by transfer_to_human_agents, and at difficulty 1 by the first change, with outcome
          "correct" or "incorrect". Truncated, outcome "timeout", after `max_turns` replies: worth 0.

From tau-bench's retail domain (MIT) at 59a200c. The differences:
- The shop, the wording of rules and tools, and the customers are ours. `data=folder` reads the original's users.json,
  products.json, orders.json, and its tasks (Python code there) as tasks.json: a list of objects with user_id,
  instruction, actions [{name, kwargs}] and outputs. A call that fails there changes nothing, as in the original. Their
  scripted customer says the instruction at once, except for what to do "if the agent asks for confirmation", which it
  says when asked to confirm; it names ids only if the instruction does. `splits=own` plays tasks_test.json in order.
- The scripted customer takes words for a request to agree or for a refusal, not their meaning. From the third time on
  it only says how often it has said the same line.
- It never leaves before the wishes are met or refused: an agent that puts the customer off, or hands
  over too early, gets 0. Each generated task needs a change, an answer or a transfer, so that idleness never pays.
- `user=model`: the base model plays the customer, as in the original, through Step.requests; the first line is still
  the scripted one (in the original's tasks: its first sentence).
- An output is there for the original if it is part of any text, such as 5 of 15, and a list of guesses has all.
- calculate takes at most 200 characters and has its own error messages. Python's message about wrong arguments is that
  of version 3.11. Only 8,000 characters of an action are read and 300 of an error shown.
- The customer decides a generated task's split, so that customers of test tasks never appear in training.
"""

import json
from dataclasses import dataclass
from random import Random

from envs import common, prompt_file
from envs.base import Step
from envs.own_splits import OwnSplits, check_splits
from envs.refusal import Refusal
from envs.requests import Request, Result
from envs.tau_retail.customer import HEARD, STOP, Customer, model_chat
from envs.tau_retail.database import Database
from envs.tau_retail.expert import next_action
from envs.tau_retail.original import load_tasks
from envs.tau_retail.policy import NATIVE, SCHEMAS, SHORT, SHORTEST, WITH_TOOLS
from envs.tau_retail.shop import fresh_shop, load_shop, make_shop
from envs.tau_retail.tasks import Task, draw_task
from envs.tau_retail.tools import CHANGING, PARAMETERS, call, failed, key, whole
from envs.tools import INVALID, Malformed, call_of, check_tools, only_call

MAX_ACTION = 8000  # characters read of an action
MAX_ANSWER = 1000  # most characters of a model customer's line
FOUND, READ, CHANGED, MOST = 0.1, 0.1, 0.2, 0.9  # shaped rewards; MOST limits the sum for reading and changing
LISTS = ("item_ids", "new_item_ids")


@dataclass(frozen=True)
class Config:
    difficulty: str = "3"  # levels 1 to 3, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    max_turns: int = 30  # agent turns before the episode is truncated
    prompt: str = "native"  # "native": the rules, tools as JSON, Thought/Action; "short": one message, bare actions
    user: str = "rules"  # the customer: "rules", a script; "model", the base model
    data: str = ""  # a folder with the original's users, products, orders and tasks.json; empty: the generated shop
    splits: str = "hash"  # of data: "hash" of the task; "own": tasks_train, tasks_dev, tasks_test.json, or all tasks
    tasks: str = "panel"  # "panel": customers of one generated shop; "fresh": a shop for each seed
    tools: str = "none"  # "native": actions are calls of tools in the checkpoint's own format; "none": text

    def __post_init__(self):
        common.check_options(self, "123")
        common.check_tasks(self.tasks, self.data)
        check_tools(self.tools, self.prompt)
        if self.user not in ("rules", "model"):
            raise Refusal(f"user must be 'rules' or 'model', not {self.user!r}")
        check_splits(self, "tasks_{}")
        if self.data:
            load_tasks(self.data, self.splits)


class Env(OwnSplits):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config

    def __init__(self, config: Config | None = None):
        super().__init__(config)
        if self.config.tools == "native":
            self.tools = SCHEMAS

    @property
    def task(self) -> str:
        """The canonical task: the customer (of a fresh shop, with all wishes), or a row of the file."""
        return self.errand.name

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"tau_retail {split} {seed}")
        if self.config.data:
            shop, own = load_shop(self.config.data), self.config.splits == "own"
            self.errand = self.own_task(seed, split) if own else rng.choice(self.own_tasks(split))
        else:
            level = rng.choice(self.config.difficulty.split(","))
            fresh = fresh_shop(level == "1", f"{split} {seed}") if self.config.tasks == "fresh" else None
            self.errand = draw_task(level, split, rng, fresh)
            shop = fresh or make_shop(self.errand.easy)
        self.db = Database(shop)
        self.truth = self.errand.truth(shop).fingerprint()
        self.customer = Customer(self.errand, shop)
        self.chat = model_chat(self.errand, self.customer)
        self.unsaid = set(self.errand.outputs)
        self.known = self.errand.easy  # the agent has looked up the customer
        ends = [end for wish in self.errand.wishes for end in (wish, wish.change) if end]
        self.awaited = {key(*each) for end in ends for each in end.calls}
        self.done: set[str] = set()  # keys of the task's calls and of reads that succeeded
        self.paid = 0.0
        self.turns, self.running, self.waiting = 0, True, False
        opening = self.chat[-1]["content"] if self.config.user == "model" else self.customer.opening()
        self.customer.read(opening)
        if self.config.prompt == "short":
            return [{"role": "user", "content": f"{SHORTEST if self.errand.easy else SHORT}\n{opening}"}]
        if self.tools:
            system = {"role": "system", "content": WITH_TOOLS, "tools": self.tools}
            return [system, {"role": "user", "content": opening}]
        system = prompt_file.chosen(self.config.prompt, NATIVE)
        return [{"role": "system", "content": system}, {"role": "user", "content": opening}]

    def own_tasks(self, split: str) -> list[Task]:
        """Return the folder's tasks of a split. Raise ValueError if there are none."""
        if not (tasks := load_tasks(self.config.data, self.config.splits)[split]):
            raise Refusal(f"data: {self.config.data} has no task in split {split}")
        return tasks

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn. With requests, `answer` completes it."""
        common.check_running(self.running)
        if self.waiting:
            raise RuntimeError("the step has a request: pass its result to answer() first")
        self.turns += 1
        name, arguments, formed = self._read(action_text)
        self.role = "user" if name == "respond" or not self.tools else "tool"
        if name == "respond":
            return self._respond(arguments, formed)
        result = call(self.db, name, arguments)
        valid = not failed(result)
        if not valid and name in CHANGING:
            self.customer.saw_failure(name, arguments)
        shaped = self._progress(name, arguments, result) if valid else 0.0
        over = valid and (name == "transfer_to_human_agents" or (name in CHANGING and self.errand.easy))
        return self._result(f"API output: {result}", valid, shaped, over)

    def answer(self, results: list[Result]) -> Step:
        """Return the step that requested the customer's line, given that line as the only result."""
        common.check_running(self.running)
        if not self.waiting:
            raise RuntimeError("the step has no request: call step() first")
        self.waiting = False
        line = " ".join(results[0].text.split())[:MAX_ANSWER] or "Could you say that again?"
        self.chat.append({"role": "assistant", "content": line})
        return self._result(line, self.formed, 0.0, STOP in line)

    def oracle(self) -> str:
        """Return an expert's reply in the current state."""
        common.check_running(self.running)
        name, arguments, thought = next_action(self.errand, self.customer, self.db, self.known, self.done)
        action = json.dumps({"name": name, "arguments": arguments})
        if self.tools:
            return action
        if self.config.prompt != "short":
            return f"Thought:\n{thought}\nAction:\n{action}"
        return _line(name, arguments)

    def action_of(self, content: str, calls: list[dict]) -> str:
        """Return a call, or without one the text for the customer, as JSON. Raise Malformed for several calls."""
        name, arguments = only_call(calls) if calls else ("respond", {"content": content[:MAX_ACTION]})
        if calls and name == "respond":
            raise Malformed("there is no tool 'respond': a reply without a call is what the customer reads")
        action = json.dumps({"name": name, "arguments": arguments})
        if calls and len(action) > MAX_ACTION:
            raise Malformed(f"a call has at most {MAX_ACTION:,} characters")
        return action

    def calls_of(self, action: str) -> tuple[str, list[dict]]:
        """Return the content and the call of an expert's action."""
        made = json.loads(action)
        if made["name"] == "respond":
            return made["arguments"]["content"], []
        return call_of(made["name"], **made["arguments"])

    def _read(self, reply: str) -> tuple[str, dict, bool]:
        """Return the name and the arguments of the action in a reply, and whether the reply is well-formed."""
        if self.config.prompt == "short":
            return _from_line(reply.strip().partition("\n")[0][:MAX_ACTION])
        if self.tools and reply.startswith(INVALID):
            return reply, {}, False
        action = reply if self.tools else reply.rpartition("Action:")[2].strip()[:MAX_ACTION]
        try:
            made = json.loads(action)
        except (ValueError, RecursionError):
            made = None
        if isinstance(made, dict) and isinstance(made.get("name"), str) and isinstance(made.get("arguments"), dict):
            return made["name"], made["arguments"], True
        return "respond", {"content": action}, False

    def _respond(self, arguments: dict, formed: bool) -> Step:
        """Pass the agent's text to the customer. Return the step, with a request if a model plays the customer."""
        text = arguments.get("content")
        self.formed = formed and isinstance(text, str)
        text = whole(text) if isinstance(text, str) else ""
        self.customer.note(text)
        self.unsaid = {output for output in self.unsaid if not self.customer.told(text, output)}
        line = self.customer.hear(text)
        if self.config.user == "rules":
            return self._result(line, self.formed, 0.0, line == STOP)
        self.chat.append({"role": "user", "content": text[:HEARD]})
        self.waiting = True
        info = common.step_info(False, False, False, self.formed, 0.0)
        request = Request("chat", messages=[dict(message) for message in self.chat], max_tokens=128, temperature=1.0)
        return Step("", 0.0, False, False, info, [request])

    def _progress(self, name: str, arguments: dict, result: str) -> float:
        """Record a successful call. Return its shaped reward."""
        this = key(name, arguments)
        first = this not in self.done
        if this in self.awaited or name.startswith(("get_", "list_")):
            self.done.add(this)
        if name.startswith("find_user_id") and result == self.errand.user_id and not self.known:
            self.known = True
            return FOUND
        if name in CHANGING:
            self.customer.saw()
        right = any(key(*each) == this for each in self.errand.calls)
        about = any(arguments.get("order_id") == each.get("order_id") for _, each in self.errand.calls)
        worth = CHANGED if name in CHANGING and right else READ if name == "get_order_details" and about else 0.0
        earned = min(worth, MOST - self.paid) if first else 0.0
        self.paid += earned
        return earned

    def _result(self, observation: str, valid: bool, shaped: float, over: bool) -> Step:
        """Return the step. Only the last one of an episode has a reward."""
        self.customer.read(observation)
        won = over and not self.unsaid and self.db.fingerprint() == self.truth
        truncated = not over and self.turns >= self.config.max_turns
        self.running = not (over or truncated)
        shaped = 1.0 if won else shaped
        info = common.step_info(won, over, truncated, valid, shaped)
        return Step(observation, float(won), over, truncated, info)


def _line(name: str, arguments: dict) -> str:
    """Return an action as a line of the short form."""
    values = [arguments[field] for field in PARAMETERS.get(name, arguments)]
    words = [",".join(map(str, value)) if isinstance(value, list) else str(value) for value in values]
    plain = all(word and " " not in word for word in words[:-1])
    return " ".join([name, *words]) if plain else f"{name} {'; '.join(words)}"


def _from_line(line: str) -> tuple[str, dict, bool]:
    """Return the action of a line of the short form; a line without a tool's name is `respond`."""
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
