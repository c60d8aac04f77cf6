"""A rank of tests/test_ranks.py: python rank_cases.py FOLDER JSON, with RANK and WORLD_SIZE in the environment.

JSON: {case: [words of train.py, ...]}; each command writes to FOLDER/case. The word "lockstep" takes a machine without
room for gathered weights.
"""

import json
import sys

import train
from rl import ranks
from rl.config import parse
from rl.ranks import shard, start

folder, cases = sys.argv[1], json.loads(sys.argv[2])
start.join("cpu")
for name, commands in cases.items():
    for words in commands:
        ranks.here.store.delete_key("spoken")
        memory = 0 if "lockstep" in words else 2**40
        shard.memory = lambda _device, memory=memory: memory
        cfg = parse([word.replace("OUT", f"{folder}/{name}") for word in words if word != "lockstep"], "train.py")
        start.call(train.main, cfg)
