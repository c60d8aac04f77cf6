"""One GRPO epoch at real size on a CPU, beside transformers + peft + trl: python -m benchmarks.real_size

The model has the shape of Qwen2.5-0.5B and random weights. Both sides load it, evaluate, play the same TextCraft tasks
over several turns, take one optimizer step, evaluate again and save. Random weights never sample a stop token, so all
replies have max_new_tokens on both sides. Each side runs alone in a process; a row is a phase of the run.
"""

import json
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from unittest.mock import patch

import torch

import rl.rollout
import train
from benchmarks import common, sides
from benchmarks.common import Row
from models import load_tokenizer
from rl.config.arguments import NotNegative, Positive
from rl.config.words import parse
from rl.evaluate import EVAL_STREAM
from rl.records import Episode
from rl.rollout import add_step
from rl.tasks import Task, make_env, make_tasks


@dataclass
class Options(common.Options):
    repeats: Positive[int] = 1  # runs of each side, in turn
    shape: Literal[*sides.SHAPES] = "0.5b"  # of a model with random weights
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"  # of the weights; adapters are float32
    episodes: Positive[int] = 8  # of the epoch, all in one optimizer step
    group: Positive[int] = 4  # episodes of the same task
    turns: Positive[int] = 3  # of an episode
    new: Positive[int] = 32  # tokens sampled in a turn
    eval_episodes: NotNegative[int] = 4  # of each evaluation: sampled and greedy, before and after the epoch
    quant: str = ""  # ours: quantise the base, as train.py's quant=
    checkpoint: str = ""  # ours: as train.py's checkpoint=


@dataclass
class Phase:
    seconds: float = 0.0
    tokens: int = 0  # sampled in collect and evaluate; prompts and observations too in learn; 0: not counted
    peak_gib: float = 0.0  # of the whole process on a CPU, of torch's allocations on a GPU


def phases_of(run: Path) -> dict[str, Phase]:
    """Return the phases of a run of train.py from its metrics.jsonl, by name; parts of one phase add up."""
    found: dict[str, Phase] = defaultdict(Phase)
    for line in (run / "metrics.jsonl").read_text().splitlines():
        for name, part in json.loads(line).get("phases", {}).items():
            phase, peak = found[name], part["peak_bytes"] / 2**30
            found[name] = Phase(
                phase.seconds + part["seconds"], phase.tokens + part["tokens"], max(phase.peak_gib, peak)
            )
    return dict(found)


@contextmanager
def measured_phase(found: dict[str, Phase], name: str) -> Iterator[Phase]:
    """Context that adds its seconds and its peak memory to the phase of that name, which it yields."""
    phase = found.setdefault(name, Phase())
    common.reset_peak("cpu")
    began = time.perf_counter()
    yield phase
    phase.seconds += time.perf_counter() - began
    phase.peak_gib = max(phase.peak_gib, common.peak_gib("cpu"))


def sampled(episodes: list[Episode]) -> int:
    return sum(sum(episode.action_mask_T) for episode in episodes)


def words_of(options: Options, model: str, out: str) -> list[str]:
    """Return the words of train.py."""
    words = ["algo=grpo", "env=textcraft", f"model={model}", f"dtype={options.dtype}", f"out={out}", "epochs=1"]
    words += [f"episodes={options.episodes}", f"batch_size={options.episodes}", f"grpo.group_size={options.group}"]
    words += [f"max_turns={options.turns}", f"max_new_tokens={options.new}", f"eval_episodes={options.eval_episodes}"]
    words += ["device=cpu", "grpo.divide_by_std=true", f"threads={options.threads}"]
    return words + [f"{key}={getattr(options, key)}" for key in ("quant", "checkpoint") if getattr(options, key)]


def even_ids(_step, episode: Episode, _cfg) -> float:
    """Return a turn's reward: the share of even ids. Random weights solve no task, and equal rewards teach nothing."""
    turn = episode.turns[-1]
    return sum(i % 2 == 0 for i in episode.ids_T[turn.start : turn.stop]) / (turn.stop - turn.start)


