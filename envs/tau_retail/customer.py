"""The customer: a script, or the messages that make a model play one.

A scripted customer has a list of wishes and states them in order. It searches the agent's text for questions about a
topic, for a request to confirm, and for a refusal. It answers a question with the fact about that topic, which it does
not reveal before. A text without any of these gets the wish again.
"""

import re
from dataclasses import dataclass, replace

from envs.tau_retail.shop import Shop
from envs.tau_retail.tasks import Task
from envs.tau_retail.tools import CHANGING
from envs.tau_retail.wish import Wish

STOP = "###STOP###"
HEARD = 2000  # characters read of the agent's text
TOPICS = {
    "identity": re.compile(
        r"e-?mail|\bzip|your (full |first |last )?name|identi|authenticat|verify|who (am i|are you)"
    ),
    "order": re.compile(r"order (id|number|no\b)|(which|what) orders?\b"),
    "reason": re.compile(r"\breasons?\b|\bwhy\b"),
    "items": re.compile(r"\bitems?\b|\boptions?\b|\bvariants?\b|(which|what) products?\b|colou?r|\bsize\b"),
    "payment": re.compile(r"payment|refund|\bcards?\b|paypal|\bpay\b"),
    "address": re.compile(r"(?<!email )\baddress\b|\bstreet\b|\b(ship|deliver|send) (it|this|the order|them) to\b"),
}
AGREE = re.compile(
    r"(?<!^)\byes\b|proceed|go ahead|(shall|should) i\b|do you (confirm|agree)|would you like me to|"
    r"is (this|that|it) (ok|right|correct|fine)|please confirm($|[.?!])"
)
REFUSAL = re.compile(
    r"can ?not|can['\u2019]?t\b|unable|not able|won['\u2019]?t be able|impossible|\b(deny|refuse|decline)\b|"
    r"(not|isn['\u2019]t|aren['\u2019]t) (possible|allowed|permitted|available|eligible|accepted)|"
    r"(only|must be) (pending|delivered)"
)
ORDER_ID = re.compile(r"#W\d{1,10}")
METHOD_ID = re.compile(r"\b(?:credit_card|gift_card|paypal)_\d{1,10}")


@dataclass(frozen=True)
class Mood:
    """A customer's manner of speaking."""

    greets: str
    agrees: str
    accepts: str  # reply to a refusal


MOODS = {
    "plain": Mood("Hi.", "Yes, please.", "I see."),
    "brisk": Mood("", "Yes.", "Fine."),
    "friendly": Mood("Hello there, I hope you are having a good day!", "Yes, that would be lovely.", "Oh, never mind."),
    "annoyed": Mood("This shop is wearing me out.", "Yes, and be quick about it.", "Typical. Let it be, then."),
    "unsure": Mood("Hello? I hope that I am right here.", "Um, I think so. Yes.", "Oh. Then I had better leave it."),
    "talkative": Mood("Good day! My neighbour told me to simply ask, so here I am.", "Yes, do, wonderful.", "A pity."),
}


