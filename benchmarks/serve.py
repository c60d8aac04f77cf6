"""Tokens per second of `python -m rl.serve` under many streaming requests at once, beside the engine alone:
python -m benchmarks.serve

ours:   all requests are sent at once over HTTP, each on a connection of its own, and stream token by token. The server
        is a process of its own; this one is the client.
engine: the same prompts in this process, with as many rows, without text, JSON and HTTP.

The random numbers of a reply are the same on both sides, and so are its tokens; each reply has `new` of them.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import common
from benchmarks.common import Parts, Row
from models import choose_threads, load_model
from models.engine import Engine
from models.random import fold_all
from rl.config.arguments import Positive

ROOT = Path(__file__).parents[1]


@dataclass
class Options(common.Options):
    threads: Positive[int] = 1  # torch threads, of both sides
    model: str = "tiny"  # tiny | a folder | a hub id
    requests: Positive[int] = 200  # at once
    rows: Positive[int] = 64  # of the engine
    start: Positive[int] = 32  # prompt tokens of each
    new: Positive[int] = 64  # sampled tokens of each


class Served:
    """A server process and a client of it."""

    def __init__(self, options: Options, prompts: list[list[int]]):
        words = [f"model={options.model}", "port=0", f"rows={options.rows}", f"threads={options.threads}"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-u", "-m", "rl.serve", *words]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
        place = next(found for line in self.process.stdout if (found := re.search(r"http://(.*):(\d+)/v1", line)))
        self.address, self.options, self.prompts = (place[1], int(place[2])), options, prompts

    def work(self) -> None:
        replies = asyncio.run(self._all())
        assert [len(ids) for ids in replies] == [self.options.new] * len(self.prompts)
        self.replies = replies

    async def _all(self) -> list[list[int]]:
        return await asyncio.gather(*(self._one(number) for number in range(len(self.prompts))))

    async def _one(self, number: int) -> list[int]:
        """Return the ids of one reply."""
        body = {"model": self.options.model, "prompt": self.prompts[number], "max_tokens": self.options.new}
        state = int(fold_all([(0, number, 0)]))
        body |= {"stream": True, "ignore_eos": True, "random_state": state, "return_token_ids": True}
        text = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection(*self.address)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(text)}\r\n\r\n"
        writer.write(head.encode() + text)
        said = await reader.read()
        writer.close()
        parts = [json.loads(line[6:]) for line in said.split(b"\n") if line.startswith(b"data: {")]
        return [token for part in parts for choice in part["choices"] for token in choice["token_ids"]]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def engine_alone(model, options: Options, prompts: list[list[int]]) -> list[list[int]]:
    """Return the ids of each reply."""
    engine, waiting, found, numbers = Engine(model, options.rows), deque(enumerate(prompts)), {}, {}

    def start() -> None:
        while waiting and engine.free:
            number, ids = waiting.popleft()
            slot = engine.open((0, number))
            engine.feed(slot, ids)
            numbers[slot] = number

    start()
    for row in engine.run(options.new, 1.0, frozenset()):
        found[numbers[row.slot]] = row.ids
        engine.close(row.slot)
        start()
    return [found[number] for number in range(len(prompts))]


def main(options: Options) -> None:
    model = load_model(options.model)
    choose_threads(model, options.threads)
    words = model.config.vocab_size
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(words, (options.requests, options.start), generator=generator).tolist()

    def row(name: str) -> Row:
        served, alone = Served(options, prompts), []
        works = {"ours": served.work, "engine": lambda: alone.append(engine_alone(model, options, prompts))}
        try:
            seconds = common.interleave(works, options.repeats, options.warmup)
        finally:
            served.close()
        same = sum(a == b for a, b in zip(served.replies, alone[-1], strict=True))
        check = f"{same} of {len(prompts)} replies equal"
        tokens, targets = len(prompts) * options.new, {"engine": 1 / 0.8}
        return Row(name, seconds, targets=targets, tokens=tokens, check=check)

    name = f"{options.model}, {options.requests} requests, {options.start} + {options.new} tokens"
    made: Parts = {name: row}
    notes = [f"Both sides sample {options.rows} rows at once on {options.threads} thread(s)."]
    common.report("serve", list(common.measured(made, options.only)), options, notes, {})


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
