"""The way out: the certificate of a merge, adapters as vLLM takes them, .bin files, model cards, pushing to the hub."""

import json
import os
import shutil
import subprocess
import sys

import hub as stand_in
import pytest
import torch
from conftest import ROOT, run_program
from safetensors.torch import load_file
from test_lora import awake, injected

import lora
from lora.export import RANKS, make_uniform
from models import load_model, load_tokenizer
from models.checkpoints import converted
from models.weights import TINY
from rl.config.arguments import split
from rl.config.words import parse, resolve
from rl.evaluate import EVAL_STREAM
from rl.merging.model_card import model_card, vllm_section
from rl.tasks import make_env, make_tasks

PLAYED = ["env=textcraft", "textcraft.prompt=short", "algo=grpo", "recipe=dapo", "lr=0.001"]
EVAL = {"success": 0.5, "low": 0.42, "high": 0.58, "episodes": 60, "split": "val"}


@pytest.fixture(scope="module")
def epoch(tmp_path_factory):
    """Write an epoch as train.py does: adapter, settings, stats, and the run's evaluations."""
    run = tmp_path_factory.mktemp("runs") / "run"
    model = awake(injected(load_model("tiny"), r=4, alpha=6))
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].B.data.mul_(0.08)
    lora.save_adapter(model, run / "epoch_2", str(TINY))
    cfg = parse(PLAYED, "train.py")
    (run / "epoch_2" / "training_config.json").write_text(json.dumps(cfg.as_dict()))
    (run / "epoch_2" / "training_stats.json").write_text(json.dumps({"epoch": 2}))
    records = [{"epoch": n, "eval": {**EVAL, "temperature": t}} for n in (0, 1, 2) for t in (0.7, 0.0)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return run / "epoch_2"


def merged(*words) -> str:
    """Return what merge.py printed."""
    status, out, err = run_program("merge.py", *map(str, words))
    assert status == 0, err
    return out


def refused(*words) -> str:
    """Return merge.py's one line."""
    status, _, err = run_program("merge.py", *map(str, words))
    assert status in (1, 2) and err.count("\n") == 1, (status, err)
    return err


def adapted(folder):
    lora.load_adapter(model := load_model("tiny"), folder)
    return model


@torch.no_grad()
def distributions(model, ids, first) -> torch.Tensor:
    """Return the log-probabilities of each token from `first` on."""
    hidden_TD = model(torch.tensor([ids]))[0][first - 1 : -1]
    return (hidden_TD @ model.lm_head.weight.T).log_softmax(-1)


def test_certificate_is_that_of_whole_models_on_held_out_replies(epoch, tmp_path):
    out = merged(f"adapter={epoch}", f"out={tmp_path}/merged", "dtype=bfloat16", "prompts=5")
    found = json.loads((tmp_path / "merged" / "merge_report.json").read_text())["certificate"]
    before, after, tokenizer = adapted(epoch), load_model(f"{tmp_path}/merged"), load_tokenizer("tiny")
    cfg, kl, same, largest = parse(["env=textcraft", "textcraft.prompt=short"]), [], [], 0.0
    for task in make_tasks(cfg, 0, 5, 1, "test", EVAL_STREAM):
        env = make_env(cfg, task.env)
        prompt = tokenizer.prompt(env.reset(task.seed, "test"))
        ids = prompt + tokenizer.reply(env.oracle())
        p, q = (distributions(model, ids, len(prompt)) for model in (before, after))
        kl += (p.exp() * (p - q)).sum(-1).tolist()
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
        largest = max(largest, (p - q).abs().max().item())
    assert (found["env"], found["split"], found["prompts"], found["tokens"]) == ("textcraft", "test", 5, len(kl))
    assert found["kl"] == pytest.approx(sum(kl) / len(kl), rel=0.02) and found["kl"] > 0
    assert found["kl_max"] == pytest.approx(max(kl), rel=0.02)
    assert found["greedy_agreement"] == pytest.approx(sum(same) / len(same))
    assert found["largest_difference"] == pytest.approx(largest, rel=0.02)
    assert f"5 held-out prompts of textcraft, {len(kl)} tokens of the expert's replies: KL " in out


@pytest.mark.parametrize(
    ("word", "line"), [("max_kl=1e-12", "more than max_kl=1e-12"), ("min_agreement=1.0", "less than min_agreement=1")]
)
def test_merge_that_falls_short_is_refused_and_leaves_nothing(word, line, epoch, tmp_path, monkeypatch):
    certify = "rl.merging.certificate.certificate"
    if word.startswith("min"):
        monkeypatch.setattr(certify, lambda *_: {"kl": 0.0, "greedy_agreement": 0.96})
    err = refused(f"adapter={epoch}", f"out={tmp_path}/merged", "dtype=bfloat16", "prompts=3", word)
    assert line in err and "force=true" in err and not list(tmp_path.iterdir())


REASONS = {  # keys of training_config.json, which may be a stranger's -> why the merge plays no held-out task
    "no training_config.json says what a run played": None,
    "the tasks of env=http are a server's": {"env": "http", "http": {"url": "http://x"}},
    "the run learned the rows of data=, not tasks": {"data": "rows.jsonl"},
    "the run's qa.match= is a program, which is not executed here": {"env": "qa", "qa": {"match": "mine.py:score"}},
    "prompts=0": {},
}


@pytest.mark.parametrize("reason", REASONS)
def test_where_no_held_out_task_is_played_the_merge_says_why(reason, epoch, tmp_path):
    shutil.copytree(epoch, tmp_path / "epoch")
    given, path = REASONS[reason], tmp_path / "epoch" / "training_config.json"
    if given is None:
        path.unlink()
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | given))
    words = [f"adapter={tmp_path}/epoch", f"out={tmp_path}/merged", *["prompts=0"] * (given == {})]
    assert f"compared on one sentence alone: {reason}\n" in merged(*words)
    assert (tmp_path / "merged" / "training_config.json").exists() == (given is not None)


