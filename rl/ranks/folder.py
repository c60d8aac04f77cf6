"""A run's folder among several ranks: the first claims it, the others learn which it is."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rl import ranks
from rl.config import resolve
from rl.ranks import heartbeat
from rl.resume import how_to_resume


@contextmanager
def claim_together(cfg: Any, claim_alone: Callable) -> Iterator[tuple[Any, Path]]:
    """Yield (settings, folder) on every rank, as rl/guard/claim.py does; the folder must be one that all can read."""
    with ExitStack() as held:

        def claimed() -> tuple[str, bool] | None:
            if not ranks.is_first():
                return None
            own, folder = held.enter_context(claim_alone(cfg))
            return str(folder), own is not cfg

        folder, continued = ranks.together(claimed)[0]
        heartbeat.tell_folder(folder)
        try:
            yield (resolve({"resume": folder}) if continued else cfg), Path(folder)
        except KeyboardInterrupt as error:
            if not ranks.is_first():  # the first one's own claim does the same
                error.add_note(how_to_resume(folder))
            raise
