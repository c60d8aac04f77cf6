"""WebShop's catalogue: 1,200 products (120 types on 15 shelves, ten products each), a BM25 index, and goals.

A product has a brand, a type, and attributes: two that an instruction names before the type ("quick drying"), one or
two after `with` ("hanging loop"), one after `for` ("guest bathrooms"). It has up to three options. No two products of a
type have the same attributes before it, and no two products the same name. The catalogue is drawn from one fixed seed
on first use.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from math import log
from random import Random
from string import ascii_uppercase, digits

from envs.common import SPLITS, split_of

BRANDS = """Norvik Aldora Belmar Corvane Dunmore Elwick Farrow Galena Hartwell Ivanta Jorvel Kestrel Lumora Marden
Nestor Orlane Pellow Quillan Rowan Selby Tamsin Ulverton Varley Wexham"""
COLOURS = """black, white, navy, red, pink, beige, teal, purple, yellow, burgundy, light blue, dark green, olive green,
charcoal grey, navy | white, black | red"""
CLOTHES = f"color: {COLOURS}; size: x-small, small, medium, large, x-large, xx-large; style: short, regular, tall"
FILLED = "size: 2 ounce, 4 ounce, 8 ounce, 12 ounce (pack of 2); style: single, twin pack, gift box"
SOLD = "size: 6 count, 12 count, 24 count, 8 ounce (pack of 3); style: single bag, variety box, refill"

# One paragraph per shelf: department > shelf; lowest and highest price; types; attributes before the type; attributes
# after `with`; attributes after `for`; options and their values. Types are plural: without their last s, singular.
SHELVES = f"""
Clothing, Shoes & Jewelry > Men
12-60
men's t-shirts, men's polo shirts, men's hoodies, men's sweaters, men's vests, men's jackets, men's swim trunks, \
men's pajama sets
machine washable, slim fit, classic fit, loose fit, moisture wicking, quick drying, hand wash, wrinkle free
long sleeve, crew neck, drawstring closure, polyester spandex, zipper pocket, ribbed cuff
gym workout, daily wear, winter nights, beach days
{CLOTHES}

Clothing, Shoes & Jewelry > Women
14-70
women's blouses, women's tunics, women's cardigans, women's skirts, women's jumpsuits, women's coats, \
women's camisoles, women's nightgowns
machine washable, light weight, relaxed fit, high waist, soft knit, dry clean, tummy control, easy care
short sleeve, v neck, button closure, rayon blend, side pocket, lace trim
evening parties, office wear, summer holidays, lounge wear
{CLOTHES}

Clothing, Shoes & Jewelry > Shoes
20-120
running shoes, hiking boots, ankle boots, walking sandals, canvas sneakers, rain boots, house slippers, slip on loafers
arch support, anti slip, water resistant, steel toe, wide fit, shock absorbing, hand stitched, ultra breathable
rubber sole, memory foam, lace up closure, leather lining, padded collar, heel loop
rocky trails, long shifts, wet weather, school days
color: {COLOURS}; size: 6, 6.5, 7, 8, 9, 10 wide; style: mid top, low top, high top

Beauty & Personal Care > Hair Care
8-45
hair masks, hair oils, hair serums, hair dryers, curling irons, hair extensions, hair clips, shampoo bars
sulfate free, deep conditioning, heat protecting, color safe, frizz control, salon quality, cruelty free, fast acting
argan extract, keratin complex, coconut milk, travel pouch, tea tree oil, biotin blend
damaged hair, curly hair, fine hair, oily scalps
scent: citrus, lavender, vanilla, unscented, mint; {FILLED}

Beauty & Personal Care > Skin Care
7-55
face creams, body lotions, facial cleansers, sheet masks, eye serums, lip balms, sunscreen sticks, body scrubs
fragrance free, oil free, paraben free, long lasting, doctor tested, clinically proven, fast absorbing, anti aging
hyaluronic acid, shea butter, aloe vera, green clay, oat milk, pump bottle
sensitive skin, dry skin, dark circles, night care
scent: rose, lemon, unscented, honey, coconut; {FILLED}