def test_a_runs_folder_is_merged_at_its_best_epoch(epoch, tmp_path):
    out = merged(f"adapter={epoch.parent}", f"out={tmp_path}/merged", "prompts=0")
    assert "epoch_2 is the only evaluated epoch that the run saved, by success, 50.0%" in out
    assert json.loads((tmp_path / "merged" / "merge_report.json").read_text())["adapter"] == str(epoch)


def test_merged_model_plays_as_trained(epoch, tmp_path):
    merged(f"adapter={epoch}", f"out={tmp_path}/merged", "prompts=1")
    copied = (tmp_path / "merged" / "training_config.json").read_text()
    assert copied == (epoch / "training_config.json").read_text()


def of_sizes(kind: str):
    """Return the embedded model with an adapter whose ranks or scales vLLM would not take as they are."""
    keys = {
        "rank": dict(r=6, alpha=12),
        "rslora": dict(r=16, alpha=32, rslora=True),
        "odd scale": dict(r=6, alpha=7),
        "patterns": dict(r=4, alpha=6, rank_pattern={"q_proj": 9}, alpha_pattern={"up_proj": 1}),
        "some layers": dict(r=4, alpha=6, targets=["layers.0.self_attn.q_proj", "v_proj"]),
    }[kind]
    return awake(injected(load_model("tiny"), **keys))


@pytest.mark.parametrize("kind", ["rank", "rslora", "odd scale", "patterns", "some layers"])
def test_vllm_export_computes_the_same(kind, tmp_path):
    """vLLM scales every layer by lora_alpha / r of the config, and refuses patterns, other ranks and target_modules
    that are no list."""
    model = of_sizes(kind)
    lora.save_adapter(model, tmp_path / "adapter", str(TINY))
    out = merged(f"adapter={tmp_path}/adapter", f"out={tmp_path}/vllm", "export=vllm")
    saved = json.loads((tmp_path / "vllm" / "adapter_config.json").read_text())
    assert saved["r"] in RANKS and isinstance(saved["lora_alpha"], int) and not saved["use_rslora"]
    assert isinstance(saved["target_modules"], list) and not {"rank_pattern", "alpha_pattern"} & saved.keys()
    assert f"--max-lora-rank {saved['r']}" in out
    assert f"--max-lora-rank {saved['r']}" in (tmp_path / "vllm" / "README.md").read_text()
    tensors = load_file(tmp_path / "vllm" / "adapter_model.safetensors")
    for path, layer in lora.lora_layers(model):
        A, B = (tensors[f"base_model.model.{path}.lora_{factor}.weight"] for factor in "AB")
        assert len(A) == B.shape[1] == saved["r"]
        expected = layer.adapter.scale * layer.adapter.B @ layer.adapter.A
        torch.testing.assert_close(saved["lora_alpha"] / saved["r"] * B @ A, expected, rtol=1e-5, atol=1e-6)
    assert {key.rsplit(".lora_", 1)[0] for key in tensors} == {
        f"base_model.model.{path}" for path, _ in lora.lora_layers(model)
    }


