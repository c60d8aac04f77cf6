"""A rank of tests/test_ranks.py: python rank_cases.py FOLDER JSON, with RANK and WORLD_SIZE in the environment.

JSON: {case: [words of train.py, ...]}; each command writes to FOLDER/case.
"""

import json
import sys

import train
from rl import ranks
from rl.config import parse
from rl.ranks import start

folder, cases = sys.argv[1], json.loads(sys.argv[2])
start.join("cpu")
for name, commands in cases.items():
    for words in commands:
        ranks.here.store.delete_key("spoken")
        cfg = parse([word.replace("OUT", f"{folder}/{name}") for word in words], "train.py")
        start.call(train.main, cfg)
