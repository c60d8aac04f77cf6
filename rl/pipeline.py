"""Demonstrations -> SFT -> RL from its best epoch -> evaluation of base, SFT and RL: the Affine guide's pipeline.

    python -m rl.pipeline out=runs/affine quick=true            all stages, on the embedded model
    python -m rl.pipeline out=runs/affine guide=true demos=10000    at the guide's size, on its model
    python -m rl.pipeline out=runs/affine stages=rl,evaluate    these stages alone
    python -m rl.pipeline out=runs/a sft="recipe=planner_sft" rl="recipe=planner_grpo lr=2e-5" demos=1000

Each stage is a command that works alone; it is printed before it runs. Words that are no keys of the pipeline go to
train.py in both stages, and those of train.py that eval.py reads to eval.py. A stage that is done is skipped, and a run
that was interrupted goes on, so the same command continues after any interruption. Where the result of an earlier stage
is missing, the stage takes what is there: SFT then imitates the experts as they play, RL starts from the base, and the
evaluation judges RL, else SFT, else the base.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.config import arguments, model_checks, program
from rl.config.arguments import ArgumentError, NotNegative, Positive, flatten, word
from rl.config.fields import Config
from rl.config.parse import group_class, resolve
from rl.config.refusals import hint
from rl.judge import adapter_settings
from rl.judge import results as judge
from rl.run import exits, retention
from rl.run import folder as claim
from rl.run.files import checkpoints
from rl.tasks import mixture

STAGES = ("demos", "sft", "rl", "evaluate")
ROOT = Path(__file__).parents[1]
EVALUATED = {
    *adapter_settings.PLAYED,
    "model",
    "dtype",
    "quant",
    "device",
    "exact",
    "threads",
    "ranks",
    "rollout_batch_size",
}


@dataclass(frozen=True)
class Keys:
    out: str = "runs/pipeline"  # the folder: demos.jsonl, the runs sft/ and rl/, evaluation.json
    stages: str = "demos,sft,rl,evaluate"  # stages to run, by comma
    demos: Positive[int] = 2000  # episodes of the experts; a tenth of the rows is held out
    sft: str = "recipe=affine_sft"  # words of train.py for the stage sft
    rl: str = "recipe=affine_ppo"  # words of train.py for the stage rl
    n: Positive[int] = 200  # tasks of the evaluation
    samples: Positive[int] = 1  # times that each is played sampled
    buffer: Positive[int] = 100  # demonstrations that are written at a time
    seed: NotNegative[int] = 0  # of the demonstrations, and of both runs


def main(words: list[str]) -> None:
    """Run the stages. Exit with the status of the first command that fails."""
    if arguments.wants_help(words):
        program.parse(words, "rl.pipeline", Keys, about=__doc__)
    try:
        given = arguments.split(words)
        own = {key: given.pop(key) for key in arguments.keys_of(Keys) if key in given}
        keys = arguments.build(Keys, own)
        pipeline = Pipeline(keys, [f"{key}={value}" for key, value in given.items()])
        pipeline.check()
    except (ValueError, OSError) as error:
        arguments.fail("rl.pipeline", error)
    with exits.exits_cleanly("rl.pipeline"):
        pipeline.run()


@dataclass(frozen=True)
class Pipeline:
    keys: Keys
    words: list[str]  # for train.py in both stages

    @property
    def out(self) -> Path:
        return Path(self.keys.out)

    @property
    def rows(self) -> Path:
        return self.out / "demos.jsonl"

    def check(self) -> None:
        """Raise ArgumentError for wrong words, before anything runs."""
        for stage in self.keys.stages.split(","):
            if stage not in STAGES:
                known = f"choose from: {', '.join(STAGES)}{hint(stage, STAGES)}"
                raise ArgumentError(f"stages={self.keys.stages}: no stage {stage!r}; {known}")
        if self.settings("sft").algorithm.source != "demonstrations":
            raise ArgumentError(f"sft={self.keys.sft!r} is algo={self.settings('sft').algo}: it must be algo=sft")
        if self.settings("rl").algorithm.source == "demonstrations":
            raise ArgumentError(f"rl={self.keys.rl!r} is algo=sft: it must be algo=ppo, grpo or reinforce")
        for model in {self.settings(stage).model for stage in ("sft", "rl")}:
            model_checks.config_folder(model)  # raises for one that is not there, before demonstrations are collected

    def run(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        for stage in STAGES:
            if stage in self.keys.stages.split(","):
                if self.done(stage):
                    print(f"stage {stage}: done before, in {self.out}", flush=True)
                    continue
                command = getattr(self, f"{stage}_command")()
                print(f"stage {stage}: {shlex.join(['python', *command])}", flush=True)
                self.call(stage, command)
                if stage == "demos":
                    (self.out / "demos_words.txt").write_text(shlex.join(self.demos_words()))
        if "evaluate" in self.keys.stages.split(","):
            print(*table(self.out / "evaluation.json", self.policies()), sep="\n")

    def done(self, stage: str) -> bool:
        """Return whether a stage's result is there; an evaluation is made anew.

        Raise ArgumentError if a stage has finished with other words.
        """
        if stage != "demos":
            return stage != "evaluate" and self.finished(stage)
        words, made_by = shlex.join(self.demos_words()), self.out / "demos_words.txt"
        if self.rows.is_file() and made_by.is_file() and made_by.read_text() != words:  # without it they are a user's
            raise ArgumentError(f"{self.rows} was made by {made_by.read_text()!r}, not {words!r}; choose another out=")
        return self.rows.is_file()

    def call(self, stage: str, command: list[str]) -> None:
        """Run a stage's command. Exit with its status if it fails."""
        try:
            status = run([sys.executable, *command])
        except KeyboardInterrupt:
            status = 130
        if status:
            print(f"rl.pipeline: stage {stage} ended with status {status}; the same command goes on", file=sys.stderr)
            raise SystemExit(status if status > 0 else 128 - status)

    def stage_words(self, stage: str) -> list[str]:
        """Return train.py's words for a stage; what its own words set wins over words for both."""
        return [f"seed={self.keys.seed}", *self.words, *shlex.split(getattr(self.keys, stage))]

    def settings(self, stage: str) -> Config:
        """Return the configuration of a stage's run. Raise ArgumentError for wrong words."""
        words = self.stage_words(stage)
        if any(each.startswith(("out=", "resume=", "resume_from=", "data=")) for each in words):
            raise ArgumentError(f"{stage}= must leave out=, data=, resume= and resume_from= to the pipeline")
        return resolve(arguments.split(words))

    def demos_command(self) -> list[str]:
        """Return the command that collects what the SFT recipe's experts play."""
        env, *words = self.demos_words()
        return ["-m", "envs", env, *words, f"buffer={self.keys.buffer}", f"out={self.rows.absolute()}"]

    def demos_words(self) -> list[str]:
        """Return the words that decide which demonstrations are collected."""
        cfg = self.settings("sft")
        names = list(mixture(cfg.env))
        usual = {name: flatten(vars(group_class(name)()), f"{name}.") for name in names}
        options = flatten({name: vars(cfg.environments[name]) for name in names})
        changed = {key: value for key, value in options.items() if usual[key.split(".")[0]][key] != value}
        own = [f"demos={self.keys.demos}", f"seed={self.keys.seed}"]
        return [",".join(names), *own, *(f"{key}={word(value)}" for key, value in changed.items())]

    def sft_command(self) -> list[str]:
        words = self.stage_words("sft")
        if self.rows.is_file():
            words.append(f"data={self.rows.absolute()}")
        else:
            print(f"stage sft: {self.rows} is missing, so the experts are imitated as they play", flush=True)
        return [str(ROOT / "train.py"), *words, f"out={self.folder('sft')}"]

    def rl_command(self) -> list[str]:
        words = self.stage_words("rl")
        if adapter := self.adapter("sft"):
            words = [each for each in words if not each.startswith("lora.")] + [f"resume_from={adapter}"]
        else:
            print(f"stage rl: {self.out}/sft has no adapter to start from, so RL starts from the base", flush=True)
        return [str(ROOT / "train.py"), *words, f"out={self.folder('rl')}"]

    def evaluate_command(self) -> list[str]:
        """Return the command that plays the base, SFT and RL on the same tasks of both stages' environments.

        Keys in which the runs differ are given as RL has them, because eval.py refuses to choose.
        """
        names = list(self.policies().values())
        cfgs = [self.settings(stage) for stage in ("sft", "rl")]
        env = ",".join(dict.fromkeys(name for cfg in cfgs for name in mixture(cfg.env)))
        words = [each for each in self.stage_words("rl") if each.split("=")[0] in EVALUATED - {"env"}]
        bare = [*words, f"model={cfgs[1].model}", f"dtype={cfgs[1].dtype}", f"env={env}"]
        first, second = map(adapter_settings.what_is_played, cfgs)
        played = first | second | {"env": env}
        usual = adapter_settings.what_is_played(resolve(arguments.split(bare)))
        unusual = {key: value for key, value in played.items() if usual.get(key, ...) != value}
        unusual |= {key: value for key, value in played.items() if first.get(key, value) != value}
        differing = [f"{key}={word(value)}" for key, value in unusual.items()]
        own = [f"n={self.keys.n}", f"samples={self.keys.samples}", f"json={(self.out / 'evaluation.json').absolute()}"]
        return [str(ROOT / "eval.py"), f"adapter={','.join(names)}", *bare, *differing, *own]

    def policies(self) -> dict[str, str]:
        """Return the adapter of each policy that is there, by name; the last is the one that the pipeline made."""
        found = {"base": "base"}
        for stage in ("sft", "rl"):
            adapter = self.adapter(stage)
            found |= {stage.upper(): adapter} if adapter else {}
        return found

    def adapter(self, stage: str) -> str:
        """Return the folder of the best epoch of a stage's run; "" if it left no adapter."""
        best = retention.best_saved(self.folder(stage))
        folder = self.folder(stage) / f"epoch_{best}"
        return str(folder) if best is not None and (folder / "adapter_config.json").is_file() else ""

    def folder(self, stage: str) -> Path:
        return (self.out / stage).absolute()

    def finished(self, stage: str) -> bool:
        """Return whether a stage's run is done. Raise ArgumentError if it has other settings than these words."""
        run = self.folder(stage)
        if not (run / "config.json").is_file() or not checkpoints(run):
            return False
        saved = resolve({"resume": str(run)})
        if not retention.is_finished(saved, run):
            return False
        ours = self.settings(stage)
        other = claim.differences(ours, flatten(retention.settings(run)))
        other = [line for line in other if line.split("=")[0] not in ("data", "resume_from", "episodes")]
        other = [line for line in other if not (saved.resume_from and line.startswith("lora."))]
        if other:
            raise ArgumentError(f"{run} has finished with other settings ({'; '.join(other[:3])}); choose another out=")
        return True


