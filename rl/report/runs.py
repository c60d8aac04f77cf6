"""`python -m rl.report`: list runs with their best numbers, write their page, or draw their learning curve."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.config import arguments, program
from rl.config.arguments import ArgumentError, NotNegative
from rl.config.refusals import Refusal
from rl.report import live_page, page, paired, picture
from rl.report.write import lacking
from rl.run import exits, history
from rl.run.files import read_json, written
from rl.tasks import mixture

ABOUT = """Without a folder: list the runs in runs/ with their best numbers. With the folder of a run: write its
report.html anew, and print the paired difference of its last evaluation to that before training. With several: write
one page with the runs side by side, and print each one's paired difference to the first, if their last evaluations
played the same tasks; what is no run among them, or damaged, is named and left out.

    python -m rl.report
    python -m rl.report runs/x
    python -m rl.report runs/x epoch=7
    python -m rl.report runs/* markdown=true
    python -m rl.report runs/x watch=true                   # serve the page, which follows the run, until Ctrl-C
    python -m rl.report runs/x runs/y out=both.html
    python -m rl.report runs/x runs/y picture=curve.svg     # their mean learning curve instead of a page"""
TASK_KEYS = ("env", "eval_split", "order")  # with the environments' options, they decide which tasks are drawn
HEAD = ["run", "algo", "env", "model", "epochs", "before", "best sampled", "best greedy", "held-out loss", "reward"]


@dataclass
class Keys:
    runs: str = "runs"  # the folder whose runs are listed
    out: str = ""  # the page; empty: report.html in the run's folder, of several runs report_side_by_side.html there
    epoch: NotNegative[int] = 0  # of one run: show the text of all episodes of this epoch; 0: of a share of each epoch
    picture: str = ""  # the SVG file of the runs' learning curve, which is drawn instead of a page
    title: str = ""  # of the picture; empty: the folders' names
    markdown: bool = False  # print the table in Markdown, to paste
    watch: bool = False  # write no page, but serve one on this machine that follows the runs, until Ctrl-C
    port: NotNegative[int] = 0  # of watch=true; 0: a free one


def main(words: Sequence[str]) -> None:
    given, named = arguments.folders_and_words(words)
    folders = [Path(word) for word in given]
    [keys] = program.parse(named, "rl.report", Keys, about=ABOUT)
    with exits.exits_cleanly("rl.report"):
        try:
            if keys.watch or keys.port:
                watch(folders, keys)
                return
            if keys.picture or keys.title:
                lines = draw(folders, keys)
            else:
                lines = write(folders, keys) if folders else listed(Path(keys.runs), keys.markdown)
        except (OSError, ValueError) as error:
            arguments.fail("rl.report", error)
        print(*lines, sep="\n")


def write(folders: list[Path], keys: Keys) -> list[str]:
    """Write the page of the runs. Return the lines to print."""
    folders = _runs_among(folders)
    if keys.epoch and len(folders) > 1:
        raise ArgumentError("epoch= is for the page of one run")
    rows = _whole_among(folders)
    folders = list(rows)
    name = "report.html" if len(folders) == 1 else "report_side_by_side.html"
    out = Path(keys.out) if keys.out else folders[0] / name
    compared = paired_differences(folders)
    text = page.page(folders, [lacking(folder, keys.epoch) for folder in folders], compared)
    with written(out):
        page.replace(out, text)
    return [*table(list(rows.values()), keys.markdown), *compared, f"{out}: {len(text) / 2**20:.1f} MiB"]


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
    folders = list(_whole_among(_runs_among(folders)))
    text = picture.learning_curve(folders, keys.title)
    with written(out):
        page.replace(out, text)
    return [f"{out}: the learning curve of {len(folders)} run{'s' if len(folders) > 1 else ''}"]


def watch(folders: list[Path], keys: Keys) -> None:
    """Serve the page of the runs, which need not have begun, until Ctrl-C."""
    if not keys.watch:
        raise ArgumentError("port= is that of watch=true")
    if keys.port > 65535:
        raise ArgumentError(f"port={keys.port} must be at most 65535")
    if not folders:
        raise ArgumentError("watch=true follows runs: name the folder of at least one")
    others = [name for name in ("out", "epoch", "picture", "title", "markdown") if getattr(keys, name)]
    if others:
        raise ArgumentError(f"watch=true serves a page and writes nothing, so {others[0]}= does not apply")
    _check_folders([folder for folder in folders if folder.exists() and not _may_become_a_run(folder)])

    def build(version: str) -> str:
        return page.page(folders, compared=paired_differences(folders), version=version)

    try:
        server = live_page.Server(folders, build, keys.port)
    except OSError as error:
        raise ArgumentError(f"port={keys.port}: cannot listen on it: {error.strerror}") from None
    live_page.serve(folders, server)


def _may_become_a_run(folder: Path) -> bool:
    """Return whether a folder is empty, but for hidden files such as a lock, or has a run's settings."""
    if not folder.is_dir():
        return False
    return (folder / "config.json").is_file() or all(path.name.startswith(".") for path in folder.iterdir())


def _runs_among(folders: list[Path]) -> list[Path]:
    """Return the folders that are runs'. The shell's runs/* finds other things too: they are named and left out.

    Raise ArgumentError for one that does not exist, or if none is a run's.
    """
    runs = [folder for folder in folders if _has_begun(folder)]
    others = [folder for folder in folders if folder not in runs]
    _check_folders([folder for folder in others if not runs or not folder.exists()])
    for folder in others:
        print(f"rl.report: {folder} is not the folder of a run that has begun, so it is left out", file=sys.stderr)
    return runs


def _whole_among(folders: list[Path]) -> dict[Path, list[str]]:
    """Return the runs whose files can be read, each once, with its line in the table. Damaged ones are named and left
    out. Raise ArgumentError if all are."""
    rows = {folder: row(folder) for folder in folders}
    whole = {folder: line for folder, line in rows.items() if not line[1].startswith("damaged: ")}
    for folder, (_, what, *_) in rows.items():
        if not whole:
            raise ArgumentError(f"{folder} is {what}")
        if folder not in whole:
            print(f"rl.report: {folder} is {what}; it is left out", file=sys.stderr)
    return whole


def _has_begun(folder: Path) -> bool:
    return (folder / "metrics.jsonl").is_file() and (folder / "config.json").is_file()


def _check_folders(folders: list[Path]) -> None:
    """Raise ArgumentError, naming the runs beside it, if a folder is not a run's."""
    for folder in folders:
        if not _has_begun(folder):
            known = ", ".join(str(path) for path in runs_in(folder.parent)[:8]) or "none"
            raise ArgumentError(f"{folder} is not the folder of a run that has begun; runs beside it: {known}")


def listed(parent: Path, markdown: bool = False) -> list[str]:
    """Return a table of the runs in a folder, the newest first. Raise ArgumentError if there are none."""
    folders = sorted(runs_in(parent), key=lambda path: (path / "metrics.jsonl").stat().st_mtime, reverse=True)
    if not folders:
        raise ArgumentError(f"runs={parent}: no run is there; python train.py makes one, runs=FOLDER lists others")
    return table([row(folder) for folder in folders], markdown)


def runs_in(parent: Path) -> list[Path]:
    """Return the folders of runs in a folder, or in the folders of it."""
    configured = [path.parent for pattern in ("*", "*/*") for path in parent.glob(f"{pattern}/config.json")]
    return sorted(path for path in configured if (path / "metrics.jsonl").is_file())


