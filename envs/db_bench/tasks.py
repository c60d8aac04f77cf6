"""Draw db_bench's tasks from templates of one skill each, and read files in LifelongAgentBench's layout.

The templates and the tables' contents are in templates.py. Numbers, days and names never repeat in a column, so that no
order has ties. The answer to a question has at least one row, and few.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from random import Random

from envs.common import SPLITS, check_file, split_of
from envs.data_files import plain_entry, read_json, say_unread
from envs.db_bench.templates import POOLS, TABLES, TEMPLATES
from envs.names import MadeUp
from envs.read_once import read_once
from envs.refusal import Refusal
from envs.simulators.mysql import Database, digest

LEVELS = {
    "1": (4, 6, 4),
    "2": (8, 12, 5),
    "3": (20, 40, 8),
}  # level -> least and most rows of a table, most of an answer
SCHEMAS = [line.split() for line in TABLES.strip().splitlines()]


def read_templates(text: str) -> dict[str, list[tuple[str, str, list[str]]]]:
    """Return {skill: [(levels, SQL, wordings) of each template]}."""
    found: dict = {}
    for line in text.strip().splitlines():
        if not line.startswith(" "):
            templates = found.setdefault(line, [])
        elif line.startswith(" " * 8):
            templates[-1][2].append(line.strip())
        else:
            levels, _, sql = line.strip().partition(" ")
            templates.append((levels, sql, []))
    return found


BY_SKILL = read_templates(TEMPLATES)
SKILLS = tuple(BY_SKILL)
CHANGES = ("insert", "delete", "update")
PAIRS = {  # drawn together: (SQL's word, the instruction's word)
    ("M", "most"): (("MAX", "highest"), ("MIN", "lowest")),
    ("F", "what"): (("MAX", "highest"), ("MIN", "lowest"), ("SUM", "total"), ("AVG", "average")),
    ("D", "way", "D2", "way2"): (("", "ascending", " DESC", "descending"), (" DESC", "descending", "", "ascending")),
}
MEASURES = {  # name -> its value for the numbers of a group
    "count": len,
    "sum": sum,
    "spread": lambda group: max(group) - min(group),
    "mean": lambda group: -(-sum(group) // len(group)),
}
READ = {"instruction", "table_info", "answer_info", "skill_list"}  # keys of an entry; the others are said
NESTED = ("table_info", "answer_info", "skill_list")  # fields of an entry that hold lists or objects
TABLES_TRIED, TASKS_TRIED = 100, 12  # draws before a split counts as empty


@dataclass(frozen=True)
class Task:
    skill: str  # of a file's task perhaps several, with commas
    instruction: str  # with the sentence about the table
    table: str
    columns: list  # (name, "INT" or "TEXT")
    rows: list
    sql: str  # the truth
    answer: list | None = None  # rows; None if the table's state decides
    state: str = ""  # the hash of the table after the truth
    level: str = ""  # one of LEVELS; "" for a task of a file
    fresh: bool = False  # its words are made up

    @property
    def any_order(self) -> bool:
        """Whether rows are right in any order: level 1 asks for groups and names no order of them."""
        return self.level == "1" and self.skill.startswith(("group_by", "having"))

    @property
    def canonical(self) -> str:
        """The canonical task: the table's name and the SQL, of a fresh task also a hash of the columns and rows."""
        held = f":{sha256(repr((self.columns, self.rows)).encode()).hexdigest()}" if self.fresh else ""
        return f"db_bench:{self.table}:{self.sql}{held}"


# -- generated tasks