# ---- transformers + peft + trl ----


class Player:
    """Play tasks with transformers' generate: each turn computes the whole history of every episode, as trl's own loop
    of several turns does. Environments, chat format and records are ours."""

    def __init__(self, cfg, model, tokenizer):
        self.cfg, self.model, self.tokenizer = cfg, model, tokenizer

    @torch.no_grad()
    def play(self, tasks: list[Task], temperature: float) -> list[Episode]:
        games = []
        for task in tasks:
            env, episode = make_env(self.cfg, task.env), Episode(task.env, task.seed, task.group)
            episode.append(self.tokenizer.prompt(env.reset(task.seed, task.split)))
            games.append((env, episode))
        playing = games
        while playing:
            replies, going_on = self.sample([episode.ids_T for _, episode in playing], temperature), []
            for (env, episode), ids in zip(playing, replies, strict=True):
                episode.append_turn(ids, [0.0] * len(ids), "length")
                if add_step(episode, env.step(self.tokenizer.answer(ids)), self.tokenizer, self.cfg):
                    going_on.append((env, episode))
            playing = going_on
        return [episode for _, episode in games]

    def sample(self, histories: list[list[int]], temperature: float) -> list[list[int]]:
        width, new = max(map(len, histories)), self.cfg.max_new_tokens
        ids_BT = torch.tensor([[0] * (width - len(ids)) + ids for ids in histories])
        mask_BT = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in histories])
        keys = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature else {}
        training = self.model.training
        self.model.eval()
        out_BT = self.model.generate(
            input_ids=ids_BT, attention_mask=mask_BT, max_new_tokens=new, min_new_tokens=new, use_cache=True, **keys
        )
        self.model.train(training)
        return out_BT[:, width:].tolist()


