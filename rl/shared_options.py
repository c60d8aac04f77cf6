"""Short keys: max_turns=N and sandbox=unsafe for every environment of a run that has it, track=NAME for track.to."""

from typing import Any, Literal

import envs
from rl import arguments
from rl.arguments import NotNegative
from rl.tasks import mixture

SHARED = {  # key -> its type in Common, and the value with which every environment keeps its own
    "max_turns": (NotNegative[int], 0),
    "sandbox": (Literal["own", "isolated", "unsafe"], "own"),
}


def share_options(layers: list[tuple[str, dict[str, Any]]], env: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the layers with each key of SHARED as the key of each environment that has it, in the last layer that sets
    it.

    An environment's own key wins in the same layer and in later ones. `track` becomes `track.to`.
    """
    layers = [(source, {"track.to" if key == "track" else key: keys[key] for key in keys}) for source, keys in layers]
    for key, (kind, own) in SHARED.items():
        found = [n for n, (_, keys) in enumerate(layers) if key in keys]
        value = arguments.convert(key, layers[found[-1]][1][key], kind) if found else own
        if value != own:
            layers = _shared(layers, found[-1], key, value, env)
    return layers


def _shared(
    layers: list[tuple[str, dict[str, Any]]], last: int, key: str, value: Any, env: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return the layers with a key as that of each environment in layer number `last`."""
    having = [name for name in mixture(env) if key in arguments.keys_of(envs.config_class(name))]
    found = [(source, {name: keys[name] for name in keys if name != key}) for source, keys in layers]
    source, keys = found[last]
    found[last] = (source, {f"{name}.{key}": value for name in having} | keys)
    return found
