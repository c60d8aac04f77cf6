"""Configuration: errors are one line, values land in their fields, and every key is explained."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
from cases import cases
from conftest import run_program

import envs
import envs.__main__ as demos
import eval
import merge
from models.weights import TINY
from rl import adapters, config
from rl.config import arguments, fields
from rl.config.arguments import flatten
from rl.config.refusals import GUIDES, recipe_names
from rl.config.words import GROUPS, SELDOM, describe_sources, group_class, parse
from rl.ranks import launch
from rl.tasks import make_env, make_tasks

CASES = cases("config")
KEY = re.compile(r"^  ([a-z_]+(?:\.[a-z_]+)?)=(\S*) +(\S.*)$")


def refused(capsys, *words: str) -> str:
    """Return the one line that parsing the words ends with."""
    with pytest.raises(SystemExit) as caught:
        parse(list(words))
    printed = capsys.readouterr()
    assert caught.value.code == 2 and not printed.out
    assert printed.err.count("\n") == 1 and printed.err.startswith("train.py: ")
    return printed.err.removeprefix("train.py: ").strip()


@pytest.mark.parametrize(("program", "word", "ours"), CASES["words of the guides"])
def test_names_of_the_guides_are_refused_with_ours(program, word, ours):
    status, _, err = run_program(program, word, "out=x")
    name = word.lstrip("-").partition("=")[0]
    assert (status, err) == (2, f"{program}: unknown key '{name}', as a guide names it; here it is {ours}\n")


def test_guides_names_lead_to_keys_of_a_program():
    groups = [("", cls) for cls in (*fields.THEMES, eval.Keys, merge.Keys, demos.Keys)]
    groups += [(name, group_class(name)) for name in GROUPS]
    known = {key for name, cls in groups for key in arguments.keys_of(cls, name)}
    ours = {word.partition("=")[0] for words in GUIDES.values() for word in words.split("|")}
    assert ours <= known
    assert not GUIDES.keys() & known


@pytest.mark.parametrize(("word", "said"), CASES["unknown keys"])
def test_unknown_key_is_refused_with_the_nearest_one(word, said, capsys):
    assert refused(capsys, word).startswith(said)


@pytest.mark.parametrize(("words", "said"), CASES["wrong values"])
def test_a_wrong_value_is_refused_before_anything_loads(words, said, capsys):
    assert refused(capsys, "model=nowhere/to-be-found", *words.split()) == said


@pytest.mark.parametrize(("words", "said"), CASES["impossible values"])
def test_an_impossible_value_is_refused(words, said, capsys):
    assert said in refused(capsys, *words.split())


@pytest.mark.parametrize(("words", "said"), CASES["impossible plans of a run"])
def test_an_impossible_plan_of_a_run_is_refused(words, said, capsys):
    assert refused(capsys, *words.split()).startswith(said)


def test_lora_r_0_needs_environments_without_requests():
    everything = ["lora.r=0", "planner.worker=model", "tau_retail.user=model"]
    assert parse([*everything, "env=sat,textcraft"]).lora.r == 0
    assert parse(["lora.r=0", "planner.worker=rules", "env=planner"]).lora.r == 0
    assert parse([*everything, "env=planner"], "eval.py").lora.r == 0, "eval.py does not check lora.r=0"


def everything() -> dict:
    """Return the default of every key of every group."""
    found = {key: value for theme in fields.THEMES for key, value in vars(theme()).items()}
    for name in GROUPS:
        found |= {f"{name}.{key}": value for key, value in vars(group_class(name)()).items()}
    return found


def test_help_explains_every_key_with_its_value(capsys):
    """For a model that is not the embedded one, the values are the defaults."""
    with pytest.raises(SystemExit) as caught:
        parse(["lr=1", "model=other/model", "--help", "all"])
    text = capsys.readouterr().out
    assert not caught.value.code
    listed = {found[1]: found[2] for found in map(KEY.match, text.splitlines()) if found}
    defaults = {**everything(), "lr": 1.0, "model": "other/model"}
    assert set(listed) == set(defaults), "each key has a default and a comment that is not empty"
    for key, shown in listed.items():
        assert shown == arguments.word(defaults[key]), key
    assert "  : " not in text, "a key whose comment is missing"
    assert "recipes: " in text and "embedded" in text and "textcraft" in text


def printed_keys(capsys, program: str, also: type | None, *words: str) -> list[str]:
    """Return the keys that a program's help lists."""
    with pytest.raises(SystemExit):
        parse([*words], program, also)
    return [found[1] for found in map(KEY.match, capsys.readouterr().out.splitlines()) if found]


