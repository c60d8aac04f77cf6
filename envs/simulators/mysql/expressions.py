"""Translate MySQL's expressions to SQLite's, with their types (types.py)."""

import re

from envs.simulators.mysql.functions import ALSO, SIGNATURES
from envs.simulators.mysql.intervals import CLOCK_PARTS
from envs.simulators.mysql.operators import Operators, one_column
from envs.simulators.mysql.tokens import AGGREGATES, SPREADS, MySQLError, not_spoken, syntax_error, too_deep
from envs.simulators.mysql.types import (
    BOOL,
    COUNT,
    DOUBLE,
    JSON,
    NULL,
    TEXT,
    TEXTUAL,
    UNSIGNED,
    Type,
    Typed,
    alike,
    arithmetic,
    as_json,
    as_number,
    as_text,
    numeric,
    quoted,
    unified,
    without_case,
)
from envs.simulators.mysql.windows import WINDOWED, Windows, check_arguments
from envs.simulators.mysql.words import NATIVE

MAX_SQL = 20_000  # characters of an expression of SQLite's: NULLIF, BETWEEN and CASE write some of it twice
LEVEL = '"_level_".n'  # of WITH ROLLUP: how many of the groups count in a row, 0 in the last
WIDE = 20  # digits from which CEIL and FLOOR of a decimal give a decimal
CLAUSES = {"select": "field list", "where": "where clause", "group": "group statement", "having": "having clause"}
CLAUSES |= {"order": "order clause", "on": "on clause", "set": "field list"}


def calls(node) -> bool:
    """Return whether an expression contains an aggregate outside of its subqueries."""
    if not isinstance(node, (tuple, list)):
        return False
    if node and node[0] == "call" and node[1] in AGGREGATES:
        return True
    return any(map(calls, (node[1][2], node[2]) if node and node[0] == "window" else node))


def one_row(query) -> bool:
    """Return whether a query, by its form, has at most one row."""
    if query.limit and query.limit[0] <= 1:
        return True
    return not query.parts and not query.groups and any(calls(item[0]) for item in query.items)