Beauty & Personal Care > Makeup
6-40
lipsticks, eyeliner pens, eyeshadow palettes, nail polish sets, makeup mirrors, foundation sticks, mascaras, \
cosmetic bags
smudge proof, high pigment, vegan friendly, easy apply, matte finish, non toxic, travel size, water proof
vitamin e, magnetic lid, brush tip, led bulb, satin ribbon, mineral powder
stage shows, everyday looks, weddings, beginners
color: nude, coral, plum, red, mauve, rose gold, light pink; size: mini, full, 3 piece, 6 piece; \
finish: gloss, velvet, shimmer

Electronics > Audio
18-220
wireless earbuds, bluetooth speakers, over ear headphones, portable radios, soundbars, record players, \
karaoke microphones, voice recorders
noise cancelling, hands free, high fidelity, fast charging, sweat proof, ultra compact, plug and play, stereo sound
carrying case, remote control, aux input, touch button, fm tuner, usb port
home theaters, outdoor parties, business travel, music lessons
color: black, white, red, silver, midnight blue; style: basic, deluxe, studio; size: 10 watt, 20 watt, 40 watt

Electronics > Phones & Computers
6-90
phone cases, charging cables, screen protectors, wireless chargers, power banks, tablet covers, laptop sleeves, \
memory cards
heavy duty, ultra slim, scratch resistant, drop proof, quick release, case friendly, tangle free, high speed
tempered glass, carbon fiber, kick flap, braided nylon, card slot, led display
video calls, car trips, desk work, students
color: {COLOURS}; size: 3 ft, 6 ft, 10 ft, 13 inch, 15 inch; style: 1 pack, 2 pack, 3 pack

Electronics > Camera & Video
15-260
action cameras, camera tripods, hdmi cables, movie projectors, camera straps, ring lights, security cameras, \
video doorbells
motion activated, high definition, battery powered, shock proof, easy install, gold plated, optical zoom, night vision
aluminum alloy, cloud backup, phone clamp, wall mount, lens cover, storage bag
live streaming, home safety, wildlife, vlogs
color: black, white, silver, camo, grey; size: 3 ft, 6 ft, 12 ft, 25 ft; style: kit, body only, bundle

Home & Kitchen > Bath
9-60
bath towels, hand towels, shower curtains, bath mats, bathrobes, soap dispensers, laundry hampers, towel racks
super soft, highly absorbent, mildew proof, fade resistant, rust free, space saving, double stitched, thick woven
turkish cotton, hanging loop, weighted hem, bamboo lid, suction cup, waffle weave
guest bathrooms, spa days, dorm rooms, small spaces
color: {COLOURS}; size: 16 x 28, 20 x 32, 27 x 54, 30 x 58; style: set of 2, set of 4, set of 6

Home & Kitchen > Bedding
15-150
throw blankets, bed sheets, pillow covers, duvet covers, mattress toppers, body pillows, quilts, bed skirts
eco friendly, hypo allergenic, double sided, cooling touch, pill resistant, deep pocketed, pre shrunk, all season
fleece throw, goose down, hidden zipper, corner ties, satin piping, jersey knit
hot sleepers, guest rooms, toddlers, side sleepers
color: {COLOURS}; size: twin, full, queen, king; style: solid, striped, floral

Home & Kitchen > Furniture
40-420
coffee tables, bar stools, office chairs, bookcases, tv consoles, shoe racks, floor lamps, dining tables
easy assemble, mid century, height adjustable, heavy base, fully assembled, stain proof, swivel top, non marking
solid wood, metal legs, tufted seat, open shelf, faux marble, cable holes
living rooms, home offices, entryways, narrow halls
color: espresso, walnut, white, black, grey, natural oak; size: 24 inch, 30 inch, 42 inch, 60 inch; style: farmhouse, \
modern, loft

