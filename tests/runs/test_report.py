"""report.html: what it shows is what the run did, hostile text stays text, and browsers draw it without an error."""

import base64
import hashlib
import json
import os
import random
import re
import resource
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import page_data, run_program
from hostile import modest

import train
from models import load_tokenizer
from rl import evaluate, stats
from rl.batch import forward, make_batch
from rl.config.arguments import ArgumentError
from rl.config.words import parse
from rl.records import Episode
from rl.report import episodes as look
from rl.report import page, paired, picture, runs
from rl.run import history, replay
from rl.serve import loading

TOKENIZER = load_tokenizer("tiny")
HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> ]]> 工具😀\u2028"
SMALL = "algo=ppo epochs=2 episodes=8 batch_size=8 max_turns=2 max_new_tokens=8 reward.rule=shaped eval_episodes=2"
SMALL += " threads=1 products=plain"


def make_episode(said: str, score: float = 1.0, env: str = "textcraft", group: int = 0, asked: str = "Go.") -> Episode:
    e = Episode(env, 7, group, outcome="correct" if score > 0 else "incorrect", success=score > 0, terminated=True)
    e.append(TOKENIZER.prompt([{"role": "user", "content": asked}]))
    ids = TOKENIZER.encode(said)
    e.append_turn(ids, [-0.1 * (i % 7) for i in range(len(ids))], "stop")
    e.turns[0].reward = score
    return e


def make_run(folder: Path, epochs: dict[int, list[Episode]], **settings) -> Path:
    """Write the files of a run with these episodes."""
    folder.mkdir()
    keys = {"algo": "ppo", "env": "textcraft", "model": "tiny", "recipe": "", "seed": 0, "epochs": 9, "episodes": 2}
    (folder / "config.json").write_text(json.dumps({**keys, **settings}))
    records = [{"epoch": n, "step": n, "seconds": 1.0, "episodes": len(own)} for n, own in epochs.items()]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    for n, own in epochs.items():
        page.add(folder, n, look.epoch_lines(TOKENIZER, n, own, {}, 10**6))
    page.write(folder)
    return folder


def texts(part: dict, number: int) -> list[str]:
    """Return the text of each token of an episode, as the page's script does."""
    found = part["shown"][number]
    start, count = found["like"]
    own = np.frombuffer(base64.b64decode(found["ids"]), "<u2").tolist()
    head = texts_of(part, start)[:count] if count else []
    return [*head, *(part["strings"][i] for i in own)]


def texts_of(part: dict, number: int) -> list[str]:
    ids = np.frombuffer(base64.b64decode(part["shown"][number]["ids"]), "<u2").tolist()
    return [part["strings"][i] for i in ids]


def near(back: float, nats: float) -> bool:
    """Return whether a number of nats has come back from its byte within half a step."""
    return abs(back - nats) < (16 * max(nats, 0)) ** 0.5 / 255 + 1e-4


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    train.main(parse([*SMALL.split(), f"out={folder}"]))
    return folder


