"""Reinforcement learning in eleven seconds: which of two words comes first?

    python examples/first_word.py > first.jsonl
    python train.py algo=grpo env=qa qa.data=first.jsonl max_new_tokens=5 lr=1e-3 warmup_steps=8 epochs=20

The first command writes 506 questions with answers. The embedded model does not know the task, and learns it from
right and wrong alone: a reply is rewarded if it is the answer.
"""

import json
import sys
from itertools import permutations

WORDS = """
oak iron stone gold birch door stick book lamp desk red blue apple soap cup plate knife bowl shelf bed chair ball key
"""

if len(sys.argv) > 1:
    sys.exit(__doc__)
for first, second in permutations(WORDS.split(), 2):
    print(json.dumps({"question": f"Reply with one word.\n{first} {second}", "answer": first}))
