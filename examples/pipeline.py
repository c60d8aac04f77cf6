"""Demonstrations -> SFT -> RL from its best epoch -> the same tasks played by the base, SFT and RL: the Affine guide.

    python examples/pipeline.py out=runs/affine quick=true           on the embedded model
    python examples/pipeline.py out=runs/affine guide=true demos=10000    at the guide's size, on its model
    python examples/pipeline.py out=runs/a sft="recipe=planner_sft" rl="recipe=planner_grpo lr=2e-5" demos=1000

Each stage is a command that works alone; it is printed before it runs. Words that are not in DEFAULTS go to train.py in
both stages. The same command goes on after an interruption: demonstrations and training that are done are left out, and
train.py goes on with a run in its folder. The evaluation is played again each time.
"""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # as for the programs, which lie beside the packages

from rl.config import arguments  # noqa: E402
from rl.config.arguments import ArgumentError  # noqa: E402
from rl.config.words import group_class, resolve  # noqa: E402
from rl.judge.adapter_settings import what_is_played  # noqa: E402
from rl.run import exits  # noqa: E402
from rl.tasks import mixture  # noqa: E402

NAME = "examples/pipeline.py"
DEFAULTS = {
    "out": "runs/pipeline",  # the folder: demos.jsonl, the runs sft/ and rl/, evaluation.json
    "demos": "2000",  # episodes of the experts; a tenth of the rows is held out
    "sft": "recipe=affine_sft",  # words of train.py for SFT
    "rl": "recipe=affine_ppo",  # words of train.py for RL
    "n": "200",  # tasks of the evaluation
    "samples": "1",  # times that each is played sampled
    "seed": "0",  # of the demonstrations, and of both runs
}
LOADED = ("model", "dtype", "device", "exact", "threads", "ranks", "rollout_batch_size")  # how eval.py loads and plays


def commands(words: list[str]) -> tuple[Path, dict[str, list[str]]]:
    """Return the folder and the command of each stage. Raise ArgumentError for wrong words."""
    given = arguments.split(words)
    keys = {key: given.pop(key, default) for key, default in DEFAULTS.items()}
    for key in ("demos", "n", "samples"):
        arguments.convert(key, keys[key], arguments.Positive[int])
    out, seed = Path(keys["out"]).absolute(), f"seed={keys['seed']}"
    both = [seed, *(f"{key}={value}" for key, value in given.items())]
    sft_words, rl_words = ([*both, *shlex.split(keys[stage])] for stage in ("sft", "rl"))
    sft, rl = (resolve(arguments.split(each)) for each in (sft_words, rl_words))
    if any(word.startswith(("out=", "data=", "resume=", "resume_from=")) for word in sft_words + rl_words):
        raise ArgumentError("out=, data=, resume= and resume_from= of the stages are given by the pipeline")
    if sft.algo != "sft" or rl.algo == "sft":
        raise ArgumentError(f"sft= is algo={sft.algo} and rl= is algo={rl.algo}: only sft= may be algo=sft")
    options = {}  # the experts play the environments as SFT has them
    for env in mixture(sft.env):
        usual = vars(group_class(env)())
        options |= {f"{env}.{key}": x for key, x in vars(sft.environments[env]).items() if x != usual[key]}
    rows, names = f"{out}/demos.jsonl", ",".join(mixture(sft.env))
    demos = ["-m", "envs", names, f"demos={keys['demos']}", seed, f"out={rows}", *as_words(options)]
    rl_words = [word for word in rl_words if not word.startswith("lora.")]  # the adapter of SFT has its own
    # eval.py refuses to choose between runs that were played differently, so every key is given, as RL has it.
    envs = ",".join(dict.fromkeys([*mixture(sft.env), *mixture(rl.env)]))
    played = what_is_played(sft) | what_is_played(rl) | {"env": envs} | {key: getattr(rl, key) for key in LOADED}
    own = [f"adapter=base,{out}/sft,{out}/rl", f"n={keys['n']}", f"samples={keys['samples']}"]
    return out, {
        "demos": demos,
        "sft": ["train.py", *sft_words, f"data={rows}", f"out={out}/sft"],
        "rl": ["train.py", *rl_words, f"resume_from={out}/sft", f"out={out}/rl"],
        "evaluation": ["eval.py", *own, f"json={out}/evaluation.json", *as_words(played)],
    }


def as_words(settings: dict) -> list[str]:
    return [f"{key}={arguments.word(value)}" for key, value in settings.items()]


def call(command: list[str], log: IO | None = None) -> int:
    """Run a command and return its status. On Ctrl-C, which it gets too, wait until it has saved.

    log: where its lines go instead of the terminal.
    """
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log and subprocess.STDOUT)
    try:
        return process.wait()
    finally:
        process.wait()


def main(words: list[str]) -> None:
    if arguments.wants_help(words):
        return print(__doc__, *(f"    {key}={value}" for key, value in DEFAULTS.items()), sep="\n")
    with exits.exits_cleanly(NAME):
        out, stages = commands(words)
        out.mkdir(parents=True, exist_ok=True)
        for stage, command in stages.items():
            done, line = out / f"{stage}.done", shlex.join(command)
            if done.is_file() and done.read_text() != line:
                what = f"{out}/{stage} was made by {done.read_text()!r}, not {line!r}"
                raise ArgumentError(f"{what}; choose another out=")
            if done.is_file() or (stage == "demos" and (out / "demos.jsonl").is_file()):  # which may be the user's own
                print(f"{stage}: done before, in {out}", flush=True)
                continue
            print(shlex.join(["python", *command]), flush=True)
            if status := call(command):
                again = "" if status == 2 else "; the same words go on"  # 2: these words are refused
                print(f"{NAME}: stage {stage} ended with status {status}{again}", file=sys.stderr)
                raise SystemExit(status if status > 0 else 128 - status)
            if stage != "evaluation":
                done.write_text(line)


if __name__ == "__main__":
    main(sys.argv[1:])