class Elements(HTMLParser):
    """The elements of a page and the text of its scripts and styles."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), ""))

    def handle_endtag(self, tag):
        self.found.append((f"/{tag}", {}, ""))

    def handle_data(self, data):
        if self.found and self.found[-1][0] in ("script", "style"):
            tag, attributes, text = self.found[-1]
            self.found[-1] = (tag, attributes, text + data)


def test_text_of_a_model_cannot_become_script(tmp_path):
    own = [make_episode(HOSTILE, asked=HOSTILE), make_episode(HOSTILE[::-1], 0.0, group=1)]
    folder = make_run(tmp_path / "<b>run", {1: own}, env=HOSTILE)
    text = (folder / "report.html").read_text()
    (part,) = page_data(folder / "report.html", "tokens")
    assert "".join(texts(part, 1)) == TOKENIZER.show(own[0].ids_T) and HOSTILE in "".join(texts(part, 1))

    elements = Elements(text).found
    scripts = [content for tag, attributes, content in elements if tag == "script" and not attributes]
    assert len(scripts) == 1 and "alert(1)" not in scripts[0]
    assert {attributes.get("type") for tag, attributes, _ in elements if tag == "script"} == {None, "application/json"}
    assert not [tag for tag, attributes, _ in elements if tag in ("img", "b", "link", "iframe", "object", "base")]
    assert not [name for _, attributes, _ in elements for name in attributes if name.startswith("on") or name == "src"]
    assert elements.index(("html", {"lang": "en", "data-theme": "light"}, "")) == 0


def test_policy_allows_only_the_page_s_own_script_and_style(run):
    elements = Elements((run / "report.html").read_text()).found
    (policy,) = [a["content"] for tag, a, _ in elements if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    for tag in ("script", "style"):
        (text,) = [content for found, attributes, content in elements if found == tag and not attributes]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(f"{tag}-src") == f"'sha256-{digest}'"
    assert not rules and "http" not in policy


def test_the_page_holds_what_was_played_and_learned(run):
    saved = replay.read(run / "episodes.jsonl", TOKENIZER.vocab_size)
    summaries, parts = (page_data(run / "report.html", name) for name in ("episodes", "tokens"))
    assert [s["episodes"] for s in summaries] == [p["tokens"] for p in parts] == [1, 2]
    for summary, part in zip(summaries, parts, strict=True):
        own = saved[summary["episodes"]]
        for e, row in zip(own, summary["rows"], strict=True):
            env, outcome, success, score, turns, sampled, length, seed, group, shown = row
            assert (summary["envs"][env], summary["outcomes"][outcome], bool(success)) == (e.env, e.outcome, e.success)
            assert (score, turns, sampled) == (pytest.approx(e.score, rel=1e-3), len(e.turns), sum(e.action_mask_T))
            assert (length, seed, group) == (len(e.ids_T), e.seed, e.group)
            assert "".join(texts(part, shown)) == TOKENIZER.show(e.ids_T)
            assert len(texts(part, shown)) == len(e.ids_T)
            found = part["shown"][shown]
            logprobs = [-x for x, m in zip(e.logprobs_T, e.action_mask_T, strict=True) if m]
            back = look.unsqueezed(base64.b64decode(found["lp"]))
            assert all(map(near, back, logprobs))
            assert [turn[:3] for turn in found["turns"]] == [
                [t.start, t.stop, pytest.approx(t.reward, rel=1e-3)] for t in e.turns
            ]
            assert all(isinstance(turn[3], float) for turn in found["turns"]), "ppo has values"
            assert sum(count for count, _ in found["adv"]) == sampled == len(base64.b64decode(found["ent"]))
    advantages = [(n, a) for f in parts[0]["shown"] for n, a in f["adv"]]
    assert sum(n * a for n, a in advantages) == pytest.approx(0, abs=0.05), "ppo whitens them over the epoch"


def test_the_page_holds_the_episodes_of_evaluations(run):
    """Those of each temperature, on the same tasks before and after training."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [(record["epoch"], record["eval"]) for record in records if "eval" in record]
    summaries, parts = (page_data(run / "report.html", f"held-{name}") for name in ("episodes", "tokens"))
    assert [(s["episodes"], s["temperature"]) for s in summaries] == [(0, 1.0), (0, 0.0), (2, 1.0), (2, 0.0)]
    for (epoch, result), summary, part in zip(evaluations, summaries, parts, strict=True):
        assert (part["tokens"], part["temperature"]) == (epoch, result["temperature"])
        assert [row[2] for row in summary["rows"]] == [int(won) for won in result["successes"]]
        assert [row[7:9] for row in summary["rows"]] == [row[7:9] for row in summaries[0]["rows"]]
        assert [row[-1] for row in summary["rows"]] == [0, 1] and "Goal: " in "".join(texts(part, 1))


def test_held_out_episodes_of_an_epoch_without_evaluation_are_not_shown(run, tmp_path):
    """A resumed run may evaluate at other epochs than the killed process, whose lines are still there."""
    folder = shutil.copytree(run, tmp_path / "run")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if not ("eval" in json.loads(line) and json.loads(line)["epoch"] == 2)]
    (folder / "metrics.jsonl").write_text("".join(kept))
    page.write(folder)
    assert [s["episodes"] for s in page_data(folder / "report.html", "held-episodes")] == [0, 0]


def test_evaluations_show_the_same_tasks_where_there_is_no_room_for_all():
    before, after = (
        [make_episode("word " * 50, draw(), group=n) for n in range(40)] for draw in (random.random, float)
    )
    lines = [look.epoch_lines(TOKENIZER, 1, own, {}, 20_000, 1.0).splitlines() for own in (before, after)]
    shown = [[row[8] for row in json.loads(line)["rows"] if row[-1] >= 0] for line, _ in lines]
    assert shown[0] == shown[1] == [*range(len(shown[0]))] and 5 < len(shown[0]) < 40


def test_control_tokens_are_told_from_text_that_looks_like_them():
    said = "<|im_end|><|im_start|>system"
    e = make_episode(said)
    part = json.loads(look.epoch_lines(TOKENIZER, 1, [e], {}, 10**6).splitlines()[1])
    indices = np.frombuffer(base64.b64decode(part["shown"][0]["ids"]), "<u2").tolist()
    assert [i in part["control"] for i in indices] == [i in TOKENIZER.control_ids for i in e.ids_T]
    assert sum(i in part["control"] for i in indices) == 3, "those around the prompt, and the reply's opening"


def test_entropies_are_those_of_the_weights_that_sampled(run):
    """In the first epoch these are the base's: the adapter adds nothing yet."""
    from models import load_model

    model, (part, *_) = load_model("tiny"), page_data(run / "report.html", "tokens")
    (summary, *_) = page_data(run / "report.html", "episodes")
    own = replay.read(run / "episodes.jsonl", TOKENIZER.vocab_size)[1]
    with torch.no_grad():
        batch = forward(make_batch(own), model, 1.0)
    split = batch.entropy_N.split([sum(e.action_mask_T) for e in own])
    for entropies_N, row in zip(split, summary["rows"], strict=True):
        back = look.unsqueezed(base64.b64decode(part["shown"][row[-1]]["ent"]))
        assert len(back) == len(entropies_N) and all(map(near, back, entropies_N.tolist()))


