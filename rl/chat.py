"""Talk to a model, or to adapters of it, at the terminal: python -m rl.chat adapter=runs/x/epoch_10

    python -m rl.chat                                   # the embedded model
    python -m rl.chat adapter=a=runs/x/epoch_5,b=runs/y/epoch_9 temperature=0

A line is sent as it is; one that begins with / is a command:
    /reset      forget the conversation          /undo       take back the last message and its reply
    /use NAME   go on with another adapter, or with the base (/use base)
    /quit       end; Ctrl-D does so too          Ctrl-C      stops a reply
Replies appear as they are sampled. The keys and values of the conversation are kept between them.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import queue
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass

from rl.config.arguments import NotNegative, Positive
from rl.config.fields import LEAST_TEMPERATURE
from rl.config.help import quiet_on_closed_pipe
from rl.config.refusals import Refusal
from rl.run import exits
from rl.serve.loading import load, parse_over_adapters_base
from rl.serve.sampler import Request, Sampler, random_states
from rl.serve.text import Text

with suppress(ImportError):
    import readline  # noqa: F401  (gives `input` a history and keys to edit a line)

COMMANDS = "/reset, /undo, /use NAME, /quit"
EMBEDDED = "The embedded model knows the short prompts of its environments and nothing else. "
EMBEDDED += "python -m envs NAME prompt=short shows them."


@dataclass(frozen=True)
class Keys:
    system: str = ""  # a system message to begin with
    temperature: NotNegative[float] = 1.0  # of sampling; 0: the most likely tokens
    top_k: NotNegative[int] = 0  # sample from that many most likely tokens; 0: all
    top_p: Positive[float] = 1.0  # sample from the fewest tokens that have this probability together
    max_new_tokens: Positive[int] = 512  # most tokens of a reply
    seed: int | None = None  # of the replies; none: another each time

    def __post_init__(self):
        if self.top_p > 1:
            raise Refusal(f"top_p={self.top_p}: a probability, at most 1")
        if self.seed is not None and not -(2**63) <= self.seed < 2**63:
            raise Refusal(f"seed={self.seed}: a whole number of 64 bits")
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise Refusal(f"temperature={self.temperature} is too small to divide by; 0 takes the likeliest tokens")


class Chat:
    """A conversation with one of the sampler's adapters."""

    def __init__(self, sampler: Sampler, keys: Keys):
        self.sampler, self.keys, self.name = sampler, keys, next(iter(sampler.adapters), None)
        self.opening = [{"role": "system", "content": keys.system}] if keys.system else []
        self.ids: list[int] = []  # of the conversation so far; sampled ids are kept as they are
        self.before: list[list[int]] = []  # `ids` before each message
        self.news: queue.SimpleQueue = queue.SimpleQueue()
        sampler.notify = lambda requests: self.news.put(None)

    def say(self, line: str) -> None:
        """Send a message and print the reply as it comes. Ctrl-C ends the reply."""
        tokenizer, message = self.sampler.tokenizer, {"role": "user", "content": line}
        if self.ids:
            ids = self.ids + tokenizer.follow_up(self.ids[-1], [message])
        else:
            ids = tokenizer.prompt([*self.opening, message])
        if len(ids) >= self.sampler.max_len:
            print(f"the conversation has {len(ids)} tokens of at most {self.sampler.max_len}; /reset begins another")
            return
        self.before.append(self.ids)
        keys, [state] = self.keys, random_states(self.keys.seed, None, 1)
        limits = keys.max_new_tokens, keys.temperature, state, tokenizer.eos_ids
        request = Request(ids, self.name, *limits, top_k=keys.top_k, top_p=keys.top_p)
        before = signal.signal(signal.SIGINT, lambda *_: setattr(request, "cancelled", True))
        try:
            self.sampler.submit(request)
            self._print(request)
        finally:
            signal.signal(signal.SIGINT, before)
        self.ids = ids + request.sampled

    def _print(self, request: Request) -> None:
        """Print the reply as it comes, and how it ended unless by a stop token."""
        text, printed = Text(self.sampler.tokenizer), 0
        while True:
            self.news.get()
            finish, count = request.finish, len(request.logprobs)
            print(printable(text.add(request.sampled[printed:count], last=bool(finish))), end="", flush=True)
            printed = count
            if finish:
                break
        note = {"stop": "", "cancelled": " [stopped]", "error": f" [{request.error}]"}
        print(note.get(finish, " [cut: max_new_tokens or max_len]"))

    def command(self, line: str) -> bool:
        """Carry out a command; return whether the conversation goes on."""
        word, _, rest = line.partition(" ")
        if word == "/quit":
            return False
        if word == "/reset":
            self.ids, self.before = [], []
            print("a new conversation")
        elif word == "/undo" and self.before:
            self.ids = self.before.pop()
            print(f"taken back: {len(self.before)} before it")
        elif word == "/use" and rest.strip() in ("base", *self.sampler.adapters):
            self.name = None if rest.strip() == "base" else rest.strip()
            print(f"{rest.strip()} goes on with the conversation")
        elif word == "/use":
            print(f"choose from: {', '.join(('base', *self.sampler.adapters))}")
        else:
            print("nothing to take back" if word == "/undo" else f"commands: {COMMANDS}")
        return True


def printable(text: str) -> str:
    """Return text whose escape codes cannot change the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def talk(chat: Chat) -> None:
    """Read lines until /quit or the end of the input."""
    terminal = sys.stdin.isatty()
    while True:
        try:
            line = input("> " if terminal else "").strip()
        except EOFError:
            print() if terminal else None
            return
        if line.startswith("/"):
            if not chat.command(line):
                return
        elif line:
            chat.say(line)


def main(words: list[str]) -> None:
    model, keys = parse_over_adapters_base(words, "rl.chat", Keys, about=__doc__)
    with exits.exits_cleanly("rl.chat", needs="max_len= bounds the memory of keys and values"), quiet_on_closed_pipe():
        sampler = load(model, rows=1, most_waiting=1)
        chat = Chat(sampler, keys)
        if model.model == "tiny":
            print(EMBEDDED)
        print(f"{chat.name or model.model}; {COMMANDS}")
        sampler.start()
        try:
            talk(chat)
        finally:
            sampler.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
