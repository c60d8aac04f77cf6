"""GNU sed: parse.py reads a script, command.py runs it, text.py edits strings."""
