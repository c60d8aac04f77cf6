"""Triton kernels for CUDA devices."""
