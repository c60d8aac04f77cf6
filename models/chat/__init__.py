"""Conversations as token ids: the tokenizer, the hand-written chat formats, and checkpoints' own chat templates."""
