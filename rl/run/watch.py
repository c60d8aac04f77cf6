"""The checks of rl/run/health.py during a run: when each is made, what it remembers, and what follows.

A finding is printed as a line `warning: ...`, once while it lasts, and named in the epoch's metric `warnings`. With
strict=true it ends the run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from models import Tokenizer
from models.tiny.shape import same_shape
from models.weights import resolve
from rl import ranks
from rl.config.fields import Config, Messages, Optim
from rl.config.refusals import Refusal
from rl.records import Batch, Episode, StepResult
from rl.run import health
from rl.run.files import append, checkpoints, plain, read_lines
from rl.run.log import warn

if TYPE_CHECKING:  # for editors: a TrainState holds a Watch
    from rl.run.state import TrainState

NONFINITE = 5  # optimizer steps in a row without a finite gradient that end a run
WITHDRAWN = "no: sampling and training differed"  # how `exact` begins once an epoch has shown that the trial was wrong


class Nonsense(Refusal):
    """A check failed with strict=true. name: the check's, as in the metric `warnings`."""

    def __init__(self, name: str, sentence: str):
        super().__init__(f"{sentence} (strict=false warns and goes on)")
        self.name = name


@dataclass
class Watch:
    """The memory of the checks. A run resumed from a checkpoint reads it from its metrics."""

    records: list[dict] = field(default_factory=list)  # of the epochs that are finished
    evaluations: list[dict] = field(default_factory=list)  # of sampled play on held-out tasks: the first, the newest
    collecting: dict = field(default_factory=dict)  # the record of the epoch under way
    findings: set[str] = field(default_factory=set)  # names of the checks that found something in it
    printed: set[str] = field(default_factory=set)  # names of the findings of the epoch before
    sums: dict[str, int] = field(default_factory=dict)  # checksums of the factors, until all have moved
    unmoved: str = "BA"  # factors that have not moved yet: in the first step with a gradient A has none, because B is 0
    zero_steps: int = 0  # steps in a row that should have moved the policy and whose gradient was 0
    nonfinite: int = 0  # steps in a row whose gradient was not finite

    def begin(self, state: "TrainState", tokenizer: Tokenizer, cfg: Config, folder: Path) -> None:
        """Read what earlier epochs left. Check the tokenizer, the adapter, and that the warm-up ends within the run."""
        for _, record in read_lines(folder / "metrics.jsonl"):
            if "tasks" in record:
                self.records.append(record)
                if str(record.get("exact")).startswith(WITHDRAWN):
                    state.exact = record["exact"]
            self._remember(record)
        model, sentences = state.model, {}
        sentences["tokenizer"] = health.tokenizer_ids(tokenizer, model.config.vocab_size)
        if cfg.lora.r:
            self.sums = health.checksums(factors(state))
            if not state.step:
                ids, limit = tokenizer.prompt([{"role": "user", "content": "?"}]), health.rounding("", cfg.dtype)
                sentences["adapter"] = health.new_adapter(model, state.reference, ids, limit)
        sentences["held_out"] = self._fallen()
        self.report(cfg, "start", **sentences)
        if cfg.warmup_steps > (steps := cfg.total_steps):
            words = f"warmup_steps={cfg.warmup_steps} of {steps} optimizer steps"
            print(f"{words}: the learning rate does not reach lr={cfg.lr:g}", flush=True)

    def collected(self, state: "TrainState", episodes: list[Episode], stats: dict, cfg: Config) -> None:
        """Check the epoch's episodes. stats: their metrics."""
        turns = sum(len(episode.turns) for episode in episodes)
        invalid = sum(episode.invalid for episode in episodes) / max(turns, 1)
        tasks, first = health.task_hashes(episodes), not self.collecting
        self.collecting = {"epoch": state.epoch + 1, **stats, "invalid_actions": invalid, "tasks": tasks}
        records, sentences = [*self.records, self.collecting], {}
        if first and not same_shape(resolve(cfg.model)):  # the embedded model has learned replies alone
            sentences["tokenizer"] = health.unlikely_prompts(state.model, episodes)
        if not (cfg.data or cfg.rollouts or cfg.max_samples):
            repeated = health.repeated_tasks(records)
            sentences["tasks"] = repeated or health.equal_tasks(episodes)
        if not cfg.data:
            sentences["groups"] = health.unequal_groups(episodes, cfg.algorithm.group_size)
        if cfg.algorithm.source == "rollouts" and not cfg.rollouts:
            if cfg.lora.r:  # else all weights train, and there are no others
                sampled_by = state.ahead.now.adapter_hash if state.ahead else state.adapter_hash()
                sentences["weights"] = health.other_weights(episodes, sampled_by)
            sentences["equal_rewards"] = health.equal_rewards(records)
            sentences["all_cut"] = health.all_cut(records)
            sentences["invalid_actions"] = health.invalid_actions(records)
        self.report(cfg, f"epoch {state.epoch + 1}", **sentences)

    def stepped(self, state: "TrainState", batch: Batch, step: StepResult, cfg: Config) -> None:
        """Check an optimizer step on the batch. Raise FloatingPointError if NONFINITE steps in a row had no finite
        gradient."""
        where, sentences = f"epoch {state.epoch + 1}, step {state.step}", {}
        sentences["failed_episodes"] = health.failed_episodes(batch)
        sentences["dropout"] = health.dropout(state.model, cfg.algorithm.source == "demonstrations")
        self.nonfinite = self.nonfinite + 1 if step.skipped and step.within_target_kl else 0
        if self.nonfinite == NONFINITE:
            raise FloatingPointError(f"{where}: no gradient was finite, in {NONFINITE} optimizer steps in a row")
        if health.should_learn(step, batch, cfg.algorithm, cfg, state.epoch):
            # a policy that has collapsed has no gradient either; `entropy` is about that
            is_zero = step.metrics["grad_norm"] == 0 and step.metrics.get("entropy", 1) > 1e-3
            self.zero_steps = self.zero_steps + 1 if is_zero else 0
            sentences["gradient"] = health.zero_gradients(self.zero_steps)
            if self.sums and step.metrics["grad_norm"]:
                sentences["factors"] = self._moved(state, step.metrics["lr"], cfg)
        self.report(cfg, where, **sentences)

    def _moved(self, state: "TrainState", lr: float, cfg: Optim) -> str | None:
        """Check the factor that must have moved in this step: B in the first, A in the second.

        A's gradient is a product with B, which has hardly moved in plain gradient descent or at a tiny lr.
        """
        factor, self.unmoved = self.unmoved[0], self.unmoved[1:]
        small = factor == "A" and (cfg.optimizer == "sgd" or lr < 1e-7)
        sentence = None if small else health.unmoved(self.sums, health.checksums(factors(state)), factor)
        self.sums = self.sums if self.unmoved else {}
        return sentence

    def ended(self, state: "TrainState", stats: dict, cfg: Config) -> dict:
        """Check the metrics of the epoch that has ended. Return the metrics that the checks add."""
        record = {**self.collecting, **stats}
        self.records.append(record)
        gap, claimed = stats.get("sampler_gap"), state.exact
        self.report(
            cfg,
            f"epoch {state.epoch}",
            sampler_gap=health.sampler_gap(gap, claimed, cfg.dtype),
            entropy=health.entropy(self.records, state.model.config.vocab_size),
            ratio=health.ratio(self.records),
        )
        added = {name: record[name] for name in ("tasks", "invalid_actions")} | {"warnings": sorted(self.findings)}
        self.printed, self.findings = self.findings, set()
        if gap and claimed == "yes":  # the trial's claim does not hold: withdraw it
            state.exact = added["exact"] = f"{WITHDRAWN} by {gap:.1e} nats in epoch {state.epoch}"
        return added

    def evaluated(self, state: "TrainState", records: list[dict], cfg: Config) -> None:
        """Check an evaluation, given its lines of metrics.jsonl."""
        for record in records:
            self._remember(record)
        self.report(cfg, f"epoch {state.epoch}", held_out=self._fallen())

    def _remember(self, record: dict) -> None:
        """Keep a line of metrics.jsonl if it is of sampled play on held-out tasks."""
        result = record.get("eval", {})
        if result.get("temperature") and "low" in result and "high" in result:  # earlier versions' may lack them
            self.evaluations = [*self.evaluations[:1], result]

    def _fallen(self) -> str | None:
        return health.held_out(self.evaluations[0], self.evaluations[-1]) if self.evaluations else None

    def report(self, cfg: Messages, where: str, **sentences: str | None) -> None:
        """Print and remember what was found. Raise Nonsense for it with strict=true."""
        for name, sentence in sentences.items():
            if sentence is None:
                continue
            if cfg.strict:
                raise Nonsense(name, f"{where}: {sentence}")
            if name not in self.printed | self.findings:
                warn(f"{where}: {sentence}")
            self.findings.add(name)


