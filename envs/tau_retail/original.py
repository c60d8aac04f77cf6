"""Read the original's tasks: a customer's instruction, and the calls of the ground truth.

About one ground truth in twenty has calls that fail, such as a second change of an order's items. As in the original,
such a call leaves the data as they are. So the task consists of the calls that succeed, and a customer who wants
nothing else ends when the agent has tried a failing one too, or refuses.

The customer says the instruction in the first person. Asked about a topic, it tells ids only if the instruction has
them. What it would do "if the agent asks for confirmation" it says when the agent asks for that.
"""

import re
from dataclasses import replace
from pathlib import Path

from envs.common import SPLITS, split_of
from envs.data_files import say_unread
from envs.own_splits import files_of
from envs.read_once import read_once
from envs.refusal import Refusal
from envs.tau_retail.database import Database
from envs.tau_retail.expert import HUMAN
from envs.tau_retail.shop import Shop, load_shop, read_json
from envs.tau_retail.tasks import Task, canonical
from envs.tau_retail.tools import ADDRESS, CHANGING, TOOLS, call, failed, key, misfit
from envs.tau_retail.wish import Wish, method_words

Call = tuple[str, dict]
PERSONS = {"you are": "I am", "you're": "I'm", "you": "I", "your": "my", "yours": "mine", "yourself": "myself"}
SECOND = re.compile(r"\b(you are|you're|yourself|yours|your|you)\b", re.IGNORECASE)
AT_CONFIRMATION = re.compile(  # "but if the agent asks you to confirm, you regret and want to keep it"
    r"[,;]?\s*\(?\b(?:but |and |however,? |then ){0,3}(?:if|when|once|after|as soon as)\b[^.?!]{0,40}?"
    r"\b(?:ask|request|want)(?:s|ed|ing)?\b[^.?!,]{0,30}?\bconfirm(?:ation)?\b(?: again| it| this| that| everything)?"
    r",?\s+([^.?!)]+)\)?",
    re.IGNORECASE,
)
WAVERS = re.compile(
    r"mind\b|regret|instead|\brather\b|actually|\bkeep\b|no longer|\bnot\b|n['\u2019]t\b|\bonly\b|\balso\b|"
    r"\b(?:refuse|decline|hesitate|decide)\b|\b(?:say|reply|answer) no\b",
    re.IGNORECASE,
)


READ = {"instruction", "user_id", "actions", "outputs", "annotator"}  # keys of a task; the others are said


@read_once
def load_tasks(folder: str, splits: str = "hash") -> dict[str, list[Task]]:
    """Return {split: tasks}, by a hash of the task or of the folder's own files: tasks_train.json, tasks_dev.json,
    tasks_test.json, or else tasks.json for each split. Raise ValueError if a file has none, or one cannot be played."""
    if splits == "own":
        if not any(Path(folder).glob("tasks_*.json")):
            return dict.fromkeys(SPLITS, _read(folder, "tasks.json"))
        files = files_of(folder, "tasks_{}")
        return {split: _read(folder, Path(files[split]).name) if split in files else [] for split in SPLITS}
    tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
    for task in _read(folder, "tasks.json"):
        tasks[split_of(task.name)].append(task)
    return tasks


def _read(folder: str, name: str) -> list[Task]:
    """Return the tasks of a file of the folder, in its order."""
    shop, tasks, rows = load_shop(folder), [], read_json(folder, name, list)
    say_unread(f"{folder}/{name}", rows, READ)
    for number, row in enumerate(rows):
        try:
            tasks.append(_from_row(row, shop))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise Refusal(f"data: task {number} of {folder}/{name} cannot be played: {error!r}") from None
    return tasks