def run_trl(options: Options, model_folder: str, work: Path) -> dict[str, Phase]:
    """Run the epoch with trl's GRPOTrainer on a PEFT model; return its phases."""
    cfg = parse(words_of(options, model_folder, str(work / "run")), "benchmarks.real_size")
    tasks = make_tasks(cfg, 0, cfg.episodes // cfg.grpo.group_size, cfg.grpo.group_size, "train", cfg.seed)
    found: dict[str, Phase] = {}

    def roll_out(prompts: list[str], _trainer) -> dict:
        assert [int(prompt) for prompt in prompts] == [i // options.group for i in range(len(tasks))]
        with measured_phase(found, "collect") as phase:
            episodes = player.play(tasks, cfg.temperature)
        phase.tokens = sampled(episodes)
        learned.append(sum(len(episode.ids_T) for episode in episodes))
        starts = [episode.turns[0].start for episode in episodes]
        return {
            "prompt_ids": [episode.ids_T[:start] for episode, start in zip(episodes, starts, strict=True)],
            "completion_ids": [episode.ids_T[start:] for episode, start in zip(episodes, starts, strict=True)],
            "env_mask": [episode.action_mask_T[start:] for episode, start in zip(episodes, starts, strict=True)],
            "logprobs": None,
            "score": [episode.score for episode in episodes],
        }

    def evaluate() -> None:
        held_out = make_tasks(cfg, 0, cfg.eval_episodes, 1, "val", EVAL_STREAM)
        for temperature in (cfg.temperature, 0.0) if held_out else ():
            with measured_phase(found, "evaluate") as phase:
                phase.tokens += sampled(player.play(held_out, temperature))

    learned: list[int] = []
    with measured_phase(found, "load"):
        model, tokenizer = sides.peer_base(model_folder, getattr(torch, options.dtype))
        more = {"use_cpu": True, "max_steps": 1, "learning_rate": cfg.lr, "max_completion_length": 4096}
        more |= {"per_device_train_batch_size": cfg.episodes, "num_generations": options.group}
        score = lambda score, **_: score  # noqa: E731
        texts = [str(i) for i in range(cfg.episodes // options.group)]
        words = sides.new_adapter(model), tokenizer, score, texts, work / "trl", more
        trainer = sides.grpo_trainer(*words, rollout_func=roll_out)
        player = Player(cfg, trainer.model, load_tokenizer(model_folder))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    evaluate()
    with measured_phase(found, "learn") as phase:
        trainer.train()
    phase.tokens = sum(learned)
    phase.seconds -= found["collect"].seconds  # which trl's step plays
    evaluate()
    with measured_phase(found, "save"):
        trainer._save_checkpoint(trainer.model, trial=None)
    after = dict(trainer.model.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before), "the step moved no weight"
    return found


# ---- both sides ----


def run_ours(options: Options, model_folder: str, work: Path) -> dict[str, Phase]:
    train.main(parse(words_of(options, model_folder, str(work / "run")), "train.py"))
    return phases_of(work / "run")


def run_side(options: Options, side: str, model_folder: str) -> dict[str, Phase]:
    """Run a side in this process, whose stdout is stderr meanwhile."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    run, evenly = {"ours": run_ours, "trl": run_trl}[side], patch.object(rl.rollout.reward, "turn_reward", even_ids)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr), evenly:
        return run(options, model_folder, Path(folder))


def measured(options: Options, side: str, model_folder: str) -> dict[str, Phase]:
    """Run a side in a process of its own; return its phases."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run_side, options, side, model_folder).result()


def rows_of(runs: dict[str, list[dict[str, Phase]]]) -> list[Row]:
    """Return rows of seconds and peak memory for each phase, and for all together. runs: of each side."""
    names = list(dict.fromkeys(name for of_side in runs.values() for run in of_side for name in run))
    rows = []
    for name in [*names, "all"]:
        seconds, peaks, tokens = {}, {}, {}
        for side, of_side in runs.items():
            parts = [[run[name]] if name in run else list(run.values()) if name == "all" else [] for run in of_side]
            if all(parts):
                seconds[side] = [sum(phase.seconds for phase in of_run) for of_run in parts]
                peaks[side] = [max(phase.peak_gib for phase in of_run) for of_run in parts]
                tokens[side] = parts[0][0].tokens if name != "all" else 0
        check = ", ".join(f"{side} {count:,} tokens" for side, count in tokens.items() if count)
        rows.append(Row(name, seconds, speedup=True, tokens=next(iter(tokens.values())), check=check))
        rows.append(Row(f"{name}, peak", peaks, "GiB"))
    return rows


NOTES = [
    "load: the model, its adapter, the optimizer and, of trl, its trainer; trial: whether sampling and training agree "
    "in every bit, which only ours tries. learn: one optimizer step over all episodes; its tok/s count prompts and "
    "observations too. The other tok/s count sampled tokens. save: adapter and optimizer.",
    "peak: resident memory of the process in that phase, libraries and weights included.",
    "trl: GRPOTrainer with a rollout function that plays the same tasks by transformers' generate, whole histories in "
    "every turn; beta=0, no gradient checkpointing, no logging.",
    "The reward of a turn is the share of even ids, on both sides: random weights solve no task, and our update "
    "leaves out episodes without an advantage. Adapters are float32 on both sides.",
]


def main(options: Options) -> None:
    missing = common.absent(*sides.TRAINER)
    common.hint(missing)
    wanted = common.chosen(["ours", *([] if missing else ["trl"])], options.only)
    with tempfile.TemporaryDirectory() as folder:
        model = f"{folder}/base"
        sides.write_base(options.shape, getattr(torch, options.dtype), model)
        runs: dict[str, list] = {side: [] for side in wanted}
        for _ in range(options.repeats):
            for side in wanted:
                runs[side].append(measured(options, side, model))
    rows = [common.progress(row) for row in rows_of(runs)]
    about = {"shape": options.shape, "dtype": options.dtype, "lora": "r=16 all-linear"}
    played = f"{options.episodes} episodes in groups of {options.group}"
    about |= {"epoch": f"{played}, {options.turns} turns of {options.new} tokens"}
    notes = [*NOTES, *common.absences(missing)]
    common.report("real_size", rows, options, notes, about)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
