"""GNU find: command.py (expression, walk, actions), measures.py (tests of size, mode, time), format.py (output)."""
