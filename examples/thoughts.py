r"""A model that thinks before it acts: a chat template with thoughts, and demonstrations that plan.

    python examples/thoughts.py thinker rows.jsonl
    python train.py algo=sft model=thinker data=rows.jsonl history=template epochs=3 batch_size=32 lr=2e-3 max_len=768 \
        dtype=float32 micro_tokens=4096 strict=false out=runs/sft
    python train.py algo=grpo model=thinker resume_from=runs/sft history=template max_thinking_tokens=96 \
        max_new_tokens=128 max_len=768 env=textcraft textcraft.difficulty=1 textcraft.distractors=5 \
        textcraft.max_turns=8 textcraft.prompt=short textcraft.tasks=fresh epochs=12 episodes=128 batch_size=32 \
        lr=1e-3 schedule=linear grpo.aggregation=sequence dtype=float32 micro_tokens=4096 rollout_batch_size=128 \
        eval_episodes=0 strict=false out=runs/rl
    python eval.py adapter=runs/sft/epoch_3,runs/rl/epoch_12 model=thinker history=template max_thinking_tokens=96 \
        max_new_tokens=128 max_len=768 env=textcraft textcraft.difficulty=1 textcraft.distractors=5 \
        textcraft.max_turns=8 textcraft.prompt=short textcraft.tasks=fresh dtype=float32 rollout_batch_size=128

The folder `thinker` is the embedded model with a template that opens each reply with <think> and leaves the thoughts
of earlier replies out, as DeepSeek-R1's and Qwen3's do. A row is a conversation of TextCraft up to one reply of the
expert, which is learned: as its thought the crafting commands that are still to come, then its action.
"""

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # as for the programs, which lie beside the packages

from envs.demos import expert  # noqa: E402
from models.weights import TINY  # noqa: E402
from rl.config.words import parse  # noqa: E402
from rl.tasks import make_env  # noqa: E402

EPISODES = 300
TEMPLATE = """{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content.split('</think>')[-1].strip() if m.role == 'assistant' and not loop.last else m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""


def rows(seed: int) -> list[dict]:
    """Return a row for each reply of the expert in a task of the second level."""
    env, actions, made, over = make_env(parse(["textcraft.difficulty=2"]), "textcraft"), [], [], False
    said = env.reset(seed, "train")
    while not over:
        actions.append(expert(env))
        step = env.step(actions[-1])
        made.append([*said])
        said += [{"role": "assistant", "content": actions[-1], "loss": False}]
        said += [{"role": "user", "content": step.observation}]
        over = step.terminated or step.truncated
    for turn, action in enumerate(actions):
        plan = "\n".join(each for each in actions[turn:] if each.startswith("craft"))
        made[turn].append({"role": "assistant", "content": f"<think>\n{plan}\n</think>\n\n{action}"})
    return [{"messages": messages} for messages in made]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    folder, out = map(Path, sys.argv[1:])
    if folder.exists() or out.exists():
        sys.exit(f"{folder if folder.exists() else out} is there already: give new names")
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
    out.write_text("".join(json.dumps(row) + "\n" for seed in range(EPISODES) for row in rows(seed)))
