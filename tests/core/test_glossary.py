"""The glossary names every metric that a run writes."""

import json
import re
from pathlib import Path

import pytest

import train
from rl.config.words import parse

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
SMALL = "episodes=8 batch_size=8 epochs=1 max_new_tokens=4 eval_episodes=1 textcraft.max_turns=1 lora.r=4 threads=1"


def names(record: dict) -> set[str]:
    """Return the names in a line of metrics.jsonl, those of a nested evaluation included."""
    nested = [record["eval"]] if "eval" in record else []
    nested += record.get("by_env", {}).values()
    nested += [record["phases"]] if "phases" in record else []
    own = {"env/NAME" if name.startswith("env/") else name for name in record}
    return own.union(*map(names, nested))


OPD = "algo=opd opd.privileged=true opd.top_k=2 opd.gate=1"


@pytest.mark.parametrize(
    "words", ["algo=sft", "algo=ppo", "algo=grpo grpo.kl_coef=0.1 env=planner", "algo=gigpo gigpo.echo_coef=0.1", OPD]
)
def test_every_metric_of_a_run_is_in_the_glossary(words, tmp_path):
    train.main(parse([*words.split(), *SMALL.split(), f"out={tmp_path}/run"], "train.py"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    written = set().union(*(names(json.loads(line)) for line in lines))
    first_cells = re.findall(r"^\|([^|]*)\|", GLOSSARY.read_text(), re.M)
    assert written - set(re.findall(r"`([\w/]+)`", " ".join(first_cells))) == set()


def test_every_metric_of_the_glossary_is_written_somewhere():
    """A name that no code has is one that was renamed or removed."""
    text = GLOSSARY.read_text().split("\n## Metrics")[1].split("\n## ")[0]
    names = {name for cell in re.findall(r"^\|([^|]*)\|", text, re.M) for name in re.findall(r"`([\w/]+)`", cell)}
    source = "".join(path.read_text() for path in [ROOT / "train.py", ROOT / "eval.py", *(ROOT / "rl").rglob("*.py")])
    assert len(names) > 60 and {n for n in names - {"env/NAME"} if not re.search(rf"\b{n}\b", source)} == set()