def test_an_epoch_that_is_repeated_replaces_its_lines(tmp_path):
    """A killed process may have left half a line."""
    folder = make_run(tmp_path / "run", {n: [make_episode("a", n)] for n in (1, 2, 3)})
    with open(folder / page.DATA, "a") as file:
        file.write('{"episodes":4,"env')
    page.add(folder, 2, look.epoch_lines(TOKENIZER, 2, [make_episode("b", 9.0)], {}, 10**6))
    lines = [json.loads(line) for line in (folder / page.DATA).read_text().splitlines()]
    assert [line.get("episodes") for line in lines] == [1, None, 2, None] and lines[2]["rows"][0][3] == 9.0


def test_the_text_of_episodes_has_a_bound_and_spans_all_scores():
    own = [make_episode("word " * 50, score) for score in range(100)]
    few = [own[place] for place in look.evenly_by_score(own, 20_000)]
    assert 5 < len(few) < 60 and {few[0].score, few[-1].score} == {0, 99}
    lines = look.epoch_lines(TOKENIZER, 1, own, {}, 20_000).splitlines()
    assert len(lines[1]) < 20_000 and sum(row[-1] >= 0 for row in json.loads(lines[0])["rows"]) == len(few)
    assert look.evenly_by_score(own, 10**9) == [*range(len(own))] and len(look.evenly_by_score(own, 1)) == 1


def test_episodes_with_too_many_different_texts_are_listed_without_them(monkeypatch):
    monkeypatch.setattr(look, "MOST_TEXTS", 20)
    own = [make_episode(chr(0x3B1 + n), n) for n in range(20)]
    lines = [json.loads(line) for line in look.epoch_lines(TOKENIZER, 1, own, {}, 10**6).splitlines()]
    places = sorted(row[-1] for row in lines[0]["rows"] if row[-1] >= 0)
    assert len(lines[0]["rows"]) == 20 and 0 < len(places) < 20
    assert places == [*range(len(lines[1]["shown"]))] and len(lines[1]["strings"]) <= 21


def test_two_programs_may_write_a_page_at_the_same_time(tmp_path):
    """A run, and rl.report beside it."""
    path, children = tmp_path / "report.html", []
    for _ in range(2):
        children.append(os.fork())
        if not children[-1]:
            try:
                for n in range(500):
                    page.replace(path, f"{n}")
            except OSError:
                os._exit(1)
            os._exit(0)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "499"


def test_a_folder_may_have_the_name_of_a_setting(tmp_path, capsys):
    run = make_run(tmp_path / "lr=3e-3", {1: [make_episode("a")]})
    runs.main([str(run)])
    assert str(run) in capsys.readouterr().out
    assert loading.adapters(f"{run},b={run}") == {str(run): run, "b": run}


def test_a_run_over_rows_is_named_by_its_file(tmp_path):
    run = make_run(tmp_path / "a", {1: [make_episode("a")]}, algo="sft", data="rows.jsonl")
    assert runs.row(run)[1:4] == ["sft", "rows.jsonl", "tiny"]


def test_the_interval_of_grouped_episodes_counts_tasks():
    """Eight equal samples of each of two tasks say no more than two samples."""
    alone = [make_episode("a", float(i % 2), group=i) for i in range(16)]
    grouped = [make_episode("a", float(i % 2), group=i % 2) for i in range(16)]
    again = [make_episode("a", float(i % 2), group=i) for i in range(16)]
    for i, episode in enumerate(again):  # two tasks that were drawn eight times each
        episode.task = str(i % 2)
    for key in ("success", "score"):
        widths = [b[key][2] - b[key][1] for b in map(look._bands, (alone, grouped, again))]
        assert widths[1] > 1.5 * widths[0] and widths[2] == widths[1]


def test_numbers_that_are_not_finite_leave_the_page_whole(tmp_path):
    folder = make_run(tmp_path / "run", {1: [make_episode("a")]})
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 2, "step": 2, "loss": NaN, "grad_norm": Infinity}\n')
    page.write(folder)
    (shown,) = page_data(folder / "report.html", "runs")
    assert shown["metrics"][-1] == {"epoch": 2, "step": 2, "loss": None, "grad_norm": None}


def test_the_command_lists_runs_and_writes_pages(run, tmp_path):
    make_run(tmp_path / "other", {1: [make_episode("a")]})
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / page.DATA).unlink()  # a run that was made before there was one
    status, out, _ = run_program("rl/report/__main__.py", f"runs={tmp_path}")
    lines = out.splitlines()
    assert status == 0 and len(lines) == 3 and lines[0].split()[:3] == ["run", "algo", "env"]
    evaluations = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines() if '"eval"' in line]
    best = max(e["eval"]["success"] for e in evaluations if e["eval"]["temperature"])
    assert any(str(tmp_path / "run") in line and f"{best:.1%}" in line and "2 of 2" in line for line in lines)

    status, out, err = run_program(
        "rl/report/__main__.py", f"{tmp_path}/run", f"{tmp_path}/other", f"out={tmp_path}/both.html"
    )
    assert status == 0, err
    assert [r["name"] for r in page_data(tmp_path / "both.html", "runs")] == ["run", "other"]
    assert [len(s["rows"]) for s in page_data(tmp_path / "both.html", "episodes")] == [8, 8, 1]


