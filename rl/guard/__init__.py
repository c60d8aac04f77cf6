"""Protection of a run: the lock of its folder, signals, digests of its origin, and signs that it learns nonsense.

Nothing here changes a number of the run.
"""
