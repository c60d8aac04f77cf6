"""Arithmetic of moments by units of time: INTERVAL, EXTRACT, TIMESTAMPDIFF and STR_TO_DATE, in pure Python."""

import datetime
import re
from calendar import monthrange
from datetime import timedelta

from envs.simulators.mysql.dates import MONTHS, moment, seconds_of, week

SECONDS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 604800, "MICROSECOND": 1e-6}
IN_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
COMPOUND = {  # unit -> the units of its numbers, from the right
    "YEAR_MONTH": ("MONTH", "YEAR"),
    "DAY_HOUR": ("HOUR", "DAY"),
    "DAY_MINUTE": ("MINUTE", "HOUR", "DAY"),
    "DAY_SECOND": ("SECOND", "MINUTE", "HOUR", "DAY"),
    "HOUR_MINUTE": ("MINUTE", "HOUR"),
    "HOUR_SECOND": ("SECOND", "MINUTE", "HOUR"),
    "MINUTE_SECOND": ("SECOND", "MINUTE"),
}
ON_DAYS = ("DAY", "WEEK", "MONTH", "QUARTER", "YEAR", "YEAR_MONTH")  # units that leave a day a day
NUMBER = re.compile(r"\s*[-+]?\d*\.?\d*", re.ASCII)


def numbers(amount, unit: str) -> list[tuple[float, str]]:
    """Return the numbers of an interval with their units."""
    if unit in COMPOUND:
        text, names = str(amount), COMPOUND[unit]
        sign, parts = -1 if text.strip().startswith("-") else 1, re.findall(r"\d+", text)[::-1]
        return [(sign * int(part[:9]), name) for part, name in zip(parts, names, strict=False)]
    found = NUMBER.match(amount)[0].strip() if isinstance(amount, str) else amount
    number = float(found) if found not in ("", "-", "+", ".") else 0.0
    if unit not in ("SECOND", "MICROSECOND"):
        number = int(number + (0.5 if number >= 0 else -0.5))  # halves round away from zero
    return [(number, unit)]


def shift(text: str, amount, unit: str, sign: int) -> str | None:
    """Return a day or moment after (sign 1) or before (-1) an interval; None outside of the years 1 to 9999."""
    when = moment(text)
    if when is None:
        return None
    try:
        for number, name in numbers(amount, unit):
            if name in IN_MONTHS:
                when = by_months(when, round(sign * number * IN_MONTHS[name]))
            else:
                when += timedelta(seconds=sign * number * SECONDS[name])
    except (ValueError, OverflowError):
        return None
    return when.date().isoformat() if unit in ON_DAYS and ":" not in text else when.isoformat(" ")


def by_months(when: datetime.datetime, months: int) -> datetime.datetime:
    """Return a moment some months later, on the month's last day if it is too short."""
    year, month = divmod(when.year * 12 + when.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise ValueError("the year is outside of 1 to 9999")
    return when.replace(year=year, month=month + 1, day=min(when.day, monthrange(year, month + 1)[1]))


def timestampdiff(unit: str, one: str, other: str) -> int | None:
    """Return how many whole units lie from one moment to another."""
    first, second = moment(one), moment(other)
    if first is None or second is None or unit in COMPOUND:
        return None
    if unit not in IN_MONTHS:
        return int((second - first) / timedelta(seconds=SECONDS[unit]))
    sign = 1 if second >= first else -1
    first, second = sorted((first, second))
    months = (second.year - first.year) * 12 + second.month - first.month
    months -= (second.day, second.time()) < (first.day, first.time())
    return sign * (months // IN_MONTHS[unit])


def extract(unit: str, text: str) -> int | None:
    """Return a part of a moment; of a compound unit the digits of its parts."""
    when = moment(text)
    if when is None:
        clock = seconds_of(text)
        if clock is None or unit not in ("HOUR", "MINUTE", "SECOND", "HOUR_MINUTE", "HOUR_SECOND", "MINUTE_SECOND"):
            return None
        when = datetime.datetime(2000, 1, 1) + timedelta(seconds=clock % 86400)
    parts = {"WEEK": week(when, 0)[1], "QUARTER": (when.month + 2) // 3, "MICROSECOND": when.microsecond}
    if unit in parts:
        return parts[unit]
    names = COMPOUND.get(unit, (unit,))[::-1]
    first, *others = (getattr(when, name.lower()) for name in names)
    return int("".join([str(first), *(f"{other:02}" for other in others)]))


READ = {  # of STR_TO_DATE's format -> a pattern, which never backtracks
    "Y": r"(?P<Y>\d{1,4}+)",
    "y": r"(?P<y>\d{1,2}+)",
    "m": r"(?P<m>\d{1,2}+)",
    "d": r"(?P<d>\d{1,2}+)(?:st|nd|rd|th)?",
    "b": r"(?P<b>[a-z]++)",
    "H": r"(?P<H>\d{1,2}+)",
    "i": r"(?P<i>\d{1,2}+)",
    "s": r"(?P<s>\d{1,2}+)",
    "f": r"(?P<f>\d{1,6}+)",
    "p": r"(?P<p>[ap]m)",
    "W": r"[a-z]++",
}
READ |= {"c": READ["m"], "e": READ["d"], "D": READ["d"], "M": READ["b"], "a": READ["W"], "S": READ["s"]}
READ |= dict.fromkeys("khIl", READ["H"])
CLOCK_PARTS = "HkhIlisSfprT"  # letters of a format that read a time


def str_to_date(text: str, form: str) -> str | None:
    """Return the day, moment or time that a text holds in a format; None if it has another form."""
    form = form.replace("%T", "%H:%i:%s").replace("%r", "%h:%i:%s %p")
    letters = [form[i + 1] for i in range(len(form) - 1) if form[i] == "%"]
    try:
        pattern = re.sub(r"%(.)|\s+|[^%]", lambda part: pattern_of(part[1], part[0]), form)
        found = re.compile(r"\s*" + pattern, re.IGNORECASE | re.ASCII).match(text)
        return read_parts(found.groupdict(), letters) if found else None
    except (re.error, ValueError, KeyError):
        return None


def pattern_of(letter: str | None, text: str) -> str:
    return READ[letter] if letter else r"\s*+" if text.isspace() else re.escape(text)


def read_parts(parts: dict[str, str], letters: list[str]) -> str:
    """Return the text of a day, a moment or a time from its parts. Raise ValueError for none that exists."""
    number = lambda name, default=0: int(parts.get(name) or default)  # noqa: E731
    hour = number("H")
    if "p" in parts:
        if not 1 <= hour <= 12:
            raise ValueError("no hour of twelve")
        hour = hour % 12 + 12 * (parts["p"].lower() == "pm")
    clock = datetime.time(hour, number("i"), number("s"), int((parts.get("f") or "").ljust(6, "0")))
    if not set(parts) & set("YymbdW"):
        return clock.isoformat()
    name = (parts.get("b") or "").lower()
    months = [i for i, month in enumerate(MONTHS, 1) if name in (month.lower(), month[:3].lower())]
    if name and not months:
        raise ValueError("no month")
    year = number("Y", number("y") + (1900 if number("y") >= 70 else 2000))
    day = datetime.date(year, months[0] if months else number("m"), number("d"))
    return f"{day} {clock.isoformat()}" if set(letters) & set(CLOCK_PARTS) else str(day)


ON_INTERVALS = {
    "EXTRACT": extract,
    "STR_TO_DATE": str_to_date,
    "TIMESTAMPDIFF": timestampdiff,
    "shift": shift,
}
