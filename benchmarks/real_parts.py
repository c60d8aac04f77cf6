"""The parts of a run on a pretrained model, beside transformers + peft: python -m benchmarks.real_parts model=smol

decode:   one more token of every row: forward, softmax and sampling. Ours also returns log-probabilities.
prefill:  prompts, and the first token of each.
training: log-probabilities of the last tokens of some sequences, and their gradients to the adapters.

Both sides are in one process, with the same weights and adapters of rank 16 on all linear layers, and take turns. The
peer's loop is written out here, without the overhead of `generate`.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import lora
from benchmarks import common, sides
from benchmarks.common import Parts, Row
from models import fast_matmul
from models.cpu import process
from models.engine import Engine
from models.logprob import token_logprobs
from rl.config.arguments import Positive
from rl.run import exits


@dataclass
class Options(common.Options):
    model: str = "smol"  # tiny | small | 0.5b | smol | a folder | a hub id
    rows: str = "1,8,16,64"  # that decode at once
    context: Positive[int] = 64  # tokens of each row's prompt
    steps: Positive[int] = 4  # decode steps of a repeat; the context grows with them
    prompts: Positive[int] = 8  # of the prefill, and sequences of the training pass
    prompt: Positive[int] = 120  # tokens of each
    reply: Positive[int] = 40  # trained tokens after each prompt


def prompts(rows: int, length: int, vocabulary: int) -> list[list[int]]:
    """Return prompts of random ids, which have no beginning in common."""
    ids = torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(rows))
    return ids.tolist()


# ---- ours ----


def our_engine(model, ids: list[list[int]], room: int) -> Engine:
    engine = Engine(model, len(ids), len(ids[0]) + room, lora.adapter_version(model))
    for i, prompt in enumerate(ids):
        engine.feed(engine.open((0, i)), prompt)
    return engine


def our_steps(engine: Engine, steps: int) -> None:
    for _ in range(steps):
        assert not engine.step(2**20, 1.0, frozenset()), "a row has ended"


@fast_matmul()
def our_pass(model, ids: list[list[int]], reply: int) -> list[torch.Tensor]:
    ids_ST = torch.tensor(ids)
    rows_ST = torch.arange(ids_ST.numel()).view(ids_ST.shape)
    places_N = rows_ST[:, -reply:].flatten()
    hidden_ND = model(ids_ST.flatten()[None], sequences_ST=rows_ST, wanted=places_N - 1)
    logprobs_N = token_logprobs(hidden_ND, model.lm_head.weight, ids_ST.flatten()[places_N])[0]
    return torch.autograd.grad(logprobs_N.sum(), [p for p in model.parameters() if p.requires_grad])


# ---- transformers + peft ----


class Peer:
    """Rows that transformers decodes."""

    def __init__(self, model, ids: list[list[int]]):
        self.model, self.ids_BT, self.cache = model, torch.tensor(ids), None

    @torch.no_grad()
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            out = self.model(self.ids_BT, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
            self.cache = out.past_key_values
            self.ids_BT = torch.multinomial(out.logits[:, -1].float().softmax(-1), 1)


def peer_pass(model, ids: list[list[int]], reply: int) -> list[torch.Tensor]:
    ids_BT = torch.tensor(ids)
    logits = model(ids_BT, use_cache=False, logits_to_keep=reply + 1).logits[:, :-1].float()
    logprobs = logits.log_softmax(-1).gather(-1, ids_BT[:, -reply:, None])
    return torch.autograd.grad(logprobs.sum(), [p for p in model.parameters() if p.requires_grad])


# ---- rows ----


def parts(options: Options, model, peer) -> Parts:
    """Return the rows. peer: None where transformers or peft is missing."""
    vocabulary, wanted = model.config.vocab_size, ["ours", *(["transformers + peft"] if peer else [])]

    def row(name: str, works: list[Callable], tokens: int, target: float) -> Row:
        works, targets = dict(zip(wanted, works, strict=False)), dict.fromkeys(wanted[1:], target)
        return common.timed(name, works, options, speedup=True, tokens=tokens, targets=targets)

    def decode(rows: int, name: str) -> Row:
        ids = prompts(rows, options.context, vocabulary)
        room = options.steps * (options.repeats + options.warmup) + 2
        works = [partial(our_steps, our_engine(model, ids, room), options.steps)]
        works += [partial(Peer(peer, ids).steps, options.steps)] if peer else []
        for work in works:
            work.func(*work.args[:-1], 1)  # the prompts
        return row(name, works, rows * options.steps, 1.5)

    def prefill(name: str) -> Row:
        ids = prompts(options.prompts, options.prompt, vocabulary)
        works = [lambda: our_steps(our_engine(model, ids, 2), 1), lambda: Peer(peer, ids).steps(1)]
        return row(name, works, options.prompts * options.prompt, 1.5)

    def training(name: str) -> Row:
        ids = prompts(options.prompts, options.prompt + options.reply, vocabulary)
        works = [partial(our_pass, model, ids, options.reply), partial(peer_pass, peer, ids, options.reply)]
        return row(name, works, sum(map(len, ids)), 1.5)

    made: Parts = {f"decode, {rows} rows": partial(decode, rows) for rows in map(int, options.rows.split(","))}
    made[f"prefill, {options.prompts} prompts of {options.prompt}"] = prefill
    return made | {f"training, {options.prompts} sequences of {options.prompt} + {options.reply}": training}


NOTES = [
    "Processor time of one process by clock=cpu; targets of this table are 1.5 times the peer's speed.",
    "The head is computed for the last token alone in decode and prefill, and for the trained tokens in training, on "
    "both sides.",
    "prefill: distinct prompts; our engine computes a prompt that several rows share once.",
]


def main(options: Options) -> None:
    if not all(word.isdecimal() and int(word) for word in options.rows.split(",")):
        sys.exit(f"rows={options.rows}: not whole numbers by comma")
    torch.set_num_threads(options.threads)
    missing = common.absent("transformers", "peft")
    with tempfile.TemporaryDirectory() as folder:
        base, adapter = sides.prepare(options.model, Path(folder))
        model = sides.our_model(base, adapter)[0]
        for _, layer in lora.lora_layers(model):
            for factor in (layer.adapters["default"].A, layer.adapters["default"].B):
                factor.requires_grad_()
        peer = None if missing else sides.peer_model(base, adapter, trainable=True)[0].eval()
    line = process.choose_products(options.products, model)
    about = {"model": options.model, "dtype": "float32", "lora": "r=16 all-linear", "our products": line}
    made = parts(options, model, peer)
    common.measure_and_report("real_parts", made, options, NOTES, about, ("transformers", "peft"))


if __name__ == "__main__":
    with exits.exits_cleanly("benchmarks.real_parts"):
        main(common.parse(Options, sys.argv[1:]))
