"""A learning curve as an SVG file: success over epochs, of one run or of several seeds of it."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import fmean

from rl.config.refusals import Refusal
from rl.run import history

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 74, 48  # margins
PAPER, INK, GRID = "#ffffff", "#1f2328", "#d8dee4"  # the paper is drawn, so that a dark page does not hide the ink
TRAINING, SAMPLED, GREEDY = "#8c959f", "#0969da", "#bc4c00"  # told apart by every kind of colour vision
LEGEND = {TRAINING: "training tasks, sampled", SAMPLED: "held-out tasks, sampled", GREEDY: "held-out tasks, greedy"}

Curve = dict[int, float]  # epoch -> rate of success


def learning_curve(folders: Sequence[Path], title: str = "") -> str:
    """Return the SVG of the runs in these folders, with the folders' names as its title unless one is given.

    A line is the mean over the runs in the epochs that all of them have. Thin lines are each run's training episodes,
    points each run's evaluations. One run's sampled evaluations have their intervals.
    Raise ValueError if a run has not finished an epoch of play.
    """
    runs = [history.records(folder) for folder in folders]
    imitates = [history.settings(folder).get("algo") == "sft" for folder in folders]
    training = [{record["epoch"]: record["accuracy"] for record in run if "accuracy" in record} for run in runs]
    for folder, curve in zip(folders, training, strict=True):
        if not curve:
            raise Refusal(f"{folder} has logged no epoch of play, so there is no curve to draw")
    last = max(epoch for curve in training for epoch in curve)

    def place(epoch: int, rate: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * epoch / last
        return x, TOP + (HEIGHT - TOP - BOTTOM) * (1 - rate)

    def line(curve: Curve, color: str, width: float) -> str:
        points = " ".join("{:.1f},{:.1f}".format(*place(epoch, rate)) for epoch, rate in sorted(curve.items()))
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>'

    shapes = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{PAPER}"/>', *_axes(last, place)]
    own = [curve for curve, experts in zip(training, imitates, strict=True) if not experts]  # sft's are an expert's
    if len(own) > 1:
        shapes += [f'<g opacity="0.45">{line(curve, TRAINING, 1)}</g>' for curve in own]
    shapes += [line(_mean(own), TRAINING, 2.5)] if own else []
    for color, greedy in ((SAMPLED, False), (GREEDY, True)):
        results = [history.results(run, greedy) for run in runs]
        curves = [{epoch: result["success"] for epoch, result in run.items()} for run in results]
        if len(runs) == 1 and not greedy:
            for epoch, result in results[0].items():
                (x, low), (_, high) = place(epoch, result["low"]), place(epoch, result["high"])
                shapes.append(f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{color}" stroke-width="1.5"/>')
        shapes.append(line(_mean(curves), color, 2.5))
        for curve in curves:
            for x, y in (place(epoch, rate) for epoch, rate in sorted(curve.items())):
                fill = PAPER if greedy else color
                shapes.append(
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}" stroke="{color}" stroke-width="1.5"/>'
                )
    shapes.append(text(LEFT, 24, title or ", ".join(map(str, folders)), "start", size=15, bold=True))
    drawn = {color: name for color, name in LEGEND.items() if own or color != TRAINING}
    for number, (color, name) in enumerate(drawn.items()):
        x = LEFT + 206 * number
        shapes.append(f'<path d="M{x} 44h22" stroke="{color}" stroke-width="3"/>')
        shapes.append(text(x + 28, 48, name, "start"))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    body = "\n".join(shapes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n{body}\n</svg>\n'


def _mean(curves: list[Curve]) -> Curve:
    """Return the mean of the curves in the epochs that all of them have."""
    shared = set.intersection(*map(set, curves))
    return {epoch: fmean(curve[epoch] for curve in curves) for epoch in shared}


def _axes(last: int, place: Callable[[int, float], tuple[float, float]]) -> list[str]:
    """Return grid lines and ticks, at most eleven of epochs, and the names of both axes."""
    shapes = []
    for percent in range(0, 101, 20):
        _, y = place(0, percent / 100)
        shapes.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        shapes.append(text(LEFT - 8, y + 4, f"{percent} %", "end"))
    steps = [step for step in (1, 2, 4, 5, 8, 10, 20, 25, 50, 100, 200, 500, 10**9) if last / step <= 10]
    step = next((step for step in steps if last % step == 0), steps[0])  # rather one that meets the last epoch
    for epoch in range(0, last + 1, step):
        shapes.append(text(place(epoch, 0)[0], HEIGHT - BOTTOM + 18, str(epoch), "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    shapes.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "epoch", "middle"))
    shapes.append(f'<g transform="rotate(-90 16 {middle})">{text(16, middle, "episodes with success", "middle")}</g>')
    return shapes


def text(x: float, y: float, text: str, anchor: str, size: int = 12, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    style = f'font-size="{size}" fill="{INK}" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
