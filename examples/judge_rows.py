"""Teach a judge: rows from which an adapter learns to grade as an environment did, so that it can pay without it.

    python examples/first_word.py > first.jsonl
    python eval.py env=qa qa.data=first.jsonl split=train n=400 samples=48 max_new_tokens=5 save_episodes=played.jsonl
    echo "Was the first of the two words given?" > rubric.txt
    python examples/judge_rows.py played.jsonl rubric.txt > rows.jsonl
    python train.py algo=sft data=rows.jsonl epochs=20 max_len=512 out=runs/judge
    python train.py algo=grpo env=qa qa.data=first.jsonl max_new_tokens=5 lr=1e-3 warmup_steps=8 epochs=20 \\
        eval_every=2 reward.rule=binary reward.correct=0 reward.judge=runs/judge reward.rubric=rubric.txt out=runs/paid
    python eval.py adapter=base,runs/paid env=qa qa.data=first.jsonl n=0

A row is the judge's prompt about an episode (rl/rubric.py), and 10 for success or 0; there are as many of one as of the
other. A third word names the model of the episodes, if it is not the embedded one. The last run gets no reward but the
judge's grade: it learns the task in eight epochs, and then what the judge mistakes for it.
"""

import json
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # as for the programs, which lie beside the packages

from models.chat.tokenizer import load_tokenizer  # noqa: E402
from rl.records import Episode, Turn  # noqa: E402
from rl.rubric import BEST, prompts  # noqa: E402


def main(played: str, rubric: str, model: str = "tiny") -> None:
    """Print the rows of a file of eval.py's save_episodes=."""
    tokenizer, rows = load_tokenizer(model), {True: {}, False: {}}
    for line in Path(played).read_text().splitlines():
        record = json.loads(line)
        if record["infrastructure_failed"]:  # by the environment, so nobody knows how good it was
            continue
        turns = [Turn(turn["start"], turn["stop"], 0.0, "stop") for turn in record["turns"]]
        episode = Episode(record["env"], record["seed"], record["group"], record["ids_T"], turns=turns)
        rows[record["success"]][prompts(episode, tokenizer, rubric)[0]] = BEST if record["success"] else 0
    fewer = min(map(len, rows.values()))
    if not fewer:
        sys.exit(f"{played} has no episode that {'failed' if rows[True] else 'succeeded'}")
    chosen = [row for of_kind in rows.values() for row in random.Random(0).sample(sorted(of_kind.items()), fewer)]
    for prompt, grade in random.Random(1).sample(chosen, len(chosen)):
        asked, answered = {"role": "user", "content": prompt}, {"role": "assistant", "content": str(grade)}
        print(json.dumps({"messages": [asked, answered]}))


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except OSError as error:
        sys.exit(f"{sys.argv[0]}: {error}")
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"{sys.argv[0]}: {sys.argv[1]} is no file of eval.py save_episodes= ({error!r})")
