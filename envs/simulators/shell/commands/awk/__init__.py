"""awk as mawk runs it: command.py (the program and its state) <- parse.py and expressions.py (text to tree, over
lexer.py) and compile.py (tree to closures, with evaluate.py for expressions and functions.py for built-in functions).
values.py holds awk's numbers and strings."""
