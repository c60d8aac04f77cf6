"""report.html: one file with its data, style and script, which loads nothing and sends nothing.

The page's script draws everything from JSON in the page. Text of models and environments is in that JSON alone,
with every "<" escaped, and becomes text nodes; the content security policy lets no other script or style run.
"""

import base64
import hashlib
import html
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any

from rl import ranks
from rl.report import paired
from rl.run import history
from rl.run.files import bounded_lines, read_json, written

HERE = Path(__file__).parent
DATA, HELD_OUT = "report.jsonl", "held_out.jsonl"
UNSHOWN = ("tasks", "busy_seconds", "successes", "task_numbers", "task_hashes")  # long, and in no chart


@ranks.first_only
def add(folder: Path, epoch: int, lines: str, name: str = DATA) -> None:
    """Add an epoch's lines (rl/report/episodes.py) to report.jsonl or held_out.jsonl, without those of it or of later
    epochs, which a resumed run writes again."""
    path = folder / name
    with written(path):
        earlier = [line for _, number, line in data_lines(path) if number < epoch]
        replace(path, "".join(earlier) + lines)


@ranks.first_only
def write(folder: Path) -> None:
    """Write report.html of a run from its config.json, metrics.jsonl and report.jsonl."""
    text = page([folder], compared=paired.since_start(folder))
    with written(folder / "report.html"):
        replace(folder / "report.html", text)


def page(
    folders: list[Path], more: list[dict[int, str]] | None = None, compared: Sequence[str] = (), version: str = ""
) -> str:
    """Return the page of one run, or of several side by side. Raise OSError or ValueError for damaged files.

    more: of each run, the lines of epochs that take the place of those in report.jsonl.
    compared: lines about differences between or within the runs, shown above the curves.
    version: of a page that asks its server for another one (rl/report/live_page.py).
    """
    names, runs, blocks = names_of(folders), [], []
    for index, (name, folder) in enumerate(zip(names, folders, strict=True)):
        metrics = history.records(folder)
        last = max((record["epoch"] for record in metrics), default=0)
        best = history.best_epochs(metrics)
        metrics = [shown(record) for record in metrics]
        run = {"name": name, "folder": str(folder), "config": read_json(folder / "config.json"), "metrics": metrics}
        runs.append(run | {"best": best, "written": time.strftime("%Y-%m-%d %H:%M")})
        newer = more[index] if more else {}
        parsed = [entry for entry in data_lines(folder / DATA) if entry[1] not in newer]
        parsed += _parsed("".join(newer.values()).encode().splitlines(keepends=True))
        for kind, epoch, line in sorted(parsed, key=lambda entry: entry[1]):
            if epoch <= last:
                blocks.append(_block(line.strip(), f'class="{kind}" data-run="{index}" data-epoch="{epoch}"'))
        evaluated = {record["epoch"] for record in metrics if "eval" in record}
        for kind, epoch, line in data_lines(folder / HELD_OUT):
            if epoch in evaluated:
                blocks.append(_block(line.strip(), f'class="held-{kind}" data-run="{index}" data-epoch="{epoch}"'))
    blocks.insert(0, _block(dumps(runs), 'id="runs"'))
    blocks.insert(1, _block(dumps(list(compared)), 'id="compared"'))
    style, script = asset("page.css"), asset("page.js")
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
    policy += "base-uri 'none'; form-action 'none'" + "; connect-src 'self'" * bool(version)
    parts = {"policy": policy, "title": html.escape(" and ".join(names)), "style": style, "script": script}
    parts["version"] = f' data-version="{version}"' * bool(version)
    return Template(asset("page.html")).substitute(parts, data="\n".join(blocks))


def names_of(folders: list[Path]) -> list[str]:
    """Return a name for each run: its folder's, or its path where folders have equal names."""
    names = [folder.resolve().name for folder in folders]
    return names if len({*names}) == len(names) else [str(folder) for folder in folders]


def shown(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record of metrics.jsonl without what no chart shows."""
    return {key: shown(x) if key == "eval" else x for key, x in record.items() if key not in UNSHOWN}


def data_lines(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (kind, epoch, line) of report.jsonl. A line that is not whole or not its own is left out."""
    if path.is_file():
        yield from _parsed(line for _, line in bounded_lines(path))


def _parsed(lines: Iterable[bytes]) -> Iterator[tuple[str, int, str]]:
    for line in lines:
        head = re.match(rb'\{"(episodes|tokens)":(\d+),', line)
        if head and line.endswith(b"}\n"):
            yield head[1].decode(), int(head[2]), line.decode("ascii", errors="replace")


def dumps(value: Any) -> str:
    """Return JSON that browsers read: numbers that are not finite become null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=(",", ":"))


def asset(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


def _block(text: str, attributes: str) -> str:
    """Return JSON as an element that does nothing; no text in it can end the element."""
    escaped = text.replace("<", "\\u003c")
    return f'<script type="application/json" {attributes}>{escaped}</script>'


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def replace(path: Path, text: str) -> None:
    """Write a file that is whole or as it was. It can be made again, so nothing waits for the disk.

    A run and rl.report may write the same page at the same time.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    temporary.unlink(missing_ok=True)  # may be a symbolic link
    temporary.write_text(text, encoding="utf-8", errors="replace")
    os.rename(temporary, path)