def row(folder: Path) -> list[str]:
    """Return a run's line in the table."""
    try:
        config, records = read_json(folder / "config.json"), history.records(folder)
        _check_settings(config)
        played = config.get("data") or config["env"]
        return [str(folder), config["algo"], played, config["model"], *best(config, records)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [str(folder), f"damaged: {_without(folder, error)}"]


def _check_settings(config: dict[str, Any]) -> None:
    """Raise ValueError if settings that are read here have another kind."""
    texts = all(
        isinstance(text, str) for text in (config["algo"], config["env"], config["model"], config.get("data", ""))
    )
    groups = all(isinstance(config.get(env, {}), dict) for env in (mixture(config["env"]) if texts else ()))
    if not (texts and groups and type(config["epochs"]) is int and config["epochs"] > 0):
        raise Refusal("config.json is not a run's")


def best(config: dict[str, Any], records: list[dict]) -> list[str]:
    """Return the epochs done, the evaluation before training (epoch 0), and the best numbers since."""
    before, tops, of_kind = [], [], history.best_epochs(records)
    for kind in history.KINDS:
        results, epoch = history.results(records, kind == "greedy"), of_kind[kind]
        before += [f"{results[0]['success']:.1%}"] if 0 in results else []
        tops.append(_success(epoch, results[epoch]) if epoch else "")
    losses, lowest = history.losses(records), of_kind["loss"]
    epochs = [record for record in records if "seconds" in record]
    rewards = [record["reward_mean"] for record in epochs if "reward_mean" in record]
    return [
        f"{epochs[-1]['epoch'] if epochs else 0} of {config['epochs']}",
        " / ".join(before),
        *tops,
        f"{losses[lowest]:.4f} ({lowest})" if lowest else "",
        f"{rewards[-1]:.3f}" if rewards and config.get("algo") != "sft" else "",  # sft's is the expert's
    ]


def _success(epoch: int, result: dict) -> str:
    """Return the success of an evaluation with its interval and epoch."""
    return f"{result['success']:.1%} ({100 * result['low']:.0f} to {100 * result['high']:.0f}, epoch {epoch})"


def table(rows: list[list[str]], markdown: bool = False) -> list[str]:
    """Return rows as lines with aligned columns, or as a table of Markdown; columns that are empty in every row are
    left out."""
    rows = [row if len(row) == len(HEAD) else row + [""] * (len(HEAD) - len(row)) for row in rows]
    used = [i for i in range(len(HEAD)) if any(row[i] for row in rows)]
    texts = [[row[i] for i in used] for row in [HEAD, *rows]]
    if markdown:
        head, *rest = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in texts]
        return [head, f"|{' --- |' * len(used)}", *rest]
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


