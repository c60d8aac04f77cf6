"""Translate UNION, EXCEPT, INTERSECT and WITH RECURSIVE to SQLite; Block (queries.py) inherits it."""

from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tokens import MySQLError, not_spoken
from envs.simulators.mysql.types import Type, Typed, alike, quoted, without_case

Columns = list[tuple[str, Type]]
ROW = "_rowid_"  # a row's number in its table


class Combining:
    """Whole queries, of which a Block translates each SELECT by itself."""

    def query(self, query: Select) -> tuple[str, Columns]:
        """Return the SQL of a query, and the names and types of its columns."""
        sql, columns = self.recursion(query) if query.recursive else self.combination(query)
        if query.names is None:
            return sql, columns
        if len(query.names) != len(columns):
            text = "In definition of view, derived table or common table expression, SELECT list and column names list "
            raise MySQLError(1353, "HY000", text + "have different column counts")
        inside = unique(name for name, _ in columns)
        renamed = ", ".join(f"{quoted(a)} AS {quoted(b)}" for a, b in zip(inside, unique(query.names), strict=True))
        kinds = [kind for _, kind in columns]
        return f"SELECT {renamed} FROM ({sql})", list(zip(query.names, kinds, strict=True))

    def recursion(self, query: Select) -> tuple[str, Columns]:
        """Return the SQL of WITH RECURSIVE. The types are those of its parts before the recursive ones, as in MySQL."""
        name = query.recursive
        if len(query.parts) < 2 or query.parts[-1][1] not in ("UNION", "UNION ALL"):
            raise MySQLError(3573, "HY000", f"Recursive Common Table Expression '{name}' should contain a UNION")
        begins = next((i for i, (part, _) in enumerate(query.parts) if i and reads(part.source)), len(query.parts) - 1)
        first, steps = query.parts[:begins], query.parts[begins:]
        word = steps[0][1]
        if len({word for _, word in steps}) > 1:
            raise not_spoken("UNION and UNION ALL between recursive parts of a Common Table Expression")
        if query.order:
            raise not_spoken("ORDER BY over UNION in recursive Common Table Expression")
        if any(part.order or part.limit for part, _ in steps):
            raise not_spoken("ORDER BY or LIMIT in the recursive part of a Common Table Expression")
        if any(part.groups for part, _ in steps):
            raise no_aggregation(name)
        seed, columns = self.inner().query(first[0][0] if len(first) == 1 else Select(parts=first))
        names = unique(query.names or [name for name, _ in columns])
        recursive = {**self.recursive, name: [(a, kind) for a, (_, kind) in zip(names, columns, strict=False)]}
        table, listed = quoted(f"{name}~"), ", ".join(map(quoted, names))
        for part, _ in steps:
            if len(steps) > 1 and not reads(part.source):
                raise no_seed(name)
            block = self.inner()
            block.recursive = recursive
            step, others = block.query(part)
            if len(others) != len(columns):
                raise MySQLError(1222, "21000", "The used SELECT statements have a different number of columns")
            seed += f" {word} {step}"
        sql = f"WITH RECURSIVE {table} ({listed}) AS ({seed}{limited(query.limit)}) SELECT {listed} FROM "
        sql += f"(SELECT *, COUNT(*) OVER () FROM {table})"  # which computes every row before it gives the first
        return sql, [(a, kind) for a, (_, kind) in zip(names, columns, strict=True)]

    def combination(self, query: Select) -> tuple[str, Columns]:
        """Return the SQL of a SELECT, or of a UNION, EXCEPT or INTERSECT."""
        if not query.parts:
            return self.select(query)
        if query.order or query.limit:  # those are the union's
            union = Select(parts=query.parts)
            whole = Select([(("star", None), None, "*")], source=("derived", union, "union"))
            whole.order, whole.limit = query.order, query.limit
            return self.select(whole)
        parts = [self.inner().query(part) for part, _ in query.parts]
        if len({len(columns) for _, columns in parts}) > 1:
            raise MySQLError(1222, "21000", "The used SELECT statements have a different number of columns")
        names = unique(name for name, _ in parts[0][1])
        kinds, rows = [], [[] for _ in parts]
        inside = [unique(name for name, _ in columns) for _, columns in parts]
        for i, name in enumerate(names):
            values, kind = alike(
                [Typed(quoted(its[i]), columns[i][1]) for its, (_, columns) in zip(inside, parts, strict=True)]
            )
            kinds.append(kind)
            for row, value in zip(rows, values, strict=True):
                row.append(f"{without_case(Typed(value, kind))} AS {quoted(name)}")
        texts = [f"SELECT {', '.join(row)} FROM ({sql})" for row, (sql, _) in zip(rows, parts, strict=True)]
        found, words = [], [word for _, word in query.parts]
        for i, (text, word) in enumerate(zip(texts, words, strict=True)):
            if word.startswith("UNION"):
                found.append(text)
            else:
                found = [among(" UNION ALL ".join(found), text, word, names)]
            follows = next((later for later in words[i + 1 :] if later != "UNION ALL"), "")
            if word == "UNION" and follows != "UNION":  # SQLite's UNION sorts its rows; only the last DISTINCT counts
                found = [f"SELECT DISTINCT * FROM ({' UNION ALL '.join(found)})"]
        return " UNION ALL ".join(found), list(zip(names, kinds, strict=True))


