"""Make a new small model: python -m models.tiny.make_tiny corpus.txt out=FOLDER

Trains a byte-level BPE tokenizer on the corpus and writes a small Qwen3 checkpoint. Its random weights are trained for
one skill, to repeat what followed before. `python train.py algo=sft lora.r=0 model=FOLDER` then teaches the rest.
`make tiny` makes the embedded model in this way.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from models.chat.formats import CHATML_TEMPLATE
from models.config import parse_config
from models.decoder import CausalLM
from models.export import save_model
from models.logprob import token_logprobs
from models.refusal import Refusal
from rl.config import program
from rl.config.arguments import NotNegative, Positive

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ROLES = ("system", "user", "assistant")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 48,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "max_position_embeddings": 4096,
    "attention_bias": False,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True)
class Keys:
    corpus: str  # a text file; lines like the ones that the model will see
    out: str = "models/tiny"  # the folder for the checkpoint
    vocab_size: Positive[int] = 1536  # tokens, control tokens included
    seed: NotNegative[int] = 0  # of the random weights and of the copying exercises
    copying: NotNegative[int] = 1000  # optimizer steps of copying; 0 leaves random weights

    def __post_init__(self):
        if not Path(self.corpus).is_file():
            raise Refusal(f"corpus={self.corpus}: no such file")


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


def teach_copying(model: CausalLM, ids_V: torch.Tensor, steps: int, tokens: int = 1536) -> float:
    """Train a model of random weights to copy, and return the last loss in nats.

    A line has distinct random ids of `ids_V` and then starts again from somewhere inside: 12 ids at first, 100 or all
    at the end. This forms induction heads (Olsson et al. 2022), which the model needs for codes, paths and names, and
    which demonstrations form late because few of their tokens are copies.
    """
    optimizer = torch.optim.AdamW(model.requires_grad_(True).parameters(), lr=3e-3, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / steps))
    longest = min(100, len(ids_V))
    for step in tqdm(range(steps), "copying", leave=False, disable=None):
        half = int(12 * (longest / 12) ** min(max((step / steps - 0.5) / 0.4, 0), 1))
        places = torch.arange(half)
        first_BT = torch.rand(tokens // (2 * half), len(ids_V)).argsort(1)[:, :half]  # indices into ids_V
        from_BT = places + torch.randint(half // 2, (len(first_BT), 1))
        known_BT = (from_BT < half) & (places > 0)  # predictable: a token of the copy comes before it
        again_BT = first_BT.gather(1, from_BT.clamp(max=half - 1))
        hidden_BTD = model(ids_V[torch.cat([first_BT, again_BT], 1)])[:, half - 1 : -1]
        head_VD = model.lm_head.weight[ids_V]  # only these ids: other rows of the head stay untrained
        logprobs_N, _ = token_logprobs(hidden_BTD[known_BT], head_VD, again_BT[known_BT])
        loss = -logprobs_N.mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    return loss.item()


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main(keys: Keys) -> None:
    # 1. the tokenizer and its files
    out, tokenizer = Path(keys.out), train_tokenizer(Path(keys.corpus).read_text(), keys.vocab_size)
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

    # 3. copying
    if keys.copying:
        short = [i for word, i in tokenizer.get_vocab().items() if re.fullmatch("Ġ?[0-9A-Za-z]", word)]
        loss = teach_copying(model, torch.tensor(sorted(short)), keys.copying)
        print(f"copying: {len(short)} letters and digits, loss {loss:.2f}")
    save_model(model.requires_grad_(False), out, raw, torch.float32)
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "models.tiny.make_tiny", Keys, about=__doc__, positional="corpus")
    main(keys)
