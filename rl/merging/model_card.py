"""The model card of a merged model or an adapter: base, data, recipe, results with intervals, how to load it.

It is made from what the run saved: its settings, training_stats.json beside the adapter, and metrics.jsonl of the run.
"""

import re
from pathlib import Path
from typing import Any

from lora.peft_files import HUB_ID
from models.checkpoints import converted
from models.weights import TINY, split_revision
from rl.config.refusals import Refusal
from rl.judge import adapter_settings
from rl.merging import certificate
from rl.run import history
from rl.run.files import read_json

CARD = "README.md"
SETTINGS = ("algo", "recipe", "env", "data", "epochs", "episodes", "batch_size", "lr", "seed", "quant", "dtype")
SETTINGS += ("lora.r", "lora.alpha", "lora.dropout", "lora.targets", "temperature", "max_new_tokens", "max_len")
FOLDER = "FOLDER"  # in commands of the card, for a base that is on no hub
PATHS = ("recipe", "data")  # of settings that may be paths, only the last part is shown
MERGED = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")"""
ADAPTER = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = AutoModelForCausalLM.from_pretrained("{base}"{pinned}){where}
model = PeftModel.from_pretrained(base, "{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")"""


def model_card(name: str, source: Path, base: str, is_adapter: bool) -> str:
    """Return the card in Markdown.

    name: under which the card says it loads. source: the run's epoch that it was made from. base: as in model=.
    """
    from huggingface_hub import ModelCardData  # heavy, and of no use to eval.py, which imports merge.py

    settings = adapter_settings.settings_of(source) or {}
    base = base or str(settings.get("model", ""))
    is_merged = not is_adapter and _has_adapter(source)
    on_hub = _is_on_hub(base)
    is_converted = Path(base).parent == converted.cache_folder()  # then model= says more than the folder's name
    shown = base_shown(str(settings.get("model", base)) if is_converted else base)
    head = ModelCardData(
        base_model=shown if on_hub else None,
        base_model_relation=("adapter" if is_adapter else "finetune") if on_hub else None,
        library_name="peft" if is_adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["lora"] * (is_adapter or is_merged) + ["reinforcement-learning"] * (settings.get("algo", "sft") != "sft"),
    )
    what = "A LoRA adapter merged into" if is_merged else "A LoRA adapter of" if is_adapter else "The weights of"
    model = f"{what} `{shown}`" if base else f"{what} a model whose base is not recorded"
    trained = f", {_trained(settings)}" if settings else ""
    if start := str(settings.get("resume_from") or ""):
        earlier = adapter_settings.settings_of(Path(start))
        trained += f", from an adapter {_trained(earlier)}" if earlier else f", from the adapter `{Path(start).name}`"
    parts = ["---", head.to_yaml(), "---", "", f"# {name.rpartition('/')[2]}", "", f"{model}{trained}.", ""]
    parts += _table("Training", ("key", "value"), _training(settings))
    parts += _table("Held-out tasks", ("epoch", "play", "success", "80 % interval", "tasks"), _results(source, start))
    _, revision = split_revision(base)
    pinned = f', revision="{revision}"' if revision else ""
    where = "" if on_hub else f"  # {FOLDER}: {shown}"
    code = ADAPTER if is_adapter else MERGED
    code = code.format(name=name, base=shown if on_hub else FOLDER, pinned=pinned, where=where)
    return "\n".join([*parts, "## Loading", "", "```python", code, "```"]) + "\n"


def renamed(card: str, folder: str, name: str) -> str:
    """Return a folder's card with the name on the hub in the place of the folder's: in its code and its title."""
    card = re.sub(rf'(?<=["=]){re.escape(folder)}(?=["\n])', name, card)
    return card.replace(f"\n# {folder}\n", f"\n# {name.rpartition('/')[2]}\n", 1)


def _has_adapter(source: Path) -> bool:
    """Return whether the folder holds an adapter, or a checkpoint that one was merged into."""
    report = source / "merge_report.json"
    return (source / "adapter_config.json").is_file() or (report.is_file() and bool(read_json(report)["adapter"]))


def _trained(settings: dict[str, Any]) -> str:
    """Return what a run trained on and how."""
    return f"trained on `{_trained_on(settings)}` by {str(settings['algo']).upper()}"


def _trained_on(settings: dict[str, Any]) -> str:
    """Return the file of data= if the run learned from its rows, else env=."""
    return Path(str(settings["data"])).name if settings.get("data") else str(settings.get("env", "unknown tasks"))


def base_shown(base: str) -> str:
    """Return the base's id on the hub; of a folder or file, only its name."""
    if base == converted.SMOL:
        return "SmolLM2-135M-Instruct of lora-rl"
    if base.endswith(".gguf"):
        return Path(base).name
    if Path(base).exists() or base == "tiny":
        is_tiny = base == "tiny" or Path(base).resolve() == TINY.resolve()
        return "models/tiny of lora-rl" if is_tiny else Path(base).resolve().name
    return base.partition("@")[0]


