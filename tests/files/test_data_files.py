"""Data files of strangers, for the environments that read them: an episode is played, or one line refuses the file."""

import contextlib
import copy
import json
import random
from pathlib import Path

import hostile_files
import pytest
from conftest import no_hang
from hostile import is_plain, modest

import envs
from envs import __main__ as game
from envs.db_bench import __main__ as table
from envs.db_bench import tasks as db_tasks
from envs.refusal import Refusal
from envs.simulators import sandbox
from envs.simulators.mysql import Database
from envs.tau_retail.shop import make_shop

try:
    sandbox.start(sandbox.ISOLATED)
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)

WORDS = ["{}{0}", "while true; do :; done", "(a+)+$", "SELECT 1", "'", "\\", "/etc/passwd", "../x", "9" * 400]
VALUES = [*hostile_files.VALUES.values(), *WORDS]
ANSWER = "Act: answer(" + "a" * 40 + "!)"


def db_bench() -> dict:
    found, database = {}, Database()
    for seed, skill in enumerate(db_tasks.SKILLS):
        task = db_tasks.draw(random.Random(seed), skill, "1", "train", database)
        found[skill] = [db_tasks.entry_of(task)]
    return {"data.json": found}


def command(script: str) -> dict:
    return {"command_name": "bash", "script": script}


def os_interaction() -> dict:
    """Return LifelongAgentBench's tasks."""
    info = {"evaluation_command_item": command("test -d /srv/x"), "ground_truth_command_item": command("mkdir /srv/x")}
    entry = {"initialization_command_item": command("true"), "evaluation_info": info, "skill_list": ["mkdir"]}
    return {"data.json": {str(i): {"instruction": f"Create /srv/x, way {i}.", **entry} for i in range(12)}}


def agent_bench() -> dict:
    checks = [
        {"match": "3"},
        {"match": {"regex": "^[0-9]+$"}},
        {"check": [None, 'test "$1" = "$(echo $2)"'], "example": "ls /srv/y"},
        {"check": [None, {"language": "python", "file": "same.py"}], "example": "echo 1"},
    ]
    entry = {"labels": ["file"], "create": {"init": ["mkdir /srv/y", "touch /srv/y/2"]}}
    data = [{"description": f"Question {i}?", "evaluation": checks[i % 4], **entry} for i in range(16)]
    return {"data.json": data, "same.py": "import sys\nsys.exit(sys.argv[1] != sys.argv[2])"}


def planner() -> dict:
    return {
        "data.jsonl": [
            {"question": f"What is {i} + 2?", "answer": f"<<{i}+2={i + 2}>>\n#### {i + 2}"} for i in range(20)
        ]
    }


def abd() -> dict:
    source = "print(int(input()) + {})"
    return {"data.jsonl": [{"program": source.format(i), "inputs": "1", "output": str(i + 1)} for i in range(20)]}


def ded() -> dict:
    def cases(i: int) -> list[dict]:
        call = {"type": "function_call", "fn_name": "f", "input": [1], "output": [i + 1]}
        return [{"type": "stdin_stdout", "input": "1", "output": str(i + 1)}, call]

    program = "def f(x): return x + {0}\nif __name__ == '__main__': print(f(int(input())))"
    return {
        "data.jsonl": [
            {"prompt": f"Add {i}.", "program": program.format(i), "verification_info": {"test_cases": cases(i)}}
            for i in range(20)
        ]
    }


def tau_retail() -> dict:
    shop = make_shop(short=True)
    order = next(order for order in shop.orders.values() if order["status"] == "pending")
    users = {order["user_id"]: shop.users[order["user_id"]]}
    actions = [
        {"name": "cancel_pending_order", "kwargs": {"order_id": order["order_id"], "reason": "ordered by mistake"}}
    ]
    task = {"user_id": order["user_id"], "actions": actions, "outputs": []}
    tables = {"users.json": users, "orders.json": {order["order_id"]: order}, "products.json": shop.products}
    return {**tables, "tasks.json": [{"instruction": f"You want it cancelled, way {i}.", **task} for i in range(12)]}


def qa() -> dict:
    talk = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2?"}]
    texts = [{"question": f"{i} + 2?", "answer": i + 2} for i in range(16)]
    return {"data.jsonl": [{"messages": talk, "answer": "3"}, *texts]}


