"""Parse the columns, types and options that CREATE TABLE and ALTER TABLE list."""

from envs.simulators.mysql.selects import Selects
from envs.simulators.mysql.tables import Check, Column, Key
from envs.simulators.mysql.tokens import MySQLError, not_spoken, unquoted
from envs.simulators.mysql.types import Type
from envs.simulators.mysql.words import RESERVED

CURRENT = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP")
DIGITS = {"tinyint": 3, "smallint": 5, "mediumint": 8, "int": 10, "bigint": 20, "year": 4}
ALSO = {"INTEGER": "int", "BOOL": "tinyint(1)", "BOOLEAN": "tinyint(1)", "DEC": "decimal", "NUMERIC": "decimal"}
ALSO |= {"FIXED": "decimal", "REAL": "double", "NCHAR": "char", "NVARCHAR": "varchar"}
WHOLE = {"TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT"}
NAMES = WHOLE | {"DECIMAL", "FLOAT", "DOUBLE", "CHAR", "VARCHAR", "TINYTEXT", "TEXT", "MEDIUMTEXT", "LONGTEXT"}
NAMES |= {"DATE", "DATETIME", "TIMESTAMP", "TIME", "YEAR", "ENUM", "SET", "JSON"}
UNSPOKEN_TYPES = {"BLOB", "TINYBLOB", "MEDIUMBLOB", "LONGBLOB", "BINARY", "VARBINARY", "BIT", "SERIAL"}
UNSPOKEN_TYPES |= {"GEOMETRY", "POINT"}
KINDS = {"decimal": "decimal", "float": "double", "double": "double", "date": "date", "datetime": "datetime"}
KINDS |= {"timestamp": "datetime", "time": "time", "json": "json"}
ACTIONS = ("RESTRICT", "CASCADE", "SET NULL", "NO ACTION", "SET DEFAULT")
OPTIONS = {"ENGINE", "CHARSET", "CHARACTER", "COLLATE", "COMMENT", "AUTO_INCREMENT", "ROW_FORMAT", "ALGORITHM", "LOCK"}


