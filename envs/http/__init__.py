"""HTTP: a world that a server plays: AgentGym's servers, LifelongAgentBench's, or ours, `python -m envs.serve`.

Task.     What the server makes of a task number. Seeds count the numbers of a split: of every ten the first eight are
          train, then one val and one test; of babyai, where number % 40 is the level, of every ten blocks of 40. So no
          number is in two splits. The originals' servers have so many tasks, after which they come again; ours has no
          end, and plays the episode of that seed and split, the same text, byte for byte, as in process.

Actions.  The world's own. What is read of a reply, and sent:
    webshop alfworld sciworld   the text behind the last `Action:`; without one nothing, but to webshop a whole reply
                                that holds `search[` or `click[`
    babyai textcraft            the line that follows `Action:`, reduced to letters, digits, commas and spaces; with
                                several markers nothing is sent, and the reply says so
          With prompt=short the reply's first line, for these five. Of the other kinds the whole reply is sent.

Prompts.  The world's own, native or short, around what the server says: alfworld's first observation ends with the list
          of available actions, sciworld's begins with the task. A server of os_interaction or db_bench says the whole
          prompt itself, the originals' the native one. Serve a world with the prompt that you ask for here.
          Where an AgentGym server's greeting names another world or prompt, reset raises ValueError at once; that the
          five worlds of AgentGym are served with the native prompt it does not tell.

Reward.   AgentGym: the server's `reward`. info["success"]: it ended with a reward of 1, with a score of 100 in
          sciworld, with any reward in babyai. info["valid"]: the reply is none of the world's refusals; webshop's is
          the same page again, after anything but a search or a click on a part of it. tau_retail and planner: `info` is
          the server's. LifelongAgentBench, where only /complete judges: see envs/http/lab.py.
          info["shaped"] (but of tau_retail and planner): 1 on success, nothing on the way.

Ending.   Terminated when the server says `done`; truncated, outcome "timeout", after `max_turns` replies of any kind.
          os_interaction and db_bench: as the server's status says, or after `max_turns` replies, without max_turns as
          many as the server carries out.

Failures. A server that is down, slow or restarted, and a reply that is none, are tried again, `retries` times, after
          waits that double; a line says so when it begins. A lost answer leaves open whether the action was carried
          out, so the episode is never continued: it is played again from its task number, and must give the same
          replies. When all fails, or the server refuses a request for what it is, reset and step raise ServerFailed.

Proxies of the environment are not used. There is no oracle: who wants one plays the world in process.
"""

import math
import re
import sys
import time
import urllib.parse
from dataclasses import dataclass

from envs import base
from envs.base import Environment, Step
from envs.http import agentgym, lab
from envs.http.wire import BLOCK, Lost, ServerFailed, number_of, seeds_of

KINDS = (*agentgym.KINDS, *lab.KINDS)


