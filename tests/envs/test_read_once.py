"""Users' files are read once in a run, and anew for the next one of the same process."""

import json

import pytest
from test_db_bench import entries

from envs import prompt_file, qa, scorer
from envs.db_bench import tasks as db_bench
from envs.os_interaction.data import read
from envs.os_interaction.judge import skipped
from envs.read_once import read_anew, read_once
from envs.tau_retail import original, shop


def test_a_result_is_kept_until_all_are_read_anew_and_an_error_is_not_kept():
    read = []

    @read_once
    def reader(path: str) -> int:
        read.append(path)
        if path == "bad":
            raise ValueError(path)
        return len(read)

    assert [reader("a"), reader("a"), reader("b")] == [1, 1, 2]
    for _ in range(2):
        with pytest.raises(ValueError):
            reader("bad")
    read_anew()
    assert reader("a") == 5 and read == ["a", "b", "bad", "bad", "a"]


def test_a_changed_file_of_tasks_is_read_by_the_next_run(tmp_path):
    path, given = tmp_path / "tasks.json", entries(40)
    for count in (40, 20):
        path.write_text(json.dumps(dict(list(given.items())[:count])))
        kept = db_bench.read_in_order(str(path))
        read_anew()
        assert len(kept) == 40 and len(db_bench.read_in_order(str(path))) == count


@pytest.mark.parametrize(
    "reader",
    [
        *(db_bench.read_entries, db_bench.read_in_order, db_bench.read_tasks, read, skipped),
        *(original.load_tasks, shop.load_shop, prompt_file.text_of, scorer.load, qa.say_unread),
    ],
)
def test_each_reader_of_a_users_file_is_emptied(reader):
    assert reader in read_anew.__globals__["_readers"]
