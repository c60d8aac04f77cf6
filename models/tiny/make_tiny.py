"""A new model from nothing: python -m models.tiny.make_tiny corpus.txt out=FOLDER

Trains a byte-level BPE tokenizer on the corpus and writes a small Qwen3 checkpoint of random weights that has learned
one thing, to repeat what was there before, for `python train.py algo=sft lora.r=0 model=FOLDER` to teach the rest.
`make tiny` makes the embedded default so.
"""

import json
import re
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from models.config import parse_config
from models.decoder import CausalLM
from models.logprob import token_logprobs
from models.weights import save_model

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


def train_tokenizer(text: str, vocab_size: int) -> Tokenizer:
    """Byte-level BPE: words and single digits with their leading space, role names whole, control tokens added."""
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
    """Teaches a model of random weights to go on with what followed the last time, on lines of distinct random ids of
    ids_V that begin again somewhere: 12 ids at first, 100 or all in the end. It gets induction heads (Olsson et al.
    2022), which codes, paths and names need, and which demonstrations, where few tokens are copies, bring about late.
    Returns the last loss, in nats."""
    optimizer = torch.optim.AdamW(model.requires_grad_(True).parameters(), lr=3e-3, weight_decay=0.0)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 20, 1 - step / steps))
    longest = min(100, len(ids_V))
    for step in tqdm(range(steps), "copying", leave=False, disable=None):
        half = int(12 * (longest / 12) ** min(max((step / steps - 0.5) / 0.4, 0), 1))
        places = torch.arange(half)
        first_BT = torch.rand(tokens // (2 * half), len(ids_V)).argsort(1)[:, :half]  # places in ids_V
        from_BT = places + torch.randint(half // 2, (len(first_BT), 1))
        known_BT = (from_BT < half) & (places > 0)  # one comes first that says where it goes on
        again_BT = first_BT.gather(1, from_BT.clamp(max=half - 1))
        hidden_BTD = model(ids_V[torch.cat([first_BT, again_BT], 1)])[:, half - 1 : -1]
        head_VD = model.lm_head.weight[ids_V]  # of the rest nothing is learned, not even that it does not come
        logprobs_N, _ = token_logprobs(hidden_BTD[known_BT], head_VD, again_BT[known_BT])
        loss = -logprobs_N.mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    return loss.item()


def main(corpus: Path, out: Path, vocab_size: int = 1536, seed: int = 0, copying: int = 1000) -> None:
    """copying: steps of practice in it, 0 for random weights."""
    tokenizer = train_tokenizer(corpus.read_text(), vocab_size)
    ids = {token: tokenizer.token_to_id(token) for token in CONTROL}
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    eos = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    (out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>",
                "model_max_length": CONFIG["max_position_embeddings"],
                "clean_up_tokenization_spaces": False,
                "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
                "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
            },
            indent=2,
        )
        + "\n"
    )
    (out / "generation_config.json").write_text(
        json.dumps({"eos_token_id": eos, "pad_token_id": eos[1]}, indent=2) + "\n"
    )
    raw = {**CONFIG, "vocab_size": vocab_size, "eos_token_id": eos[0], "pad_token_id": eos[1]}
    torch.manual_seed(seed)
    model = CausalLM(parse_config(raw))
    depth = raw["num_hidden_layers"]
    for name, p in model.named_parameters():
        if p.dim() > 1:  # GPT-2's scale, and its smaller one for what writes into the residual stream
            last = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(p, std=0.02 * (2 * (2 * depth) ** -0.5 if last else 2))
    if copying:
        short = [i for word, i in tokenizer.get_vocab().items() if re.fullmatch("Ġ?[0-9A-Za-z]", word)]
        loss = teach_copying(model, torch.tensor(sorted(short)), copying)
        print(f"copying: {len(short)} letters and digits, loss {loss:.2f}")
    save_model(model.requires_grad_(False), out, raw, torch.float32)
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if "=" not in word]
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    size = options.get("vocab_size", "1536")
    if len(words) != 1 or set(options) - {"out", "vocab_size"} or not Path(words[0]).is_file() or not size.isdecimal():
        sys.exit("usage: python -m models.tiny.make_tiny CORPUS.txt [out=models/tiny] [vocab_size=1536]")
    main(Path(words[0]), Path(options.get("out", "models/tiny")), int(size))
