"""Rarer kinds of checkpoints, each file imported when one needs it: hub, shards, windows, RoPE, saving, problems."""
