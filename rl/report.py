"""report.html of a run: curves of its metrics and episodes to read, in one file without scripts or links."""

import html
import json
from pathlib import Path

from models import Tokenizer
from rl import ranks
from rl.guard.files import write_text
from rl.records import Episode

CURVES = ("reward_mean", "accuracy", "entropy", "approx_kl", "clip_fraction", "loss", "value_loss", "grad_norm", "lr")
CURVES += ("eval_loss", "perplexity", "reference_kl", "kl_coef")
STYLE = """body{font:15px/1.5 sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#222}
figure{display:inline-block;margin:0 1.5em 1em 0}figcaption{font-size:13px;color:#555}
svg{background:#f6f6f4;font-size:11px}
pre{white-space:pre-wrap;background:#f6f6f4;padding:.8em}b.act{background:#dfe9d8}table{border-collapse:collapse}
td,th{padding:.2em 1em .2em 0;text-align:left}"""


@ranks.first_only
def write_report(folder: Path, tokenizer: Tokenizer, episodes: list[Episode]) -> None:
    """Write folder/report.html from folder/metrics.jsonl and the newest episodes."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    phases = [r["phases"] for r in records if r.keys() == {"epoch", "step", "phases"}]
    names = (*CURVES, *dict.fromkeys(name for r in records for name in r if name.startswith("env/")))
    curves = [(name, [(r["epoch"], r[name]) for r in records if name in r]) for name in names]
    rows = "".join(_evaluation(r["epoch"], r["eval"]) for r in records if "eval" in r)
    head = "<tr><th>epoch<th>play<th>success<th>80 % interval<th>tasks</tr>"
    page = [
        f"<!doctype html><meta charset=utf-8><title>{html.escape(folder.name)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(folder.name)}</h1>",
        f"<h2>Held-out tasks</h2><table>{head}{rows}</table>",
        "<h2>Training</h2>" + "".join(_curve(name, points) for name, points in curves if len(points) > 1),
        f"<h2>Phases</h2><table><tr><th>phase<th>seconds<th>tokens/s<th>peak GiB</tr>{_phases(phases)}</table>",
        "<h2>Episodes of the last epoch</h2><p>What the agent wrote is marked; the rest it read.</p>",
        *(_episode(tokenizer, episode) for episode in episodes),
    ]
    write_text(folder / "report.html", "\n".join(page) + "\n")


def _evaluation(epoch: int, e: dict) -> str:
    play = "greedy" if e["temperature"] == 0 else "sampled"
    interval = f"{e['low']:.1%} to {e['high']:.1%}"
    return f"<tr><td>{epoch}<td>{play}<td>{e['success']:.1%}<td>{interval}<td>{e['episodes']} of {e['split']}</tr>"


def _phases(lines: list[dict]) -> str:
    """Return a table's row for each phase: seconds in all, tokens per second, the most memory held."""
    rows = ""
    for name in dict.fromkeys(name for line in lines for name in line):
        parts = [line[name] for line in lines if name in line]
        seconds, tokens = (sum(part[key] for part in parts) for key in ("seconds", "tokens"))
        peak = max(part["peak_bytes"] for part in parts) / 2**30
        rows += f"<tr><td>{name}<td>{seconds:,.1f}<td>{f'{tokens / seconds:,.0f}' * (tokens > 0)}<td>{peak:.2f}</tr>"
    return rows


def _curve(name: str, points: list[tuple[float, float]]) -> str:
    """Return the curve through points (epoch, value) as an SVG."""
    low, high = min(y for _, y in points), max(y for _, y in points)
    first, last = points[0][0], points[-1][0]
    left, right, top, bottom = 50, 292, 12, 90  # the axes, in pixels
    xs = [left + (x - first) / ((last - first) or 1) * (right - left) for x, _ in points]
    ys = [bottom - (y - low) / ((high - low) or 1.0) * (bottom - top) for _, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    marks = [
        f'<polyline points="{left},{top} {left},{bottom} {right},{bottom}" fill="none" stroke="#999"/>',
        f'<text x="{left - 4}" y="{bottom}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{left}" y="104">epoch {first:g}</text>',
        f'<text x="{right}" y="104" text-anchor="end">{last:g}</text>',
        f'<polyline points="{path}" fill="none" stroke="#3b6ea5" stroke-width="1.5"/>',
    ]
    if high > low:
        marks.append(f'<text x="{left - 4}" y="{top + 4}" text-anchor="end">{high:.3g}</text>')
    caption = f"<figcaption>{name}: {points[0][1]:.3g} to {points[-1][1]:.3g}</figcaption>"
    return f'<figure><svg width="300" height="110">{"".join(marks)}</svg>{caption}</figure>'


def _episode(tokenizer: Tokenizer, episode: Episode) -> str:
    parts, at = [], 0
    for turn in episode.turns:
        parts.append(html.escape(tokenizer.show(episode.ids_T[at : turn.start])))
        said = html.escape(tokenizer.show(episode.ids_T[turn.start : turn.stop]))
        parts.append(f'<b class=act title="reward {turn.reward:g}">{said}</b>')
        at = turn.stop
    head = f"{episode.env}, seed {episode.seed}: {episode.outcome}, score {episode.score:g}, {len(episode.turns)} turns"
    return f"<h3>{html.escape(head)}</h3><pre>{''.join(parts)}{html.escape(tokenizer.show(episode.ids_T[at:]))}</pre>"
