"""MySQL's functions of days and times, in pure Python: they take and return text such as 2024-05-06, or numbers.

DATES lists their signatures as functions.SIGNATURES does. They are in functions.FUNCTIONS too.
"""

import datetime
import re
from collections.abc import Callable
from datetime import timedelta

NOW = "2024-05-06 10:00:00"  # what every statement's clock shows, so that an episode is the same on every day
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"]
MONTHS += ["November", "December"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MOMENT = re.compile(
    r"\s*(\d{4}|\d\d)[-/.](\d{1,2})[-/.](\d{1,2})(?:[T\s]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?)?",
    re.ASCII,
)
DIGITS = re.compile(r"(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d))?$", re.ASCII)  # 20240506, 20240506100000
CLOCK = re.compile(r"\s*(?:\d+-\d+-\d+[T\s]+)?(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.\d*)?)?", re.ASCII)

DATES = {  # name -> what it takes, the type of its result
    "CURDATE": ("", "date"),
    "CURRENT_DATE": ("", "date"),
    "CURRENT_TIME": ("", "time"),
    "CURRENT_TIMESTAMP": ("", "datetime"),
    "CURTIME": ("", "time"),
    "DATE": ("t", "date"),
    "DATEDIFF": ("tt", "int"),
    "DATE_FORMAT": ("tt", "text"),
    "DAY": ("t", "int"),
    "DAYNAME": ("t", "text"),
    "DAYOFMONTH": ("t", "int"),
    "DAYOFWEEK": ("t", "int"),
    "DAYOFYEAR": ("t", "int"),
    "FROM_DAYS": ("n", "date"),
    "FROM_UNIXTIME": ("n", "datetime"),
    "HOUR": ("t", "int"),
    "LAST_DAY": ("t", "date"),
    "LOCALTIME": ("", "datetime"),
    "LOCALTIMESTAMP": ("", "datetime"),
    "MAKEDATE": ("nn", "date"),
    "MINUTE": ("t", "int"),
    "MONTH": ("t", "int"),
    "MONTHNAME": ("t", "text"),
    "NOW": ("", "datetime"),
    "PERIOD_DIFF": ("nn", "int"),
    "QUARTER": ("t", "int"),
    "SECOND": ("t", "int"),
    "SEC_TO_TIME": ("n", "time"),
    "SYSDATE": ("", "datetime"),
    "TIME": ("t", "time"),
    "TIMEDIFF": ("tt", "time"),
    "TIMESTAMP": ("t", "datetime"),
    "TIME_FORMAT": ("tt", "text"),
    "TIME_TO_SEC": ("t", "int"),
    "TO_DAYS": ("t", "int"),
    "UNIX_TIMESTAMP": ("?t", "int"),
    "UTC_DATE": ("", "date"),
    "UTC_TIME": ("", "time"),
    "UTC_TIMESTAMP": ("", "datetime"),
    "WEEK": ("t?n", "int"),
    "WEEKDAY": ("t", "int"),
    "WEEKOFYEAR": ("t", "int"),
    "YEAR": ("t", "int"),
    "YEARWEEK": ("t?n", "int"),
}


def moment(text: str) -> datetime.datetime | None:
    """Return the moment that a text begins with; without a time it is midnight."""
    found = MOMENT.match(text) or DIGITS.match(text.strip())
    if not found:
        return None
    year, month, day, hour, minute, second, *fraction = found.groups()
    year = int(year) if len(year) > 2 else int(year) + (1900 if int(year) >= 70 else 2000)
    micro = int(fraction[0].ljust(6, "0")) if fraction and fraction[0] else 0
    try:
        return datetime.datetime(year, int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), micro)
    except ValueError:
        return None


def seconds_of(text: str) -> int | None:
    """Return the time of a text such as 10:05:00, in seconds."""
    if found := CLOCK.match(text):
        sign, hours, minutes, seconds = found.groups()
        total = int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)
        return (-total if sign else total) if int(minutes) < 60 and int(seconds or 0) < 60 else None
    return 0 if moment(text) else None


def clock_text(seconds: float) -> str:
    hours, rest = divmod(min(abs(round(seconds)), 838 * 3600 + 3599), 3600)
    return f"{'-' * (seconds < 0)}{hours:02}:{rest // 60:02}:{rest % 60:02}"


def ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def week(day: datetime.datetime, mode: int) -> tuple[int, int]:
    """Return the year and the number of a day's week, in one of MySQL's eight modes."""
    monday, whole = mode & 1, mode & 2  # weeks begin on Monday; there is no week 0
    full = bool(mode & 4) != (not monday)  # week 1 is the first that lies wholly in its year, not by four days

    def opening(year: int) -> tuple[int, bool]:
        """Return the weekday that a year begins on, and whether its week 1 begins after that week."""
        begin = datetime.date(year, 1, 1)
        weekday = begin.weekday() if monday else begin.isoweekday() % 7
        return weekday, weekday != 0 if full else weekday >= 4

    year = day.year
    weekday, late = opening(year)
    if day.month == 1 and day.day <= 7 - weekday and year > 1:
        if late and not whole:
            return year, 0
        whole, year = 2, year - 1
        weekday, late = opening(year)
    first = datetime.date(year, 1, 1).toordinal() - weekday + 7 * late
    days = day.toordinal() - first
    if whole and days >= 52 * 7 and year < 9999 and not opening(year + 1)[1]:
        return year + 1, 1
    return year, days // 7 + 1


def year_week(day: datetime.datetime, mode: float = 0) -> int:
    year, number = week(day, round(mode) & 7 | 2)
    return year * 100 + number


DATE_PARTS = {  # of DATE_FORMAT
    "Y": lambda day: f"{day.year:04}",
    "y": lambda day: f"{day.year % 100:02}",
    "m": lambda day: f"{day.month:02}",
    "c": lambda day: str(day.month),
    "d": lambda day: f"{day.day:02}",
    "e": lambda day: str(day.day),
    "M": lambda day: MONTHS[day.month - 1],
    "b": lambda day: MONTHS[day.month - 1][:3],
    "W": lambda day: DAYS[day.weekday()],
    "a": lambda day: DAYS[day.weekday()][:3],
    "D": lambda day: ordinal(day.day),
    "j": lambda day: f"{day.timetuple().tm_yday:03}",
    "w": lambda day: str(day.isoweekday() % 7),
    "H": lambda day: f"{day.hour:02}",
    "k": lambda day: str(day.hour),
    "h": lambda day: f"{(day.hour + 11) % 12 + 1:02}",
    "l": lambda day: str((day.hour + 11) % 12 + 1),
    "i": lambda day: f"{day.minute:02}",
    "s": lambda day: f"{day.second:02}",
    "f": lambda day: f"{day.microsecond:06}",
    "p": lambda day: "AM" if day.hour < 12 else "PM",
    "r": lambda day: date_format(day, "%h:%i:%s %p"),
    "T": lambda day: date_format(day, "%H:%i:%s"),
    "U": lambda day: f"{week(day, 0)[1]:02}",
    "u": lambda day: f"{week(day, 1)[1]:02}",
    "V": lambda day: f"{week(day, 2)[1]:02}",
    "v": lambda day: f"{week(day, 3)[1]:02}",
    "X": lambda day: f"{week(day, 2)[0]:04}",
    "x": lambda day: f"{week(day, 3)[0]:04}",
}
DATE_PARTS |= {"S": DATE_PARTS["s"], "I": DATE_PARTS["h"]}


def date_format(day: datetime.datetime, form: str) -> str:
    return re.sub(r"%(.)", lambda part: DATE_PARTS[part[1]](day) if part[1] in DATE_PARTS else part[1], form)


def time_format(text: str, form: str) -> str | None:
    seconds = seconds_of(text)
    if seconds is None or not 0 <= seconds < 86400:
        return None
    return date_format(datetime.datetime(2000, 1, 1) + timedelta(seconds=seconds), form)


