"""Measurements beside the peers that people would use instead: transformers, peft and trl.

python -m benchmarks.generate               # tokens sampled per second
python -m benchmarks.step                   # a whole optimizer step of GRPO

A peer that is not installed is named as absent, and our side is measured alone.
"""
