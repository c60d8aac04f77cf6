"""How a run of several ranks begins and ends: started here by `ranks=N`, or by torchrun.

Under `ranks=N` this process starts N others, shows the torch.distributed store where they meet, passes signals on, and
ends them all when one dies. Their heartbeat (heartbeat.py) finds one that hangs. On a CPU under Linux they are forks,
which saves the seconds in which torch is imported; elsewhere they are programs with the same words.
"""

import ctypes
import gc
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from rl import ranks
from rl.config.arguments import ArgumentError, flatten
from rl.config.fields import Config
from rl.ranks import gradients, heartbeat
from rl.run import files, signals

PATIENCE = timedelta(minutes=30)  # for a rank that is slow; heartbeat.py ends the run sooner if it hangs
MEETING = timedelta(minutes=5)  # for all ranks to join
GRACE = 5.0  # seconds in which ranks end by themselves after one has failed
SAVING = 60.0  # seconds in which they do after a signal, for a checkpoint
PR_SET_PDEATHSIG = 1  # of prctl.h
LOOPBACK = ("lo", "lo0")  # names of the network that reaches this machine alone
STARTED = "LORA_RL_STORE"  # in the environment of ranks started here: host:port of the store, and :pid of this process


def run(main: Callable[[Config], object], cfg: Config, groups: int, computed: bool = False) -> None:
    """Call main(cfg) in this process, or as one of several ranks, or start these and wait for them.

    groups: of episodes, which stay whole. Raise ArgumentError if there are more ranks.
    computed: torch has already multiplied here, to merge. Forking would then hang, because OpenMP's threads do not
    survive it.
    """
    joins = "WORLD_SIZE" in os.environ and "RANK" in os.environ
    if joins and not {"MASTER_ADDR", STARTED} & os.environ.keys():
        raise ArgumentError("RANK and WORLD_SIZE are set and MASTER_ADDR is not: start with torchrun, or unset RANK")
    count = int(os.environ["WORLD_SIZE"]) if joins else number(cfg, groups)
    if count > max(groups, 1):
        raise ArgumentError(f"{count} ranks: there is work for {groups}, a group of episodes stays whole")
    if cfg.shard != "ddp" and count == 1:
        if not cfg.resume:
            raise ArgumentError(f"shard={cfg.shard} shares weights among several ranks: give ranks=2, or use torchrun")
        print(f"shard={cfg.shard} has no effect with one rank, which holds the whole model")
        cfg = replace(cfg, shard="ddp")
    if joins:
        run_as_rank(main, cfg)
    elif count > 1:
        # A fork is a copy of all that this process is: so it must be this program alone, and without a GPU.
        alone = sys.orig_argv[1:] == sys.argv and not computed
        status = launch(count, forks=alone and cfg.device == "cpu" and sys.platform == "linux")
        if status is not None:
            raise SystemExit(status)
        run_as_rank(main, cfg)
    else:
        main(cfg)


def number(cfg: Config, groups: int) -> int:
    """Return the number of processes to start for ranks=: for 0 one per core if the model is the embedded one on a CPU,
    at most one per group, else 1."""
    if cfg.ranks:
        return cfg.ranks
    if cfg.model != "tiny" or cfg.device != "cpu" or cfg.threads > 1 or cfg.rollouts or cfg.data:
        return 1
    return max(1, min(cores(), gradients.SHARES, groups))


def reader(cfg: Config) -> Callable | None:
    """Return the argument `read` of models.load_model: None if each rank is to hold the whole model."""
    ranks.here.shards = None
    if cfg.shard == "ddp":
        return None
    from rl.ranks import shard  # torch's FSDP loads slowly, and most runs hold the whole model

    return partial(shard.read, cfg)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ------------------------------------------------------------------------------------------------- the parent process