@pytest.mark.parametrize(("program", "also"), [("train.py", adapters.Keys), ("eval.py", eval.Keys)])
def test_help_is_a_short_page(program, also, capsys):
    """Of 30 lines with 100 columns, the last of which say how to get more help."""
    with pytest.raises(SystemExit):
        parse(["--help"], program, also)
    lines = capsys.readouterr().out.splitlines()
    keys = [found[1] for found in map(KEY.match, lines) if found]
    wanted = fields.EVERYDAY & fields.READ_BY_EVAL if program == "eval.py" else fields.EVERYDAY
    assert set(keys) == wanted | {*arguments.keys_of(also)} - SELDOM and len(keys) == len(set(keys))
    assert len(lines) <= 30 and max(map(len, lines)) <= 100
    assert lines[-2].startswith("More keys by a name behind --help") and "or all." in lines[-1]
    assert everything().keys() >= fields.EVERYDAY


@pytest.mark.parametrize("group", [*fields.ALGORITHMS, "textcraft", "lora"])
def test_help_of_a_group_lists_its_keys(group, capsys):
    assert printed_keys(capsys, "train.py", None, "--help", group) == arguments.keys_of(group_class(group), group)


def test_help_shows_the_values_that_the_words_give(capsys, recipe):
    def shown(*words: str) -> dict[str, str]:
        with pytest.raises(SystemExit) as end:
            parse(["--help", *words])
        assert not end.value.code
        return {m[1]: m[2] for m in map(KEY.match, capsys.readouterr().out.splitlines()) if m}

    default = f"{parse([]).lr}"
    assert shown("lr") == {"lr": default} == {"lr": shown()["lr"]} and shown("lr", "lr=7") == {"lr": "7.0"}
    assert shown("lr", "model=other/model") == {"lr": "1e-05"} != {"lr": default}
    assert shown("ppo", recipe(RECIPE), "model=other/model")["ppo.clip"] == "1.0"
    assert shown("clip", "grpo.clip=0.4", "ppo.clip=0.1") == {
        "ppo.clip": "0.1",
        "grpo.clip": "0.4",
        "gigpo.clip": "0.2",
        "opd.clip": "0.2",
    }
    assert (
        shown("max_turns", "max_turns=3")["max_turns"] == "3"
        and shown("textcraft", "max_turns=3")["textcraft.max_turns"] == "3"
    )
    with pytest.raises(SystemExit):
        parse(["--help", "lr"])
    assert "set by recipe embedded; the default is 1e-05" in capsys.readouterr().out


@pytest.mark.parametrize(("program", "also"), [("train.py", adapters.Keys), ("eval.py", eval.Keys)])
def test_help_knows_the_keys_that_a_program_has_alone(program, also, capsys):
    for key in arguments.keys_of(also):
        assert key in printed_keys(capsys, program, also, "--help", key)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pop"], "did you mean ppo?"),
        (["lr", "epohcs=3"], "did you mean epochs?"),
        (["nosuch"], "--help nosuch: unknown key 'nosuch'; --help lists the keys"),
        (["learning"], "--help learning: unknown key 'learning'; --help lists the keys"),
    ],
)
def test_help_refuses_what_it_does_not_know(words, said, capsys):
    assert refused(capsys, "--help", *words).endswith(said)


def test_settings_of_another_algorithm_are_refused_by_strict(capsys):
    words = ["algo=grpo", "ppo.clip=0.1"]
    assert describe_sources(parse(words)).endswith("\nwithout effect with algo=grpo env=textcraft: ppo.clip=0.1")
    line = refused(capsys, *words, "strict=true")
    assert line == "ppo.clip= has no effect with algo=grpo env=textcraft; leave it out"
    assert parse([*words, "strict=true", "algo=ppo"]).ppo.clip == 0.1
    assert parse([*words, "strict=true"], "eval.py").strict


def test_help_of_eval_lists_the_keys_that_it_reads(capsys):
    own, few = arguments.keys_of(eval.Keys), printed_keys(capsys, "eval.py", eval.Keys, "--help")
    every = printed_keys(capsys, "eval.py", eval.Keys, "--help", "all")
    assert every[: len(own)] == own and set(few) < set(every) and "sat.n" in every and "ppo.clip" not in every


def test_fields_of_a_config_are_known_without_parsing():
    """An editor sees them: the class is written down, and a parsed configuration is an instance of it."""
    assert type(parse(["algo=grpo", "env=sat"])) is fields.Config
    kinds = {f.name: f.type for f in dataclasses.fields(fields.Config)}
    in_themes = [key for theme in fields.THEMES for key in arguments.keys_of(theme)]
    assert len(in_themes) == len(set(in_themes)), "no key is in two themes"
    tables = ["lora", "reward", "track", *fields.ALGORITHMS]
    assert [*kinds] == [*in_themes, *tables, "own", "environments"]
    assert fields.Config().as_dict().keys() == {*in_themes, "lora", "reward", "track"}