def _is_on_hub(base: str) -> bool:
    """Return whether model=base names an id on the hub, not a folder, a file or a model of this repository."""
    return bool(re.fullmatch(f"({HUB_ID})(@.+)?", base)) and not Path(base).is_dir()


def merge_section(gaps: dict | None) -> str:
    """Return the card's section about the merge's certificate, or ""."""
    return f"\n## Merge\n\nBeside the adapter: {certificate.describe(gaps)}.\n" if gaps else ""


def vllm_section(name: str, base: str, rank: int) -> str:
    """Return the card's section about an adapter that vLLM takes."""
    model, revision = split_revision(base) if _is_on_hub(base) else (FOLDER, None)
    pinned = f" --revision {revision}" if revision else ""
    words = f"vllm serve {model}{pinned} --enable-lora --max-lora-rank {rank} --lora-modules mine={name}"
    where = f"\n{FOLDER} is that of the base.\n" * (model == FOLDER)
    return f"\n## Serving with vLLM\n\n    {words}\n{where}"


def _training(settings: dict[str, Any]) -> list[tuple]:
    """Return the settings that a reader asks for first, without those that are empty."""
    shown = {key: settings[key] for key in SETTINGS if settings.get(key) not in (None, "", "none")}
    shown = {key: value for key, value in shown.items() if key != "env" or "data" not in shown}
    shown |= {key: Path(str(shown[key])).name for key in PATHS if key in shown}
    return [(key, value) for key, value in shown.items()]


def _results(source: Path, start: str) -> list[tuple]:
    """Return the run's evaluations before training and at the epoch of `source`. start: the run's resume_from=."""
    stats, run = source / "training_stats.json", source.parent
    before = "before, with the adapter that it starts from" if start else "before"
    if not stats.is_file() or not (run / "metrics.jsonl").is_file():
        return []
    table, rows = read_json(stats), []
    epoch = table.get("epoch") if isinstance(table, dict) else None
    for record in history.records(run):
        if "eval" in record and record["epoch"] in (0, epoch):
            evaluation = record["eval"]
            if missing := {"low", "high", "episodes", "split"} - evaluation.keys():
                raise Refusal(f"{run}/metrics.jsonl: epoch {record['epoch']}'s evaluation lacks {min(missing)!r}")
            play = f"sampled at temperature {evaluation['temperature']:g}" if evaluation["temperature"] else "greedy"
            bounds = f"{evaluation['low']:.1%} to {evaluation['high']:.1%}"
            tasks = f"{evaluation['episodes']} of {evaluation['split']}"
            rows.append((record["epoch"] or before, play, f"{evaluation['success']:.1%}", bounds, tasks))
        if "eval_loss" in record and record["epoch"] in (0, epoch):
            rows.append((record["epoch"] or before, "held-out loss", f"{record['eval_loss']:.4f}", "", ""))
    return rows


def _table(title: str, head: tuple, rows: list[tuple]) -> list[str]:
    """Return a section with a table, or none without rows."""
    lines = [head, ["---"] * len(head), *rows]
    cells = (" | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in line) for line in lines)
    return [f"## {title}", "", *(f"| {line} |" for line in cells), ""] if rows else []
