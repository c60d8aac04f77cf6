r"""The number in a text: the one grammar of numbers, for replies, for answers of data files, and for graders.

Read.      42, -3.5, +5, .5, 1e3. Thousands by commas, in groups of three or as in 1,00,000; by blanks, thin spaces, '
           or _ in groups of three. 1.234,56 with a decimal comma. 1/2, 2 1/2, ½. 10^6, 2**10, 10², 1.5 x 10^3. LaTeX's
           1{,}000, 10\,000, \frac{-1}{2}, 3\frac{1}{2}, 1.5 \times 10^3. $1.5 million, 1.5k. Currencies and units
           beside a number have no effect; % is a unit.
No number. What can be read in several ways: 1,5 or 3,14; a tuple, a set, a range, a date, a time, an expression such as
           3 + 4, 2x or 3\sqrt{2}, 3 or 4; and a value of more than 300 digits. H2O and GPT-4 are words.

Marks.     Behind the last `\boxed{` stands the answer, or `####` at which a number follows. The whole box is a number,
           or the text has none. Without a mark a reply's last number counts; an answer of a file must be the only one.
All functions take linear time and never raise.
"""

import re
import unicodedata
from fractions import Fraction

MOST_DIGITS = 300  # of a value, before or behind the point; more are no number
WINDOW = 60  # characters on each side of a number that decide whether it is a part of something else