def test_a_function_of_one_theme_takes_a_bare_instance_of_it():
    assert isinstance(parse([]), fields.THEMES)
    assert set(make_tasks(fields.Experiment(env="sat"), 0, 2, 1, "train", 0)) == set(
        make_tasks(parse(["env=sat"]), 0, 2, 1, "train", 0)
    )


@pytest.mark.parametrize("name", fields.ALGORITHMS)
def test_algorithms_have_what_the_loop_reads(name):
    options, needed = group_class(name)(), {*fields.Algorithm.__annotations__}
    needed -= set() if options.critic else {"critic_lr", "critic_hidden", "critic_warmup", "bootstrap"}
    without_reference = type(options).reference is False  # whatever its settings
    needed -= {"kl_coef", "kl_target", "kl_horizon", "reference_every"} if without_reference else set()
    needed -= set() if options.source == "demonstrations" else {"all_tokens", "prompt_column", "answer_column"}
    assert [key for key in needed if not hasattr(options, key)] == []


@pytest.mark.parametrize(("word", "value"), CASES["values"])
def test_words_become_values_of_the_fields_type(word, value):
    key = word.lstrip("-").split("=")[0]
    found = flatten(parse([word]).as_dict())[key]
    assert found == value and type(found) is type(value)


@pytest.fixture
def recipe(tmp_path):
    """Return a function that writes a recipe and returns its name."""

    def write(text: str) -> str:
        (tmp_path / "mine.toml").write_text(text)
        return f"recipe={tmp_path}/mine.toml"

    return write


RECIPE = """
lr = 2
lora.targets = ["q_proj", "v_proj"]
[ppo]
whiten = false
clip = 1
[tiny]
lr = 3
[tiny.ppo]
clip = 0.5
"""


def test_command_line_wins_over_recipe_over_defaults(recipe, tmp_path):
    name = recipe(RECIPE)
    other = parse([name, f"model={tmp_path}"])
    assert (other.lr, other.ppo.clip, other.ppo.whiten, other.lora.targets) == (2.0, 1.0, False, "q_proj,v_proj")
    tiny = parse([name])
    assert (tiny.lr, tiny.ppo.clip, tiny.ppo.whiten) == (3.0, 0.5, False)
    default = parse([])
    assert tiny.epochs == default.epochs != other.epochs, "recipes/embedded.toml lies beneath"
    assert parse([recipe("lr = 2")]).lr == 2.0 != default.lr, "and is beneath a recipe that has no [tiny] table"
    given = parse([name, "ppo.clip=0.1", "lr=4", "lr=5"])
    assert (given.lr, given.ppo.clip) == (5.0, 0.1), "a later word wins over an earlier one"
    assert parse([recipe('model = "some/other"\n' + RECIPE)]).lr == 2.0, "the recipe's own model decides"


def test_a_copy_of_the_embedded_model_is_the_embedded_model(tmp_path):
    raw = json.loads((TINY / "config.json").read_text())
    for n, change in enumerate(({}, {"dtype": "float16", "rope_theta": 1e4}, {"hidden_size": 96})):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "config.json").write_text(json.dumps(raw | change))
    assert [parse([f"model={tmp_path}/{n}"]).lr == parse([]).lr for n in range(3)] == [True, True, False]


def test_start_line_names_each_source_of_a_setting(recipe, tmp_path):
    def sources(*words: str) -> dict[str, dict]:
        parts = describe_sources(parse([*words])).replace(
            "\nwithout effect with algo=ppo env=textcraft: ", "; unread: "
        )
        parts = parts.split("; ")
        assert parts[0].startswith("algo=ppo env=textcraft model=")
        found = dict(part.split(": ", 1) for part in parts[1:])
        return {name: dict(word.split("=", 1) for word in text.split() if "=" in word) for name, text in found.items()}

    name = recipe(RECIPE)
    found = sources(name, "ppo.clip=0.1", "seed=3", "sat.n=9")
    mine = name.replace("=", " ")
    assert found[mine] == {"lora.targets": "q_proj,v_proj", "ppo.whiten": "false"}
    assert found[f"{mine} [tiny]"] == {"lr": "3.0"}
    embedded = found["recipe embedded"]
    assert embedded["ppo.bootstrap"] == "false" and embedded["epochs"] == str(parse([]).epochs)
    assert "lr" not in embedded and not any(key.startswith(("grpo", "sat")) for key in embedded)
    assert found["command line"] == {"ppo.clip": "0.1", "seed": "3"}, "and no key of a group that is not used"
    assert found["unread"] == {"sat.n": "9"}
    assert "recipe embedded" not in sources(name, f"model={tmp_path}")


