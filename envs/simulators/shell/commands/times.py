"""Dates in UTC, or by POSIX rules in TZ: parsed as `date -d` and `touch` do, formatted as `date` and `stat` do."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]
MONTHS += ["November", "December"]
WEEKDAY = "(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*"
LAST = 253402300799.0  # seconds: the end of the year 9999, beyond which nothing can be shown
SECONDS = {"sec": 1, "second": 1, "min": 60, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
SECONDS |= {"fortnight": 1209600}
CLOCK_TIME = r"(?:^| )(\d{1,2}):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?: ?(am|pm)| ?([+-]) ?(\d{1,4})\b)?"
HOUR = r"(?:^| )(\d{1,2}) ?(am|pm)\b"
DATE = r"(?:(?<= )|^)(?:(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:[t ]|$)|(\d{4})(\d\d)(\d\d)(?: |$))"


class TimeError(ValueError):
    """A text that is not a date."""


def moment(seconds: float) -> datetime:
    """Return seconds since 1970 as a date; TimeError if the year is out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise TimeError from None


def parse_stamp(text: str, now: float) -> float:
    """Parse touch -t: [[CC]YY]MMDDhhmm[.ss]."""
    found = re.fullmatch(r"(\d\d|\d{4})?(\d\d)(\d\d)(\d\d)(\d\d)(?:\.(\d\d))?", text)
    if not found:
        raise TimeError
    year = int(found[1]) if found[1] else moment(now).year
    if found[1] and len(found[1]) == 2:
        year += 2000 if year < 69 else 1900
    try:
        return datetime(year, *map(int, found.group(2, 3, 4, 5)), int(found[6] or 0), tzinfo=UTC).timestamp()
    except ValueError:
        raise TimeError from None


ZONE = re.compile(r"([A-Za-z]{3,}|<[-+\w]+>)([-+]?\d{1,2})(?::(\d\d))?(?:([A-Za-z]{3,}|<[-+\w]+>)(?:,(.*))?)?")
RULE = re.compile(r"M(\d{1,2})\.(\d)\.(\d)(?:/(\d{1,2}))?")


def zone(tz: str, seconds: float) -> tuple[str, int]:
    """Return the name and the seconds ahead of UTC of TZ at a time. Only POSIX's notation is known, as where no files
    of time zones are installed: any other name stands for UTC."""
    found = ZONE.fullmatch(tz.removeprefix(":"))
    if not found:
        name = re.match(r"[A-Za-z]{3,}", tz.removeprefix(":"))
        return (name[0] if name else "UTC"), 0
    name, hours, minutes, summer, rules = found.groups()
    ahead = -(abs(int(hours)) * 3600 + int(minutes or 0) * 60) * (-1 if hours[0] == "-" else 1)
    if summer:
        begin, end = ([RULE.fullmatch(rule) for rule in (rules or "M3.2.0,M11.1.0").split(",")] + [None, None])[:2]
        year = moment(seconds).year
        if begin and end:
            from_, to = _change(year, begin) - ahead, _change(year, end) - ahead - 3600
            if from_ <= seconds < to if from_ < to else not to <= seconds < from_:
                name, ahead = summer, ahead + 3600
    return name.strip("<>"), ahead


def _change(year: int, rule: re.Match) -> float:
    """Return when a rule Mm.w.d/hour falls in a year, by its own clock."""
    month, week, day, hour = (int(part or 2) for part in rule.groups())
    first = datetime(year, min(max(month, 1), 12), 1, tzinfo=UTC)
    when = first + timedelta(days=(day - first.isoweekday()) % 7 + 7 * (week - 1), hours=hour)
    return (when if when.month == first.month else when - timedelta(days=7)).timestamp()


