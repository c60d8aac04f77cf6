"""POSIX and Perl regular expressions over bytes, in a bounded number of steps.

syntax.py parses POSIX's dialects, perl.py Perl's, match.py matches. grep, sed, awk, find, expr, vi and [[ =~ ]] of the
shell use them, and MySQL's REGEXP.
"""
