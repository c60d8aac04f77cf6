"""The customer: a script, or the messages that make a model play one.

A scripted customer has a list of wishes and states them in order. It searches the agent's text for questions about a
topic, for a request to confirm, and for a refusal (envs/tau_retail/hearing.py). It answers a question with the fact
about that topic, which it does not reveal before. A text without any of these gets the wish again. Of a line that it
would say again and again the customer only says how often it has said that.
"""

import re
from collections import Counter
from dataclasses import dataclass, replace

from envs.answers import numbers_in
from envs.tau_retail.hearing import asked_topics, asks_to_agree, plain, refuses
from envs.tau_retail.shop import Shop
from envs.tau_retail.tasks import Task
from envs.tau_retail.wish import Wish

MOST_GUESSES = 10  # numbers that an agent may write without having read them; more are a list that guesses
STOP = "###STOP###"
HEARD = 2000  # characters read of the agent's text
REPEATS = 2  # times that a customer says the same line about a wish
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
        self.seen: set[float] = set()  # numbers that the agent has read
        self.guesses: set[float] = set()  # numbers that it has written without having read them
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

    def saw_failure(self, name: str, arguments: dict) -> None:
        """Note a call that failed: nothing more can be done if the original's ground truth fails there too."""
        self.tried = self.tried or (self.wish is not None and self.wish.fails(name, arguments))

    def read(self, text: str) -> None:
        """Note the numbers that the agent has read, from a tool or from the customer."""
        self.seen |= numbers_in(text)

    def note(self, text: str) -> None:
        """Note the numbers of the agent's text that it has not read anywhere."""
        self.guesses |= numbers_in(text) - self.seen

    def told(self, text: str, output: str) -> bool:
        """Return whether a text tells an output of the task. An agent that guesses many numbers tells none."""
        return len(self.guesses) <= MOST_GUESSES and says(text, output)

    def hear(self, text: str) -> str:
        """Return the customer's reply."""
        line = self._reply(text)
        self.said[line] += 1
        if line == STOP or self.said[line] <= REPEATS:
            return line
        yes = "Yes. " if line.endswith(self.mood.agrees) else ""
        return f"{yes}I have said that {self.said[line]} times now."

    def _reply(self, text: str) -> str:
        """Return the reply, however often it has been given."""
        wish, low = self.wish, plain(text[:HEARD])
        if wish is None:
            return STOP
        self.unsaid = {output for output in self.unsaid if not self.told(text, output)}
        if self._satisfied(wish):
            return self._go_on("Thank you.")
        asked, agree, no = asked_topics(low), asks_to_agree(low), refuses(low)
        stranger = "identity" in asked and not self.identified
        if no and wish.refused and not stranger:
            return self._go_on(self.mood.accepts)
        if agree and not stranger:
            return self._asked_to_agree(wish, text, [self._tell(topic) for topic in asked if not self._knows(topic)])
        answers = [answer for topic in asked if (answer := self._tell(topic))]
        if answers:
            return " ".join(answers)
        if asked:
            return f"I cannot tell you more about that. {wish.says}"
        return f"Are you sure? Please look again. {wish.says}" if no else wish.says

    def _begin(self) -> None:
        """Start with the next wish."""
        self.changes, self.tried, self.agreed = 0, False, False
        self.said: Counter[str] = Counter()  # lines about this wish
        self.revealed = set(self.wish.known) if self.wish else set()
        self.unsaid = set(self.wish.outputs) if self.wish else set()

    def _go_on(self, word: str) -> str:
        """Return a word and the next wish, or STOP after the last one."""
        self.index += 1
        self._begin()
        return f"{word} {self.wish.says}" if self.wish else STOP

    def _satisfied(self, wish: Wish) -> bool:
        """Return whether the agent has made all changes and written all outputs of a wish."""
        ends = wish.changes or wish.outputs or wish.objection or self.tried
        return bool(ends) and self.changes >= wish.changes and not self.unsaid

    def _asked_to_agree(self, wish: Wish, text: str, answers: list[str]) -> str:
        """Return the reply to a request to confirm: an objection, a changed wish, or the answers and a yes."""
        if mistaken := self._mistaken(wish, text):
            return mistaken
        if wish.change:
            self.wishes[self.index] = replace(wish.change, says=wish.says)  # a changed wish is stated once
            self.unsaid = {text for text in wish.change.outputs if text in self.unsaid or text not in wish.outputs}
            return wish.change.says
        if wish.objection:
            return wish.objection
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
    """Return whether a text contains an output of a task: a number by its value, words in any case, without commas."""
    if len(numbers := numbers_in(output)) == 1 and re.fullmatch(r"[$\d.,]+", output):
        return numbers <= numbers_in(text)
    plain = re.escape(output.lower().replace(",", ""))
    return bool(re.search(rf"(?<!\w){plain}(?!\w)", text.lower().replace(",", "")))


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
