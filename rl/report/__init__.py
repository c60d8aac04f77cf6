"""What a run shows: report.html, the live line, metrics elsewhere, lists of runs. Nothing here changes a number."""
