"""Recipes of the guides at their real size, by arithmetic: tokens, memory, the guides' values; and quick=true."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
import torch
from conftest import reference

import lora
import train
from benchmarks.sides import QWEN2, SHAPES, shape
from envs.requests import Result
from models.chat.tokenizer import Tokenizer
from models.config import parse_config
from models.decoder import CausalLM
from models.sizes import sizes_of
from rl import peaks, plan
from rl.config.refusals import recipe_names
from rl.config.words import describe_sources, parse, resolve
from rl.tasks import make_env, mixture

DOCS = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
QWEN3 = QWEN2 | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 40960}
MODELS = {  # the guides' models: their published shapes
    "Qwen/Qwen2.5-32B-Instruct": SHAPES["32b"],
    "meta-llama/Llama-3.1-8B-Instruct": SHAPES["8b"] | {"max_position_embeddings": 131072},
    "Qwen/Qwen2.5-3B-Instruct": QWEN2 | shape(36, 2048, 11008, 16, 2, 151936, True),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": QWEN2
    | shape(28, 1536, 8960, 12, 2, 151936, False)
    | {"max_position_embeddings": 131072},
    "Qwen/Qwen3-4B": QWEN3 | shape(36, 2560, 9728, 32, 8, 151936, True) | {"head_dim": 128},
}
GUIDES = ["affine_ppo", "affine_sft", "db_bench_reinforce", "os_interaction_ppo", "planner_grpo", "planner_sft"]
GUIDES += ["tau_retail_grpo"]
YAML = re.compile(r"^ *-? *([a-z_0-9]+): *[^ \n#]", re.M)
THINKING = ("Qwen/Qwen3-4B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B")


def at_real_size(recipe: str):
    """Return the settings of a recipe with its guide's model and device; plan= lets a CPU name the device."""
    return resolve({"recipe": recipe, "guide": "true", "plan": "true"})


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    """Qwen's; Llama's differs by a few per cent."""
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "tokenizer.json").symlink_to(reference("qwen", "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(reference("templates", "qwen2_5.jinja").read_text())
    return Tokenizer(folder)


def lengths(tokenizer: Tokenizer, env, episodes: int) -> tuple[int, list[int]]:
    """Return the tokens of the longest prompt, and of each observation that the expert reads."""
    prompts, observations = [], [0]
    for seed in range(episodes):
        prompt = tokenizer.prompt(env.reset(seed, "train"))
        prompts.append(len(prompt))
        over = False
        while not over:
            step = env.step(env.oracle())
            while step.requests:
                step = env.answer([Result("1", 1, [[1.0]] * len(r.texts or [])) for r in step.requests])
            over = step.terminated or step.truncated
            seen = [{"role": "user", "content": step.observation}]
            observations += [] if over else [len(tokenizer.follow_up(prompt[-1], seen))]
    return max(prompts), observations


@pytest.mark.parametrize("recipe", GUIDES)
def test_all_turns_fit_into_max_len(recipe, tokenizer):
    """Replies as long as max_new_tokens, observations as long as the longest; in tau_retail, whose longest is a whole
    order, as long as the mean. os_interaction cuts outputs, to a token a character at worst."""
    cfg = at_real_size(recipe)
    for name in mixture(cfg.env):
        options = cfg.environments[name]
        prompt, observed = lengths(tokenizer, make_env(cfg, name), 6)
        longest = fmean(observed) if name == "tau_retail" else max(*observed, getattr(options, "max_output", 0))
        needed = prompt + getattr(options, "max_turns", 1) * (cfg.max_new_tokens + longest)
        assert needed <= cfg.max_len <= MODELS[cfg.model]["max_position_embeddings"], (name, needed)


@pytest.mark.parametrize("recipe", GUIDES)
def test_a_model_that_thinks_has_room_or_does_not_think(recipe):
    cfg = at_real_size(recipe)
    assert cfg.model not in THINKING or not cfg.thinking or cfg.max_new_tokens >= 4096


@pytest.mark.parametrize("recipe", GUIDES)
def test_docs_print_the_plan_of_each_recipe(recipe):
    """The peaks in GiB of load, rollout, values (of a critic) and update on a GPU, and a card that holds them."""
    cfg = replace(at_real_size(recipe), plan="141GiB")
    sizes = sizes_of(parse_config(MODELS[cfg.model]))
    needs = peaks.phases(sizes, peaks.settled(sizes, cfg))
    row = re.search(rf"^\| `{recipe}` \|([^|]*)\|(.*)\|$", DOCS.split("## What they need")[1], re.M)
    assert cfg.model in row[1]
    expected = [
        f"{needs[name] / 2**30:.0f}" if name in needs else "" for name in ("load", "rollout", "values", "update")
    ]
    assert [cell.strip() for cell in row[2].split("|")][:4] == expected
    card = int(row[2].split("|")[4].split()[0])
    fitted = replace(cfg, plan=f"{card}GiB")
    needs = plan.on_device(peaks.phases(sizes, peaks.settled(sizes, fitted)))
    assert max(needs.values()) < 0.95 * card * 2**30


def test_docs_count_the_adapters_of_the_affine_guide():
    """The guide's counts of ranks 32, 64 and 128 are smaller than what its seven layers hold."""
    row = re.search(r"rank 32, 64 or 128 \|.* are (\d+), (\d+) and (\d+) million", DOCS)
    with torch.device("meta"):
        model = CausalLM(parse_config(MODELS["Qwen/Qwen3-4B"]))
    lora.inject(model, r=64, alpha=128)
    one = sum(p.numel() for name, p in model.named_parameters() if ".adapters." in name) / 64e6
    assert [int(found) for found in row.groups()] == [round(r * one) for r in (32, 64, 128)]


SECTIONS = ["os_interaction", "db_bench", "tau-bench", "planner", "Affine"]  # of the guides 000 to 004


@pytest.mark.parametrize("number", range(5))
def test_docs_have_every_flag_and_setting_of_each_guide(number):
    """Flags, and the keys of the guides' YAML that have a value, but for names and paths of modules."""
    (guide,) = reference("..", "seeds").glob(f"00{number}_*")
    text, section = guide.read_text(), DOCS.split(f"\n### {SECTIONS[number]}\n")[1].split("\n### ")[0]
    settings = {key for block in re.findall(r"```yaml\n(.*?)```", text, re.S) for key in YAML.findall(block)}
    flags = set(re.findall(r"--[a-z][a-z_-]+[a-z]", text))
    assert flags | settings
    assert {key for key in flags | settings - {"name", "module", "language_model"} if key not in section} == set()


@pytest.mark.parametrize(
    ("recipe", "values"),
    [
        ("os_interaction_ppo", {"epochs": 10, "episodes": 50, "batch_size": 4, "lr": 1e-5, "eval_episodes": 50}),
        ("db_bench_reinforce", {"seed": 42, "lr": 1e-5, "system_prompt": "You are a helpful SQL assistant."}),
        ("planner_grpo", {"max_steps": 500, "batch_size": 8, "temperature": 0.7, "max_samples": 1000, "quant": "nf4"}),
        ("planner_sft", {"max_len": 17000, "batch_size": 16, "lr": 1e-4, "epochs": 1}),
        ("affine_sft", {"epochs": 3, "save_steps": 1000, "save_total_limit": 3, "warmup_steps": 100, "eval_every": 1}),
        ("affine_ppo", {"rollout_batch_size": 4, "lr": 1e-5, "epochs": 25, "episodes": 4, "save_total_limit": 3}),
    ],
)
def test_recipes_have_their_guides_values(recipe, values):
    cfg = at_real_size(recipe)
    assert {key: getattr(cfg, key) for key in values} == values
    assert cfg.device == "cuda" and cfg.dtype == "bfloat16"


NOT_TINY = ("embedded", "quick", "smol", "smol_agents")  # `quick` shortens none of these


@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name not in NOT_TINY])
def test_quick_shortens_every_recipe_of_the_embedded_model(recipe):
    cfg, whole = (parse([f"recipe={recipe}", *words]) for words in (["quick=true"], []))
    assert (cfg.model, cfg.max_steps) == ("tiny", 0)
    assert cfg.epochs * cfg.episodes <= 256 < whole.epochs * whole.episodes
    assert "recipe quick: epochs=4 episodes=64" in describe_sources(cfg)


