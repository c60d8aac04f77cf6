"""Functions and operators with words of their own: EXTRACT(DAY FROM x), x + INTERVAL 1 DAY, TRIM(BOTH 'a' FROM x).

Each reader takes a Grammar whose next token follows the function's parenthesis or the form's first word.
"""

from envs.simulators.mysql.tokens import not_spoken

UNITS = ["MICROSECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR", "YEAR_MONTH", "DAY_HOUR"]
UNITS += ["DAY_MINUTE", "DAY_SECOND", "HOUR_MINUTE", "HOUR_SECOND", "MINUTE_SECOND"]


def called(name: str, *arguments: tuple) -> tuple:
    return "call", name, list(arguments), False, [], ","


def unit(grammar) -> str:
    """Read a unit of time."""
    kind, text, _ = grammar.tokens[grammar.at]
    if kind != "word" or text.removeprefix("SQL_TSI_") not in UNITS:
        raise grammar.error()
    grammar.at += 1
    return text.removeprefix("SQL_TSI_")


def interval(grammar) -> tuple:
    amount = grammar.expression()
    if amount[0] == "row":
        raise not_spoken("INTERVAL()")
    return "interval", amount, unit(grammar)


def extract(grammar) -> tuple:
    part = unit(grammar)
    grammar.expect("FROM")
    return called("EXTRACT", ("text", part), grammar.expression())


def timestampdiff(grammar) -> tuple:
    part = unit(grammar)
    grammar.expect(",")
    first = grammar.expression()
    grammar.expect(",")
    return called("TIMESTAMPDIFF", ("text", part), first, grammar.expression())


def timestampadd(grammar) -> tuple:
    part = unit(grammar)
    grammar.expect(",")
    amount = grammar.expression()
    grammar.expect(",")
    return "binary", "+", grammar.expression(), ("interval", amount, part)


def shifted(operator: str):
    """Return the reader of DATE_ADD or DATE_SUB and their like: a bare number counts days."""

    def read(grammar) -> tuple:
        moment = grammar.expression()
        grammar.expect(",")
        amount = grammar.expression()
        return "binary", operator, moment, amount if amount[0] == "interval" else ("interval", amount, "DAY")

    return read


def trim(grammar) -> tuple:
    side = next((side for side in ("BOTH", "LEADING", "TRAILING") if grammar.accept(side)), "BOTH")
    what = ("text", " ") if grammar.sees("FROM") else grammar.expression()
    if grammar.accept("FROM"):
        return called(f"TRIM {side}", grammar.expression(), what)
    return called("TRIM BOTH", what, ("text", " "))


def position(grammar) -> tuple:
    part = grammar.expression(7)
    grammar.expect("IN")
    return called("LOCATE", part, grammar.expression())


FORMS = {  # function -> its reader
    "ADDDATE": shifted("+"),
    "DATE_ADD": shifted("+"),
    "DATE_SUB": shifted("-"),
    "EXTRACT": extract,
    "POSITION": position,
    "SUBDATE": shifted("-"),
    "TIMESTAMPADD": timestampadd,
    "TIMESTAMPDIFF": timestampdiff,
    "TRIM": trim,
}
BARE = ("CURRENT_DATE", "CURRENT_TIME", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP", "UTC_DATE", "UTC_TIME")
BARE += ("UTC_TIMESTAMP",)  # functions that need no parentheses