def last_day(day: datetime.datetime) -> str:
    if (day.year, day.month) == (9999, 12):
        return "9999-12-31"
    return (datetime.date(day.year + day.month // 12, day.month % 12 + 1, 1) - timedelta(1)).isoformat()


ON_DAYS = {  # functions of a moment, which the text of the first argument means
    "DATE": lambda day: day.date().isoformat(),
    "DATE_FORMAT": date_format,
    "DAY": lambda day: day.day,
    "DAYNAME": lambda day: DAYS[day.weekday()],
    "DAYOFMONTH": lambda day: day.day,
    "DAYOFWEEK": lambda day: day.isoweekday() % 7 + 1,
    "DAYOFYEAR": lambda day: day.timetuple().tm_yday,
    "LAST_DAY": last_day,
    "MONTH": lambda day: day.month,
    "MONTHNAME": lambda day: MONTHS[day.month - 1],
    "QUARTER": lambda day: (day.month + 2) // 3,
    "TIMESTAMP": lambda day: day.isoformat(" "),
    "TO_DAYS": lambda day: day.toordinal() + 365,
    "UNIX_TIMESTAMP": lambda day: max(0, int((day - datetime.datetime(1970, 1, 1)).total_seconds())),
    "WEEK": lambda day, mode=0: week(day, round(mode) & 7)[1],
    "WEEKDAY": lambda day: day.weekday(),
    "WEEKOFYEAR": lambda day: week(day, 3)[1],
    "YEAR": lambda day: day.year,
    "YEARWEEK": year_week,
    "moment": lambda day: day.isoformat(" "),
    "day_number": lambda day: int(day.strftime("%Y%m%d")),
    "moment_number": lambda day: int(day.strftime("%Y%m%d%H%M%S")),
}


def of_day(function: Callable) -> Callable:
    return lambda text, *more: None if (day := moment(text)) is None else function(day, *more)


def of_clock(function: Callable) -> Callable:
    return lambda text: None if (seconds := seconds_of(text)) is None else function(seconds)


def datediff(one: str, other: str) -> int | None:
    first, second = moment(one), moment(other)
    return (first.date() - second.date()).days if first and second else None


def timediff(one: str, other: str) -> str | None:
    first, second = moment(one), moment(other)
    if first and second:
        return clock_text(int((first - second).total_seconds()))
    start, end = seconds_of(one), seconds_of(other)
    return None if first or second or start is None or end is None else clock_text(start - end)


def of_ordinal(number: float) -> str | None:
    """Return the day with this number, counted from the year 1."""
    return (
        datetime.date.fromordinal(round(number)).isoformat() if 1 <= number <= datetime.date.max.toordinal() else None
    )


def makedate(year: float, day: float) -> str | None:
    year = round(year) + (0 if year >= 100 else 2000 if year < 70 else 1900)
    return (
        of_ordinal(datetime.date(year, 1, 1).toordinal() + round(day) - 1) if day >= 1 and 1 <= year <= 9999 else None
    )


def from_unixtime(seconds: float) -> str | None:
    if not 0 <= seconds < 32536771200:
        return None
    return (datetime.datetime(1970, 1, 1) + timedelta(seconds=int(seconds))).isoformat(" ")


def months_of(period: float) -> int:
    return int(period) // 100 * 12 + int(period) % 100


def today() -> str:
    return NOW[:10]


def time_now() -> str:
    return NOW[11:]


def now() -> str:
    return NOW


CLOCKS = dict.fromkeys(("CURDATE", "CURRENT_DATE", "UTC_DATE"), today)
CLOCKS |= dict.fromkeys(("CURTIME", "CURRENT_TIME", "UTC_TIME"), time_now)
CLOCKS |= dict.fromkeys((name for name, (_, kind) in DATES.items() if kind == "datetime" and DATES[name][0] == ""), now)
ON_DATES = {name: of_day(function) for name, function in ON_DAYS.items()} | CLOCKS
ON_DATES |= {
    "DATEDIFF": datediff,
    "FROM_DAYS": lambda number: of_ordinal(number - 365),
    "FROM_UNIXTIME": from_unixtime,
    "HOUR": of_clock(lambda seconds: abs(seconds) // 3600),
    "MAKEDATE": makedate,
    "MINUTE": of_clock(lambda seconds: abs(seconds) // 60 % 60),
    "PERIOD_DIFF": lambda one, other: months_of(one) - months_of(other),
    "SECOND": of_clock(lambda seconds: abs(seconds) % 60),
    "SEC_TO_TIME": clock_text,
    "TIME": of_clock(clock_text),
    "TIMEDIFF": timediff,
    "TIME_FORMAT": time_format,
    "TIME_TO_SEC": of_clock(lambda seconds: seconds),
    "UNIX_TIMESTAMP": lambda text=NOW: ON_DAYS["UNIX_TIMESTAMP"](day) if (day := moment(text)) else 0,
}
