"""The models that the benchmarks run: ours and, with the same weights and the same adapter, transformers with peft.

Two ways. `prepare` writes a base and an adapter into a folder, from which `our_model` and `peer_model` load. `random`
makes a decoder with random weights in place, on any device and in any dtype, and `twin` gives the peer its weights.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

import envs
import lora
from models import CausalLM, Tokenizer, load_model, load_tokenizer
from models.config import parse_config
from models.export import save_model
from models.quant import QuantLinear, block_linears, quantise
from models.tiny.make_tiny import CONFIG
from models.weights import TINY, resolve

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "max_position_embeddings": 32768,
}
LLAMA3 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
    "max_position_embeddings": 8192,
}


TRAINER = ("transformers", "peft", "trl", "datasets", "accelerate")  # packages of trl's trainer


def shape(layers: int, width: int, inner: int, heads: int, key_heads: int, vocab: int, tied: bool) -> dict:
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": width // heads,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }


SHAPES = {  # config.json of models with random weights
    "small": CONFIG | shape(8, 512, 1536, 8, 4, 1536, True),  # 25 million parameters
    "quarter": CONFIG | shape(4, 256, 768, 4, 2, 1536, True),
    "0.5b": QWEN2 | shape(24, 896, 4864, 14, 2, 151936, True),
    "1.5b": QWEN2 | shape(28, 1536, 8960, 12, 2, 151936, True),
    "7b": QWEN2 | shape(28, 3584, 18944, 28, 4, 152064, False),
    "8b": LLAMA3 | shape(32, 4096, 14336, 32, 8, 128256, False),
    "14b": QWEN2 | shape(48, 5120, 13824, 40, 8, 152064, False),
    "32b": QWEN2 | shape(64, 5120, 27648, 40, 8, 152064, False),
    "70b": LLAMA3 | shape(80, 8192, 28672, 64, 8, 128256, False),
}


def layers_of(name: str, layers: int, vocab: int = 64) -> dict:
    """Return a few layers of a shape, with a small vocabulary."""
    return SHAPES[name] | {"num_hidden_layers": layers, "vocab_size": vocab, "tie_word_embeddings": True}


# ---- from a folder ----


def corpus() -> str:
    """Return a few thousand words of TextCraft observations."""
    env = envs.make("textcraft", prompt="short", distractors=3)
    return "\n".join(message["content"] for seed in range(200) for message in env.reset(seed, "train"))


def windows(tokenizer: Tokenizer, lengths: list[int]) -> list[list[int]]:
    """Return pieces of the corpus of exactly these lengths, each equal to the encoding of its own text."""
    once = tokenizer.encode(corpus())
    ids, start, found = once * (1 + 2 * sum(lengths) // len(once)), 0, []
    for length in lengths:
        while tokenizer.encode(tokenizer.decode(ids[start : start + length])) != ids[start : start + length]:
            start += 1
        found.append(ids[start : start + length])
        start += length
    assert [len(piece) for piece in found] == lengths, "the corpus is too short for these prompts"
    return found


def prepare(name: str, work: Path) -> tuple[Path, Path]:
    """Return the (base, adapter) folders that either side loads; the adapter's B is not zero.

    name: a key of SHAPES | "tiny" | a folder | a hub id.
    """
    base = work / "base"
    if name in SHAPES:
        write_base(name, torch.float32, base)
    else:
        base = resolve(name)
    lora.save_adapter(adapted(load_model(str(base))), work / "adapter", str(base))
    return base, work / "adapter"


def write_base(name: str, dtype: torch.dtype, base: str | Path) -> None:
    """Write a checkpoint with random weights of a shape in SHAPES into a new folder, and a tokenizer of their size:
    unused words fill its vocabulary up to the control tokens."""
    base, raw = Path(base), SHAPES[name]
    base.mkdir(parents=True)
    shutil.copy(TINY / "tokenizer_config.json", base)
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    vocab, control = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    vocab |= {f"<{i}>": i for i in range(len(vocab), raw["vocab_size"] - len(control))}
    for token, at in zip(control, range(len(vocab), raw["vocab_size"]), strict=True):
        token["id"] = at
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    ids = {token["content"]: token["id"] for token in control}
    eos, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [eos, pad], "pad_token_id": pad}))
    save_model(random(raw, dtype), base, raw | {"eos_token_id": eos, "pad_token_id": pad}, dtype)


def our_model(base: Path, adapter: Path, dtype=torch.float32, device: str = "cpu") -> tuple[CausalLM, Tokenizer]:
    model = load_model(str(base), dtype, device)
    lora.load_adapter(model, adapter)
    return model, load_tokenizer(str(base))


def quiet_transformers():
    """Return the module, which prints and warns no more."""
    import transformers

    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers


def peer_base(base: str | Path, dtype: torch.dtype, device: str = "cpu"):
    """Return (transformers' model, its tokenizer)."""
    transformers = quiet_transformers()
    # reads tokenizer.json: for Qwen2 AutoTokenizer builds its own instead
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(base, padding_side="left")
    return transformers.AutoModelForCausalLM.from_pretrained(base, dtype=dtype).to(device), tokenizer


def peer_model(base: Path, adapter: Path, trainable: bool = False, dtype=torch.float32, device: str = "cpu"):
    """Return (PeftModel, its tokenizer), with the adapter unmerged, as ours is."""
    from peft import PeftModel

    model, tokenizer = peer_base(base, dtype, device)
    return PeftModel.from_pretrained(model, adapter, is_trainable=trainable), tokenizer


def new_adapter(model, **keys):
    """Return a PeftModel with a new adapter of rank 16 on all linear layers, as train.py starts."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, settings, **keys)


def grpo_trainer(model, tokenizer, reward: Callable, texts: list[str], folder: Path, more: dict, **keys):
    """Return trl's GRPOTrainer with its faster settings: no KL term or gradient checkpointing, nothing logged or saved.

    more: other settings of GRPOConfig. keys: other arguments of the trainer.
    """
    from datasets import Dataset
    from datasets.table import InMemoryTable
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer

    args = GRPOConfig(
        output_dir=str(folder), bf16=False, seed=0, temperature=1.0, beta=0.0, num_iterations=1, loss_type="dapo",
        scale_rewards="group", epsilon=0.2, epsilon_high=0.28, max_grad_norm=1.0, weight_decay=0.0,
        lr_scheduler_type="constant", shuffle_dataset=False, gradient_checkpointing=False, report_to="none",
        logging_strategy="no", save_strategy="no", disable_tqdm=True, **more,
    )  # fmt: skip
    # Named here, because datasets would pickle the table for a fingerprint, which recent pyarrow's types refuse.
    data = Dataset(InMemoryTable.from_pydict({"prompt": texts}), fingerprint="prompts")
    trainer = GRPOTrainer(model, reward, args=args, train_dataset=data, processing_class=tokenizer, **keys)
    trainer.remove_callback(PrinterCallback)
    return trainer


# ---- in place ----


def random(raw: dict, dtype=torch.float32, device: str = "cpu", seed: int = 0) -> CausalLM:
    """Return a decoder with normal weights of deviation 0.04 and norms of 1, as models/tiny/make_tiny.py does."""
    with torch.device("meta"):
        model = CausalLM(parse_config(raw))
    model = model.to(dtype).to_empty(device=device)
    if raw["tie_word_embeddings"]:
        model.lm_head.weight = model.model.embed_tokens.weight
    generator = torch.Generator(device).manual_seed(seed)
    for name, p in model.named_parameters():
        p.data.fill_(1.0) if "norm" in name else p.data.normal_(0, 0.04, generator=generator)
    return model.eval().requires_grad_(False)


def quantised(model: CausalLM, kind: str) -> CausalLM:
    """Return the model with the linear layers of its blocks quantised, one at a time: "nf4" | "nf4-double" | "int8"."""
    for name, layer in block_linears(model).items():
        small, tensors = QuantLinear(layer, kind), quantise(layer.weight, kind)
        bias = {} if layer.bias is None else {"bias": layer.bias}
        small.load_state_dict({**tensors, **bias}, assign=True)
        model.set_submodule(name, small)
    model.config = replace(model.config, quant=kind)
    return model


def adapted(model: CausalLM) -> CausalLM:
    """Return the model with an adapter of rank 16 on every linear layer, whose B is not zero."""
    torch.manual_seed(0)
    lora.inject(model, r=16, alpha=32, targets="all-linear")
    for _, layer in lora.lora_layers(model):
        torch.nn.init.normal_(layer.adapters["default"].B, std=0.02)
    return model


def twin(model: CausalLM, raw: dict, wide_adapter: bool = True):
    """Return (transformers' decoder with this model's weights and adapter as a PeftModel, its A and B under our names).

    wide_adapter: A and B are float32, which is ours and peft's default.
    """
    transformers = quiet_transformers()
    weight = model.lm_head.weight
    config = transformers.AutoConfig.for_model(**{k: v for k, v in raw.items() if k != "architectures"})
    with torch.device(weight.device):
        peer = transformers.AutoModelForCausalLM.from_config(config, dtype=weight.dtype)
    tensors = {k.replace(".base_layer", ""): v for k, v in model.state_dict().items() if ".adapters." not in k}
    peer.load_state_dict(tensors)
    peer = new_adapter(peer.eval(), autocast_adapter_dtype=wide_adapter).eval()
    theirs = {}
    for path, layer in lora.lora_layers(model):
        other, adapter = peer.base_model.model.get_submodule(path), layer.adapters["default"]
        pair = other.lora_A["default"].weight, other.lora_B["default"].weight
        pair[0].data.copy_(adapter.A.data)
        pair[1].data.copy_(adapter.B.data)
        theirs |= {f"{path}.A": pair[0], f"{path}.B": pair[1]}
    return peer, theirs
