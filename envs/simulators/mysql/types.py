"""MySQL's types, and the SQL of SQLite that converts, compares and combines values of them.

MySQL knows the type of each expression before it reads a row: integer, exact with so many decimal places, approximate,
text, day or moment. The translation derives the same type, because SQLite computes exact numbers as floats, which
become Decimals of that many places when they are read.
"""

from typing import NamedTuple


class Type(NamedTuple):
    """The MySQL type of an expression."""

    kind: str  # int, unsigned, decimal, double, text, date, datetime, time, json, null
    scale: int = 0  # places of a decimal
    digits: int = 10  # at most this many before the point; CEIL's type depends on it


class Typed(NamedTuple):
    sql: str  # SQLite's
    type: Type


TEXT, DATE, DOUBLE, NULL, BOOL = Type("text"), Type("date"), Type("double"), Type("null"), Type("int", 0, 1)
COUNT = Type("int", 0, 20)
UNSIGNED = Type("unsigned", 0, 20)  # 64 bits, which SQLite holds as a signed number of the same bits
JSON = Type("json")
TEXTUAL = ("text", "date", "datetime", "time", "json")  # kinds that SQLite holds as text


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


AS_NUMBER = {
    "json": "json_number",
    "date": "day_number",
    "datetime": "moment_number",
    "time": "time_number",
    "unsigned": "unsigned_number",
}


def unified(types: list[Type]) -> Type:
    """Return the common type of several types."""
    kinds = {type.kind for type in types} - {"null"}
    scale, digits = max(type.scale for type in types), max(type.digits for type in types)
    if len(kinds) < 2:
        return Type(kinds.pop() if kinds else "null", scale, digits)
    if kinds == {"date", "datetime"}:
        return Type("datetime")
    kind = next(kind for kind in (*TEXTUAL, "double", "decimal", "int") if kind in kinds)
    kind = "decimal" if kinds == {"int", "unsigned"} else kind
    return Type("text" if kind in TEXTUAL else kind, scale, digits)


def as_text(value: Typed) -> str:
    """Return the SQL of an expression as the string that MySQL prints for it."""
    if value.type.kind == "int":
        return f"CAST({value.sql} AS TEXT)"
    if value.type.kind == "unsigned":
        return f"unsigned_text_({value.sql})"
    if value.type.kind == "decimal":
        return f"decimal_text_({value.sql}, {value.type.scale})"
    return f"double_text_({value.sql})" if value.type.kind == "double" else value.sql


def as_number(value: Typed) -> str:
    """Return the SQL of an expression as a number; a string counts as the number it begins with."""
    if value.type.kind in AS_NUMBER:
        return f"{AS_NUMBER[value.type.kind]}_({value.sql})"
    return f"CAST({value.sql} AS REAL)" if value.type.kind == "text" else value.sql


def as_json(value: Typed) -> str:
    """Return the SQL of an expression as a JSON document: a string for a text."""
    if value.type.kind == "json":
        return value.sql
    if value.type.kind == "double":
        return f"json_double_({value.sql})"
    return f"JSON_QUOTE_({value.sql})" if value.type.kind in TEXTUAL else as_text(value)


def without_case(value: Typed) -> str:
    """Return the SQL of an expression with MySQL's collation, which ignores case, but not of JSON."""
    return f"{value.sql} COLLATE NOCASE" if value.type.kind in TEXTUAL and value.type != JSON else value.sql


def by_order(value: Typed) -> str:
    """Return the SQL of what rows sort by."""
    return f"json_key_({value.sql})" if value.type == JSON else without_case(value)


def numeric(type: Type) -> Type:
    """Return the type of a number converted from a value of this type."""
    if type.kind in TEXTUAL:
        return DOUBLE if type.kind in ("text", "json") else COUNT
    return type


def alike(values: list[Typed]) -> tuple[list[str], Type]:
    """Return the SQL of several possible results, converted to their common type, and that type."""
    kind = unified([value.type for value in values])
    convert = as_text if kind.kind == "text" else as_number if kind.kind in ("decimal", "double") else None
    return [convert(value) if convert else value.sql for value in values], kind


def compared(operator: str, one: Typed, other: Typed) -> str:
    """Return the SQL of a comparison: of strings without case, otherwise of numbers."""
    texts = [value.type.kind in TEXTUAL for value in (one, other)]
    nothing = "null" in (one.type.kind, other.type.kind)
    kinds = {one.type.kind, other.type.kind}
    if "json" in kinds and not nothing:
        return f"(json_key_({as_json(one)}) {operator} json_key_({as_json(other)}))"
    if all(texts) and len(kinds) > 1 and kinds & {"date", "datetime"}:
        return f"(moment_({one.sql}) {operator} moment_({other.sql}))"
    if all(texts) or nothing:
        return f"({without_case(one)} {operator} {other.sql})"
    return f"({as_number(one)} {operator} {as_number(other)})"


def unsigned(operator: str, *values: Typed) -> str:
    """Return the SQL of whole numbers' arithmetic where one has no sign, which fails outside of 64 bits."""
    listed = (f", {value.sql}, {int(value.type.kind == 'unsigned')}" for value in values)
    return f"unsigned_('{operator}'{''.join(listed)})"


def arithmetic(operator: str, left: Typed, right: Typed) -> Typed:
    """Return the SQL of +, -, *, /, % or DIV. Sums and products of decimals are rounded to remove float errors."""
    one, other = as_number(left), as_number(right)
    (kind, scale, digits), (other_kind, other_scale, other_digits) = numeric(left.type), numeric(right.type)
    approximate = "double" in (kind, other_kind)
    whole = {kind, other_kind} <= {"int", "unsigned", "null"}
    if whole and "unsigned" in (kind, other_kind) and operator != "/":
        return Typed(unsigned(operator, left, right), UNSIGNED)
    if operator == "DIV":
        return Typed(f"int_divide_({one}, {other})", Type("int", 0, digits))
    if operator == "/":
        result = DOUBLE if approximate else Type("decimal", min(scale + 4, 30), digits + other_scale)
        return Typed(f"(CAST({one} AS REAL) / {other})", result)
    if operator == "%":
        result = DOUBLE if approximate else Type("int" if whole else "decimal", max(scale, other_scale), digits)
        return Typed(f"({one} % {other})" if whole else f"modulo_({one}, {other})", result)
    sql = f"({one} {operator} {other})"
    if approximate:
        return Typed(sql, DOUBLE)
    if operator == "*":
        result = Type("int" if whole else "decimal", min(scale + other_scale, 30), digits + other_digits)
    else:
        result = Type("int" if whole else "decimal", max(scale, other_scale), max(digits, other_digits) + 1)
    return Typed(sql if whole else f"round({sql}, {result.scale})", result)
