"""A checkpoint's own chat template, turn by turn, for the families whose turns are not written by hand.

A template is a jinja2 program from a stranger that renders a whole conversation at once. Text goes through it in
disguise (Marks.hide), so that the control tokens in a rendering are the template's own, and the turns of an episode,
which is only appended to, are the differences of renderings. A template whose rendering of a conversation does not
begin with its rendering of the conversation so far rewrites what was already read, and is refused.

A template that drops the thoughts of the messages it is given, wherever they stand (DeepSeek-R1-Distill), rewrites
nothing in this sense: what was sampled keeps its thoughts, what is given as history has lost them.
"""

import re
from collections.abc import Callable
from itertools import pairwise

from models.chat.formats import ANSWER, THINK, Marks

ASKED, SAID = "Qhjx?", "Wvkz!"  # texts of the probes, found again in a rendering


class Template:
    """A format (see models.chat.formats) around a chat template.

    run:       the template, compiled.
    variables: what it sees beside the conversation: bos_token and the like, enable_thinking.
    Raises ValueError, one line: a template that cannot be run, ends a reply with no control token, counts turns, or
    rewrites earlier ones. One that rewrites only where there is a system message is refused for those conversations.
    """

    def __init__(self, run: Callable[..., str], mark: Marks, variables: dict[str, object]):
        self.mark, self._run, self._variables = mark, run, variables
        user, assistant = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
        self._asked, self._answered = [user], [user, assistant]
        self._probe([])
        self._no_system = None
        try:
            self._probe([{"role": "system", "content": "Ypfq."}])
        except ValueError as error:
            self._no_system = str(error)
        self._before, rendered = self.render(self._asked), self.render(self._answered, header=False)
        self._close = rendered[rendered.rindex(SAID) + len(SAID) :]
        ends = self.mark.pattern.search(self._close)
        if not ends:
            raise ValueError(f"the chat template ends a reply with {self.mark.show(self._close)!r}, no control token")
        self.end = ends[0]
        self._open = self._before[_agreed(self._before, rendered) :]  # "<think>\n", which history lacks

    def render(self, messages: list[dict], header: bool = True) -> str:
        if self._no_system and any(message["role"] == "system" for message in messages):
            raise ValueError(self._no_system)
        return self._render(messages, header)

    def reply(self, content: str) -> tuple[str, str]:
        if self.mark.show(self._open).startswith(THINK) and ANSWER not in content:
            content = f"{THINK}\n\n{ANSWER}\n\n{content}"  # an expert that does not think aloud
        said = {"role": "assistant", "content": content}
        if self._open:
            text = self.mark.reveal(self._hide(said)) + self._close
            if not text.startswith(self._open):
                opened = self.mark.show(self._open)
                raise ValueError(f"the chat template opens each reply with {opened!r}; {content[:40]!r} does not")
            text = text.removeprefix(self._open)
        else:
            text = _appended(self.mark, self._before, self._render([*self._asked, said], header=False))
        return self._before, text[: text.rindex(self.end) + len(self.end)]

    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        rendered = self._render(self._answered, header=False)
        more = _appended(self.mark, rendered, self._render([*self._answered, *messages]))
        if not closed:
            return SAID, self._close + more
        return self.end, self._close[self._close.index(self.end) + len(self.end) :] + more

    def _render(self, messages: list[dict], header: bool = True) -> str:
        hidden = [{"role": message["role"], "content": self._hide(message)} for message in messages]
        return self.mark.reveal(self._run(messages=hidden, add_generation_prompt=header, **self._variables))

    def _hide(self, message: dict) -> str:
        """A message's text in disguise, but for the marks of an assistant's thoughts, which templates look for."""
        parts = re.split(f"({THINK}|{ANSWER})", message["content"])
        thinks = message["role"] == "assistant"
        return "".join(part if thinks and i % 2 else self.mark.hide(part) for i, part in enumerate(parts))

    def _probe(self, first: list[dict]) -> None:
        """Raises ValueError if the template rewrites earlier turns, thoughts included, or numbers its turns."""
        thoughtful = {"role": "assistant", "content": f"{THINK}\nBgxd.\n{ANSWER}\n\n{SAID}"}
        talk = [*first, *self._asked, thoughtful, *self._asked, thoughtful, *self._asked]
        rendered = [self._render(talk[:n], header=False) for n in range(len(first) + 1, len(talk) + 1)]
        added = [_appended(self.mark, *pair) for pair in pairwise(rendered)]
        if added[1] != added[3]:
            raise ValueError("the chat template renders a question differently after a second reply: it counts turns")
        if not all(SAID in text for text in added[::2]):
            raise ValueError("the chat template leaves out what the assistant says")


def _appended(mark: Marks, before: str, after: str) -> str:
    """What the longer rendering adds to the shorter."""
    if not after.startswith(before):
        at = _agreed(before, after)
        near, first, later = (mark.show(text) for text in (before[:at][-60:], before[at:][:60], after[at:][:60]))
        raise ValueError(
            "the chat template rewrites earlier turns when messages are appended: "
            f"after {near[-30:]!r} it has {first[:30]!r}, later {later[:30]!r}"
        )
    return after[len(before) :]


def _agreed(one: str, other: str) -> int:
    """How many characters two texts have in common before they differ."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
