"""One GRPO epoch at real size on a CPU, beside transformers + peft (+ trl): python -m benchmarks.real_size

The model has the shape of Qwen2.5-0.5B and random weights, or is the one of model=. All sides load it, evaluate, play
the same TextCraft tasks over several turns, take one optimizer step, evaluate again and save. No side ends a reply at a
stop token, so all replies have max_new_tokens. Each side runs alone in a process; a row is a phase of the run.
"""

import json
import math
import multiprocessing
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, TypeVar
from unittest.mock import patch

import torch

import rl.rollout
import rl.run.run
import train
from benchmarks import common, memory, sides
from benchmarks.common import Row
from models import load_tokenizer
from models.engine import Engine
from models.weights import resolve
from rl.config.arguments import NotNegative, Positive
from rl.config.words import parse
from rl.evaluate import EVAL_STREAM
from rl.records import Episode
from rl.rollout import add_step
from rl.run import exits
from rl.tasks import Task, make_env, make_tasks

T = TypeVar("T")


@dataclass
class Options(common.Options):
    repeats: Positive[int] = 1  # runs of each side, in turn
    shape: Literal[*sides.SHAPES] = "0.5b"  # of a model with random weights
    model: str = ""  # a pretrained model instead: smol | a folder | a hub id
    prompt: Literal["native", "short"] = "native"  # of TextCraft
    peer_rows: Positive[int] = 4  # episodes of a micro-batch of the peers: logits of all would take gigabytes
    micro_tokens: Positive[int] = 8192  # of a micro-batch of ours
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
def measured_phase(found: dict[str, Phase], name: str, clock: str) -> Iterator[Phase]:
    """Context that adds its seconds and its peak memory to the phase of that name, which it yields."""
    phase, now = found.setdefault(name, Phase()), common.CLOCKS[clock]
    memory.reset_peak("cpu")
    began = now()
    yield phase
    phase.seconds += now() - began
    phase.peak_gib = max(phase.peak_gib, memory.peak_gib("cpu"))


def sampled(episodes: list[Episode]) -> int:
    return sum(sum(episode.action_mask_T) for episode in episodes)


def words_of(options: Options, model: str, out: str) -> list[str]:
    """Return the words of train.py."""
    words = ["algo=grpo", "env=textcraft", f"model={model}", f"dtype={options.dtype}", f"out={out}", "epochs=1"]
    words += [f"episodes={options.episodes}", f"batch_size={options.episodes}", f"grpo.group_size={options.group}"]
    words += [f"max_turns={options.turns}", f"max_new_tokens={options.new}", f"eval_episodes={options.eval_episodes}"]
    words += ["device=cpu", "grpo.divide_by_std=true", f"threads={options.threads}", f"products={options.products}"]
    words += [f"textcraft.prompt={options.prompt}", f"micro_tokens={options.micro_tokens}"]
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
                if add_step(episode, env.step(self.tokenizer.answer(ids)), self.tokenizer, self.cfg, env):
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


