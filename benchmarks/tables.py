"""Tables and pictures of what benchmarks.referee has found, from its record alone: no model, no files.

A row of a record is an environment: its tasks, and for each policy a text for each seed, with a character for each
task: 1 for success, 0, or . if the environment failed.
"""

from collections.abc import Iterator
from itertools import chain
from statistics import fmean

from rl import stats
from rl.report import picture


def values(row: dict, name: str, kind: str, against: str = "") -> tuple[list[list[int]], list[list[str]]]:
    """Return for each seed the successes of tasks, or their differences to another policy's, and the tasks' names."""
    own = row["policies"][name][kind]
    other = row["policies"][against][kind] if against else ["0" * len(row["tasks"])]
    pairs = zip(own, other * len(own) if len(other) == 1 else other, strict=True)
    finished = [[one for one in zip(*pair, row["tasks"], strict=True) if "." not in one[:2]] for pair in pairs]
    differences = [[int(a) - int(b) for a, b, _ in one] for one in finished]
    return differences, [[task for _, _, task in one] for one in finished]


def trained(row: dict, name: str) -> bool:
    """Return whether a policy is the end of a run that began from the row's start, or the run failed."""
    return "tokens" in row["policies"][name] or ("failed" in row["policies"][name] and name != row["start"])


def mean_of_seeds(row: dict, name: str) -> list[float]:
    """Return the sampled success of each seed; nothing of a policy that failed."""
    return [fmean(one) for one in values(row, name, "sampled")[0]] if "sampled" in row["policies"][name] else []


def mean_and_interval(row: dict, name: str, kind: str, against: str = "") -> tuple[float, float, float]:
    """Return (mean, low, high) of a policy's success, or of its difference to another policy: shares from 0 to 1, or -1
    to 1, and the 80 % interval over tasks and seeds."""
    by_seed, tasks = values(row, name, kind, against)
    possible = stats.DIFFERENCE if against else stats.RATE
    return fmean(chain(*by_seed)), *stats.seeds_interval(by_seed, tasks, possible)


def table(row: dict) -> Iterator[str]:
    """Yield the lines of an environment's table in markdown."""
    ran = [name for name, policy in row["policies"].items() if "failed" not in policy]
    first, begin = next((name for name in ran if trained(row, name)), ""), row["start"]
    seeds = f"{row['seeds']} seed{'s' * (row['seeds'] > 1)}"
    sizes = f"{len(row['tasks'])} held-out tasks, {len(set(row['tasks']))} distinct; {seeds}"
    gaps = [gap for policy in row["policies"].values() for gap in policy.get("sampler_gap", [])]
    agree = f"; sampler_gap {max(gaps):.1g}" if gaps else ""
    yield f"{row['env']}: {sizes}; {row['budget']:,} sampled tokens from {begin}{agree}"
    yield ""
    timed = any("seconds" in policy for policy in row["policies"].values())  # older records are not
    heads = ["rate", "tokens", *(["time", "peak"] if timed else [])]
    yield f"| | {' | '.join(heads)} | sampled | - {begin} | - {first} | greedy | - {begin} |"
    yield f"|---|{'---:|' * (5 + len(heads))}"
    for name, policy in row["policies"].items():
        if "failed" in policy:
            yield f"| {name} | failed: {policy['failed'].replace('|', '/')} {'| ' * (4 + len(heads))}|"
            continue
        cells = [name, *(spent(policy)[: len(heads)] if trained(row, name) else [""] * len(heads))]
        for kind, others in (("sampled", (begin, first)), ("greedy", (begin,))):
            cells.append("{:.1%} ({:.1%} to {:.1%})".format(*mean_and_interval(row, name, kind)))
            for other in others:
                compared = trained(row, name) and other not in ("", name)
                difference = mean_and_interval(row, name, kind, other) if compared else ()
                cells.append("{:+.1%} ({:+.1%} to {:+.1%})".format(*difference) if compared else "")
        yield f"| {' | '.join(cells)} |"


def spent(policy: dict) -> list[str]:
    """Return cells of a trained policy: its rate, and the means over seeds of its runs' tokens, minutes and peak."""
    cells = [f"{policy['lr']:g}", f"{fmean(policy['tokens']):,.0f}"]
    if "seconds" not in policy:
        return [*cells, "", ""]
    return [*cells, f"{fmean(policy['seconds']) / 60:.1f} min", f"{fmean(policy['peak_gib']):.2f} GiB"]


def drawn(row: dict) -> str:
    """Return an SVG: a line for each policy with its sampled success, interval, and a small point for each seed."""
    names = [name for name, policy in row["policies"].items() if "failed" not in policy]
    left, right, top, step = 110, 24, 70, 28
    height = top + step * len(names) + 34

    def x(rate: float) -> float:
        return left + (picture.WIDTH - left - right) * rate

    shapes = [f'<rect width="{picture.WIDTH}" height="{height}" rx="6" fill="{picture.PAPER}"/>']
    shapes.append(picture.text(left, 24, f"{row['env']}: success on held-out tasks", "start", size=15, bold=True))
    small = f"after {row['budget']:,} sampled tokens; mean and 80 % interval, a small point for each seed"
    shapes.append(picture.text(left, 46, small, "start"))
    for percent in range(0, 101, 20):
        place = x(percent / 100)
        shapes.append(f'<path d="M{place:.1f} {top - 10}V{height - 34}" stroke="{picture.GRID}"/>')
        shapes.append(picture.text(place, height - 14, f"{percent} %", "middle"))
    for number, name in enumerate(names):
        y, color = top + step * number + 8, picture.SAMPLED if trained(row, name) else picture.TRAINING
        mean, low, high = mean_and_interval(row, name, "sampled")
        shapes.append(picture.text(left - 10, y + 4, name, "end"))
        shapes.append(f'<path d="M{x(low):.1f} {y}H{x(high):.1f}" stroke="{color}" stroke-width="2"/>')
        shapes.append(f'<circle cx="{x(mean):.1f}" cy="{y}" r="5" fill="{color}"/>')
        for one in mean_of_seeds(row, name):
            shapes.append(f'<circle cx="{x(one):.1f}" cy="{y}" r="2" fill="{picture.INK}"/>')
    size = f'width="{picture.WIDTH}" height="{height}" viewBox="0 0 {picture.WIDTH} {height}"'
    body = "\n".join(shapes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">\n{body}\n</svg>\n'