Home & Kitchen > Decor
8-140
wall mirrors, picture frames, window curtains, area rugs, wall clocks, candle holders, string lights, wall hangings
hand painted, ready hang, energy efficient, pet safe, sun blocking, silent sweep, rustic look, washable woven
wooden frame, brass hook, linen texture, glass panel, tassel edge, dimmer switch
bedrooms, patios, holiday parties, nurseries
color: {COLOURS}; size: 8 x 10, 11 x 14, 24 x 36, 63 inch; style: boho, modern, coastal

Grocery & Gourmet Food > Snacks
4-48
protein bars, rice crackers, potato chips, fruit snacks, popcorn bags, granola bars, nut butters, chocolate bars
gluten free, low calorie, non gmo, plant based, dairy free, slow roasted, low carb, kosher certified
sea salt, real fruit, chia seed, dark cocoa, peanut pieces, brown rice
lunch boxes, hiking trips, movie nights, picky eaters
flavor: barbecue, honey, caramel, apple, cheddar, cinnamon; {SOLD}

Grocery & Gourmet Food > Beverages
5-42
green teas, coffee pods, cold brew coffees, herbal teas, fruit juices, energy drinks, hot cocoas, coconut waters
caffeine free, sugar free, usda organic, fair trade, zero calorie, small batch, naturally flavored, freshly ground
ginger root, vitamin c, cane sugar, oat base, green leaf, maple syrup
early mornings, iced drinks, cold evenings, office kitchens
flavor: lemon, peach, mint, vanilla, original, raspberry; {SOLD}
"""
LEVELS = {"1": (1, 1), "2": (2, 2), "3": (2, 3)}  # difficulty -> least and most attributes of a goal
SMALL_SHOP = 8  # products in the shop of difficulty 1
PARAGRAPHS = SHELVES.strip().split("\n\n")
MAKES = 10  # products per type
HITS = 50  # most products that a search returns
K1, B = 0.9, 0.4  # BM25 parameters of the original's index
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by find for from i if in into is it lower me need no not of on or price s such than "
        "that the their then there these they this to up want was will with",
    )
)


@dataclass(frozen=True, eq=False)
class Product:
    """A product of the catalogue."""

    asin: str
    name: str
    query: str  # the type in the plural, "bath towels"; in the original, the query that found the product
    category: tuple[str, str, str]  # "Home & Kitchen", "Bath", "Bath Towels"
    before: tuple[str, ...]  # attributes before the type in an instruction
    having: tuple[str, ...]  # attributes after `with`
    use: str  # the attribute after `for`
    description: str
    bullets: tuple[str, ...]
    price: float  # the price to pay, somewhere within the tag's range
    price_tag: str  # the price shown: $39.99, or $25.0 to $45.0
    options: dict[str, tuple[str, ...]]

    @property
    def attributes(self) -> tuple[str, ...]:
        """All attributes, in the order in which an instruction names them."""
        return (*self.before, *self.having, self.use)

    @property
    def shelf(self) -> tuple[str, str]:
        """The department and the shelf."""
        return self.category[:2]


@dataclass(frozen=True)
class Goal:
    """A product to buy, and what the instruction says about it."""

    product: Product
    attributes: list[str]
    options: dict[str, str]
    price_upper: float
    wish: str  # the instruction's text between "Find me" and the options

    @property
    def instruction(self) -> str:
        """The text that says what to buy."""
        options = ", and ".join(f"{name}: {value}" for name, value in self.options.items())
        return (
            f"Find me {self.wish}{options and ' with '}{options}, and price lower than {self.price_upper:.2f} dollars"
        )


class Catalogue:
    """The products, their index, and the possible goals of each split and level.

    Another catalogue `like` this one gives the mean length and the idf, so that the scores of both can be compared.
    """

    def __init__(self, products: list[Product], like: "Catalogue | None" = None):
        self.products = {product.asin: product for product in products}
        self.like = like
        self._index(products)
        self.describing = {word for product in products for text in product.before for word in text.split()}
        self.by_shelf: dict[tuple[str, str], list[Product]] = {}
        self.goals: dict[tuple[str, int], list[Product]] = {(s, level): [] for s in SPLITS for level in (1, 2, 3)}
        for product in products:
            self.by_shelf.setdefault(product.shelf, []).append(product)
            split = split_of(canonical(product))
            self.goals[split, 3].append(product)
            if len(product.options) < 2:
                self.goals[split, 1 + len(product.options)].append(product)

    def _index(self, products: list[Product]) -> None:
        """Set `postings`, {term: {asin: the term's part of the product's score}}, by BM25 with Lucene's idf."""
        counts = {product.asin: Counter(terms(_indexed(product))) for product in products}
        self.mean = self.like.mean if self.like else sum(map(Counter.total, counts.values())) / len(counts)
        self.postings: dict[str, dict[str, float]] = {}
        for asin, count in counts.items():
            norm = K1 * (1 - B + B * count.total() / self.mean)
            for term, tf in count.items():
                self.postings.setdefault(term, {})[asin] = tf / (tf + norm)
        whole = self.like or self
        for term, found in self.postings.items():
            having = len(whole.postings.get(term, found))
            idf = log(1 + (len(whole.products) - having + 0.5) / (having + 0.5))
            for asin in found:
                found[asin] *= idf

    def search(self, query: str, shop: list[Product] | None = None) -> list[Product]:
        """Return at most HITS products with a word of the query, best first; only the products of `shop` if given."""
        scores: dict[str, float] = {}
        members = self.products if shop is None else {product.asin: product for product in shop}
        indexes = [self.postings, *([self.like.postings] if self.like else [])]
        for term, count in Counter(terms(query)).items():
            for asin, weight in itertools.chain.from_iterable(index.get(term, {}).items() for index in indexes):
                if asin in members:
                    scores[asin] = scores.get(asin, 0.0) + count * weight
        return [members[asin] for asin in nsmallest(HITS, scores, key=lambda asin: (-scores[asin], asin))]

    def nouns(self, name: str) -> list[str]:
        """Return the nouns of a name: its words except those of attributes and stop words."""
        words = re.findall(r"[a-z]+", name.lower())
        return [word for word in words if word not in self.describing and word not in STOP_WORDS]


