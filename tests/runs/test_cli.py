"""The programs at a terminal: help to a closed pipe, interrupts, the end of a game, the keys that eval.py reads."""

import io
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import run_program

import envs
import eval as eval_program
import rl.update
from envs import __main__ as play
from envs.textcraft import Env
from rl.config.refusals import Refusal
from rl.config.words import parse
from rl.run import exits
from rl.run.signals import Interrupted

ROOT = Path(__file__).parents[2]
RESOLVED = ("recipe", "max_turns", "sandbox")  # keys that rl.config turns into others
STARTS = {"ranks"}  # read before the ranks start


@pytest.mark.parametrize(
    "words",
    [
        "-m envs textcraft --help",
        "-m envs sat demos=200",
        "-m envs.serve port=0",
        *(
            pytest.param(f"{program} --help", marks=pytest.mark.full)  # the same parser prints them
            for program in ("eval.py", "merge.py", "-m envs", "-m envs.serve", "-m benchmarks.envs")
        ),
    ],
)
def test_printing_to_a_closed_pipe_is_silent(words):
    read, write = os.pipe()
    os.close(read)
    found = subprocess.run(
        [sys.executable, *words.split()], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, timeout=120
    )
    os.close(write)
    assert (found.returncode, found.stderr) == (0, b"")


def test_a_reader_that_leaves_a_run_is_named(capsys):
    with pytest.raises(SystemExit) as end, exits.exits_cleanly("train.py"):
        error = BrokenPipeError(32, "Broken pipe")
        error.add_note("how to go on")
        raise error
    line = "train.py: the program that read its output, such as head, has closed the pipe; how to go on\n"
    assert (end.value.code, capsys.readouterr().err) == (1, line)


def three_of_two() -> tuple:
    one, two, three = (1, 2)
    return one, two, three


MISTAKES = {
    "a word that is no number": lambda: int("x"),
    "another number of values": three_of_two,
    "lists of other lengths": lambda: [*zip([1], [], strict=True)],
    "in a thread": lambda: ThreadPoolExecutor(1).submit(three_of_two).result(),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_program_keeps_its_traceback(name):
    """Whoever changes a loss or an environment must see where it fails."""
    with pytest.raises(ValueError), exits.exits_cleanly("train.py"):
        MISTAKES[name]()


def test_a_refusal_is_one_line_wherever_it_is_worded(capsys):
    def refuse():
        raise Refusal("this is refused")

    for refused in (refuse, lambda: ThreadPoolExecutor(1).submit(refuse).result(), lambda: json.loads("{")):
        with pytest.raises(SystemExit) as end, exits.exits_cleanly("train.py"):
            refused()
        assert end.value.code == 1 and capsys.readouterr().err.count("\n") == 1


@pytest.mark.all_only
def test_what_a_closed_pipe_did_not_take_is_not_written_again():
    """Python would try it at its end, print that too, and end with status 120."""
    read, write = os.pipe()
    os.close(read)
    code = "from rl.run import exits\nwith exits.exits_cleanly('train.py'): print('a line', flush=True)"
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=write, stderr=subprocess.PIPE, env=buffered)
    os.close(write)
    line = b"train.py: the program that read its output, such as head, has closed the pipe\n"
    assert (found.returncode, found.stderr) == (1, line)


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "envs", "textcraft", "demos=3"]
        found = subprocess.run(words, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=120)
    assert (found.returncode, found.stderr) == (1, b"cannot print: No space left on device\n")


