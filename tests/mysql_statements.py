"""Random statements and the table they run on, for comparing the simulated MySQL with a real server."""

from random import Random

from cases import cases

TABLE = "staff"
COLUMNS = [("id", "INT"), ("name", "TEXT"), ("city", "TEXT"), ("pay", "INT"), ("age", "INT"), ("hired", "TEXT")]
ROWS = [
    (1, "Ann", "Oslo", 520, 31, "2019-03-04"),
    (2, "Bob", "Lima", 610, 45, "2020-11-30"),
    (3, "cyd", "Oslo", 470, 27, "2021-07-15"),
    (4, "Dee Ray", "Cairo", 890, 52, "2018-01-01"),
    (5, "Eve", "Lima", 330, 23, "2022-02-28"),
    (6, "Flo", "Oslo", 750, None, "2020-02-29"),
    (7, "Gus", "Cairo", -40, 38, "2021-12-31"),
    (8, "ann", "Paris", 610, 61, None),
    (9, "It 50%", "Paris", 0, 19, "2017-10-09"),
]
NUMBERS, TEXTS = ("id", "pay", "age"), ("name", "city", "hired")
WORDS = ("Ann", "bob", "Oslo", "a", "o", "e", "%n%", "C", "2020", "zz", "")
ERRORS = cases("mysql_statements")["errors"]  # what fails, and how is MySQL's to say


NESTS = """
(_) | NOT _ | !_ | - _ | 1 + _ | 1 AND _ | _ IS NULL | 1 IN (_) | 1 LIKE _ | 1 BETWEEN 0 AND _ | ABS(_) | NULLIF(_, 1)
CONCAT('a', _) | CAST(_ AS CHAR) | CASE WHEN _ THEN 1 END | CASE _ WHEN 1 THEN 2 WHEN 3 THEN 4 END | EXISTS (SELECT _)
COUNT(*) OVER (ORDER BY _) | GROUP_CONCAT(1 ORDER BY _) | (SELECT _) | (SELECT 1 UNION SELECT _) | (SELECT 1 ORDER BY _)
(SELECT 1 GROUP BY _) | (SELECT x FROM (SELECT _ x) a) | (WITH w AS (SELECT _ x) SELECT x FROM w)
"""  # expressions around another one
FROM_NESTS = """
(SELECT * FROM _) a | (SELECT 1) a, _ | (SELECT 1) a JOIN _ | staff a, _ | staff a LEFT JOIN _ ON 1 | (staff a JOIN _)
(_) | (SELECT 1 x UNION SELECT * FROM _) a
"""  # and what stands behind FROM
NESTS, FROM_NESTS = (
    [nest.partition("_")[::2] for line in nests.split("\n") for nest in line.split(" | ") if nest]
    for nests in (NESTS, FROM_NESTS)
)


def deep(rng: Random) -> str:
    """Return a statement with nested parts, some of them a thousand deep."""
    nests, text = rng.choice([(NESTS, "1"), (NESTS, "pay"), (FROM_NESTS, "staff"), (FROM_NESTS, "staff z")])
    for _ in range(rng.randint(1, 3)):
        (before, behind), times = rng.choice(nests), rng.choice([1, 3, 10, 20, 28, 58, 300, 1000])
        text = before * times + text + behind * times
    return f"SELECT {text} FROM staff" if nests is NESTS else f"SELECT {rng.choice('1*')} FROM {text}"


