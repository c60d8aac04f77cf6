"""A new model from nothing: python -m models.scratch corpus.txt out=FOLDER

Trains a byte-level BPE tokenizer on the corpus and writes a small Qwen3 checkpoint with random weights, for
`python train.py algo=sft lora.r=0 model=FOLDER` to teach. `make tiny` makes the embedded default so.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from models.config import parse_config
from models.decoder import CausalLM
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


def main(corpus: Path, out: Path, vocab_size: int = 1536, seed: int = 0) -> None:
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
    save_model(model, out, raw, torch.float32)
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters, {tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if "=" not in word]
    options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
    size = options.get("vocab_size", "1536")
    if len(words) != 1 or set(options) - {"out", "vocab_size"} or not Path(words[0]).is_file() or not size.isdecimal():
        sys.exit("usage: python -m models.scratch CORPUS.txt [out=models/tiny] [vocab_size=1536]")
    main(Path(words[0]), Path(options.get("out", "models/tiny")), int(size))