PLAIN = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"  # a number without separators, as SQL and JSON write it
GROUPED = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?"  # thousands by commas
TIGHT = "\N{ARABIC THOUSANDS SEPARATOR}"  # stands for LaTeX's {,}: a comma within a number, never between two
THIN = "\N{THIN SPACE}"
SPACED = rf"(?<!\d )\d{{1,3}}(?: \d{{3}})+(?:[.,{TIGHT}]\d+)?(?![ .,{TIGHT}]?\d)"  # 1 000 000
RUN = rf"(?:{SPACED}|\d+(?:[.,'_{TIGHT}{THIN}]\d+)*|(?<![\w.])\.\d+)"
NUMBER = rf"(?:{RUN})(?:[eE][+-]?\d{{1,9}}(?![\w.]))?"
SIGNED = rf" ?([+-]?) ?({NUMBER}) ?"
VALUE = re.compile(
    rf"(?<![\d])(?:(?:(?P<whole>\d+) ?)?\\frac(?:{{{SIGNED}}}{{{SIGNED}}}| ?(\d) ?(\d))"  # \frac{1}{2}, 3\frac12
    rf"|(?:(?P<before>\d+) )?(?P<top>{NUMBER}) ?/ ?(?P<bottom>{NUMBER})"  # 1/2, 2 1/2
    rf"|(?P<factor>{NUMBER}) ?[x\u00d7*\u00b7] ?10 ?(?:\^|\*\*) ?{{? ?(?P<ten>[+-]?\d+) ?}}?"  # 1.5 x 10^3
    rf"|(?P<base>{NUMBER}) ?(?:\^|\*\*) ?{{? ?(?P<power>[+-]?\d+) ?}}?"  # 10^6
    rf"|(?P<plain>{NUMBER}))"
)
COMMANDS = (  # what LaTeX writes, and its meaning here; the order matters
    (r"\\(?:left|right|displaystyle|bigl?|bigr?|mathstrut)(?![A-Za-z])", ""),
    (r"\{,\}(?:\\!)?|,\\!", TIGHT),
    (r"\\!", ""),
    (r"(?<=\d)\\[,;: ](?=\d)|(?<=\d)~(?=\d)", THIN),
    (r"\\[,;: ]|~", " "),
    (r"\\([$%#{}])", r"\1"),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\(?:times)(?![A-Za-z])", "\u00d7"),
    (r"\\(?:cdot)(?![A-Za-z])", "\u00b7"),
    (r"\\pi(?![A-Za-z])", "π"),
    (r"\\pm(?![A-Za-z])", "\u00b1"),
    (r"\\(?:[gl]eq?|[gl]t|neq?)(?![A-Za-z])", "\u2260"),  # any relation but =
    (r"\\approx(?![A-Za-z])", "\u2248"),
    (r"\\q?quad(?![A-Za-z])", " "),
    (r"\^\\circ(?![A-Za-z])|\^\{\\circ\}|\\degree(?![A-Za-z])", "°"),
    (r"\\(?:text(?:bf|rm|it)?|math(?:bf|rm|it)|operatorname)\{([^{}]*)\}", r" \1"),
    (r" {2,}", " "),
)
COMMANDS = tuple((re.compile(pattern), plain) for pattern, plain in COMMANDS)
SIGNS = str.maketrans(
    dict.fromkeys("\u2212\ufe63\uff0d", "-")
    | dict.fromkeys("\u2009\u202f\u00a0\u2007", THIN)
    | dict.fromkeys("\u2019\u02bc", "'")
    | {"\u2044": "/", "\u066b": ".", "\uff0e": ".", "\uff0c": ","}
)
SUPERSCRIPTS = {"\u2070": "0", "\u00b9": "1", "\u00b2": "2", "\u00b3": "3", "\u207b": "-"}
SUPERSCRIPTS |= {chr(0x2070 + digit): str(digit) for digit in range(4, 10)}
RAISED = re.compile(rf"(?<=\d)[{''.join(SUPERSCRIPTS)}]+")
WRITTEN = re.compile(rf"(?<![\w.])(?:{RUN})(?![^\W_])")
MARK = re.compile(r"####|\\(?:boxed|fbox) ?\{")
CURRENCY = re.compile(r"(?:(?:US|AU|CA|C|A)?[$€£¥₹]|\b(?:USD|EUR|GBP|INR|Rs\.?)) ?\Z")
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SHORT_SCALES = {"k": 3, "K": 3, "M": 6, "bn": 9, "B": 9}  # only k without a currency: 5 M may be metres or moles
VARIABLE = re.compile(r" ?[√π∛]|(?:[xyznie]|pi)(?![^\W\d_])| ?\\(?!par|end|newline|Rightarrow|implies|[^A-Za-z])")
LISTING = re.compile(  # words before 2,3 which say that these are two numbers
    r"\b(?:are|were|of|either|between|both|numbers|values|roots|solutions|steps?)\s*:?\s*\Z", re.IGNORECASE
)
JOINED = re.compile(r"[\d)\]}%] ?(?:or|to|through) (?:[A-Za-z] ?= ?)?\Z", re.IGNORECASE)  # 3 or 4, 3 to 4
HEADING = re.compile(r"[.):] ?[^\W\d]")  # behind `#### 2`: a title of a part, no answer
NAMED = re.compile(r"[\s$*(]*(?:[A-Za-z]\w* ?(?:=|\u2248|:) ?)?[\s$*]*\Z")  # before the number of a box
RAISES = re.compile(r"[^\W\d][\^_]\{?-?\Z")  # before the 2 of cm^2, and the 1 of x_1
PART_OF = re.compile(
    r"[\w)]\(\Z|\\\w+ ?\{\Z|[_^\\]\{?\Z|(?<![^\W\d_])[^\W\d_]/\Z|[\d)]/\Z|\d[:.,]\Z|}\{\Z"
)  # f(2), \sqrt{2}, x_1, x/2, 12:30
UNITS = re.compile(r"[\s$*]*(?:[%°$€£]|[^\W\d_]|[ ./·-](?=[^\W\d_])|\^\{?-?\d\}?)*[\s$*.,;]*\Z")  # behind it
Number = int | float


def final_number(text: str) -> Number | None:
    """Return the number of a reply: the marked one, else the last one; None if there is none or it is ambiguous."""
    text = normal(text)
    found, marked = _marked(text)
    return _value(found) if marked else _value(_last(text))


def answer_number(text: str) -> Number | None:
    """Return the number of a file's answer: the marked one, else the only one; None for any other text."""
    text = normal(text)
    found, marked = _marked(text)
    if not marked:
        numbers = [part for match in VALUE.finditer(text) if (part := _read(text, match)) is not SKIP]
        found = numbers[0] if len(numbers) == 1 else None
    return _value(found)


