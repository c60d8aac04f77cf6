"""Rarer kinds of checkpoints: quantised by bitsandbytes, streamed block by block, pickled."""