def write_evaluations(folder: Path, successes: dict[int, list], **options) -> Path:
    """Write the files of a run that was evaluated after these epochs, sampled and greedily."""
    make_run(
        folder, {1: [make_episode("a")]}, eval_split="val", order="random", textcraft={"difficulty": "2", **options}
    )
    with open(folder / "metrics.jsonl", "a") as file:
        for epoch, won in successes.items():
            for temperature in (1.0, 0.0):
                part = {
                    "success": 0.5,
                    "low": 0.4,
                    "high": 0.6,
                    "score_mean": 0.5,
                    "turns_mean": 1,
                    "episodes": len(won),
                }
                found = {**part, "temperature": temperature, "by_env": {"textcraft": part}, "successes": won}
                file.write(f"{json.dumps({'epoch': epoch, 'step': epoch, 'eval': found})}\n")
    return folder


def write_curve(folder: Path, rates: list[float], evaluations: dict[int, tuple[float, float]]) -> Path:
    """Write the log of a run with these rates of success in training, and evaluations: epoch -> sampled, greedy."""
    make_run(folder, {})
    records = [{"epoch": n, "step": n, "accuracy": rate, "seconds": 1.0} for n, rate in enumerate(rates, 1)]
    for epoch, pair in evaluations.items():
        for temperature, rate in zip((1.0, 0.0), pair, strict=True):
            found = {"temperature": temperature, "success": rate, "low": rate - 0.1, "high": rate + 0.1}
            records.append({"epoch": epoch, "step": epoch, "eval": found})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def test_picture_has_each_evaluation_at_its_place(tmp_path, capsys):
    """Epochs go over the width between the margins, rates over the height, downwards."""
    evaluated = {"a": {0: (0.25, 0.5), 4: (0.5, 0.75)}, "b": {0: (0.3, 0.55), 4: (0.6, 0.85)}}
    folders = [write_curve(tmp_path / name, [0.2, 0.4, 0.6, 0.8], found) for name, found in evaluated.items()]
    out = tmp_path / "curve.svg"
    runs.main([*map(str, folders), f"picture={out}", "title=Two <runs> & more"])
    assert capsys.readouterr().out == f"{out}: the learning curve of 2 runs\n"
    root, name = ElementTree.fromstring(out.read_text()), "{http://www.w3.org/2000/svg}"
    circles = {tuple(float(c.get(key)) for key in ("cx", "cy")) for c in root.iter(f"{name}circle")}
    width, height = (picture.WIDTH - picture.LEFT - picture.RIGHT), (picture.HEIGHT - picture.TOP - picture.BOTTOM)
    wanted = {
        (round(picture.LEFT + width * epoch / 4, 1), round(picture.TOP + height * (1 - rate), 1))
        for found in evaluated.values()
        for epoch, pair in found.items()
        for rate in pair
    }
    assert circles == wanted and len(wanted) == 8
    words = [text.text for text in root.iter(f"{name}text")]
    assert "Two <runs> & more" in words and "epoch" in words and set(picture.LEGEND.values()) <= set(words)
    means = [line.get("points").split() for line in root.iter(f"{name}polyline")][-2:]  # sampled, greedy
    middles = [picture.TOP + height * (1 - rate) for rate in (0.275, 0.525)]
    assert [float(points[0].split(",")[1]) for points in means] == pytest.approx(middles, abs=0.06)


def test_picture_of_one_run_has_its_intervals(tmp_path):
    folder = write_curve(tmp_path / "a", [0.2, 0.4], {0: (0.25, 0.5), 2: (0.5, 0.75)})
    text = picture.learning_curve([folder])
    middle = picture.TOP + (picture.HEIGHT - picture.TOP - picture.BOTTOM) * (1 - 0.35)
    assert f'd="M{picture.LEFT:.1f} ' in text and f"V{middle:.1f}" in text and text.count("<circle") == 4


def test_picture_of_imitation_has_no_line_of_the_expert(tmp_path):
    folder = write_curve(tmp_path / "a", [1.0, 1.0], {0: (0.25, 0.5), 2: (0.5, 0.75)})
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(settings | {"algo": "sft"}))
    text = picture.learning_curve([folder])
    assert picture.TRAINING not in text and picture.LEGEND[picture.SAMPLED] in text and text.count("<polyline") == 2


def test_picture_refuses_runs_without_an_epoch_of_play(tmp_path):
    played, begun = write_curve(tmp_path / "a", [0.2], {}), write_curve(tmp_path / "b", [], {0: (0.25, 0.5)})
    with pytest.raises(ValueError, match="b has logged no epoch of play, so there is no curve to draw"):
        picture.learning_curve([played, begun])


def test_runs_side_by_side_have_their_paired_difference(tmp_path, capsys):
    """Each run's last evaluation counts, on the tasks that both finished; the interval is that of eval.py."""
    won, lost = [True] * 30 + [False] * 10, [False] * 20 + [True] * 10 + [False] * 10
    first = write_evaluations(tmp_path / "first", {0: won, 2: [*lost[:-1], None]})
    second = write_evaluations(tmp_path / "second", {0: lost, 4: [None, *won[1:], True]})
    runs.main([str(first), str(second), f"out={tmp_path}/both.html"])
    said = [line for line in capsys.readouterr().out.splitlines() if " against " in line]
    assert [line.split(":")[0] for line in said] == [
        f"second, epoch 4, against first, epoch 2, {kind}, the same 38 tasks" for kind in ("sampled", "greedy")
    ]
    differences = [float(a) - float(b) for a, b in zip(won[1:-1], lost[1:-1], strict=True)]
    low, high = stats.interval(stats.bootstrap(differences, stats.DIFFERENCE))
    assert said[0].endswith(f"better; success +50.0% (80 % interval {low:+.1%} to {high:+.1%})") and 0.3 < low < 0.5
    assert page_data(tmp_path / "both.html", "compared") == said
    assert "successes" not in (tmp_path / "both.html").read_text()