def run(command: list[str], **options: Any) -> int:
    """Run a command and return its status. On Ctrl-C, which the command has had too, wait until it has ended, because a
    training run saves first; then raise KeyboardInterrupt. options: of subprocess.Popen."""
    process = subprocess.Popen(command, **options)
    try:
        return process.wait()
    finally:
        process.wait()


def table(path: Path, policies: dict[str, str]) -> Iterator[str]:
    """Yield the lines of a table: each policy's success with its 80 % interval in each environment, sampled and greedy.
    Below it, yield a line for the paired difference of each two policies.

    policies: names and adapters; the last is the pipeline's model.
    """
    results, differences = json.loads(path.read_text())["results"], []
    for n, temperature in enumerate(found["temperature"] for found in results[policies["base"]]):
        of = {name: results[folder][n] for name, folder in policies.items()}
        yield "  ".join([f"{'sampled' if temperature else 'greedy':15}", f"{'n':>5}", *(f"{name:>24}" for name in of)])
        envs = list(of["base"]["by_env"])
        for env in [*envs, *["pooled"] * (len(envs) > 1)]:
            parts = [found if env == "pooled" else found["by_env"][env] for found in of.values()]
            cells = [f"{part['success']:.1%} ({part['low']:.1%} to {part['high']:.1%})" for part in parts]
            yield "  ".join([f"{env:15}", f"{parts[0]['episodes']:5}", *(f"{cell:>24}" for cell in cells)])
        pairs = [(name, other) for i, name in enumerate(of) for other in list(of)[:i]]
        differences += [judge.compared(name, of[name], other, of[other]) for name, other in pairs]
    yield from map(judge.describe_difference, differences)
    name = list(policies)[-1]
    yield f"success with 80 % intervals; the pipeline's model is {name}, adapter={policies[name]}"


if __name__ == "__main__":
    main(sys.argv[1:])