ADAPTER = ["adapter_config.json", "adapter_model.safetensors"]
EPOCH = [*ADAPTER, "training_config.json", "training_stats.json", "tokenizer.json", "tokenizer_config.json"]
CHECKPOINT = ["trainable.safetensors", "optimizer.safetensors", "state.json", "rng.safetensors", "manifest.json"]


@pytest.mark.parametrize(
    "recipe", [name if name == "planner_grpo" else pytest.param(name, marks=pytest.mark.full) for name in GUIDES]
)
def test_a_run_leaves_the_files_that_its_guide_lists(recipe, tmp_path):
    """Named substitutes are in docs/recipes.md."""
    words = ["epochs=1", "episodes=8", "batch_size=8", "eval_episodes=2", "threads=1", "ranks=1", "strict=false"]
    words += ["lora.r=16"] * (recipe == "planner_sft")  # whose embedded form trains every weight
    train.main(parse([f"recipe={recipe}", "quick=true", *words, f"out={tmp_path}/run"]))
    files = {str(path.relative_to(tmp_path / "run")) for path in (tmp_path / "run").rglob("*")}
    own = {"config.json", "origin.json", "metrics.jsonl", "report.html", "report.jsonl"}
    own |= {f"epoch_1/{name}" for name in EPOCH} | {f"checkpoint-1/{name}" for name in CHECKPOINT}
    own |= {"episodes.jsonl", "held_out.jsonl"} if not recipe.endswith("sft") else set()
    assert own - files == set()
    stats = json.loads((tmp_path / "run" / "epoch_1" / "training_stats.json").read_text())
    metrics = {"loss", "reward_mean", "reward_std", "accuracy", "lr"}
    metrics |= {"env/decomposition", "env/token_efficiency"} if recipe == "planner_grpo" else set()
    assert metrics - stats.keys() == set()
