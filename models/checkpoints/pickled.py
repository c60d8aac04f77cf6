"""Pickled weights, for programs that do not read safetensors: pytorch_model.bin and adapter_model.bin."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


def replace_safetensors(folder: Path) -> None:
    """Replace the folder's safetensors files by .bin files. Raise ValueError if one does not hold the same tensors."""
    for path in sorted(folder.glob("*.safetensors")):
        tensors, target = load_file(path), folder / bin_name(path.name)
        torch.save(tensors, target)
        again = torch.load(target, map_location="cpu", weights_only=True, mmap=True)
        if tensors.keys() != again.keys() or not all(torch.equal(tensors[key], again[key]) for key in tensors):
            raise ValueError(f"{target.name} differs from {path.name}")
        path.unlink()
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        table = json.loads(index.read_text())
        table["weight_map"] = {key: bin_name(name) for key, name in table["weight_map"].items()}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps(table, indent=2) + "\n")
        index.unlink()


def bin_name(name: str) -> str:
    """Return the name of the .bin file in the place of a safetensors file, as transformers and PEFT name them."""
    return f"{'pytorch_' if name.startswith('model') else ''}{Path(name).stem}.bin"