def launch(count: int, forks: bool) -> int | None:
    """Start `count` ranks and wait for them. Return the exit status of the run, or None in a rank that is a fork."""
    usual = {"TORCH_CPP_LOG_LEVEL": "ERROR"}  # of broken connections we tell
    if loopback := [name for _, name in socket.if_nameindex() if name in LOOPBACK]:
        usual["GLOO_SOCKET_IFNAME"] = loopback[0]
    # Torch's own sockets would listen on every network, and ask for no password.
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    place = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        STARTED: f"127.0.0.1:{listener.getsockname()[1]}:{os.getpid()}",
    }
    handlers = {number: signal.getsignal(number) for number in signals.SIGNALS}
    children, came = [], received()
    for rank in range(count):
        env = {**usual, **os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        if forks:
            child = Fork()
            if not child.pid:
                listener.close()
                for number, handler in handlers.items():
                    signal.signal(number, handler)
                os.environ.update(env)
                return None
        else:
            words = [sys.executable, str(files.ROOT / ranks.program()), *sys.argv[1:]]
            child = subprocess.Popen(words, env=env, start_new_session=True)
        children.append(child)
    try:
        store = store_at(listener)  # until all have ended: torch prints a trace where one has lost it
        return supervise(children, store, came)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


class Fork:
    """A copy of this process, in which `pid` is 0, with what `supervise` needs of subprocess.Popen. It has a session of
    its own, so it gets the terminal's signals once: from this process."""

    def __init__(self):
        print(end="", flush=True)  # also where stdout is closed
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it was ignored, nobody would learn of a rank's end
        self.returncode, self.pid = None, os.fork()
        if not self.pid:
            os.setsid()

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def wait(self) -> int:
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def store_at(listener: socket.socket) -> Any:
    """Return a new store for ranks of this machine, which takes the listener over."""
    port, where = listener.getsockname()[1], {"is_master": True, "wait_for_workers": False}
    return dist.TCPStore("127.0.0.1", port, **where, master_listen_fd=listener.detach())


def received() -> list[int]:
    """Return a list to which the signals that this process gets from now on are appended."""
    came: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if not came:
            print("\nstopping: a step under way is finished and saved; a second signal stops at once", file=sys.stderr)
        came.append(number)

    for number in signals.SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, note)
    return came


def supervise(children: list[subprocess.Popen | Fork], store: Any, came: list[int]) -> int:
    """Wait until all ranks have ended, or some time after one has failed. Pass on the signals that come to `came`.
    Return the run's exit status."""
    first, deadline, passed_on = None, None, 0
    while any(child.poll() is None for child in children) and (deadline is None or time.monotonic() < deadline):
        for number in came[passed_on:]:
            if not store.check([f"joined {rank}" for rank in range(len(children))]):
                ranks.say(f"stopped by {signal.Signals(number).name}; no run had begun")
                return 128 + number  # ranks that are still starting would end with a traceback
            send(children, number)
            passed_on += 1
        failed = [rank for rank, child in enumerate(children) if child.poll()]
        if failed and first is None:
            first, status = failed[0], status_of(children[failed[0]], came)
            deadline = time.monotonic() + (GRACE if status <= 128 else SAVING)
            if status > 128 and not came:  # a signal to one rank is a signal to all
                send(children, status - 128)
            elif status < 0:
                line = f"rank {first} was killed by {signal.Signals(-status).name}{heartbeat.last_phase(store, first)}"
                ranks.say(f"{line}; the other ranks end too{heartbeat.how_to_resume(store)}")
                break
        time.sleep(0.05)
    statuses = [None if child.poll() is None else status_of(child, came) for child in children]
    if not any(status is None or status for status in statuses):
        return 0
    own = [status for status in statuses if status and status != ranks.SILENT]
    if not own and not store.check(["spoken"]):
        lost = store.get("lost").decode() if store.check(["lost"]) else "no rank said why"
        ranks.say(f"the ranks lost one another: {lost}{heartbeat.how_to_resume(store)}")
    return max([1, *own])


def send(children: list[subprocess.Popen | Fork], number: int) -> None:
    """Send the signal to the ranks that have not ended."""
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


def status_of(child: subprocess.Popen | Fork, came: list[int]) -> int:
    """Return the exit status of an ended rank. A second signal may kill one that is about to end by the first."""
    return 128 - child.returncode if -child.returncode in came else child.returncode


# --------------------------------------------------------------------------------------------------------- each rank