@pytest.mark.parametrize("table", ["", "[tiny]", "[guide]"])
@pytest.mark.parametrize("key", ["resume", "resume_from", "out", "recipe", "plan"])
def test_a_recipe_has_no_key_of_one_run(key, table, recipe, capsys):
    name = recipe(f"{table}\n{key} = 'x'")
    assert f"{key}= is of one run; give it on the command line" in refused(capsys, name)


def test_a_recipe_may_begin_with_a_byte_order_mark(recipe):
    assert parse([recipe(chr(0xFEFF) + "lr = 0.5")]).lr == 0.5


def test_variables_of_a_cluster_without_an_address_are_named(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(arguments.ArgumentError, match="MASTER_ADDR is not: start with torchrun, or unset RANK"):
        launch.run(lambda cfg: None, parse([]), 4)


@pytest.mark.parametrize("name", envs.NAMES)
def test_environment_configs_are_frozen(name):
    options = envs.config_class(name)()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.prompt = "short"


@pytest.mark.parametrize(("text", "words", "wanted"), CASES["max turns"])
def test_max_turns_is_recorded_as_the_environments(text, words, wanted, recipe, tmp_path):
    """It is resolved per difficulty, over recipes/embedded.toml's 8, and a resumed run has the same."""
    cfg = parse([recipe(text), "env=textcraft,sat", *words.split()])
    assert cfg.environments["textcraft"].max_turns == make_env(cfg, "textcraft").config.max_turns == wanted
    assert make_env(cfg, "sat"), "an environment of one turn has no such key"
    (tmp_path / "config.json").write_text(json.dumps(cfg.as_dict()))
    assert parse([f"resume={tmp_path}"]).environments["textcraft"].max_turns == wanted


def test_start_line_names_the_source_of_max_turns(recipe):
    line = describe_sources(parse([recipe("max_turns = 2\n[tiny]\nmax_turns = 3")]))
    assert "[tiny]: textcraft.max_turns=3" in line


def test_start_line_of_a_resumed_run_names_what_changes(tmp_path):
    cfg = parse(["algo=grpo", "lr=7"])
    (tmp_path / "config.json").write_text(json.dumps(cfg.as_dict()))
    line = describe_sources(parse([f"resume={tmp_path}", "epochs=99"]))
    saved = f"saved in {tmp_path}/config.json: the rest"
    assert line == f"algo=grpo env=textcraft model=tiny; {saved}; command line: epochs=99"


@pytest.mark.all_only
def test_only_groups_in_use_are_loaded_and_present():
    program = "from rl.config.words import parse; import sys; names = 'rl.grpo', 'envs.os_interaction'\n"
    program += "for words in [], sys.argv[1:]: parse(['algo=ppo', *words]);"
    program += " print(*(n for n in names if n in sys.modules))"
    command = [sys.executable, "-c", program, "grpo.clip=0.1", "env=os_interaction"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "\nrl.grpo envs.os_interaction\n"
    assert set(flatten(parse([]).as_dict())) > {"ppo.clip", "textcraft.difficulty"}
    assert parse([]).grpo is None and parse(["grpo.clip=0.1"]).grpo.clip == 0.1
    assert parse([]).environments.keys() == {"textcraft"} and "grpo" not in parse([]).as_dict()


def test_configuration_cannot_be_changed():
    cfg = parse(["algo=grpo"])
    for record, field in (
        (cfg, "lr"),
        (cfg.grpo, "clip"),
        (cfg.lora, "r"),
        (cfg.reward, "scale"),
        (cfg.environments["textcraft"], "max_turns"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field, 1)


@pytest.mark.parametrize(("text", "said"), CASES["bad recipes"])
def test_a_bad_recipe_is_refused(text, said, recipe, capsys):
    assert said in refused(capsys, recipe(text))


def test_every_shipped_recipe_is_valid():
    assert {"embedded", "dapo"} <= set(recipe_names())
    for name in recipe_names():
        for model in ("tiny", "other/model"):
            assert parse([f"recipe={name}", f"model={model}"]).model == model


def test_every_key_of_every_recipe_is_known():
    """Keys of groups that a run does not use are ignored; here every group is in use."""
    played = ",".join(sorted(envs.NAMES.keys() - {"qa"}))  # which needs a file
    in_use = [f"env={played}", "qa.splits=hash", *(f"{algo}.epochs=1" for algo in fields.ALGORITHMS)]
    for name in recipe_names():
        for model in ("tiny", "other/model"):
            assert parse([f"recipe={name}", f"model={model}", *in_use], "eval.py").model == model


def test_resume_reads_the_runs_own_settings(tmp_path):
    cfg = parse(["lr=7", "algo=grpo", "grpo.group_size=4", "ppo.value_clip=none", "recipe=dapo", "out=elsewhere"])
    (tmp_path / "config.json").write_text(json.dumps(cfg.as_dict()))
    again = parse([f"resume={tmp_path}", "epochs=99", "ppo.clip=0.3"]).as_dict()
    assert (again["epochs"], again["out"], again["resume"]) == (99, str(tmp_path), str(tmp_path))
    assert again.pop("ppo") == cfg.as_dict()["ppo"] | {"clip": 0.3}
    same = {"epochs": cfg.epochs, "out": cfg.out, "resume": ""}
    assert {**again, **same, "ppo": cfg.as_dict()["ppo"]} == cfg.as_dict()


def test_resume_refuses_another_algorithm(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(parse(["algo=grpo"]).as_dict()))
    assert parse([f"resume={tmp_path}", "algo=grpo"]).algo == "grpo"
    line = refused(capsys, f"resume={tmp_path}", "algo=ppo")
    assert line.startswith(f"resume={tmp_path} goes on with a run of algo=grpo, not of algo=ppo; leave algo= out, or")
    assert line.endswith(f"begin anew from its adapter: algo=ppo resume_from={tmp_path}")
    assert refused(capsys, f"resume={tmp_path}", "algo=pop").endswith("did you mean ppo?")


def test_resume_of_a_folder_of_runs_names_them(tmp_path, capsys):
    for name in ("first", "second"):
        (tmp_path / name / "epoch_1").mkdir(parents=True)
        (tmp_path / name / "metrics.jsonl").touch()
    both = f"{tmp_path}/first, {tmp_path}/second"
    assert refused(capsys, f"resume={tmp_path}").endswith(f"so this is not a run's folder; runs are there: {both}")
    assert refused(capsys, f"resume={tmp_path}/frist").endswith(f"did you mean {tmp_path}/first?")
    assert refused(capsys, f"resume={tmp_path}/first/epoch_1").endswith(f"did you mean {tmp_path}/first?")


def test_resume_reads_configs_of_earlier_versions(tmp_path):
    """They have every group, and the removed key reduce."""
    saved = flatten(parse(["algo=grpo"]).as_dict()) | everything()
    saved |= {"algo": "grpo", "recipe": "default", "reduce": "tree"}
    nested = {key: value for key, value in saved.items() if "." not in key}
    for key, value in saved.items():
        group, dot, name = key.partition(".")
        if dot:
            nested.setdefault(group, {})[name] = value
    (tmp_path / "config.json").write_text(json.dumps(nested))
    cfg = parse([f"resume={tmp_path}"])
    assert (cfg.algo, cfg.recipe) == ("grpo", "default") and cfg.ppo is None


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_resume_refuses_a_broken_config(text, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    assert "config.json is not" in refused(capsys, f"resume={tmp_path}")


def test_other_programs_keys_are_returned_apart(capsys):
    from eval import Keys

    cfg, keys = parse(["n=3", "lr=2", "split=val"], "eval.py", Keys)
    assert (keys.n, keys.split, cfg.lr) == (3, "val", 2.0)
    for words, said in ((["n=x"], "eval.py: n=x must be a whole number"), (["spilt=val"], "did you mean split?")):
        with pytest.raises(SystemExit):
            parse(words, "eval.py", Keys)
        assert said in capsys.readouterr().err


def test_missing_gpu_is_refused_before_loading(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "has no CUDA device" in refused(capsys, "device=cuda")


def test_exact_on_a_gpu_asks_for_16_bits(capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    line = refused(capsys, "exact=true", "device=cuda", "dtype=float32")
    assert "exact=true on a CUDA device takes dtype=bfloat16" in line
    assert parse(["exact=true", "device=cuda", "dtype=bfloat16"]).exact and parse(["exact=true"]).exact


def test_temperature_0_is_for_evaluation_only():
    assert parse(["temperature=0"], "eval.py").temperature == 0


def test_the_package_parses_words_as_its_module_does():
    """A notebook writes `from rl import config; config.parse([...])`."""
    assert config.parse(["algo=ppo", "lr=1e-3"]) == parse(["algo=ppo", "lr=1e-3"])