def parse_time(text: str, now: float, tz: str = "") -> float:
    """Parse date -d: a date, a time, both, @seconds, and words such as `yesterday`, `2 days ago`, `next month`."""
    rest = text.strip().lower()[:200]
    if found := re.fullmatch(r"@(-?\d{1,12}(\.\d+)?)", rest):
        return moment(float(found[1])).timestamp()
    if tz:
        ahead = zone(tz, now)[1]
        if named := re.search(r"(?<= )(utc|gmt|z)$", rest):
            return parse_time(rest[: named.start()] + "utc", now)
        if re.search(r":\d\d ?[+-]\d", rest):
            return parse_time(rest, now)
        when = parse_time(rest, now + ahead)
        return when - zone(tz, when - ahead)[1]
    if found := re.fullmatch(
        rf"(?:{WEEKDAY},? +)?([a-z]{{3,9}} +\d{{1,2}}) +([\d:]+(?: [ap]m)?)(?: +[a-z]{{3,4}})? +(\d{{4}})", rest
    ):
        rest = f"{found[1]}, {found[3]} {found[2]}"  # as date itself prints it
    when, dated, timed = moment(now), False, False
    try:
        if found := re.search(DATE, rest):
            when, timed = datetime(*(int(part) for part in found.groups() if part), tzinfo=UTC), True
            dated = True
            rest = f"{rest[: found.start()]} {rest[found.end() :]}".strip()
        elif found := re.match(r"(\d{1,2})/(\d{1,2})/(\d{4})(?: |$)", rest):
            when = datetime(int(found[3]), int(found[1]), int(found[2]), tzinfo=UTC)
            rest, dated, timed = rest[found.end() :], True, True
        elif found := _named_month(rest, when.year):
            when, rest, dated, timed = found[0], found[1], True, True
        if found := re.fullmatch(r" ?(?:(\d{1,2})|(\d\d)(\d\d))", rest):  # an hour, or hour and minute
            rest = f"{found[1] or found[2]}:{found[3] or '00'}"
        if found := re.search(HOUR, rest):
            if not 1 <= int(found[1]) <= 12:
                raise TimeError
            rest = f"{rest[: found.start()]} {found[1]}:00 {found[2]}{rest[found.end() :]}"
        if found := re.search(CLOCK_TIME, rest):
            hour = int(found[1]) % 12 + 12 * (found[4] == "pm") if found[4] else int(found[1])
            when = when.replace(hour=hour, minute=int(found[2]), second=int(found[3] or 0), microsecond=0)
            if shift := found[6]:  # hours, or hours and minutes, that the place is ahead of UTC
                ahead = int(shift) * 60 if len(shift) < 3 else int(shift[:-2]) * 60 + int(shift[-2:])
                when -= timedelta(minutes=ahead if found[5] == "+" else -ahead)
            rest, timed = rest[: found.start()] + " " + rest[found.end() :], True
        if not rest.strip() and not timed:  # an empty text is the beginning of the day
            when = when.replace(hour=0, minute=0, second=0, microsecond=0)
        return _shifted(when, rest, dated, timed).timestamp()
    except (ValueError, OverflowError):
        raise TimeError from None


def _named_month(rest: str, year: int) -> tuple[datetime, str] | None:
    """Parse `5 may 2024`, `may 5 2024`, `may 5, 2024`, with an optional weekday before and without the year."""
    rest = re.sub(rf"^{WEEKDAY},? +", "", rest)
    shapes = (
        r"(?P<d>\d{1,2})[ -](?P<m>[a-z]{3,9})(?:[ -](?P<y>\d{4})\b(?!:))?",
        r"(?P<m>[a-z]{3,9}) +(?P<d>\d{1,2})\b(?!:)(?:,? +(?P<y>\d{4})\b(?!:))?",
    )
    for shape in shapes:
        found = re.match(shape, rest)
        if found and (month := _index(MONTHS, found["m"])) is not None:
            return datetime(int(found["y"] or year), month + 1, int(found["d"]), tzinfo=UTC), rest[found.end() :]
    return None


def _index(names: list[str], word: str) -> int | None:
    return next((i for i, name in enumerate(names) if len(word) >= 3 and name.lower().startswith(word)), None)


def _shifted(when: datetime, rest: str, dated: bool, timed: bool) -> datetime:
    """Return a date shifted by words: `2 days ago`, `+1 week`, `next friday`. A weekday means nothing beside a date
    (`dated`), and keeps a time of day that was given (`timed`)."""
    rest = re.sub(r"([+-])\s+(?=\d)", r"\1", rest.replace("utc", "").replace("gmt", ""))
    words = re.findall(r"[+-]?\d{1,9}|[a-z]+|[^\s\w+-]", rest)  # a sign before a word means nothing
    while words:
        word = words.pop(0)
        if word in ("now", "today", "z", ","):
            continue
        if word in ("yesterday", "tomorrow"):
            when += timedelta(days=1 if word == "tomorrow" else -1)
        elif re.fullmatch(r"[+-]?\d+", word) or word in ("next", "last", "this"):
            count = {"next": 1, "last": -1, "this": 0}.get(word)
            count = int(word) if count is None else count
            unit = words.pop(0) if words else ""
            day = _index(DAYS, unit)
            if day is not None and (words[:1] == ["ago"] or word[0] in "+-"):
                raise TimeError
            if words[:1] == ["ago"]:
                count = -count
                words.pop(0)
            if day is None:
                when = _moved(when, count, unit.rstrip("s"))
            elif not dated:
                when = _to_weekday(when, day, count, timed)
        elif (day := _index(DAYS, word)) is not None:
            when = when if dated else _to_weekday(when, day, 0, timed)
        elif word.rstrip("s") in (*SECONDS, "month", "year"):
            count = -1 if words[:1] == ["ago"] else 1
            words = words[1:] if count < 0 else words
            when = _moved(when, count, word.rstrip("s"))
        else:
            raise TimeError
    return when


