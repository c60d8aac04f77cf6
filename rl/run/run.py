"""A run as train.py sees it: one object for its folder, its log, and what keeps it whole.

The names here say what train.py needs; the modules beside this one say how: signals.py (what must not be cut short),
watch.py (signs of nonsense), retention.py (what is saved and kept), checkpoint.py and files.py.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from models import Tokenizer
from models.memory import end_phase
from rl import ranks
from rl.config.fields import Config
from rl.records import Batch, Episode
from rl.run import history, phases, retention, signals, watch
from rl.run.checkpoint import base_name, save_checkpoint, save_epoch
from rl.run.files import append, plain, write_text
from rl.run.log import epoch_line
from rl.run.state import TrainState

GROWN = 1.25  # times the largest peak that was printed, from which peaks are printed again


@dataclass
class Run:
    """The folder that a run writes into, locked by rl/run/folder.py, and the settings of the run."""

    folder: Path
    cfg: Config = field(init=False, repr=False)  # from `begin` on
    settings_before: str = ""  # config.json as it was, of a run that goes on
    phases: dict[str, dict] = field(default_factory=dict)  # those that are not yet logged
    printed_peak: int = 0  # bytes

    def begin(self, cfg: Config) -> None:
        """Take the configuration, with the folder in `out`."""
        print(f"run: {self.folder}", flush=True)
        self.cfg = replace(cfg, out=str(self.folder))

    def write_settings(self) -> None:
        """Write config.json."""
        path = self.folder / "config.json"
        self.settings_before = path.read_text(encoding="utf-8") if self.cfg.resume else ""
        write_text(path, json.dumps(self.cfg.as_dict(), indent=2) + "\n")

    def restore_settings(self, state: TrainState) -> None:
        """Write config.json as it was before the run went on, if no epoch has ended since: it may be why."""
        if self.settings_before and state.epoch == state.resumed_from:
            write_text(self.folder / "config.json", self.settings_before)

    # ---- the log ----

    def metrics(self, *records: dict) -> None:
        """Append one line per record to metrics.jsonl."""
        append(self.folder / "metrics.jsonl", list(records))

    @contextmanager
    def phase(self, name: str, after: str = "") -> Iterator[dict]:
        """Context of a phase: its seconds, tokens and peak memory are counted; parts of one name add up.

        Yields the record, to whose "tokens" the block adds. after: the phase that its peak belongs to, because what
        that one made is still there.
        """
        new = {"seconds": 0.0, "tokens": 0, "peak_bytes": 0, "waited": 0.0}
        phase, began = self.phases.setdefault(name, new), time.monotonic()
        ranks.take_waited()  # what was waited between two phases belongs to neither
        with phases.phase(name):
            yield phase
        phase["waited"] += ranks.take_waited()
        phase["seconds"] += time.monotonic() - began
        phase["tokens_per_second"] = phase["tokens"] / max(phase["seconds"], 1e-9)
        holder = self.phases[after or name]
        holder["peak_bytes"] = max(holder["peak_bytes"], end_phase() or 0)

    def log_phases(self, state: TrainState) -> None:
        """Append a line with the phases since the line before to metrics.jsonl. Print their peaks at first, and when
        one has grown: an update takes more memory as more episodes have an advantage."""
        logged = state.pace.with_busy_seconds(self.phases)
        self.metrics({"epoch": state.epoch, "step": state.step, "phases": logged})
        peak = max((phase["peak_bytes"] for phase in self.phases.values()), default=0)
        if peak > GROWN * self.printed_peak:
            self.printed_peak = peak
            sizes = (f"{name} {phase['peak_bytes'] / 2**30:.2f}" for name, phase in self.phases.items())
            print(f"peak memory in GiB: {', '.join(sizes)}", flush=True)
        self.phases = {}

    # ---- what train.py asks ----

    def evaluates(self, state: TrainState) -> bool:
        """Return whether the run evaluates at this epoch: before the first, after the last, every cfg.eval_every."""
        every = self.cfg.eval_every
        return state.epoch == 0 or (every > 0 and state.epoch % every == 0) or self.finished(state)

    def lacks_evaluation(self, state: TrainState) -> bool:
        """Return whether this epoch is one to evaluate, and the log lacks its evaluation, as after an interruption."""
        return self.evaluates(state) and retention.evaluation_missing(self.cfg, self.folder, state.epoch)

    def finished(self, state: TrainState) -> bool:
        """Return whether all epochs, steps or tokens are taken, or patience= is exhausted. All ranks must call this."""
        if self.limits_reached(state):
            return True
        # Only what the first rank reads counts: the others may not see its newest line yet.
        return self.cfg.patience > 0 and ranks.from_first(retention.patience_exhausted(self.cfg, self.folder))

    def limits_reached(self, state: TrainState) -> dict[str, int]:
        return retention.limits_reached(self.cfg, state.epoch, state.step, state.sampled_tokens)

    def words_to_go_on(self, state: TrainState) -> str:
        return retention.words_to_go_on(self.cfg, self.limits_reached(state), self.folder)

    def last_line(self, state: TrainState) -> str:
        """Return the line at a run's end: its last epoch, why it ends early, and its best epoch by evaluation."""
        run, patience = self.folder, self.cfg.patience
        line = f"done: {run}/epoch_{state.epoch}, curves and episodes in {run}/report.html"
        if not self.limits_reached(state):
            many = "1 evaluation was" if patience == 1 else f"{patience} evaluations were"
            line += f"; stopped early: {many} no better (patience=0 goes on)"
        best, (kind, scores) = history.best_saved(run), history.evaluations(run)
        if best is not None and len(scores) > 1:
            line += f"; the best epoch by {kind} is epoch_{best}, {history.score_text(kind, scores, best)}"
        return line

    # ---- an epoch ----

    def collected(self, state: TrainState, episodes: list[Episode], stats: dict) -> None:
        """Look for signs of nonsense in the episodes of an epoch; stats: their metrics."""
        state.watch.collected(state, episodes, stats, self.cfg)

    def evaluated(self, state: TrainState, results: list[dict]) -> None:
        """Log the results of an evaluation, and look for signs of nonsense in them."""
        self.metrics(*({"epoch": state.epoch, "step": state.step, **result} for result in results))
        state.watch.evaluated(state, results, self.cfg)

    @contextmanager
    def uninterrupted(self, state: TrainState, episodes: list[Episode]) -> Iterator[None]:
        """Context that a signal ends only between two optimizer steps, or after everything in it is saved.

        If no gradient was finite, the episodes are saved, so that the update can be repeated.
        """
        with signals.held(), watch.replayable(state, self.folder, episodes, self.cfg):
            yield

    def end_epoch(
        self, state: TrainState, tokenizer: Tokenizer, episodes: list[Episode], batch: Batch, stats: dict, began: float
    ) -> None:
        """Log and print the epoch, and save it if it is one to save. `began`: when it began, by time.monotonic."""
        cfg = self.cfg
        state.sampled_tokens += stats["sampled_tokens"]
        stats = {"epoch": state.epoch, "step": state.step, **stats, **batch.metrics}
        stats |= {"left_out": len(episodes) - len(batch.episodes), "seconds": time.monotonic() - began}
        stats |= state.watch.ended(state, stats, cfg)
        self.metrics(stats)
        if not (cfg.data or cfg.rollouts):  # these have the episodes already
            lines = [{"epoch": state.epoch, **plain(episode)} for episode in episodes]
            append(self.folder / "episodes.jsonl", lines)
        print(epoch_line(stats, cfg), flush=True)
        if self.evaluates(state) or retention.to_save(state, cfg, stats):
            save_epoch(state, self.folder, tokenizer, base_name(cfg.model), stats)
            save_checkpoint(state, self.folder)