def test_a_run_has_its_paired_difference_to_before_training(tmp_path, capsys):
    """The last evaluation counts, not the best one, on the tasks that both finished; the run's own page has it too."""
    before, best, after = [False] * 30 + [True] * 10, [True] * 40, [True] * 20 + [False] * 10 + [True] * 9 + [None]
    folder = write_evaluations(tmp_path / "run", {0: before, 2: best, 4: after})
    page.write(folder)
    shown = page_data(folder / "report.html", "compared")
    low, high = stats.interval(stats.bootstrap([1] * 20 + [0] * 19, stats.DIFFERENCE))
    said = f"the same 39 tasks: better; success +51.3% (80 % interval {low:+.1%} to {high:+.1%})"
    assert shown == [f"epoch 4 against epoch 0, before training, {kind}, {said}" for kind in ("sampled", "greedy")]
    runs.main([str(folder), "markdown=true"])
    assert capsys.readouterr().out.splitlines()[-3:-1] == shown == page_data(folder / "report.html", "compared")


def test_a_resumed_run_that_plays_other_tasks_is_not_compared_on_them(tmp_path):
    """metrics.jsonl has a hash of each task: of four, the last two are others after training."""
    folder = write_evaluations(tmp_path / "run", {0: [False] * 4, 4: [True, False, True, True]})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for record in (record for record in lines if "eval" in record):
        others = "ccccccdddddd" if record["epoch"] else "eeeeeeffffff"
        record["eval"]["task_hashes"] = "aaaaaabbbbbb" + others
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    sampled, _ = paired.since_start(folder)
    assert "the same 2 tasks" in sampled and "success +50.0%" in sampled
    (folder / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text().replace("aaaaaabbbbbbcc", "0" * 14))
    assert paired.since_start(folder) == []


@pytest.mark.parametrize("epochs", [(), (0,), (2, 4)])
def test_a_run_without_two_evaluations_has_no_difference(epochs, tmp_path):
    """Nor one whose first evaluation was not before training."""
    folder = write_evaluations(tmp_path / "run", {epoch: [True, False] for epoch in epochs})
    page.write(folder)
    assert page_data(folder / "report.html", "compared") == []


def test_what_is_no_run_among_several_is_named_and_left_out(tmp_path, capsys):
    """The shell's runs/* finds files and other folders too."""
    first, second = (write_curve(tmp_path / name, [0.2, 0.4], {}) for name in ("first", "second"))
    other, file = tmp_path / "other", tmp_path / "demos.jsonl"
    other.mkdir()
    file.touch()
    for words in ([f"out={tmp_path}/all.html"], [f"picture={tmp_path}/all.svg"]):
        runs.main([str(first), str(other), str(second), str(file), *words])
        left_out = capsys.readouterr().err.splitlines()
        assert [line.split()[1] for line in left_out] == [str(other), str(file)]
        with pytest.raises(SystemExit):
            runs.main([str(first), str(tmp_path / "frist"), *words])
        assert "frist is not the folder of a run" in capsys.readouterr().err
        with pytest.raises(SystemExit):
            runs.main([str(other), str(file), *words])
        assert f"{other} is not the folder of a run" in capsys.readouterr().err
    assert [name in (tmp_path / "all.html").read_text() for name in ("second", "demos")] == [True, False]


