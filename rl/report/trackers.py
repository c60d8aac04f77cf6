"""track=wandb|tensorboard|trackio: the metrics of a run, also sent elsewhere. metrics.jsonl is written in any case.

An epoch sends its numbers (train/NAME, env/NAME, eval/sampled/NAME, eval/greedy/ENV/NAME, phases/NAME/seconds),
histograms of the episodes' scores and sampled tokens, and a table of examples. The package is imported only here.
Weights & Biases writes to runs/NAME/wandb, offline with WANDB_MODE=offline; TensorBoard writes to
runs/NAME/tensorboard; Trackio keeps its own local database.
"""

import atexit
import html
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from models import Tokenizer
from rl import ranks
from rl.config.fields import Config
from rl.records import Episode
from rl.run.files import read_json, read_lines, write_text

EXAMPLES = 8  # episodes in an epoch's table
MOST = 4000  # characters of a text in it
COLUMNS = ["epoch", "env", "seed", "outcome", "score", "prompt", "transcript"]
UNSENT = {"tasks", "warnings"}


@dataclass
class Sink:
    """An open run in another program."""

    log: Callable[[int, dict[str, float], dict[str, list[float]], list[list]], None]  # epoch, numbers, values, rows
    close: Callable[[], None]
    working: bool = True


_open: dict[Path, Sink] = {}  # by the run's folder


@ranks.first_only
def send(folder: Path, epoch: int, tokenizer: Tokenizer, episodes: list[Episode], cfg: Config) -> None:
    """Send an epoch, and before the first one the evaluation before training.

    What the other program raises is printed once, and the run goes on without it.
    """
    if cfg.track.to == "none":
        return
    try:
        if folder not in _open:
            _open[folder] = OPEN[cfg.track.to](folder, cfg, epoch)
            atexit.register(close, folder)
        if not _open[folder].working:
            return
        records = [record for _, record in read_lines(folder / "metrics.jsonl")]
        if epoch == 1 and (before := numbers([r for r in records if r["epoch"] == 0])):
            _open[folder].log(0, before, {}, [])
        finished = [e for e in episodes if not e.infrastructure_failed]
        values = {
            "reward": [e.score for e in finished],
            "sampled_tokens": [float(sum(e.action_mask_T)) for e in finished],
        }
        rows = [example(tokenizer, epoch, e) for e in finished[:EXAMPLES]]
        _open[folder].log(epoch, numbers([r for r in records if r["epoch"] == epoch]), values, rows)
    except Exception as error:  # of any kind: it is another program's
        what = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        print(f"warning: track={cfg.track.to}: {what}; nothing more is sent, metrics.jsonl has all of it", flush=True)
        _open[folder] = Sink(lambda *_: None, lambda: None, working=False)


def close(folder: Path) -> None:
    """Close the folder's run in the other program, if there is one."""
    if sink := _open.pop(folder, None):
        sink.close()


def numbers(records: list[dict]) -> dict[str, float]:
    """Return the numbers of lines of metrics.jsonl under the names that they are sent by."""
    named: dict[str, float] = {}
    for record in records:
        for key, value in record.items():
            if key == "eval":
                name = f"eval/{'greedy' if value['temperature'] == 0 else 'sampled'}"
                parts = {name: value} | {f"{name}/{env}": part for env, part in value.get("by_env", {}).items()}
            elif key == "phases":
                parts = {f"phases/{phase}": part for phase, part in value.items()}
            elif key == "outcomes":
                parts = {"outcomes": value}
            else:
                parts = {"" if key.startswith("env/") else "train": {key: value}}
            for prefix, part in parts.items():
                for name, x in part.items():
                    if isinstance(x, int | float) and not isinstance(x, bool) and name not in UNSENT:
                        named[f"{prefix}/{name}".lstrip("/")] = x
    return named


def example(tokenizer: Tokenizer, epoch: int, e: Episode) -> list:
    """Return an episode as a row of the table."""
    start = e.turns[0].start if e.turns else len(e.ids_T)
    texts = [tokenizer.show(ids)[:MOST] for ids in (e.ids_T[:start], e.ids_T[start:])]
    return [epoch, e.env, e.seed, e.outcome, e.score, *texts]


def open_wandb(folder: Path, cfg: Config, epoch: int) -> Sink:
    """Open the run, or go on with it: a resumed run has the same name there."""
    import wandb

    name, identity = cfg.track.name or folder.name, folder / "wandb_id.txt"
    if not identity.is_file():
        write_text(identity, uuid.uuid4().hex[:16])
    settings = {"project": cfg.track.project, "name": name, "id": identity.read_text(), "resume": "allow"}
    settings["dir"] = str(folder)
    run = wandb.init(config=read_json(folder / "config.json"), **settings)

    return Sink(partial(log_record, wandb, run), run.finish)


def log_record(package: Any, run: Any, epoch: int, numbers: dict, values: dict, rows: list) -> None:
    """Log an epoch with wandb, or with trackio, which has the same names."""
    record = numbers | {name: package.Histogram(x) for name, x in values.items() if x}
    if rows:
        record["examples"] = package.Table(columns=COLUMNS, data=rows)
    run.log(record, step=epoch)


def open_tensorboard(folder: Path, cfg: Config, epoch: int) -> Sink:
    """Open the writer. What a killed process wrote of this epoch and later ones is not shown."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard" / cfg.track.name), purge_step=epoch)
    writer.add_text("config", "    " + str(read_json(folder / "config.json")))

    def log(epoch: int, numbers: dict, values: dict, rows: list) -> None:
        for name, x in numbers.items():
            writer.add_scalar(name, x, epoch)
        for name, x in values.items():
            if x:
                writer.add_histogram(name, torch.tensor(x), epoch)
        if rows:
            writer.add_text("examples", markdown(rows), epoch)
        writer.flush()

    return Sink(log, writer.close)


def open_trackio(folder: Path, cfg: Config, epoch: int) -> Sink:
    """Open the run, or go on with it."""
    import trackio

    config, name = read_json(folder / "config.json"), cfg.track.name or folder.name
    run = trackio.init(project=cfg.track.project, name=name, config=config, resume="allow")

    return Sink(partial(log_record, trackio, run), run.finish)


OPEN = {"wandb": open_wandb, "tensorboard": open_tensorboard, "trackio": open_trackio}


def markdown(rows: list[list]) -> str:
    """Return a table in markdown; text of the model is shown, never rendered."""
    cells = [[html.escape(str(cell)).replace("|", "&#124;").replace("\n", " ⏎ ") for cell in row] for row in rows]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