KINDS = {made.__name__: made for made in (db_bench, os_interaction, agent_bench, planner, qa, abd, ded, tau_retail)}


def environment(kind: str, folder: Path, files: dict) -> envs.Environment:
    """Write the files and return the environment that reads them."""
    for name, content in files.items():
        rows = name.endswith(".jsonl") and isinstance(content, list)
        text = "".join(json.dumps(row) + "\n" for row in content) if rows else json.dumps(content)
        text = content if name.endswith(".py") and isinstance(content, str) else text
        (folder / name).write_text(text, errors="replace")
    options = {"seconds": 2, "cpu_seconds": 1} if kind in ("abd", "ded") else {}
    options |= {"scripts": str(folder)} if kind == "agent_bench" else {}
    data = folder if kind == "tau_retail" else folder / next(iter(files))
    return envs.make("os_interaction" if kind == "agent_bench" else kind, data=str(data), **options)


def play(env: envs.Environment) -> int:
    """Play an episode of each split that has tasks; return their number."""
    played = 0
    for split in ("train", "val", "test"):
        try:
            messages = env.reset(0, split)
        except ValueError as error:  # the split has no task
            assert is_plain(str(error), 1000)
            continue
        assert all(type(message["content"]) is str for message in messages)
        try:
            reply = env.oracle()
        except RuntimeError as error:
            assert "no expert" in str(error)
            reply = ANSWER
        for said in (reply, ANSWER):
            step = env.step(said)
            assert type(step.observation) is str
            if step.terminated or step.truncated:
                break
        played += 1
    return played


def spoil(value, rng: random.Random):
    """Return a copy of a JSON value with a part changed, in one place or in all entries of a list or table."""
    value, everywhere = json.loads(json.dumps(value)), rng.random() < 0.7  # with no part in two places
    new, act = rng.choice(VALUES), rng.choice(("set", "set", "delete", "rename"))

    def change(inner, depth: int):
        if depth == 0 or not inner or not isinstance(inner, dict | list):
            return copy.deepcopy(new)
        keys = list(inner) if isinstance(inner, dict) else range(len(inner))
        uniform = len({type(inner[key]) for key in keys}) == 1 and isinstance(inner[keys[0]], dict)
        for key in keys if everywhere and uniform else [rng.choice(keys)]:
            if depth == 1 and act != "set" and isinstance(inner, dict):
                old = inner.pop(key)
                inner |= {str(new)[:50]: old} if act == "rename" else {}
            else:
                state = rng.getstate()  # the same change in each entry
                inner[key] = change(inner[key], depth - 1)
                rng.setstate(state)
        return inner

    return change(value, rng.choice((1, 2, 2, 3, 3, 4, 5)))


@pytest.mark.parametrize("kind", KINDS)
def test_whole_files_are_played(kind, tmp_path):
    assert play(environment(kind, tmp_path, KINDS[kind]())) > 0


@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_are_played_or_refused(kind, count, tmp_path, capfd):
    for seed in range(count):
        rng, files = random.Random(f"{kind} {seed}"), KINDS[kind]()
        name = rng.choice(list(files))
        with modest():
            try:
                play(environment(kind, tmp_path, {**files, name: spoil(files[name], rng)}))
            except (ValueError, envs.EnvironmentFailed) as error:
                assert type(error) in (Refusal, envs.EnvironmentFailed), (seed, error)
                assert "\n" not in str(error), (seed, error)
    assert all(map(is_plain, capfd.readouterr().err.splitlines()))


LARGE = ["db_bench", "os_interaction", "planner", "qa", "abd", "ded", "tau_retail"]


@pytest.mark.parametrize("kind", LARGE)
def test_huge_files_are_refused_in_a_line(kind, tmp_path):
    """A hole of 10 GB, which takes no room on the disk."""
    name = "products.json" if kind == "tau_retail" else "data.json"
    with open(tmp_path / name, "wb") as file:
        file.truncate(10 << 30)
    with modest(), pytest.raises(ValueError, match=rf"^data: [^\n]*{name} has more than [\d,]+ bytes$"):
        envs.make(kind, data=str(tmp_path if kind == "tau_retail" else tmp_path / name))