def test_paired_difference_of_runs_draws_whole_tasks(tmp_path):
    """The same successes say less of ten tasks asked four times than of forty."""
    won, lost = [True] * 24 + [False] * 16, [False] * 40
    widths = []
    for numbers in ([], [place // 4 for place in range(40)]):
        folders = [tmp_path / f"{len(numbers)}-{name}" for name in ("first", "second")]
        for folder, successes in zip(folders, (lost, won), strict=True):
            write_evaluations(folder, {2: successes})
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            for line in (line for line in lines if numbers and "eval" in line):
                line["eval"]["task_numbers"] = numbers
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        said, _ = runs.paired_differences(folders)
        low, high = map(float, re.search(r"interval \+([\d.]+)% to \+([\d.]+)%", said).groups())
        widths.append(high - low)
    assert "the same 40 episodes of 10 tasks: better" in said and widths[1] > 1.5 * widths[0]


def test_an_evaluation_numbers_the_tasks_of_its_episodes():
    same = [make_episode("a", group=group) for group in range(3)]
    assert evaluate.task_numbers(same) == {}
    for episode, task in zip(same, "aba", strict=True):
        episode.task = task
    assert evaluate.task_numbers(same) == {"task_numbers": [0, 1, 0]}


@pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")
def test_the_page_rounds_as_the_programs_print():
    source = re.search(r"const fixed = .*?\n  };", page.asset("page.js"), re.S)[0]
    rates = [count / 400 for count in range(401)] + [count / 30 for count in range(31)]
    script = f"{source}\nprint = (x) => `${{fixed(100 * x, 1)}}% ${{fixed(100 * x, 0)}}`;"
    script += f"console.log(JSON.stringify({rates}.map(print)))"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [f"{rate:.1%} {100 * rate:.0f}" for rate in rates]


def test_runs_of_other_tasks_are_not_compared(tmp_path, run):
    first = write_evaluations(tmp_path / "first", {2: [True, False]})
    other = write_evaluations(tmp_path / "other", {2: [True, False]}, difficulty="1")
    (line,) = runs.paired_differences([first, other])
    assert line == "other against first: not the same held-out tasks: textcraft.difficulty=1, not 2"
    elsewhere = make_run(tmp_path / "elsewhere", {1: []}, env="sat", eval_split="val", order="random", sat={"k": "3"})
    (line,) = runs.paired_differences([first, elsewhere])
    assert line == "elsewhere against first: not the same held-out tasks: env=sat, not textcraft"
    (line,) = runs.paired_differences([first, write_evaluations(tmp_path / "none", {})])
    assert line == "none against first: no evaluation of both has the success of each task"
    shutil.copytree(run, tmp_path / "copy")
    for line, kind in zip(runs.paired_differences([run, tmp_path / "copy"]), ("sampled", "greedy"), strict=True):
        assert re.search(rf"{kind}, the same 2 (episodes of 1 )?tasks: no difference shown; success \+0.0%", line)


@pytest.mark.parametrize("evaluated", [True, False], ids=["evaluated", "not_evaluated"])
def test_run_killed_after_its_last_checkpoint_is_completed(evaluated, run, tmp_path):
    """The resumed process writes the line of phases and the report of the last epoch."""
    folder = shutil.copytree(run, tmp_path / "run")
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [r for r in records if r["epoch"] < 2 or not ("phases" in r or ("eval" in r and not evaluated))]
    assert len(kept) == len(records) - (1 if evaluated else 3)
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in kept))
    lines = (folder / page.DATA).read_text().splitlines(keepends=True)
    (folder / page.DATA).write_text("".join(lines[:2]))
    for _ in range(2):  # a second time adds nothing
        train.main(parse([f"resume={folder}"]))
        after = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert [list(r) for r in after] == [list(r) for r in records]
        assert list(after[-1]["phases"]) == ["load", "trial", *["evaluate"] * (not evaluated)]
    shown = page_data(folder / "report.html", "runs")[0]["metrics"]
    played = [[r["eval"]["success"] for r in found if "eval" in r] for found in (shown, records)]
    assert len(played[0]) == 4 and played[0] == played[1]
    assert [s["episodes"] for s in page_data(folder / "report.html", "episodes")] == [1, 2]


def test_best_numbers_are_of_trained_epochs():
    """Epoch 0 has no folder that could be loaded."""
    found = [{"temperature": 1.0, "success": success, "low": 0.0, "high": 1.0} for success in (0.9, 0.5, 0.6)]
    records = [{"epoch": epoch, "eval": one} for epoch, one in enumerate(found)]
    records += [{"epoch": epoch, "eval_loss": loss} for epoch, loss in enumerate((0.1, 0.3, 0.2))]
    _, before, sampled, _, loss, _ = runs.best({"epochs": 2}, records)
    assert before == "90.0%" and sampled.startswith("60.0%") and "epoch 2" in sampled and loss == "0.2000 (2)"
    assert history.best_epochs(records) == {"sampled": 2, "greedy": None, "loss": 2}


def test_the_table_of_runs_may_be_pasted_as_markdown():
    row = ["runs/x", "ppo", "sat", "tiny", "2 of 2", "50.0%", "60.0% (50 to 70, epoch 2)", "", "", "0.5"]
    head, line, first = runs.table([row], markdown=True)
    assert head == "| run | algo | env | model | epochs | before | best sampled | reward |"
    assert line == f"|{' --- |' * 8}"
    assert first == "| runs/x | ppo | sat | tiny | 2 of 2 | 50.0% | 60.0% (50 to 70, epoch 2) | 0.5 |"


@pytest.mark.parametrize(("algo", "reward"), [("sft", ""), ("grpo", "0.700")])
def test_reward_of_an_expert_is_no_number_of_the_run(algo, reward):
    records = [{"epoch": 1, "seconds": 1.0, "reward_mean": 0.7}]
    assert runs.best({"epochs": 1, "algo": algo}, records)[-1] == reward


