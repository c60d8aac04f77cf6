"""python -m benchmarks.referee and benchmarks.learn: equal terms for every algorithm, and what tables say of them."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import learn, page, record, referee, tables
from rl.config.arguments import split
from rl.run.files import append

pytestmark = pytest.mark.all_only

TASKS = 10
SOLVED = {"base": 3, "ppo": 4, "grpo": 8}  # of ten tasks; an algorithm solves one more with each seed


class Programs:
    """Stands in for train.py and eval.py: writes what they leave, and keeps their words. `killed` runs leave a
    checkpoint and end with status 1; grpo fails at a rate above `fails_from`."""

    def __init__(self):
        self.trained, self.played, self.killed, self.solved, self.fails_from = [], [], set(), dict(SOLVED), 1.0

    def call(self, command: list[str], log) -> int:
        words = split(command[1:])
        return (self.train if command[0] == "train.py" else self.play)(words, log)

    def train(self, words: dict[str, str], log) -> int:
        folder = Path(words.get("out") or words["resume"])
        self.trained.append(words)
        (folder / "checkpoint-0").mkdir(parents=True, exist_ok=True)
        if float(words.get("lr", 0)) > self.fails_from or folder.name in self.killed:
            log.write("train.py: it | failed\n")
            return 1
        (folder / "epoch_2").mkdir()
        (folder / "epoch_2" / "adapter_config.json").write_text("{}")
        phases = {"phases": {"learn": {"peak_bytes": 2**30}, "save": {"peak_bytes": 2**29}}}
        lines = [{"epoch": n, "sampled_tokens": 60, "seconds": 45.0, "sampler_gap": n * 1e-6} for n in (1, 2)]
        append(folder / "metrics.jsonl", [*lines, {"epoch": 2} | phases])
        return 0

    def play(self, words: dict[str, str], log) -> int:
        self.played.append(words)
        name, _, seed = Path(words["json"]).stem.rpartition("-")
        count = self.solved.get(name or "base", 5) + (int(seed) if seed in "012" and name else 0)
        if words["split"] == "train":  # the folder is ALGO-lr-RATE, and the middle rate is best
            count = 9 if seed == "0.003" else 1
        tasks = [{"env": words["env"], "seed": n, "task": f"t{n}", "success": [int(n < count)]} for n in range(TASKS)]
        one = {"success": count / TASKS, "split": words["split"], "tasks": tasks}
        Path(words["json"]).write_text(json.dumps({"results": {words["adapter"]: [one, one]}}))
        return 0


@pytest.fixture
def programs(monkeypatch) -> Programs:
    found = Programs()
    monkeypatch.setattr(referee.pipeline, "call", found.call)
    return found


def run(tmp_path, *words: str) -> dict:
    """Return the record of two algorithms on SAT, unless words say otherwise."""
    usual = ["algos=ppo,grpo", "envs=sat", "seeds=2", f"runs={tmp_path}/runs", f"out={tmp_path}/table.json"]
    referee.main([*usual, *words])
    return json.loads((tmp_path / "table.json").read_text())


def without(words: dict[str, str], *keys: str) -> dict[str, str]:
    return {key: value for key, value in words.items() if key not in keys}


def test_every_algorithm_plays_the_same_tasks_and_has_the_same_budget(programs, tmp_path):
    run(tmp_path, f"algos={','.join(referee.COMPARED)}", "seeds=1", "tokens=100")
    assert len(programs.trained) == len(referee.COMPARED) == len(programs.played) - 1
    assert {words["max_sampled_tokens"] for words in programs.trained} == {"100"}
    shared = [without(words, "adapter", "json") for words in programs.played]
    assert all(words == shared[0] for words in shared) and shared[0]["split"] == "test"
    by_algo = {Path(words["out"]).name: words for words in programs.trained}
    assert by_algo["dapo-0"]["max_new_tokens"] == shared[0]["max_new_tokens"] == "48", "not the recipe's 32"


def test_cells_are_rates_and_paired_differences(programs, tmp_path, capsys):
    (row,) = run(tmp_path)["rows"]
    assert row["policies"]["grpo"]["sampled"] == ["1111111100", "1111111110"] and row["start"] == "base"
    assert row["policies"]["grpo"]["tokens"] == [120, 120]
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert any(line.startswith("sat: ") and line.endswith("from base; sampler_gap 2e-06") for line in lines)
    cells = next(line for line in lines if line.startswith("| grpo")).split(" | ")
    assert cells[2:5] == ["120", "1.5 min", "1.00 GiB"]
    assert [cell.split(" ")[0] for cell in cells[5:8]] == ["85.0%", "+55.0%", "+40.0%"]
    value, low, high = tables.mean_and_interval(row, "grpo", "sampled", "ppo")
    assert value == 0.4 and 0 < low < 0.4 < high < 0.7
    worse = tables.mean_and_interval(row, "ppo", "sampled", "grpo")
    assert worse == pytest.approx((-0.4, -high, -low), abs=0.05), "differences may be negative"
    svg = (tmp_path / "table-sat.svg").read_text()
    assert all(f">{name}<" in svg for name in SOLVED)
    printed = capsys.readouterr().out
    referee.main([f"table={tmp_path}/table.json"])
    assert capsys.readouterr().out in printed, "from the record alone"


def test_results_of_other_tasks_are_refused(programs, tmp_path, monkeypatch, capsys):
    run(tmp_path)
    path = tmp_path / "runs" / "sat" / "grpo-1.json"
    path.write_text(path.read_text().replace('"seed": 3', '"seed": 33'))
    with pytest.raises(SystemExit):
        run(tmp_path)
    assert "played different tasks" in capsys.readouterr().err


def test_what_is_done_is_not_repeated_and_a_killed_run_goes_on(programs, tmp_path, capsys):
    programs.killed = {"grpo-1"}
    with pytest.raises(SystemExit) as end:
        run(tmp_path)
    assert end.value.code == 1
    table = (tmp_path / "table.md").read_text()
    assert (
        "| grpo | failed: train.py: it / failed |" in table
        and "| ppo | 0.003 | 120 | 1.5 min | 1.00 GiB | 45.0%" in table
    )
    programs.trained.clear(), programs.played.clear(), programs.killed.clear()
    run(tmp_path)
    assert programs.trained == [{"resume": f"{tmp_path}/runs/sat/grpo-1"}] and len(programs.played) == 1


def test_a_weak_base_learns_from_the_expert_once_for_each_seed(programs, tmp_path):
    programs.solved["base"] = 0
    (row,) = run(tmp_path, "lr=1e-3")["rows"]
    assert row["start"] == "sft" and len(row["policies"]["sft"]["sampled"]) == 2
    sft = [words for words in programs.trained if words.get("algo") == "sft"]
    assert [words["seed"] for words in sft] == ["0", "1"] and "lr" not in sft[0], "lr= is RL's"
    for words in programs.trained[2:]:
        assert words["resume_from"] == f"{tmp_path}/runs/sat/sft-{words['seed']}/epoch_2"


def test_rates_are_tuned_on_training_tasks_alone(programs, tmp_path):
    """Three rates for each algorithm, with a seed that is not compared; a rate that fails has no success."""
    programs.fails_from = 0.005
    (row,) = run(tmp_path, "tune=lr")["rows"]
    tuning = [words for words in programs.trained if words["seed"] == "1000"]
    assert [words["lr"] for words in tuning] == ["0.0009", "0.003", "0.009"] * 2
    assert {words["split"] for words in programs.played if "-lr-" in words["json"]} == {"train"}
    assert {words["lr"] for words in programs.trained if words["seed"] != "1000"} == {"0.003"}
    assert row["policies"]["ppo"]["tuning"] == {"0.0009": 0.1, "0.003": 0.9, "0.009": 0.0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["algos=ppo,grop"], "algos: no 'grop'; choose from: ppo, ppo-token, grpo, "),
        (["envs=sat,sat"], "envs: sat is named twice"),
        (["recipe=dapo"], "recipe= is not yours to give"),
        (["tune=lr", "lr=1e-3"], "tune=lr looks for the rate"),
        (["rates=1,2"], "rates=1,2: three different factors"),
        (["episodes=100"], "episodes=100 must be a multiple of grpo.group_size=8"),
        (["tokens=5"], "choose another runs="),
        (["out=."], "out=. is a folder; give the name of a file"),
    ],
)
def test_wrong_words_are_one_line_before_anything_runs(words, said, programs, tmp_path, capsys):
    (tmp_path / "runs" / "sat").mkdir(parents=True)
    (tmp_path / "runs" / "sat" / "ppo.txt").write_text("algo=ppo")
    with pytest.raises(SystemExit) as end:
        run(tmp_path, *words)
    err = capsys.readouterr().err
    assert end.value.code == 2 and err.count("\n") == 1 and err.startswith("benchmarks.referee: ") and said in err
    assert not programs.trained and not programs.played


# ---- make learn ----


def learned(tmp_path, *words: str) -> None:
    learn.main([f"table={tmp_path}/learn.json", f"runs={tmp_path}/{len(list(tmp_path.iterdir()))}", *words])


def test_learn_names_the_rows_that_are_clearly_below(programs, tmp_path, capsys):
    learned(tmp_path, "write=true")
    table = json.loads((tmp_path / "learn.json").read_text())
    assert str(tmp_path) not in table["command"] and "load_1min" not in table["machine"], "of one machine"
    names = {(row["env"], name) for row in table["rows"] for name in row["policies"]}
    assert {env for env, _ in names} == set(learn.TWELVE) and {(learn.ENV, name) for name in referee.ALGOS} < names
    learned(tmp_path)
    assert learn.BELOW not in capsys.readouterr().out
    programs.solved["ppo"] = 0
    with pytest.raises(SystemExit) as end:
        learned(tmp_path)
    below = [line for line in capsys.readouterr().out.splitlines() if line.endswith(learn.BELOW)]
    assert end.value.code == 1 and len(below) == 1 and below[0].startswith("textcraft       ppo ")


def test_the_committed_table_has_every_algorithm_and_environment():
    table = json.loads(Path(learn.TABLE).read_text())
    rows = {row["env"]: row["policies"] for row in table["rows"]}
    assert rows.keys() == set(learn.TWELVE) and rows[learn.ENV].keys() == {"base", *referee.ALGOS}
    for policies in rows.values():
        assert all(len(policy["sampled"]) == learn.SEEDS for name, policy in policies.items() if name != "base")
        assert "grpo" in policies and len(policies["base"]["sampled"]) == 1
    assert not any(
        line.endswith(learn.BELOW) or "lacks" in line for line in learn.compared(table["rows"], table["rows"])
    )


def test_learn_without_a_table_says_how_to_make_it(programs, tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        learned(tmp_path)
    assert end.value.code == 2 and "python -m benchmarks.learn write=true makes it" in capsys.readouterr().err
    assert not programs.trained


def test_the_page_of_results_has_the_tables_of_its_records(tmp_path, monkeypatch, programs):
    page.main(["check=true"])
    run(tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(page, "RECORDS", tmp_path)
    tables = "<!-- table.json -->\n| old |\n<!-- end -->\nbetween\n<!-- table.json in rows -->\n<!-- end -->\n"
    tables += "<!-- table.json table.json in columns -->\n<!-- end -->\n"
    page.PAGE.write_text(f"before\n{tables}after\n")
    with pytest.raises(SystemExit):
        page.main(["check=true"])
    page.main([])
    assert "| old |" not in page.PAGE.read_text() and "| grpo | 0.003 | 120 |" in page.PAGE.read_text()
    assert "| `sat` | 10 | 30.0% (" in page.PAGE.read_text().partition("between")[2]
    assert re.search(r"^\| grpo \|( [\d.]+% \([^|]*; [\d.]+% \| [+-][^|]*\|){2}$", page.PAGE.read_text(), re.MULTILINE)
    assert page.PAGE.read_text().startswith("before\n") and page.PAGE.read_text().endswith("\nafter\n")
    page.main(["check=true"])


def test_a_row_says_why_a_policy_failed(programs, tmp_path):
    record = run(tmp_path)
    record["rows"][0]["policies"]["grpo"] = {"failed": "out of memory | rank 1"}
    (row,) = (line for line in page.table_in_rows(record["rows"]) if line.startswith("| `sat`"))
    assert "failed: out of memory / rank 1" in row and row.count("|") == 8


def test_the_table_in_columns_has_the_cells_of_the_table_in_rows(programs, tmp_path):
    rows = [dict(run(tmp_path)["rows"][0], env=env) for env in ("sat", "webshop")]
    in_rows, in_columns = (
        [[cell.strip() for cell in line.split("|")[1:-1]] for line in form(rows) if line]
        for form in (page.table_in_rows, page.table_in_columns)
    )
    names, (_, _, *by_row, _mean) = in_rows[0][2:], in_rows
    assert in_columns[0] == ["", "`sat`", "adds", "`webshop`", "adds"]
    for name, *cells in in_columns[2:]:
        of_rows = [dict(zip(names, row[2:], strict=True)) for row in by_row]
        assert cells == [cell for row in of_rows for cell in (row[name], row.get(f"{name} adds", ""))]


def test_adapters_of_grpo_are_compared_at_their_own_rates(programs, tmp_path):
    (row,) = run(tmp_path, "algos=r1,rslora,lora+,all", "seeds=1")["rows"]
    by_name = {Path(words["out"]).name: words for words in programs.trained}
    assert {words["algo"] for words in by_name.values()} == {"grpo"}
    ranks = {name: by_name[f"{name}-0"].get("lora.r", "16") for name in ("r1", "rslora", "lora+", "all")}
    assert ranks == {"r1": "1", "rslora": "64", "lora+": "16", "all": "0"}
    assert by_name["rslora-0"]["lora.rslora"] == "true" and by_name["lora+-0"]["lora.b_rate"] == "16"
    assert (row["policies"]["r1"]["lr"], row["policies"]["all"]["lr"]) == (0.003, 0.0003)
    assert "- r1" in "".join(tables.table(row)), "the first of them is what others are compared with"


@pytest.fixture
def evaluated(tmp_path) -> list[str]:
    """Return the words of benchmarks.record for an evaluation of the base, SFT and an epoch of a run."""
    run, results = tmp_path / "run", {}
    run.mkdir()
    append(run / "metrics.jsonl", [{"epoch": n, "sampled_tokens": 60} for n in (1, 2, 3)])
    (run / "config.json").write_text('{"lr": 0.25}')
    for adapter, solved in (("base", 2), ("sft", 4), (str(run / "epoch_2"), 9)):
        tasks = [{"env": "sat", "seed": n, "task": f"t{n}", "success": [int(n < solved)]} for n in range(TASKS)]
        results[adapter] = [{"split": "test", "tasks": tasks}] * 2
    for env in ("sat", "abd"):
        (tmp_path / f"{env}.json").write_text(json.dumps({"played": {"env": env}, "results": results}))
    names = ["names=base,sft,rl", "start=sft", "trained=rl", "command=train.py env=ENV"]
    return [str(tmp_path / "sat.json"), *names, f"out={tmp_path}/record.json"]


def test_runs_started_by_hand_become_a_row(evaluated, tmp_path):
    """The gain is over the start; tokens are those up to the epoch that was played; other rows stay."""
    for env in ("sat", "abd", "sat"):
        record.main([str(tmp_path / f"{env}.json"), *evaluated[1:]])
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [row["env"] for row in rows] == ["abd", "sat"]
    assert rows[1]["policies"]["rl"] == {
        **{"sampled": ["1111111110"], "greedy": ["1111111110"]},
        **{"words": "", "lr": 0.25, "tuning": {}, "tokens": [120]},
        **{"seconds": [0.0], "peak_gib": [0.0], "sampler_gap": [0.0]},
    }
    head, _, *lines = page.table_in_rows(rows)
    assert head.count(" adds ") == 1 and "rl adds" in head
    assert "+50.0%" in lines[1] and lines[1].startswith("| `sat` | 10 |")
    assert lines[2] == "| mean | | 20.0%; 20.0% | 40.0%; 40.0% | 90.0%; 90.0% | +50.0%; +50.0% |"
    base = next(line for line in page.table_in_columns(rows) if line.startswith("| base |"))
    assert base.count("%)") == 2 and "+" not in base, "the base adds nothing to itself"
    del rows[0]["policies"]["base"]
    assert not any("mean" in line for line in page.table_in_rows(rows)), "an environment lacks a policy"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"names": "base,rl"}, "names=base,rl has no 'sft'"),
        ({"names": "base,sft,rl,more"}, "must have a name of its own for each of base, sft, "),
        ({"trained": "sft"}, "sft: no epoch_N in the folder of a run that has sampled tokens"),
        ({"command": "another"}, "has command 'train.py env=ENV', not 'another': take another file"),
        ({"played": "nowhere.json"}, "nowhere.json: no file of eval.py json="),
        ({"played": "run/config.json"}, "run/config.json: no file of eval.py json="),
        ({"out": "nowhere/x.json"}, "nowhere/x.json"),
    ],
)
def test_an_evaluation_that_is_no_row_is_one_line(changed, said, evaluated, tmp_path, monkeypatch, capsys):
    record.main(evaluated)
    monkeypatch.chdir(tmp_path)
    words = split([f"played={evaluated[0]}", *evaluated[1:]]) | changed
    with pytest.raises(SystemExit) as end:
        record.main([f"{key}={value}" for key, value in words.items()])
    assert end.value.code, "not 0"
    said_on_exit = str(end.value.code) if isinstance(end.value.code, str) else ""
    error = capsys.readouterr().err + said_on_exit
    assert said in error and error.strip().count("\n") == 0
