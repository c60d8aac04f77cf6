"""An adapter's files: loads restore every bit, damaged files are refused, and PEFT computes the same."""

import dataclasses
import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from cases import cases
from conftest import random_model
from hostile import modest
from safetensors.torch import load_file, save_file
from test_lora import IDS_BT, LEAVES, adapted_model, awake, close, injected, logits, raw_config, tiny_model
from torch import nn

import lora
from lora import fused_experts
from lora.targets import by_pattern
from models import load_model, load_tokenizer
from models.export import save_model
from models.logprob import token_logprobs

CASES = cases("lora_files")

FIXTURES = Path(__file__).parents[1] / "fixtures"
RANKS, ALPHAS = {"q_proj": 2, "^model.layers.1.mlp.up_proj": 8}, {r"layers\.0\.self_attn\..*": 5, "down_proj": 0.7}


@pytest.mark.parametrize(
    "keys",
    [
        dict(r=4, alpha=6),
        dict(r=3, alpha=5, rslora=True),
        dict(r=1, alpha=0.5, dropout=0.25, targets="attention"),
        dict(r=2, targets=r".*\.1\.mlp\.(gate|up)_proj"),
        dict(r=2, targets=["layers.0.self_attn.q_proj", "v_proj"]),
        dict(r=5, alpha=0.1, rslora=True, rank_pattern=RANKS, alpha_pattern=ALPHAS),
        dict(r=3, rank_pattern={".*": 7}),
    ],
)
def test_round_trip_is_bitwise(keys, tmp_path):
    model = adapted_model(**keys)
    lora.save_adapter(model, tmp_path / "new" / "folder", "some/base")
    other = tiny_model()
    names = lora.load_adapter(other, f"{tmp_path}/new/folder")  # a folder may be given as text
    assert torch.equal(logits(other), logits(model))
    mine, theirs = lora.lora_layers(model), lora.lora_layers(other)
    assert [path for path, _ in mine] == [path for path, _ in theirs] and {p for p, _ in mine} == set(names)
    for (_, a), (_, b) in zip(mine, theirs, strict=True):
        assert torch.equal(a.adapters["default"].A, b.adapters["default"].A) and a.dropout == b.dropout
        assert torch.equal(a.adapters["default"].B, b.adapters["default"].B)
        assert a.adapters["default"].scale == b.adapters["default"].scale, "not a bit of it is lost in the file"
    assert lora.read_adapter_config(f"{tmp_path}/new/folder")["base_model_name_or_path"] == "some/base"


def test_config_has_the_users_settings(tmp_path):
    lora.save_adapter(adapted_model(r=3, alpha=5, rslora=True, rank_pattern={"down_proj": 2}), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["use_rslora"]) == (3, 5, True)
    assert config["rank_pattern"] == {rf"^model\.layers\.{i}\.mlp\.down_proj": 2 for i in (0, 1)}
    assert "alpha_pattern" not in config and config["target_modules"] == sorted(LEAVES)


def test_mixed_scaling_rules_are_not_saved(tmp_path):
    model = injected(tiny_model(), targets="attention", rslora=True)
    lora.inject(model, targets=["up_proj"])
    with pytest.raises(ValueError, match="some layers scale by rsLoRA's rule"):
        lora.save_adapter(model, tmp_path / "x")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("given", "base", "revision"),
    [
        ("Qwen/Qwen3-0.6B@refs/pr/1", "Qwen/Qwen3-0.6B", "refs/pr/1"),
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", None),
        ("/models/me@work", "/models/me@work", None),
        (None, None, None),
    ],
)
def test_base_and_revision_round_trip(given, base, revision, tmp_path):
    lora.save_adapter(adapted_model(), tmp_path, given)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config.get("revision")) == (base, revision)
    assert lora.read_adapter_config(tmp_path)["base_model_name_or_path"] == given


