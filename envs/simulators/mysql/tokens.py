"""Tokens of MySQL's language: their form, quoted strings, and MySQLError with MySQL's codes and messages."""

import re

TOKEN = re.compile(
    r"""\s++ | --(?:\s[^\n]*+|$) | \#[^\n]*+ | /\*.*?\*/
    | (?P<double>(?:\d++(?:\.\d*+)?|\.\d++)[eE][+-]?\d++)
    | (?P<decimal>\d++\.\d*+|\.\d++)
    | (?P<int>\d++(?![\w$]))
    | (?P<text>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
    | (?P<name>`[^`]++`)
    | (?P<word>[\w$]++)
    | (?P<variable>@@?[\w$.]++)
    | (?P<sign><=>|<=|>=|<>|!=|<<|>>|\|\||&&|:=|->>?|[-+*/%=<>!(),.&|^~])""",
    re.VERBOSE | re.DOTALL,
)
ESCAPE = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
CALLED = {
    "DATABASE",
    "GROUPING",
    "IF",
    "INSERT",
    "LEFT",
    "MOD",
    "REPEAT",
    "REPLACE",
    "RIGHT",
    "SCHEMA",
}  # reserved, and functions
CALLED |= {"ROW_NUMBER", "RANK", "DENSE_RANK", "PERCENT_RANK", "CUME_DIST", "NTILE", "LAG", "LEAD", "FIRST_VALUE"}
CALLED |= {"LAST_VALUE", "NTH_VALUE", "CHAR"}
SPREADS = {  # aggregate -> whether of a sample, whether the root
    "STD": (False, True),
    "STDDEV": (False, True),
    "STDDEV_POP": (False, True),
    "STDDEV_SAMP": (True, True),
    "VARIANCE": (False, False),
    "VAR_POP": (False, False),
    "VAR_SAMP": (True, False),
}
AGGREGATES = {"AVG", "COUNT", "GROUP_CONCAT", "MAX", "MIN", "SUM", *SPREADS}


class MySQLError(Exception):
    """An error with MySQL's code and message: `1146 (42S02): Table 'shop.nope' doesn't exist`."""

    def __init__(self, code: int, state: str, text: str):
        super().__init__(f"{code} ({state}): {text}")
        self.code = code


class Refused(Exception):
    """The error of a function that SQLite calls: code, state and a message, perhaps with {column} and {row}."""

    def __init__(self, code: int, state: str, text: str):
        super().__init__(code, state, text)


def syntax_error(near: str) -> MySQLError:
    text = "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server version for "
    return MySQLError(1064, "42000", f"{text}the right syntax to use near '{near[:80]}' at line 1")


def not_spoken(what: str) -> MySQLError:
    """Return the error for SQL that MySQL 8 takes and this one does not."""
    return MySQLError(1235, "42000", f"This version of MySQL doesn't yet support '{what}'")


def too_deep() -> MySQLError:
    return MySQLError(1436, "HY000", "Thread stack overrun: the statement is nested too deeply")


def too_many_columns() -> MySQLError:
    return MySQLError(1117, "HY000", "Too many columns")


def unquoted(text: str) -> str:
    """Return the contents of a quoted string."""
    quote = text[0]

    def said(match: re.Match) -> str:
        if match[1]:
            return ESCAPES.get(match[1], match[1])
        return quote if match[0][0] == quote else match[0]

    return ESCAPE.sub(said, text[1:-1]) if "\\" in text or quote in text[1:-1] else text[1:-1]
