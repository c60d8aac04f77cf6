"""Compile awk's syntax tree to Python closures: statements and rules (evaluate.py compiles expressions).

Variables live in `awk.vars`; arrays are dicts keyed by strings.
"""

from collections.abc import Callable
from functools import partial

from envs.simulators.shell.commands.awk.evaluate import Expressions
from envs.simulators.shell.commands.awk.parse import Program
from envs.simulators.shell.commands.awk.values import Field, key_order, sprintf, text_of, truth, whole


class Next(Exception):
    """Raised by next and, with an argument, by nextfile."""


class Leave(Exception):
    """Raised by exit."""


class Break(Exception):
    """Raised by break."""


class Continue(Exception):
    """Raised by continue."""


JUMPS = {"break": Break, "continue": Continue, "next": Next, "nextfile": partial(Next, "file")}


class Compiler(Expressions):
    """Compile one program to closures."""

    def __init__(self, awk):
        self.awk = awk

    def program(self, program: Program) -> Program:
        """Return a program with closures in place of its trees."""
        begin, end = ([self.statement(tree) for tree in trees] for trees in (program.begin, program.end))
        return Program(begin, [self.rule(*rule) for rule in program.rules], end)

    # -- rules and statements

    def rule(self, pattern, stop, body):
        awk = self.awk
        act = self.statement(body) if body else lambda: awk.emit(awk.field(0) + text_of(awk.vars["ORS"], "%.6g"))
        if pattern is None:
            return act
        first = self.expression(pattern)
        if stop is None:
            return lambda: act() if truth(first()) else None
        last, inside = self.expression(stop), [False]

        def ranged() -> None:
            if inside[0] or truth(first()):
                inside[0] = not truth(last())
                act()

        return ranged

    def statement(self, node):
        return _raiser(JUMPS[node[0]]) if node[0] in JUMPS else getattr(self, "do_" + node[0])(*node[1:])

    def do_block(self, statements):
        made, tick = [self.statement(statement) for statement in statements], self.awk.p.tick
        if len(made) == 1:
            return made[0]

        def run() -> None:
            tick(len(made))
            for statement in made:
                statement()

        return run

    do_expr = Expressions.expression

    def do_if(self, condition, then, otherwise):
        test, yes = self.expression(condition), self.statement(then)
        no = self.statement(otherwise) if otherwise else lambda: None
        return lambda: yes() if truth(test()) else no()

    def do_for(self, first, condition, after, body):
        nothing = lambda: None  # noqa: E731
        start, follow = (self.statement(node) if node else nothing for node in (first, after))
        test = self.expression(condition) if condition else lambda: 1.0
        act, tick = self.statement(body), self.awk.p.tick

        def run() -> None:
            start()
            while truth(test()):
                tick(2)
                try:
                    act()
                except Continue:
                    pass
                except Break:
                    return
                follow()

        return run

    def do_forin(self, name, array, body):
        _, put = self.variable(name)
        table, act, tick = self.array(array), self.statement(body), self.awk.p.tick

        def run() -> None:
            for key in key_order(table()):
                tick(2)
                put(Field(key))
                try:
                    act()
                except Continue:
                    pass
                except Break:
                    return

        return run

    def do_exit(self, value):
        made = self.expression(value) if value else None

        def run() -> None:
            if made:
                self.awk.status = whole(made()) & 255
            raise Leave

        return run

    def do_delete(self, name, subscript):
        table = self.array(name)
        if subscript is None:
            return lambda: table().clear()
        key = self.key(subscript)
        return lambda: table().pop(key(), None)

    def written(self, arguments, target):
        """Return the compiled arguments of print or printf, and a function that gives their destination."""
        made = [self.expression(argument) for argument in arguments]
        return made, self.text(target) if target else lambda: ""

    def do_print(self, arguments, kind, target):
        awk, (made, where) = self.awk, self.written(arguments, target)

        def run() -> None:
            form = awk.vars["OFMT"]
            shown = [text_of(value(), form) for value in made] if made else [awk.field(0)]
            line = (awk.joined(shown) if len(shown) > 1 else shown[0]) + text_of(awk.vars["ORS"], form)
            awk.print(line, kind, where())

        return run

    def do_printf(self, arguments, kind, target):
        awk, (made, where) = self.awk, self.written(arguments, target)

        def run() -> None:
            form = text_of(made[0](), "%.6g")

            def missing(shown: str) -> None:
                awk.print(shown, kind, where())
                awk.fail(f'not enough arguments passed to printf("{form}")')

            awk.print(sprintf(form, [value() for value in made[1:]], missing), kind, where())

        return run


def _raiser(jump: Callable):
    def run() -> None:
        raise jump()

    return run