@cache
def catalogue() -> Catalogue:
    """Return the catalogue of all shelves, made once."""
    rng, asins = Random("webshop catalogue"), codes()
    shelves = (stocked(paragraph, MAKES, BRANDS.split(), asins, rng) for paragraph in PARAGRAPHS)
    return Catalogue([product for shelf in shelves for product in shelf])


def canonical(product: Product) -> str:
    """Return the canonical task: the product alone, so that a held-out product is never trained on."""
    return f"webshop:{product.name}"


def make_goal(product: Product, attributes: int, rng: Random) -> Goal:
    """Draw a goal as AgentGym does: instruction, one combination of options, the higher of two price limits."""
    wanted = rng.sample(product.before, 1) if attributes == 1 else rng.sample(product.attributes, attributes)
    wanted.sort(key=product.attributes.index)
    options = {name: rng.choice(product.options[name]) for name in sorted(product.options)}
    next_tens = [10.0 * (int(product.price // 10) + i) for i in (1, 2, 3, 4)]
    wish = " ".join(
        f"{word}{', '.join(chosen)}"
        for word, chosen in (
            ("", [text for text in wanted if text in product.before]),
            ("", [product.query]),
            ("with ", [text for text in wanted if text in product.having]),
            ("for ", [text for text in wanted if text == product.use]),
        )
        if chosen
    )
    return Goal(product, wanted, options, max(rng.sample(next_tens, 2)), wish)


def terms(text: str) -> list[str]:
    """Return the index terms of a text: lower-case words without stop words and plural endings."""
    return [_singular(word) for word in re.findall(r"[a-z0-9]+", text.lower()) if word not in STOP_WORDS]


def _singular(word: str) -> str:
    """Return a word without its plural ending."""
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "sses", "xes")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 2 else word


def stocked(paragraph: str, makes: int, brands: list[str], asins: Iterator[str], rng: Random) -> list[Product]:
    """Draw `makes` products of each type of a paragraph of SHELVES, or one product of any type if it is 0."""
    lines = paragraph.splitlines()
    (department, shelf), prices = lines[0].split(" > "), lines[1].split("-")
    types, before, having, use = (line.split(", ") for line in lines[2:6])
    options = [group.split(": ") for group in " ".join(lines[6:]).split("; ")]
    products = []
    for kind in types if makes else [rng.choice(types)]:
        pairs = rng.sample(list(itertools.combinations(before, 2)), makes or 1)
        for brand, pair in zip(rng.sample(brands, makes or 1), pairs, strict=True):
            parts, purpose = tuple(rng.sample(having, rng.randint(1, 2))), rng.choice(use)
            price, price_tag = _price(int(prices[0]), int(prices[1]), rng)
            chosen = rng.sample(options, rng.choices((0, 1, 2, 3), (35, 30, 25, 10))[0])
            products.append(
                Product(
                    asin=next(asins),
                    name=", ".join(map(_title, (f"{brand} {kind[:-1]}", *pair))),
                    query=kind,
                    category=(department, shelf, _title(kind)),
                    before=pair,
                    having=parts,
                    use=purpose,
                    description=_description(brand, kind, pair, parts, purpose) if rng.random() < 0.9 else "",
                    bullets=(
                        f"{_title(pair[0])} {kind}, with {' and '.join(parts)}",
                        f"{_title(pair[1])} in every part",
                        f"Made for {purpose}",
                    ),
                    price=price,
                    price_tag=price_tag,
                    options={name: _values(values.split(", "), rng) for name, values in chosen},
                )
            )
    return products


def codes(seed: str = "") -> Iterator[str]:
    """Yield product codes in the original's form: B0 and eight capitals and digits."""
    for number in itertools.count():
        yield "B0" + "".join(Random(f"asin {seed}{number}").choices(ascii_uppercase + digits, k=8))


def _indexed(product: Product) -> str:
    """Return the text that a search covers: name, description, first bullet, options."""
    options = (f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.name, product.description, product.bullets[0], *options))


def _description(brand: str, kind: str, before: tuple, having: tuple, use: str) -> str:
    """Return the text on a product's description page."""
    comes = f" and {having[1]}" if len(having) > 1 else ""
    return f"These {kind} by {brand} are {before[0]} and {before[1]}. They come with {having[0]}{comes}, for {use}."


def _price(low: int, high: int, rng: Random) -> tuple[float, str]:
    """Draw a price and its tag: the price, or a range that contains it. A few prices count as missing, which is 100."""
    kind = rng.random()
    if kind < 0.03:
        return 100.0, "$100.0"
    least = round(rng.randint(low, high) + rng.choice((0.0, 0.5, 0.95, 0.99)), 2)
    if kind < 0.8:
        return least, f"${least}"
    most = round(least + rng.randint(2, 20), 2)
    return rng.uniform(least, most), f"${least} to ${most}"


def _values(values: list[str], rng: Random) -> tuple[str, ...]:
    """Draw two to five values of an option, in their order."""
    kept = rng.sample(values, rng.randint(2, min(5, len(values))))
    return tuple(sorted(kept, key=values.index))


def _title(text: str) -> str:
    """Return a text with a capital at the start of each word."""
    return " ".join(word[:1].upper() + word[1:] for word in text.split())
