"""Make a new small model: python -m models.tiny.make_tiny FOLDER out=FOLDER

Trains a byte-level BPE tokenizer on the conversations of a folder, then a small Qwen3 from random weights: it repeats
random tokens, does exercises of reading (models/tiny/exercises.py), and then also imitates the assistant's replies in
the conversations. At the end it learns to be careless, so that reinforcement learning has something to teach.

A run that was interrupted goes on from out/state.pt. `make tiny` makes the embedded model in this way.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from models.chat.formats import CHATML_TEMPLATE
from models.config import parse_config
from models.decoder import CausalLM
from models.export import save_model
from models.json_file import parse_json
from models.refusal import Refusal
from models.tiny.exercises import exercise
from rl.config import program
from rl.config.arguments import ArgumentError, NotNegative, Positive
from rl.run import status

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ROLES = ("system", "user", "assistant")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
FREE = ("out", "threads", "dtype", "save_every")  # keys that may change when a run goes on
IGNORED = -100  # a target of cross_entropy that is not learned
PIECES = 4  # micro-batches of a step, by length: little padding
LONGEST = 640  # tokens of a lesson; what is longer is cut
READING = 0.3  # share of the steps that have exercises alone; their tables grow from 4 lines to MOST_LINES
MOST_LINES = 34
COPYING_LR, COPYING_TOKENS, COPIED = 5e-3, 1536, 300  # of a step; the longest line
MIXED = 0.3  # share of exercises among the later lessons

Lesson = tuple[list[int], list[int]]  # ids, and the target that follows each


@dataclass(frozen=True)
class Keys:
    demos: str  # a folder of *.jsonl, as `python -m envs NAME demos=N out=FILE` writes them
    out: str = "models/tiny"  # the folder for the checkpoint
    vocab_size: Positive[int] = 1280  # tokens, control tokens included
    seed: NotNegative[int] = 0  # of the random weights and of the lessons
    copying: NotNegative[int] = 1200  # optimizer steps of copying random tokens; 0 leaves random weights
    steps: NotNegative[int] = 3000  # optimizer steps of exercises and conversations
    batch_tokens: Positive[int] = 8192  # tokens of a step
    threads: Positive[int] = 2
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of the checkpoint
    save_every: Positive[int] = 200  # steps between two writings of out/state.pt
    bf16: bool = True  # matrix products in bfloat16: 1.6 to 1.8 times the speed on a Zen 5
    lr: Positive[float] = 3e-3  # of Muon, for matrices, and of AdamW, for the rest; falls linearly to 0
    careless: NotNegative[float] = 0.9  # mean number of wrong targets of a lesson, in the last tenth of the steps

    def __post_init__(self):
        if not list(Path(self.demos).glob("*.jsonl")):
            raise Refusal(f"demos={self.demos}: no such folder, or no .jsonl file in it")


def read_conversations(path: Path) -> list[list[dict]]:
    """Return the conversations of a file of demonstrations. Raise ValueError, with its line, for any other row."""
    found = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = parse_json(line)
            except ValueError as error:
                raise Refusal(f"{path}, line {number}: {error}") from None
            messages = row.get("messages") if isinstance(row, dict) else None
            if not isinstance(messages, list) or not messages or not all(map(_is_message, messages)):
                form = '{"messages": [{"role": "user", "content": TEXT}, ...]}'
                raise Refusal(f"{path}, line {number}: a row must be {form}, as python -m envs NAME demos=N writes it")
            found.append(messages)
    if not found:
        raise Refusal(f"{path}: no conversation in it")
    return found


def _is_message(value: object) -> bool:
    """Return whether a value is a message that a lesson can have; others, such as calls of tools, are not learned."""
    if not isinstance(value, dict) or value.keys() - {"role", "content", "loss"} or value.get("role") not in ROLES:
        return False
    return isinstance(value.get("content"), str) and isinstance(value.get("loss", True), bool)


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer with the control tokens.

    Words and single digits keep their leading space, and role names are one token each.
    """
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r" ?\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(words, "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(CONTROL), initial_alphabet=alphabet, min_frequency=5, show_progress=False
    )
    tokenizer.train_from_iterator([*text.split("\n"), *ROLES * 10_000], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in CONTROL])
    return tokenizer


