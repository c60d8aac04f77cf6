"""Write an adapter beside its base, without merging: as it is, or as vLLM takes it. merge.py uses it."""

from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

import lora
from lora.export import make_uniform
from models import Tokenizer
from models.checkpoints.streamed import StreamedModel
from rl.config.refusals import Refusal
from rl.merging.certificate import Probes
from rl.run import bases
from rl.run.checkpoint import base_name, copy_tokenizer

MAX_GAP = 1e-4  # nats between the adapter and its padded and scaled form in float32, where rounding makes about 1e-6


def open_adapted(base: str, adapter: str | Path, device: str, quant: str) -> StreamedModel:
    """Return the base with the adapter, if there is one, on `device`."""
    model = StreamedModel(base, device, quant)
    if adapter:
        lora.load_adapter(model.meta, Path(adapter))
    for _, layer in lora.lora_layers(model.meta):
        layer.adapters.to(device)
    return model


def logprobs(model: StreamedModel, probes: Probes, title: str, step: Callable) -> torch.Tensor:
    """Return the log-probabilities [N, V] at the probes. Show a bar of the blocks.

    step: as in StreamedModel.logprobs.
    """
    with tqdm(total=len(model.paths), desc=title, leave=False, disable=None) as bar:

        def counted(*inputs):
            x_ND = step(*inputs)
            bar.update()
            return x_ND

        return model.logprobs(probes.ids_BT, counted, probes.wanted)


def write(
    model: StreamedModel, tokenizer: Tokenizer, base: str, quant: str, probes: Probes, folder: Path, vllm: bool
) -> int | None:
    """Write the adapter and the tokenizer into `folder`, read the adapter back and compare.

    base, quant: of the model. vllm: give the adapter one rank and one scale before (lora/export.py), and
    return the rank.
    """
    rank, compute = None, lambda _path, block, *inputs: block(*inputs)
    device = str(probes.ids_BT.device)
    before_NV = logprobs(model, probes, "comparing", compute) if vllm else None
    if vllm:
        rank = make_uniform(model.meta)
        print(f"rank {rank} and one scale for all layers: vllm serve ... --enable-lora --max-lora-rank {rank}")
    lora.save_adapter(model.meta, folder, base_name(base))
    copy_tokenizer(tokenizer, folder)
    bases.write(folder, tokenizer.folder, quant)
    again = open_adapted(base, folder, device, quant)
    layers = zip(lora.lora_layers(model.meta), lora.lora_layers(again.meta), strict=True)
    for (path, layer), (_, other) in layers:
        if not all(map(torch.equal, layer.adapter.parameters(), other.adapter.parameters())):
            raise Refusal(f"the written adapter differs from the model in {path}")
    expected_NV, found_NV = (logprobs(one, probes, "comparing", compute) for one in (model, again))
    if not torch.equal(found_NV, expected_NV):
        raise Refusal("the written adapter differs from the model in log-probabilities")
    if vllm and not (gap := (found_NV - before_NV).abs().max().item()) <= MAX_GAP:
        raise Refusal(f"for vLLM, a log-probability is {gap:.2g} from the adapter's")
    return rank
