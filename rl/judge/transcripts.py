"""Episodes of an evaluation: as text to read (eval.py show=), and as lines of JSON (save_episodes=)."""

from pathlib import Path

from models import Tokenizer
from rl import ranks
from rl.records import Episode
from rl.run.files import append, plain


def transcript(episode: Episode, tokenizer: Tokenizer) -> str:
    """Return what the agent read and, behind its turn's number, wrote, control tokens included."""
    head = f"--- {episode.env}, seed {episode.seed}: {episode.outcome}, score {round(episode.score, 9):g}"
    parts, at = [head], 0
    for number, turn in enumerate(episode.turns, 1):
        cut = "" if turn.stop_reason == "stop" else f", cut: {turn.stop_reason}"
        said = printable(tokenizer.show(episode.ids_T[turn.start : turn.stop]))
        parts += [printable(tokenizer.show(episode.ids_T[at : turn.start])), f"[turn {number}{cut}] {said}"]
        at = turn.stop
    rest = episode.ids_T[at:]
    return "\n".join([*parts, *([printable(tokenizer.show(rest))] if rest else [])])


def printable(text: str) -> str:
    """Return the text with characters escaped that a terminal would obey: a model may write any."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


@ranks.first_only
def save(path: Path, policy: str, temperature: float, episodes: list[Episode]) -> None:
    """Append a line for each episode, as a run's episodes.jsonl has them, with the policy and the temperature."""
    append(path, [{"policy": policy, "temperature": temperature, **plain(episode)} for episode in episodes])
