"""track=wandb|tensorboard|trackio: the metrics of a run, also sent elsewhere. metrics.jsonl is written in any case.

An epoch sends its numbers (train/NAME, env/NAME, eval/sampled/NAME, eval/greedy/ENV/NAME, phases/NAME/seconds),
histograms of the episodes' scores and sampled tokens, and a table of examples. Weights & Biases writes to
runs/NAME/wandb, offline with WANDB_MODE=offline; TensorBoard writes to runs/NAME/tensorboard; Trackio keeps its own
local database.
"""

import html
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from models import Tokenizer
from rl import ranks
from rl.config.fields import Track
from rl.records import Episode
from rl.run import history
from rl.run.files import read_json, write_text
from rl.run.log import warn

EXAMPLES = 8  # episodes in an epoch's table
MOST = 4000  # characters of a text in it
COLUMNS = ["epoch", "env", "seed", "outcome", "score", "prompt", "transcript"]
UNSENT = {"tasks", "warnings"}


class Wandb:
    """An open run of wandb, or of trackio, whose package has the same names."""

    def __init__(self, package: Any, **settings):
        self.package, self.run = package, package.init(resume="allow", **settings)
        self.close = self.run.finish

    def log(self, epoch: int, numbers: dict[str, float], values: dict[str, list[float]], rows: list[list]) -> None:
        record = numbers | {name: self.package.Histogram(x) for name, x in values.items() if x}
        if rows:
            record["examples"] = self.package.Table(columns=COLUMNS, data=rows)
        self.run.log(record, step=epoch)


class TensorBoard:
    """An open writer. What a killed process wrote of this epoch and later ones is not shown."""

    def __init__(self, folder: Path, config: dict, epoch: int):
        from torch.utils.tensorboard import SummaryWriter  # needs tensorboard, an optional package

        self.writer = SummaryWriter(str(folder), purge_step=epoch)
        self.writer.add_text("config", "    " + str(config))
        self.close = self.writer.close

    def log(self, epoch: int, numbers: dict[str, float], values: dict[str, list[float]], rows: list[list]) -> None:
        for name, x in numbers.items():
            self.writer.add_scalar(name, x, epoch)
        for name, x in values.items():
            if x:
                self.writer.add_histogram(name, torch.tensor(x), epoch)
        if rows:
            self.writer.add_text("examples", markdown(rows), epoch)
        self.writer.flush()


class Tracker:
    """The run in the program that track= names, opened by the first epoch; nothing with track=none and on other ranks.

    What the other program raises is printed once, and the run goes on without it.
    """

    def __init__(self, track: Track):
        self.track, self.working = track, track.to != "none"
        self.opened: Wandb | TensorBoard | None = None

    @ranks.first_only
    def send(self, folder: Path, epoch: int, tokenizer: Tokenizer, episodes: list[Episode]) -> None:
        """Send an epoch of the run in this folder, and before the first one the evaluation before training."""
        if not self.working:
            return
        with self._warning():
            self.opened = self.opened or self._open(folder, epoch)
            records = history.records(folder)
            if epoch == 1 and (before := numbers([r for r in records if r["epoch"] == 0])):
                self.opened.log(0, before, {}, [])
            finished = [e for e in episodes if not e.infrastructure_failed]
            scores, tokens = [e.score for e in finished], [float(sum(e.action_mask_T)) for e in finished]
            rows = [example(tokenizer, epoch, e) for e in finished[:EXAMPLES]]
            of_epoch = numbers([r for r in records if r["epoch"] == epoch])
            self.opened.log(epoch, of_epoch, {"reward": scores, "sampled_tokens": tokens}, rows)

    def close(self) -> None:
        if self.working and self.opened:
            with self._warning():
                self.opened.close()

    def _open(self, folder: Path, epoch: int) -> Wandb | TensorBoard:
        """Open the run, or go on with it: a resumed run has the same name there."""
        config, name = read_json(folder / "config.json"), self.track.name or folder.name
        if self.track.to == "tensorboard":
            return TensorBoard(folder / "tensorboard" / self.track.name, config, epoch)
        settings = {"project": self.track.project, "name": name, "config": config}
        if self.track.to == "trackio":
            import trackio  # an optional package

            return Wandb(trackio, **settings)
        import wandb  # an optional package

        identity = folder / "wandb_id.txt"
        if not identity.is_file():
            write_text(identity, uuid.uuid4().hex[:16])
        return Wandb(wandb, id=identity.read_text(), dir=str(folder), **settings)

    @contextmanager
    def _warning(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any kind: it is another program's
            self.working, to = False, self.track.to
            what = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
            warn(f"track={to}: {what}; nothing more is sent, metrics.jsonl has all of it")


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


def markdown(rows: list[list]) -> str:
    """Return a table in markdown; text of the model is shown, never rendered."""
    cells = [[html.escape(str(cell)).replace("|", "&#124;").replace("\n", " ⏎ ") for cell in row] for row in rows]
    lines = [COLUMNS, ["---"] * len(COLUMNS), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
