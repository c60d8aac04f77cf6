"""Names that tasks=fresh gives: common short words, brands and people, and made-up words in the place of known ones.

Lists of common short words keep prompts as long as the panel's, and a small model can learn to copy each word as one
or two tokens.
"""

import re
from random import Random

_MATERIALS = """
acorn agate alder amber apple apricot ash bamboo basalt beech birch black blue bone brass bronze brown cedar chalk
cherry clover cobalt copper coral cotton crystal ebony elm emerald fern fig flint garnet gold grape granite
gray green hazel holly honey iron ivory ivy jade jet juniper larch lead leather lemon lily lime linen lotus
mango maple marble melon mint moss nickel oak olive onyx opal orange peach pear pewter pine pink plum poppy
purple quartz red reed rose ruby rust satin silk silver slate spruce steel straw teak tin topaz tulip velvet walnut
white willow yellow zinc
"""
_THINGS = """
anchor anvil arch arrow axe bag banner bar barrel basket bead beam bed bell belt bench boat bolt book boots bottle
bowl box bread bricks bridge broom brush bucket button cage cake candle canoe cape carpet cart chain chair chest clay
cloak clock coal comb crate crown cup desk dish doll door drum dust dye engine fan fence flag flour flower flute frame
gate gear glass glove glue hammer harp hat helmet hinge hook horn ink jam jar juice kettle key kite ladder lamp lens
lever lock log lute mask mat mirror mug nail needle net oar oil ore oven paint paper pearl pedal pie pillar pin pipe
planks plate plow pot powder pump quilt raft rail rake ring robe rock rod roof rope rug saddle salt sand saw scarf
seed shelf shield ship shoe shovel sign slab sled soap soda spear spice spoon spring stairs statue stick stool stove
string sugar sword table tank tea tent thread tiles torch tower towel toy tray vase vest wagon wall watch wax wheel
whistle wire wool wreath yarn
"""
MATERIALS, THINGS = _MATERIALS.split(), _THINGS.split()
_STARTS = (
    "Al Bel Bor Cal Cor Dal Dor El Fen Gal Har Ivan Jor Kel Lor Mar Nor Or Pel Quin Ros Sel Tam Ul Var Wex Yor Zan"
)
_ENDS = "an ara by den dora ell ena field gate ham ina kin land ley lin more na ora rick row ston ta vane ver vik well"
INVENTED = [start + end for start in _STARTS.split() for end in _ENDS.split()]  # "Norvik"

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
