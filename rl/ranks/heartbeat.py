"""A thread on each rank that notices ranks that hang, and ends the run instead of waiting for them.

Each second it writes this rank's phase into the store that the ranks share, and reads those of the others. A rank whose
process no longer does so has stopped. A rank that does, but whose main thread has used no processor time while nobody
was to be waited for, hangs. Seconds are counted by this thread's own turns: a machine that sleeps does not count.
"""

import json
import os
import threading
import time
from contextlib import suppress
from typing import Any

from rl import ranks
from rl.run import files

TURN = 1.0  # seconds between two looks
LIMIT = 45  # turns without a sign of life after which a rank is given up
LEAST = 2e-3  # seconds of processor time in a turn that show that the main thread works
ENDED = "ended"


class Heartbeat:
    """Shows that this rank lives, and watches the others, from its own thread until `stop`."""

    def __init__(self):
        # A clone has a connection of its own: the main thread may be blocked in a call on the first one.
        self.rank, self.world, self.store = ranks.here.rank, ranks.here.world, ranks.here.store.clone()
        self.main, self.stopped = threading.main_thread(), threading.Event()
        self.clock = time.pthread_getcpuclockid(self.main.ident)
        self.turn = 0  # of this thread
        self.thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Stop watching, and tell the others that this rank ends by itself."""
        self.stopped.set()
        self.thread.join()
        with suppress(RuntimeError):
            self.store.set(f"beat {self.rank}", json.dumps({"turn": -1, "phase": ENDED, "pid": os.getpid()}))

    def tell_of_a_lost_rank(self) -> None:
        """Print a line if another rank has died, and which. Takes three turns of this rank's own thread, which are
        longer where the machine is busy."""
        with suppress(RuntimeError):
            before, began = [_beat(self.store, rank) for rank in range(self.world)], self.turn
            with suppress(KeyboardInterrupt):
                while self.turn < began + 3 and self.thread.is_alive():
                    time.sleep(TURN / 4)
            lost = [r for r, beat in enumerate(before) if beat and beat == _beat(self.store, r) and beat["turn"] >= 0]
            lost = [rank for rank in lost if rank != self.rank]
            if lost and ranks.speaks(self.store):
                ended = f"rank {lost[0]} ended{last_phase(self.store, lost[0])}; the other ranks end too"
                ranks.say(ended + how_to_resume(self.store))

    def _run(self) -> None:
        idle, used, seen, silent, phase = 0, 0.0, {}, [0] * self.world, "start"
        while not self.stopped.wait(TURN):
            self.turn += 1
            before, used = used, time.clock_gettime(self.clock)
            waits = ranks.here.waiting or self.main.ident in ranks.here.waits_outside
            works = used - before > LEAST or waits
            idle = 0 if works else idle + 1
            phase = ranks.here.phase or phase  # between two phases: the one before
            try:
                self.store.set(f"beat {self.rank}", json.dumps({"turn": self.turn, "phase": phase, "pid": os.getpid()}))
                if idle >= LIMIT:
                    self._give_up(self.rank, f"has done nothing for {idle} seconds")
                for other in range(self.world):
                    beat = _beat(self.store, other)
                    answers = beat is None or beat["phase"] == ENDED or beat != seen.get(other)
                    silent[other] = 0 if answers else silent[other] + 1
                    seen[other] = beat
                    if silent[other] >= LIMIT:
                        self._give_up(other, f"has not answered for {silent[other]} seconds")
            except RuntimeError:  # the store is gone, and with it the process that started the ranks
                if not self.stopped.wait(TURN):
                    os._exit(ranks.SILENT)

    def _give_up(self, rank: int, why: str) -> None:
        if ranks.speaks(self.store):
            beat = _beat(self.store, rank) or {"pid": "?"}
            line = f"rank {rank} (process {beat['pid']}) {why}{last_phase(self.store, rank)}; the run ends"
            ranks.say(line + how_to_resume(self.store))
        os._exit(1)


def _beat(store: Any, rank: int) -> dict | None:
    """Return what a rank wrote last; None before the first time."""
    key = f"beat {rank}"
    return json.loads(store.get(key)) if store.check([key]) else None


def last_phase(store: Any, rank: int) -> str:
    """Return " in phase NAME", from what a rank wrote last."""
    beat = _beat(store, rank)
    return f" in phase {beat['phase']}" if beat and beat["phase"] else ""


def tell_folder(folder: str) -> None:
    """Let the other processes know the run's folder, for `how_to_resume`."""
    if ranks.here.store is not None:
        ranks.here.store.set("folder", folder)


def how_to_resume(store: Any) -> str:
    """Return "; " and how the run goes on; "" if it had not begun."""
    if not store.check(["folder"]):
        return ""
    return f"; {files.how_to_resume(store.get('folder').decode())}"
