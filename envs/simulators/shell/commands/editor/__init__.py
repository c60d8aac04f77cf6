"""vi, vim and ex without a terminal: command.py (ex commands), keys.py (vi keys)."""
