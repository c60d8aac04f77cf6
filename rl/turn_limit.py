"""max_turns=N: one limit of agent turns for every environment of a run."""

from typing import Any

import envs
from rl import arguments
from rl.arguments import NotNegative
from rl.tasks import mixture


def limit_turns(layers: list[tuple[str, dict[str, Any]]], env: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the layers with max_turns as the key of each environment that has it, in the last layer that sets it.

    An environment's own key wins in the same layer and in later ones. With max_turns=0 every environment keeps its own.
    """
    last = max(n for n, (_, keys) in enumerate(layers) if "max_turns" in keys)
    limit = arguments.convert("max_turns", layers[last][1]["max_turns"], NotNegative[int])
    if limit == 0:
        return layers
    wanted = [f"{name}.max_turns" for name in mixture(env)]
    known = {key for name in mixture(env) for key in arguments.keys_of(envs.config_class(name), name)}
    found = [(source, {key: keys[key] for key in keys if key != "max_turns"}) for source, keys in layers]
    source, keys = found[last]
    found[last] = (source, {key: limit for key in wanted if key in known} | keys)
    return found
