"""exact=true: sampling and training with the same bits on a GPU, as models/linear.py's plain code has them on a CPU."""

import torch

from models.cuda import available
from models.cuda.available import triton_problem
from models.cuda.step import Joined
from models.decoder import CausalLM
from models.linear import Linear
from models.refusal import Refusal


def make_exact(model: CausalLM) -> CausalLM:
    """Make sampling and training agree in every bit on CUDA, whatever the batch, at some cost in speed.

    Linear layers, attention and the head then use the same Triton kernels in both. On a CPU nothing changes: the plain
    code is exact there wherever models/trial.py says so. Raise ValueError with one line if the dtype, the device or the
    installation does not allow it.
    """
    weight = model.lm_head.weight
    if weight.device.type == "cpu":
        return model
    if weight.dtype not in (torch.bfloat16, torch.float16):
        raise Refusal("exact=true on a CUDA device takes dtype=bfloat16 or float16 (float32 is too slow there)")
    major, minor = torch.cuda.get_device_capability(weight.device)
    if major < 8:
        raise Refusal(f"exact=true takes a CUDA device of compute capability 8.0 or more, not {major}.{minor}")
    problem = triton_problem(weight.device)
    if problem:
        raise Refusal(f"exact=true on a CUDA device takes Triton, which does not work here: {problem}")
    if not model.config.plain_blocks:
        raise Refusal(f"exact=true on a CUDA device is not made for {model.config.model_type}; leave it out")
    product = available.kernels().linear.product
    model.exact = True
    for layer in model.modules():
        if isinstance(layer, Linear):
            layer.matmul = product
    return model


class ExactJoined:
    """The layers of one input with the bits of training, in three kernels: a product with all weights and A factors,
    one with all B factors, and a sum. Each output has the sums and roundings that its layer has in training; the zeros
    of a block diagonal change no sum. A factor is cast once. Quantised layers are dequantised and multiplied one by
    one, as in training."""

    def __init__(self, joined: Joined):
        self.joined, self.diagonal = joined, self._diagonal(joined)

    def _diagonal(self, joined: Joined) -> torch.Tensor | None:
        """Return the B factors on a block diagonal, [width, ranks]."""
        return None if joined.up is None else torch.block_diag(*joined.up.split(joined.widths))

    def __call__(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.joint(x_ND).split(self.joined.widths, -1)

    def joint(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the outputs side by side, [N, in] -> [N, sum of out], as parts of longer rows."""
        linear, joined, x_ND = available.kernels().linear, self.joined, x_ND.contiguous()
        y = x_ND.new_empty(len(x_ND), sum(joined.lengths()))
        for part, (weight, bias) in zip(y.split(joined.lengths(), -1), joined.terms(), strict=True):
            linear.multiply(x_ND, weight, bias, part)
        base = y[:, : joined.width]
        return base if self.diagonal is None else base.add_(linear.product(y[:, joined.width :], self.diagonal))

    def refresh(self) -> None:
        """Copy the layers again, in place."""
        self.joined.refresh()
        if self.diagonal is not None:
            self.diagonal.copy_(self._diagonal(self.joined))
