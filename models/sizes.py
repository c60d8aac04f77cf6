"""The sizes of a model that its memory depends on, from its config alone."""

from dataclasses import dataclass

from models.config import ModelConfig


@dataclass(frozen=True)
class Sizes:
    """L layers, width D, MLP I, queries Q, keys and values K, vocabulary V."""

    L: int
    D: int
    I: int  # noqa: E741  (width of the MLP, or of an expert's)
    Q: int  # H * E
    K: int  # key/value heads * E
    H: int
    key_heads: int
    V: int
    tied: bool
    normed: str  # q and k are normed: by "heads" (Qwen3), by "width" (OLMo 2), or not ("")
    biases: int  # in a layer
    silu: bool  # the activation
    joined: bool  # q, k and v are one layer, gate and up another (Phi-3)
    experts: int  # of a layer; 0: one MLP
    stored: str  # how the checkpoint holds the linear layers of blocks: "none" | "nf4" | "nf4-double" | "int8"

    @property
    def E(self) -> int:
        """Return the size of a head."""
        return self.Q // self.H

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of each linear layer of a block."""
        D, I, Q, K = self.D, self.I, self.Q, self.K  # noqa: E741
        if self.joined:
            return {"qkv_proj": (Q + 2 * K, D), "o_proj": (D, Q), "gate_up_proj": (2 * I, D), "down_proj": (D, I)}
        attention = {"q_proj": (Q, D), "k_proj": (K, D), "v_proj": (K, D), "o_proj": (D, Q)}
        mlp = {"gate_proj": (I, D), "up_proj": (I, D), "down_proj": (D, I)}
        if self.experts:
            mlp = {f"experts.{i}.{name}": shape for i in range(self.experts) for name, shape in mlp.items()}
        return attention | mlp

    @property
    def block_weights(self) -> int:
        return self.L * sum(outputs * inputs for outputs, inputs in self.linears.values())

    @property
    def largest_linear(self) -> int:
        """Return the number of weights of a block's largest linear layer."""
        return max(outputs * inputs for outputs, inputs in self.linears.values())

    @property
    def other_weights(self) -> int:
        """Return the number of weights of embedding, head, norms and biases."""
        normed = {"": 0, "heads": 2 * self.E, "width": self.Q + self.K}[self.normed]
        norms = self.L * (2 * self.D + normed) + self.D
        return self.V * self.D * (1 if self.tied else 2) + norms + self.L * (self.biases + self.experts * self.D)

    @property
    def weights(self) -> int:
        return self.block_weights + self.other_weights


def sizes_of(cfg: ModelConfig) -> Sizes:
    Q, K = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
    D, I = cfg.hidden_size, cfg.moe_intermediate_size or cfg.intermediate_size  # noqa: E741
    biases = cfg.qkv_bias * (Q + 2 * K) + cfg.o_bias * D + cfg.mlp_bias * (2 * I + D)
    heads, vocabulary = (cfg.num_attention_heads, cfg.num_key_value_heads), (cfg.vocab_size, cfg.tie_word_embeddings)
    numbers = cfg.num_hidden_layers, D, I, Q, K, *heads, *vocabulary
    return Sizes(*numbers, cfg.qk_norm, biases, cfg.hidden_act == "silu", cfg.joined_layers, cfg.num_experts, cfg.quant)
