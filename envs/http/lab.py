"""The client of LifelongAgentBench's task server, and of ours.

    POST /api/reset, /api/interact, /api/complete       {"session": S} -> {"session": S}
    POST /api/get_sample_index_list                     the names of the samples
    POST /api/get_attribute                             max_round, the turn limit
    POST /api/tasks                                     only ours: 0, any number is a sample and many sessions run

S is the whole session: the conversation, a status, and after /complete an outcome; envs/serve/lab.py lists its fields.
The original's server plays one session at a time. An episode that finds another session there completes that one and is
replayed from its start, which is correct but slow for parallel episodes (use rollout_batch_size=1).

Reward.   os_interaction: 1 if the outcome is correct, -0.5 if incorrect. db_bench: 1 if it is correct and the session
          completed; -0.3 at the turn limit, whatever the outcome; else -0.1.
"""

import re
import threading
from collections import defaultdict
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field

from envs import common, prompt_file
from envs.base import Step
from envs.http.exchange import Lost, plain, short
from envs.http.wire import ServerFailed, Session, request

KINDS = ("os_interaction", "db_bench")
TIMEOUT_REWARDS = {"os_interaction": -0.5, "db_bench": -0.3}
ROLES = {"user": "user", "agent": "assistant"}
INITIAL, RUNNING, COMPLETED = "initial", "running", "completed"  # statuses
INVALID, LIMIT = "agent_validation_failed", "task_limit_reached"
BROKEN = ("task_environment_error", "task_unknown_error")  # the environment failed, not the agent


@dataclass
class Server:
    """This process's state of a server."""

    samples: list | None = None  # names of its samples, None until requested; empty: any number (our server)
    turns: int = 0  # its turn limit, once requested
    current: dict | None = None  # the session on a server that plays one at a time
    failing: bool = False  # whether the last request found no answer
    lock: threading.RLock = field(default_factory=threading.RLock)  # exclusive use of a server that plays one session


SERVERS: dict[tuple[str, str], Server] = defaultdict(Server)  # (url, kind) -> Server


