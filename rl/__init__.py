"""Reinforcement learning for language-model agents. Each algorithm is a module with `Config`, `advantages`, `loss`.

For notebooks there is `from rl import Policy, load, train` (rl/library.py).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors
    from rl.library import Policy, Trained, load, train

__all__ = ["Policy", "Trained", "load", "train"]


def __getattr__(name: str) -> Any:
    """Return a name of rl/library.py, which is loaded only then: it imports torch and train.py."""
    if name in __all__:
        import_module("envs.linux")  # on Windows one line, before torch is loaded
        return getattr(import_module("rl.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