class Optimizers:
    """Muon (Jordan et al. 2024) for matrices, whose updates it makes orthogonal; AdamW for embeddings and norms."""

    def __init__(self, model: CausalLM, lr: float):
        named = list(model.requires_grad_(True).named_parameters())
        matrices = [p for name, p in named if p.dim() == 2 and "embed_tokens" not in name]
        rest = [p for name, p in named if p.dim() == 1 or "embed_tokens" in name]
        muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        self.parts = [muon, torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)]
        self.model, self.lr = model, lr

    def step(self, factor: float) -> None:
        """Clip the gradients, take a step at lr * factor, and forget the gradients."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.parts:
            for group in optimizer.param_groups:
                group["lr"] = self.lr * factor
            optimizer.step()
            optimizer.zero_grad()


def teach_copying(model: CausalLM, ids_V: torch.Tensor, keys: Keys) -> float:
    """Train a model of random weights to copy, and return the last loss in nats.

    A line has distinct random ids of `ids_V` and then starts again from somewhere inside: 12 ids at first, 300 or all
    at the end. This forms induction heads (Olsson et al. 2022), which the model needs for codes, paths and names, and
    which demonstrations form late because few of their tokens are copies. `ids_V` should be all that occur: heads that
    had formed on letters alone did not copy other tokens.
    """
    optimizers, longest, steps = Optimizers(model, COPYING_LR), min(COPIED, len(ids_V)), keys.copying
    for step in tqdm(range(steps), "copying", leave=False, disable=None):
        half = int(12 * (longest / 12) ** min(max((step / steps - 0.6) / 0.35, 0), 1))
        places = torch.arange(half)
        first_BT = torch.rand(COPYING_TOKENS // (2 * half), len(ids_V)).argsort(1)[:, :half]  # indices into ids_V
        from_BT = places + torch.randint(half // 2, (len(first_BT), 1))
        known_BT = (from_BT < half) & (places > 0)  # predictable: a token of the copy comes before it
        again_BT = first_BT.gather(1, from_BT.clamp(max=half - 1))
        with torch.autocast("cpu", torch.bfloat16, enabled=keys.bf16):
            hidden_BTD = model(ids_V[torch.cat([first_BT, again_BT], 1)])[:, half - 1 : -1]
            logits_NV = hidden_BTD[known_BT] @ model.lm_head.weight[ids_V].T
        loss = F.cross_entropy(logits_NV.float(), again_BT[known_BT])
        loss.backward()
        optimizers.step(min((step + 1) / 20, 1 - step / steps))
    return loss.item()


def encode(tokenizer: Tokenizer, conversation: list[dict]) -> Lesson:
    """Return a conversation in ChatML; the assistant's replies and their ends are learned, "loss": false excepted."""
    start, end = (tokenizer.get_vocab()[token] for token in CONTROL[1:])
    ids: list[int] = []
    learned: list[bool] = []
    for message in conversation:
        head, text = (tokenizer.encode(text).ids for text in (f"{message['role']}\n", message["content"]))
        learns = message["role"] == "assistant" and message.get("loss", True)
        ids += [start, *head, *text, end, *tokenizer.encode("\n").ids]
        learned += [False] * (1 + len(head)) + [learns] * (len(text) + 1) + [False]
    targets = [i if learns else IGNORED for i, learns in zip(ids, learned, strict=True)]
    return ids[:LONGEST], [*targets[1:], IGNORED][:LONGEST]


def make_careless(rng: Random, lesson: Lesson, wrong: float) -> Lesson:
    """Return a lesson in which tokens of the context replace targets, on average `wrong` of them.

    Whatever a lesson's length, a model that learns this plays it without a slip with probability exp(-wrong) at best.
    """
    ids, targets = lesson
    share = wrong / max(1, sum(target != IGNORED for target in targets))
    slips = [target != IGNORED and rng.random() < share for target in targets]
    return ids, [rng.choice(ids[: n + 1]) if slip else targets[n] for n, slip in enumerate(slips)]


