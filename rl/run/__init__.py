"""One run: its start, folder, files, checkpoints, signals, log, and the signs that it learns nonsense."""
