"""A checkpoint's own chat template as a format, for families without a hand-written one.

A template is an untrusted jinja2 program that renders a whole conversation at once. Message text is disguised before
rendering, so that the control tokens in the result are the template's own. What an episode appends is the difference of
two renderings. A template is refused if the rendering of a longer conversation does not begin with that of a shorter
one, because it rewrites what the model has already read.

A template may drop the thoughts of all messages that it is given (DeepSeek-R1-Distill): that rewrites nothing. Sampled
thoughts stay, thoughts in a given conversation are lost.
"""

import re
import secrets
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from pathlib import Path

from models.chat.formats import ANSWER, THINK, Marks
from models.chat.jinja import Compiled
from models.chat.names import pattern, show

ASKED, SAID = "Qhjx?", "Wvkz!"  # texts of the probes, found again in a rendering


def with_deadline(method: Callable) -> Callable:
    """Decorator of a Template's method: give it time of its own, and put the checkpoint's folder before the message of
    a ValueError."""

    @wraps(method)
    def call(self, *arguments, **options):
        self._run.renew()
        try:
            return method(self, *arguments, **options)
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from None

    return call


class Template:
    """A format (models.chat.formats.Format) that renders with a compiled chat template.

    variables: the template's variables beside the conversation: bos_token and the like, enable_thinking.
    folder: the checkpoint's, which errors name once the format is chosen.
    Raise ValueError with one line for a template that cannot be run, ends a reply with no control token, numbers its
    messages, or rewrites earlier ones. If it rewrites only with a system message, only such conversations are refused.
    """

    def __init__(self, run: Compiled, mark: Marks, variables: dict[str, object], folder: Path):
        self.folder = folder
        self.mark, self._run, self._variables, self._disguise = mark, run, variables, Disguise(mark)
        user, assistant = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
        self._asked, self._answered = [user], [user, assistant]
        self._probe([])
        self._no_system = None
        try:
            self._probe([{"role": "system", "content": "Ypfq."}])
        except ValueError as error:
            self._no_system = str(error)
        self._before, rendered = self._render(self._asked), self._render(self._answered, header=False)
        self._close = rendered[rendered.rindex(SAID) + len(SAID) :]
        ends = pattern(self.mark).search(self._close)
        if not ends:
            raise ValueError(f"the chat template ends a reply with {show(self.mark, self._close)!r}, no control token")
        self.end = ends[0]
        self._open = self._before[_common_prefix(self._before, rendered) :]  # "<think>\n", absent from past replies

    @with_deadline
    def render(self, messages: list[dict], header: bool = True) -> str:
        if self._no_system and any(message["role"] == "system" for message in messages):
            raise ValueError(self._no_system)
        return self._render(messages, header)

    @with_deadline
    def reply(self, content: str) -> tuple[str, str]:
        if show(self.mark, self._open).startswith(THINK) and ANSWER not in content:
            content = f"{THINK}\n\n{ANSWER}\n\n{content}"  # a demonstration without thoughts
        message = {"role": "assistant", "content": content}
        if self._open:
            text = self._disguise.reveal(self._hide(message)) + self._close
            if not text.startswith(self._open):
                opened = show(self.mark, self._open)
                raise ValueError(f"the chat template opens each reply with {opened!r}; {content[:40]!r} does not")
            text = text.removeprefix(self._open)
        else:
            text = _appended(self.mark, self._before, self._render([*self._asked, message], header=False))
        return self._before, text[: text.rindex(self.end) + len(self.end)]

    @with_deadline
    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        rendered = self._render(self._answered, header=False)
        more = _appended(self.mark, rendered, self._render([*self._answered, *messages]))
        if not closed:
            return SAID, self._close + more
        return self.end, self._close[self._close.index(self.end) + len(self.end) :] + more

    def _render(self, messages: list[dict], header: bool = True) -> str:
        disguised = [{"role": message["role"], "content": self._hide(message)} for message in messages]
        return self._disguise.reveal(self._run(messages=disguised, add_generation_prompt=header, **self._variables))

    def _hide(self, message: dict) -> str:
        """Return a message's disguised text; an assistant's think marks stay readable, templates look for them."""
        parts = re.split(f"({THINK}|{ANSWER})", message["content"])
        thinks = message["role"] == "assistant"
        return "".join(part if thinks and i % 2 else self._disguise.hide(part) for i, part in enumerate(parts))

    def _probe(self, first: list[dict]) -> None:
        """Raise ValueError if the template rewrites earlier messages, thoughts included, or numbers its messages."""
        thoughtful = {"role": "assistant", "content": f"{THINK}\nBgxd.\n{ANSWER}\n\n{SAID}"}
        talk = [*first, *self._asked, thoughtful, *self._asked, thoughtful, *self._asked]
        rendered = [self._render(talk[:n], header=False) for n in range(len(first) + 1, len(talk) + 1)]
        added = [_appended(self.mark, *pair) for pair in pairwise(rendered)]
        if added[1] != added[3]:
            raise ValueError("the chat template numbers messages: a question differs after a second reply")
        if not all(SAID in text for text in added[::2]):
            raise ValueError("the chat template leaves out the assistant's messages")


class Disguise:
    """Replaces the first and last characters of control tokens in message text by names that no text can contain."""

    def __init__(self, mark: Marks):
        key, self._names = secrets.randbelow(10**20), mark.names
        solid = sorted((token for token in mark.names if token.strip()), key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, solid)) or r"(?!)")
        edges = {c for token in solid for c in (token[0], token[-1]) if not c.isspace()}
        self._characters = {ord(c): f"\ue002{key}.{ord(c)}\ue003" for c in edges}
        self._disguised = re.compile(f"\ue002{key}\\.([0-9]+)\ue003")

    def hide(self, text: str) -> str:
        """Return text for a template to render: it contains no control token, nor the start or end of one."""
        return text.translate(self._characters)

    def reveal(self, rendered: str) -> str:
        """Return a rendering with the template's control tokens under their names and the messages' text restored."""
        parts = self._disguised.split(rendered)
        parts[::2] = [self._tokens.sub(lambda token: self._names[token[0]], part) for part in parts[::2]]
        parts[1::2] = [chr(int(code)) for code in parts[1::2]]
        return "".join(parts)


def _appended(mark: Marks, before: str, after: str) -> str:
    """Return the text that the longer rendering adds to the shorter. Raise ValueError if it rewrites the shorter."""
    if not after.startswith(before):
        at = _common_prefix(before, after)
        near, first, later = (show(mark, text) for text in (before[:at][-60:], before[at:][:60], after[at:][:60]))
        raise ValueError(
            "the chat template rewrites earlier messages when more are appended: "
            f"after {near[-30:]!r} it has {first[:30]!r}, later {later[:30]!r}"
        )
    return after[len(before) :]


def _common_prefix(one: str, other: str) -> int:
    """Return the number of characters that two texts have in common before they differ."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
