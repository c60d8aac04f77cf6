"""How a program with a model ends: as rl/run/status.py says, and with advice about memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import envs
import lora.refusal
import models.refusal
from rl import ranks
from rl.config.fields import Config
from rl.run import status
from rl.run.out_of_memory import explained


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
