"""What a process that was killed after its last checkpoint left out: a line of phases and a part of report.html."""

from rl import ranks
from rl.guard import keep
from rl.log import Run
from rl.state import TrainState


def complete_records(run: Run, state: TrainState) -> None:
    """Write the line of phases of the epoch that the run was resumed from, and its part of report.html, unless they are
    there. The phases are those of this process: load, trial and an evaluation. All ranks must call this."""
    if state.resumed_from < 1:
        return
    there = any(record["epoch"] == state.epoch and "phases" in record for record in keep.records(run.folder))
    if ranks.from_first(there):
        return
    from rl.look import page, runs

    run.log_phases(state.epoch, state.step)
    lines = runs.lacking(run.folder).get(state.epoch)
    if lines:
        page.add(run.folder, state.epoch, lines)
    page.write(run.folder)
