"""Several ranks train what one trains: rl/ranks."""

import dataclasses
import functools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from conftest import run_program
from live_storage import LiveStorage

import train
from rl import peaks, ranks
from rl.config.arguments import ArgumentError
from rl.config.words import parse
from rl.ranks import gradients, heartbeat, pace, playing
from rl.ranks import launch as start
from rl.run.phases import phase
from rl.run.watch import replayable
from rl.tasks import Task

ROOT = Path(__file__).parents[2]
COMMON = "epochs=1 eval_episodes=0 max_turns=2 max_new_tokens=12 micro_tokens=256 episodes=8 batch_size=4 out=OUT"
LARGER = "epochs=2 eval_episodes=6 max_turns=3 max_new_tokens=16 micro_tokens=512 episodes=16 batch_size=8"
LARGER += " products=onednn"
CASES = {
    "ppo": [f"algo=ppo {COMMON} products=plain reward.rule=shaped epochs=4 eval_episodes=2"],
    "grpo": [f"algo=grpo grpo.kl_coef=0.01 grpo.group_size=4 {COMMON} reward.rule=shaped"],
    "history": [f"algo=grpo history=template max_thinking_tokens=5 grpo.group_size=4 {COMMON} reward.rule=shaped"],
    "reinforce over nf4": [
        f"algo=reinforce quant=nf4 env=textcraft:2,sat:1 {COMMON} batch_size=8 eval_episodes=2 reward.rule=shaped"
    ],
    "sft with dropout": [f"algo=sft lora.dropout=0.1 {COMMON} eval_episodes=1"],
    "every weight": [f"algo=grpo lora.r=0 lr=1e-4 grpo.group_size=4 {COMMON} reward.rule=shaped"],
}
QUICK = set(CASES) - {"grpo"}  # with KL, which test_shard.py has with shares
SAME = ("trainable.safetensors", "optimizer.safetensors", "critic.safetensors", "rng.safetensors", "state.json")
VARYING = {"seconds", "phases"}  # of metrics.jsonl


def played(folder: Path, world: int, cases: dict[str, list[str]], trials: Path) -> None:
    """Run the cases one after the other in `world` processes, which share trials of exactness in that folder."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    words = json.dumps({name: [command.split() for command in commands] for name, commands in cases.items()})
    place = {"WORLD_SIZE": str(world), start.STARTED: f"127.0.0.1:{store.port}:{os.getpid()}"}
    env = {**os.environ, **place, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tests/rank_cases.py"), str(folder), words, str(trials)]
    processes = [
        subprocess.Popen(command, env={**env, "RANK": str(rank)}, cwd=ROOT, stdout=subprocess.DEVNULL)
        for rank in range(world)
    ]
    assert [process.wait(600) for process in processes] == [0] * world


def listening(*pids: int) -> set[str]:
    """Return the addresses at which processes wait for connections."""
    addresses = {}  # inode: address
    for family, name in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            words = struct.unpack(f"={len(local[:-5]) // 8}I", bytes.fromhex(local[:-5]))
            packed = struct.pack(f">{len(words)}I", *words)
            if state == "0A":
                addresses[line.split()[9]] = socket.inet_ntop(family, packed)
    files = [path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()]
    links = set()
    for path in files:
        with suppress(FileNotFoundError):  # closed by now
            links.add(os.readlink(path)[8:-1])
    return {address for inode, address in addresses.items() if inode in links}


def contents(run: Path) -> dict[str, object]:
    """Return what a run of any number of ranks must have written: the bytes of files, and metrics without times."""
    newest = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    found = {name: (newest / name).read_bytes() for name in SAME if (newest / name).is_file()}
    for name in ("episodes.jsonl", "report.jsonl", "held_out.jsonl"):
        if (run / name).is_file():
            found[name] = (run / name).read_bytes()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = ((f"{key} in line {i}", value) for i, record in enumerate(records) for key, value in record.items())
    return found | {name: value for name, value in metrics if name.split()[0] not in VARYING}


def differences(ours: dict[str, object], theirs: dict[str, object]) -> dict[str, object]:
    """Return what differs between the contents of two runs that wrote the same files: both values of a metric."""
    assert ours.keys() == theirs.keys()
    pairs = {key: (ours[key], theirs[key]) for key in ours if ours[key] != theirs[key]}
    return {key: "bytes" if isinstance(pair[0], bytes) else pair for key, pair in pairs.items()}


def started(folder: Path, *options: str) -> subprocess.Popen:
    """Start the ppo case by the command line with two ranks, its run in the folder. options: Python's; with any, ranks
    are programs, which import torch for some seconds before they join."""
    command = f"{CASES['ppo'][0]} save_every=2 ranks=2".replace("OUT", str(folder))
    return subprocess.Popen(
        [sys.executable, *options, "train.py", *command.split()],
        **dict(cwd=ROOT, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE),
    )


def after_epoch(folder: Path, epoch: int) -> None:
    """Wait until the run has logged an epoch."""
    ends, path = time.monotonic() + 120, folder / "metrics.jsonl"
    while not (path.is_file() and f'"epoch": {epoch}, "step"' in path.read_text()):
        assert time.monotonic() < ends
        time.sleep(0.02)


def children(process: subprocess.Popen) -> list[int]:
    """Return the processes of the ranks, in their order."""
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return sorted(map(int, found))


def sized(world: int) -> dict[str, list[str]]:
    """Return {folder: commands} of the cases; more than two ranks need more episodes."""
    larger = f" {LARGER}" if world > 2 else ""
    return {name.replace(" ", "-"): [words + larger for words in commands] for name, commands in CASES.items()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a function: the folder of a case's run by one rank, which that of `world` ranks is compared with."""

    @functools.cache
    def of(name: str, larger: bool) -> Path:
        folder = tmp_path_factory.mktemp("alone")
        for words in sized(3 if larger else 2)[name]:
            train.main(parse(words.replace("OUT", f"{folder / name}").split(), "train.py"))
        return folder / name

    return lambda name, world: of(name, world > 2)


