"""HTTP: play an environment behind a server: AgentGym's, LifelongAgentBench's, or ours (`python -m envs.serve`).

Task.     The server's task with a number. In every ten numbers the first eight are train, the next is val, the last
          is test (in babyai, where number % 40 is the level, in every ten blocks of 40). Seeds count the numbers of a
          split, so no number is in two splits. The originals' servers have a fixed number of tasks and then repeat;
          ours has no end and plays the episode of that seed and split, with the same text as in process.

Actions.  The environment's. The client extracts the action of a reply and sends it:
    webshop alfworld sciworld   the text after the last `Action:`; without one nothing, except in webshop a whole reply
                                that contains `search[` or `click[`
    babyai textcraft            the line that follows `Action:`, reduced to letters, digits, commas and spaces; with
                                several markers nothing is sent, and the reply says so
          With prompt=short it is the reply's first line, for these five. Other kinds get the whole reply.

Prompts.  The environment's, native or short, around the server's text: alfworld's first observation ends with the list
          of available actions, sciworld's begins with the task. A server of os_interaction or db_bench sends the
          whole prompt, the originals' the native one. Serve an environment with the prompt that you request here.
          If an AgentGym server's greeting names another environment or prompt, reset raises ValueError at once; the
          greeting of AgentGym's own five does not name the prompt. alfworld's prompt teaches dialect=0.3, that of
          AgentGym's server, in which ours serves it unless alfworld.dialect says otherwise.

Reward.   AgentGym: the server's `reward`. info["success"]: it ended with a reward of 1, with a score of 100 in
          sciworld, with any reward in babyai. info["valid"]: the observation is not a refusal; webshop's refusal is
          the same page again, after anything but a search or a click on a part of it. tau_retail and planner: the
          server's `info`. LifelongAgentBench, where only /complete grades: see envs/http/lab.py.
          info["shaped"] (except tau_retail and planner): 1 on success, else 0.

Ending.   Terminated when the server says `done`, in babyai also with the first reward, since AgentGym's server goes on
          after a late success and repeats its reward; truncated, outcome "timeout", after `max_turns` replies of any
          kind. os_interaction and db_bench: by the server's status, or after `max_turns` replies (0: the server's
          limit).

Failures. If a server is down, slow or restarted, or its answer is malformed, the client retries `retries` times with
          doubling waits, and prints one line. A lost answer leaves open whether the action was executed, so the
          episode is replayed from its task number, and must give the same observations. If all attempts fail, or the
          server refuses a request, reset and step raise ServerFailed. They also raise it soon after `cancelled` is set.

Security. The server is not trusted: envs/http/exchange.py bounds the time and the size of each request. A token in the
          environment variable ENVS_TOKEN is sent with each request. Redirects are not followed.

Proxy settings of the process are ignored. There is no oracle: use the environment in process for demonstrations.
"""

import math
import sys
from dataclasses import dataclass

from envs import common
from envs.base import Configured, Step
from envs.http import agentgym, lab
from envs.http.exchange import Lost, is_address
from envs.http.wire import BLOCK, ServerFailed, number_of, seeds_of
from envs.refusal import Refusal

KINDS = (*agentgym.KINDS, *lab.KINDS)
MAX_RETRIES = 10_000


