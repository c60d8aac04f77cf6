"""Read `lora.targets` against the layers of a model. Imported unless it is the default, all-linear."""

import re

from torch import nn

from rl.config.refusals import hint


def read_targets(word: str, model: nn.Module) -> str | list[str]:
    """Return `lora.targets` as lora.inject takes it: names by comma become a list.

    Raise ValueError for a name that no linear layer has.
    """
    if word == "attention" or not re.fullmatch(r"[\w.,]+", word):
        return word
    names = [name for name in word.split(",") if name]
    paths = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    for name in names:
        if not any(path == name or path.endswith(f".{name}") for path in paths):
            known = sorted({path.rsplit(".", 1)[-1] for path in paths})
            near = f"{hint(name, known)}; linear layers here: {', '.join(known)}"
            raise ValueError(f"lora.targets={word}: no linear layer is named {name}{near}")
    return names
