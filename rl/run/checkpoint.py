"""Saving: checkpoint-N to resume from (rl/run/resume.py reads it) and epoch_N to use, as safetensors and JSON."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

import lora
from models import Tokenizer
from models.chat.tokenizer_file import COPIED
from models.json_file import read_object
from models.weights import TINY, local
from rl import ranks
from rl.ranks import saving
from rl.run import bases, full_finetuning, retention
from rl.run.files import new_folder
from rl.run.state import COUNTERS, MOVED, TrainState


@ranks.holders_only
def save_checkpoint(state: TrainState, run: Path) -> Path:
    """Write run/checkpoint-N for the N epochs finished, and remove older ones (rl/run/retention.py)."""
    target = run / f"checkpoint-{state.epoch}"
    with new_folder(target) as folder:
        saving.save(state.trainable(), folder, "trainable")
        if state.reference == MOVED:
            saving.save(state.moved_reference(), folder, "reference")
        if state.critic is not None:
            save_file(state.critic.state_dict(), folder / "critic.safetensors")
        moments = state.optimizer.state_dict()["state"]
        entries = [(f"{i}.{key}", value) for i, entry in moments.items() for key, value in entry.items()]
        saving.save({key: value for key, value in entries if value is not None}, folder, "optimizer")
        cuda = {"cuda": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {}
        # Of torch's generators: first weights were drawn from them; sampling and dropout draw from counters instead.
        save_file({"cpu": torch.get_rng_state(), **cuda}, folder / "rng.safetensors")
        counters = {name: getattr(state, name) for name in COUNTERS} | {"given": state.given}
        (folder / "state.json").write_text(json.dumps(counters) + "\n")
    retention.prune(run, state)  # only now: until the new checkpoint is whole, the old ones are the run
    return target


@ranks.holders_only
def save_epoch(state: TrainState, run: Path, tokenizer: Tokenizer, base_model: str, stats: dict) -> None:
    """Write run/epoch_N: the adapter in PEFT's files (or the whole model), its run's settings, stats and tokenizer."""
    with new_folder(run / f"epoch_{state.epoch}") as folder:
        if lora.lora_layers(state.model):
            lora.save_adapter(state.model, folder, base_model)
            bases.write(folder, tokenizer.folder, state.model.config.quant)
        else:
            full_finetuning.save(state.model, tokenizer, folder)
        (folder / "training_stats.json").write_text(json.dumps(stats, indent=2) + "\n")
        shutil.copy(run / "config.json", folder / "training_config.json")  # for eval.py
        copy_tokenizer(tokenizer, folder)


def copy_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Copy the tokenizer's files, and the generation settings, into a folder.

    A tokenizer.json that puts a space before each piece of text (Llama 2's) gets the class that reads it as it is:
    transformers 5 rebuilds that of LlamaTokenizer from other settings, and conversations get other ids.
    """
    for name in ("tokenizer.json", *COPIED):
        if (tokenizer.folder / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(tokenizer.folder / name, folder / name)
    settings = read_object(folder / "tokenizer_config.json")
    if tokenizer.prepends and str(settings.get("tokenizer_class")).startswith("Llama"):
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        (folder / "tokenizer_config.json").unlink()  # it has the mode of the base's, which may be read-only
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


def base_name(model: str) -> str:
    """Return the name that an adapter gives its base: the hub id, or a folder's whole path, so that PEFT can load it;
    "tiny" for the embedded model, whose path is another one on each machine."""
    folder = local(model)
    if folder and folder.resolve() == TINY.resolve():
        return "tiny"
    return str(folder.resolve()) if folder else model