def factors(state: "TrainState") -> dict[str, Tensor]:
    """Return the factors that train, by name."""
    return {name: p for name, p in state.trainable().items() if name.endswith((".A", ".B"))}


@contextmanager
def replayable(state: "TrainState", folder: Path, episodes: list[Episode], cfg: Config) -> Iterator[None]:
    """If the block ends because no gradient was finite, save the episodes and add how to repeat the update.

    The file has the episodes of every epoch since the newest checkpoint, the one under way included.
    """
    try:
        yield
    except FloatingPointError as error:
        if ranks.here.nonfinite:
            error.add_note(f"learn: not finite on rank {', '.join(map(str, ranks.here.nonfinite))}")
        if cfg.rollouts or cfg.algorithm.source != "rollouts":
            error.add_note(f"python train.py resume={folder} repeats it from the newest checkpoint")
            raise
        epoch, newest = state.epoch + 1, int(checkpoints(folder)[-1].name.split("-")[1])
        path = folder / f"nonfinite-{epoch}.jsonl"
        path.unlink(missing_ok=True)
        earlier = [record for _, record in read_lines(folder / "episodes.jsonl") if newest < record["epoch"] < epoch]
        append(path, [*earlier, *({"epoch": epoch, **plain(episode)} for episode in episodes)])
        copy = f"{folder}-again"
        words = f"resume={copy} rollouts={path} epochs={epoch} eval_episodes=0"
        error.add_note(f"cp -r {folder} {copy}; python train.py {words} repeats the update")
        raise
