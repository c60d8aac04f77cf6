"""AdamW whose two moments take a byte each for a weight, instead of four: `optimizer=adamw8bit`, for lora.r=0.

Differs from torch.optim.AdamW in what lies between two steps (Dettmers et al. 2022, 8-bit Optimizers via Block-wise
Quantization, 2110.02861, section 2). Of each 256 weights that follow one another the moments are divided by their
largest size, which is kept in float32, and stored as the nearest of 256 levels that are dense around 0: signed for the
mean of gradients, without a sign for the mean of their squares. A step reads them back and computes in float32.
Tensors of fewer than 4096 weights, such as norms, keep float32 moments.
"""

import torch

from models.quant import dynamic_map

BLOCK = 256  # weights with one scale
SMALLEST = 4096  # weights of a tensor whose moments are stored in 8 bits
PIECE = 2**20  # weights that are computed at once: a multiple of BLOCK


def unsigned_map() -> torch.Tensor:
    """Return 256 levels, ascending: 7 powers of ten with 2**(i+1) fractions each, 0 and 1 (as `dynamic_map`,
    whose negative half becomes further fractions)."""
    levels = [torch.tensor([0.0, 1.0])]
    for i in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (i + 1) + 1)
        levels.append(10 ** (i - 6) * (edges[:-1] + edges[1:]) / 2)
    return torch.cat(levels).sort()[0]


def store(x_N: torch.Tensor, codes_N: torch.Tensor, scales: torch.Tensor, levels: torch.Tensor) -> None:
    """Write x_N, float32, as the nearest levels: codes_N, uint8, and the scale of each block of BLOCK numbers."""
    blocks = torch.nn.functional.pad(x_N, (0, -len(x_N) % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1)
    shares = blocks / largest.clamp(min=1e-38)[:, None]
    nearest = torch.bucketize(shares, (levels[1:] + levels[:-1]) / 2)
    if levels[0] == 0:  # a mean of squares, by whose root a step divides: rounding must not make it 0
        nearest = nearest.maximum((shares > 0).to(nearest.dtype))
    codes_N.copy_(nearest.view(-1)[: len(x_N)])
    scales.copy_(largest)


def restored(codes_N: torch.Tensor, scales: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
    """Return the numbers, float32, that `store` wrote."""
    return levels[codes_N.int()] * scales.repeat_interleave(BLOCK)[: len(codes_N)]


class AdamW8bit(torch.optim.Optimizer):
    """Its state of a tensor: step; exp_avg and exp_avg_sq, uint8 codes of the tensor's shape, with exp_avg_scales and
    exp_avg_sq_scales; or the two moments in float32 alone."""

    def __init__(self, params, lr: float = 1e-3, weight_decay: float = 0.0, betas=(0.9, 0.999), eps: float = 1e-8):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self) -> None:
        """Take a step with the gradients that are there."""
        levels = {"exp_avg": dynamic_map(), "exp_avg_sq": unsigned_map()}
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    if not self.state[p]:
                        self.state[p].update(fresh_state(p))
                    levels = {name: level.to(p.device) for name, level in levels.items()}
                    step_tensor(p, self.state[p], levels, group)

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the state of a checkpoint. The base class makes floats of codes, which loses none of them."""
        super().load_state_dict(state_dict)
        for entry in self.state.values():
            if "exp_avg_scales" in entry:
                entry |= {name: entry[name].to(torch.uint8) for name in ("exp_avg", "exp_avg_sq")}


def scale_count(p: torch.Tensor) -> int:
    """Return how many scales a moment of a tensor has."""
    return -(-p.numel() // BLOCK)


def fresh_state(p: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the state of a tensor before its first step: moments of 0."""
    step = torch.tensor(0.0)
    if p.numel() < SMALLEST:
        zeros = torch.zeros_like(p, dtype=torch.float32)
        return {"step": step, "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
    zero = int((dynamic_map() == 0).nonzero())
    codes = torch.full_like(p, zero, dtype=torch.uint8, memory_format=torch.contiguous_format)
    scales = torch.zeros(scale_count(p), device=p.device)
    return {
        "step": step,
        "exp_avg": codes,
        "exp_avg_scales": scales,
        "exp_avg_sq": torch.zeros_like(codes),
        "exp_avg_sq_scales": scales.clone(),
    }


def step_tensor(p: torch.Tensor, state: dict[str, torch.Tensor], levels: dict[str, torch.Tensor], group: dict) -> None:
    """Take AdamW's step of one tensor (Loshchilov and Hutter 2019, algorithm 2), PIECE weights at a time.

    levels: of the codes of each moment.
    """
    state["step"] += 1
    weights_N, grad_N = p.view(-1), p.grad.reshape(-1)
    for start in range(0, p.numel(), PIECE):
        rows, blocks = slice(start, start + PIECE), slice(start // BLOCK, (start + PIECE) // BLOCK)
        moments = {name: state[name].view(-1)[rows] for name in levels}
        stored = "exp_avg_scales" in state
        scales = {name: state[f"{name}_scales"][blocks] for name in levels if stored}
        read = {name: restored(moments[name], scales[name], levels[name]) for name in levels} if stored else moments
        adamw(weights_N[rows], grad_N[rows].float(), *read.values(), state["step"].item(), group)
        for name in scales:
            store(read[name], moments[name], scales[name], levels[name])


def adamw(weights_N, grad_N, mean_N, square_N, step: float, group: dict) -> None:
    """Change weights and moments, all [N] in float32 but the weights, in place. step: this one's number, from 1."""
    beta1, beta2 = group["betas"]
    mean_N.lerp_(grad_N, 1 - beta1)
    square_N.mul_(beta2).addcmul_(grad_N, grad_N, value=1 - beta2)
    weights_N.mul_(1 - group["lr"] * group["weight_decay"])
    size_N = square_N.sqrt().div_((1 - beta2**step) ** 0.5).add_(group["eps"])
    weights_N.addcdiv_(mean_N, size_N, value=-group["lr"] / (1 - beta1**step))