def paired_differences(folders: list[Path]) -> list[str]:
    """Return a line for sampled and one for greedy play of each run but the first: its success minus that of the first,
    with an 80 % interval; or one line that says why there is none. Of a single run, compare its last evaluation with
    that before training."""
    if len(folders) == 1:
        return paired.since_start(folders[0])
    names, tasks = page.names_of(folders), [tasks_of(read_json(folder / "config.json")) for folder in folders]
    lines = []
    for name, folder, own in list(zip(names, folders, tasks, strict=True))[1:]:
        head = f"{name} against {names[0]}: "
        keys = [key for key in own | tasks[0] if own.get(key) != tasks[0].get(key)]
        keys = ["env"] if "env" in keys else keys  # whose options are others
        if keys:
            different = "; ".join(f"{key}={own.get(key)}, not {tasks[0].get(key)}" for key in keys[:3])
            lines.append(f"{head}not the same held-out tasks: {different}")
        else:
            compared = last_compared(name, folder, names[0], folders[0])
            lines += compared or [f"{head}no evaluation of both has the success of each task"]
    return lines


def last_compared(name: str, run: Path, other: str, reference: Path) -> list[str]:
    """Return a line for sampled and one for greedy play where the last evaluations of both runs have a common task."""
    lines = []
    for kind in history.KINDS:
        ours, theirs = (list(paired.evaluations(folder, kind).items()) for folder in (run, reference))
        if ours and theirs:
            (epoch, own), (other_epoch, others) = ours[-1], theirs[-1]
            head = f"{name}, epoch {epoch}, against {other}, epoch {other_epoch}, {kind}"
            lines += paired.difference(head, own, others)
    return lines


def tasks_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that decide which held-out tasks it plays."""
    options = {f"{name}.{key}": value for name in mixture(config["env"]) for key, value in config.get(name, {}).items()}
    return {key: config[key] for key in TASK_KEYS if key in config} | options