def test_peft_computes_the_same_with_the_vllm_export(tmp_path):
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    model = of_sizes("patterns")
    lora.save_adapter(model, tmp_path / "adapter", str(TINY))
    merged(f"adapter={tmp_path}/adapter", f"out={tmp_path}/vllm", "export=vllm")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(theirs, tmp_path / "vllm")
    ids_BT = torch.arange(100, 140)[None]
    with torch.no_grad():
        expected = model(ids_BT) @ model.lm_head.weight.T
        torch.testing.assert_close(theirs(ids_BT).logits, expected, rtol=1e-4, atol=1e-4)


def test_rank_above_vllms_largest_is_refused():
    with pytest.raises(ValueError, match="rank 513: vLLM takes at most 512"):
        make_uniform(injected(load_model("tiny"), r=513, targets=["layers.0.mlp.up_proj"]))


def test_scale_of_zero_is_exported_for_vllm():
    model = awake(injected(load_model("tiny"), r=4, alpha=6))
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].scale = 0.0
    make_uniform(model)
    adapters = [layer.adapters["default"] for _, layer in lora.lora_layers(model)]
    assert all(adapter.scale == 1 and not adapter.B.any() for adapter in adapters)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["lora.r=0"], "The weights of `models/tiny of lora-rl`, trained on `textcraft` by GRPO."),
        (
            ["algo=sft", f"data={ROOT}/README.md"],
            "The weights of `models/tiny of lora-rl`, trained on `README.md` by SFT.",
        ),
        (None, "The weights of a model whose base is not recorded."),
    ],
)
def test_card_without_an_adapter_names_none(words, sentence, tmp_path):
    """A run of lora.r=0 saves whole weights; a run of data= learns from its rows, not from env=."""
    if words is not None:
        saved = resolve(split(["algo=grpo", *words])).as_dict()
        (tmp_path / "training_config.json").write_text(json.dumps(saved))
    card = model_card("me/mine", tmp_path, "", False)
    assert sentence in card and "- lora" not in card and str(ROOT) not in card
    assert ("| env |" in card) == (words == ["lora.r=0"])


def test_card_says_what_the_run_was(epoch, tmp_path):
    merged(f"adapter={epoch}", f"out={tmp_path}/merged")
    card = (tmp_path / "merged" / "README.md").read_text()
    assert "merged into `models/tiny of lora-rl`, trained on `textcraft` by GRPO" in card
    for row in ("| recipe | dapo |", "| lr | 0.001 |", "| env | textcraft |", "| algo | grpo |", "| lora.r | "):
        assert row in card
    assert "| before | sampled at temperature 0.7 | 50.0% | 42.0% to 58.0% | 60 of val |" in card
    assert "| 2 | greedy | 50.0% | 42.0% to 58.0% | 60 of val |" in card and "| 1 | " not in card
    assert "Beside the adapter: 8 held-out prompts of textcraft" in card and str(epoch.parents[1]) not in card
    assert "AutoModelForCausalLM.from_pretrained" in card and "base_model:" not in card  # which is on no hub


def test_card_names_the_run_that_it_starts_from(epoch, tmp_path):
    """Of SFT and then GRPO both stages; what was evaluated before training is SFT's adapter, not the base."""
    shutil.copytree(epoch.parent, tmp_path / "rl")
    settings = json.loads((epoch / "training_config.json").read_text())
    for name, own in (("rl/epoch_2", {"resume_from": f"{tmp_path}/sft"}), ("sft", {"algo": "sft", "env": "sat"})):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "training_config.json").write_text(json.dumps(settings | own))
    card = model_card("me/mine", tmp_path / "rl" / "epoch_2", "tiny", True)
    assert ", trained on `textcraft` by GRPO, from an adapter trained on `sat` by SFT." in card
    assert "| before, with the adapter that it starts from | sampled" in card
    shutil.rmtree(tmp_path / "sft")
    assert "by GRPO, from the adapter `sft`." in model_card("me/mine", tmp_path / "rl" / "epoch_2", "tiny", True)


