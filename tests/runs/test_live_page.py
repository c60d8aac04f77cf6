"""python -m rl.report runs/x watch=true: the page that is served follows the run's files, for this machine alone."""

import http.client
import json
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from rl.report import live_page, page, runs


def write_config(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    config = {"algo": "ppo", "env": "textcraft", "model": "tiny", "recipe": "", "seed": 0, "epochs": 9, "episodes": 2}
    (folder / "config.json").write_text(json.dumps(config))


def write_epoch(folder: Path, epoch: int) -> None:
    with open(folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"epoch": epoch, "step": epoch, "seconds": 1.0, "episodes": 2}) + "\n")


@contextmanager
def served(folder: Path):
    """Yield a function that returns the status and text of a path of the server."""
    server = live_page.Server([folder], lambda version: page.page([folder], version=version), 0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def get(path: str = "/", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        found = answer.status, answer.read().decode()
        connection.close()
        return found

    try:
        yield get
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def shown_epochs(text: str) -> list[int]:
    block = text.split('id="runs">')[1].split("</script>")[0]
    return [record["epoch"] for record in json.loads(block)[0]["metrics"]]


def test_the_page_waits_for_a_run_and_follows_it(tmp_path):
    folder = tmp_path / "<run>"
    with served(folder) as get:
        assert "&lt;run&gt;: not there yet; the page waits" in get()[1] and "<run>" not in get()[1]
        write_config(folder)
        assert "no metrics yet; the page waits" in get()[1]
        write_epoch(folder, 1)
        text, version = get()[1], get("/version")[1]
        assert shown_epochs(text) == [1] and f'data-version="{version}"' in text and "connect-src 'self'" in text
        assert get() == (200, text), "nothing has changed"
        write_epoch(folder, 2)
        assert get("/version")[1] != version and shown_epochs(get()[1]) == [1, 2]
        (folder / "config.json").write_text("{")
        assert "cannot be read now" in get()[1]
        write_config(folder)
        assert shown_epochs(get()[1]) == [1, 2]


def test_only_this_machine_s_own_names_reach_the_page(tmp_path):
    """A page of another name may be made to point here, and would then read the run."""
    write_config(tmp_path / "run")
    write_epoch(tmp_path / "run", 1)
    with served(tmp_path / "run") as get:
        assert get(Host="localhost:1")[0] == 200
        for path in ("/", "/version"):
            assert get(path, Host="attacker.example") == (403, "'attacker.example' is not a name of this server")
        assert get("/config.json")[0] == get("/../config.json")[0] == 404


def test_a_page_that_is_not_served_asks_for_nothing(tmp_path):
    write_config(tmp_path / "run")
    write_epoch(tmp_path / "run", 1)
    text = page.page([tmp_path / "run"])
    assert "connect-src" not in text.split("<style>")[0] and "data-version" not in text.split("<style>")[0]


def test_watch_refuses_what_it_cannot_serve(tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for words, message in (
            ([f"port={port}", "watch=true"], f"port={port}: cannot listen on it: Address already in use"),
            (["port=99999", "watch=true"], "port=99999 must be at most 65535"),
            (["port=8000"], "port= is that of watch=true"),
            (["watch=true", "out=x.html"], "watch=true serves a page and writes nothing, so out= does not apply"),
            (
                [f"{tmp_path}/other", "watch=true"],
                "other is not the folder of a run that has begun; runs beside",
            ),
        ):
            with pytest.raises(SystemExit) as ended:
                runs.main([f"{tmp_path}/run", *words])
            err = capsys.readouterr().err
            assert ended.value.code == 2 and message in err and err.count("\n") == 1
    with pytest.raises(SystemExit):
        runs.main(["watch=true"])
    assert "watch=true follows runs: name the folder of at least one" in capsys.readouterr().err
