"""Loading a checkpoint: the model has exactly its weights, and errors are one line that names the problem."""

import json

import pytest
import torch
from cases import cases
from conftest import EXPERTS, SMALL, random_model, reference
from safetensors.torch import load_file, save_file

from models import load_model
from models.config import FAMILIES, parse_config, read_config
from models.engine import Engine
from models.export import save_model
from models.refusal import Refusal
from models.weights import resolve, split_revision

CASES = cases("weights")

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 1234\n"
RAW = {"model_type": "qwen2", **SMALL}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def folder(tmp_path):
    """Write a valid checkpoint of one file with a minimal config.json in the old layout."""
    save_model(random_model(), tmp_path, RAW, torch.float32)
    (tmp_path / "config.json").write_text(json.dumps(RAW))
    return tmp_path


def edit_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def edit_tensors(folder, **changes):
    """Set tensors by name, with "__" for "."; None removes one."""
    path = folder / "model.safetensors"
    tensors = load_file(path) | {name.replace("__", "."): value for name, value in changes.items()}
    save_file({name: value for name, value in tensors.items() if value is not None}, path)


def shard(folder, names=("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")):
    """Split the checkpoint in two shards. Return the path of the index and its weight_map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {key: names[i % 2] for i, key in enumerate(sorted(tensors))}
    for name in names:
        save_file({key: tensors[key] for key in tensors if weight_map[key] == name}, folder / name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index, weight_map


def refused(kind, name, *words):
    """Assert that loading raises this kind of error with one line that contains these words."""
    with pytest.raises(kind) as caught:
        load_model(str(name))
    message = str(caught.value)
    assert type(caught.value) is kind and "\n" not in message and len(message) < 600, message
    for word in words:
        assert word in message, message


# -------------------------------------------------------------------------------------------------------- valid files


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_saved_model_loads_bitwise(tmp_path, model_type, tied):
    model = random_model(model_type, tie_word_embeddings=tied)
    raw = {**RAW, **EXPERTS, "model_type": model_type, "tie_word_embeddings": tied}
    raw = raw if model_type == "qwen3_moe" else {key: raw[key] for key in raw if key not in EXPERTS}
    save_model(model, tmp_path, raw, torch.float32)
    loaded = load_model(str(tmp_path))
    assert loaded.config == model.config
    assert all(torch.equal(value, loaded.state_dict()[key]) for key, value in model.state_dict().items())
    assert (HEAD in load_file(tmp_path / "model.safetensors")) is not tied
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    assert load_model(str(tmp_path), torch.bfloat16).lm_head.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_weights_load_from_and_to_any_float_dtype(tmp_path, stored, dtype):
    model = random_model("mistral", sliding_window=8)
    save_model(model, tmp_path, {**RAW, "model_type": "mistral", "sliding_window": 8}, stored)
    loaded = load_model(str(tmp_path), dtype)
    assert loaded.config.dtype == str(stored).removeprefix("torch.")
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value.to(stored).to(dtype)), key
    ids = torch.arange(20)[None]
    hidden_BTD = loaded(ids)
    assert hidden_BTD.dtype == dtype
    expected_BTD = model(ids)
    error = (hidden_BTD.float() - expected_BTD).square().mean().sqrt() / expected_BTD.square().mean().sqrt()
    assert error < (0.03 if torch.bfloat16 in (stored, dtype) else 0.005)  # eight bits of each weight, or eleven


def test_equal_tied_head_and_rotary_buffers_are_accepted(folder):
    edit_config(folder, tie_word_embeddings=True)
    embedding = load_file(folder / "model.safetensors")[EMBEDDING]
    edit_tensors(
        folder, lm_head__weight=embedding.clone(), model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8)
    )
    model = load_model(str(folder))
    assert torch.equal(model.lm_head.weight, embedding) and model.lm_head.weight is model.model.embed_tokens.weight


def in_hub_cache(folder, cache, hub_id="Some/model", commit="0123456789abcdef0123456789abcdef01234567", **refs):
    """Move a checkpoint into a hub cache in the client's layout, with branches and tags. Return the snapshot."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    snapshot.mkdir(parents=True), blobs.mkdir(exist_ok=True)
    for path in folder.iterdir():
        blob = path.rename(blobs / f"{commit[:4]}-{path.name}")
        (snapshot / path.name).symlink_to(blob)
    (repository / "refs").mkdir(exist_ok=True)
    for name in refs.values():
        path = repository / "refs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(commit)
    return snapshot


@pytest.mark.parametrize("sharded", [False, True])
def test_hub_snapshots_load_through_their_links(folder, tmp_path_factory, sharded):
    expected = load_model(str(folder)).state_dict()
    if sharded:
        assert len(set(shard(folder)[1].values())) == 2
    snapshot = in_hub_cache(folder, tmp_path_factory.mktemp("cache"))
    assert all(torch.equal(value, expected[key]) for key, value in load_model(str(snapshot)).state_dict().items())


