"""Reinforcement learning for language-model agents: configuration, records, rollouts, losses, updates, checkpoints.

One file per algorithm (sft, reinforce, grpo, ppo), each a module with `Config`, `advantages` and `loss`. The pure
functions that they share are in core.py and groups.py; the loop that drives them is train.py.
"""
