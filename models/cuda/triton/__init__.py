"""Triton kernels for CUDA devices."""

from models.cuda.triton import attention, block, common, linear, logprob, quant, sample, step

__all__ = ["attention", "block", "common", "linear", "logprob", "quant", "sample", "step"]
