"""GNU sed: parse.py reads a script, select.py finds a command's lines, command.py runs it, text.py edits strings."""
