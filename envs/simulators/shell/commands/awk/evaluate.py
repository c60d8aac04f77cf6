"""Compile awk's variables and expressions to closures that return values."""

import math
import operator

from envs.simulators.shell.commands.awk.functions import Functions
from envs.simulators.shell.commands.awk.values import UNSET, compare, compiled, number, text_of, truth, whole
from envs.simulators.shell.commands.options import Fail
from envs.simulators.shell.files import MAX_TEXT, Timeout

COMPARISONS = {"<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne}
COMPARISONS |= {">": operator.gt, ">=": operator.ge}
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": math.fmod}
OPERATIONS |= {"^": math.pow}


def arithmetic(op: str, a: float, b: float) -> float:
    """Return `a op b` as C computes it: division by 0 gives infinity."""
    try:
        return OPERATIONS[op](a, b)
    except ZeroDivisionError:
        return math.nan if a == 0 or a != a else math.copysign(math.inf, a)
    except OverflowError:
        return math.inf
    except ValueError:
        return math.nan if op == "%" or a < 0 else math.inf


class Expressions(Functions):
    """The part of the compiler for expressions."""

    # -- variables, arrays and fields

    def variable(self, name: str):
        """Return functions that get and set a variable."""
        awk = self.awk
        if name == "NF":

            def count() -> float:
                awk.need_fields()
                return float(len(awk.fields))

            return count, lambda value: awk.set_count(whole(value))
        values, unset = awk.vars, UNSET
        return lambda: values.get(name, unset), lambda value: values.__setitem__(name, value)

    def array(self, name: str):
        """Return a function that gets an array, made if it is missing."""
        awk = self.awk

        def table() -> dict:
            found = awk.vars.setdefault(name, {})
            if not isinstance(found, dict):
                raise Fail(f"type error in reference to {name}", 2)
            return found

        return table

    def key(self, subscript: list):
        """Return a function that gives a subscript as a string."""
        awk, made = self.awk, [self.expression(part) for part in subscript]
        if len(made) == 1:
            only = made[0]
            return lambda: str(awk.text(only()))
        return lambda: text_of(awk.vars["SUBSEP"], "").join(awk.text(part()) for part in made)

    def place(self, node):
        """Return functions that get and set the target of an assignment."""
        if node[0] == "var":
            return self.variable(node[1])
        if node[0] == "field":
            awk, index = self.awk, self.number(node[1])
            return lambda: awk.field(whole(index())), lambda value: awk.set_field(whole(index()), value)
        table, key = self.array(node[1]), self.key(node[2])
        return lambda: table().setdefault(key(), UNSET), lambda value: table().__setitem__(key(), value)

    # -- expressions

    def expression(self, node):
        return getattr(self, "get_" + node[0])(*node[1:])

    def number(self, node):
        made = self.expression(node)
        return lambda: number(made())

    def text(self, node):
        awk, made = self.awk, self.expression(node)
        return lambda: text_of(made(), awk.vars["CONVFMT"])

    def get_num(self, value):
        return lambda: value

    get_str = get_num

    def get_regex(self, pattern):
        awk, regex = self.awk, compiled(pattern)
        return lambda: float(regex.test(awk.field(0), awk.p.tick))

    def get_var(self, name):
        return self.variable(name)[0]

    def get_field(self, node):
        return self.place(("field", node))[0]

    def get_index(self, name, subscript):
        return self.place(("index", name, subscript))[0]

    get_paren = expression

    def get_group(self, nodes):
        raise Fail("line 1: syntax error at or near ,", 2)

    def get_in(self, subscript, name):
        table, key = self.array(name), self.key(subscript)
        return lambda: float(key() in table())

    def get_assign(self, op, target, node):
        (get, put), made, tick = self.place(target), self.expression(node), self.awk.p.tick
        if op:
            calculated = self.number(node)
            made = lambda: arithmetic(op, number(get()), calculated())  # noqa: E731

        def run():
            value = made()
            if isinstance(value, dict):
                raise Fail("type error: an array where a value is needed", 2)
            tick()
            put(value)
            return value

        return run

    def get_cond(self, condition, then, otherwise):
        test, yes, no = map(self.expression, (condition, then, otherwise))
        return lambda: yes() if truth(test()) else no()

    def get_or(self, a, b):
        left, right = self.expression(a), self.expression(b)
        return lambda: float(truth(left()) or truth(right()))

    def get_and(self, a, b):
        left, right = self.expression(a), self.expression(b)
        return lambda: float(truth(left()) and truth(right()))

    def get_not(self, node):
        made = self.expression(node)
        return lambda: float(not truth(made()))

    def get_neg(self, node):
        made = self.number(node)
        return lambda: -made()

    get_plus = number

    def get_cat(self, a, b):
        left, right, tick = self.text(a), self.text(b), self.awk.p.tick

        def run() -> str:
            joined = left() + right()
            tick(1 + (len(joined) >> 8))
            if len(joined) > MAX_TEXT:
                raise Timeout
            return joined

        return run

    def get_binary(self, op, a, b):
        left, right = self.number(a), self.number(b)
        if op == "+":
            return lambda: left() + right()
        return lambda: arithmetic(op, left(), right())

    def get_compare(self, op, a, b):
        awk, left, right, holds = self.awk, self.expression(a), self.expression(b), COMPARISONS[op]
        return lambda: float(holds(compare(left(), right(), awk.vars["CONVFMT"]), 0))

    def pattern(self, node):
        """Return a function that gives a node's regular expression: the constant, or the string it evaluates to."""
        if node[0] == "regex":
            regex = compiled(node[1])
            return lambda: regex
        made = self.text(node)
        return lambda: compiled(made())

    def get_match(self, negated, a, b):
        subject, pattern, tick = self.text(a), self.pattern(b), self.awk.p.tick
        return lambda: float(pattern().test(subject(), tick) != negated)

    def get_step(self, before, amount, target):
        (get, put), tick = self.place(target), self.awk.p.tick

        def run() -> float:
            tick()
            old = number(get())
            put(old + amount)
            return old + amount if before else old

        return run
