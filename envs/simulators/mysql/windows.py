"""Translate MySQL's window functions to SQLite's; Expressions inherits them."""

from envs.simulators.mysql.tokens import AGGREGATES, SPREADS, MySQLError, not_spoken, syntax_error
from envs.simulators.mysql.types import COUNT, DOUBLE, Typed, alike, by_order, without_case

RANKS = {"ROW_NUMBER": COUNT, "RANK": COUNT, "DENSE_RANK": COUNT, "PERCENT_RANK": DOUBLE, "CUME_DIST": DOUBLE}
PICKED = {"FIRST_VALUE": (1, 1), "LAST_VALUE": (1, 1), "NTH_VALUE": (2, 2), "LAG": (1, 3), "LEAD": (1, 3)}
WINDOWED = {*RANKS, *PICKED, "NTILE"}  # functions that need OVER


def check_arguments(name: str, count: int, few: int, many: int) -> None:
    if not few <= count <= many:
        raise MySQLError(1582, "42000", f"Incorrect parameter count in the call to native function '{name}'")


class Windows:
    """Window functions; `windows` are those that a WINDOW clause named."""

    def _window(self, call: tuple, over: tuple | str) -> Typed:
        name = call[1]
        if self.clause not in ("select", "order"):
            text = f"You cannot use the window function '{name.lower()}' in this context.'"
            raise MySQLError(3593, "HY000", text)
        value = self.windowed(call)
        if isinstance(over, str):
            if over.lower() not in self.windows:
                raise MySQLError(3579, "HY000", f"Window name '{over}' is not defined.")
            over = self.windows[over.lower()]
        partition, order, frame = over
        parts = ", ".join(without_case(self.typed(node)) for node in partition)
        orders = ", ".join(by_order(self.typed(node)) + " DESC" * descends for node, descends in order)
        words = parts and f"PARTITION BY {parts}", orders and f"ORDER BY {orders}", frame
        return Typed(f"{value.sql} OVER ({' '.join(filter(None, words))})", value.type)

    def windowed(self, call: tuple) -> Typed:
        """Return the function of a window, without OVER."""
        name, arguments = call[1:3]
        if name in RANKS:
            check_arguments(name, len(arguments), 0, 0)
            return Typed(f"{name}()", RANKS[name])
        if name == "NTILE":
            check_arguments(name, len(arguments), 1, 1)
            return Typed(f"NTILE({counted(name, arguments[0], 1)})", COUNT)
        if name in PICKED:
            return self.picked(name, arguments)
        if name not in AGGREGATES:
            raise syntax_error("OVER")
        if name == "GROUP_CONCAT" or name in SPREADS or call[3]:
            raise not_spoken(f"{name} OVER")
        return self.aggregate(*call[1:], windowed=True)

    def picked(self, name: str, arguments: list) -> Typed:
        """FIRST_VALUE, LAG and their like: the value of another row."""
        check_arguments(name, len(arguments), *PICKED[name])
        value = self.typed(arguments[0])
        texts, kind = [value.sql], value.type
        if len(arguments) == 3:
            (text, default), kind = alike([value, self.typed(arguments[2])])
            texts = [text, default]
        if len(arguments) > 1:
            texts.insert(1, str(counted(name, arguments[1], int(name == "NTH_VALUE"))))
        return Typed(f"{name}({', '.join(texts)})", kind)


def counted(name: str, node: tuple, least: int) -> int:
    """Return the number of rows that an argument gives. Raise MySQL's error for anything else."""
    if node[0] != "int" or node[1] < least:
        raise MySQLError(1210, "HY000", f"Incorrect arguments to {name.lower()}")
    return node[1]
