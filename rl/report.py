"""What a run shows: report.html, written while the run goes on, and lists and comparisons of runs.

    python -m rl.report                      # the runs in runs/ with their best numbers
    python -m rl.report runs/x               # write runs/x/report.html anew
    python -m rl.report runs/x epoch=7       # with the text of all episodes of epoch 7
    python -m rl.report runs/x runs/y        # both side by side

The page is made in rl/look/.
"""

import sys
from typing import Any

if __name__ == "__main__":
    import rl.guard.importing  # noqa: F401
    from rl.look import runs

    sys.exit(runs.main(sys.argv[1:]))

from models import Tokenizer
from rl.log import Run
from rl.records import Batch, Episode


def write_report(run: Run, epoch: int, tokenizer: Tokenizer, episodes: list[Episode], batch: Batch, cfg: Any) -> None:
    """Add the epoch's episodes to report.html, and send its metrics to track=. Every rank calls this."""
    from rl.look import live, page, sinks
    from rl.look.episodes import BUDGET, epoch_lines, learned

    known = learned(batch)
    if not cfg.data or epoch == 1:  # the rows of data= are the same in every epoch
        page.add(run.folder, epoch, epoch_lines(tokenizer, epoch, episodes[:10_000], known, BUDGET // cfg.epochs))
    page.write(run.folder)
    sinks.send(run.folder, epoch, tokenizer, episodes, cfg)
    live.epoch_ended(cfg.epochs - epoch)