class Customer:
    """A scripted customer. `hear` returns the reply to the agent's text."""

    def __init__(self, task: Task, shop: Shop):
        self.task, self.mood = task, MOODS[task.mood]
        self.wishes = list(task.wishes)
        self.index = 0
        user = shop.users[task.user_id]
        name, place = user["name"], user["address"]["zip"]
        self.identity = f"My name is {name['first_name']} {name['last_name']}, and my zip code is {place}."
        if task.by_email:
            self.identity = f"My email is {user['email']}."
        self.identified = False  # whether the customer has given name or email
        self._begin()

    @property
    def wish(self) -> Wish | None:
        """The current wish; None when all are done."""
        return self.wishes[self.index] if self.index < len(self.wishes) else None

    def opening(self) -> str:
        """Return the customer's first line."""
        return self.task.opening or f"{self.mood.greets} {self.wishes[0].says}".strip()

    def saw(self) -> None:
        """Count a change to the database. The customer assumes that it belongs to the current wish."""
        self.changes += 1

    def hear(self, text: str) -> str:
        """Return the customer's reply."""
        wish, low = self.wish, text[:HEARD].lower()
        if wish is None:
            return STOP
        self.unsaid = {output for output in self.unsaid if not says(text, output)}
        asked = [topic for topic, pattern in TOPICS.items() if pattern.search(low)]
        if self._satisfied(wish):
            return self._go_on("Thank you.")
        stranger = "identity" in asked and not self.identified
        if REFUSAL.search(low) and wish.refused and not stranger:
            return self._go_on(self.mood.accepts)
        if AGREE.search(low) and not stranger:
            return self._asked_to_agree(wish, text, [self._tell(topic) for topic in asked if not self._knows(topic)])
        answers = [answer for topic in asked if (answer := self._tell(topic))]
        if answers:
            return " ".join(answers)
        if asked:
            return f"I cannot tell you more about that. {wish.says}"
        return f"Are you sure? Please look again. {wish.says}" if REFUSAL.search(low) else wish.says

    def _begin(self) -> None:
        """Start with the next wish."""
        self.changes, self.agreed = 0, False
        self.revealed = set(self.wish.known) if self.wish else set()
        self.unsaid = set(self.wish.outputs) if self.wish else set()

    def _go_on(self, word: str) -> str:
        """Return a word and the next wish, or STOP after the last one."""
        self.index += 1
        self._begin()
        return f"{word} {self.wish.says}" if self.wish else STOP

    def _satisfied(self, wish: Wish) -> bool:
        """Return whether the agent has made all changes and written all outputs of a wish."""
        needed = sum(name in CHANGING for name, _ in wish.calls)
        return bool(needed or wish.outputs) and self.changes >= needed and not self.unsaid

    def _asked_to_agree(self, wish: Wish, text: str, answers: list[str]) -> str:
        """Return the reply to a request to confirm: an objection, a changed wish, or the answers and a yes."""
        if mistaken := self._mistaken(wish, text):
            return mistaken
        if wish.change:
            self.wishes[self.index] = replace(wish.change, says=wish.says)  # a changed wish is stated once
            self.unsaid = set(wish.change.outputs)
            return wish.change.says
        self.agreed = True
        return " ".join(filter(None, [*answers, self.mood.agrees]))

    def _mistaken(self, wish: Wish, text: str) -> str:
        """Return an objection if the agent names only orders or payment methods other than the right ones; else ""."""
        for topic, pattern, key in (("order", ORDER_ID, "order_id"), ("payment", METHOD_ID, "payment_method_id")):
            meant = {arguments[key] for _, arguments in wish.calls if key in arguments}
            named = set(pattern.findall(text[:HEARD]))
            if meant and named and not meant & named:
                return f"No, that is not right. {self._tell(topic)}".strip()
        return ""

    def _knows(self, topic: str) -> bool:
        """Return whether the agent knows a fact already."""
        return self.identified if topic == "identity" else topic in self.revealed

    def _tell(self, topic: str) -> str:
        """Return the fact that a question asks for, or "" if there is none."""
        if topic == "identity":
            self.identified = True
            return self.identity
        self.revealed.add(topic)
        return self.wish.facts.get(topic, "")


def says(text: str, output: str) -> bool:
    """Return whether a text contains an output of the task, ignoring case and commas."""
    return output.lower() in text.lower().replace(",", "")


# -- the customer as a model

MODEL_RULES = """\
You play a customer who writes to the agent of an online shop. Stay in that role.

Who you are and what you want: {instruction}

- Write one message of one line at a time, as the customer.
- Come to your requests one by one, and tell a detail only when it is needed or asked for.
- Use your own words instead of repeating this description.
- What you were not told here, you do not know: invent no order numbers and no other details.
- When everything you want has been dealt with, or you were passed on to a human, write only {stop}"""
GREETING = "Hi! How can I help you today?"


def model_chat(task: Task, customer: Customer) -> list[dict]:
    """Return the messages that make a model play a task's customer, up to its first line."""
    rules = MODEL_RULES.format(instruction=task.instruction or _instruction(task, customer), stop=STOP)
    opening = task.opening.partition(". ")[0] if task.opening else customer.opening()
    turns = ("system", rules), ("user", GREETING), ("assistant", opening)
    return [{"role": role, "content": text} for role, text in turns]


def _instruction(task: Task, customer: Customer) -> str:
    """Return a generated task as an instruction."""
    parts = [f'Asked who you are: "{customer.identity}"']
    for number, wish in enumerate(task.wishes, 1):
        parts.append(f'Request {number}: "{wish.says}"')
        parts += [f'Asked about the {topic}: "{fact}"' for topic, fact in wish.facts.items()]
        parts += ["If the agent refuses, you accept it."] if wish.refused else []
        parts += [f'Before you agree, you change your mind: "{wish.change.says}"'] if wish.change else []
    mood = [] if task.mood == "plain" else [f"You are {task.mood}."]
    return " ".join(parts + mood)