def reads(source: tuple | None) -> bool:
    """Return whether FROM has the name of the common table expression that is being read."""
    if source and source[0] == "join":
        return reads(source[2]) or reads(source[3])
    return bool(source) and source[0] == "recursive"


def no_seed(name: str) -> MySQLError:
    text = f"Recursive Common Table Expression '{name}' should have one or more non-recursive query blocks followed by "
    return MySQLError(3574, "HY000", text + "one or more recursive ones")


def no_aggregation(name: str) -> MySQLError:
    text = f"Recursive Common Table Expression '{name}' can contain neither aggregation nor window functions in "
    return MySQLError(3575, "HY000", text + "recursive query block")


def among(left: str, right: str, word: str, names: list[str]) -> str:
    """Return the SQL of EXCEPT and INTERSECT, with the rows in the order of their first on the left side. With ALL the
    n-th of equal rows on one side stands against the n-th on the other."""
    listed = ", ".join(f"l.{quoted(name)} COLLATE NOCASE AS {quoted(name)}" for name in names)
    test = " AND ".join(f"l.{quoted(name)} IS r.{quoted(name)} COLLATE NOCASE" for name in names)
    negated = "NOT " if word.startswith("EXCEPT") else ""
    if not word.endswith(" ALL"):
        found = f"EXISTS (SELECT 1 FROM ({right}) AS r WHERE {test})"
        return f"SELECT DISTINCT {listed} FROM ({left}) AS l WHERE {negated}{found}"
    equal = ", ".join(f"{quoted(name)} COLLATE NOCASE" for name in names)
    number = f"SELECT *, ROW_NUMBER() OVER (PARTITION BY {equal}) AS {ROW}"
    left = f"SELECT *, ROW_NUMBER() OVER () AS _place_ FROM ({left})"
    left = f"{number}, MIN(_place_) OVER (PARTITION BY {equal}) AS _first_ FROM ({left})"
    found = f"EXISTS (SELECT 1 FROM ({number} FROM ({right})) AS r WHERE {test} AND l.{ROW} = r.{ROW})"
    return f"SELECT * FROM (SELECT {listed} FROM ({left}) AS l WHERE {negated}{found} ORDER BY l._first_)"


def limited(limit: tuple | None) -> str:
    return f" LIMIT {limit[0]} OFFSET {limit[1]}" if limit else ""


def unique(names) -> list[str]:
    """Return the names with a number appended to repeated ones, which MySQL allows and SQLite does not."""
    found, seen = [], set()
    for name in names:
        found.append(f"{name}:{len(found)}" if name.lower() in seen else name)
        seen.add(name.lower())
    return found
