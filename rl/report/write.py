"""What a run shows of an epoch: its part of report.html, its metrics elsewhere, the live line."""

from models import Tokenizer
from rl.config.fields import Config
from rl.records import Batch, Episode
from rl.report import page, progress, trackers
from rl.report.episodes import BUDGET, epoch_lines, learned
from rl.run.run import Run


def write_report(
    run: Run, epoch: int, tokenizer: Tokenizer, episodes: list[Episode], batch: Batch, cfg: Config
) -> None:
    """Add the epoch's episodes to report.html, and send its metrics to track=. Every rank calls this."""
    known = learned(batch, episodes)
    if not cfg.data or epoch == 1:  # the rows of data= are the same in every epoch
        page.add(run.folder, epoch, epoch_lines(tokenizer, epoch, episodes[:10_000], known, BUDGET // cfg.epochs))
    page.write(run.folder)
    trackers.send(run.folder, epoch, tokenizer, episodes, cfg)
    progress.epoch_ended(cfg.epochs - epoch)
