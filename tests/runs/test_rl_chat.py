"""The terminal chat: commands, what a conversation remembers, and how a reply is stopped."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from models import load_tokenizer
from rl import chat
from rl.serve.loading import ModelKeys, best_of_runs, load

pytestmark = pytest.mark.all_only

ROOT = Path(__file__).parents[2]


@pytest.fixture
def talk(capsys):
    """Return a function that says lines to the embedded model and returns (the chat, what it printed)."""
    sampler = load(ModelKeys(max_len=256), rows=1, most_waiting=1)
    sampler.start()

    def say(*lines: str, **keys):
        one, goes_on = chat.Chat(sampler, chat.Keys(seed=1, **{"max_new_tokens": 8, **keys})), True
        capsys.readouterr()
        for line in lines:
            goes_on = one.command(line) if line.startswith("/") else one.say(line) is None
        return one, capsys.readouterr().out, goes_on

    yield say
    sampler.stop()


def test_a_conversation_keeps_sampled_ids(talk):
    one, printed, _ = talk("Goal: a door", "and more")
    tokenizer = load_tokenizer("tiny")
    first = one.before[1]
    assert first[: len(tokenizer.prompt([{"role": "user", "content": "Goal: a door"}]))] == tokenizer.prompt(
        [{"role": "user", "content": "Goal: a door"}]
    )
    follow = tokenizer.follow_up(first[-1], [{"role": "user", "content": "and more"}])
    assert one.ids[: len(first) + len(follow)] == first + follow
    assert len(printed.splitlines()) >= 2


def test_undo_and_reset_forget(talk):
    once, _, _ = talk("Goal: a door")
    back, _, _ = talk("Goal: a door", "and more", "/undo")
    assert back.ids == once.ids
    assert talk("x", "/reset", "Goal: a door")[0].ids == once.ids
    assert talk("/undo")[1] == "nothing to take back\n"


def test_commands_are_checked(talk):
    assert talk("/use nobody")[1] == "choose from: base\n"
    assert talk("/what")[1].startswith("commands: /reset")
    assert talk("/quit")[2] is False


def test_the_chat_says_what_the_embedded_model_knows(tmp_path, monkeypatch, capsys):
    """In the words of the page of rl.serve; of another model, such as one in a folder, it says nothing."""
    assert chat.EMBEDDED.removesuffix(".") in (ROOT / "rl" / "serve" / "chat.html").read_text()
    shutil.copytree(ROOT / "models" / "tiny", tmp_path / "own")
    monkeypatch.setattr(chat, "talk", lambda _: None)
    for model in ("tiny", tmp_path / "own"):
        chat.main([f"model={model}", "max_len=64"])
        lines = capsys.readouterr().out.splitlines()
        assert (chat.EMBEDDED in lines) is (model == "tiny") and lines[-1] == f"{model}; {chat.COMMANDS}"


def test_a_full_context_is_said(talk):
    assert "/reset begins another" in talk("a b c d " * 200)[1]


def test_escape_codes_of_a_model_are_not_printed():
    assert chat.printable("a\x1b[2Jb\n") == "a\ufffd[2Jb\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_an_interrupt_stops_the_reply_alone():
    """temperature 9 samples hardly ever a stop token."""
    words = ["temperature=9", "max_new_tokens=4000", "max_len=4096", "seed=0"]
    command = [sys.executable, "-u", "-m", "rl.chat", *words]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **pipes)
    while "/quit" not in process.stdout.readline():
        pass
    process.stdin.write("Goal\n")
    process.stdin.flush()
    shown = os.read(process.stdout.fileno(), 20).decode()
    process.send_signal(signal.SIGINT)
    while "[stopped]" not in shown:
        shown += os.read(process.stdout.fileno(), 1000).decode()
    out, errors = process.communicate("/undo\n/quit\n", timeout=60)
    assert "taken back: 0 before it" in out and process.returncode == 0 and not errors, (out, errors)


def test_a_runs_folder_means_its_best_epoch(tmp_path, capsys):
    """In rl.chat and rl.serve. Its name stays the folder's; other words stay as they are."""
    run = tmp_path / "x"
    for epoch in (2, 4):
        (run / f"epoch_{epoch}").mkdir(parents=True)
        (run / f"epoch_{epoch}" / "adapter_config.json").write_text("{}")
    evaluated = [
        {"epoch": epoch, "eval": {"temperature": 1.0, "success": share}} for epoch, share in ((2, 0.5), (4, 0.4))
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in evaluated))
    words = [f"adapter={run},b={run / 'epoch_4'}", "max_len=9"]
    assert best_of_runs(words) == [f"adapter={run}={run / 'epoch_2'},b={run / 'epoch_4'}", "max_len=9"]
    assert "epoch_2 is the best of 2 evaluated epochs" in capsys.readouterr().out
    assert best_of_runs(["--help", f"adapter={run / 'epoch_4'}"]) == ["--help", f"adapter={run / 'epoch_4'}"]


@pytest.mark.parametrize("keys", [{"seed": 2**63}, {"temperature": 1e-9}, {"top_p": 1.5}])
def test_numbers_that_cannot_be_used_are_refused_at_the_start(keys):
    [(name, value)] = keys.items()
    with pytest.raises(ValueError, match=f"^{name}={re.escape(str(value))}"):
        chat.Keys(**keys)