def draw(rng: Random, skill: str, level: str, split: str, database: Database, fresh: bool = False) -> Task:
    """Draw a task of a skill in a split; `database` solves it. `fresh`: the words of its table are made up."""
    templates = [template for template in BY_SKILL[skill] if level in template[0]]
    for _ in range(TABLES_TRIED):
        table, columns, rows, new = draw_table(rng, level)
        if fresh:
            table, columns, rows, new = renamed(table, columns, rows, new, MadeUp(rng))
        for _ in range(TASKS_TRIED):
            levels, sql, ways = rng.choice(templates)
            values = bind(rng, table, columns, rows, new)
            task = Task(skill, "", table, columns, rows, sql.format(**values), level=level, fresh=fresh)
            if split_of(task.canonical) != split:
                continue
            truth = solve(task, LEVELS[level][2], database)
            if truth:
                said = rng.choice(ways_at(level, levels, ways)).format(**values)
                return replace(task, instruction=f"{said}\n{header(table, columns)}", **truth)
    raise Refusal(f"no task of skill {skill} at level {level} is in split {split}")


def ways_at(level: str, levels: str, ways: list[str]) -> list[str]:
    """Return the wordings of a template at one of its levels."""
    whole = ways["1" in levels :]
    return ways[:1] if level == "1" else whole[:1] if level == "2" else whole


def header(table: str, columns: list) -> str:
    """Return the sentence about a table that ends an instruction."""
    names = ", ".join(name for name, _ in columns)
    return f"The name of this table is {table}, and the headers of this table are {names}."


def draw_table(rng: Random, level: str) -> tuple[str, list, list, list]:
    """Draw a table: its name, columns, rows, and two extra rows to insert."""
    name, *fields = rng.choice(SCHEMAS)
    fields = [field.split(":") for field in (fields[:4] if level == "1" else fields[:5] if level == "2" else fields)]
    few, many, _ = LEVELS[level]
    count = rng.randint(few, many) + 2
    values = [draw_values(rng, kind, count, level, distinct=i == 0) for i, (_, kind) in enumerate(fields)]
    columns = [(column, "INT" if "-" in kind else "TEXT") for column, kind in fields]
    rows = list(zip(*values, strict=True))
    return name, columns, rows[:-2], rows[-2:]


def renamed(table: str, columns: list, rows: list, new: list, made_up: MadeUp) -> tuple[str, list, list, list]:
    """Return a drawn table with made-up words: in its name, its columns' names and its strings."""
    other = lambda row: tuple(made_up(value) if isinstance(value, str) else value for value in row)  # noqa: E731
    named = [(made_up(name), kind) for name, kind in columns]
    return made_up(table), named, [other(row) for row in rows], [other(row) for row in new]


def draw_values(rng: Random, kind: str, count: int, level: str, distinct: bool) -> list:
    """Draw a column's values: distinct numbers or days, or words of a pool."""
    if "-" in kind:
        low, high = (1, 50) if level == "1" else map(int, kind.split("-"))
        return rng.sample(range(low, high + 1), count)
    if kind == "date":
        days = rng.sample(range(12 * 28 * 12), count)
        return [f"{2012 + day // 336}-{day // 28 % 12 + 1:02}-{day % 28 + 1:02}" for day in days]
    words = pool(kind, level == "1")
    return rng.sample(words, count) if distinct else rng.sample(words, 2) + rng.choices(words, k=count - 2)


@lru_cache(maxsize=64)
def pool(kind: str, plain: bool) -> list[str]:
    """Return the strings of a pool; `plain` ones are single words."""
    first, bar, second = POOLS[kind].partition("|")
    if not bar or plain:
        return (second or first).split()
    return [f"{one} {other}" for one in first.split() for other in second.split()]