def marked_number(text: str) -> Number | None:
    """Return the number behind the last mark of a text; None without one."""
    return _value(_marked(normal(text))[0])


def numbers_in(text: str) -> set[Number]:
    """Return the values of all numbers that a text writes, whatever is around them: of a list each, 5 of 3-5."""
    found = set()
    for run in WRITTEN.findall(normal(text)):
        parts = [run] if _separated(run) else re.split(rf"[,'_ {TIGHT}{THIN}]", run)
        found |= {_value(_number(part)) for part in parts}
    return found - {None}


def plain_text(text: str) -> str:
    """Return a text in one case, with single blanks between its words."""
    return " ".join(text.split()).casefold()


# -- the parts of the grammar

SKIP = object()  # a number that is part of a word, such as H2O: not there


def normal(text: str) -> str:
    """Return a text with ASCII digits and signs, and with LaTeX's spacing and commands reduced to one form."""
    if not text.isascii():
        text = RAISED.sub(lambda found: "^" + "".join(map(SUPERSCRIPTS.get, found[0])), text.translate(SIGNS))
        text = "".join(char if char.isascii() else _ascii(char) for char in text)
    if "\\" in text or "~" in text or "{,}" in text:
        for pattern, plain in COMMANDS:
            text = pattern.sub(plain, text)
    return text


def _ascii(char: str) -> str:
    """Return a digit of any script as ASCII, a fraction such as ½ as ` 1/2`, any other character unchanged."""
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if unicodedata.decomposition(char).startswith("<fraction>"):
        return " " + unicodedata.normalize("NFKC", char).replace("\u2044", "/")
    return char


def _marked(text: str) -> tuple[Fraction | None, bool]:
    """Return the number behind the last mark that decides, and whether there is such a mark."""
    for mark in reversed(list(MARK.finditer(text))):
        if mark[0] != "####":
            inside = _inside(text, mark.end())
            if inside is None or inside.strip():  # an empty box is a form to fill in
                return (_whole(inside) if inside is not None else None), True
            continue
        line = text[mark.end() : mark.end() + 20 * WINDOW].lstrip(" \t\n$€£*=").partition("\n")[0]
        found, sign = VALUE.match(line.lstrip("+-").lstrip(" $€£\u20b9")), line[:1] == "-"
        if not found:
            continue
        line = line.lstrip("+-").lstrip(" $€£\u20b9")
        rest = line[found.end() :]
        if HEADING.match(rest):
            continue
        joined = re.match(r"[\s,;]*(?:[^\W\d]+ )?(?:or|and|to|[-\u2013\u2014])?[\s$€£]*\d", rest)
        value = None if joined else _read(line, found)
        value = None if value is SKIP else value
        return (-value if sign and value is not None else value), True
    return None, False


def _inside(text: str, start: int) -> str | None:
    """Return the content of a box up to its closing brace; None if it is not closed."""
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, start, start + 20 * WINDOW):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return text[start : brace.start()]
    return None


def _whole(text: str) -> Fraction | None:
    """Return the value of a text that is one number with its name and unit; None for any other text."""
    text = re.sub(r"(?<=[=({ ])- (?=[\d\\.$])|\A\s*- (?=[\d\\.$])", "-", text.strip().strip("$").strip())
    spots = ((match, text[max(0, match.start() - 9) : match.start()]) for match in VALUE.finditer(text))
    found = [match for match, left in spots if not RAISES.search(left)]
    if len(found) != 1:
        return None
    before, after = text[: found[0].start()], text[found[0].end() :]
    before = CURRENCY.sub("", before.removesuffix("-").removesuffix("+"))
    if not NAMED.fullmatch(before.rstrip("+-")) or not UNITS.fullmatch(after):
        return None
    value = _read(text, found[0])
    return None if value is SKIP else value


def _last(text: str) -> Fraction | None:
    """Return the value of the last number of a text that is no part of a word."""
    for match in reversed(list(VALUE.finditer(text))):
        if (value := _read(text, match)) is not SKIP:
            return value
    return None