class Client(Session):
    """The session of an episode."""

    def __init__(self, config):
        super().__init__(config, SERVERS)

    @property
    def turns(self) -> int:
        """The turn limit. The server would accept one more reply and end the session without executing it."""
        return self.config.max_turns or self.server.turns

    @property
    def many(self) -> bool:
        """Whether the server plays many sessions at once."""
        return self.server.samples == []

    def alone(self):
        """Return the lock of a request: none, or the lock of a server that plays one session."""
        return nullcontext() if self.many else self.server.lock

    def standing(self) -> bool:
        """Return whether the server's session is in the agent's state."""
        return self.session is not None and (self.many or self.session is self.server.current)

    leave = Session.drop

    def tasks(self) -> int:
        """Return the number of the server's tasks; 0: no end."""
        if self.server.samples is None:
            self.server.turns, self.server.samples = self._turns(), self._samples()
        known = len(self.server.samples)
        return min(self.config.tasks or known, known or self.config.tasks)

    def reset(self, number: int) -> list[dict]:
        """Start a task. Return the messages up to the agent's first turn."""
        if self.server.current:
            with suppress(Lost):  # the server may have forgotten it
                self._end(self.server.current)
        session = {"task_name": self.kind, "sample_index": self._name(number), "sample_status": INITIAL}
        session |= {"chat_history": {"value": []}, "finish_reason": None, "task_output": None}
        session["evaluation_record"] = {"outcome": "unset", "detail_dict": None}
        session = self._send("reset", session)
        said = session["chat_history"]["value"]
        if session["sample_status"] != RUNNING or not said or said[-1]["role"] != "user":
            raise Lost(f"/reset answered a session that is {plain(session['sample_status'], 40)}")
        if (self.config.prompt == "short") != (len(said) == 1):
            raise ServerFailed(f"{self.config.address} serves another prompt than http.prompt={self.config.prompt}")
        self._keep(session)
        messages = [{"role": ROLES[item["role"]], "content": item["content"]} for item in said]
        messages[0]["content"] = prompt_file.chosen(self.config.prompt, messages[0]["content"])
        return messages

    def act(self, text: str, last: bool) -> Step:
        """Return the answer to the agent's reply, which is its last one if so said."""
        said = [*self.session["chat_history"]["value"], {"role": "agent", "content": text}]
        session = self._send("interact", self.session | {"chat_history": {"value": said}})
        self._keep(session)
        status, new = session["sample_status"], session["chat_history"]["value"][len(said) :]
        if status in BROKEN or (status == RUNNING and len(new) != 1):
            raise Lost(f"/interact answered a session that is {plain(status, 40)}: {short(session['finish_reason'])}")
        observation = new[0]["content"] if new else session["finish_reason"] or ""
        if status == RUNNING and not last:
            return Step(observation, 0.0, False, False, common.step_info(False, False, False, True, 0.0))
        if status == RUNNING:
            status = session["sample_status"] = LIMIT
        return _ended(self.kind, observation, status, self._end(session))

    def _end(self, session: dict) -> str:
        """Complete a session. Return its outcome."""
        self.server.current = None
        outcome = self._send("complete", session)["evaluation_record"].get("outcome")
        if outcome not in ("correct", "incorrect", "unknown", "ignored"):
            raise Lost(f"/complete answered the outcome {short(outcome)}")
        return outcome

    def _keep(self, session: dict) -> None:
        """Store the session that the server has answered."""
        self.session = session
        if not self.many:
            self.server.current = session

    def _name(self, number: int) -> str | int:
        """Return the server's name of a task number."""
        return self.server.samples[number] if self.server.samples else str(number)

    def _turns(self) -> int:
        """Return the server's turn limit."""
        reply = self._post("get_attribute", {"name": "max_round"})
        how = reply.get("instance_factory_parameter_dict") if isinstance(reply, dict) else None
        value = str(how.get("value")) if isinstance(how, dict) else ""
        if not re.fullmatch("[1-9][0-9]{0,5}", value):
            raise Lost(f"/get_attribute answered {short(reply)} instead of max_round")
        return int(value)

    def _samples(self) -> list:
        """Return the names of the server's samples; none if every number is a sample."""
        try:
            if self._post("tasks", {}) == 0:
                return []
        except ServerFailed:  # there is no /tasks
            pass
        reply = self._post("get_sample_index_list", {})
        names = reply.get("sample_index_list") if isinstance(reply, dict) else None
        if not isinstance(names, list) or not names or {type(name) for name in names} - {str, int}:
            raise Lost(f"/get_sample_index_list answered {short(reply)} instead of names")
        if len(names) < 10:
            raise ServerFailed(f"{self.config.address} has {len(names)} samples, too few for three splits")
        return names

    def _send(self, path: str, session: dict) -> dict:
        """Send a session. Return the answer's session, which must continue it."""
        reply, said = self._post(path, {"session": session}), session["chat_history"]["value"]
        new = reply.get("session") if isinstance(reply, dict) else None
        if not _is_session(new) or new["chat_history"]["value"][: len(said)] != said:
            raise Lost(f"/{path} answered {short(reply)} instead of the session that goes on")
        return new

    def _post(self, path: str, body: dict):
        """Return the JSON of a request. Raise Lost or ServerFailed if it has none."""
        try:
            return request(f"{self.config.address}/api/{path}", body, self.config.timeout, self.cancelled)
        except ConnectionError:
            raise Lost(f"/{path} got no connection, or it broke") from None
        except ServerFailed as error:
            if path in ("interact", "complete"):  # a restarted server has lost the session: a reset helps
                raise Lost(str(error)) from None
            raise


def _is_session(value) -> bool:
    """Return whether this is a session with the fields that the client reads."""
    if not isinstance(value, dict) or not isinstance(value.get("sample_status"), str):
        return False
    history, record = value.get("chat_history"), value.get("evaluation_record")
    items = history.get("value") if isinstance(history, dict) else None
    finish = value.get("finish_reason")
    return (
        isinstance(items, list)
        and all(isinstance(item, dict) and _is_message(item.get("role"), item.get("content")) for item in items)
        and isinstance(record, dict)
        and (finish is None or isinstance(finish, str))
    )


def _is_message(role, content) -> bool:
    return isinstance(role, str) and role in ROLES and isinstance(content, str)


def _ended(kind: str, observation: str, status: str, outcome: str) -> Step:
    """Return the last step of a session."""
    cut, success = status == LIMIT, outcome == "correct"
    if kind == "db_bench":
        success = success and status == COMPLETED
        reward = 1.0 if success else TIMEOUT_REWARDS[kind] if cut else -0.1
        outcome = common.outcome(success, not cut, cut)
    else:
        reward = {"correct": 1.0, "incorrect": -0.5}.get(outcome, 0.0)
        outcome = outcome if reward else "unknown"
    info = {"outcome": outcome, "success": success, "valid": status != INVALID, "shaped": reward}
    return Step(observation, reward, not cut, cut, info)