def test_a_damaged_run_is_one_line_and_the_others_are_listed(run, tmp_path):
    shutil.copytree(run, tmp_path / "whole")
    for name, text in (("config.json", '{"algo": "ppo"}'), ("metrics.jsonl", "[]\n")):
        folder = tmp_path / f"no_{name}"
        shutil.copytree(run, folder)
        (folder / name).write_text(text)
        status, _, err = run_program("rl/report/__main__.py", str(folder))
        assert status == 2 and err.count("\n") == 1 and str(folder) in err
    status, out, _ = run_program("rl/report/__main__.py", f"runs={tmp_path}")
    assert status == 0 and out.count("damaged: ") == 2 and "2 of 2" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}/epoch_1"], "epoch_1 is not the folder of a run that has begun; runs beside it: "),
        (["{run}", "epoch=3"], "epoch=3: {run} has epochs 1 to 2"),
        (["{run}", "{run}", "epoch=1"], "epoch= is for the page of one run"),
        (["runs={run}/epoch_1"], "epoch_1: no run is there; python train.py makes one, runs=FOLDER lists others"),
        (["{run}", "out={run}/none/x.html"], "x.html cannot be written: No such file or directory"),
        (["{run}", "epochs=1"], "epochs= is not a key"),
        (["{run}", "picture=curve.png"], "picture=curve.png: a picture is an SVG file, so its name must end in .svg"),
        (["{run}", "picture={run}/none/x.svg"], "x.svg cannot be written: No such file or directory"),
        (
            ["{run}", "picture=x.svg", "epoch=1"],
            "picture= draws a picture instead of a page, so out= and epoch= do not",
        ),
        (["{run}", "title=x"], "title= is the title of a picture; name its file by picture="),
        (["picture=x.svg"], "picture= draws runs: name the folder of at least one"),
    ],
)
def test_wrong_words_are_one_line(run, words, message):
    status, _, err = run_program("rl/report/__main__.py", *(word.format(run=run) for word in words))
    assert status == 2 and err.count("\n") == 1 and err.startswith("rl.report: ")
    if "epochs=" not in words[-1]:
        assert message.format(run=run) in err


@pytest.fixture
def browser() -> str:
    return shutil.which("chromium") or shutil.which("google-chrome") or pytest.skip("no Chromium on this machine")


def drawn(browser: str, path: Path, folder: Path, fragment: str = "") -> str:
    """Return what Chromium makes of the page's main element. Fail if it prints anything on the console."""
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={folder}/profile", path.as_uri() + fragment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert 'data-ready="yes"' in done.stdout, done.stderr[-2000:]
    assert re.findall(r"CONSOLE.*", done.stderr) == []
    return done.stdout.split("<main>")[1].split("</main>")[0]


@pytest.mark.parametrize("hostile", [False, True], ids=["run", "hostile"])
def test_chromium_draws_the_page_without_an_error(browser, hostile, run, tmp_path):
    folder = make_run(tmp_path / "run", {1: [make_episode(HOSTILE, asked=HOSTILE)]}, env=HOSTILE) if hostile else run
    found = drawn(browser, folder / "report.html", tmp_path)
    assert found.count("<figure>") >= (0 if hostile else 12) and 'class="turn"' in found
    assert not re.search(r"<(img|script)", found)


def test_seeds_are_averaged_and_a_link_opens_its_episode(browser, run, tmp_path):
    """The one of a held-out task, with the choice to see it beside the same task before training."""
    again = shutil.copytree(run, tmp_path / "again")
    path = again / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": 1, "out": "again"}))
    (tmp_path / "both.html").write_text(page.page([run, again]))
    found = drawn(browser, tmp_path / "both.html", tmp_path, "#episode-1-2-1-0")
    assert "Runs that differ in their seed alone" in found
    paths = [re.search(r' d="([^"]*)"', tag)[1] for tag in re.findall(r'<path [^>]*class="line c0[^>]*>', found)]
    members = [
        re.search(r' d="([^"]*)"', tag)[1] for tag in re.findall(r'<path [^>]*class="line c0[^>]*member[^>]*>', found)
    ]
    assert len(members) >= 6 and len(paths) > len(members)
    assert {*paths} - {"M1 5H25"} == {*members}, "but for legends, the mean of a run and its copy is the run's line"
    assert re.search(r"epoch 2, held-out, sampled, seed \d+", found) and "again, epoch 0, before training" in found
    assert re.search(r'aria-current="true"(?:(?!</button>).)*class="task">[^<]+<', found), "the list marks and names it"


def test_charts_have_whole_columns_and_ticks_that_differ(browser, tmp_path):
    """Ratios of 1.0001 to 1.0007, rewards around 1, and the last of four epochs."""
    own = {n: [make_episode("a b", 0.8 + n / 10), make_episode("b")] for n in range(1, 5)}
    folder = make_run(tmp_path / "run", own)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records = [{**r, "ratio": 1.0001 + 0.0002 * n, "outcomes": {"correct": 2}} for n, r in enumerate(records)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    page.write(folder)
    charts = r'<figure>.*?<b>(.*?)</b>.*?<svg viewBox="0 0 ([\d.]+) .*?>(.*?)</svg>'
    for title, width, chart in (found := re.findall(charts, drawn(browser, folder / "report.html", tmp_path))):
        ticks = re.findall(r'class="tick"[^>]*>(.*?)<', chart)
        assert len(ticks) == len({*ticks}) and (len(ticks) > 1 or title not in ("Ratio", "Reward")), (title, ticks)
        assert "per episode" not in title or all(tick.isdigit() for tick in ticks), (title, ticks)
        ends = [float(x) + float(w) for x, w in re.findall(r'<rect [^>]*x="([\d.]+)" width="([\d.]+)"', chart)]
        assert max(ends, default=0) <= float(width), f"the last column of {title} is cut"
    assert {"Ratio", "Reward", "Outcomes"} <= {title for title, *_ in found}


def test_a_page_of_sft_shows_no_success_of_its_expert(browser, tmp_path):
    """Nor its tokens per second: the expert's episodes are not sampled."""
    own = [make_episode("a"), make_episode("b", env="sat")]
    folder = make_run(tmp_path / "run", {n: own for n in (1, 2)}, algo="sft", env="textcraft,sat")
    held_out = {"epoch": 2, "step": 2, "eval_loss": 0.5, "perplexity": 1.6, "eval_tokens": 9}
    phase = {"seconds": 1.0, "tokens": 8, "tokens_per_second": 8.0, "peak_bytes": 0}
    result = {"success": 0.5, "low": 0.4, "high": 0.6, "temperature": 1.0, "episodes": 2, "by_env": {}}
    records = [held_out, {"epoch": 2, "step": 2, "eval": result}]
    records += [{"epoch": n, "step": n, "phases": {"collect": phase, "learn": phase}} for n in (1, 2)]
    with open(folder / "metrics.jsonl", "a") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in records)
    page.write(folder)
    found = drawn(browser, folder / "report.html", tmp_path)
    assert "held-out tasks, sampled" in found and "tokens learned per second" in found
    assert not re.search("training tasks|Success in|training success|tokens sampled per second", found)