@pytest.mark.all_only
@pytest.mark.parametrize(
    ("world", "names"),
    [(2, QUICK), *(pytest.param(*more, marks=pytest.mark.full) for more in ((2, {"grpo"}), (3, CASES), (4, CASES)))],
)
def test_several_ranks_write_the_bytes_of_one(world, names, alone, trials_folder, tmp_path):
    cases = {name: words for name, words in sized(world).items() if name.replace("-", " ") in names}
    by_one = {name: contents(alone(name, world)) for name in cases}  # whose trials the ranks take
    played(tmp_path, world, cases, trials_folder)
    for name, theirs in by_one.items():
        ours = contents(tmp_path / name)
        assert differences(ours, theirs) == {}, name
        assert any(value for key, value in ours.items() if key.startswith("grad_norm ")), f"{name} learned nothing"


def test_masks_depend_on_the_piece_and_leave_the_generators_alone():
    before, drawn = torch.get_rng_state(), []
    for dropout, key in ((0.1, (0, 1, 2)), (0.1, (0, 1, 2)), (0.1, (0, 1, 3)), (0.0, (0, 1, 2))):
        with gradients.same_masks(dropout, key, torch.device("cpu")):
            drawn.append(torch.rand(4).tolist())
        assert torch.equal(torch.get_rng_state(), before) == (dropout > 0)
    assert drawn[0] == drawn[1] and drawn[0] != drawn[2]
    assert drawn[3] == torch.rand(4, generator=torch.Generator().set_state(before)).tolist(), "without dropout nothing"


def test_masks_fork_the_generator_of_one_gpu_alone(monkeypatch):
    """To fork that of every GPU, torch would make a context on each of them, in every rank."""
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: asked.append(device))
    for dropout in (0.0, 0.1):
        with gradients.same_masks(dropout, (0, 0, 0), torch.device("cuda:3")):
            pass
    assert asked == [torch.device("cuda:3")] * 2