class ColumnDefinitions(Selects):
    """Read columns; see Grammar."""

    def column_definition(self, method: str, old: str | None = None) -> list[tuple]:
        """Read a column with its constraints and its place. old: the name of the column that CHANGE replaces."""
        name = self.name()
        said, kind = self.type()
        column, after = Column(name, said, kind), []
        while self.attribute(column, after):
            pass
        place = "" if self.accept("FIRST") else self.name() if self.accept("AFTER") else None
        if method == "add_column":
            return [(method, column, place), *after]
        return [(method, old or name, column, place), *after]

    def attribute(self, column: Column, after: list[tuple]) -> bool:
        """Read an attribute of a column; return whether there was one. after: lists the keys that it adds."""
        if self.accept("NOT"):
            self.expect("NULL")
            column.nullable = False
        elif self.accept("NULL"):
            column.nullable = True
        elif self.accept("DEFAULT"):
            column.default, column.printed = self.default()
        elif self.accept("ON"):
            self.expect("UPDATE")
            self.default()
            column.renews = True
        elif self.accept("AUTO_INCREMENT"):
            column.increments, column.nullable = True, False
        elif self.accept("PRIMARY") or self.sees("KEY"):
            self.expect("KEY")
            after.append(("add_key", Key("PRIMARY", [(column.name, None)], True)))
        elif self.accept("UNIQUE"):
            self.accept("KEY")
            after.append(("add_key", Key("", [(column.name, None)], True)))
        elif self.accept("COMMENT"):
            column.comment = self.string()
        elif self.accept("COLLATE") or self.accept("CHARACTER", "SET") or self.accept("CHARSET"):
            self.at += 1
        elif self.sees("CONSTRAINT", "CHECK"):
            name = self.name() if self.accept("CONSTRAINT") and not self.sees("CHECK") else None
            self.expect("CHECK")
            after.append(("add_check", self.check(name)))
        elif self.accept("REFERENCES"):  # which MySQL reads and drops
            self.table_name()
            self.names()
            while self.accept("ON"):
                self.accept("DELETE") or self.expect("UPDATE")
                if not any(self.accept(*action.split()) for action in ACTIONS):
                    raise self.error()
        elif self.sees("GENERATED", "AS"):
            raise not_spoken("GENERATED")
        else:
            return False
        return True

    def default(self) -> tuple[tuple, str] | tuple[None, None]:
        """Read the value after DEFAULT; return its expression and how DESCRIBE prints it."""
        if self.accept("NULL"):
            return None, None
        kind, text, _ = self.tokens[self.at]
        if kind == "word" and text in CURRENT:
            if self.accept(text, "("):
                if not self.sees(")"):
                    self.count()
                self.expect(")")
            else:
                self.at += 1
            return ("call", "NOW", [], False, [], ","), "CURRENT_TIMESTAMP"
        if self.accept("("):
            start, node = self.at, self.expression()
            text = self.printed(start, self.at)
            self.expect(")")
            literal = node[0] in ("int", "text", "decimal")
            return node, str(int(node[1]) if node[0] == "int" else node[1]) if literal else text
        start, node = self.at, self.expression(13)
        sign = "-" if node[0] == "negate" else ""
        literal = node[1] if sign else node
        if literal[0] not in ("int", "decimal", "double", "text"):
            self.at = start
            raise self.error()
        return node, f"{sign}{int(literal[1]) if literal[0] == 'int' else literal[1]}"

    def string(self) -> str:
        kind, text, _ = self.tokens[self.at]
        if kind != "text":
            raise self.error()
        self.at += 1
        return unquoted(text)

    def type(self) -> tuple[str, Type]:
        """Read a type; return it as SHOW prints it, and the type of expressions."""
        kind, word, _ = self.tokens[self.at]
        if kind == "word" and word in UNSPOKEN_TYPES:
            raise not_spoken(f"type {word}")
        if kind != "word" or (word not in NAMES and word not in ALSO):
            raise self.error()
        self.at += 1
        said = ALSO.get(word, word.lower())
        if word == "DOUBLE":
            self.accept("PRECISION")
        if word == "CHARACTER" or said == "char":
            said = "varchar" if self.accept("VARYING") else "char"
        if said in ("enum", "set"):
            self.expect("(")
            members = self.listed(self.string)
            self.expect(")")
            listed = ",".join("'" + member.replace("'", "''") + "'" for member in members)
            return f"{said}({listed})", Type("text")
        sizes = []
        if self.accept("("):
            sizes = self.listed(self.count)
            self.expect(")")
        if said == "varchar" and not sizes:
            raise self.error()
        return self.sized(said, sizes)

    def sized(self, said: str, sizes: list[int]) -> tuple[str, Type]:
        """Return a type with its sizes and its sign."""
        unsigned = False
        while self.sees("UNSIGNED", "SIGNED", "ZEROFILL"):
            unsigned = self.accept("UNSIGNED") or self.accept("ZEROFILL") or not self.accept("SIGNED") or unsigned
        sign = " unsigned" * unsigned
        base = said.partition("(")[0]
        if base in DIGITS:
            kept = "(1)" if said == "tinyint(1)" or (said == "tinyint" and sizes == [1] and not unsigned) else ""
            kind = "unsigned" if unsigned else "int"
            return base + kept + sign, Type(kind, 0, DIGITS[base])
        if base == "decimal":
            digits, places = (sizes + [10, 0])[:2] if not sizes else (sizes + [0])[:2]
            if places > digits:
                raise MySQLError(1427, "42000", "For float(M,D), double(M,D) or decimal(M,D), M must be >= D")
            return f"decimal({digits},{places}){sign}", Type("decimal", places, digits - places)
        if base in ("float", "double"):
            listed = f"({sizes[0]},{sizes[1]})" if len(sizes) > 1 else ""
            return base + listed + sign, Type("double")
        if base in ("char", "varchar"):
            return f"{base}({sizes[0] if sizes else 1})", Type("text")
        return base, Type(KINDS.get(base, "text"))

    def options(self) -> list[tuple]:
        """Read the options of a table, such as ENGINE = InnoDB."""
        found = []
        while True:
            self.accept("DEFAULT")
            kind, word, _ = self.tokens[self.at]
            if kind != "word" or word not in OPTIONS:
                return found
            self.at += 1
            if word == "CHARACTER":
                self.expect("SET")
            self.accept("=")
            if word == "COMMENT":
                found.append(("set_comment", self.string()))
            elif word == "AUTO_INCREMENT":
                found.append(("set_next", self.count()))
            else:
                if self.tokens[self.at][0] == "end":
                    raise self.error()
                self.at += 1
                found.append(("keep",))

    def check(self, name: str | None) -> Check:
        self.expect("(")
        start = self.at
        node = self.expression()
        text, bracketed = self.printed(start, self.at), self.bracketed(start, self.at)
        self.expect(")")
        if self.accept("NOT", "ENFORCED"):
            raise not_spoken("CHECK NOT ENFORCED")
        self.accept("ENFORCED")
        return Check(name or "", node, text if bracketed else f"({text})")

    def bracketed(self, start: int, end: int) -> bool:
        """Return whether the token at `start` opens the parenthesis that the last token before `end` closes."""
        depths, depth = [], 0
        for kind, text, _ in self.tokens[start:end]:
            depth += {"(": 1, ")": -1}.get(text, 0) if kind == "sign" else 0
            depths.append(depth)
        return depths[0] == 1 and 0 not in depths[:-1]

    def printed(self, start: int, end: int) -> str:
        """Return the text between two tokens, with the names of columns in backticks."""
        pieces = []
        for at in range(start, end):
            kind, text, place = self.tokens[at]
            said, after = self.sql[place : place + len(text)], self.tokens[at + 1][2]
            gap = " " * (at + 1 < end and self.sql[place + len(text) : after] != "")
            column = kind == "word" and text not in RESERVED and self.tokens[at + 1][:2] != ("sign", "(")
            pieces.append((f"`{said}`" if column else said.lower() if kind == "word" else said) + gap)
        return "".join(pieces).strip()

    def names(self) -> list[str]:
        self.expect("(")
        found = self.listed(self.name)
        self.expect(")")
        return found
