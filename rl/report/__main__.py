"""List and compare runs: python -m rl.report

python -m rl.report                      # the runs in runs/ with their best numbers
python -m rl.report runs/x               # write runs/x/report.html anew
python -m rl.report runs/x epoch=7       # with the text of all episodes of epoch 7
python -m rl.report runs/x runs/y        # both side by side
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import sys

from rl.report import runs

if __name__ == "__main__":
    sys.exit(runs.main(sys.argv[1:]))
