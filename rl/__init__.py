"""Reinforcement learning for language-model agents. Each algorithm is a module with `Config`, `advantages`, `loss`."""