def bind(rng: Random, table: str, columns: list, rows: list, new: list) -> dict:
    """Draw the values of a template's names for one table."""
    names = [name for name, _ in columns]
    at = dict(zip(names, zip(*rows, strict=True), strict=True))
    a, (k, g) = names[0], rng.sample(names[1:3], 2)
    numbers = [name for name, kind in columns if kind == "INT"]
    n, m = rng.sample(numbers, 2) if len(numbers) > 1 else numbers * 2
    c = rng.choice([name for name in names if name != n])
    b = rng.choice([name for name in names if name not in (a, c)])
    v, w = rng.sample(sorted(set(at[k])), 2)
    ordered, few, high = sorted(at[n]), rng.randint(1, 3), rng.random() < 0.5
    groups: dict[str, list] = {}
    for kind, number in zip(at[k], at[n], strict=True):
        groups.setdefault(kind, []).append(number)
    values = {"t": table, "s": table[0], "a": a, "b": b, "c": c, "k": k, "g": g, "n": n, "m": m, "v": v, "w": w}
    values |= {"p": rng.choice(at[a]), "d": rng.randint(2, 9), "N": rng.randint(2, 4), "O": rng.randint(1, 4)}
    values |= {"alias": f"{rng.choice(('best', 'result', 'value'))}_{n}", "u": new[0][names.index(n)]}
    values |= {"over": ">" if high else "<", "above": "above" if high else "below"}
    values |= {"some": ordered[-1 - few] if high else ordered[few], "low": ordered[1]}
    values |= {"mid": rng.choice(ordered[1:-1]), "mid2": rng.choice(sorted(at[m])[1:-1])}
    values |= {"e": names[-1], "day": sorted(at[names[-1]])[-1 - few]}
    for name, measure in MEASURES.items():  # not the largest value, so that at least one group exceeds it
        measured = sorted(set(map(measure, groups.values())))
        values[name] = rng.choice(measured[:-1] or measured)
    values |= {
        "row": literal(new[0]),
        "row2": literal(new[1]),
        "said": said(names, new[0]),
        "said2": said(names, new[1]),
    }
    for keys, choices in PAIRS.items():
        values |= zip(keys, rng.choice(choices), strict=True)
    return values


def literal(row: list) -> str:
    """Return a row as SQL."""
    return "(" + ", ".join(str(value) if isinstance(value, int) else f"'{value}'" for value in row) + ")"


def said(names: list, row: list) -> str:
    """Return a row in words."""
    return ", ".join(f"{name} {value}" for name, value in zip(names, row, strict=True))


def solve(task: Task, most: int, database: Database) -> dict | None:
    """Return the answer or the state after the true SQL; None for no rows, all rows or too many rows."""
    found = database.load(task.table, task.columns, task.rows).run(task.sql)
    if task.skill in CHANGES:
        left = database.rows()
        return {"state": digest(left)} if left and left != task.rows else None
    everything = len(found) == len(task.rows) and task.skill.startswith(("where", "table_alias"))
    return {"answer": found} if 0 < len(found) <= most and not everything else None


# -- files


def skills_of(entry: dict) -> list[str]:
    """Return an entry's skills. `select`, a label of every query, counts only if it is the only one."""
    found = entry.get("skill_list", [])
    if not all(isinstance(skill, str) for skill in found):
        raise TypeError("a skill must be a text")
    return [skill for skill in found if skill != "select"] or found


def task_of(entry: dict, skill: str) -> Task:
    """Return the task of an entry. Raise KeyError, TypeError or ValueError for a malformed one."""
    info, answer = entry["table_info"], entry["answer_info"]
    columns = [(column["name"], column["type"].upper()) for column in info["column_info_list"]]
    if not {kind for _, kind in columns} <= {"INT", "TEXT"}:
        raise Refusal("columns must be INT or TEXT")
    said = entry["instruction"]
    texts = [said, info["name"], answer["sql"], answer.get("md5") or "", skill, *(name for name, _ in columns)]
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise TypeError(f"{str(wrong[0])[:40]!r} is not a text")
    said = said if "The name of this table is" in said else f"{said}\n{header(info['name'], columns)}"
    rows = rows_of(info["row_list"])
    if not columns or any(len(row) != len(columns) for row in rows):
        raise Refusal("each row must have a value for each column")
    direct = answer.get("direct")
    if (direct is None) == (answer.get("md5") is None):
        raise Refusal("answer_info must have one of direct and md5")
    direct = None if direct is None else rows_of(direct)
    return Task(skill, said, info["name"], columns, rows, answer["sql"], direct, answer.get("md5") or "")