@pytest.fixture
def cache(tmp_path_factory, monkeypatch):
    """Return an empty hub cache without network."""
    path = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return path


@pytest.mark.parametrize("offline", [True, False])
def test_pinned_revision_is_loaded(folder, cache, tmp_path_factory, monkeypatch, offline):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # unreachable
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between the client's attempts
    newer = tmp_path_factory.mktemp("newer")
    save_model(random_model(seed=1), newer, RAW, torch.float32)
    commits = ["a" * 40, "b" * 40]
    old = in_hub_cache(folder, cache, commit=commits[0], tag="v1.0", pull="refs/pr/1")
    new = in_hub_cache(newer, cache, commit=commits[1], branch="main")
    for revision, snapshot in [("v1.0", old), ("refs/pr/1", old), (commits[0], old), ("main", new), (commits[1], new)]:
        assert resolve(f"Some/model@{revision}") == snapshot
    assert resolve("Some/model") == new
    assert torch.equal(load_model("Some/model@v1.0").lm_head.weight, random_model().lm_head.weight)
    assert torch.equal(load_model("Some/model").lm_head.weight, random_model(seed=1).lm_head.weight)
    refused(FileNotFoundError, "Some/model@v2.0", "'Some/model@v2.0'", "no download from the hub")
    refused(FileNotFoundError, f"Some/model@{'c' * 40}", "no download from the hub")


def test_name_is_split_into_hub_id_and_revision(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert split_revision("Some/model@v1.0") == ("Some/model", "v1.0")
    assert split_revision("Some/model@refs/pr/1") == ("Some/model", "refs/pr/1")
    assert split_revision("Some/model") == ("Some/model", None)
    for name in ("tiny", "tiny@v1", "/some/model@v1", "./Some/model@v1"):
        assert split_revision(name) == (name, None)
    folder = tmp_path / "Some" / "model@v1"
    folder.mkdir(parents=True)
    assert (
        split_revision("Some/model@v1") == ("Some/model@v1", None) and str(resolve("Some/model@v1")) == "Some/model@v1"
    )


@pytest.mark.parametrize(
    "revision", ["", " ", "-x", "../x", "a/../b", "a b", "/x", "x/", "x@y", "x\ny", "é", "a//b", "x."]
)
def test_impossible_revision_is_refused(cache, revision):
    refused(Refusal, f"Some/model@{revision}", "is not the name of a branch, tag or commit")


def test_stories260k_greedy_output_matches_llama2_c():
    """Greedy decoding from the first token gives the 256 ids and log-probabilities of llama2.c."""
    golden = json.loads(reference("stories260k", "golden.json").read_text())
    engine = Engine(load_model(str(reference("stories260k"))), max_rows=1, max_len=512)
    slot = engine.open((0, 0))
    engine.feed(slot, golden["greedy_ids"][:1])
    (row,) = engine.run(len(golden["greedy_ids"]) - 1, temperature=0, stop_ids=frozenset({2}))
    assert row.ids == golden["greedy_ids"][1:] and row.stop_reason == "length"
    assert sum(row.logprobs) == pytest.approx(golden["sum_logprob"], abs=2e-3)
    assert row.logprobs[:20] == pytest.approx(golden["logprobs_fp32_first20"], abs=1e-5)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("fields", "words"), CASES["refused configs"], ids=str)
def test_unsupported_config_is_refused(folder, fields, words):
    edit_config(folder, **fields)
    refused(Refusal, folder, str(folder / "config.json"), *words)


@pytest.mark.parametrize("text", ["{", "[]", "null", '"qwen2"', "\xff"])
def test_config_that_is_no_json_object_is_refused(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin1"))
    refused(Refusal, folder, str(folder / "config.json"), "JSON")


def test_incomplete_folder_is_refused(folder, tmp_path):
    (folder / "config.json").rename(folder / "kept")
    refused(FileNotFoundError, folder, str(folder / "config.json"))
    (folder / "kept").rename(folder / "config.json")
    (folder / "model.safetensors").unlink()
    refused(FileNotFoundError, folder, str(folder), "model.safetensors", "index.json")


@pytest.mark.parametrize(
    "name",
    ["./nowhere", "/no/where", "nowhere", "../a/b", "a/b/c", "a/..", "nowhere@main", "./a/b@main", "a/..@v1", "a/b\n"],
)
def test_unknown_name_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(FileNotFoundError, name, repr(name), "no such folder", "not a hub id")


def test_an_empty_name_and_a_file_are_refused(folder, monkeypatch):
    """An empty name is an empty variable of a shell, and as a path it would be the folder that one works in."""
    monkeypatch.chdir(folder)
    refused(Refusal, "", "model= is given without a name")
    path = folder / "model.safetensors"
    refused(FileNotFoundError, path, repr(str(path)), f"this is a file: give its folder, {folder}")


def test_an_adapter_beside_a_model_is_said_once(folder, capsys):
    (folder / "adapter_config.json").write_text("{}")
    for _ in range(2):
        load_model(str(folder))
    said = f"{folder} has a model and an adapter: model= alone plays the model, adapter={folder} beside it both\n"
    assert capsys.readouterr().out == said


def test_hub_id_without_network_is_refused(cache):
    refused(FileNotFoundError, "Nobody/no-such-model", "Nobody/no-such-model", "hub")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated_file_is_refused(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(Refusal, folder, str(path), "not a whole safetensors file")


def test_a_git_lfs_pointer_is_named(folder):
    path = folder / "model.safetensors"
    path.write_bytes(LFS_POINTER)
    refused(Refusal, folder, f"{path}: is a Git LFS pointer, not the file: git lfs pull")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__norm__weight": torch.ones(47)}, ["model.norm.weight", "(47,)", "(48,)"]),
        ({"model__norm__bias": torch.ones(48)}, ["model.norm.bias", "not part of the model"]),
        ({"model__norm__weight": None}, ["model.norm.weight is missing"]),
        ({"lm_head__weight": None}, ["lm_head.weight is missing"]),
        ({"model__norm__weight": None, "lm_head__weight": None}, ["lm_head.weight is missing and 1 more"]),
        ({"model__norm__weight": torch.ones(48, dtype=torch.int8)}, ["model.norm.weight", "int8"]),
    ],
    ids=["shape", "unknown", "missing", "no head", "two missing", "integers"],
)
def test_tensors_that_do_not_fit_are_refused(folder, changes, words):
    edit_tensors(folder, **changes)
    refused(Refusal, folder, str(folder), *words)


