r"""SmolLM2 with tools: a chat template that declares and calls them, demonstrations as calls, then GRPO.

    python examples/tool_calls.py caller
    python -m envs os_interaction tools=native difficulty=1 tasks=fresh max_turns=3 demos=384 out=rows.jsonl
    python train.py recipe=smol_agents algo=sft model=caller data=rows.jsonl batch_size=16 epochs=3 lr=5e-4 \
        warmup_steps=8 env=os_interaction os_interaction.tools=native out=runs/sft
    python train.py recipe=smol_agents model=caller resume_from=runs/sft env=os_interaction \
        os_interaction.tools=native epochs=16 episodes=192 batch_size=96 lr=2e-4 warmup_steps=6 out=runs/rl
    python eval.py adapter=base,runs/sft,runs/rl/epoch_16 model=caller env=os_interaction n=200 \
        os_interaction.tools=native
    python -m rl.serve adapter=runs/rl/epoch_16 model=caller    # answers `tools` of OpenAI's protocol with calls

The folder `caller` is SmolLM2, whose own template knows no tools, with one whose calls have Qwen2.5's form. With
tools=native the environment offers `bash` and `finish` as JSON schemas, and a reply is a call of one of them.
What the run reaches stands in docs/results.md, "Calls of tools".
"""

import json
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # as for the programs, which lie beside the packages

from models.weights import resolve  # noqa: E402

TEMPLATE = """{% if tools %}<|im_start|>system
You can call these tools:
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>
Call one in this form:
<tool_call>
{"name": <its name>, "arguments": <an object>}
</tool_call><|im_end|>
{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response>{% else %}<|im_start|>{{ m.role }}
{{ m.content }}{% for call in m.tool_calls or [] %}{% if m.content or not loop.first %}{{ '\\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    if folder.exists():
        sys.exit(f"{folder} is there already: give a new name")
    try:
        base = resolve("smol")
    except FileNotFoundError as error:  # make smol has not run
        sys.exit(str(error))
    shutil.copytree(base, folder)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": TEMPLATE}))
