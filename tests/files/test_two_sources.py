"""Two sources for one thing: the program refuses them or says which one it reads."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

import lora
from models import load_model, load_tokenizer
from models.weights import TINY


def folder_with_index(path, listed):
    """Write the embedded model with an index that lists the file `listed` for every tensor."""
    shutil.copytree(TINY, path, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    tensors = load_file(path / "model.safetensors")
    save_file(tensors, path / listed, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, listed)}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def test_an_index_beside_a_file_that_it_does_not_list_is_refused(tmp_path):
    folder = folder_with_index(tmp_path / "both", "model-00001-of-00001.safetensors")
    with pytest.raises(ValueError, match=r"has model.safetensors and model.safetensors.index.json, .* remove one"):
        load_model(str(folder))
    (folder / "model.safetensors").unlink()
    load_model(str(folder))
    load_model(str(folder_with_index(tmp_path / "listed", "model.safetensors")))


@pytest.mark.parametrize("keys", ["rank_pattern", "alpha_pattern"])
@pytest.mark.parametrize(
    "pattern", ["q_porj", "^q_proj", "base_model.model.model.layers.0.self_attn.q_proj", "layers.99"]
)
def test_a_pattern_that_matches_no_layer_is_refused(keys, pattern, tmp_path):
    model = load_model("tiny")
    with pytest.raises(ValueError, match="matches no layer"):
        lora.inject(model, r=4, alpha=8, **{keys: {pattern: 2}})
    model = load_model("tiny")
    lora.inject(model, r=4, alpha=8)
    lora.save_adapter(model, tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {keys: {pattern: 4}}))
    with pytest.raises(ValueError, match="matches no layer"):
        lora.load_adapter(load_model("tiny"), tmp_path)


def test_of_two_chat_templates_the_one_that_is_read_is_named(tmp_path, capsys):
    """transformers reads chat_template.jinja too where a folder has both."""
    folder = tmp_path / "two"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    (folder / "chat_template.jinja").write_text(template + "\n")
    load_tokenizer(str(folder))
    assert not capsys.readouterr().err
    (folder / "chat_template.jinja").write_text(template.replace("user", "user") + "{# another #}")
    load_tokenizer(str(folder))
    assert "chat_template.jinja is read, not the other template" in capsys.readouterr().err