def _read(text: str, match: re.Match):
    """Return the value of a match with its sign and scale; None if it is part of something else, SKIP in a word."""
    left, right = text[max(0, match.start() - WINDOW) : match.start()], text[match.end() : match.end() + WINDOW]
    bare = CURRENCY.sub("", left)
    money, sign = bare != left, ""
    if found := re.search(r"([+-]|(?<=[=(:]) ?- )\Z", bare):
        sign, bare = found[0].strip(), CURRENCY.sub("", bare[: found.start()])
    sticks = bare[-1:]
    if sign and re.search(r"[\w)\]}%]\Z", sticks):  # 3-5, x-5; GPT-4
        return SKIP if re.search(r"[^\W\d_]{2}\Z", bare) else None
    if re.search(r"[^\W\d]\Z", sticks) or re.search(r"[^\W\d]\^\{?-?\Z", bare):  # H2O, cm^2
        return SKIP
    if _continues(bare, right, match[0]):
        return None
    value = _computed(match, bare, right)
    if value is None:
        return None
    scale = re.match(r" ?([^\W\d_]+)", right)
    word = scale[1] if scale else ""
    if word in SHORT_SCALES and not scale[0].startswith(" "):
        if not money and word != "k":
            return None
        value *= 10 ** SHORT_SCALES[word]
    value *= 10 ** SCALES.get(word.lower(), 0)
    return -value if sign == "-" else value


def _continues(left: str, right: str, number: str) -> bool:
    """Return whether what stands on either side makes a number a part of an expression, list, date or range."""
    tag = re.search(r"(?:<[^<>]{1,30}>|[-=]>|(?:\A|\n)>) ?\Z", left)  # <answer> 10, => 10, and a quoted line's > 10
    if re.search(r"[_^\\(\[{/.:,]\Z", left) and re.search(
        r"[\w)]\(\Z|\\\w+ ?\{\Z|[_^\\]\{?\Z|(?<![^\W\d_])[^\W\d_]/\Z|[\d)]/\Z|\d[:.,]\Z|}\{\Z", left
    ):
        return True  # f(2), \sqrt{2}, x_1, x^2, 1/2/2024, 12:30
    if not tag and re.search(r"[<>\u2264\u2265\u2260\u00b1√]=? ?\Z|[\w)\]}%] ?[\u00d7\u00f7\u00b7+] ?\Z", left):
        return True  # x > 5, a + 5
    if re.search(r"[\d)\]}%] ?(?:[*/]|-|[\u2013\u2014]|\.\.) ?\Z|\b[A-Za-z] ?[*/] ?\Z", left) or JOINED.search(left):
        return True  # 5 - 3, 3–5, 3 or 4
    if re.match(r"\s*[)\]}]", right) and re.search(r"[,;]\s*[+-]?\Z", left):
        return True  # (3, 4)
    if (re.match(r"[\w{(\[^]*\^|\*\*\d", right) and right[:1] in "^*") or VARIABLE.match(right):
        return True  # 2^x, 5x, 3\sqrt{2}
    if re.match(r"[^\W\d_]+\d|[_'\"]?\d|[:/.,-]\d|/(?:[A-Za-z](?![A-Za-z])|[(\\])|[-\u2013\u2014]\d", right):
        return True  # 5a3, 12:30, 5/x
    if re.match(r" ?[+\u00d7\u00f7\u00b7\u00b1]|\*[A-Za-z(\\]| \* [\w(]| ?- ?[\d(\\]|-[A-Za-z](?![A-Za-z])", right):
        return True  # 5 + x
    if not re.match(r" ?(?:</|<\|?\w+)", right) and re.match(r" ?[<>\u2264\u2265\u2260]", right):
        return True  # 5 < x
    return bool(re.match(r"\.\.", right)) and "." in number  # 0.33...