DAMAGED = [("training_stats.json", content) for content in ("[" * 100_000, "[1]", '{"epoch": []}', "{}")]
DAMAGED += [
    ("training_config.json", content) for content in ('{"algo": 1}', '{"algo": "ppo", "env": {}}', "[" * 100_000)
]
DAMAGED += [("../metrics.jsonl", json.dumps({"epoch": 2, "eval": {"success": 0.5, "temperature": 0.0}}) + "\n")]


@pytest.mark.parametrize(("name", "content"), DAMAGED, ids=lambda text: text[:30])
def test_damaged_files_of_a_run_make_a_card_or_one_line(name, content, epoch, tmp_path):
    shutil.copytree(epoch.parent, tmp_path / "run")
    (tmp_path / "run" / "epoch_2" / name).write_text(content)
    try:
        assert "# mine" in model_card("me/mine", tmp_path / "run" / "epoch_2", "tiny", True)
    except ValueError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["card=no/such.md"], "card=no/such.md is not a file"),
        ([f"card={TINY}/model.safetensors"], f"card={TINY}/model.safetensors is not text in UTF-8"),
        (["private=true"], "private=true goes with push=user/name"),
        (["push=name"], "push=name is not a name on the hub such as user/name"),
        (["push=me/mine"], "push=me/mine: no token; set HF_TOKEN"),
        (["min_agreement=1.5"], "min_agreement=1.5: a share, at most 1"),
        (["format=bin"], "unknown key 'format': weights are written as safetensors; leave it out"),
    ],
)
def test_impossible_exports_write_nothing(words, line, epoch, tmp_path, monkeypatch):
    monkeypatch.setattr("rl.merging.push.get_token", lambda: None)
    assert line in refused(f"adapter={epoch}", f"out={tmp_path}/merged", *words)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def hub(monkeypatch):
    """Run a stand-in of the hub that huggingface_hub asks, in this process and in those that it starts."""
    from huggingface_hub import constants

    with stand_in.running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", stand_in.TOKEN)
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield server