class Expressions(Operators, Windows):
    """Translate expressions, for a Block that resolves their names (queries.py).

    `parameters`: the strings of the statement, which SQLite gets as bound parameters, and their numbers.
    """

    def __init__(self, parameters: dict[str, int]):
        self.parameters = parameters
        self.clause = "select"  # where the expression stands
        self.aggregates = False  # whether one may stand there
        self.within = False  # whether this is what an aggregate is called with
        self.windows: dict = {}  # of the WINDOW clause
        self.rolls = False  # WITH ROLLUP
        self.rolled: dict[str, Typed] = {}  # the SQL of a group, and its value where rows sum over it

    def typed(self, node: tuple) -> Typed:
        value = getattr(self, f"_{node[0]}")(*node[1:])
        if len(value.sql) > MAX_SQL:
            raise too_deep()
        return self.rolled.get(value.sql, value) if self.rolled and not self.within else value

    def truth(self, node: tuple) -> str:
        return as_number(self.typed(node))

    # -- literals

    def _int(self, value: int) -> Typed:
        if value >= 2**63:
            return Typed(str(value - 2**64), UNSIGNED)
        return Typed(str(int(value)), Type("int", 0, len(str(int(value)))))

    def _decimal(self, digits: str) -> Typed:
        whole, _, places = digits.partition(".")
        return Typed(f"{whole or 0}.{places or 0}", Type("decimal", min(len(places), 30), len(whole)))

    def as_json(self, node: tuple) -> str:
        """Return the SQL of an expression as a JSON document; TRUE and FALSE stay what they are."""
        if node[0] == "int" and isinstance(node[1], bool):
            return "'true'" if node[1] else "'false'"
        return as_json(self.typed(node))

    def _double(self, digits: str) -> Typed:
        return Typed(digits, DOUBLE)

    def _null(self) -> Typed:
        return Typed("NULL", NULL)

    def _text(self, text: str) -> Typed:
        return Typed(f"?{self.parameters.setdefault(text, len(self.parameters) + 1)}", TEXT)

    # -- CASE and CAST

    def _case(self, operand: tuple | None, branches: list, otherwise: tuple) -> Typed:
        if operand is not None:
            branches = [(("binary", "=", operand, when), then) for when, then in branches]
        tests = [self.truth(when) for when, _ in branches]
        values, kind = alike([*(self.typed(then) for _, then in branches), self.typed(otherwise)])
        listed = " ".join(f"WHEN {test} THEN {value}" for test, value in zip(tests, values, strict=False))
        return Typed(f"(CASE {listed} ELSE {values[-1]} END)", kind)

    def _cast(self, node: tuple, kind: str, scale: int) -> Typed:
        value = self.typed(node)
        if kind == "CHAR":
            return Typed(as_text(value), TEXT)
        if kind == "JSON":
            return Typed(f"json_cast_({as_text(value)})", JSON)
        if kind in ("DATE", "TIME", "DATETIME"):
            name = "TIMESTAMP" if kind == "DATETIME" else kind
            return Typed(f"{name}_({as_text(value)})", Type(kind.lower()))
        if kind in ("DOUBLE", "FLOAT"):
            return Typed(f"CAST({as_number(value)} AS REAL)", DOUBLE)
        if kind == "DECIMAL":
            return Typed(f"rounded_({as_number(value)}, {scale}, 1)", Type("decimal", scale))
        result = UNSIGNED if kind == "UNSIGNED" else COUNT
        if value.type.kind == "text":
            return Typed(f"CAST({value.sql} AS INTEGER)", result)
        if value.type.kind in ("int", "unsigned"):
            return Typed(value.sql, result)
        return Typed(f"CAST(rounded_({as_number(value)}, 0, 1) AS INTEGER)", result)

    # -- queries

    def _exists(self, query) -> Typed:
        return Typed(f"EXISTS ({self.subquery(query)[0]})", BOOL)

    def _query(self, query) -> Typed:
        sql, columns = self.subquery(query)
        one_column(columns)
        name, kind = columns[0]
        if one_row(query):
            return Typed(f"({sql})", kind)
        # of several rows SQLite would take the first, where MySQL refuses
        return Typed(f"(SELECT only_one_(COUNT(*), {quoted(name)}) FROM (SELECT * FROM ({sql}) LIMIT 2))", kind)

    # -- functions

    def _call(self, name: str, arguments: list, distinct: bool, order: list, separator: str) -> Typed:
        if name in AGGREGATES:
            return self.aggregate(name, arguments, distinct, order, separator)
        if name in ANY_TYPE:
            few, many, method = ANY_TYPE[name]
            check_arguments(name, len(arguments), few, many)
            return method(self, name, arguments)
        if name in WINDOWED:
            raise syntax_error("")  # OVER is missing
        if name in NATIVE and name not in SIGNATURES:
            raise not_spoken(name)
        if name not in SIGNATURES:
            raise MySQLError(1305, "42000", f"FUNCTION {self.database}.{name} does not exist")
        takes, result = SIGNATURES[name]
        must, _, may = takes.partition("?")
        repeats = must.endswith("*")
        must = must.rstrip("*")
        check_arguments(name, len(arguments), len(must), 1000 if repeats else len(must + may))
        takes = (must + may).ljust(len(arguments), must[-1:] or "t")
        values = [AS[takes[i]](self.typed(argument)) for i, argument in enumerate(arguments)]
        return Typed(f"{ALSO.get(name, name)}_({', '.join(values)})", Type(result))

    def _database(self, name: str, arguments: list) -> Typed:
        return self._text(self.database)

    def aggregate(
        self, name: str, arguments: list, distinct: bool, order: list, separator: str, windowed: bool = False
    ) -> Typed:
        """AVG, COUNT and the other AGGREGATES; one over a window may contain another of the groups."""
        if not self.aggregates or self.within:
            raise MySQLError(1111, "HY000", "Invalid use of group function")
        if arguments == [("star", None)]:
            return Typed("COUNT(*)", COUNT)
        check_arguments(
            name, len(arguments), 1, 1000 if name in ("GROUP_CONCAT", "COUNT") and (distinct or name[0] == "G") else 1
        )
        self.within = not windowed
        values = [self.typed(argument) for argument in arguments]
        orders = [f", {self.typed(node).sql}, {int(descends)}" for node, descends in order]
        self.within = False
        value, once = values[0], "DISTINCT " if distinct else ""
        kind, scale, digits = value.type
        if name == "GROUP_CONCAT":
            text = as_text(value) if len(values) == 1 else f"CONCAT_({', '.join(map(as_text, values))})"
            return Typed(f"GROUP_CONCAT_({self._text(separator).sql}, {int(distinct)}, {text}{''.join(orders)})", TEXT)
        if name == "COUNT":
            one = without_case(value) if len(values) == 1 else f"key_of_({', '.join(value.sql for value in values)})"
            return Typed(f"COUNT({once}{one})", COUNT)
        if name in SPREADS:
            return Typed(f"{name}_({as_number(value)})", DOUBLE)
        if name in ("MIN", "MAX") and kind == "json":
            return Typed(f"json_of_key_({name}(json_key_({value.sql})))", JSON)
        if name in ("MIN", "MAX"):
            return Typed(f"{name}({without_case(value)})", value.type)
        if kind in ("text", "double", "json"):
            return Typed(f"{name}({once}{as_number(value)})", DOUBLE)
        result = Type("decimal", min(scale + 4, 30), digits) if name == "AVG" else Type("decimal", scale, digits + 22)
        return Typed(f"{name}({once}{as_number(value)})", result)

    def _if(self, name: str, arguments: list) -> Typed:
        (one, other), kind = alike([self.typed(argument) for argument in arguments[1:]])
        return Typed(f"(CASE WHEN {self.truth(arguments[0])} THEN {one} ELSE {other} END)", kind)

    def _coalesce(self, name: str, arguments: list) -> Typed:
        values, kind = alike([self.typed(argument) for argument in arguments])
        return Typed(f"COALESCE({', '.join(values)}, NULL)", kind)

    def _nullif(self, name: str, arguments: list) -> Typed:
        value = self.typed(arguments[0])
        same = self.truth(("binary", "=", *arguments))
        return Typed(f"(CASE WHEN {same} THEN NULL ELSE {value.sql} END)", value.type)

    def _extreme(self, name: str, arguments: list) -> Typed:
        values = [self.typed(argument) for argument in arguments]
        function, kinds = "MAX" if name == "GREATEST" else "MIN", {value.type.kind for value in values} - {"null"}
        if kinds <= set(TEXTUAL):
            return Typed(f"{function}({', '.join(map(without_case, values))})", unified([v.type for v in values]))
        kind = DOUBLE if kinds & set(TEXTUAL) else unified([value.type for value in values])
        return Typed(f"{function}({', '.join(map(as_number, values))})", kind)

    def _abs(self, name: str, arguments: list) -> Typed:
        value = self.typed(arguments[0])
        return Typed(f"ABS({as_number(value)})", numeric(value.type))

    def _whole(self, name: str, arguments: list) -> Typed:
        """CEIL and FLOOR: whole numbers, but a decimal for one that may be too long."""
        value = self.typed(arguments[0])
        kind = numeric(value.type)
        if kind.kind == "decimal":
            kind = Type("int" if kind.digits < WIDE else "decimal", 0, kind.digits)
        return Typed(f"{'floored' if name == 'FLOOR' else 'ceiling'}_({as_number(value)})", kind)

    def _round(self, name: str, arguments: list) -> Typed:
        """ROUND and TRUNCATE."""
        value, places = self.typed(arguments[0]), Typed("0", BOOL)
        kind = numeric(value.type)
        if len(arguments) == 2:
            places = self.typed(arguments[1])
        scale = int(places.sql.strip("(-)")) if places.sql.strip("(-)").isdigit() else kind.scale
        if kind.kind == "decimal":
            kind = kind._replace(scale=0 if "-" in places.sql else min(scale, kind.scale))
        exact = f", {int(kind.kind != 'double')}" if name == "ROUND" else ""
        function = "rounded" if name == "ROUND" else "truncated"
        return Typed(f"{function}_({as_number(value)}, {as_number(places)}{exact})", kind)

    def _str_to_date(self, name: str, arguments: list) -> Typed:
        """STR_TO_DATE: a day, a time or both, by the letters of the format."""
        letters = set(re.findall("%(.)", arguments[1][1])) if arguments[1][0] == "text" else set("YH")
        clock, day = letters & set(CLOCK_PARTS), letters - set(CLOCK_PARTS)
        kind = Type("datetime" if clock and day else "time" if clock else "date")
        return Typed(f"STR_TO_DATE_({', '.join(as_text(self.typed(each)) for each in arguments)})", kind)

    def _grouping(self, name: str, arguments: list) -> Typed:
        """GROUPING: a bit for each group, 1 in the rows that sum over it."""
        if self.rolls and not self.rolled:  # the groups are not known yet
            return Typed("0", COUNT)
        rolled, bits = [value.sql for value in self.rolled.values()], []
        for i, argument in enumerate(arguments):
            sql = self.typed(argument).sql
            if sql not in rolled:
                raise MySQLError(3602, "HY000", f"Argument #{i} of GROUPING function is not in GROUP BY")
            bits.append(f"(({LEVEL} <= {rolled.index(sql)}) << {len(arguments) - 1 - i})")
        return Typed(f"({' + '.join(bits)})", COUNT)

    def _mod(self, name: str, arguments: list) -> Typed:
        return arithmetic("%", *(self.typed(argument) for argument in arguments))

    def _json_made(self, name: str, arguments: list) -> Typed:
        """JSON_ARRAY, and the functions that take pairs of a name or a path and a value."""
        first = 0 if name in ("JSON_ARRAY", "JSON_OBJECT") else 1
        pairs = name != "JSON_ARRAY"
        if pairs and (len(arguments) - first) % 2:
            raise MySQLError(1582, "42000", f"Incorrect parameter count in the call to native function '{name}'")
        values = [
            as_text(self.typed(node)) if pairs and (i < first or (i - first) % 2 == 0) else self.as_json(node)
            for i, node in enumerate(arguments)
        ]
        return Typed(f"{name}_({', '.join(values)})", JSON)


