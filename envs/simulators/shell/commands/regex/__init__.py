"""POSIX regular expressions over bytes for grep, sed, awk, find, expr, vi and [[ =~ ]]: syntax.py parses, match.py
matches."""