def test_revision_of_a_local_base_is_ignored(tmp_path, monkeypatch):
    """PEFT may write one from the arguments of a call."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "base").mkdir(parents=True)
    for base in ("/models/base", "models/base"):
        lora.save_adapter(adapted_model(), tmp_path / "adapter", base)
        set_config(revision="main")(tmp_path / "adapter")
        assert lora.read_adapter_config(tmp_path / "adapter")["base_model_name_or_path"] == base


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_follow_the_umask(mask, tmp_path):
    before = os.umask(mask)
    try:
        lora.save_adapter(adapted_model(), tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("adapter_config.json", "adapter_model.safetensors"), 0o666 & ~mask)


def test_loaded_adapter_is_trainable_only_on_request(tmp_path):
    lora.save_adapter(adapted_model(), tmp_path)
    for trainable in (True, False):
        lora.load_adapter(model := tiny_model(), tmp_path, name="reference", trainable=trainable)
        assert {p.requires_grad for n, p in model.named_parameters() if ".adapters." in n} == {trainable}
        assert not any(p.requires_grad for n, p in model.named_parameters() if ".adapters." not in n)


@pytest.mark.parametrize("targets", [r".*self_attn\.[^.]*", r".*\.self_attn\..*", ".*self_attn.(q|k|v|o)_proj"])
@pytest.mark.parametrize("family", ["qwen2", "llama", "mistral"])
def test_a_regex_over_attention_ignores_norms_that_the_family_lacks(family, targets, tmp_path):
    """In the place of q_norm and k_norm these families have nn.Identity; PEFT's own models have nothing there."""
    model = random_model(family)
    lora.inject(model, r=2, targets="attention")
    lora.save_adapter(model, tmp_path)
    set_config(target_modules=targets)(tmp_path)
    assert len(lora.load_adapter(random_model(family), tmp_path)) == 8


@pytest.mark.parametrize("targets", ["all-linear", r".*_proj\b.*"])
def test_second_adapter_loads_over_the_first(targets, tmp_path):
    lora.save_adapter(model := adapted_model(), tmp_path)
    set_config(target_modules=targets)(tmp_path)
    both = tiny_model()
    for name in ("reference", "default"):
        assert len(lora.load_adapter(both, tmp_path, name)) == 14
    with lora.use_adapter(both, "reference"):
        assert torch.equal(logits(both), logits(model))


def test_an_earlier_versions_epoch_loads():
    """fixtures/earlier_epoch: an epoch_N of an SFT run of the embedded model, as written before files were split up."""
    lora.load_adapter(model := load_model("tiny"), FIXTURES / "earlier_epoch")
    ids_BT = torch.tensor([load_tokenizer("tiny").prompt([{"role": "user", "content": "Goal: craft 2 oak planks."}])])
    with torch.no_grad():
        hidden_ND = model(ids_BT)[0, :-1]
    logprobs_N, _ = token_logprobs(hidden_ND, model.lm_head.weight, ids_BT[0, 1:])
    assert logprobs_N[:4].tolist() == pytest.approx([-15.16341, -9.70831, -12.13524, -9.54264], abs=1e-3)
    assert logprobs_N.sum().item() == pytest.approx(-152.2731, abs=1e-2)


def test_saving_an_unknown_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no adapter named 'other' to save"):
        lora.save_adapter(adapted_model(), tmp_path / "x", name="other")
    assert not (tmp_path / "x").exists()


def set_config(**changes):
    def edit(folder):
        path = folder / "adapter_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


def set_tensors(change):
    def edit(folder):
        tensors = load_file(folder / "adapter_model.safetensors")
        save_file(change(tensors), folder / "adapter_model.safetensors")

    return edit


def without(tensors, *parts):
    return {key: value for key, value in tensors.items() if not all(part in key for part in parts)}


def renamed(tensors, old, new):
    return {key.replace(old, new): value for key, value in tensors.items()}


def truncate(folder):
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def way(option):
    """Return the end of the refusal of an option."""
    kept = ("layer_replication", "use_qalora", "alora_invocation_tokens", "monteclora_config", "velora_config")
    unknown = option in (*kept, "use_bdlora", "arrow_config", "kasa_config")
    return "" if unknown else ": merge it with PEFT into its base and give model="