ANY_TYPE = {  # functions whose result takes after their arguments: how many they take, and their method
    "ABS": (1, 1, Expressions._abs),
    "CEIL": (1, 1, Expressions._whole),
    "CEILING": (1, 1, Expressions._whole),
    "ANY_VALUE": (1, 1, lambda self, name, arguments: self.typed(arguments[0])),
    "COALESCE": (1, 1000, Expressions._coalesce),
    "DATABASE": (0, 0, Expressions._database),
    "FLOOR": (1, 1, Expressions._whole),
    "GREATEST": (2, 1000, Expressions._extreme),
    "GROUPING": (1, 64, Expressions._grouping),
    "IF": (3, 3, Expressions._if),
    "IFNULL": (2, 2, Expressions._coalesce),
    "JSON_ARRAY": (0, 1000, Expressions._json_made),
    "JSON_INSERT": (3, 1000, Expressions._json_made),
    "JSON_OBJECT": (0, 1000, Expressions._json_made),
    "JSON_REPLACE": (3, 1000, Expressions._json_made),
    "JSON_SET": (3, 1000, Expressions._json_made),
    "LAST_INSERT_ID": (0, 0, lambda self, name, arguments: Typed("last_generated_()", COUNT)),
    "LEAST": (2, 1000, Expressions._extreme),
    "MOD": (2, 2, Expressions._mod),
    "NULLIF": (2, 2, Expressions._nullif),
    "ROUND": (1, 2, Expressions._round),
    "SCHEMA": (0, 0, Expressions._database),
    "STR_TO_DATE": (2, 2, Expressions._str_to_date),
    "TRUNCATE": (2, 2, Expressions._round),
}
AS = {"t": lambda value: as_text(value), "n": lambda value: as_number(value), "a": lambda value: value.sql}
