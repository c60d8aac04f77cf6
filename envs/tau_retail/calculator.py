"""Evaluate the arithmetic of the tool `calculate`."""

import ast
import operator

MAX_EXPRESSION = 200  # most characters of an expression
MAX_BITS = 4096  # most bits of a power of whole numbers
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}


def evaluate(expression: str) -> str:
    """Return the value of an expression, rounded to two digits, or a line that begins with `Error: `.

    Raise the error of Python's parser or arithmetic for an expression that has no value.
    """
    if not all(character in "0123456789+-*/(). " for character in expression[: MAX_EXPRESSION + 1]):
        return "Error: invalid characters in expression"
    if len(expression) > MAX_EXPRESSION:
        return "Error: expression too long"
    return str(round(float(_value(ast.parse(expression.lstrip(" "), "<string>", "eval").body)), 2))


def _value(node: ast.expr):
    """Return the value of an expression. Raise ArithmeticError, TypeError or ValueError."""
    if isinstance(node, ast.UnaryOp):
        return OPERATORS[type(node.op)](_value(node.operand))
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        whole = isinstance(left, int) and isinstance(right, int)
        if isinstance(node.op, ast.Pow) and whole and abs(right) * max(left.bit_length(), 1) > MAX_BITS:
            raise OverflowError("int too large to convert to float")
        return OPERATORS[type(node.op)](left, right)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    raise TypeError("the expression is no number")
