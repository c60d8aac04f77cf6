"""Exercises of reading: copy what stands in the context, and look up in two steps.

A context is a table of made-up names, numbers and codes, one pair a line. Questions follow, one a turn:

    ? KEY    the key's value                      ?? KEY   the value's value, since some values are keys of other lines
    < VALUE  the value's key                      ! KEY    the whole line

Each exercise draws its words anew, so that nothing can be remembered. models/tiny/make_tiny.py trains on exercises
before it trains on demonstrations: attention heads that copy (induction heads, Olsson et al. 2022) form early on them,
and late on demonstrations, few of whose tokens are copies. models/tiny/measure.py measures a model by them.
"""

import string
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch

from models.chat.tokenizer import Tokenizer
from models.decoder import CausalLM

VOWELS, CONSONANTS = "aeiou", "bcdfghjklmnprstvwxz"
SIGNS = {"copy": "?", "two steps": "??", "inverse": "<", "line": "!"}


class Style(NamedTuple):
    """How an exercise is written. A word has other tokens behind a space than without one."""

    line: str  # before a key
    separators: tuple[str, ...]  # between a key and its value
    gap: str  # between a question's sign and its word
    answer: str  # before the answer


SPACED = Style("- ", (": ", " = ", ", ", " - ", " using ", " in "), " ", "= ")  # each word has a space before it
TIGHT = Style("", ("|", "=", ";"), "", "")  # none has
MIXED = Style("", (": ", ", "), "", "")  # values alone have: a copy has other tokens than the word
STYLES = {SPACED: 6, TIGHT: 2, MIXED: 1}


def word(rng: Random) -> str:
    """Return a made-up word of 3 to 7 letters."""
    letters = [rng.choice((VOWELS, CONSONANTS)[i % 2]) for i in range(rng.randint(3, 7))]
    return "".join(letters if rng.random() < 0.5 else reversed(letters))


def name(rng: Random, known: Sequence[str] = ()) -> str:
    """Return a name of one or two words, a number, or a code. known: words to use beside made-up ones."""
    kind = rng.random()
    if kind < 0.15:
        return str(rng.randrange(10 ** rng.randint(1, 4)))
    if kind < 0.25:
        return "".join(rng.choices(string.ascii_uppercase + string.digits * 2, k=rng.randint(3, 10)))
    words = [rng.choice(known) if known and rng.random() < 0.6 else word(rng) for _ in range(rng.choice((1, 1, 2)))]
    if kind < 0.35:
        return rng.choice(("_", "/", ".", "-")).join([*words, str(rng.randrange(1000))])
    return " ".join(words)


def table(rng: Random, lines: int, known: Sequence[str] = (), chained: float = 0.5) -> dict[str, str]:
    """Return distinct keys with their values; a share of the values are keys of other lines."""
    keys = list(dict.fromkeys(name(rng, known) for _ in range(lines)))
    return {k: rng.choice(keys) if rng.random() < chained else name(rng, known) for k in keys}


class Exercise(NamedTuple):
    """A table, and how it is written."""

    pairs: dict[str, str]
    style: Style
    separator: str

    def line(self, key: str) -> str:
        return f"{self.style.line}{key}{self.separator}{self.pairs[key]}"

    def ask(self, kind: str, key: str) -> tuple[str, str] | None:
        """Return a question about a key's line and its answer, or None if the table does not decide it."""
        pairs, value, asked = self.pairs, self.pairs[key], key
        answer = {"copy": value, "two steps": pairs.get(value), "inverse": key, "line": f"{key}{self.separator}{value}"}
        if kind == "inverse":
            asked = value if list(pairs.values()).count(value) == 1 else None
        if asked is None or answer[kind] is None:
            return None
        return f"{SIGNS[kind]}{self.style.gap}{asked}", f"{self.style.answer}{answer[kind]}"


def styled(rng: Random, pairs: dict[str, str]) -> Exercise:
    [style] = rng.choices(list(STYLES), list(STYLES.values()))
    return Exercise(pairs, style, rng.choice(style.separators))


def exercise(rng: Random, lines: int, questions: int, known: Sequence[str] = ()) -> list[dict]:
    """Return a conversation: a table with its first question, and further questions with their answers."""
    made = styled(rng, table(rng, lines, known))
    keys = list(made.pairs)
    kinds = rng.choices(list(SIGNS), (4, 3, 1, 2), k=4 * questions)
    asked = [pair for kind in kinds if (pair := made.ask(kind, rng.choice(keys)))][:questions]
    messages = []
    for ask, answer in asked:
        messages += [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    rows = "\n".join(map(made.line, rng.sample(keys, len(keys))))
    messages[0]["content"] = f"{rows}\n\n{messages[0]['content']}"
    return messages


def at_distance(rng: Random, kind: str, distance: int, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return (prompt, answer with its end), in tokens, of a question about the first lines of a table.

    Lines are added at the end until the first line is `distance` tokens away from the answer.
    """
    asked = None
    while asked is None:
        made = styled(rng, table(rng, 3, chained=0.0))
        first, second, *_ = [*made.pairs, None]
        if kind == "two steps" and second:
            made.pairs[first] = second
        asked = made.ask(kind, first)
    prompt: list[int] = []
    while len(prompt) < distance + 4:  # the header of the message comes first
        key, value = name(rng), name(rng)
        if not {key, value} & {*made.pairs, *made.pairs.values()}:
            made.pairs[key] = value
        text = "\n".join(map(made.line, made.pairs)) + f"\n\n{asked[0]}"
        prompt = tokenizer.prompt([{"role": "user", "content": text}])
    return prompt, tokenizer.reply(asked[1])


@torch.no_grad()
def share_right(model: CausalLM, tokenizer: Tokenizer, kind: str, n: int, distance: int, seed: int = 0) -> float:
    """Return the share of n exercises that the model answers right, end token included, when it decodes greedily."""
    rng, right = Random(f"{seed} {kind} {distance}"), 0
    for _ in range(n):
        prompt, answer = at_distance(rng, kind, distance, tokenizer)
        hidden_BTD = model(torch.tensor([prompt + answer]))[:, len(prompt) - 1 : -1]
        # Each token is the likeliest after the right ones before it: so greedy decoding gives the whole answer.
        right += ((hidden_BTD @ model.lm_head.weight.T).argmax(-1) == torch.tensor([answer])).all().item()
    return right / n
