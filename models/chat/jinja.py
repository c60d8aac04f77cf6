"""A restricted Jinja environment for chat templates, with Hugging Face's semantics. Chat templates are untrusted.

jinja2's immutable sandbox denies a template access to files and to Python. The limits here stop one that would run
forever or fill the memory: the size of each result, the sizes of all together, and the time of all steps (calls,
filters, operations, loop iterations). Padding, formatting and powers are refused. jinja2 (3.1.6 or newer) comes with
torch and is imported only here, inside functions, so that everything else works without it.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache, wraps
from typing import Any

from models.refusal import Refusal

SIZE = 2_000_000  # most characters of a text, or of all texts in a list, where each element adds ELEMENT
ELEMENT = 20
TOTAL = 25_000_000  # most characters of all results of one rendering, where each step adds ELEMENT
SECONDS = 1.5  # most processor time of compiling and of all renderings until `renew`
SOURCE = 100_000  # most characters of a template
TODAY = datetime(2024, 7, 26)  # the date that strftime_now formats: a prompt must not depend on the day

METHODS = {  # allowed methods of texts, lists and dicts; the other methods of texts pad, format or encode
    *("capitalize", "count", "endswith", "find", "get", "index", "isalnum", "isalpha", "isdecimal", "isdigit"),
    *("islower", "isnumeric", "isspace", "isupper", "items", "join", "keys", "lower", "lstrip", "partition"),
    *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split"),
    *("splitlines", "startswith", "strip", "title", "upper", "values"),
}
FILTERS = {
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items", "join", "last"),
    *("length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "safe", "select"),
    *("selectattr", "sort", "string", "sum", "title", "tojson", "trim", "unique", "upper"),
}


def compiled(source: str) -> "Compiled":
    """Return a chat template as a function of its variables.

    This function and the returned one raise ValueError, with a message of one line, for a template's own refusals
    (raise_exception), its errors, and exceeded limits.
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise Refusal("this checkpoint's chat template needs the package jinja2: pip install jinja2") from None
    if len(source) > SOURCE:
        raise Refusal(f"the chat template has {len(source):,} characters, more than {SOURCE:,}")
    return Compiled(source)


class Compiled:
    """A compiled chat template. Compiling and all calls share one deadline, until `renew` sets another."""

    def __init__(self, source: str):
        self.renew()
        with self._limits():
            self._template = _environment().from_string(source)

    def renew(self) -> None:
        self._deadline = time.thread_time() + SECONDS

    def __call__(self, **variables: object) -> str:
        with self._limits() as budget:
            return budget.step("".join(self._template.generate(**{"tools": None, "documents": None, **variables})))

    @contextmanager
    def _limits(self) -> Iterator["Budget"]:
        """Context with a new Budget, in which every exception becomes a ValueError of one line."""
        try:
            budget = _environment().budget = Budget(self._deadline)
            yield budget
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise Refusal(f"the chat template stops: {reason or type(error).__name__}") from None


class Budget:
    """The limits left to one rendering."""

    def __init__(self, deadline: float):
        self.left, self.deadline = TOTAL, deadline  # in this thread's processor time

    def step(self, value: Any = None, size: int = 0) -> Any:
        """Count a step and return its result `value`. `size` is the size of a result that is about to be made, or of
        the text that a loop's body writes. Raise ValueError once a limit is exceeded."""
        size = max(size, _size(value))
        self.left -= size + ELEMENT
        if size > SIZE:
            raise Refusal(f"a text or list of more than {SIZE:,} characters")
        if self.left < 0 or time.thread_time() > self.deadline:
            raise Refusal(f"too many steps or too much text in one rendering, or more than {SECONDS:g} seconds in all")
        return value


def _size(value: object) -> int:
    """Return the number of characters in a value and everything inside it, exact up to SIZE."""
    total, waiting = 0, [value]
    while waiting and total <= SIZE:
        value = waiting.pop()
        if isinstance(value, (str, bytes)):
            total += len(value)
        elif isinstance(value, int):
            total += SIZE + 1 if value.bit_length() > 4096 else 0
        elif isinstance(value, (list, tuple, dict)):
            total += ELEMENT * len(value)
            if total <= SIZE:
                waiting += [*value, *value.values()] if isinstance(value, dict) else value
    return total


def _growth(value: object, name: str, args: tuple, named: dict) -> int:
    """Return an upper bound on the size of the result of replace or join; 0 for other methods and filters.

    value: the text, the list or the separator that the method or filter is applied to.
    """
    if name == "replace":
        old, new = map(str, args[:2]) if len(args) > 1 else ("", str([*args, *named.values()]))
        return len(str(value)) + str(value).count(old) * len(new)
    if name == "join":
        separators = [value, *named.values()] if isinstance(value, str) else [*args, *named.values()]
        return SIZE + 1 if any(isinstance(text, str) and len(text) > 100 for text in separators) else 0
    return 0


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """Return a value as JSON, with Hugging Face's defaults for the filter tojson."""
    if len(str(indent)) + len(str(separators)) > 30 or (isinstance(indent, int) and indent > 16):
        raise Refusal("tojson with such an indent or separators is not supported here")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _range(*args):
    """Return a range of no more numbers than a list may have."""
    if len(range(*args)) > SIZE // ELEMENT:
        raise Refusal(f"a range of more than {SIZE // ELEMENT:,}")
    return range(*args)


