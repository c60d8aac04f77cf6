"""What a run shows: report.html (page.py), its episodes (episodes.py), metrics elsewhere (sinks.py), lists of runs
(runs.py) and the live line of a terminal (live.py). Nothing here changes a number of a run.
"""