def statement(rng: Random) -> str:
    """Return a random statement; one in eight changes the table, one in ten fails."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(ERRORS)
    if kind < 0.22:
        return change(rng)
    if kind < 0.45:
        return grouped(rng)
    if kind < 0.6:
        return nested(rng)
    listed = ", ".join(value(rng, 2) for _ in range(rng.randint(1, 3)))
    where = f" WHERE {condition(rng, 2)}" if rng.random() < 0.7 else ""
    order = f" ORDER BY {rng.choice((*NUMBERS, text(rng, 1)))}{rng.choice(('', ' DESC'))}, id"
    limit = rng.choice(("", "", " LIMIT 3", " LIMIT 2 OFFSET 1", " LIMIT 1, 4"))
    return f"SELECT {rng.choice(('', '', 'id, '))}{listed} FROM staff{where}{order}{limit}"


def grouped(rng: Random) -> str:
    by = rng.choice(("city", "age > 30", "LEFT(hired, 4)", "YEAR(hired)", "LENGTH(name)", "city, age > 30"))
    listed = ", ".join([by, *(aggregate(rng) for _ in range(rng.randint(1, 3)))])
    having = f" HAVING {aggregate(rng)} {rng.choice('<>')} {rng.randint(0, 700)}" if rng.random() < 0.5 else ""
    where = f" WHERE {condition(rng, 1)}" if rng.random() < 0.4 else ""
    if rng.random() < 0.2:
        return f"SELECT {aggregate(rng)}, {aggregate(rng)} FROM staff{where}"
    return f"SELECT {listed} FROM staff{where} GROUP BY {by}{having} ORDER BY {by}"


def nested(rng: Random) -> str:
    n, top = rng.choice(("pay", "age")), rng.choice(("MAX", "MIN", "AVG", "SUM"))
    return rng.choice(
        [
            f"SELECT name FROM staff WHERE {n} >= (SELECT {top}({n}) FROM staff WHERE {condition(rng, 1)}) ORDER BY id",
            f"SELECT name FROM staff a WHERE {n} = (SELECT MAX({n}) FROM staff b WHERE b.city = a.city) ORDER BY id",
            f"SELECT name FROM staff WHERE city IN (SELECT city FROM staff WHERE {condition(rng, 1)}) ORDER BY id",
            f"SELECT name FROM staff a WHERE EXISTS (SELECT 1 FROM staff b WHERE b.{n} > a.{n} + 99) ORDER BY id",
            "SELECT a.name, b.name FROM staff a JOIN staff b ON a.city = b.city AND a.id < b.id ORDER BY a.id, b.id",
            f"SELECT a.id, b.{n} FROM staff a LEFT JOIN staff b ON a.id = b.id + {rng.randint(1, 5)} ORDER BY a.id",
            f"SELECT t.c, t.m FROM (SELECT city AS c, {top}({n}) AS m FROM staff GROUP BY city) t ORDER BY t.c",
            f"SELECT {top}(k) FROM (SELECT COUNT(*) AS k FROM staff GROUP BY city) AS t",
            f"SELECT UPPER(name) FROM staff WHERE {condition(rng, 1)} UNION SELECT city FROM staff ORDER BY 1",
            f"SELECT {n} FROM staff WHERE id < 4 UNION ALL SELECT {n} / 2 FROM staff WHERE id > 6 ORDER BY 1 DESC",
            f"SELECT name, (SELECT COUNT(*) FROM staff b WHERE b.{n} > a.{n}) AS rk FROM staff a ORDER BY rk, id",
            f"WITH t AS (SELECT city, {top}({n}) v FROM staff GROUP BY city) SELECT city, v * 2 FROM t ORDER BY city",
            f"SELECT name, RANK() OVER (ORDER BY city) FROM staff WHERE {condition(rng, 1)} ORDER BY id",
            f"SELECT name, {top}({n}) OVER (PARTITION BY city) FROM staff ORDER BY id",
            f"SELECT DISTINCT city FROM staff WHERE {condition(rng, 1)} ORDER BY city DESC",
            f"SELECT COUNT(DISTINCT city), COUNT(DISTINCT city, {n}) FROM staff",
        ]
    )


def change(rng: Random) -> str:
    pay = rng.choice(["7", "7.5", "-2.49"])
    return rng.choice(
        [
            f"UPDATE staff SET pay = {number(rng, 1)} WHERE {condition(rng, 1)}",
            f"UPDATE staff SET name = {text(rng, 1)}, age = age + 1 WHERE {condition(rng, 1)}",
            f"UPDATE staff SET pay = pay + 10 ORDER BY id DESC LIMIT {rng.randint(0, 4)}",
            f"DELETE FROM staff WHERE {condition(rng, 2)}",
            f"DELETE FROM staff ORDER BY id LIMIT {rng.randint(0, 4)}",
            f"INSERT INTO staff (id, name, pay) VALUES (10, {text(rng, 0)}, {pay}), ('11', 5, NULL)",
            f"INSERT INTO staff SELECT id + 20, {text(rng, 1)}, city, {number(rng, 1)}, age, hired FROM staff",
            f"INSERT INTO staff SET id = {rng.randint(20, 30)}, city = {text(rng, 0)}",
        ]
    )


def value(rng: Random, depth: int) -> str:
    if rng.random() < 0.2:
        return f"{number(rng, 1)} / {rng.choice(['3', '7', '2.5', '0', 'id'])}"
    return rng.choice((number, number, text, condition))(rng, depth)


def number(rng: Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(
            [
                rng.choice(NUMBERS),
                rng.choice(NUMBERS),
                str(rng.randint(0, 60)),
                f"{rng.randint(0, 9)}.{rng.randint(1, 99)}",
            ]
        )
    a, b = number(rng, depth - 1), number(rng, depth - 1)
    t, c = text(rng, depth - 1), condition(rng, depth - 1)
    return rng.choice(
        [
            *(f"({a} {op} {b})" for op in "+-*"),
            f"({a} DIV {rng.randint(1, 9)})",
            f"({a} % {rng.randint(1, 9)})",
            f"ROUND({a})",
            f"ROUND({rng.choice(NUMBERS)}, -1)",
            f"CEIL({a})",
            f"FLOOR({a})",
            f"ABS({a})",
            f"-{a}",
            f"IF({c}, {a}, {b})",
            f"IFNULL({a}, {b})",
            f"COALESCE({a}, {b}, 0)",
            f"CASE WHEN {c} THEN {a} ELSE {b} END",
            f"GREATEST({a}, {b})",
            f"LEAST({a}, {b})",
            f"LENGTH({t})",
            f"LOCATE('a', {t})",
            "YEAR(hired)",
            "MONTH(hired)",
            "DATEDIFF(hired, '2020-01-01')",
            a,
        ]
    )


def text(rng: Random, depth: int) -> str:
    if depth == 0:
        return rng.choice([rng.choice(TEXTS), rng.choice(TEXTS), f"'{rng.choice(WORDS[:4])}'"])
    a, b, n = text(rng, depth - 1), text(rng, depth - 1), rng.randint(1, 5)
    return rng.choice(
        [
            f"CONCAT({a}, '-', {b})",
            f"CONCAT({a}, {number(rng, depth - 1)})",
            f"CONCAT_WS('/', {a}, NULL, {b})",
            f"UPPER({a})",
            f"LOWER({a})",
            f"LEFT({a}, {n})",
            f"RIGHT({a}, {n})",
            f"SUBSTRING({a}, {n}, 2)",
            f"SUBSTRING({a}, -{n})",
            f"SUBSTRING_INDEX({a}, 'n', 1)",
            f"REPLACE({a}, 'n', 'm')",
            f"REVERSE({a})",
            f"LPAD({a}, {n}, '*')",
            f"IF({condition(rng, depth - 1)}, {a}, {b})",
            f"COALESCE({a}, {b})",
            "DATE_FORMAT(hired, '%d.%m.%Y')",
            "MONTHNAME(hired)",
            "DAYNAME(hired)",
            a,
        ]
    )


def condition(rng: Random, depth: int) -> str:
    if depth == 0:
        sign = rng.choice(["<", ">", "<=", ">=", "=", "<>", "!="])
        return f"{rng.choice(NUMBERS)} {sign} {rng.choice([5, 30, 45, 610])}"
    n, t, word = number(rng, depth - 1), text(rng, depth - 1), rng.choice(WORDS)
    a, b = condition(rng, depth - 1), condition(rng, depth - 1)
    return rng.choice(
        [
            f"({a} AND {b})",
            f"({a} OR {b})",
            f"({a} || {b})",
            f"({a} && {b})",
            f"({a} XOR {b})",
            f"NOT {a}",
            f"{t} LIKE '{word}%'",
            f"{t} NOT LIKE '%{word}'",
            f"{t} = '{word}'",
            f"{t} <> '{word}'",
            f"{t} > 'm'",
            f"{n} BETWEEN 20 AND 500",
            f"{n} NOT IN (1, 2, 31, 610)",
            f"{t} IN ('ann', 'LIMA', 'x')",
            f"{n} IS NULL",
            f"{t} IS NOT NULL",
            f"{n} <=> {rng.choice(NUMBERS)}",
            a,
        ]
    )


def aggregate(rng: Random) -> str:
    n = number(rng, rng.randint(0, 1))
    return rng.choice(
        [
            "COUNT(*)",
            f"COUNT({n})",
            f"SUM({n})",
            f"AVG({n})",
            f"MAX({n})",
            f"MIN({n})",
            "MAX(hired)",
            "MIN(pay)",
            f"ROUND(AVG({rng.choice(NUMBERS)}), {rng.randint(0, 3)})",
            f"SUM({rng.choice(NUMBERS)}) / COUNT(*)",
            "MAX(pay) - MIN(pay)",
            f"CEIL(AVG({rng.choice(NUMBERS)}))",
            "FLOOR(SUM(pay) / COUNT(*))",
            "GROUP_CONCAT(id ORDER BY id)",
            "GROUP_CONCAT(id ORDER BY pay DESC, id SEPARATOR ' ')",
            "COUNT(DISTINCT age)",
        ]
    )
