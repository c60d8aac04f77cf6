"""What protects a run: its folder's lock, signals, what it starts from, and what a run that learns nonsense shows.

Nothing here changes a number of the run.
"""