def _from_row(row: dict, shop: Shop) -> Task:
    """Return a task of the original as one wish, which the customer states completely at once."""
    instruction, user_id = row["instruction"], row["user_id"]
    shop.users[user_id]["name"]
    calls, vain = _replayed(_calls(row), shop)
    outputs = tuple(map(str, row.get("outputs") or ()))
    answer = "I can tell you: " + ", ".join(outputs) if outputs else "I am sorry, I cannot do that."
    said, turns = withdrawals(instruction)
    opening = first_person(said)
    facts = _facts([*calls, *vain], instruction, shop, user_id)
    refused = not outputs and not any(name in CHANGING for name, _ in calls)
    wish = Wish("original", opening, facts, tuple(facts), tuple(calls), outputs, (), answer, refused, vain=tuple(vain))
    settled = any(name in CHANGING for name, _ in [*calls, *vain])
    change = None
    for turn in reversed(turns):  # a later one follows when the agent asks again
        objection = "" if settled or change else f"No. {turn}."
        change = replace(wish, says=f"Wait. {turn}.", objection=objection, change=change)
    wish = replace(wish, change=change)
    name = f"{canonical(user_id)}:{instruction}"
    by_email = shop.users[user_id]["email"] in instruction
    return Task(name, user_id, (wish,), by_email=by_email, opening=opening, instruction=instruction)


def _calls(row: dict) -> list[Call]:
    """Return the ground truth's tool calls. Raise ValueError for an entry that is not a tool call."""
    calls = [(each["name"], dict(each.get("kwargs", each.get("arguments", {})))) for each in row["actions"]]
    calls = [each for each in calls if each[0] != "respond"]
    for name, arguments in calls:
        if name not in TOOLS:
            raise Refusal(f"unknown tool {name}")
        if wrong := misfit(name, arguments):
            raise Refusal(wrong)
    return calls


def _replayed(calls: list[Call], shop: Shop) -> tuple[list[Call], list[Call]]:
    """Return the calls that succeed one after another, each once, and the calls that fail.

    Of equal calls the last stays: it overwrites what those before have done. A transfer comes last, since it ends the
    episode.
    """
    db, succeed, fail = Database(shop), {}, []
    for name, arguments in calls:
        if failed(call(db, name, arguments)):
            fail.append((name, arguments))
        else:
            succeed.pop(key(name, arguments), None)
            succeed[key(name, arguments)] = (name, arguments)
    return sorted(succeed.values(), key=lambda each: each[0] == HUMAN), fail


def _facts(calls: list[Call], instruction: str, shop: Shop, user_id: str) -> dict[str, str]:
    """Return the facts that the calls need, in the customer's words. An id is one only if the instruction has it."""
    found: dict[str, list[str]] = {"order": [], "reason": [], "items": [], "payment": [], "address": []}
    methods = shop.users[user_id]["payment_methods"]
    for _, arguments in calls:
        texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
        order_id, reason, method = (texts.get(name, "") for name in ("order_id", "reason", "payment_method_id"))
        items = shop.orders[order_id]["items"] if order_id in shop.orders else []
        meant = arguments.get("item_ids")
        names = [f"the {item['name']}" for item in items if isinstance(meant, list) and item["item_id"] in meant]
        found["items"] += names
        if order_id in instruction:
            found["order"] += [order_id] if order_id else []
        elif items:
            found["order"] += [f"the one with {each}" for each in names or [f"the {items[0]['name']}"]]
        found["reason"] += [reason] if reason else []
        found["payment"] += [f"my {method_words(methods[method])}"] if method in methods else []
        lines = [texts[line] for line in ADDRESS if texts.get(line)]
        found["address"] += [", ".join(lines)] if texts.get("address1", "\n") in instruction else []
    return {topic: f"It is {', '.join(dict.fromkeys(said))}." for topic, said in found.items() if said}


def withdrawals(instruction: str) -> tuple[str, list[str]]:
    """Return an instruction without what the customer does when asked to confirm, other than to agree; and that."""
    turns = [found for found in AT_CONFIRMATION.finditer(instruction) if WAVERS.search(found[1])]
    said = instruction
    for found in reversed(turns):
        said = said[: found.start()] + said[found.end() :]
    return re.sub(r"([.?!])(?:\s*\.)+", r"\1", said) if turns else said, [first_person(f[1].strip()) for f in turns]


def first_person(instruction: str) -> str:
    """Return an instruction to a customer in the first person: your order -> my order."""
    said = re.sub(r"\b(chang\w+) you mind", r"\1 your mind", instruction)  # a slip of some of the original's
    said = SECOND.sub(lambda found: PERSONS[found[0].lower()], said)
    return re.sub(r"(^|[.!?] )([a-z])", lambda found: found[1] + found[2].upper(), said)
