"""POSIX regular expressions over bytes for grep, sed, awk, find, expr, vi, [[ =~ ]] and MySQL's REGEXP: syntax.py parses, match.py
matches."""
