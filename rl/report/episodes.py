"""report.jsonl: an epoch's episodes as report.html shows them, in two lines.

{"episodes": epoch, ...}     a row of numbers for each episode, and intervals of success and score
{"tokens": epoch, ...}       the text, log-probabilities, entropies and advantages of as many as there is room for

held_out.jsonl has the same of an evaluation, two lines for each temperature, which they name, without intervals.
"""

import base64
import json
import math
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from models import Tokenizer
from rl.config.refusals import Refusal
from rl.evaluate import summary, task_name
from rl.records import Batch, Episode
from rl.stats import student_interval

BUDGET = 12_000_000  # bytes of tokens in a page, shared out over the epochs
MOST_TEXTS = 65_535  # different ones of an epoch's tokens; an index has two bytes
HELD_OUT_BUDGET = 3_000_000  # those of held-out episodes, shared out over the evaluations


@dataclass
class Learned:
    """What learning knew of an episode, one entry per sampled token; None where it did not need it."""

    advantages: list[float] | None = None
    values: list[float] | None = None
    entropies: list[float] | None = None


def learned(batch: Batch, episodes: list[Episode]) -> dict[int, Learned]:
    """Return what learning knew of an epoch's episodes, by their place among them. The batch has them in the same
    order, without those that were left out."""
    counts = [sum(e.action_mask_T) for e in batch.episodes]
    of_batch = [Learned() for _ in batch.episodes]
    for name, values_N in (("advantages", batch.advantages_N), ("values", batch.old_values_N)):
        if values_N is not None:
            for of_episode, values in zip(of_batch, values_N.split(counts), strict=True):
                setattr(of_episode, name, values.tolist())
    for of_episode, entropy_N in zip(of_batch, batch.first_entropy_N.split(counts), strict=True):
        if not (entropy_N == -1).any():  # -1 marks tokens that no micro-batch has met
            of_episode.entropies = entropy_N.tolist()
    by_place, next_of_batch = {}, 0
    for place, e in enumerate(episodes):
        if next_of_batch < len(of_batch) and e is batch.episodes[next_of_batch]:
            by_place[place] = of_batch[next_of_batch]
            next_of_batch += 1
    return by_place


def learned_before(lines: list[str], episodes: list[Episode]) -> dict[int, Learned]:
    """Return what an epoch's saved lines know of the same episodes, by their place; of those shown alone. Damaged lines
    know nothing."""
    try:
        rows, tokens = (json.loads(line)[name] for line, name in zip(lines, ("rows", "shown"), strict=True))
        whole = [place for place, e in enumerate(episodes) if not e.infrastructure_failed]
        pairs = [
            (place, tokens[row[-1]]) for place, row in zip(whole, rows, strict=False) if 0 <= row[-1] < len(tokens)
        ]
        return {place: _shown_before(saved, sum(episodes[place].action_mask_T)) for place, saved in pairs}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _shown_before(saved: dict[str, Any], tokens: int) -> Learned:
    """Return what a saved entry knows of an episode with that many sampled tokens."""
    values = _spread([(t[1] - t[0] - sum(t[6:7]), t[3]) for t in saved["turns"]], tokens)
    return Learned(
        saved["adv"] and _spread(saved["adv"], tokens),
        None if None in values else values,
        saved["ent"] and unsqueezed(base64.b64decode(saved["ent"])),
    )


def _spread(pairs: list[tuple[int, Any]], size: int) -> list:
    """Return each value as often as its count says. Raise ValueError unless that makes `size` of them."""
    if min((count for count, _ in pairs), default=0) < 0 or sum(count for count, _ in pairs) != size:
        raise Refusal(f"not {size} values")
    return [value for count, value in pairs for _ in range(count)]


def epoch_lines(
    tokenizer: Tokenizer,
    epoch: int,
    episodes: list[Episode],
    known: dict[int, Learned],
    room: int,
    temperature: float | None = None,
) -> str:
    """Return the two lines of an epoch. known: of `learned`. room: about how many bytes the second may have.

    temperature: of held-out episodes. Their first ones are shown, so that all evaluations show the same tasks.
    """
    places = [place for place, e in enumerate(episodes) if not e.infrastructure_failed]
    whole = [episodes[place] for place in places]
    shown = evenly_by_score(whole, room) if temperature is None else range(fitting(whole, room))
    texts = _tokens(tokenizer, [(whole[i], known.get(places[i], Learned())) for i in shown])
    line_of = {index: line for line, index in enumerate(shown[: len(texts["shown"])])}
    envs, outcomes = sorted({e.env for e in whole}), sorted({e.outcome for e in whole})
    rows = [
        [envs.index(e.env), outcomes.index(e.outcome), int(e.success), _short(round(e.score, 9)), len(e.turns)]
        + [sum(e.action_mask_T), len(e.ids_T), e.seed, e.group, line_of.get(i, -1)]
        for i, e in enumerate(whole)
    ]
    summary = {"episodes": epoch, "envs": envs, "outcomes": outcomes, "rows": rows}
    tokens = {"tokens": epoch, **texts}
    if temperature is None:
        bands = {env: _bands([e for e in whole if env in ("", e.env)]) for env in ["", *envs]} if whole else {}
        summary["bands"] = bands
    else:
        summary["temperature"] = tokens["temperature"] = temperature
    return f"{_json(summary)}\n{_json(tokens)}\n"


