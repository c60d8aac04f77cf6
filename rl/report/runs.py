"""`python -m rl.report`: list runs with their best numbers, write their page, or draw their learning curve."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import load_tokenizer
from rl import ranks
from rl.config import arguments, program
from rl.config.arguments import ArgumentError, NotNegative
from rl.config.refusals import Refusal
from rl.report import page, paired, picture
from rl.report.episodes import BUDGET, epoch_lines, learned_before
from rl.run import exits, history, replay
from rl.run.files import read_json, written
from rl.run.run import Run
from rl.run.state import TrainState
from rl.tasks import mixture

ABOUT = """Without a folder: list the runs in runs/ with their best numbers. With the folder of a run: write its
report.html anew. With several: write one page with the runs side by side, and print each one's paired difference to the
first, if their last evaluations played the same tasks.

    python -m rl.report
    python -m rl.report runs/x
    python -m rl.report runs/x epoch=7
    python -m rl.report runs/x runs/y out=both.html
    python -m rl.report runs/x runs/y picture=curve.svg     # their mean learning curve instead of a page"""
HEAD = ["run", "algo", "env", "model", "epochs", "before", "best sampled", "best greedy", "held-out loss", "reward"]


@dataclass
class Keys:
    runs: str = "runs"  # the folder whose runs are listed
    out: str = ""  # the page; empty: report.html in the run's folder, of several runs report_side_by_side.html there
    epoch: NotNegative[int] = 0  # of one run: show the text of all episodes of this epoch; 0: of a share of each epoch
    picture: str = ""  # the SVG file of the runs' learning curve, which is drawn instead of a page
    title: str = ""  # of the picture; empty: the folders' names


def main(words: Sequence[str]) -> None:
    folders = [Path(word) for word in words if "=" not in word and not arguments.wants_help([word])]
    named = [word for word in words if "=" in word or arguments.wants_help([word])]
    [keys] = program.parse(named, "rl.report", Keys, about=ABOUT)
    with exits.exits_cleanly("rl.report"):
        try:
            if keys.picture or keys.title:
                lines = draw(folders, keys)
            else:
                lines = write(folders, keys) if folders else listed(Path(keys.runs))
        except (OSError, ValueError) as error:
            arguments.fail("rl.report", error)
        print(*lines, sep="\n")


def write(folders: list[Path], keys: Keys) -> list[str]:
    """Write the page of the runs. Return the lines to print."""
    _check_folders(folders)
    if keys.epoch and len(folders) > 1:
        raise ArgumentError("epoch= is for the page of one run")
    rows = [row(folder) for folder in folders]
    for folder, (_, what, *_) in zip(folders, rows, strict=True):
        if what.startswith("damaged: "):
            raise ArgumentError(f"{folder} is {what}")
    name = "report.html" if len(folders) == 1 else "report_side_by_side.html"
    out = Path(keys.out) if keys.out else folders[0] / name
    compared = paired.lines(folders)
    text = page.page(folders, [lacking(folder, keys.epoch) for folder in folders], compared)
    with written(out):
        page.replace(out, text)
    return [*table(rows), *compared, f"{out}: {len(text) / 2**20:.1f} MiB"]


def draw(folders: list[Path], keys: Keys) -> list[str]:
    """Write the picture of the runs' learning curve. Return the line to print."""
    out = Path(keys.picture)
    if not keys.picture:
        raise ArgumentError("title= is the title of a picture; name its file by picture=FILE.svg")
    if out.suffix != ".svg":
        raise ArgumentError(f"picture={keys.picture}: a picture is an SVG file, so its name must end in .svg")
    if not folders:
        raise ArgumentError("picture= draws runs: name the folder of at least one")
    if keys.out or keys.epoch:
        raise ArgumentError("picture= draws a picture instead of a page, so out= and epoch= do not apply")
    _check_folders(folders)
    text = picture.learning_curve(folders, keys.title)
    with written(out):
        page.replace(out, text)
    return [f"{out}: the learning curve of {len(folders)} run{'s' if len(folders) > 1 else ''}"]


def _check_folders(folders: list[Path]) -> None:
    """Raise ArgumentError, naming the runs beside it, if a folder is not a run's."""
    for folder in folders:
        if not (folder / "metrics.jsonl").is_file() or not (folder / "config.json").is_file():
            known = ", ".join(str(path) for path in runs_in(folder.parent)[:8]) or "none"
            raise ArgumentError(f"{folder} is not the folder of a run that has begun; runs beside it: {known}")


def lacking(folder: Path, epoch: int = 0) -> dict[int, str]:
    """Return the lines of the epochs of episodes.jsonl that report.jsonl lacks, without what learning knew of them, and
    those of `epoch` with the text of all episodes. Raise ArgumentError if there is no such epoch."""
    path, known = folder / "episodes.jsonl", {number for _, number, _ in page.data_lines(folder / page.DATA)}
    logged = {record["epoch"] for record in history.records(folder) if "seconds" in record}
    if epoch and epoch not in logged:
        raise ArgumentError(f"epoch={epoch}: {folder} has epochs 1 to {max(logged, default=0)}")
    if not path.is_file() or (logged <= known and not epoch):
        return {}
    config = read_json(folder / "config.json")
    tokenizer = load_tokenizer(config["model"], config.get("thinking", True))
    missing = {}
    for number, episodes in replay.read(path, tokenizer.vocab_size).items():
        if number == epoch or number not in known:
            saved = [line for _, n, line in page.data_lines(folder / page.DATA) if n == number]
            room = 10 * BUDGET if number == epoch else BUDGET // config["epochs"]
            missing[number] = epoch_lines(tokenizer, number, episodes, learned_before(saved, episodes), room)
    return missing