def run_as_rank(main: Callable[[Config], object], cfg: Config) -> None:
    """Join the other ranks and call main(cfg)."""
    join(cfg.device)
    beating = heartbeat.Heartbeat()
    try:
        call(main, cfg)
    except (ranks.AnotherRankFailed, signals.Interrupted):
        if STARTED not in os.environ:  # torchrun does not say in which phase a rank died
            beating.tell_of_a_lost_rank()
        raise
    finally:
        beating.stop()
        if sys.exc_info()[0] is None or cfg.device != "cuda":  # NCCL's threads would wait for ranks that have failed
            leave()


def leave() -> None:
    """End gloo's threads: a process that ends while they run may abort. A model with shares has groups of its own."""
    ranks.here.shards = None
    gc.collect()  # process groups that only a cycle of objects still holds
    dist.destroy_process_group()


def call(main: Callable[[Config], object], cfg: Config) -> None:
    """Call main(cfg) on all ranks; the first alone prints."""
    agree(cfg)
    if ranks.is_first():
        main(cfg)
    else:
        os.environ["TQDM_DISABLE"] = "1"
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
            main(cfg)
    ranks.wait()


def join(device: str) -> None:
    """Make this process one of the ranks. Raise ArgumentError if there are more on this machine than GPUs."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if STARTED in os.environ:
        host, port, parent = os.environ[STARTED].split(":")
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # if the process that started the ranks is killed
        if os.getppid() != int(parent):  # it was, before that
            raise SystemExit(ranks.SILENT)
        store = dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=60))
    else:
        store, rank, world = next(dist.rendezvous("env://", timeout=MEETING))
        store = dist.PrefixStore(attempt(store, rank, world), store)
    kind = "gloo"
    if device == "cuda":
        local, devices = int(os.environ.get("LOCAL_RANK", rank)), torch.cuda.device_count()
        if local >= devices:
            raise ArgumentError(f"rank {rank} finds no GPU of its own: this machine has {devices}")
        torch.cuda.set_device(local)
        kind = "cpu:gloo,cuda:nccl"
    dist.init_process_group(kind, store=dist.PrefixStore("group", store), rank=rank, world_size=world, timeout=PATIENCE)
    ranks.here.rank, ranks.here.world, ranks.here.store = rank, world, store
    store.set(f"joined {rank}", "")


def attempt(store: Any, rank: int, world: int) -> str:
    """Return a name that the ranks which are joining now share, and no earlier ones.

    torchrun keeps its store when it restarts ranks, with the addresses of those that have ended; and it counts restarts
    for each machine apart. So each rank says hello under a number of its own, and the first answers with the name.
    """
    own, name = uuid.uuid4().hex, ""
    store.set(f"hello {rank}", own)
    deadline = time.monotonic() + MEETING.total_seconds()
    while not (name and (rank or store.check([f"{name} {other}" for other in range(world)]))):
        if time.monotonic() > deadline:
            raise ArgumentError(f"rank {rank}: the others did not join within {MEETING.seconds} seconds")
        if rank == 0:
            name = own
            store.set(f"{name} 0", "")
            for other in range(1, world):
                if store.check([f"hello {other}"]):  # perhaps that of an earlier attempt, which nobody reads
                    store.set(f"welcome {store.get(f'hello {other}').decode()}", name)
        elif store.check([f"welcome {own}"]):
            name = store.get(f"welcome {own}").decode()
            store.set(f"{name} {rank}", "")
        time.sleep(0.05)
    return name


def agree(cfg: Config) -> None:
    """Raise ArgumentError if ranks have other settings, other code or another torch."""
    mine = {key: str(value) for key, value in flatten(cfg.as_dict()).items()}
    mine["code"] = hashlib.sha256(json.dumps(files.code_digests()).encode()).hexdigest()[:16]
    mine["torch"] = torch.__version__
    first, *others = ranks.gathered(mine)
    for rank, theirs in enumerate(others, 1):
        for key in first.keys() | theirs.keys():
            if first.get(key) != theirs.get(key):
                raise ArgumentError(f"the ranks differ: {key}={first.get(key)} on rank 0, {theirs.get(key)} on {rank}")
