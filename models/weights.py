"""Load a decoder's weights from safetensors files. Every name and shape must fit; one line says which does not.

A model name is, in this order: "tiny" (the checkpoint that comes with the code), an existing folder, a hub id. A hub id
may pin a branch, tag or commit: "Qwen/Qwen2.5-0.5B-Instruct@main". Checkpoints are untrusted: nothing is unpickled.
"""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from models.config import read_config
from models.decoder import CausalLM
from models.json_file import TINY
from models.kernels import kernels


def resolve(name: str | Path) -> Path:
    """Return the folder of a model: embedded, local, or downloaded. Raise FileNotFoundError or ValueError for none."""
    folder = TINY if str(name) == "tiny" else Path(name)
    if folder.is_dir():
        return folder
    from models.checkpoints.hub import download

    return download(str(name))


def open_checkpoint(name: str | Path) -> tuple[Path, CausalLM, list[Path]]:
    """Return (folder, model on the meta device, weight files). Raise as `load_model`, for too large files as well."""
    folder = resolve(name)
    with torch.device("meta"):
        model = CausalLM(read_config(folder))
    files = [folder / "model.safetensors"]
    if files[0].is_symlink() or not files[0].is_file() or (folder / "model.safetensors.index.json").is_file():
        from models.checkpoints.shards import weight_files

        files = weight_files(folder / "model.safetensors.index.json", files[0])
    size, count = sum(path.stat().st_size for path in files), sum(p.numel() for p in model.parameters())
    if size > 16 * count + 2**20:  # 8 bytes each, a tied head twice, and headers
        raise ValueError(f"{folder}: {size:,} bytes of weights; config.json describes {count:,} numbers")
    return folder, model, files


def load_model(name: str, dtype=torch.float32, device="cpu", exact=False, quant: str = "none", read=None) -> CausalLM:
    """Return the decoder with the weights of `name` (see `resolve`), cast to dtype and frozen.

    To train it, inject adapters (lora.inject) or call model.requires_grad_(True).
    exact: on a GPU, sample and train with the same bits (models/fast/exact.py).
    read: (model on the meta device, files, dtype, device) -> its tensors, instead of `_read`: rl/ranks/shard.py's.
    quant: "nf4" | "nf4-double" | "int8" quantises the blocks' linear layers (models/quant.py), tensor by tensor.
    Raise FileNotFoundError or ValueError, one line that names the file, tensor or setting that is missing or unfit.
    """
    folder, model, files = open_checkpoint(name)
    try:
        if read or quant == model.config.quant == "none":
            tensors = (read or _read)(model, files, dtype, device)
        else:
            from models.checkpoints import quantised

            tensors = quantised.read(model, quant, files, dtype, device)
        embedding, tied = tensors["model.embed_tokens.weight"], model.config.tie_word_embeddings
        head = tensors.setdefault("lm_head.weight", embedding) if tied else embedding
        if head is not embedding and not torch.equal(head, embedding):
            raise ValueError("lm_head.weight differs from model.embed_tokens.weight")
        model.load_state_dict(tensors, strict=True, assign=True)
    except (SafetensorError, OSError, KeyError, ValueError, RuntimeError):
        from models.checkpoints.problems import check_weights

        check_weights(folder, files, model, dtype)
        raise
    if tied:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.requires_grad_(False).eval()
    if exact and model.lm_head.weight.is_cuda:
        kernels.make_exact(model)
    return model


def _read(model: CausalLM, files: list[Path], dtype: torch.dtype, device: str) -> dict[str, torch.Tensor]:
    """Return all tensors, cast one at a time. Raise ValueError for another name, one in two files, and integers."""
    tensors, names = {}, set(model.state_dict())
    for path in files:
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118  (not a dict)
                if key.endswith("rotary_emb.inv_freq"):
                    continue  # old Llama checkpoints store the rotary frequencies, which follow from the config
                if key in tensors or key not in names or not (tensor := file.get_tensor(key)).is_floating_point():
                    raise ValueError(f"{path}: {key}")
                tensors[key] = tensor.to(device=device, dtype=dtype)
                if not tensors[key].sum().isfinite():  # an entry is not, or the sum is out of range
                    from models.checkpoints.problems import check_finite

                    check_finite(tensors[key], f"{path}: {key}")
    return tensors