@pytest.mark.parametrize("words", ["textcraft demos=1", "textcraft seed=1"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_missing_streams_are_no_error(closed, words):
    command = f"exec {sys.executable} -m envs {words} {closed}"
    found = subprocess.run(["sh", "-c", command], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert (found.returncode, found.stderr) == (0, b"")


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_eval_with_its_status(number, status, monkeypatch, capsys):
    monkeypatch.setattr("models.load_model", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(sys, "argv", ["eval.py", "n=1", "threads=1"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "eval.py"), run_name="__main__")
    line = f"eval.py: stopped by {number.name}"
    assert end.value.code == status and capsys.readouterr().err.splitlines()[-1] == line


RUN = ["algo=grpo", "episodes=8", "batch_size=8", "eval_episodes=0", "max_turns=1", "max_new_tokens=8", "epochs=2"]


@pytest.mark.parametrize(
    "epochs, said",
    [
        (None, ""),
        (0, "; python train.py resume={} goes on from its newest checkpoint"),
        (1, "; python train.py resume={} goes on from its newest checkpoint"),
    ],
)
def test_interrupt_prints_how_to_resume(epochs, said, tmp_path, monkeypatch, capsys):
    """epochs: epochs before the interrupt; None: before the model is loaded."""
    done, learn = [], rl.update.update

    def update(*words):
        if len(done) == epochs:
            raise Interrupted(signal.SIGINT)
        done.append(1)
        return learn(*words)

    def load_model(*_):
        raise Interrupted(signal.SIGINT)

    monkeypatch.setattr("rl.update.update", update)
    if epochs is None:
        monkeypatch.setattr("rl.run.setup.load_model", load_model)
    monkeypatch.setattr(sys, "argv", ["train.py", *RUN, "threads=1", f"out={tmp_path}/{{algo}}-{{timestamp}}"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
    assert end.value.code == 130
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == "train.py: stopped by SIGINT" + said.format(*tmp_path.iterdir())


@pytest.fixture
def game(monkeypatch, capsys):
    """Return a function that plays textcraft with typed lines; it returns the output and the actions taken."""
    actions, act = [], Env.step

    def step(env, action: str):
        actions.append(action)
        return act(env, action)

    def play_game(typed: str, *words: str) -> tuple[str, list[str]]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
        play.main(["textcraft", *words])
        return capsys.readouterr().out, actions

    monkeypatch.setattr(Env, "step", step)
    return play_game


@pytest.mark.parametrize("typed, asked", [("q\n", 1), ("", 1), ("\n  \nq\n", 3), ("\n", 2), ("inventory\nq", 2)])
def test_game_ends_on_q_and_ignores_empty_lines(typed, asked, game):
    output, actions = game(typed)
    assert output.count("> ") == asked and output.endswith("> \n")
    assert actions == ["Action: inventory"] * ("inventory" in typed)
    assert output.count(play.TIP) == 1 and output.index(play.TIP) < output.index("> ")


@pytest.mark.parametrize("end", ["Q", "quit", " Exit "])
def test_word_that_ends_a_game_is_no_action(end, game):
    assert game(f"{end}\ninventory\n")[1] == []


@pytest.mark.parametrize("typed", ["\n\nquit\n?\n", "", " one\n  two\n"])
def test_lines_between_quotes_are_one_reply(typed, game):
    assert game(f'"""\n{typed} """ \nq', "prompt=short")[1] == [typed]
    assert game(f'"""\n{typed}', "prompt=short")[1] == [typed]  # no more: the end of the input ends the game


def test_exclamation_mark_plays_the_experts_move(game):
    output, actions = game("?\n" + "!\n" * 20, "difficulty=1", "seed=3")
    assert output.endswith("reward 1, shaped 1, valid True\nover: correct\n")
    assert output.count(actions[0]) == 2 and output.count(f"> {actions[-1]}") == 1


def test_interrupted_reset_exits_with_130(capsys, monkeypatch):
    def reset(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Env, "reset", reset)
    with pytest.raises(SystemExit) as end:
        play.main(["textcraft"])
    assert end.value.code == 130 and capsys.readouterr() == ("", "\n")


class Read:
    """A config that records which fields are read."""

    def __init__(self, cfg):
        self.cfg, self.keys = cfg, set()

    def __getattr__(self, key: str):
        self.keys.add(key)
        return getattr(self.cfg, key)


def test_eval_frees_a_model_before_it_loads_the_next(monkeypatch, capsys):
    """Two models of 7B do not fit where one does."""
    words = ["n=1", "max_new_tokens=2", "textcraft.max_turns=1", "adapter=base,base,base"]
    cfg, keys = parse(words, "eval.py", eval_program.Keys)
    load, loaded, alive = eval_program.load_model, [], []

    def load_and_count(*args):
        alive.append(sum(model() is not None for model in loaded))
        model = load(*args)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(eval_program, "load_model", load_and_count)
    eval_program.main(cfg, keys)
    assert alive == [0, 0, 0] and "success" in capsys.readouterr().out


def test_help_of_eval_lists_exactly_the_keys_it_reads(capsys):
    cfg, keys = parse(["n=1", "max_new_tokens=2", "textcraft.max_turns=1"], "eval.py", eval_program.Keys)
    read = Read(cfg)
    eval_program.main(read, keys)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        parse(["--help", "all"], "eval.py", eval_program.Keys)
    listed = set(re.findall(r"^  (\w+)[=.]", capsys.readouterr().out, re.M))
    unlisted = {"sampler", "algorithm"}  # eval.py empties the first; the second is about episodes to learn from
    assert read.keys - unlisted | STARTS == listed - {*vars(keys), *RESOLVED, *envs.NAMES} | {"environments"}
    assert set(envs.NAMES) <= listed


@pytest.mark.parametrize(
    "words, line",
    [
        (["adapter="], "adapter=: a name is empty"),
        (["--eval_episodes=3"], "--eval_episodes=3 is a key of train.py; here it is n="),
        (["temperature=0", "samples=4"], "samples= and k= count sampled play, and temperature=0 plays greedily"),
        (["adapter=base,,base"], "adapter=base,,base: a name is empty"),
        (["resume_from=runs/x"], "resume_from=runs/x is a key of train.py; here it is adapter="),
        (["resume=runs/x"], "resume=runs/x is a key of train.py; here it is adapter="),
        (["data=x.jsonl"], "data=x.jsonl is a key of train.py; here it is env=qa qa.data="),
        (["rollouts=x.jsonl"], "rollouts= is a key of train.py"),
        (["json=README.md"], "json=README.md is there, and eval.py did not write it; give another file"),
        (["json=/proc/x.json"], "json=/proc/x.json: /proc is not writable"),
    ],
)
def test_eval_refuses_what_cannot_be_used_before_it_loads(words, line, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != Path("/proc"))  # root may write there
    status, out, err = run_program("eval.py", "n=1", *words)
    assert (status, out, err) == (2, "", f"eval.py: {line}\n")


def test_help_of_eval_takes_a_name_that_is_a_key_of_training():
    status, out, err = run_program("eval.py", "--help", "data")
    assert status == 0 and "data=" in out, err


def test_full_disk_leaves_an_earlier_evaluation(tmp_path, monkeypatch):
    """The new file takes the old one's place once it is whole."""
    path = tmp_path / "x.json"
    path.write_text(earlier := json.dumps({"config": {}, "played": {}, "results": {}}))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    status, _, err = run_program("eval.py", "n=1", f"json={path}")
    assert status == 1 and err == f"eval.py: {path} cannot be written: No space left on device\n"
    assert path.read_text() == earlier


def test_a_character_that_the_terminal_lacks_is_escaped(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with exits.exits_cleanly("x.py"):
        print("漢", flush=True)
    assert raw.getvalue() == b"\\u6f22\n"