@pytest.mark.parametrize("text", ["[]," * 10_000_000, '{"a": [' + "[" * 5000, '{"a": "\\ud800"}', "1.5," * 8_000_000])
def test_json_that_takes_memory_is_refused_in_a_line(text, tmp_path):
    (path := tmp_path / "data.json").write_text(text)
    with modest(megabytes=500), pytest.raises(ValueError, match=r"^data: [^\n]+ is not JSON: [^\n]+$"):
        envs.make("db_bench", data=str(path))


LOOP = "while true; do :; done"
CHECKS = {
    "before": (LOOP, "touch /x"),
    "after": (f"test -e /x || exit 1; {LOOP}", "touch /x"),
    "solution": ("test -e /x", LOOP),
    "python": ({"language": "python", "code": "while True: pass"}, "touch /x"),
}


@pytest.mark.parametrize("kind", [*list(CHECKS)[:3], pytest.param("python", marks=pytest.mark.full)])
def test_tasks_that_do_not_end_are_not_all_tried(kind, tmp_path):
    """A thousand of them would take an hour."""
    check, solution = CHECKS[kind]
    env = envs.make("os_interaction", data=written(tmp_path, {"check": check, "example": solution}, 300))
    with (
        modest(seconds=5.0),
        pytest.raises(ValueError, match=r"3 of the first 3 tasks of split train do not end; [^\n]+$"),
    ):
        env.reset(0)


def written(folder: Path, evaluation: dict, count: int = 30) -> str:
    """Write tasks of AgentBench with this evaluation; return the file's path."""
    tasks = [{"description": f"Question {i}?", "evaluation": evaluation} for i in range(count)]
    (folder / "data.json").write_text(json.dumps(tasks))
    return str(folder / "data.json")


def test_pattern_of_an_answer_cannot_run_forever(tmp_path):
    env = envs.make("os_interaction", data=written(tmp_path, {"match": {"regex": "(a+)+$"}}))
    env.reset(0)
    with no_hang(30):  # the sandbox ends it by processor time, which takes longer where other programs run
        assert env.step(ANSWER).info["outcome"] == "incorrect"


@pytest.mark.parametrize("pattern", ["(" * 900 + ")" * 900, "a{99999999999999999999}", "a|" * 5000, "("])
def test_wrong_pattern_of_an_answer_is_refused_in_a_line(pattern, tmp_path):
    with pytest.raises(ValueError, match=r"^data: entry 0 [^\n]+ the pattern [^\n]+$"):
        envs.make("os_interaction", data=written(tmp_path, {"match": {"regex": pattern}}))


@pytest.mark.parametrize("place", ["../outside.sh", "/etc/hostname", "link.sh"])
def test_scripts_outside_of_their_folder_are_not_read(place, tmp_path):
    (scripts := tmp_path / "scripts").mkdir()
    (tmp_path / "outside.sh").write_text("true")
    (scripts / "link.sh").symlink_to(tmp_path / "outside.sh")
    data = written(tmp_path, {"check": {"file": place}, "example": "true"})
    with pytest.raises(ValueError, match=r"^scripts must be the folder of AgentBench's scripts: no file [^\n]+ in it$"):
        envs.make("os_interaction", data=data, scripts=str(scripts))


def test_escape_codes_of_a_file_do_not_reach_the_terminal(tmp_path, capsys):
    """Neither in a game nor in the table of db_bench's program."""
    files = db_bench()
    entry = next(iter(files["data.json"].values()))[0] | {"instruction": "What\x1b[2J\x07 \u202eis \x9b31mit?"}
    (tmp_path / "data.json").write_text(json.dumps({"\x1b[2Jselect": [entry] * 30}))
    for split in ("train", "val", "test"):
        with contextlib.suppress(SystemExit):  # the split has no task
            game.main(["db_bench", f"data={tmp_path}/data.json", "demos=1", f"split={split}"])
    table.main([f"data={tmp_path}/data.json"])
    out = capsys.readouterr().out
    assert "What\\x1b[2J\\x07 \\u202eis \\x9b31mit?" in out and "\n[2Jselect" in out
    assert all(line.isprintable() for line in out.split("\n"))
