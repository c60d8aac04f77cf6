"""prompt=FILE: every environment plays with the instructions of a file, as it does with its native ones."""

import os

import pytest
import test_lab
import test_serve
from conftest import no_hang, run_program
from experts import expert
from test_http import remote

import envs
from envs.prompt_file import MOST_BYTES, text_of
from rl.config.words import parse
from rl.run.digests import task_files

PLACES = {  # of the environments with one message: the file's text
    "sat": "{k}-SAT with {n} variables {braces}.\n---\n{formula}",
    "abd": "What makes it print {output}?\n---\n{program}",
    "ded": "Write it.\n---\n{problem}",
    "planner": "Plan this.\n---\n{question}",
    "sums": "Add these.\n---\n{sum}",
}
WORLDS = [name for name in envs.NAMES if name not in envs.WITHOUT_TASKS]


def played(name: str, **options) -> list:
    """Return the messages of an episode and what the expert's replies to it led to."""
    env = envs.make(name, **options)
    messages = env.reset(5, "val")
    return [messages, [(step.observation, step.reward) for step in expert(env)]]


@pytest.mark.parametrize("name", WORLDS)
def test_the_file_replaces_the_instructions_alone(name, tmp_path):
    """The task, the form of replies, the rewards and the observations stay those of the native prompt."""
    path = tmp_path / "original.txt"
    path.write_text(PLACES.get(name, "Do {this} as the original says.") + "\n")
    (first, *others), steps = played(name)
    (brought, *same), equal = played(name, prompt=str(path))
    assert (same, equal, brought["role"]) == (others, steps, first["role"])
    assert steps[-1][1] > 0, "the expert wins"
    if name not in PLACES:
        assert brought["content"] == "Do {this} as the original says."
        return
    words, _, task = brought["content"].partition("\n---\n")
    assert words.startswith(PLACES[name].partition("{")[0].partition("\n")[0]) and ("{" in words) == (name == "sat")
    assert len(task) > 4 and task in first["content"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        ("", "the file is empty"),
        ("a" * (MOST_BYTES + 1), "the file is larger than 65,536 bytes"),
        ("Satisfy it.", "the file must have {formula} where the task's formula belongs"),
    ],
)
def test_a_wrong_file_is_one_line(content, said, tmp_path):
    path = tmp_path / "prompt.md"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError) as error:
        envs.make("sat", prompt=str(path))
    assert str(error.value) == f"prompt={path}: {said}"
    code, out, err = run_program("train.py", "env=sat", f"sat.prompt={path}")
    assert (code, out, err.count("\n")) == (2, "", 1) and said in err


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_refused_at_once(make, tmp_path):
    make(path := tmp_path / "prompt.md")
    with no_hang(5), pytest.raises(ValueError, match=r"^not a file$"):
        text_of(str(path))


def test_a_resumed_run_compares_the_file(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Craft it.")
    cfg = parse(["env=textcraft", f"textcraft.prompt={path}"])
    before = task_files(cfg)
    path.write_text("Craft it now.")
    assert [*before] == [f"textcraft.prompt={path}"] and task_files(cfg) != before


@pytest.mark.parametrize(("kind", "served"), [("textcraft", test_serve.served), ("db_bench", test_lab.served)])
def test_an_environment_on_a_server_plays_with_the_file(kind, served, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("The original's words.")
    with served(kind) as server:
        env = remote(server, kind=kind, prompt=str(path))
        first, agreed, task = env.reset(3)
        plain = remote(server, kind=kind).reset(3)
    assert first == {"role": "user", "content": "The original's words."} and plain[1:] == [agreed, task]