def rows_of(rows: list) -> list[tuple]:
    """Return a file's rows as tuples. Raise ValueError for what is no row of a table."""
    if not all(isinstance(row, list | tuple) for row in rows):
        raise Refusal("a row must be a list of values")
    for value in (value for row in rows for value in row):
        number = isinstance(value, int | float) and abs(value) < 2**63
        if not (number or value is None or isinstance(value, str)):
            raise Refusal(f"{str(value)[:40]!r} is no value of a table")
    return [tuple(row) for row in rows]


def entry_of(task: Task) -> dict:
    """Return a task as an entry in LifelongAgentBench's layout."""
    columns = [{"name": name, "type": kind} for name, kind in task.columns]
    answer = task.answer and [
        [value if isinstance(value, (int, str)) else float(value) for value in row] for row in task.answer
    ]
    info = {"name": task.table, "column_info_list": columns, "row_list": [list(row) for row in task.rows]}
    truth = {"direct": answer, "md5": None if answer else task.state, "sql": task.sql}
    return {"instruction": task.instruction, "table_info": info, "answer_info": truth, "skill_list": [task.skill]}


def read_data(path: str) -> dict[str, list[dict]] | dict[str, dict]:
    """Return a file's {number: entry} or {skill: [entry, ...]}; a list or JSON Lines of entries gives the former."""
    check_file("a file of LifelongAgentBench's entries", path)
    data = read_json(path, lines=path.endswith(".jsonl"))
    if isinstance(data, list):
        data = {str(number): entry for number, entry in enumerate(data)}
    if not isinstance(data, dict) or not data:
        raise Refusal(f"data: {path!r} must hold {{number: entry}} or {{skill: [entry, ...]}}")
    lists = (value if isinstance(value, list) else [value] for value in data.values())
    say_unread(path, (entry for entries in lists for entry in entries), READ)
    return data


@read_once
def read_entries(path: str, single_skill: bool = False) -> dict[str, list[dict]]:
    """Return {skill: entries} of a file. An entry of several skills is in the list of each, or left out."""
    data, found = read_data(path), {}
    for name, value in data.items():
        for number, entry in enumerate(value if isinstance(value, list) else [value]):
            try:
                entry = plain_entry(entry, NESTED)
                skills = [name] if isinstance(value, list) else skills_of(entry)
            except (TypeError, ValueError, AttributeError) as error:
                where = f"{number} of {name}" if isinstance(value, list) else name
                raise Refusal(f"data: entry {where} in {path!r} is no task: {error!r}") from None
            for skill in skills if len(skills) == 1 or not single_skill else []:
                found.setdefault(skill, []).append(entry)
    if not found:
        raise Refusal(f"data: {path!r} has no task{' of a single skill' * single_skill}")
    return found


@read_once
def read_in_order(path: str) -> list[Task]:
    """Return all tasks of a file, those of several skills too, in its order."""
    data = read_data(path)
    lists = [value if isinstance(value, list) else [value] for value in data.values()]
    found = []
    for number, entry in enumerate(entry for entries in lists for entry in entries):
        try:
            entry = plain_entry(entry, NESTED)
            found.append(task_of(entry, ",".join(skills_of(entry))))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Refusal(f"data: entry {number} of {path!r} is no task: {error!r}") from None
    if not found:
        raise Refusal(f"data: {path!r} has no task")
    return found


@read_once
def read_tasks(path: str, single_skill: bool = False) -> dict[str, dict[str, list[Task]]]:
    """Return {split: {skill: tasks}} of a file; see `read_entries`. A task's skill lists all of them, with commas."""
    found: dict = {split: {} for split in SPLITS}
    for skill, entries in read_entries(path, single_skill).items():
        for number, entry in enumerate(entries):
            try:
                task = task_of(entry, ",".join(skills_of(entry)) or skill)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise Refusal(f"data: entry {number} of {skill} in {path!r} is no task: {error!r}") from None
            found[split_of(task.canonical)].setdefault(skill, []).append(task)
    return found