def repeat_key(folder):
    path = folder / "adapter_config.json"
    path.write_text(path.read_text().rstrip().removesuffix("}") + ', "lora_alpha": 64}')


CHANGE_THE_BASE = ["pissa", "pissa_niter_4", "olora", "corda", "loftq", "lora_ga", "of_tomorrow"]  # initialisations
REFUSED_OPTIONS = {
    **dict(bias="all", fan_in_fan_out=True, modules_to_save=["lm_head"], init_lora_weights="pissa", use_dora=True),
    **dict(lora_bias=True, layer_replication=[[0, 2]], use_qalora=True),
    **dict(trainable_token_indices=[3], alora_invocation_tokens=[1, 2], monteclora_config={"num_samples": 4}),
    **dict(velora_config={"num_groups": 2}, use_bdlora={"nblocks": 2}, arrow_config={"top_k": 1}, kasa_config={"x": 1}),
}
REFUSED = {
    **{
        f"the option {name}": (
            set_config(**{name: value}),
            f"adapter_config.json: {name}=.* is not supported{way(name)}$",
        )
        for name, value in REFUSED_OPTIONS.items()
    },
    **{
        f"initialised by {how}": (
            set_config(init_lora_weights=how),
            f"='{how}' is not supported{way('init_lora_weights')}",
        )
        for how in CHANGE_THE_BASE
    },
    **{name: (set_config(**changes), said) for name, (changes, said) in CASES["refused configs"].items()},
    "missing folder": (shutil.rmtree, "adapter_config.json: not found"),
    "not JSON": (lambda f: (f / "adapter_config.json").write_text("{r: 4"), "adapter_config.json: not valid JSON"),
    "deep JSON": (lambda f: (f / "adapter_config.json").write_text("[" * 10**5), "adapter_config.json: not valid JSON"),
    "a key twice": (repeat_key, r"adapter_config.json: not valid JSON \(the key 'lora_alpha' twice\)"),
    "a pointer": (
        lambda f: (f / "adapter_model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n"),
        "adapter_model.safetensors: is a Git LFS pointer, not the file: git lfs pull",
    ),
    "not an object": (lambda f: (f / "adapter_config.json").write_text("[]"), "adapter_config.json: not a JSON object"),
    "head": (set_config(target_modules=["lm_head", *LEAVES]), "an adapter on lm_head is not supported"),
    "embedding": (
        set_config(target_modules=["embed_tokens", *LEAVES]),
        "adapter on model.embed_tokens is not supported",
    ),
    "unnamed": (set_config(target_modules=sorted(LEAVES - {"up_proj"})), r"0\.mlp\.up_proj, which .* does not name"),
    "no tensors": (lambda f: (f / "adapter_model.safetensors").unlink(), "adapter_model.safetensors: missing"),
    "truncated": (truncate, "adapter_model.safetensors: not a whole safetensors file"),
    "stray": (set_tensors(lambda t: {**t, "base_model.model.lm_head.weight": torch.ones(2)}), "lm_head.weight is not"),
    "prefix": (set_tensors(lambda t: renamed(t, "base_model.model.", "")), "is not a LoRA factor named base_model"),
    "half prefix": (set_tensors(lambda t: renamed(t, "base_model.model.model", "base_model.model")), "lacks"),
    "no B": (set_tensors(lambda t: without(t, "1.mlp.up_proj", "lora_B")), r"layers\.1\.mlp\.up_proj has no lora_B"),
    "no layer": (set_tensors(lambda t: without(t, "1.mlp.up_proj")), "target_modules names .*1.mlp.up_proj, which the"),
    "more layers": (set_tensors(lambda t: renamed(t, "layers.1", "layers.9")), r"layers\.9\..* that this model lacks"),
    "not linear": (set_tensors(lambda t: renamed(t, "1.mlp.up_proj", "1.mlp")), r"layers\.1\.mlp .*lacks"),
    "whole numbers": (
        set_tensors(lambda t: {k: v.int() for k, v in t.items()}),
        "has dtype torch.int32; weights must be float",
    ),
    "transposed": (set_tensors(lambda t: {k: v.mT.contiguous() for k, v in t.items()}), "has shape"),
}