def _to_weekday(when: datetime, day: int, weeks: int, timed: bool) -> datetime:
    """Return the next such weekday, today included, `weeks` weeks on: 1 is the one after today, -1 the last one."""
    ahead = (day - when.weekday()) % 7
    when += timedelta(days=ahead + 7 * (weeks - (weeks > 0 and ahead > 0)))
    return when if timed else when.replace(hour=0, minute=0, second=0, microsecond=0)


def _moved(when: datetime, count: int, unit: str) -> datetime:
    if unit in SECONDS:
        return when + timedelta(seconds=count * SECONDS[unit])
    if unit not in ("month", "year"):
        raise TimeError
    months = when.year * 12 + when.month - 1 + count * (12 if unit == "year" else 1)
    return when.replace(year=months // 12, month=months % 12 + 1, day=1) + timedelta(days=when.day - 1)


def show(form: str, seconds: float, tz: str = "") -> str:
    """Return a date in strftime's notation."""
    seconds = min(seconds, LAST)
    return re.sub(r"%([-_0^#]*)(\d{0,3})(:{0,3}[A-Za-z%+])", lambda found: _field(found, seconds, tz), form)


def _field(found: re.Match, seconds: float, tz: str) -> str:
    flags, width, letter = found.groups()
    texts, numbers, padded, whole_forms = _fields(seconds, tz)
    if letter in texts:
        text = texts[letter]
        return text.upper() if "^" in flags else text
    if letter in whole_forms:
        return show(whole_forms[letter], seconds, tz)
    if letter in numbers or letter in padded:
        number, size = numbers.get(letter) or padded[letter]
        size = int(width) if width else size
        if "-" in flags:
            return str(number)
        blank = "_" in flags or (letter in padded and "0" not in flags)
        return str(number).rjust(size, " " if blank else "0")
    return found[0]


@lru_cache(maxsize=64)
def _fields(seconds: float, tz: str) -> tuple[dict, dict, dict, dict]:
    """Return the meaning of each letter: texts, numbers with widths, numbers padded with blanks, and other formats."""
    name, ahead = zone(tz, seconds) if tz else ("UTC", 0)
    at = moment(seconds + ahead)
    offset = f"{'-' if ahead < 0 else '+'}{abs(ahead) // 3600:02}{abs(ahead) % 3600 // 60:02}"
    hour, day, half = at.hour % 12 or 12, at.timetuple().tm_yday, "AM" if at.hour < 12 else "PM"
    year, week, _ = at.isocalendar()
    texts = {"A": DAYS[at.weekday()], "B": MONTHS[at.month - 1], "p": half, "P": half.lower(), "n": "\n", "t": "\t"}
    texts |= {"a": texts["A"][:3], "b": texts["B"][:3], "h": texts["B"][:3], "s": str(int(seconds // 1)), "%": "%"}
    texts |= {"Z": name, "z": offset, ":z": offset[:3] + ":" + offset[3:]}
    numbers = {"d": (at.day, 2), "m": (at.month, 2), "y": (at.year % 100, 2), "Y": (at.year, 4), "H": (at.hour, 2)}
    numbers |= {"I": (hour, 2), "M": (at.minute, 2), "S": (at.second, 2), "j": (day, 3), "u": (at.isoweekday(), 1)}
    numbers |= {"w": (at.isoweekday() % 7, 1), "C": (at.year // 100, 2), "G": (year, 4), "g": (year % 100, 2)}
    numbers |= {"V": (week, 2), "U": ((day + 6 - at.isoweekday() % 7) // 7, 2), "W": ((day + 6 - at.weekday()) // 7, 2)}
    numbers |= {"q": ((at.month + 2) // 3, 1), "N": (int(seconds % 1 * 1e9 + 0.5) % 10**9, 9)}
    padded = {"e": (at.day, 2), "k": (at.hour, 2), "l": (hour, 2)}
    whole_forms = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y", "c": "%a %b %e %H:%M:%S %Y"}
    whole_forms |= {"x": "%m/%d/%y", "X": "%H:%M:%S", "r": "%I:%M:%S %p", "+": "%Y-%m-%d"}
    return texts, numbers, padded, whole_forms