def processor_seconds() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    own, ended = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


@pytest.mark.full
def test_report_of_10000_episodes_takes_two_seconds(browser, tmp_path):
    """Of processor time, with as much text as a page holds; what Chromium takes for an empty page is subtracted."""
    draw, words = random.Random(0), ["get", "3", "oak", "log", "craft", "4", "planks", "using", "inventory"]
    own = [make_episode(" ".join(draw.choices(words, k=200)), draw.random(), group=n) for n in range(500)]
    folder = make_run(tmp_path / "run", {n: own for n in range(1, 21)})
    (tmp_path / "empty.html").write_text("<!doctype html><html><body></body></html>")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"--user-data-dir={tmp_path}/p"]
    seconds = []
    for name in ("empty.html", "empty.html", "run/report.html"):  # the first makes the browser's profile
        before = processor_seconds()
        if name != "empty.html":
            page.write(folder)
        done = subprocess.run([*command, (tmp_path / name).as_uri()], capture_output=True, text=True, timeout=60)
        seconds.append(processor_seconds() - before)
    assert 'data-ready="yes"' in done.stdout and (folder / "report.html").stat().st_size > 8 * 2**20
    assert sum(len(found["rows"]) for found in page_data(folder / "report.html", "episodes")) == 10_000
    assert seconds[2] - seconds[1] < 2, seconds


WRONG_SHOWN = [{"turns": [[0, 10**7, 0, 1.0, "stop"]]}, {"adv": [[10**7, 1.0]]}, {"adv": [["x", 1.0]]}, {"adv": 3}]
WRONG_SHOWN += [
    {"ent": "é"},
    {"ent": 3},
    {"turns": [[0]]},
    {"turns": [["0", "1", 0, 1.0, "stop"]]},
    {"adv": [[-1, 1.0]]},
]


@pytest.mark.parametrize("wrong", [*WRONG_SHOWN, None, [], "x"], ids=str)
def test_damaged_data_of_a_report_says_nothing_of_its_episodes(wrong):
    """The numbers of tokens in it are a stranger's."""
    e = make_episode("craft 1 door")
    first, second = look.epoch_lines(TOKENIZER, 1, [e], {}, 10**6).splitlines()
    assert look.learned_before([first, second], [e])
    table = json.loads(second)
    table["shown"][0] = {**table["shown"][0], **wrong} if isinstance(wrong, dict) else wrong
    with modest(megabytes=50):
        assert not look.learned_before([first, json.dumps(table)], [e])
    assert not look.learned_before(["[" * 100_000, second], [e])


WRONG_SETTINGS = [{"env": 3}, {"env": "nowhere"}, {"textcraft": 3}, {"epochs": 0}, {"epochs": "9"}, {"algo": []}]


@pytest.mark.parametrize("wrong", WRONG_SETTINGS, ids=str)
def test_settings_of_another_kind_are_named_as_damaged(wrong, tmp_path, capsys):
    runs_here = [make_run(tmp_path / name, {1: [make_episode("a")]}) for name in ("x", "y")]
    path = runs_here[0] / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    assert f"{tmp_path}/x  damaged: " in "\n".join(runs.listed(tmp_path))
    page = tmp_path / "page.html"
    with pytest.raises(ArgumentError, match=rf"^{tmp_path}/x is damaged: [^\n]+$"):
        runs.write(runs_here[:1], runs.Keys(out=str(page)))
    with pytest.raises(ArgumentError, match="/x is damaged"):
        runs.write([runs_here[0]] * 2, runs.Keys(out=str(page)))
    assert not page.exists()
    with pytest.raises(ValueError, match="/y has logged no epoch of play"):  # nor is the damaged one drawn
        runs.draw(runs_here, runs.Keys(picture=str(tmp_path / "curve.svg")))
    assert "is damaged" in capsys.readouterr().err
    _, line, *_ = runs.write(runs_here, runs.Keys(out=str(page)))
    said = capsys.readouterr().err
    assert line.startswith(f"{tmp_path}/y  ") and page.exists(), "one damaged run of several is left out"
    assert said.startswith(f"rl.report: {tmp_path}/x is damaged: ") and said.endswith("; it is left out\n")
