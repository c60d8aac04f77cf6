"""Made-up words for tasks that cannot be memorised."""

import re
from random import Random

INNER, VOWELS, FINAL = "bdfgklmnprtvz", "aeiou", "bkmpvxz"


class MadeUp:
    """Made-up words in the place of known ones, for one task: the same word for the same one each time.

    They have the length and the capitals of the known word, and end in -b, -k, -m, -p, -v, -x or -z. None contains
    another, so that a search for one finds no other. `shortest`: their least number of letters; of three letters there
    are only 455, and some of them are keywords of a language, such as `max`.
    """

    def __init__(self, rng: Random, shortest: int = 4):
        self.rng, self.shortest = rng, shortest
        self.of: dict[str, str] = {}  # known word -> made-up word, both in small letters

    def __call__(self, text: str, pattern: str = "[A-Za-z]+") -> str:
        """Return a text in which the matches of a pattern, each a word, are replaced."""
        return re.sub(pattern, lambda found: self.word(found[0]), text)

    def word(self, known: str) -> str:
        """Return the made-up word of a known one."""
        small = known.lower()
        while small not in self.of:
            made = self._draw(len(small))
            if not any(made in other or other in made for other in self.of.values()):
                self.of[small] = made
        made = self.of[small]
        return made.upper() if known.isupper() else made.capitalize() if known[0].isupper() else made

    def _draw(self, length: int) -> str:
        """Draw a word of alternating vowels and consonants."""
        inner = [self.rng.choice((VOWELS, INNER)[i % 2]) for i in range(max(length, self.shortest) - 1)]
        return "".join(reversed(inner)) + self.rng.choice(FINAL)
