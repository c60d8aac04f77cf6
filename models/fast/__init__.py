"""Faster implementations of what models/ defines. Deleting this folder costs speed, not correctness."""
