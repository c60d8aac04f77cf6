"""Tokens of MySQL's language: reserved words, quoted strings, and MySQLError with MySQL's codes and messages."""

import re

TOKEN = re.compile(
    r"""\s++ | --(?:\s[^\n]*+|$) | \#[^\n]*+ | /\*.*?\*/
    | (?P<double>(?:\d++(?:\.\d*+)?|\.\d++)[eE][+-]?\d++)
    | (?P<decimal>\d++\.\d*+|\.\d++)
    | (?P<int>\d++(?![\w$]))
    | (?P<text>'(?:[^'\\]|\\.|'')*+'|"(?:[^"\\]|\\.|"")*+")
    | (?P<name>`[^`]++`)
    | (?P<word>[\w$]++)
    | (?P<sign><=>|<=|>=|<>|!=|\|\||&&|[-+*/%=<>!(),.])""",
    re.VERBOSE | re.DOTALL,
)
ESCAPE = re.compile(r"\\(.)|''|\"\"", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}
WORDS = """
    ADD ALL ALTER ANALYZE AND AS ASC BEFORE BETWEEN BIGINT BINARY BLOB BOTH BY CALL CASCADE CASE CHANGE CHAR
    CHARACTER CHECK COLLATE COLUMN CONDITION CONSTRAINT CONTINUE CONVERT CREATE CROSS CUBE CUME_DIST CURRENT_DATE
    CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER CURSOR DATABASE DATABASES DEC DECIMAL DECLARE DEFAULT DELAYED DELETE
    DENSE_RANK DESC DESCRIBE DISTINCT DISTINCTROW DIV DOUBLE DROP DUAL EACH ELSE ELSEIF EMPTY ENCLOSED ESCAPED EXCEPT
    EXISTS EXIT EXPLAIN FALSE FETCH FIRST_VALUE FLOAT FOR FORCE FOREIGN FROM FULLTEXT FUNCTION GENERATED GET GRANT
    GROUP GROUPING GROUPS HAVING HIGH_PRIORITY IF IGNORE IN INDEX INFILE INNER INOUT INSERT INT INTEGER INTERSECT
    INTERVAL INTO IS ITERATE JOIN KEY KEYS KILL LAG LAST_VALUE LATERAL LEAD LEADING LEAVE LEFT LIKE LIMIT LINEAR LINES
    LOAD LOCALTIME LOCK LONG LOOP LOW_PRIORITY MATCH MOD MODIFIES NATURAL NOT NTH_VALUE NTILE NULL NUMERIC OF ON
    OPTIMIZE OPTION OR ORDER OUT OUTER OUTFILE OVER PARTITION PERCENT_RANK PRECISION PRIMARY PROCEDURE PURGE RANGE
    RANK READ READS REAL RECURSIVE REFERENCES REGEXP RELEASE RENAME REPEAT REPLACE REQUIRE RESTRICT RETURN REVOKE RIGHT
    RLIKE ROW ROWS ROW_NUMBER SCHEMA SCHEMAS SELECT SENSITIVE SEPARATOR SET SHOW SIGNAL SMALLINT SPATIAL SPECIFIC SQL
    STARTING STORED STRAIGHT_JOIN SYSTEM TABLE TERMINATED THEN TINYINT TO TRAILING TRIGGER TRUE UNDO UNION UNIQUE
    UNLOCK UNSIGNED UPDATE USAGE USE USING VALUES VARCHAR VARYING VIRTUAL WHEN WHERE WHILE WINDOW WITH WRITE XOR
    ZEROFILL"""
RESERVED = frozenset(WORDS.split())  # words of MySQL 8 that name nothing unless they stand in backticks
CALLED = {
    "CHAR",
    "DATABASE",
    "IF",
    "LEFT",
    "MOD",
    "REPEAT",
    "REPLACE",
    "RIGHT",
    "ROW_NUMBER",
    "RANK",
    "DENSE_RANK",
    "SCHEMA",
}  # and functions
AGGREGATES = {"AVG", "COUNT", "GROUP_CONCAT", "MAX", "MIN", "SUM"}


class MySQLError(Exception):
    """An error with MySQL's code and message: `1146 (42S02): Table 'shop.nope' doesn't exist`."""

    def __init__(self, code: int, state: str, text: str):
        super().__init__(f"{code} ({state}): {text}")
        self.code = code


def syntax_error(near: str) -> MySQLError:
    text = "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server version for "
    return MySQLError(1064, "42000", f"{text}the right syntax to use near '{near[:80]}' at line 1")


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
