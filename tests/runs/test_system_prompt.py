"""system_prompt=: a system message before every environment's own, from a text or a file."""

import json

import pytest
from conftest import run_program

import envs
from models import load_tokenizer
from rl import data
from rl.config.words import parse, resolve
from rl.tasks import make_env

TEXT = "Be brief."


@pytest.mark.parametrize("name", [name for name in envs.NAMES if name not in envs.WITHOUT_TASKS])
def test_every_environment_begins_with_it(name):
    words = {"env": name, **({"planner.worker": "rules"} if name == "planner" else {})}
    plain = make_env(resolve(words), name).reset(3, "val")
    found = make_env(resolve({**words, "system_prompt": TEXT}), name).reset(3, "val")
    own = plain[0]["content"] if plain[0]["role"] == "system" else ""
    assert found[0] == {"role": "system", "content": f"{TEXT}\n\n{own}" if own else TEXT}
    assert found[1:] == (plain[1:] if own else plain)


def test_a_file_gives_its_text(tmp_path):
    (tmp_path / "prompt.md").write_text("First line.\nSecond line.\n")
    cfg = parse([f"system_prompt={tmp_path}/prompt.md"])
    assert make_env(cfg, "textcraft").reset(0)[0]["content"] == "First line.\nSecond line."


def test_a_text_may_be_longer_than_a_name():
    """A file's has at most 255 characters."""
    text = "Be brief. " * 100
    assert make_env(parse([f"system_prompt={text}"]), "textcraft").reset(0)[0]["content"].startswith(text.strip())


def test_rows_of_a_file_begin_with_it(tmp_path):
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    cfg = parse(["algo=sft", f"data={tmp_path}/rows.jsonl", f"system_prompt={TEXT}"])
    tokenizer = load_tokenizer("tiny")
    [episode] = data.load(cfg, tokenizer).train
    prompt = tokenizer.prompt([{"role": "system", "content": TEXT}, {"role": "user", "content": "a"}])
    assert episode.ids_T[: len(prompt)] == prompt and sum(episode.action_mask_T) == len(tokenizer.reply("b"))


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), ("", "empty"), ("a" * 70000, "larger than 65,536")]
)
def test_a_wrong_file_is_one_line(content, said, tmp_path):
    path = tmp_path / "prompt.txt"
    if content is not None:
        path.write_text(content)
    status, out, err = run_program("train.py", f"system_prompt={path}")
    assert (status, out, err.count("\n")) == (2, "", 1) and f"system_prompt={path}: " in err and said in err, err