@pytest.mark.all_only
def test_push_of_a_merged_model_as_a_command(hub, epoch, tmp_path):
    words = [f"adapter={epoch}", f"out={tmp_path}/merged", "push=me/mine", "private=true", "prompts=1"]
    done = subprocess.run(
        [sys.executable, "merge.py", *words], cwd=ROOT, env=os.environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    repo = hub.repos["me/mine"]
    assert repo["private"] and repo["files"] == {p.name: p.read_bytes() for p in (tmp_path / "merged").iterdir()}
    assert {"model.safetensors", "config.json", "README.md", "training_config.json"} <= repo["files"].keys()
    assert 'from_pretrained("me/mine")' in repo["files"]["README.md"].decode()
    assert f"{hub.url}/me/mine/commit/" in done.stdout


@pytest.mark.parametrize("words", [["prompts=0"], ["export=vllm"]], ids=["merged", "vllm"])
def test_card_of_a_folder_is_pushed_under_the_hubs_name(words, hub, epoch, tmp_path):
    """Before, it has the folder's name and no path of this machine."""
    merged(f"adapter={epoch}", f"out={tmp_path}/own_model", *words)
    card = (tmp_path / "own_model" / "README.md").read_text()
    assert '"own_model")' in card and "\n# own_model\n" in card and str(tmp_path) not in card
    merged(f"out={tmp_path}/own_model", "push=me/mine")
    pushed = hub.repos["me/mine"]["files"]["README.md"].decode()
    assert '"me/mine")' in pushed and "\n# mine\n" in pushed and "own_model" not in pushed


def test_the_template_for_tools_is_pushed_too(hub, epoch, tmp_path):
    merged(f"adapter={epoch}", f"out={tmp_path}/merged", "prompts=0")
    (tmp_path / "merged" / "additional_chat_templates").mkdir()
    (tmp_path / "merged" / "additional_chat_templates" / "tool_use.jinja").write_text("{{ tools }}")
    merged(f"out={tmp_path}/merged", "push=me/mine")
    assert hub.repos["me/mine"]["files"]["additional_chat_templates/tool_use.jinja"] == b"{{ tools }}"


def test_push_of_an_adapter_with_ones_own_card(hub, epoch, tmp_path):
    (tmp_path / "card.md").write_text("# mine\n")
    words = [f"adapter={epoch}", f"out={tmp_path}/out", "adapter_only=true", "push=me/a", f"card={tmp_path}/card.md"]
    words += ["prompts=0"]
    merged(*words)
    files = hub.repos["me/a"]["files"]
    assert files["README.md"] == b"# mine\n" and "adapter_model.safetensors" in files and "config.json" not in files
    assert not hub.repos["me/a"]["private"]


@pytest.mark.parametrize(
    ("model", "shown"), [("smol", "SmolLM2-135M-Instruct of lora-rl"), ("/mine/some.Q8_0.gguf", "some.Q8_0.gguf")]
)
def test_card_names_a_converted_base_by_its_file(model, shown, tmp_path):
    """Not by its folder in the cache, whose name is a digest."""
    (tmp_path / "training_config.json").write_text(json.dumps({"algo": "grpo", "env": "sums", "model": model}))
    card = model_card("me/mine", tmp_path, str(converted.cache_folder() / "0f3a"), True)
    assert f"A LoRA adapter of `{shown}`, trained on `sums`" in card and "0f3a" not in card
    assert f'from_pretrained("FOLDER")  # FOLDER: {shown}\n' in card
    assert "vllm serve FOLDER --enable-lora" in vllm_section("me/mine", str(converted.cache_folder() / "0f3a"), 8)


def test_card_loads_the_revision_that_was_trained(tmp_path):
    (tmp_path / "training_config.json").write_text(json.dumps({"algo": "grpo", "env": "sums", "model": "me/base@v1.1"}))
    card = model_card("me/mine", tmp_path, "me/base@v1.1", True)
    assert 'base = AutoModelForCausalLM.from_pretrained("me/base", revision="v1.1")\n' in card
    assert "vllm serve me/base --revision v1.1 --enable-lora" in vllm_section("me/mine", "me/base@v1.1", 8)


def test_epoch_of_a_run_is_pushed_as_it_is_with_a_card(hub, epoch):
    before = sorted(path.name for path in epoch.iterdir())
    merged(f"out={epoch}", "push=me/epoch")
    files = hub.repos["me/epoch"]["files"]
    assert sorted(path.name for path in epoch.iterdir()) == before
    assert sorted(files) == sorted([*before, "README.md"]) and b"| lr | 0.001 |" in files["README.md"]


def test_a_link_to_another_file_of_this_machine_is_not_pushed(hub, epoch, tmp_path):
    shutil.copytree(epoch, tmp_path / "epoch")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "epoch" / "notes.txt").symlink_to(tmp_path / "secret")
    said = refused(f"out={tmp_path}/epoch", "push=me/secret")
    assert "notes.txt: links to a file outside the folder" in said and "me/secret" not in hub.repos


def test_nothing_is_pushed_unasked(hub, epoch, tmp_path):
    merged(f"adapter={epoch}", f"out={tmp_path}/merged", "prompts=0")
    assert hub.asked == []


def test_refused_commit_can_be_repeated(hub, epoch, tmp_path):
    hub.refuses_commits = True
    out = f"out={tmp_path}/merged"
    err = refused(f"adapter={epoch}", out, "prompts=0", "push=me/mine")
    assert f"{tmp_path}/merged is whole: python merge.py {out} push=me/mine" in err
    assert hub.repos["me/mine"]["files"] == {} and load_model(f"{tmp_path}/merged")
    hub.refuses_commits = False
    merged(out, "push=me/mine")
    assert "model.safetensors" in hub.repos["me/mine"]["files"]


@pytest.mark.parametrize(
    ("case", "line"),
    [
        ("token", "the hub did not take it"),
        ("public", "this repository is there and public"),
        ("gone", "the hub did not take it"),
    ],
)
def test_push_that_would_fail_is_refused_before_the_merge(case, line, hub, epoch, tmp_path, monkeypatch):
    if case == "token":
        monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    elif case == "public":
        hub.repos["me/mine"] = {"private": False, "files": {}}
    else:
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    err = refused(f"adapter={epoch}", f"out={tmp_path}/merged", "push=me/mine", "private=true")
    assert err.startswith("merge.py: push=me/mine: ") and line in err
    assert not list(tmp_path.iterdir()) and not any("create" in path for path in hub.asked)


def test_folder_without_a_model_is_not_pushed(hub, tmp_path):
    assert "neither a model nor an adapter is there to push" in refused(f"out={tmp_path}", "push=me/mine")
    assert hub.repos == {}
