"""report.html: a curve's axes are labelled with its true bounds."""

import json
import re
from xml.etree import ElementTree

from models import load_tokenizer
from rl.report import write_report


def test_axes_say_the_true_bounds_of_a_curve(tmp_path):
    rows = [{"epoch": 2, "reward_mean": 0.25, "lr": 0.1}, {"epoch": 3, "reward_mean": -1.5, "lr": 0.1}]
    rows += [{"epoch": 7, "reward_mean": 0.75, "lr": 0.1, "loss": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_report(tmp_path, load_tokenizer("tiny"), [])
    figures = re.findall("<figure>(<svg.*?</svg>)<figcaption>(.*?):", (tmp_path / "report.html").read_text())
    drawn = {name: ElementTree.fromstring(svg) for svg, name in figures}
    assert drawn.keys() == {"reward_mean", "lr"}, "one point is no curve"

    lines = (line.get("points").split() for line in drawn["reward_mean"].iter("polyline"))
    axes, curve = ([tuple(map(float, point.split(","))) for point in line] for line in lines)
    (left, top), corner, (right, bottom) = axes
    assert corner == (left, bottom) and left < right and top < bottom
    second = left + (right - left) / 5  # epoch 3, of 2 to 7
    assert curve == [(left, round(top + (bottom - top) * 0.5 / 2.25, 1)), (round(second, 1), bottom), (right, top)]
    said = {mark.text: (float(mark.get("x")), float(mark.get("y"))) for mark in drawn["reward_mean"].iter("text")}
    assert said.keys() == {"-1.5", "0.75", "epoch 2", "7"}
    assert said["-1.5"][1] == bottom and abs(said["0.75"][1] - top) < 5, "each at its height"
    assert said["epoch 2"][0] == left and said["7"][0] == right
    assert [mark.text for mark in drawn["lr"].iter("text")] == ["0.1", "epoch 2", "7"], "a level line has one height"