@pytest.mark.parametrize("damage", REFUSED)
def test_damaged_files_are_refused_in_one_line(damage, tmp_path):
    edit, said = REFUSED[damage]
    lora.save_adapter(adapted_model(), tmp_path / "adapter")
    edit(tmp_path / "adapter")
    model = tiny_model()
    with pytest.raises((ValueError, FileNotFoundError), match=said) as caught:
        lora.load_adapter(model, tmp_path / "adapter")
    assert str(tmp_path / "adapter") in str(caught.value) and "\n" not in str(caught.value)
    assert not lora.lora_layers(model), "nothing was injected"


def test_adapter_for_a_wider_model_is_refused(tmp_path):
    lora.save_adapter(awake(injected(tiny_model(hidden_size=64), r=4)), tmp_path)
    with pytest.raises(ValueError, match=r"has shape \(64, 4\), this model needs \(32, 4\)"):
        lora.load_adapter(tiny_model(), tmp_path)


class Bomb:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.mkdir, (str(self.target),)


def test_pickled_adapter_executes_no_code(tmp_path):
    model = adapted_model()
    lora.save_adapter(model, tmp_path)
    path, pickled = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_model.bin"
    torch.save(load_file(path), pickled)
    weights = path.read_bytes()
    path.unlink()
    lora.load_adapter(other := tiny_model(), tmp_path)
    assert torch.equal(logits(other), logits(model))

    for write in (pickle.dump, lambda bomb, file: torch.save(bomb, file)):
        with open(pickled, "wb") as file:
            write(Bomb(tmp_path / "executed"), file)
        with pytest.raises(ValueError, match=r"adapter_model\.bin: not readable as plain weights"):
            lora.load_adapter(tiny_model(), tmp_path)
        assert not (tmp_path / "executed").exists()
    pickle.loads(pickle.dumps(Bomb(tmp_path / "executed")))
    assert (tmp_path / "executed").exists(), "the bomb is real"
    torch.save({"weights": [1, 2]}, pickled)
    with pytest.raises(ValueError, match=r"adapter_model\.bin: not readable as plain weights"):
        lora.load_adapter(tiny_model(), tmp_path)
    path.write_bytes(weights)
    lora.load_adapter(other := tiny_model(), tmp_path)
    assert torch.equal(logits(other), logits(model)), "safetensors go before what is pickled"


@pytest.mark.filterwarnings("ignore")  # of torch about the forms of tensors
def test_pickled_tensors_hold_their_entries(tmp_path):
    """Some kinds of tensors stand for more than their bytes: a stride of 0 for a million times a million entries."""
    lora.save_adapter(model := adapted_model(), tmp_path)
    path, pickled = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_model.bin"
    tensors = load_file(path)
    path.unlink()
    name, factor = next(iter(tensors.items()))
    million = torch.zeros(1).expand(10**6, 10**6)
    for other in (million, factor.to_sparse(), factor.to("meta"), torch.nested.nested_tensor([factor])):
        torch.save({**tensors, name: other}, pickled)
        with pytest.raises(ValueError, match=rf"adapter_model\.bin: {name} is no dense tensor"):
            lora.load_adapter(tiny_model(), tmp_path)
    torch.save({**tensors, 1: factor}, pickled)
    with pytest.raises(ValueError, match="tensor 1 is not a LoRA factor"):
        lora.load_adapter(tiny_model(), tmp_path)
    others = [factor.int(), factor.to(torch.complex64)]
    if hasattr(torch, "float4_e2m1fn_x2"):  # not in every torch
        others.append(torch.zeros(factor.shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2))
    for other in others:
        torch.save({**tensors, name: other}, pickled)
        with pytest.raises(ValueError, match=f"has dtype {other.dtype}"):
            lora.load_adapter(tiny_model(), tmp_path)
    torch.save({**tensors, name: factor.T.contiguous().T}, pickled)
    lora.load_adapter(read := tiny_model(), tmp_path)
    assert torch.equal(logits(read), logits(model)), "the order of its entries is free"


# PEFT reads ours, and we read PEFT's