@dataclass
class Config:
    url: str = ""  # where the server is; empty: port 36001 of this machine, 8000 for os_interaction and db_bench
    kind: str = "textcraft"  # the world: one of agentgym's five, tau_retail, planner, os_interaction or db_bench
    tasks: int = 0  # how many of its tasks to play; 0: without end if the server is ours, else as many as it has
    max_turns: int = 0  # agent turns before the episode is truncated; 0: the world's own number
    prompt: str = "native"  # "native": instructions and the world's form of a reply; "short": one message, bare actions
    timeout: float = 60.0  # seconds that a request may take
    retries: int = 6  # attempts after the first one that failed
    wait: float = 0.5  # seconds before the first of them; each waits twice as long as the one before

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        base.check_prompt(self.prompt)
        for name in ("tasks", "max_turns", "retries"):
            base.check_count(name, getattr(self, name), 0)
        for name in ("timeout", "wait"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds, not {value!r}")
        least = 10 * BLOCK.get(self.kind, 1)
        if 0 < self.tasks < least:
            raise ValueError(f"tasks must be at least {least}, for a train, a val and a test split, not {self.tasks}")
        try:
            parts = urllib.parse.urlsplit(self.address)
            plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none
            plain = False
        if not plain or not re.fullmatch(r"[!-~]+", self.address) or parts.query or parts.fragment:
            raise ValueError(f"url must be http://host:port, not {self.url!r}")

    @property
    def address(self) -> str:
        """The server's URL, without a slash at its end, and without /api where the protocol has it."""
        if self.kind in lab.KINDS:
            return (self.url or "http://127.0.0.1:8000").rstrip("/").removesuffix("/api")
        return (self.url or "http://127.0.0.1:36001").rstrip("/")


class Env(Environment):
    """One episode at a time; the module's docstring is its specification."""

    slow = True  # each answer is a server's
    client = None

    def __init__(self, config: Config | None = None):
        self.config = config or Config()
        self.kind = self.config.kind
        self.client = (lab if self.kind in lab.KINDS else agentgym).Client(self.config)
        self.running = False

    @property
    def task(self) -> str:
        """The canonical task: its number, which is all that is known of it on this side."""
        return f"http:{self.kind}:{self.number}"

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed: the messages up to the agent's first turn."""
        base.check_split(split)
        self._leave()
        self.wanted, self.number = (seed, split), None
        self.opening, self.played = None, []
        self._try(lambda: None)
        self.turns = 0
        self.running = True
        return [dict(message) for message in self.opening]

    def step(self, action_text: str) -> Step:
        """Send the agent's action; every reply counts as a turn."""
        base.check_running(self.running)
        self.turns += 1
        step = self._try(lambda: self.client.act(action_text, self.turns >= self.client.turns))
        self.played.append((action_text, step.observation))
        if step.terminated or step.truncated:
            self._leave()
        return step

    def oracle(self) -> str:
        """Not to be had: raises RuntimeError."""
        raise RuntimeError(f"a world behind http has no oracle: use env={self.kind} for demonstrations")

    def __del__(self):
        if self.client:
            self._leave()  # an episode that nobody plays to its end

    def _leave(self) -> None:
        self.running = False
        self.client.leave()

    def _try(self, act):
        """act() in a session that stands where the agent is, again and again until there is an answer."""
        for attempt in range(self.config.retries + 1):
            if attempt:
                time.sleep(min(self.config.wait * 2 ** (attempt - 1), 60))
            try:
                with self.client.alone():
                    if not self.client.standing():
                        self._open()
                    answer = act()
                self.client.server.failing = False
                return answer
            except Lost as error:
                self.client.drop()
                reason = error
                self._tell(f"{self.config.address}: {reason}")
            except BaseException:
                self.client.drop()
                self.running = False
                raise
        self.running = False
        times = f"{self.config.retries + 1} attempts" if self.config.retries else "one attempt"
        raise ServerFailed(f"{self.config.address} failed after {times}: {reason}")

    def _tell(self, what: str) -> None:
        """A line for who would wait for a server without knowing; one for all episodes until it answers again."""
        if self.config.retries and not self.client.server.failing:
            self.client.server.failing = True
            most = sum(min(self.config.wait * 2**attempt, 60) for attempt in range(self.config.retries))
            line = f"{what}; trying again, {self.config.retries} times in {most:g} s"
            print("\n" * sys.stderr.isatty() + line, file=sys.stderr, flush=True)

    def _open(self) -> None:
        """Bring a session to where the agent is: start the task in one, and play what was played."""
        if self.number is None:
            (seed, split), tasks = self.wanted, self.client.tasks()
            self.number = number_of(self.kind, seed % seeds_of(self.kind, split, tasks) if tasks else seed, split)
        opening = self.client.reset(self.number)
        replies = [self.client.act(text, last=False).observation for text, _ in self.played]
        if (self.opening or opening, [said for _, said in self.played]) != (opening, replies):
            raise ServerFailed(f"{self.config.address} played {self.task} again and said something else than before")
        self.opening = opening
