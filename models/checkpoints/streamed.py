"""Compute a checkpoint's model block by block, so that it need not fit into memory. merge.py does so.

The numbers are those of models.load_model's model in float32. The model stays on the meta device. Each block in turn is
copied, filled from the files in float32, computed and forgotten. Embedding and head stay in their files, mapped into
memory: the system reads the pages that are used, and drops them when it needs the memory.
"""

import copy
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from models.checkpoints.quantised import convert, keys_of, replace_layers
from models.logprob import SLAB, head_logits
from models.quant import block_linears
from models.weights import EMBEDDING, HEAD, check_finite, check_weights, open_checkpoint

NORM = "model.norm.weight"
MAPPED = (torch.float32, torch.bfloat16, torch.float16)  # tensors of other dtypes are cast


class StreamedModel:
    """A checkpoint whose model is computed block by block. `meta` is the model on the meta device.

    Adapters that are injected into `meta` take part. name, quant and errors: as in models.load_model, but an entry of a
    block that is not finite is found when the block is read.
    """

    def __init__(self, name: str | Path, device: str = "cpu", quant: str = "none"):
        self.folder, self.meta, files = open_checkpoint(name)
        self.device, self.stored, self.quantised = device, {}, {}
        self.shapes = {key: tuple(p.shape) for key, p in self.meta.named_parameters()}  # dense; without a tied head
        if not quant == self.meta.config.quant == "none":
            self.stored = replace_layers(self.meta, quant, files)
            self.quantised = block_linears(self.meta)
        check_weights(self.folder, files, self.meta, torch.float32)
        self.head = EMBEDDING if self.meta.config.tie_word_embeddings else HEAD
        self.ends = tuple(dict.fromkeys((EMBEDDING, NORM, self.head)))  # the tensors outside of blocks
        self.paths = [f"model.layers.{i}" for i in range(len(self.meta.model.layers))]
        self.modules = dict(self.meta.named_modules())  # before adapters are injected
        self.file_of = {}
        # block -> file -> its tensors
        self.keys: dict[str, dict[Path, list[str]]] = defaultdict(lambda: defaultdict(list))
        for file in files:
            for key in keys_of(file):
                self.file_of[key] = file
                self.keys[".".join(key.split(".")[:3])][file].append(key)
        for key in self.ends:
            if not (tensor := self.tensor(key)).sum().isfinite():
                check_finite(tensor, f"{self.file_of[key]}: {key}")
        self.meta.requires_grad_(False).eval()
        # Before the decoder multiplies them by embedding_multiplier; blocks cast the rest.
        self.meta.model.embed_tokens.register_forward_hook(lambda module, inputs, embedded: embedded.float())

    @torch.no_grad()
    def logprobs(self, ids_BT: torch.Tensor, step: Callable, wanted: torch.Tensor | None = None) -> torch.Tensor:
        """Return the log-probabilities [T, V] of every next token of one sequence, ids_BT [1, T], or of several
        sequences those after the tokens `wanted`, indices in ids_BT.flatten(), [len(wanted), V].

        step(path, block, *inputs) returns the block's output, usually block(*inputs), and may change the block, which
        has weights in float32 and belongs to nobody else.
        """
        paths = dict(zip(self.meta.model.layers, self.paths, strict=True))
        self.meta.run_block = lambda layer, x_ND, *inputs: step(
            paths[layer], self.filled(paths[layer]), x_ND.float(), *inputs
        )
        self.meta.model.embed_tokens.weight = nn.Parameter(self.tensor(EMBEDDING), requires_grad=False)
        self.meta.model.norm.weight = nn.Parameter(self.tensor(NORM).float(), requires_grad=False)
        hidden_TD = self.meta(ids_BT)[0] if wanted is None else self.meta(ids_BT, wanted=wanted)
        head_VD = self.tensor(self.head)
        slabs = (head_VD[start : start + SLAB].float() for start in range(0, len(head_VD), SLAB))
        logits = [head_logits(hidden_TD, slab, 1.0) for slab in slabs]
        return torch.cat(logits, -1).log_softmax(-1)

    def filled(self, path: str) -> nn.Module:
        """Return a copy of a block, with its weights and the adapters that were injected into it."""
        original = self.meta.get_submodule(path)
        block = copy.deepcopy(original)
        copies = dict(zip(original.modules(), block.modules(), strict=True))
        for file, keys in self.keys[path].items():
            for name, tensors in convert(file, keys, self.quantised, self.stored, torch.float32, self.device):
                copies[self.modules[name]].load_state_dict(tensors, strict=False, assign=True)
        return block

    def tensor(self, key: str) -> torch.Tensor:
        """Return one of `ends`. On a CPU it is the file itself, mapped into memory, in the file's dtype."""
        with safe_open(self.file_of[key], framework="pt", device="cpu") as file:
            tensor = file.get_tensor(key)
        return (tensor if tensor.dtype in MAPPED else tensor.float()).to(self.device)
