"""Write a model as a Hugging Face checkpoint. Imported only when one is written."""

import json
from pathlib import Path

import torch

from models.checkpoints.rope_settings import nested, rope_settings
from models.checkpoints.writer import writer
from models.decoder import CausalLM


def save_model(model: CausalLM, folder: Path, raw_config: dict, dtype: torch.dtype) -> None:
    """Write config.json and the weights into `folder` in Hugging Face layout, cast to dtype one tensor at a time.

    A tied head is left out, as in transformers. Large models get several files (models/checkpoints/writer.py).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = model.state_dict()
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    with writer(folder, {key: tuple(value.shape) for key, value in tensors.items()}, dtype) as write:
        for key, value in tensors.items():
            write(key, value)
    save_config(folder, raw_config, dtype)


def save_config(folder: Path, raw_config: dict, dtype: torch.dtype) -> None:
    """Write the config.json of dense weights in dtype, with the rotary settings for old and new readers."""
    name = str(dtype).removeprefix("torch.")
    dense = {key: value for key, value in raw_config.items() if key != "quantization_config"}
    config = {**both_layouts(dense), "dtype": name, "torch_dtype": name}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def both_layouts(raw_config: dict) -> dict:
    """Return the config.json with its rotary settings in both layouts, so that old and new readers compute the same.

    Settings nested by layer type stay in rope_parameters alone, because the old layout cannot hold them.
    """
    rest = {k: v for k, v in raw_config.items() if k not in ("rope_theta", "rope_scaling", "rope_parameters")}
    settings = rope_settings(raw_config)
    if nested(settings):
        return {**rest, "rope_parameters": settings}
    old = {"rope_theta": settings["rope_theta"]}
    if settings["rope_type"] != "default":
        scaling = {key: value for key, value in settings.items() if key != "rope_theta"}
        old["rope_scaling"] = {**scaling, "type": settings["rope_type"]}
    return {**rest, **old, "rope_parameters": settings}