def complete_records(run: Run, state: TrainState) -> None:
    """Write the line of phases of the epoch that the run was resumed from, and its part of report.html, unless they are
    there. The phases are those of this process: load, trial and an evaluation. All ranks must call this."""
    if state.resumed_from < 1:
        return
    there = any(record["epoch"] == state.epoch and "phases" in record for record in history.records(run.folder))
    if ranks.from_first(there):
        return
    run.log_phases(state)
    lines = lacking(run.folder).get(state.epoch)
    if lines:
        page.add(run.folder, state.epoch, lines)
    page.write(run.folder)


def listed(parent: Path) -> list[str]:
    """Return a table of the runs in a folder, the newest first. Raise ArgumentError if there are none."""
    folders = sorted(runs_in(parent), key=lambda path: (path / "metrics.jsonl").stat().st_mtime, reverse=True)
    if not folders:
        raise ArgumentError(f"runs={parent}: no run is there; python train.py makes one, runs=FOLDER lists others")
    return table([row(folder) for folder in folders])


def runs_in(parent: Path) -> list[Path]:
    """Return the folders of runs in a folder, or in the folders of it."""
    configured = [path.parent for pattern in ("*", "*/*") for path in parent.glob(f"{pattern}/config.json")]
    return sorted(path for path in configured if (path / "metrics.jsonl").is_file())


def row(folder: Path) -> list[str]:
    """Return a run's line in the table."""
    try:
        config, records = read_json(folder / "config.json"), history.records(folder)
        _check_settings(config)
        return [str(folder), *(str(config[key]) for key in ("algo", "env", "model")), *best(config, records)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [str(folder), f"damaged: {_without(folder, error)}"]


def _check_settings(config: dict[str, Any]) -> None:
    """Raise ValueError if settings that are read here have another kind."""
    texts = all(isinstance(config[key], str) for key in ("algo", "env", "model"))
    groups = all(isinstance(config.get(env, {}), dict) for env in (mixture(config["env"]) if texts else ()))
    if not (texts and groups and type(config["epochs"]) is int and config["epochs"] > 0):
        raise Refusal("config.json is not a run's")


def best(config: dict[str, Any], records: list[dict]) -> list[str]:
    """Return the epochs done, the evaluation before training, and the best numbers since."""
    epochs = [r for r in records if "seconds" in r]
    played = [[r for r in records if "eval" in r and (r["eval"]["temperature"] == 0) == greedy] for greedy in (0, 1)]
    trained = [[r for r in evaluated if r["epoch"] > 0] for evaluated in played]
    tops = [max(evaluated, key=lambda r: r["eval"]["success"], default=None) for evaluated in trained]
    before = " / ".join(f"{r['eval']['success']:.1%}" for evaluated in played for r in evaluated if r["epoch"] == 0)
    losses = [r for r in records if "eval_loss" in r and r["epoch"] > 0]
    lowest = min(losses, key=lambda r: r["eval_loss"], default=None)
    rewards = [r for r in epochs if "reward_mean" in r and config.get("algo") != "sft"]  # where it is the expert's
    return [
        f"{epochs[-1]['epoch'] if epochs else 0} of {config['epochs']}",
        before,
        *(_success(top) for top in tops),
        f"{lowest['eval_loss']:.4f} ({lowest['epoch']})" if lowest else "",
        f"{rewards[-1]['reward_mean']:.3f}" if rewards else "",
    ]


def table(rows: list[list[str]]) -> list[str]:
    """Return rows as lines with aligned columns; columns that are empty in every row are left out."""
    rows = [row if len(row) == len(HEAD) else row + [""] * (len(HEAD) - len(row)) for row in rows]
    used = [i for i in range(len(HEAD)) if any(row[i] for row in rows)]
    texts = [[row[i] for i in used] for row in [HEAD, *rows]]
    long = [row[1].startswith("damaged") for row in [HEAD, *rows]]
    fitting = [row for row, damaged in zip(texts, long, strict=True) if not damaged]
    widths = [max(map(len, column)) for column in zip(*fitting, strict=True)]
    widths[0] = max(len(row[0]) for row in texts)
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in texts]


def _without(folder: Path, error: Exception) -> str:
    """Return what is wrong with a file of the folder."""
    if isinstance(error, KeyError):
        return f"config.json lacks {error}"
    return str(error).removeprefix(f"{folder}/") or type(error).__name__


def _success(record: dict | None) -> str:
    """Return the success of an evaluation with its interval and epoch."""
    if record is None:
        return ""
    result = record["eval"]
    return f"{result['success']:.1%} ({100 * result['low']:.0f} to {100 * result['high']:.0f}, epoch {record['epoch']})"
