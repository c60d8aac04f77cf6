"""GNU find: command.py (expression, walk, actions), measures.py (sizes, modes, times, -printf)."""