def evenly_by_score(episodes: list[Episode], room: int) -> list[int]:
    """Return the places of as many episodes as there is room for, at even distances from lowest to highest score."""
    count = fitting(episodes, room)
    by_score = sorted(range(len(episodes)), key=lambda i: episodes[i].score)
    return [by_score[i * (len(episodes) - 1) // max(1, count - 1)] for i in range(count)]


def fitting(episodes: list[Episode], room: int) -> int:
    """Return how many of the episodes there is room for, at least one."""
    size = fmean(300 + 3 * len(e.ids_T) + 3 * sum(e.action_mask_T) for e in episodes) if episodes else 1
    return min(len(episodes), max(1, int(room / size)))


def _bands(episodes: list[Episode]) -> dict[str, list[float]]:
    """Return [mean, low, high] of success and score; episodes of one task are not independent."""
    found, scores = summary(episodes), [e.score for e in episodes]
    bands = {"success": [found[key] for key in ("success", "low", "high")]}
    bands["score"] = [fmean(scores), *student_interval(scores, tasks=[task_name(e) for e in episodes])]
    return {name: [_short(x) for x in values] for name, values in bands.items()}


@dataclass
class _Strings:
    """The different texts of an epoch's tokens. A character of several tokens belongs to the last of them."""

    tokenizer: Tokenizer
    index: dict[str, int] = field(default_factory=dict)
    known: dict[tuple[int, ...], str] = field(default_factory=dict)  # tokens that belong together: their text
    control: set[int] = field(default_factory=set)  # indices of control tokens: ordinary text may look like one

    def __post_init__(self):
        self.anchor = self.tokenizer.encode("a")  # before it, some tokenizers leave a text's first space out
        self.lead = len(self.tokenizer.show(self.anchor))

    def indices(self, ids: list[int]) -> list[int]:
        """Return the index of each token's text."""
        places, waiting = [], ()
        for i in ids:
            waiting += (i,)
            if waiting not in self.known:
                self.known[waiting] = self.tokenizer.show([*self.anchor, *waiting])[self.lead :]
            text = self.known[waiting]
            if text.endswith("\ufffd") and len(waiting) < 4:
                text = ""
            else:
                waiting = ()
            places.append(self.index.setdefault(text, len(self.index)))
            if i in self.tokenizer.control_ids:
                self.control.add(places[-1])
        return places


def _tokens(tokenizer: Tokenizer, episodes: list[tuple[Episode, Learned]]) -> dict[str, Any]:
    """Return the second line's fields. A prompt that an episode shares with its environment's first is not repeated.

    Episodes are left out from the one on with which there are more texts than a number of two bytes can count.
    """
    strings, shown, first, largest = _Strings(tokenizer), [], {}, 0.0
    for n, (e, known) in enumerate(episodes):
        like, start = first.setdefault(e.env, (n, e)), 0
        if like[1] is not e:
            pairs = zip(e.ids_T, like[1].ids_T, strict=False)
            start = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(e.ids_T), len(like[1].ids_T)))
        indices = strings.indices(e.ids_T)[start:]
        if len(strings.index) > MOST_TEXTS:
            break
        turns, at = [], 0
        for turn in e.turns:
            value = _short(known.values[at]) if known.values and at < len(known.values) else None
            mask = e.action_mask_T[turn.start : turn.stop]
            # Thoughts, and the closing tag that was forced: how many ids, and from which of the turn on.
            thoughts = [turn.thoughts, mask.count(0), (mask + [0]).index(0)] if turn.thoughts else []
            turns.append([turn.start, turn.stop, _short(turn.reward), value, turn.stop_reason, *thoughts])
            at += sum(mask)
        logprobs = [-x for x, sampled in zip(e.logprobs_T, e.action_mask_T, strict=True) if sampled]
        largest = max([largest, *map(abs, known.advantages or [])])
        shown.append(
            {
                "ids": _base64(np.asarray(indices, "<u2")),
                "like": [like[0], start],
                "turns": turns,
                **({"rendered": 1} if e.kept else {}),
                "lp": _base64(squeezed(logprobs)),
                "ent": known.entropies and _base64(squeezed(known.entropies)),
                "adv": known.advantages and _repeated(known.advantages),
            }
        )
    texts = {"strings": list(strings.index), "control": sorted(strings.control)}
    return {**texts, "largest": _short(largest), "shown": shown}


def squeezed(nats: list[float]) -> np.ndarray:
    """Return numbers from 0 to 16 nats as bytes, finer near 0: 16 * (byte / 255)**2 is the number again."""
    return np.round(255 * np.sqrt(np.clip(np.nan_to_num(nats), 0, 16) / 16)).astype(np.uint8)


def unsqueezed(data: bytes) -> list[float]:
    return [16 * (byte / 255) ** 2 for byte in data]


def _repeated(values: list[float]) -> list[list[float]]:
    """Return [count, value] of each stretch of equal values."""
    stretches: list[list[float]] = []
    for value in values:
        if stretches and stretches[-1][1] == _short(value):
            stretches[-1][0] += 1
        else:
            stretches.append([1, _short(value)])
    return stretches


def _short(x: float) -> float:
    return float(f"{x:.4g}") if math.isfinite(x) else 0.0


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
