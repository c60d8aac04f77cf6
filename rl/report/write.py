"""What a run shows of an epoch: its part of report.html, its metrics elsewhere, the live line."""

from pathlib import Path

from models import Tokenizer, load_tokenizer
from rl import ranks
from rl.config.arguments import ArgumentError
from rl.records import Batch, Episode
from rl.report import page, progress
from rl.report.episodes import BUDGET, HELD_OUT_BUDGET, epoch_lines, learned, learned_before
from rl.report.trackers import Tracker
from rl.run import history, replay
from rl.run.files import read_json
from rl.run.run import Run
from rl.run.state import TrainState


def write_report(
    run: Run, epoch: int, tokenizer: Tokenizer, episodes: list[Episode], batch: Batch, tracker: Tracker
) -> None:
    """Add the epoch's episodes to report.html, and send its metrics to track=. Every rank calls this."""
    known, cfg = learned(batch, episodes), run.cfg
    if not cfg.data or epoch == 1:  # the rows of data= are the same in every epoch
        page.add(run.folder, epoch, epoch_lines(tokenizer, epoch, episodes[:10_000], known, BUDGET // cfg.epochs))
    page.write(run.folder)
    tracker.send(run.folder, epoch, tokenizer, episodes)
    if not (cfg.max_steps or cfg.max_sampled_tokens):  # these end a run at an epoch that is not known
        progress.epoch_ended(cfg.epochs - epoch)


def write_held_out(run: Run, epoch: int, tokenizer: Tokenizer, episodes: dict[float, list[Episode]]) -> None:
    """Add an evaluation's episodes by their temperature to held_out.jsonl, from which the page takes them. Every rank
    calls this."""
    cfg = run.cfg
    ways = len(episodes) * (2 + (cfg.epochs // cfg.eval_every if cfg.eval_every else 0))
    lines = [
        epoch_lines(tokenizer, epoch, played[:5_000], {}, HELD_OUT_BUDGET // ways, temperature)
        for temperature, played in episodes.items()
    ]
    if lines:
        page.add(run.folder, epoch, "".join(lines), page.HELD_OUT)


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


def lacking(folder: Path, epoch: int = 0) -> dict[int, str]:
    """Return the lines of the epochs of episodes.jsonl that report.jsonl lacks, without what learning knew of them, and
    those of `epoch` with the text of all episodes. Raise ArgumentError if there is no such epoch."""
    path, saved = folder / "episodes.jsonl", {}
    for _, number, line in page.data_lines(folder / page.DATA):
        saved.setdefault(number, []).append(line)
    logged = {record["epoch"] for record in history.records(folder) if "seconds" in record}
    if epoch and epoch not in logged:
        raise ArgumentError(f"epoch={epoch}: {folder} has epochs 1 to {max(logged, default=0)}")
    if not path.is_file() or (logged <= saved.keys() and not epoch):
        return {}
    config = read_json(folder / "config.json")
    tokenizer = load_tokenizer(config["model"], config.get("thinking", True))
    missing = {}
    for number, episodes in replay.read(path, tokenizer.vocab_size).items():
        if number == epoch or number not in saved:
            room = 10 * BUDGET if number == epoch else BUDGET // config["epochs"]
            known = learned_before(saved.get(number, []), episodes)
            missing[number] = epoch_lines(tokenizer, number, episodes, known, room)
    return missing