@dataclass(frozen=True)
class Config:
    url: str = ""  # the server; empty: port 36001 of this machine, 8000 for os_interaction and db_bench
    kind: str = "textcraft"  # the environment: agentgym's five, tau_retail, planner, os_interaction or db_bench
    tasks: int = 0  # number of tasks to play; 0: no limit if the server is ours, else as many as it has
    max_turns: int = 0  # agent turns before the episode is truncated; 0: the environment's default
    prompt: str = "native"  # "native": instructions and the environment's form of a reply; "short": one message
    timeout: float = 60.0  # most seconds of a request, from the connection to the last byte of the answer
    retries: int = 6  # attempts after the first failure
    wait: float = 0.5  # seconds before the first retry; doubles with each

    def __post_init__(self):
        if self.kind not in KINDS:
            raise Refusal(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        common.check_prompt(self.prompt)
        for name in ("tasks", "max_turns", "retries"):
            common.check_count(name, getattr(self, name), 0)
        if self.retries > MAX_RETRIES:
            raise Refusal(f"retries must be at most {MAX_RETRIES}, not {self.retries}")
        for name in ("timeout", "wait"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise Refusal(f"{name} must be a positive number of seconds, not {value!r}")
        least = 10 * BLOCK.get(self.kind, 1)
        if 0 < self.tasks < least:
            raise Refusal(f"tasks must be at least {least}, for a train, a val and a test split, not {self.tasks}")
        if not is_address(self.address):
            raise Refusal(f"url must be http://host:port, not {self.url!r}")

    @property
    def address(self) -> str:
        """The server's URL without a final slash, and without the /api of LifelongAgentBench's protocol."""
        if self.kind in lab.KINDS:
            return (self.url or "http://127.0.0.1:8000").rstrip("/").removesuffix("/api")
        return (self.url or "http://127.0.0.1:36001").rstrip("/")


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    slow = True  # each step waits for the server
    client = None
    defaults = Config

    def __init__(self, config: Config | None = None):
        super().__init__(config)
        self.kind = self.config.kind
        self.timeout_reward = lab.TIMEOUT_REWARDS.get(self.kind, 0.0)
        self.client = (lab if self.kind in lab.KINDS else agentgym).Client(self.config)

    @property
    def task(self) -> str:
        """The canonical task: its number, all that the client knows of it."""
        return f"http:{self.kind}:{self.number}"

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        self._leave()
        self.wanted, self.number = (seed, split), None
        self.opening, self.played = None, []
        self._try(lambda: None)
        self.turns = 0
        self.running = True
        return [dict(message) for message in self.opening]

    def step(self, action_text: str) -> Step:
        """Send the agent's action; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        step = self._try(lambda: self.client.act(action_text, self.turns >= self.client.turns))
        self.played.append((action_text, step.observation))
        if step.terminated or step.truncated:
            self._leave()
        return step

    def oracle(self) -> str:
        """Raise RuntimeError: the server has no expert."""
        raise RuntimeError(f"an environment behind http has no expert: use env={self.kind} for demonstrations")

    def __del__(self):
        if self.client:
            self._leave()  # an unfinished episode

    def _leave(self) -> None:
        self.running = False
        self.client.leave()

    def _try(self, act):
        """Return act() in a session in the agent's state, with retries. Raise ServerFailed if all fail."""
        self.client.cancelled = self.cancelled
        for attempt in range(self.config.retries + 1):
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
                self._announce(f"{self.config.address}: {reason}")
                if attempt < self.config.retries and self.cancelled.wait(self._wait(attempt)):
                    break
            except BaseException:
                self.client.drop()
                self.running = False
                raise
        self.running = False
        times = f"{attempt + 1} attempts" if attempt else "one attempt"
        raise ServerFailed(f"{self.config.address} failed after {times}: {reason}")

    def _wait(self, attempt: int) -> float:
        """Return the seconds to wait after a failed attempt, counted from 0."""
        return min(self.config.wait * 2 ** min(attempt, 99), 60)

    def _announce(self, what: str) -> None:
        """Print once that the client is waiting for the server; print again only after the server has answered."""
        if self.config.retries and not self.client.server.failing:
            self.client.server.failing = True
            most = sum(map(self._wait, range(self.config.retries)))
            line = f"{what}; trying again, {self.config.retries} times in {most:g} s"
            print("\n" * sys.stderr.isatty() + line, file=sys.stderr, flush=True)

    def _open(self) -> None:
        """Bring a session into the agent's state: start the task and replay the actions."""
        if self.number is None:
            (seed, split), tasks = self.wanted, self.client.tasks()
            self.number = number_of(self.kind, seed % seeds_of(self.kind, split, tasks) if tasks else seed, split)
        opening = self.client.reset(self.number)
        replies = [self.client.act(text, last=False).observation for text, _ in self.played]
        if (self.opening or opening, [said for _, said in self.played]) != (opening, replies):
            raise ServerFailed(f"{self.config.address} replayed {self.task} with other observations than before")
        self.opening = opening
