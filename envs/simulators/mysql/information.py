"""information_schema: the rows of its TABLES and COLUMNS, of which it has the columns that are listed here."""

import re

from envs.simulators.mysql.tables import Column, Schema
from envs.simulators.mysql.types import COUNT, TEXT, Type

TABLES = ["TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "TABLE_TYPE", "ENGINE", "TABLE_COLLATION", "TABLE_COMMENT"]
COLUMNS = ["TABLE_CATALOG", "TABLE_SCHEMA", "TABLE_NAME", "COLUMN_NAME", "ORDINAL_POSITION", "COLUMN_DEFAULT"]
COLUMNS += ["IS_NULLABLE", "DATA_TYPE", "CHARACTER_MAXIMUM_LENGTH", "NUMERIC_PRECISION", "NUMERIC_SCALE", "COLUMN_TYPE"]
COLUMNS += ["COLUMN_KEY", "EXTRA", "COLUMN_COMMENT"]
NUMBERS = {"ORDINAL_POSITION", "CHARACTER_MAXIMUM_LENGTH", "NUMERIC_PRECISION", "NUMERIC_SCALE"}
LISTED = {"TABLES": TABLES, "COLUMNS": COLUMNS}
COLLATION = "utf8mb4_0900_ai_ci"
LENGTHS = {"tinytext": 255, "text": 65535, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1}
DIGITS = {"tinyint": 3, "smallint": 5, "mediumint": 7, "int": 10, "bigint": 19, "float": 12, "double": 22}


def columns_of(table: str) -> list[tuple[str, Type]]:
    """Return the columns of a table of information_schema, with their types."""
    return [(name, COUNT if name in NUMBERS else TEXT) for name in LISTED[table]]


def rows_of(table: str, database: str, catalog: dict[str, Schema]) -> list[tuple]:
    """Return the rows of TABLES or COLUMNS."""
    shown = [schema for schema in catalog.values() if not schema.temporary]
    if table == "TABLES":
        return [
            ("def", database, schema.name, "VIEW", None, None, "VIEW")
            if schema.query
            else ("def", database, schema.name, "BASE TABLE", "InnoDB", COLLATION, schema.comment)
            for schema in shown
        ]
    return [
        ("def", database, schema.name, column.name, number, column.printed, "YES" if column.nullable else "NO")
        + (column.bare, *_sizes(column), column.said, schema.mark(column), column.extra, column.comment)
        for schema in shown
        for number, column in enumerate(schema.columns, 1)
    ]


def _sizes(column: Column) -> tuple[int | None, int | None, int | None]:
    """Return the length of a text, and the digits and the decimal places of a number."""
    if column.type.kind == "text" and column.bare not in ("enum", "set"):
        size = re.search(r"\((\d+)\)", column.said)
        return int(size[1]) if size else LENGTHS[column.bare], None, None
    if column.bare == "decimal":
        return None, column.type.scale + column.type.digits, column.type.scale
    if column.bare in DIGITS:
        return (
            None,
            20 if column.said == "bigint unsigned" else DIGITS[column.bare],
            0 if "int" in column.bare else None,
        )
    return None, None, None
