"""A learning curve as an SVG file: success over epochs, of one run or of several seeds of it.

Thin lines are the runs' own training episodes, the thick line is their mean. Points are evaluations on held-out tasks,
averaged over the runs: filled ones sampled, with the mean of the runs' intervals, hollow ones greedy.
"""

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from rl.config.refusals import Refusal
from rl.run import history

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44  # margins
INK, LINE, GREEDY, GRID = "#1f2328", "#0969da", "#bc4c00", "#d0d7de"


def learning_curve(folders: Sequence[Path], title: str = "") -> str:
    """Return the SVG of the runs in these folders. Raise ValueError if none has finished an epoch of play."""
    runs = [history.records(folder) for folder in folders]
    training = [{r["epoch"]: r["accuracy"] for r in records if "accuracy" in r} for records in runs]
    evaluations: dict[bool, dict[int, list[dict]]] = {True: defaultdict(list), False: defaultdict(list)}
    for record in (record for records in runs for record in records if "eval" in record):
        evaluations[record["eval"]["temperature"] > 0][record["epoch"]].append(record["eval"])
    last = max((epoch for curve in training for epoch in curve), default=0)
    if not last:
        raise Refusal(f"no epoch of play is logged in {', '.join(map(str, folders))}, so there is no curve to draw")

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * epoch / last

    def y(rate: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate)

    def line(curve: dict[int, float], width: float, opacity: float) -> str:
        points = " ".join(f"{x(epoch):.1f},{y(rate):.1f}" for epoch, rate in sorted(curve.items()))
        style = f'fill="none" stroke="{LINE}" stroke-width="{width}" opacity="{opacity}"'
        return f'<polyline points="{points}" {style}/>'

    shapes = []
    for percent in range(0, 101, 20):
        shapes.append(f'<path d="M{LEFT} {y(percent / 100):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        shapes.append(_text(LEFT - 8, y(percent / 100) + 4, f"{percent} %", "end"))
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 10**9) if last / step <= 10)
    shapes += [_text(x(epoch), HEIGHT - BOTTOM + 18, str(epoch), "middle") for epoch in range(0, last + 1, step)]
    shapes.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "epoch", "middle"))
    shared = set.intersection(*(set(curve) for curve in training))
    if len(runs) > 1:
        shapes += [line(curve, 1, 0.35) for curve in training]
    shapes.append(line({epoch: fmean(curve[epoch] for curve in training) for epoch in shared}, 2.5, 1))
    for sampled, by_epoch in evaluations.items():
        for epoch, results in sorted(by_epoch.items()):
            low, rate, high = (fmean(result[name] for result in results) for name in ("low", "success", "high"))
            if sampled:
                shapes.append(
                    f'<path d="M{x(epoch):.1f} {y(low):.1f}V{y(high):.1f}" stroke="{INK}" stroke-width="1.5"/>'
                )
            fill, stroke = (INK, INK) if sampled else ("#ffffff", GREEDY)
            circle = f'cx="{x(epoch):.1f}" cy="{y(rate):.1f}" r="4.5" fill="{fill}" stroke="{stroke}" stroke-width="2"'
            shapes.append(f"<circle {circle}/>")
    seeds = f"{len(runs)} runs" if len(runs) > 1 else "one run"
    legend = f"line: training success, {seeds}; filled: held-out tasks, sampled, with interval; hollow: greedy"
    shapes.append(_text(LEFT, 16, title or ", ".join(str(folder) for folder in folders), "start", bold=True))
    shapes.append(_text(LEFT, 32, legend, "start"))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    body = "\n".join([f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', *shapes])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{body}\n</svg>\n'


def _text(x: float, y: float, text: str, anchor: str, bold: bool = False) -> str:
    style = f'font-family="sans-serif" font-size="12" fill="{INK}" text-anchor="{anchor}"'
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}{weight}>{escape(text)}</text>'
