"""How a program with a model ends: as rl/run/status.py says, with advice about memory, and with a run's state saved."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import envs
import lora.refusal
import models.refusal
from rl import ranks
from rl.config.fields import Config
from rl.run import status
from rl.run.out_of_memory import explained
from rl.run.resume import save_unsaved


@contextmanager
def exits_cleanly(program: str, cfg: Config | None = None, needs: str = "") -> Iterator[None]:
    """End the process as `status.ends_in_one_line` does. The line about memory that runs out also advises.

    cfg: the settings of train.py or eval.py, from which a line about memory advises.
    needs: that advice where there are no such settings.
    """
    with status.ends_in_one_line(program):
        try:
            yield
        except (envs.EnvironmentFailed, ranks.AnotherRankFailed):
            raise  # RuntimeErrors too, whose lines status.py prints
        except (lora.refusal.Refusal, models.refusal.Refusal) as error:
            status.fail(program, error)
        except (RuntimeError, MemoryError) as error:
            status.fail(program, explained(error, cfg, needs))


@contextmanager
def saved(state: Any, run: Path) -> Iterator[None]:
    """Save the state of a run that is interrupted between two saves. Let nothing be sampled ahead any more."""
    try:
        yield
    except KeyboardInterrupt:  # Interrupted is one: other errors may have left the state half changed
        save_unsaved(state, run)
        raise
    finally:
        if state.ahead:
            state.ahead.stop()