def _raise_exception(message):
    """Raise ValueError: a template calls this to refuse a conversation."""
    raise Refusal(message)


def _generation_block() -> type:
    """Return the extension for `{% generation %}` around the assistant's messages, which leaves the text unchanged."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    return Generation


def _size_checks() -> type:
    """Return the class that adds size checks to a template's syntax tree, where no call would trigger one.

    It wraps expressions that make texts and lists in the filter `bounded`, and the items of loops in `counted`.
    """
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def around(node, name="bounded", *args):
        args = [nodes.Const(value) for value in args]
        return nodes.Filter(node, name, args, [], None, None, lineno=getattr(node, "lineno", 1))

    class SizeChecks(NodeTransformer):
        def visit_For(self, node):
            fixed = [part.data for part in node.find_all(nodes.TemplateData)]
            fixed += [str(part.value) for part in node.find_all(nodes.Const)]
            loop: Any = self.generic_visit(node)
            loop.iter = around(loop.iter, "counted", sum(map(len, fixed)))
            return loop

        def visit_Concat(self, node):
            return around(self.generic_visit(node))

        visit_List = visit_Dict = visit_Concat

        def visit_Tuple(self, node):
            visited: Any = self.generic_visit(node)
            return around(visited) if visited.ctx == "load" else visited

    return SizeChecks


def _limited_sandbox() -> type:
    """Return jinja2's sandbox with the methods and operators restricted, and every operation counted by `budget`."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    size_checks = _size_checks()

    class LimitedSandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"+", "*", "**", "%"})
        budget: Budget

        def _parse(self, source, name, filename):
            tree = size_checks().visit(super()._parse(source, name, filename))
            tree.set_environment(self)
            return tree

        def wrap_str_format(self, value):
            return None  # is_safe_attribute then refuses str.format, as it refuses padding

        def is_safe_attribute(self, obj, attr, value):
            plain = isinstance(obj, (str, bytes, int, float, list, tuple, dict, range)) and callable(value)
            return super().is_safe_attribute(obj, attr, value) and (not plain or attr in METHODS)

        def call(self, context, function, *args, **kwargs):
            text, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
            self.budget.step(size=_growth(text, name, args, kwargs))
            return self.budget.step(super().call(context, function, *args, **kwargs))

        def call_test(self, *args, **kwargs):
            return self.budget.step(super().call_test(*args, **kwargs))

        def call_binop(self, context, operator, left, right):
            if operator == "**" or (operator == "%" and isinstance(left, (str, bytes))):
                raise Refusal(f"the operator {operator} is not supported here")
            if operator == "*":
                for one, other in ((left, right), (right, left)):
                    self.budget.step(size=_size(one) * (other if isinstance(other, int) else 1))
            return self.budget.step(super().call_binop(context, operator, left, right))

        def counted_filter(self, name, function):
            @wraps(function)  # keeps jinja2's mark of filters that take the context as first argument
            def call(*args, **kwargs):
                if name not in FILTERS:
                    raise Refusal(f"the filter {name} is not supported here")
                passed = args[hasattr(function, "jinja_pass_arg") :]
                self.budget.step(size=_growth(passed[0], name, passed[1:], kwargs))
                return self.budget.step(function(*args, **kwargs))

            return call

    return LimitedSandbox


def _namespace() -> type:
    """Return the templates' class `namespace`, which takes no names that begin with an underscore."""
    from jinja2.utils import Namespace

    class SafeNamespace(Namespace):
        def __setitem__(self, name, value):
            if name.startswith("_"):
                raise Refusal(f"a namespace may not hold {name!r}")
            super().__setitem__(name, value)

        def __repr__(self):
            return "namespace"  # that of namespaces within namespaces could be long without measure

    return SafeNamespace


@cache
def _environment():
    """Return jinja2's restricted environment with Hugging Face's additions and the limits."""
    import jinja2

    if tuple(map(int, re.findall(r"\d+", jinja2.__version__)[:3])) < (3, 1, 6):
        raise Refusal(f"jinja2 {jinja2.__version__} lets templates escape; install 3.1.6 or newer")
    extensions = [_generation_block(), "jinja2.ext.loopcontrols"]
    environment = _limited_sandbox()(trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=extensions)
    environment.finalize = lambda value: environment.budget.step(value)
    filters = {**environment.filters, "tojson": _tojson}
    environment.filters = {name: environment.counted_filter(name, function) for name, function in filters.items()}
    environment.filters["bounded"] = lambda value: environment.budget.step(value)
    environment.filters["counted"] = lambda items, size: (environment.budget.step(item, size) for item in items)
    environment.globals = {
        "range": _range,
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),
        "namespace": _namespace(),
        "raise_exception": _raise_exception,
        "strftime_now": TODAY.strftime,
    }
    return environment
