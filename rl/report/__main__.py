"""List and compare runs: python -m rl.report (rl/report/runs.py)"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import sys

from rl.report import runs

if __name__ == "__main__":
    sys.exit(runs.main(sys.argv[1:]))