def hub_model(folder, family):
    transformers = pytest.importorskip("transformers")
    save_model(tiny_model(family), folder, raw_config(family), torch.float32)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def hub_logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS_BT).logits.flatten(0, 1)


@pytest.mark.filterwarnings("error:.*missing adapter keys")
@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("qwen3", dict(r=4, alpha=6)),
        ("llama", dict(r=3, alpha=5, rslora=True)),
        ("qwen2", dict(r=2, targets=r".*\.1\.mlp\.(gate|up)_proj")),
        ("llama", dict(r=3, alpha=5, rslora=True, rank_pattern=RANKS, alpha_pattern=ALPHAS)),
        ("qwen3", dict(r=3, rank_pattern=RANKS)),
        *((family, dict(r=4, alpha=6)) for family in ("smollm3", "granite", "olmo2", "olmo3", "phi3")),
        ("phi3", dict(r=4, alpha=6, targets="attention")),
        ("qwen3_moe", dict(r=4, alpha=6, targets="attention")),
        ("qwen3_moe", dict(r=4, alpha=6)),
    ],
)
def test_peft_computes_our_adapter_alike(family, keys, tmp_path):
    peft = pytest.importorskip("peft")
    base = hub_model(tmp_path / "base", family)
    plain = hub_logits(base)
    model = awake(injected(tiny_model(family), **keys))
    lora.save_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    scales = {name: module.scaling["default"] for name, module in theirs.named_modules() if hasattr(module, "lora_A")}
    ours = {f"base_model.model.{p}": layer.parts().scale for p, layer in lora.lora_layers(model)}
    by_layer = [{name: scale for name, scale in side.items() if ".experts" not in name} for side in (scales, ours)]
    assert by_layer[0] == by_layer[1] and set(scales.values()) == set(ours.values())  # PEFT makes two of all experts
    assert (hub_logits(theirs) - plain).abs().max() > 0.1, "a wrong prefix would load as a silent base model"
    close(hub_logits(theirs), logits(model), 2e-5)


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        ("qwen3", dict(r=4, lora_alpha=6, target_modules=["q_proj", "down_proj"], use_rslora=True)),
        ("llama", dict(r=2, lora_alpha=8, target_modules="all-linear", lora_dropout=0.1)),
        ("qwen2", dict(r=3, lora_alpha=3, target_modules=r".*\.0\.self_attn\.[qv]_proj")),
        ("llama", dict(r=3, rank_pattern=RANKS, alpha_pattern=ALPHAS, target_modules="all-linear")),
        ("qwen3", dict(r=3, use_rslora=True, rank_pattern=RANKS, alpha_pattern=ALPHAS, target_modules="all-linear")),
        ("qwen2", dict(target_modules=["q_proj", "up_proj"], layers_to_transform=[1], layers_pattern="layers")),
        ("qwen3", dict(target_modules="all-linear", exclude_modules=["k_proj", "0.mlp.up_proj"])),
        *((family, dict(target_modules="all-linear")) for family in ("smollm3", "granite", "olmo2", "olmo3", "phi3")),
        ("qwen3_moe", dict(target_modules=["q_proj", "o_proj"])),
        (
            "qwen3_moe",
            dict(r=3, target_modules=["q_proj"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
        ),
        ("qwen3_moe", dict(r=2, use_rslora=True, target_parameters=["mlp.experts.gate_up_proj"])),
        ("qwen3_moe", dict(r=2, target_parameters=["model.layers.1.mlp.experts.down_proj"])),
        *[("llama", dict(init_lora_weights=how)) for how in (False, "gaussian", "orthogonal", "mica")],
    ],
)
def test_we_compute_pefts_adapter_alike(family, keys, tmp_path):
    peft = pytest.importorskip("peft")
    theirs = peft.get_peft_model(
        hub_model(tmp_path / "base", family), peft.LoraConfig(task_type="CAUSAL_LM", **keys)
    ).eval()
    for name, p in theirs.named_parameters():
        if "lora_B" in name or ("lora_A" in name and not p.any()):
            nn.init.normal_(p, std=0.2)
    theirs.save_pretrained(tmp_path / "adapter")
    model = tiny_model(family)
    plain = logits(model)
    names = lora.load_adapter(model, tmp_path / "adapter")
    assert {name.rsplit(".", 1)[-1] for name in names} <= LEAVES | {"qkv_proj", "gate_up_proj"}
    assert (logits(model) - plain).abs().max() > 0.1
    close(logits(model), hub_logits(theirs), 2e-5)