@pytest.mark.parametrize("pieces", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_step_holds_as_many_sums_of_gradients_as_are_planned(pieces, in_place, monkeypatch):
    large = gradients.LARGE
    monkeypatch.setattr(gradients, "LARGE", 0 if in_place else large)
    p, held = torch.nn.Parameter(torch.zeros(1000)), []
    with LiveStorage() as live, gradients.summed(range(pieces), [p]) as step:
        for number, piece in step:
            assert number == piece
            held.append(live.live // 4000)
            (p * number).sum().backward()
            step.results.append(number)
    assert step.results == list(range(pieces))
    assert max(held) == (pieces > 1 if in_place else peaks.sums_held(pieces))
    assert (gradients.SHARES, large) == (peaks.PARTS, peaks.IN_PLACE)
    assert p.grad.unique().tolist() == [sum(range(pieces))]


def test_the_tree_adds_as_one_rank_whichever_ranks_hold_the_parts():
    torch.manual_seed(0)
    for pieces in (1, 2, 3, 5, 8, 13):
        grads = [torch.randn(7) * 10**i for i in torch.linspace(-3, 3, pieces).tolist()]

        def nodes(rank, world, grads=grads, pieces=pieces):
            found = []
            for part in range(rank * gradients.SHARES // world, (rank + 1) * gradients.SHARES // world):
                total = None
                for i in range(part * pieces // gradients.SHARES, (part + 1) * pieces // gradients.SHARES):
                    total = grads[i].clone() if total is None else total + grads[i]
                gradients.push(found, gradients.Node(0, part, [total]))
            return found

        [alone] = nodes(0, 1)
        assert torch.allclose(alone.grads[0], sum(grads))
        for world in (2, 3, 4, 5, 8):
            merged = []
            for rank in range(world):
                for node in nodes(rank, world):
                    gradients.push(merged, node)
            [root] = merged
            assert torch.equal(root.grads[0], alone.grads[0]), (pieces, world)


def test_groups_stay_whole_and_ranks_get_equal_shares():
    tasks = [Task((0, 4 * g + m), "sat" if g % 3 else "textcraft", g, g, "train") for g in range(9) for m in range(4)]
    (lengths := pace.Pace()).played |= {"sat": [10, 1000], "textcraft": [10, 4000]}
    shares = playing.assigned(tasks, 3, lengths)
    assert sorted(task.key for share in shares for task in share) == sorted(task.key for task in tasks)
    assert all(len({i for i, share in enumerate(shares) for task in share if task.group == g}) == 1 for g in range(9))
    assert [sum(lengths.expected_tokens(task.env) for task in share) for share in shares] == [2400.0] * 3


@pytest.mark.parametrize("world", [2, 3, 4, 5, 8])
def test_evaluations_are_played_side_by_side(world):
    """Each is played whole, by as few ranks as can be: with an even number a rank plays one of the two alone."""
    tasks = [Task((0, i), "sat", i, i, "val") for i in range(40)]
    shares = playing.side_by_side(playing.assigned(tasks, world, pace.Pace()), 2)
    for way in range(2):
        assert sorted(task.key for share in shares for task in share[way]) == [task.key for task in tasks]
    counts = [len(first) + len(second) for first, second in shares]
    assert sum(counts) == 80 and max(counts) - min(counts) <= 2
    assert sum(bool(first and second) for first, second in shares) == world % 2


@pytest.mark.all_only
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGKILL, 1, "rank 1 was killed by SIGKILL in phase "),
        pytest.param(signal.SIGTERM, 143, "stopped by SIGTERM", marks=pytest.mark.full),
        pytest.param(signal.SIGSTOP, 1, "has not answered for 45 seconds in phase ", marks=pytest.mark.full),
    ],
)
def test_a_lost_rank_ends_the_run_which_goes_on_with_another_number(number, status, line, alone, tmp_path):
    process = started(tmp_path / "run")
    after_epoch(tmp_path / "run", 3)
    began = time.monotonic()
    assert listening(process.pid, *children(process)) == {"127.0.0.1"}, "no other machine may speak to the ranks"
    os.kill(children(process)[1], number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status and time.monotonic() - began < 60
    assert line in errors and f"python train.py resume={tmp_path}/run goes on" in errors, errors
    assert "Traceback" not in errors and sum("train.py" in said for said in errors.splitlines()) == 1
    train.main(parse([f"resume={tmp_path}/run"], "train.py"))
    assert differences(contents(tmp_path / "run"), contents(alone("ppo", 2))) == {}


def test_ranks_that_join_again_share_another_name():
    """As torchrun's do, whose store has the words of ranks that have ended; some had said hello alone."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store.set("hello 2", "ended")
    with ThreadPoolExecutor(3) as pool:
        first, second = (list(pool.map(start.attempt, [store] * 3, range(3), [3] * 3)) for _ in range(2))
    assert len(set(first)) == len(set(second)) == 1 and first != second


def test_a_rank_that_stays_slow_is_named_once(monkeypatch, capsys):
    """Slow is who takes longer for a unit of its own work, not who has more of it; an epoch in between starts anew."""
    own = pace.Pace()
    usual = [{"a token": [2.0, 20], "a piece": [1.0, 1]}, {"a token": [1.0, 10], "a piece": [0.0, 0]}]
    slow = [*usual, {"a token": [1.6, 10], "a piece": [1.4, 1]}]
    for everyone in [slow, slow, [*usual, usual[1]], slow, slow, slow, slow]:
        monkeypatch.setattr(ranks, "gathered", lambda _own, everyone=everyone: everyone)
        own.compare()
    line = (
        "rank 2 is slow, and the others wait: a token takes it 1.6 times as long as the median rank, 3 epochs in a row"
    )
    assert capsys.readouterr().out.splitlines() == [line]


def test_time_that_a_rank_waits_is_not_its_own():
    own = pace.Pace()
    with own.measured("a token") as units:
        ranks.meet(lambda: time.sleep(0.2))
        units += [3, 4]
    assert own.own["a token"][0] < 0.1 and own.own["a token"][1] == 7


def test_a_gradient_that_is_not_finite_names_its_rank(monkeypatch, tmp_path):
    p = torch.zeros(3, requires_grad=True)
    found = [torch.ones(3), torch.tensor([0.0, float("nan"), 1.0]), torch.ones(3)]
    tables = [[(3, rank, [True])] for rank in range(2)] + [[(4, 1, [True])]]
    monkeypatch.setattr(ranks, "here", ranks.Here(rank=0, world=3))
    monkeypatch.setattr(ranks, "gathered", lambda _own: tables)
    sent = lambda came, _own: [row.copy_(grad) for row, grad in zip(came, found, strict=True)]  # noqa: E731
    monkeypatch.setattr(torch.distributed, "all_gather", sent)
    [root] = gradients.exchanged([gradients.Node(3, 0, [found[0]])], [p])
    assert ranks.here.nonfinite == [1] and not torch.isfinite(root.grads[0]).all()
    with pytest.raises(FloatingPointError) as raised, replayable(None, tmp_path, [], parse(["algo=sft"])):
        raise FloatingPointError("no gradient was finite")
    assert raised.value.__notes__[0] == "learn: not finite on rank 1"
    found[1] = torch.ones(3)
    gradients.exchanged([gradients.Node(3, 0, [found[0]])], [p])
    assert ranks.here.nonfinite == []


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and reads /proc")
@pytest.mark.parametrize(
    "fault", [pytest.param(name, marks=pytest.mark.full) for name in ("nan", "rollout", "backward", "save", "hang")]
)
def test_a_broken_rank_ends_all_and_the_run_goes_on(fault):
    """One rank meets a NaN, is killed or hangs; tests/faults.py says what must follow."""
    words = [sys.executable, "tests/faults.py", f"faults={fault}", "times=1"]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True)
    assert done.stdout == f"{fault}: 1 planted, 0 wrong\n" and not done.returncode, done.stdout + done.stderr


class SlowStore:
    """A store of a busy machine: each beat takes ten turns to write."""

    def __init__(self):
        self.values = {"beat 1": json.dumps({"turn": 7, "phase": "learn", "pid": 1})}  # it has ended

    def clone(self) -> "SlowStore":
        return self

    def set(self, key: str, value: str) -> None:
        time.sleep(0.5)
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key].encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def compare_set(self, key: str, _expected: str, value: str) -> bytes:
        return self.values.setdefault(key, value).encode()


@pytest.mark.all_only
def test_a_rank_that_is_slow_does_not_name_itself_lost(monkeypatch, capsys):
    monkeypatch.setattr(heartbeat, "TURN", 0.05)
    monkeypatch.setattr(ranks, "here", ranks.Here(rank=0, world=2, store=SlowStore()))
    beating = heartbeat.Heartbeat()
    time.sleep(0.7)
    beating.tell_of_a_lost_rank()
    beating.stop()
    assert "rank 1 ended in phase learn; the other ranks end too" in capsys.readouterr().err


class NotedStore(SlowStore):
    """A store that notes the phases it is told."""

    def __init__(self):
        self.values, self.phases = {}, []

    def set(self, key: str, value: str) -> None:
        self.values[key] = value
        self.phases.append(json.loads(value)["phase"])


def test_between_two_phases_a_rank_is_in_the_one_before(monkeypatch):
    store = NotedStore()
    monkeypatch.setattr(heartbeat, "TURN", 0.05)
    monkeypatch.setattr(ranks, "here", ranks.Here(rank=0, world=1, store=store))
    beating = heartbeat.Heartbeat()

    def beats_until(last: str) -> None:
        while store.phases[-1:] != [last] and beating.thread.is_alive():
            time.sleep(0.01)

    beats_until("start")
    with phase("learn"):
        beats_until("learn")
    store.phases.clear()
    beats_until("learn")
    beating.stop()
    assert set(store.phases[:-1]) == {"learn"} and store.phases[-1] == heartbeat.ENDED


@pytest.mark.parametrize("outside", [True, False])
def test_a_rank_that_waits_for_a_server_is_not_hung(outside, monkeypatch):
    given_up = threading.Event()
    monkeypatch.setattr(heartbeat, "TURN", 0.02)
    monkeypatch.setattr(heartbeat, "LIMIT", 5)
    monkeypatch.setattr(ranks, "here", ranks.Here(rank=0, world=1, store=NotedStore()))
    monkeypatch.setattr(heartbeat.Heartbeat, "_give_up", lambda *_: given_up.set())
    beating = heartbeat.Heartbeat()
    with ranks.waiting_outside() if outside else nullcontext():
        assert given_up.wait(1.0) != outside
    assert not ranks.here.waits_outside
    beating.stop()


def test_an_error_carries_the_innermost_phase():
    with pytest.raises(MemoryError) as raised, phase("collect"), phase("evaluate"):
        raise MemoryError("too large")
    assert raised.value.phase == "evaluate" and ranks.here.phase == ""


def test_a_rank_that_joins_alone_ends_in_one_line(monkeypatch):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(start, "MEETING", timedelta(seconds=1))
    for rank in range(2):
        with pytest.raises(ArgumentError, match=f"rank {rank}: the others did not join within 1 seconds"):
            start.attempt(store, rank, 2)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_torchrun_restarts_ranks_which_go_on(tmp_path):
    launch = "-m torch.distributed.run --standalone --nproc_per_node=2 --max-restarts=1 train.py"
    command = f"{launch} {CASES['ppo'][0]} epochs=6 save_every=2".replace("OUT", f"{tmp_path}/run")
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen([sys.executable, *command.split()], cwd=ROOT, stdout=log, stderr=log)
    after_epoch(tmp_path / "run", 3)
    os.kill(children(process)[1], signal.SIGKILL)
    assert process.wait(timeout=300) == 0
    log = (tmp_path / "log").read_text()
    assert "train.py: rank 1 ended in phase " in log and f"resumed from {tmp_path}/run/checkpoint-" in log
    whole = CASES["ppo"][0].replace("OUT", f"{tmp_path}/whole") + " epochs=6 save_every=2"
    train.main(parse(whole.split(), "train.py"))
    assert differences(contents(tmp_path / "run"), contents(tmp_path / "whole")) == {}


@pytest.mark.all_only
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("options", [["-u"], []], ids=["programs", "forks"])
def test_a_signal_while_ranks_start_ends_them_with_its_status(options, number, status, tmp_path):
    process = started(tmp_path / "run", *options)
    while len(children(process)) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status and "Traceback" not in errors, errors
    line = errors.splitlines()[-1]
    if options:
        assert line == f"train.py: stopped by {number.name}; no run had begun" and not (tmp_path / "run").exists()
    assert line.startswith(f"train.py: stopped by {number.name}"), "forks may have joined by then"
    assert not ("no run had begun" in line and (tmp_path / "run").exists())


@pytest.mark.all_only
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ranks_whose_starter_is_killed_at_once_end_in_silence(tmp_path):
    process = started(tmp_path / "run")
    while len(children(process)) < 2:
        time.sleep(0.01)
    process.kill()
    _, errors = process.communicate(timeout=60)  # until the last one closes stderr
    assert errors == ""


def test_ranks_that_a_second_signal_kills_have_ended_by_it(capsys):
    """They get it when their own handler is gone, a moment before they would have ended."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for rank in range(2):
        store.set(f"joined {rank}", "")
    sleepers = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    assert start.supervise(sleepers, store, [signal.SIGTERM]) == 143
    assert "killed" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "device", "forks"),
    [([], "cpu", True), (["-m", "cProfile"], "cpu", False), (["-u"], "cpu", False), ([], "cuda", False)],
)
def test_ranks_are_forks_of_a_program_on_a_cpu_and_else_programs(before, device, forks, monkeypatch):
    """A fork of a process that is more than the program, as this one is, would do the rest of it too."""
    found, words = [], ["train.py", "algo=ppo", "ranks=2"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(sys, "orig_argv", ["python", *before, *words])
    monkeypatch.setattr(start, "launch", lambda count, forks: found.append((count, forks)) or 0)
    cfg = dataclasses.replace(parse(["algo=ppo", "ranks=2"], "train.py"), device=device)
    with pytest.raises(SystemExit):
        start.run(lambda cfg: None, cfg, groups=2)
    assert found == [(2, forks and sys.platform == "linux")]


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forks under Linux alone")
def test_a_program_without_stdout_can_fork(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as after >&-
    child = start.Fork()
    if not child.pid:
        os._exit(3)
    assert child.wait() == 3


def test_ranks_end_before_their_store(monkeypatch):
    """One that was joining would print a trace of torch's C++ code."""
    ended = []

    class Rank:
        pid, poll, wait, kill = 1, (lambda _: None), (lambda _: None), (lambda _: ended.append("rank"))

    def store_at(listener):
        listener.close()
        weakref.finalize(store := Rank(), ended.append, "store")
        return store

    for name, value in dict(Fork=Rank, store_at=store_at, received=list, supervise=lambda *_: 130).items():
        monkeypatch.setattr(start, name, value)
    assert start.launch(2, forks=True) == 130
    assert ended == ["rank", "rank", "store"]


def test_more_ranks_than_groups_are_one_line(tmp_path):
    words = f"{CASES['ppo'][0]} ranks=9".replace("OUT", str(tmp_path / "run"))
    status, _, errors = run_program("train.py", *words.split())
    line = "train.py: 9 ranks: there is work for 8, a group of episodes stays whole"
    assert status == 2 and len(errors.splitlines()) == 1 and line in errors, errors


@pytest.mark.all_only
def test_an_error_of_every_rank_is_one_line_from_one_rank(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(start, "received", list)  # this process keeps its handlers of signals
    status, _, errors = run_program("train.py", "algo=ppo", "ranks=2", "model=/nowhere", f"out={tmp_path}/run")
    errors += capfd.readouterr().err
    assert status == 1
    assert len(errors.splitlines()) == 1 and "train.py: model '/nowhere': no such folder" in errors, errors


def test_ranks_with_other_settings_are_refused(monkeypatch):
    cfg = parse(["algo=ppo"], "train.py")
    monkeypatch.setattr(ranks, "gathered", lambda mine: [mine, {**mine, "lr": "0.5"}])
    with pytest.raises(ArgumentError, match=r"the ranks differ: lr=0.003 on rank 0, 0.5 on 1"):
        start.agree(cfg)


def test_an_error_on_one_rank_ends_all(monkeypatch):
    def work():
        raise ValueError("no recipe")

    monkeypatch.setattr(ranks, "here", ranks.Here(rank=0, world=2))
    monkeypatch.setattr(ranks, "gathered", lambda mine: [mine, (None, None)])
    with pytest.raises(ValueError, match="no recipe"):
        ranks.together(work)
    monkeypatch.setattr(ranks, "gathered", lambda mine: [mine, (None, "ValueError")])
    with pytest.raises(ranks.AnotherRankFailed, match="rank 1 failed"):
        ranks.together(lambda: 1)


@pytest.mark.parametrize(
    ("words", "count"),
    [("", 4), ("ranks=3", 3), ("threads=2", 1), ("episodes=2", 2), ("algo=grpo episodes=16 grpo.group_size=8", 2)],
)
def test_the_embedded_model_takes_a_rank_per_core_with_work(words, count, monkeypatch):
    monkeypatch.setattr(start, "cores", lambda: 4)
    cfg = parse(words.split() or ["algo=ppo"], "train.py")
    assert start.number(cfg, cfg.episodes // cfg.algorithm.group_size) == count