def batch(
    step: int, demos: list[list[Lesson]], read: Callable[[Random, int], Lesson], keys: Keys
) -> list[list[Lesson]]:
    """Return the micro-batches of a step, short lessons first.

    demos: the lessons of each file, which are drawn equally often. read: makes an exercise of so many lines.
    """
    rng, done, drawn, tokens = Random(f"{keys.seed} {step}"), step / keys.steps, [], 0
    while tokens < keys.batch_tokens:
        if rng.random() < (1 if done < READING else MIXED):
            lesson = read(rng, rng.randint(3, 4 + int((MOST_LINES - 4) * min(1, done / READING))))
        else:
            lesson = make_careless(rng, rng.choice(rng.choice(demos)), keys.careless if done >= 0.9 else 0)
        drawn.append(lesson)
        tokens += len(lesson[0])
    drawn.sort(key=lambda lesson: len(lesson[0]))
    pieces: list[list[Lesson]] = [[] for _ in range(PIECES)]
    count = 0
    for lesson in drawn:
        pieces[PIECES * count // tokens].append(lesson)
        count += len(lesson[0])
    return [piece for piece in pieces if piece]


def padded(rows: list[list[int]], value: int) -> torch.Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def load_state(keys: Keys, state: Path) -> dict[str, Any]:
    """Return what an interrupted run saved, {} if there is nothing. Raise ArgumentError if its keys differ."""
    saved = torch.load(state, weights_only=True) if state.is_file() else {}
    if saved and saved.get("keys") != fixed(keys):
        raise ArgumentError(f"{state} is of a run with other settings; remove it, or choose another out=")
    return saved


def fixed(keys: Keys) -> dict[str, Any]:
    """Return the keys that decide which weights come out."""
    return {key: value for key, value in vars(keys).items() if key not in FREE}


def train(
    model: CausalLM, make_batch: Callable[[int], list[list[Lesson]]], keys: Keys, state: Path, saved: dict[str, Any]
) -> None:
    """Train all weights for keys.steps optimizer steps, from the beginning or from `saved`. Save into `state`."""
    optimizers = Optimizers(model, keys.lr)
    parts: list[Any] = [model, *optimizers.parts]  # each with a state_dict
    if saved:
        for part, content in zip(parts, saved["parts"], strict=True):
            part.load_state_dict(content)
    losses = []
    for step in range(saved.get("step", 0), keys.steps):
        pieces = make_batch(step)
        learned = sum(target != IGNORED for piece in pieces for _, targets in piece for target in targets)
        losses.append(0.0)
        for piece in pieces:
            ids_BT, targets_BT = padded([ids for ids, _ in piece], 0), padded([t for _, t in piece], IGNORED)
            with torch.autocast("cpu", torch.bfloat16, enabled=keys.bf16):
                hidden_ND = model(ids_BT)[targets_BT != IGNORED]
                logits_NV = hidden_ND @ model.lm_head.weight.T
            loss = F.cross_entropy(logits_NV.float(), targets_BT[targets_BT != IGNORED], reduction="sum") / learned
            loss.backward()
            losses[-1] += loss.item()
        optimizers.step(min((step + 1) / 50, 1 - step / keys.steps))
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {keys.steps}: loss {sum(losses[-50:]) / len(losses[-50:]):.3f}", flush=True)
        if (step + 1) % keys.save_every == 0 or step + 1 == keys.steps:
            contents = [part.state_dict() for part in parts]
            torch.save({"step": step + 1, "keys": fixed(keys), "parts": contents}, state.with_suffix(".new"))
            state.with_suffix(".new").rename(state)


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main(keys: Keys) -> None:
    # 1. the conversations, the tokenizer and its files
    torch.set_num_threads(keys.threads)
    out, state = Path(keys.out), Path(keys.out) / "state.pt"
    saved = load_state(keys, state)
    paths = sorted(Path(keys.demos).glob("*.jsonl"))
    files = [read_conversations(path) for path in paths]
    some = [conversation for file in files for conversation in file[:1500]]  # enough for a tokenizer
    text = "\n".join(message["content"] for conversation in some for message in conversation)
    tokenizer = train_tokenizer(text, keys.vocab_size)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHATML_TEMPLATE,
    }
    write_json(out / "tokenizer_config.json", tokenizer_config)
    end, pad = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")
    write_json(out / "generation_config.json", {"eos_token_id": [end, pad], "pad_token_id": pad})

    # 2. random weights
    raw: dict[str, Any] = {**CONFIG, "vocab_size": keys.vocab_size, "eos_token_id": end, "pad_token_id": pad}
    torch.manual_seed(keys.seed)
    model = CausalLM(parse_config(raw))
    depth = raw["num_hidden_layers"]
    for name, p in model.named_parameters():
        if p.dim() > 1:  # GPT-2's scale, smaller for layers that write into the residual stream
            last = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(p, std=0.02 * (2 * (2 * depth) ** -0.5 if last else 2))

    # 3. copying, which exercises alone did not teach within 1.2 million tokens
    if keys.copying and not saved:
        every = [i for token, i in tokenizer.get_vocab().items() if token not in CONTROL]
        loss = teach_copying(model, torch.tensor(sorted(every)), keys)
        print(f"copying: {len(every)} tokens, loss {loss:.2f}", flush=True)

    # 4. lessons
    known = sorted(token[1:] for token in tokenizer.get_vocab() if re.fullmatch("Ġ[A-Za-z]{3,}", token))
    demos = [[encode(tokenizer, conversation) for conversation in file] for file in files if keys.steps]

    def read(rng: Random, lines: int) -> Lesson:
        return encode(tokenizer, exercise(rng, lines, max(4, 3 * lines // 2), known))

    if keys.steps:
        train(model, lambda step: batch(step, demos, read, keys), keys, state, saved)
    save_model(model.requires_grad_(False), out, raw, getattr(torch, keys.dtype))
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "models.tiny.make_tiny", Keys, about=__doc__, positional="demos")
    with status.ends_in_one_line("models.tiny.make_tiny"):
        main(keys)