WHOLE = {"target_modules": None, "target_parameters": ["experts.gate_up_proj", "experts.down_proj"]}
WRONG_EXPERTS = {
    "a tensor of no experts": ({"target_parameters": ["mlp.up_proj.weight"]}, "'mlp.up_proj.weight' is not supported"),
    "one tensor of two": ({"target_parameters": ["experts.down_proj"]}, "names no tensor, or only one of two"),
    "no tensor named": (
        {"target_parameters": None, "target_modules": ["q_proj"]},
        "names no tensor, or only one of two",
    ),
    "another rank": (
        {"r": 3},
        r"experts.down_proj needs lora_A \[18, 64\] and lora_B \[32, 18\], which the file lacks",
    ),
    "a rank_pattern": ({"rank_pattern": {"experts": 4}}, "rank_pattern=.* is not supported beside target_parameters"),
    "dropout": ({"lora_dropout": 0.1}, "lora_dropout=0.1 is not supported beside target_parameters"),
    "no names": ({"target_parameters": [3]}, "target_parameters must be names"),
}


@pytest.mark.parametrize("case", WRONG_EXPERTS)
def test_wrong_adapters_on_fused_experts_are_refused(case, tmp_path):
    """Written as PEFT writes them: its factors hold those of all experts."""
    changes, message = WRONG_EXPERTS[case]
    lora.save_adapter(injected(tiny_model("qwen3_moe"), r=2, alpha=4, targets=r".*experts\..*"), tmp_path)
    shapes = {"base_layer.lora_A": (12, 32), "base_layer.lora_B": (128, 12), "lora_A": (12, 64), "lora_B": (32, 12)}
    experts = [f"base_model.model.model.layers.{layer}.mlp.experts" for layer in (0, 1)]
    tensors = {f"{where}.{name}.weight": torch.randn(shape) for where in experts for name, shape in shapes.items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    set_config(**WHOLE)(tmp_path)
    assert len(lora.load_adapter(tiny_model("qwen3_moe"), tmp_path)) == 2 * 6 * 3
    set_config(**changes)(tmp_path)
    with pytest.raises(ValueError, match=message):
        lora.load_adapter(tiny_model("qwen3_moe"), tmp_path)


def test_an_expert_with_factors_of_its_own_beside_the_fused_ones_is_refused():
    layers = {f"mlp.experts.0.{name}_proj": nn.Linear(4, 4) for name in ("gate", "up")}
    fused = {"base_model.model.mlp.experts.lora_A.weight": torch.zeros(2, 4)}
    fused["base_model.model.mlp.experts.lora_B.weight"] = torch.zeros(8, 2)
    assert len(fused_experts.split(fused, layers, 2)) == 4
    own = {"base_model.model.mlp.experts.0.up_proj.lora_A.weight": torch.zeros(2, 4)}
    with pytest.raises(ValueError, match=r"the file has .*0\.up_proj\.lora_A\.weight beside the factors"):
        fused_experts.split(fused | own, layers, 2)


@pytest.mark.parametrize("keys", CASES["names of layers"])
def test_config_names_the_layers_that_peft_adapts(keys, tmp_path):
    """The config has names and patterns, as a person writes them, not the list that PEFT saves."""
    peft = pytest.importorskip("peft")
    theirs = peft.get_peft_model(hub_model(tmp_path / "base", "qwen3"), peft.LoraConfig(task_type="CAUSAL_LM", **keys))
    theirs.save_pretrained(folder := tmp_path / "adapter")
    set_config(**{"target_modules": None, **keys})(folder)
    expected = {n.removeprefix("base_model.model.") for n, m in theirs.named_modules() if hasattr(m, "lora_A")}
    assert 0 < len(expected) <= 14
    assert set(lora.load_adapter(tiny_model(), folder)) == expected

    tensors, path = load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.safetensors"
    lost = min(expected)
    save_file(without(tensors, f".{lost}."), path)
    with pytest.raises(ValueError, match=f"target_modules names {lost}, which the file lacks"):
        lora.load_adapter(tiny_model(), folder)
    more = min({p for p, m in tiny_model().named_modules() if isinstance(m, nn.Linear)} - expected)
    copies = {k.replace(lost, more): v.clone() for k, v in tensors.items() if f".{lost}." in k}
    save_file(tensors | copies, path)
    with pytest.raises(ValueError, match=f"{more}, which target_modules does not name|lm_head is not supported"):
        lora.load_adapter(tiny_model(), folder)


def test_patterns_match_as_in_peft():
    utils = pytest.importorskip("peft.utils.other")
    keys = ["q_proj", "proj", "^q_proj", "^model.layers.0.mlp.up_proj", "mlp.up_proj", "layers.1", r"layers\.1\..*"]
    keys += [".*", "self_attn.(q|k)_proj", "q_proj|v_proj", "[qv]_proj", "x_proj", "^.*down_proj", "o_proj$"]
    paths, matched = [path for path, _ in lora.lora_layers(adapted_model())], 0
    for first in keys:
        for second in keys:
            pattern = {first: 1, second: 2} if first != second else {first: 1}
            found = by_pattern(paths, pattern)
            for path in paths:
                expected = pattern.get(utils.get_pattern_key(pattern, path), 0)
                assert found.get(path, 0) == expected, (pattern, path)
                matched += expected > 0
    assert matched > 500


def test_adapters_on_head_or_embedding_are_refused(tmp_path):
    peft = pytest.importorskip("peft")
    for layer in ("lm_head", "embed_tokens"):
        keys = dict(task_type="CAUSAL_LM", target_modules=["q_proj", layer])
        theirs = peft.get_peft_model(hub_model(tmp_path / "base", "qwen3"), peft.LoraConfig(**keys))
        theirs.save_pretrained(tmp_path / layer)
        with pytest.raises(ValueError, match=rf"an adapter on (model\.)?{layer} is not supported"):
            lora.load_adapter(tiny_model(), tmp_path / layer)


# Every option of PEFT

HARMLESS_OPTIONS = {
    **dict(task_type="FEATURE_EXTRACTION", auto_mapping={"base_model_class": "X"}, peft_version="9.9"),
    **dict(inference_mode=True, megatron_config={"a": 1}, megatron_core="other.core", loftq_config={"loftq_bits": 4}),
    **dict(eva_config={"rho": 3.0}, corda_config={"x": 1}, lora_ga_config={"x": 1}, qalora_group_size=32),
    **dict(runtime_config={"ephemeral_gpu_offload": True}, ensure_weight_tying=True),
}
READ_OPTIONS = {  # (other options, the result: an error or a property of the loaded layer)
    "peft_type": (dict(peft_type="ADALORA"), "peft_type is 'ADALORA'"),
    "base_model_name_or_path": (dict(base_model_name_or_path="a/b"), lambda layer, config: "a/b" in config.values()),
    "target_parameters": (dict(target_parameters=["mlp.up_proj.weight"]), "'mlp.up_proj.weight' is not supported"),
    "revision": (dict(base_model_name_or_path="a/b", revision="c"), lambda layer, config: "a/b@c" in config.values()),
    "r": (dict(r=8), "this model needs"),
    "lora_alpha": (dict(lora_alpha=12), lambda layer, config: layer.parts().scale == 3),
    "lora_dropout": (dict(lora_dropout=0.3), lambda layer, config: layer.dropout == 0.3),
    "use_rslora": (dict(use_rslora=True), lambda layer, config: layer.parts().scale == 3),
    "alpha_pattern": (dict(alpha_pattern={"q_proj": 4}), lambda layer, config: layer.parts().scale == 1),
    "rank_pattern": (dict(rank_pattern={"q_proj": 8}), "this model needs"),
    "target_modules": (dict(target_modules=["q_proj"]), "target_modules does not name"),
    "exclude_modules": (dict(exclude_modules=["q_proj"]), "target_modules does not name"),
    "layers_to_transform": (dict(layers_to_transform=[1]), "target_modules does not name"),
    "layers_pattern": (dict(layers_to_transform=[0, 1], layers_pattern="h"), "target_modules does not name"),
}


def peft_fields() -> dict:
    """Return the name and default of every option."""
    peft = pytest.importorskip("peft")
    return {field.name: getattr(peft.LoraConfig(), field.name) for field in dataclasses.fields(peft.LoraConfig)}


def test_every_peft_option_has_a_verdict(tmp_path):
    fields = peft_fields()
    verdicts = [*READ_OPTIONS, *HARMLESS_OPTIONS, *REFUSED_OPTIONS]
    assert set(fields) <= set(verdicts) and len(verdicts) == len(set(verdicts))
    for name, value in (REFUSED_OPTIONS | HARMLESS_OPTIONS).items():
        assert name not in fields or value != fields[name], "a verdict is tried with another value than the default"
    lora.save_adapter(model := adapted_model(), tmp_path)
    unset = {
        name: fields[name] for name in set(fields) & (set(REFUSED_OPTIONS) | set(HARMLESS_OPTIONS) - {"runtime_config"})
    }
    set_config(**unset, exclude_modules=None, rank_pattern={}, alpha_pattern={}, option_of_tomorrow=None)(tmp_path)
    lora.load_adapter(other := tiny_model(), tmp_path)
    assert torch.equal(logits(other), logits(model))


@pytest.mark.parametrize("option", HARMLESS_OPTIONS)
def test_harmless_options_change_nothing(option, tmp_path):
    lora.save_adapter(model := adapted_model(), tmp_path)
    set_config(**{option: HARMLESS_OPTIONS[option]})(tmp_path)
    lora.load_adapter(other := tiny_model(), tmp_path)
    assert torch.equal(logits(other), logits(model))


@pytest.mark.parametrize("option", READ_OPTIONS)
def test_options_that_are_read_have_their_effect(option, tmp_path):
    changes, outcome = READ_OPTIONS[option]
    assert option in changes
    lora.save_adapter(adapted_model(), tmp_path)  # r=4, alpha=6
    before, model = json.loads((tmp_path / "adapter_config.json").read_text()), tiny_model()
    assert before.get(option) != changes[option]
    set_config(**changes)(tmp_path)
    if isinstance(outcome, str):
        with pytest.raises(ValueError, match=outcome):
            lora.load_adapter(model, tmp_path)
    else:
        lora.load_adapter(model, tmp_path)
        assert outcome(model.model.layers[0].self_attn.q_proj, lora.read_adapter_config(tmp_path))


HUGE = ["a hole", "a compressed file", "a long file"]


@pytest.mark.parametrize("kind", HUGE)
def test_weights_larger_than_the_adapter_are_not_read(kind, tmp_path):
    """100 MB here; a hole or a compressed file may claim any size."""
    lora.save_adapter(adapted_model(), tmp_path)
    path, pickled = tmp_path / "adapter_model.safetensors", tmp_path / "adapter_model.bin"
    tensors = load_file(path)
    name, shape = next(iter(tensors)), [1000, 25_000]
    if kind == "a hole":
        header = json.dumps({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 10**8]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header)
        os.truncate(path, 8 + len(header) + 10**8)
    else:
        torch.save({**tensors, name: torch.zeros(shape)}, pickled)
        path.unlink()
    if kind == "a compressed file":
        with zipfile.ZipFile(pickled) as old, zipfile.ZipFile(tmp_path / "new", "w", zipfile.ZIP_DEFLATED) as new:
            for entry in old.namelist():
                new.writestr(entry, old.read(entry))
        os.rename(tmp_path / "new", pickled)
    model = tiny_model()
    with modest(megabytes=50), pytest.raises(ValueError, match=rf"^{tmp_path}[^\n]+$"):
        lora.load_adapter(model, tmp_path)