class Tasks:
    """What both peers do before and after their optimizer step."""

    def __init__(self, options: Options, model_folder: str, work: Path):
        self.options, self.work, self.model_folder = options, work, model_folder
        self.cfg = cfg = parse(words_of(options, model_folder, str(work / "run")), "benchmarks.real_size")
        self.tasks = make_tasks(cfg, 0, cfg.episodes // cfg.grpo.group_size, cfg.grpo.group_size, "train", cfg.seed)
        self.found: dict[str, Phase] = {}
        self.trained_tokens = 0

    def phase(self, name: str):
        return measured_phase(self.found, name, self.options.clock)

    def player(self, model) -> Player:
        return Player(self.cfg, model, load_tokenizer(self.model_folder))

    def collect(self, player: Player) -> list[Episode]:
        with self.phase("collect") as phase:
            episodes = player.play(self.tasks, self.cfg.temperature)
        phase.tokens = sampled(episodes)
        self.trained_tokens = sum(len(episode.ids_T) for episode in episodes)
        return episodes

    def evaluate(self, player: Player) -> None:
        held_out = make_tasks(self.cfg, 0, self.cfg.eval_episodes, 1, "val", EVAL_STREAM)
        for temperature in (self.cfg.temperature, 0.0) if held_out else ():
            with self.phase("evaluate") as phase:
                phase.tokens += sampled(player.play(held_out, temperature))


def run_trl(options: Options, model_folder: str, work: Path) -> dict[str, Phase]:
    """Run the epoch with trl's GRPOTrainer on a PEFT model; return its phases."""
    own = Tasks(options, model_folder, work)
    cfg, tasks, found = own.cfg, own.tasks, own.found

    def roll_out(prompts: list[str], _trainer) -> dict:
        assert [int(prompt) for prompt in prompts] == [i // options.group for i in range(len(tasks))]
        episodes = own.collect(player)
        starts = [episode.turns[0].start for episode in episodes]
        return {
            "prompt_ids": [episode.ids_T[:start] for episode, start in zip(episodes, starts, strict=True)],
            "completion_ids": [episode.ids_T[start:] for episode, start in zip(episodes, starts, strict=True)],
            "env_mask": [episode.action_mask_T[start:] for episode, start in zip(episodes, starts, strict=True)],
            "logprobs": None,
            "score": [episode.score for episode in episodes],
        }

    with own.phase("load"):
        model, tokenizer = sides.peer_base(model_folder, getattr(torch, options.dtype))
        rows = math.gcd(cfg.episodes, options.peer_rows)
        more = {"use_cpu": True, "max_steps": 1, "learning_rate": cfg.lr, "max_completion_length": 4096}
        more |= {"per_device_train_batch_size": rows, "gradient_accumulation_steps": cfg.episodes // rows}
        more |= {"num_generations": options.group}
        score = lambda score, **_: score  # noqa: E731
        texts = [str(i) for i in range(cfg.episodes // options.group)]
        words = sides.new_adapter(model), tokenizer, score, texts, work / "trl", more
        trainer = sides.grpo_trainer(*words, rollout_func=roll_out)
        player = own.player(trainer.model)
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}
    own.evaluate(player)
    with own.phase("learn") as phase:
        trainer.train()
    phase.tokens = own.trained_tokens
    phase.seconds -= found["collect"].seconds  # which trl's step plays
    own.evaluate(player)
    with own.phase("save"):
        trainer._save_checkpoint(trainer.model, trial=None)
    after = dict(trainer.model.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before), "the step moved no weight"
    return found


def run_peft(options: Options, model_folder: str, work: Path) -> dict[str, Phase]:
    """Run the epoch with a plain loop on a PEFT model: on-policy, so that each token's gradient is its advantage times
    that of its log-probability. Return its phases."""
    own = Tasks(options, model_folder, work)
    with own.phase("load"):
        model = sides.new_adapter(sides.peer_base(model_folder, getattr(torch, options.dtype))[0]).eval()
        player, trained = own.player(model), [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=own.cfg.lr, weight_decay=0.0)
    own.evaluate(player)
    episodes = own.collect(player)
    with own.phase("learn") as phase:
        scores = torch.tensor([episode.score for episode in episodes]).view(-1, options.group)
        advantages = ((scores - scores.mean(1, True)) / (scores.std(1, keepdim=True) + 1e-6)).flatten().tolist()
        for start in range(0, len(episodes), options.peer_rows):
            rows = slice(start, start + options.peer_rows)
            (-weighted_logprobs(model, episodes[rows], advantages[rows]) / sampled(episodes)).backward()
        torch.nn.utils.clip_grad_norm_(trained, own.cfg.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
    phase.tokens = own.trained_tokens
    own.evaluate(player)
    with own.phase("save"):
        model.save_pretrained(work / "peft")
        torch.save(optimizer.state_dict(), work / "optimizer.pt")
    return own.found


def weighted_logprobs(model, episodes: list[Episode], advantages: list[float]) -> torch.Tensor:
    """Return the sum of the sampled tokens' log-probabilities, each times its episode's advantage. The head computes
    what follows the shortest prompt alone, as trl's does."""
    width, start = max(len(episode.ids_T) for episode in episodes), min(episode.turns[0].start for episode in episodes)
    pad = lambda rows: torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])  # noqa: E731
    ids_BT, mask_BT = pad(episode.ids_T for episode in episodes), pad(episode.action_mask_T for episode in episodes)
    real_BT = pad([1] * len(episode.ids_T) for episode in episodes)
    keep = width - start + 1
    logits = model(ids_BT, attention_mask=real_BT, use_cache=False, logits_to_keep=keep).logits[:, :-1].float()
    logprobs_BT = logits.log_softmax(-1).gather(-1, ids_BT[:, start:, None])[..., 0]
    return (logprobs_BT * mask_BT[:, start:] * torch.tensor(advantages)[:, None]).sum()


# ---- both sides ----


def run_ours(options: Options, model_folder: str, work: Path) -> dict[str, Phase]:
    run = Engine.run
    endless = patch.object(
        Engine, "run", lambda engine, new, temperature, _: run(engine, new, temperature, frozenset())
    )
    clock = SimpleNamespace(monotonic=common.CLOCKS[options.clock])
    with endless, patch.object(rl.run.run, "time", clock), patch.object(train, "time", clock):
        train.main(parse(words_of(options, model_folder, str(work / "run")), "train.py"))
    return phases_of(work / "run")


RUNS = {"ours": run_ours, "trl": run_trl, "transformers + peft": run_peft}


def run_side(options: Options, side: str, model_folder: str) -> dict[str, Phase]:
    """Run a side in this process, whose stdout is stderr meanwhile."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    evenly = patch.object(rl.rollout.reward, "turn_reward", even_ids)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr), evenly:
        return RUNS[side](options, model_folder, Path(folder))


def base_of(options: Options, work: Path) -> str:
    """Return the folder of the model; one with random weights is written into `work`."""
    if options.model:
        return str(resolve(options.model))
    sides.write_base(options.shape, getattr(torch, options.dtype), str(work / "base"))
    return str(work / "base")


def alone(function: Callable[..., T], *arguments: object) -> T:
    """Return the result of a call in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measured(options: Options, side: str, model_folder: str) -> dict[str, Phase]:
    """Run a side in a process of its own; return its phases."""
    return alone(run_side, options, side, model_folder)


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


def described(options: Options) -> dict[str, str]:
    """Return what the epoch is of."""
    model = options.model or f"random weights, {options.shape}"
    played = f"{options.episodes} episodes in groups of {options.group}"
    epoch = f"{played}, {options.turns} turns of {options.new} tokens"
    return {"model": model, "dtype": options.dtype, "lora": "r=16 all-linear", "epoch": epoch}


NOTES = [
    "load: the model, its adapter, the optimizer and, of trl, its trainer; trial: whether sampling and training agree "
    "in every bit, which only ours tries. learn: one optimizer step over all episodes; its tok/s count prompts and "
    "observations too. The other tok/s count sampled tokens. save: adapter and optimizer.",
    "peak: resident memory of the process in that phase, libraries and weights included.",
    "Both peers play the same tasks by transformers' generate, whole histories in every turn. trl: GRPOTrainer with a "
    "rollout function; beta=0, no gradient checkpointing, no logging. transformers + peft: a plain loop in its place.",
    "The reward of a turn is the share of even ids, on all sides: random weights solve no task, and our update leaves "
    "out episodes without an advantage. Adapters are float32 on all sides.",
]


def main(options: Options) -> None:
    missing, without = common.absent(*sides.TRAINER), common.absent("transformers", "peft")
    common.hint(missing)
    peers = [*([] if missing else ["trl"]), *([] if without else ["transformers + peft"])]
    wanted = common.chosen(["ours", *peers], options.only)
    runs: dict[str, list] = {side: [] for side in wanted}
    dropped: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = base_of(options, Path(folder))
        for _ in range(options.repeats):
            works = {side: partial(measured, options, side, model) for side in wanted if side not in dropped}
            for side, phases in common.each_side(works, dropped).items():
                runs[side].append(phases)
    runs = {side: found for side, found in runs.items() if side not in dropped}
    rows = [common.progress(row) for row in rows_of(runs)]
    notes = [*NOTES, *common.absences(missing), *(f"{side}: left out, {why}." for side, why in dropped.items())]
    common.report("real_size", rows, options, notes, described(options))


if __name__ == "__main__":
    with exits.exits_cleanly("benchmarks.real_size"):
        main(common.parse(Options, sys.argv[1:]))