def _computed(match: re.Match, left: str, right: str) -> Fraction | None:
    """Return the value of a match."""
    if match["plain"]:
        return _number(match["plain"], left, right)
    if match["factor"]:
        return _product(_number(match["factor"]), _power(Fraction(10), match["ten"]))
    if match["base"]:
        return _power(_number(match["base"]), match["power"])
    if match["top"]:
        whole, top, bottom = match["before"], _number(match["top"]), _number(match["bottom"])
    else:
        over_sign, over, under_sign, under, over_digit, under_digit = match.groups()[1:7]
        whole, top, bottom = match["whole"], _number(over or over_digit), _number(under or under_digit)
        top = -top if over_sign == "-" and top is not None else top
        bottom = -bottom if under_sign == "-" and bottom is not None else bottom
    more = _number(whole) if whole else Fraction(0)
    return None if top is None or not bottom or more is None else more + top / bottom


def _product(a: Fraction | None, b: Fraction | None) -> Fraction | None:
    return None if a is None or b is None else a * b


def _power(base: Fraction | None, power: str) -> Fraction | None:
    """Return a power; None for one that is too large, or a quotient by zero."""
    if base is None or len(power) > 4:
        return None
    digits = len(str(max(abs(base.numerator), base.denominator)))
    exponent = int(power)
    return None if abs(exponent) * digits > MOST_DIGITS * 2 or (not base and exponent <= 0) else base**exponent


def _number(text: str, left: str = "", right: str = "") -> Fraction | None:
    """Return the value of digits with separators; None if they can be read in several ways or are too many."""
    digits, _, exponent = text.lower().partition("e")
    enclosed = left.rstrip()[-1:] in tuple("([{") and right.lstrip()[:1] in tuple(")]}")
    if len(exponent) > 4 or len(digits) > 2 * MOST_DIGITS or (enclosed and "," in digits):
        return None
    plain = _separated(digits)
    if plain is None and re.fullmatch(r"[\d.,]+", digits) and not CURRENCY.search(left):
        parts = digits.split(",")  # several numbers, of which a sentence's last one counts
        several = len(parts) > 2 or any("." in part for part in parts) or LISTING.search(left)
        unit = re.match(r" ?(?:[^\W\d_]{1,3}\b|[%°€])", right)
        plain = parts[-1] if several and parts[-1].count(".") < 2 and len(parts) > 1 and not unit else None
    if plain is None or abs(len(plain.partition(".")[0]) + int(exponent or 0)) > MOST_DIGITS:
        return None
    return Fraction(plain) * Fraction(10) ** int(exponent or 0)


def _separated(digits: str) -> str | None:
    """Return digits without separators, with a point before decimals; None if they fit no form of one number."""
    if re.fullmatch(r"\d+|\d*\.\d+", digits):
        return digits
    tight = re.fullmatch(rf"(\d+){TIGHT}(\d{{1,2}}|\d{{4,}})", digits)  # 1{,}5
    if tight:
        return f"{tight[1]}.{tight[2]}"
    digits = digits.replace(TIGHT, ",")
    if re.fullmatch(rf"(?:[1-9]\d{{0,2}})(?:([,'_ {THIN}])\d{{3}})(?:\1\d{{3}})*(?:\.\d+)?", digits):
        return re.sub(rf"[,'_ {THIN}]", "", digits)
    if re.fullmatch(r"[1-9]\d?(?:,\d\d)+,\d{3}(?:\.\d+)?", digits):  # 1,00,000
        return digits.replace(",", "")
    if re.fullmatch(rf"[1-9]\d{{0,2}}(?:([. {THIN}])\d{{3}})(?:\1\d{{3}})*,(?:\d{{1,2}}|\d{{4,}})", digits):  # 1.234,56
        return re.sub(rf"[. {THIN}]", "", digits).replace(",", ".")
    return None


def _value(found: Fraction | None) -> Number | None:
    """Return a value as a whole number or as a float, equal for 0.3 and 0.1 + 0.2; None for one out of range."""
    if found is None or abs(found) >= 10**MOST_DIGITS:
        return None
    return found.numerator if found.denominator == 1 else float(f"{float(found):.15g}")
