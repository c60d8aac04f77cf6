"""Definitions of tables and views, and how SHOW CREATE TABLE and DESCRIBE print them."""

from dataclasses import dataclass, field

from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.types import Type

ENGINE = "ENGINE=InnoDB{} DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci"
LONG = ("tinytext", "text", "mediumtext", "longtext", "json")  # types that have no default and need a key's length
ZEROS = {"int": ("int", 0), "unsigned": ("int", 0), "decimal": ("int", 0), "double": ("int", 0), "text": ("text", "")}
ZEROS |= {"json": ("text", "null")}


@dataclass
class Column:
    """A column; `said` is its type as SHOW prints it, such as decimal(10,2)."""

    name: str
    said: str
    type: Type
    nullable: bool = True
    default: tuple | None = None  # an expression
    printed: str | None = None  # the default as DESCRIBE prints it
    increments: bool = False  # AUTO_INCREMENT
    renews: bool = False  # ON UPDATE CURRENT_TIMESTAMP
    comment: str = ""

    def zero(self) -> tuple:
        """Return the value that a row without one gets when the column forbids NULL and has no default."""
        if self.said.startswith("enum("):
            return "int", 1
        return ZEROS.get(self.type.kind, ("text", "0000-00-00"))

    @property
    def bare(self) -> str:
        """The name of the type, without its size."""
        return self.said.partition("(")[0].partition(" ")[0]

    def create(self) -> str:
        text = f"`{self.name}` {self.said}"
        text += "" if self.nullable else " NOT NULL"
        text += " NULL" if self.nullable and self.said.startswith("timestamp") else ""
        if self.default is not None:
            text += f" DEFAULT {self.printed if self.default[0] == 'call' else quoted_text(self.printed)}"
        elif self.nullable and not self.said.endswith("text"):
            text += " DEFAULT NULL"
        text += " ON UPDATE CURRENT_TIMESTAMP" * self.renews + " AUTO_INCREMENT" * self.increments
        return text + (f" COMMENT {quoted_text(self.comment)}" if self.comment else "")

    @property
    def extra(self) -> str:
        words = ["DEFAULT_GENERATED"] if self.default and self.default[0] == "call" else []
        words += ["on update CURRENT_TIMESTAMP"] * self.renews + ["auto_increment"] * self.increments
        return " ".join(words)


@dataclass
class Key:
    """PRIMARY, a unique key or an index. columns: names, each with the length of its prefix or None."""

    name: str
    columns: list[tuple[str, int | None]]
    unique: bool = False
    index: str = ""  # its name in SQLite, where that is an index of its own

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.columns]

    def create(self) -> str:
        listed = ",".join(f"`{name}`" + (f"({length})" if length else "") for name, length in self.columns)
        if self.name == "PRIMARY":
            return f"PRIMARY KEY ({listed})"
        return f"{'UNIQUE ' * self.unique}KEY `{self.name}` ({listed})"


@dataclass
class Check:
    name: str
    node: tuple
    text: str  # of the expression

    def create(self) -> str:
        return f"CONSTRAINT `{self.name}` CHECK ({self.text})"


@dataclass
class Foreign:
    """A foreign key. actions: such as {"DELETE": "CASCADE"}."""

    name: str
    columns: list[str]
    table: str
    references: list[str]
    actions: dict[str, str] = field(default_factory=dict)

    def create(self) -> str:
        ours, theirs = (", ".join(f"`{name}`" for name in names) for names in (self.columns, self.references))
        text = f"CONSTRAINT `{self.name}` FOREIGN KEY ({ours}) REFERENCES `{self.table}` ({theirs})"
        kept = {event: action for event, action in self.actions.items() if action != "NO ACTION"}
        return text + "".join(f" ON {event} {kept[event]}" for event in ("DELETE", "UPDATE") if event in kept)


@dataclass
class Schema:
    """A table, or a view if it has a query."""

    name: str
    columns: list[Column] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    foreign: list[Foreign] = field(default_factory=list)
    temporary: bool = False
    comment: str = ""
    query: Select | None = None

    def __post_init__(self):
        self.listed = [(column.name, column.type) for column in self.columns]

    def column(self, name: str) -> Column | None:
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)

    def key(self, name: str) -> Key | None:
        return next((key for key in self.keys if key.name.lower() == name.lower()), None)

    @property
    def primary(self) -> Key | None:
        return self.key("PRIMARY")

    def create(self, following: int) -> str:
        """Return the statement that SHOW CREATE TABLE prints. following: the next value of AUTO_INCREMENT."""
        first = sorted(self.keys, key=lambda key: 0 if key.name == "PRIMARY" else 1 if key.unique else 2)
        parts = [*self.columns, *first, *self.foreign, *self.checks]
        listed = ",\n".join(f"  {part.create()}" for part in parts)
        counts = any(column.increments for column in self.columns) and following > 1
        options = ENGINE.format(f" AUTO_INCREMENT={following}" if counts else "")
        options += f" COMMENT={quoted_text(self.comment)}" if self.comment else ""
        return f"CREATE {'TEMPORARY ' * self.temporary}TABLE `{self.name}` (\n{listed}\n) {options}"

    def mark(self, column: Column) -> str:
        """Return what DESCRIBE prints for the keys that a column begins: PRI, UNI, MUL or nothing."""
        if self.primary and column.name in self.primary.names:
            return "PRI"
        keys = [key for key in self.keys if key.names[0] == column.name]
        if any(key.unique and len(key.columns) == 1 for key in keys):
            return "UNI"
        return "MUL" if keys else ""

    def describe(self) -> list[tuple]:
        """Return the rows of DESCRIBE."""
        return [
            (
                column.name,
                column.said,
                "YES" if column.nullable else "NO",
                self.mark(column),
                column.printed,
                column.extra,
            )
            for column in self.columns
        ]


def said_of(kind: Type) -> str:
    """Return the type of a column that CREATE TABLE ... AS SELECT makes of an expression."""
    if kind.kind == "int":
        return "int" if kind.digits <= 10 else "bigint"
    if kind.kind == "decimal":
        return f"decimal({min(kind.digits + kind.scale, 65)},{kind.scale})"
    return {"unsigned": "bigint unsigned", "null": "text"}.get(kind.kind, kind.kind)


def quoted_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
