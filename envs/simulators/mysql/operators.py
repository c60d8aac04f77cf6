"""Translate MySQL's operators and predicates to SQLite's; Expressions inherits them."""

from envs.simulators.mysql.intervals import ON_DAYS
from envs.simulators.mysql.tokens import MySQLError, not_spoken, syntax_error
from envs.simulators.mysql.types import (
    BOOL,
    COUNT,
    JSON,
    TEXT,
    TEXTUAL,
    UNSIGNED,
    Type,
    Typed,
    arithmetic,
    as_number,
    as_text,
    compared,
    numeric,
    unsigned,
    without_case,
)

BITS = ("|", "&", "^", "<<", ">>")


def one_column(columns: list) -> None:
    if len(columns) != 1:
        raise MySQLError(1241, "21000", "Operand should contain 1 column(s)")


class Operators:
    """The operators; `typed`, `truth` and `subquery` are those of Expressions and Block."""

    def _negate(self, node: tuple) -> Typed:
        value = self.typed(node)
        if value.type.kind == "unsigned":
            return Typed(unsigned("negate", value), COUNT)
        return Typed(f"(-{as_number(value)})", numeric(value.type))

    def _inverted(self, node: tuple) -> Typed:
        return Typed(f"(~{bits(self.typed(node))})", UNSIGNED)

    def _not(self, node: tuple) -> Typed:
        return Typed(f"(NOT {self.truth(node)})", BOOL)

    def _binary(self, operator: str, left: tuple, right: tuple) -> Typed:
        if operator in ("AND", "OR"):
            return Typed(f"({self.truth(left)} {operator} {self.truth(right)})", BOOL)
        if operator == "XOR":
            return Typed(f"((NOT {self.truth(left)}) <> (NOT {self.truth(right)}))", BOOL)
        if "interval" in (left[0], right[0]):
            return self.shifted(operator, left, right)
        if "row" in (left[0], right[0]):
            return self.rows_compared(operator, left, right)
        one, other = self.typed(left), self.typed(right)
        if "json" in (one.type.kind, other.type.kind) and operator in ("=", "<>", "<=>"):
            one, other = (Typed(self.as_json(node), JSON) for node in (left, right))
        if operator in ("+", "-", "*", "/", "%", "DIV"):
            found = arithmetic(operator, one, other)
            if found.type.kind not in ("decimal", "double"):
                return found
            return arithmetic(operator, self.exact(left, one), self.exact(right, other))
        if operator in BITS:
            a, b = bits(one), bits(other)
            return Typed(f"(({a} | {b}) - ({a} & {b}))" if operator == "^" else f"({a} {operator} {b})", UNSIGNED)
        return Typed(compared("IS" if operator == "<=>" else operator, one, other), BOOL)

    def shifted(self, operator: str, left: tuple, right: tuple) -> Typed:
        """A moment and an INTERVAL, added or subtracted."""
        left, right = (right, left) if operator == "+" and left[0] == "interval" else (left, right)
        if operator not in ("+", "-") or left[0] == "interval":
            raise syntax_error("INTERVAL")
        moment, (_, amount, unit) = self.typed(left), right
        value = self.typed(amount)
        number = value.sql if value.type.kind == "text" else as_number(value)
        kind = moment.type if moment.type.kind in ("date", "datetime") else TEXT
        kind = Type("datetime") if kind.kind == "date" and unit not in ON_DAYS else kind
        return Typed(f"shift_({as_text(moment)}, {number}, '{unit}', {operator}1)", kind)

    def _interval(self, amount: tuple, unit: str) -> Typed:
        raise syntax_error("INTERVAL")

    def _is(self, node: tuple, what: str, negated: bool) -> Typed:
        if what == "NULL":
            test = f"({self.typed(node).sql} IS NULL)"
        else:
            test = f"({self.truth(node)} IS {what})"
        return Typed(f"(NOT {test})" if negated else test, BOOL)

    # -- rows

    def _row(self, nodes: list) -> Typed:
        one_column(nodes)
        return self.typed(nodes[0])

    def rows_compared(self, operator: str, left: tuple, right: tuple) -> Typed:
        """Compare rows: all columns for =, the first that differs for <."""
        if left[0] == "row" and right[0] == "query":
            found = self._in(left, right[1], negated=operator == "<>")
            return found if operator in ("=", "<>") else self._row(left[1])
        ours, theirs = row_of(left), row_of(right)
        check_columns(len(theirs), len(ours))
        pairs = list(zip(ours, theirs, strict=True))
        if operator in ("=", "<=>"):
            return self.typed(joined("AND", [("binary", operator, *pair) for pair in pairs]))
        if operator == "<>":
            return self.typed(joined("OR", [("binary", operator, *pair) for pair in pairs]))
        if operator not in ("<", ">", "<=", ">="):
            return self._row(ours if len(ours) > 1 else theirs)
        strict, found = operator[0], ("binary", operator, *pairs[-1])
        for pair in reversed(pairs[:-1]):
            equal = ("binary", "AND", ("binary", "=", *pair), found)
            found = ("binary", "OR", ("binary", strict, *pair), equal)
        return self.typed(found)

    def _in(self, node: tuple, among, negated: bool) -> Typed:
        word = "NOT IN" if negated else "IN"
        if isinstance(among, list) and node[0] == "row":
            found = joined("OR", [("binary", "=", node, other) for other in among])
            return self.typed(("not", found) if negated else found)
        values = [self.typed(part) for part in row_of(node)]
        if isinstance(among, list):
            value, others = values[0], [self.typed(other) for other in among]
            if "json" in {each.type.kind for each in (value, *others)}:
                found = joined("OR", [("binary", "=", node, other) for other in among])
                return self.typed(("not", found) if negated else found)
            texts = value.type.kind in TEXTUAL and all(o.type.kind in (*TEXTUAL, "null") for o in others)
            listed = ", ".join(other.sql if texts else as_number(other) for other in others)
            return Typed(f"({without_case(value) if texts else as_number(value)} {word} ({listed}))", BOOL)
        sql, columns = self.subquery(among)
        check_columns(len(columns), len(values))
        if "json" in {kind.kind for _, kind in columns} | {value.type.kind for value in values}:
            raise not_spoken("IN subquery of JSON")
        if among.limit and not among.parts:
            text = "This version of MySQL doesn't yet support 'LIMIT & IN/ALL/ANY/SOME subquery'"
            raise MySQLError(1235, "42000", text)
        listed = ", ".join(map(without_case, values))
        return Typed(f"({f'({listed})' if len(values) > 1 else listed} {word} ({sql}))", BOOL)

    def _compared(self, operator: str, node: tuple, which: str, query) -> Typed:
        """Compare a value with ALL or ANY of a query's: NULL if one is unknown and no other decides."""
        if (operator, which) in (("=", "ANY"), ("=", "SOME"), ("<>", "ALL")):
            return self._in(node, query, negated=operator == "<>")
        value = self.typed(node)
        sql, columns = self.subquery(query)
        one_column(columns)
        name, kind = columns[0]
        test = compared(
            "IS" if operator == "<=>" else operator,
            value,
            Typed(f'"compared"."{name.replace(chr(34), chr(34) * 2)}"', kind),
        )
        decides, best, empty = ("0", "MIN", "1") if which == "ALL" else ("1", "MAX", "0")
        case = (
            f"CASE WHEN {best}(test) = {decides} THEN {decides} WHEN COUNT(*) > COUNT(test) THEN NULL ELSE {empty} END"
        )
        return Typed(f'(SELECT {case} FROM (SELECT {test} AS test FROM ({sql}) AS "compared"))', BOOL)

    # -- texts and ranges

    def _like(self, node: tuple, pattern: tuple, escape: tuple, negated: bool) -> Typed:
        word, (_, sign) = "NOT LIKE" if negated else "LIKE", escape
        if escape[0] != "text" or len(sign) > 1:
            raise MySQLError(1210, "HY000", "Incorrect arguments to ESCAPE")
        escaped = f" ESCAPE '{sign.replace(chr(39), chr(39) * 2)}'" if sign else ""
        return Typed(f"({as_text(self.typed(node))} {word} {as_text(self.typed(pattern))}{escaped})", BOOL)

    def _regexp(self, node: tuple, pattern: tuple, negated: bool) -> Typed:
        test = f"regexp_({as_text(self.typed(node))}, {as_text(self.typed(pattern))})"
        return Typed(f"(NOT {test})" if negated else test, BOOL)

    def _between(self, node: tuple, low: tuple, high: tuple, negated: bool) -> Typed:
        value = self.typed(node)
        test = f"({compared('>=', value, self.typed(low))} AND {compared('<=', value, self.typed(high))})"
        return Typed(f"(NOT {test})" if negated else test, BOOL)


def row_of(node: tuple) -> list[tuple]:
    return node[1] if node[0] == "row" else [node]


def check_columns(found: int, wanted: int) -> None:
    if found != wanted:
        raise MySQLError(1241, "21000", f"Operand should contain {wanted} column(s)")


def joined(word: str, tests: list[tuple]) -> tuple:
    """Return the tests joined by AND or OR."""
    found = tests[0]
    for test in tests[1:]:
        found = ("binary", word, found, test)
    return found


def bits(value: Typed) -> str:
    """Return the SQL of the 64 bits of a value."""
    return value.sql if value.type.kind in ("int", "unsigned") else f"CAST({as_number(value)} AS INTEGER)"