def test_tied_head_that_differs_is_refused(folder):
    edit_config(folder, tie_word_embeddings=True)
    refused(Refusal, folder, str(folder), "tie_word_embeddings", HEAD, EMBEDDING)


def test_missing_or_repeated_shard_is_refused(folder):
    _, weight_map = shard(folder)
    first, second = sorted(set(weight_map.values()))
    content = (folder / second).read_bytes()
    (folder / second).unlink()
    refused(FileNotFoundError, folder, str(folder / second), "missing")
    (folder / second).write_bytes((folder / first).read_bytes())
    refused(Refusal, folder, str(folder / second), "already in another shard")
    (folder / second).write_bytes(content)
    assert load_model(str(folder)).config == read_config(folder)
    (folder / "model.safetensors.index.json").unlink()
    refused(FileNotFoundError, folder, f"; {first} is a shard, which is read only with the index")


@pytest.mark.parametrize(
    "escape", ["../x.safetensors", "{outside}/x.safetensors", "a/../../x.safetensors", "..", "x.bin"]
)
def test_index_that_points_outside_is_refused(folder, tmp_path_factory, escape):
    index, weight_map = shard(folder)
    outside = tmp_path_factory.mktemp("outside")
    save_file({"model.norm.weight": torch.ones(48)}, outside / "x.safetensors")
    save_file({"model.norm.weight": torch.ones(48)}, folder.parent / "x.safetensors")
    name = escape.format(outside=outside)
    index.write_text(json.dumps({"weight_map": {**weight_map, "model.norm.weight": name}}))
    refused(Refusal, folder, str(index), repr(name), "plain file name")


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("where", ["outside", "blobs", "snapshots/0123/blobs"])
def test_link_out_of_the_folder_is_refused(folder, tmp_path_factory, sharded, where):
    path = folder / (shard(folder)[1][HEAD] if sharded else "model.safetensors")
    outside = tmp_path_factory.mktemp("outside") / where
    outside.mkdir(parents=True)
    path.symlink_to(path.rename(outside / path.name))
    refused(Refusal, folder, str(path), "outside the folder")


@pytest.mark.parametrize("sharded", [False, True])
def test_link_to_another_repositorys_blobs_is_refused(folder, tmp_path_factory, sharded):
    name = shard(folder)[1][HEAD] if sharded else "model.safetensors"
    cache = tmp_path_factory.mktemp("cache")
    path = in_hub_cache(folder, cache) / name
    (cache / "models--Other--model" / "blobs").mkdir(parents=True)
    blob = path.resolve().rename(cache / "models--Other--model" / "blobs" / "x")
    path.unlink()
    path.symlink_to(blob)
    refused(Refusal, path.parent, str(path), "outside the folder")


def test_link_within_the_folder_is_followed(folder):
    path = folder / "model.safetensors"
    path.symlink_to(path.rename(folder / "kept.safetensors").name)
    assert load_model(str(folder)).config == parse_config(RAW)


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": ["b"]}}', "null", "\xff"]
)
def test_malformed_index_is_refused(folder, text):
    index, _ = shard(folder)
    index.write_bytes(text.encode("latin1"))
    refused(Refusal, folder, str(index), "not a shard index")


@pytest.mark.parametrize("value", [1, None])
def test_index_with_shards_that_are_no_names_is_refused(folder, value):
    index, _ = shard(folder)
    index.write_text(json.dumps({"weight_map": {HEAD: value}}))
    refused(Refusal, folder, str(index), repr(value))
