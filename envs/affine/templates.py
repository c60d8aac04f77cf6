"""The templates of the programs of abd and ded. The file is long because it is one table of tasks.

A template is a task in a sentence, a program that solves it, and a function that draws an input. Random numbers or
letters replace $a and $b in the task and the program. Fresh tasks have wider ranges for them, other letters for the
variables that the task names, another name for a function, another word for `none`, and what stands in <+ +>.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from random import Random
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits

from envs.affine.inputs import (
    arguments,
    brackets,
    counted,
    letters,
    lines,
    matrix,
    mirrored,
    multiples,
    number,
    numbers,
    repeated,
    scored,
    stretch,
    word,
    words,
)
from envs.names import THINGS

LETTERS = "abcdeklmnoprst"


@dataclass(frozen=True)
class Program:
    """A template with its parameters filled in."""

    task: str  # the task in a sentence or two
    source: str  # the program
    given: Callable[[Random], object]  # draws an input: text for stdin, or the arguments of `function`
    function: str = ""  # the function to call; empty: the program reads stdin and prints


@dataclass(frozen=True)
class Template:
    """A program with parameters to draw."""

    level: int
    task: str
    source: str
    given: Callable[[Random], object]
    parameters: dict  # name -> its possible values
    wide: dict  # those of fresh tasks where they differ; "given" -> another `given`
    function: str = ""

    def draw(self, rng: Random, fresh: bool = False) -> Program:
        """Draw the parameters. Return the program with them filled in."""
        wide, name = (self.wide, self.function and rng.choice(THINGS)) if fresh else ({}, self.function)
        task, source = (re.sub(r"<\+(.*?)\+>", r"\1" if fresh else "", text) for text in (self.task, self.source))
        if fresh:
            words = _words(task, source, rng)
            task, source = (WORD.sub(lambda found: words.get(found[0], found[0]), text) for text in (task, source))
            task = task.replace(f"function {self.function} ", f"function {name} ")
            source = source.replace(f"def {self.function}(", f"def {name}(")
        for parameter, choices in {**self.parameters, **wide}.items():
            if parameter != "given":
                value = str(rng.choice(choices) if len(choices) > 1 else choices[0])
                task, source = (text.replace("$" + parameter, value) for text in (task, source))
        return Program(task, source, wide.get("given", self.given), name)


WORD = re.compile(r"(?<!\$)\b[a-z]+\b")


def _words(task: str, source: str, rng: Random) -> dict[str, str]:
    """Draw a word for `none`, and letters for the variables that the task names, none of them another variable's."""
    used = {word for word in WORD.findall(source) if len(word) == 1}
    named = sorted(used & set(WORD.findall(task)) - {"a"})
    free = sorted(set("cdefghijkmnpqrstuvwxyz") - (used - set(named)))
    return dict(zip(named, rng.sample(free, len(named)), strict=True)) | {"none": rng.choice(THINGS)}


TEMPLATES: list[Template] = []


def template(level: int, task: str, source: str, given, wide: dict | None = None, **parameters) -> None:
    """Add a template of a program that reads stdin and prints."""
    TEMPLATES.append(Template(level, task, source.strip(), given, parameters, wide or {}))


def function(level: int, name: str, task: str, source: str, given, wide: dict | None = None, **parameters) -> None:
    """Add a template of a function."""
    task = f"Write a function {name} {task}"
    TEMPLATES.append(Template(level, task, source.strip(), given, parameters, wide or {}, name))


# fmt: off
# Level 1: words joined, and one sum or product.
TEN, PAIRS = range(2, 10), ["".join(pair) for pair in product(LETTERS, repeat=2)]
MANY, ANY = range(10, 10_000), ["".join(pair) for pair in product(ascii_letters + digits, repeat=2)]  # of fresh tasks
TWO = {"a": range(2, 100), "b": range(2, 100)}
LARGE, PAIR, PLUS, THEN = {"a": MANY}, {"a": ANY}, {"c": MANY}, {"c": ANY}
template(1, "Read s. Print s + '$a'.", "s = input()\nprint(s + '$a')", word, PAIR, a=PAIRS)
template(1, "Read s. Print '$a' + s.", "s = input()\nprint('$a' + s)", word, PAIR, a=PAIRS)
template(1, "Read s. Print s, then '$a'.", "s = input()\nprint(s, '$a')", word, PAIR, a=PAIRS)
template(1, "Read s. Print '$a', then s.", "s = input()\nprint('$a', s)", word, PAIR, a=PAIRS)
template(1, "Read s and t, one a line. Print t, then '$a', then s.", "s = input()\nt = input()\nprint(t, '$a', s)",
    lines(word, word), PAIR, a=PAIRS)
template(1, "Read s. Print s in capitals, then s, then '$a'.", "s = input()\nprint(s.upper(), s, '$a')", word, PAIR,
    a=PAIRS)
template(1, "Read s. Print '$a', then s * $b.", "s = input()\nprint('$a', s * $b)", word, PAIR, a=PAIRS, b=range(2, 5))
template(1, "Read x. Print x, then $a.", "x = int(input())\nprint(x, $a)", number(0, 99), a=range(10, 1000))
template(1, "Read x. Print $a, then x.", "x = int(input())\nprint($a, x)", number(0, 99), a=range(10, 1000))
template(1, "Read x. Print x + $a.", "x = int(input())\nprint(x + $a)", number(0, 20), LARGE, a=TEN)
template(1, "Read x. Print x - $a.", "x = int(input())\nprint(x - $a)", number(0, 20), LARGE, a=TEN)
template(1, "Read x. Print x * $a.", "x = int(input())\nprint(x * $a)", number(0, 9), LARGE, a=TEN)

# Level 2: one idea.
template(2, "Read x. Print $a - x.", "x = int(input())\nprint($a - x)", number(0, 20), LARGE, a=range(1, 21))
template(2, "Read x. Print x * $a + $b.", "x = int(input())\nprint(x * $a + $b)", number(0, 9), TWO, a=TEN, b=TEN)
template(2, "Read x. Print x * $a - $b.", "x = int(input())\nprint(x * $a - $b)", number(0, 9), TWO, a=TEN, b=TEN)
template(2, "Read x. Print x // $a.", "x = int(input())\nprint(x // $a)", number(10, 60), {"a": range(2, 41)}, a=TEN)
template(2, "Read x. Print (x + $b) % $a.", "x = int(input())\nprint((x + $b) % $a)", number(0, 40),
    {"a": range(5, 41), "b": range(1, 100)}, a=range(5, 10), b=range(1, 5))
template(2, "Read s. Print s backwards, then '$a'.", "s = input()\nprint(s[::-1], '$a')", word, PAIR, a=LETTERS)
template(2, "Read an integer x. Print x times $a.", """
def solve():
    x = int(input())
    print(x * $a)""", number(-50, 99), LARGE, a=range(2, 30))
template(2, "Read two integers, one a line. Print $a times the first plus the second.", """
x = int(input())
y = int(input())
print($a * x + y)""", lines(number(0, 30), number(0, 30)), LARGE, a=range(1, 10))
template(2, "Read two integers on one line. Print their difference, larger minus smaller, times $a.", """
x, y = map(int, input().split())
print(abs(x - y) * $a)""", numbers(0, 40, 2, 2), LARGE, a=range(1, 10))
template(2, "Read an integer x. Make it $a if it is less, $b if it is more. Print how far it is above $a.", """
x = int(input())
print(max($a, min($b, x)) - $a)""", number(0, 60), a=range(5, 20), b=range(30, 50))
template(2, "Read an integer n. Print the sum of the integers from 1 to n that $a divides.", """
n = int(input())
total = 0
for i in range(1, n + 1):
    if i % $a == 0:
        total += i
print(total)""", number(5, 40), {"a": range(2, 31)}, a=range(2, 8))
template(2, "Read an integer n. Print its factorial modulo $a.", """
n = int(input())
p = 1
for i in range(2, n + 1):
    p = p * i % $a
print(p % $a)""", number(3, 12), {"a": range(101, 1101)}, a=(101, 103, 107, 109, 113, 127, 131, 997, 1009, 10007))
template(2, "Read an integer n. Print the sum of its digits times $a.", """
n = input()
print(sum(int(c) for c in n) * $a)""", number(10, 9999), LARGE, a=range(2, 10))
template(2, "Read an integer n. Print the number n + $a in binary, without a prefix.", """
n = int(input())
print(bin(n + $a)[2:])""", number(0, 60), LARGE, a=range(1, 20))
template(2, "Read integers on one line. Print their sum plus $a.", """
v = list(map(int, input().split()))
print(sum(v) + $a)""", numbers(0, 30), LARGE, a=range(1, 30))
template(2, "Read integers on one line. Print the largest minus the smallest, times $a.", """
v = list(map(int, input().split()))
print((max(v) - min(v)) * $a)""", numbers(0, 30), LARGE, a=range(1, 10))
template(2, "Read integers on one line. Print how many are greater than $a.", """
v = list(map(int, input().split()))
print(sum(x > $a for x in v))""", numbers(0, 30), {"a": range(2000, 8000), "given": numbers(0, 9999)}, a=range(5, 26))
template(2, "Read integers on one line. Print those that $a divides, each divided by $a, on one line, or none.", """
v = list(map(int, input().split()))
w = [x // $a for x in v if x % $a == 0]
print(*w or ['none'])""", numbers(0, 30), {"a": range(2, 16)}, a=range(2, 6))
template(2, "Read integers on one line. Print them sorted, each plus $a, on one line.", """
v = list(map(int, input().split()))
print(*sorted(x + $a for x in v))""", numbers(0, 30), LARGE, a=range(1, 20))
template(2,
    "Read at least $a integers on one line. Print them rotated to the left by $a places<+, then '$c'+>, on one "
    "line.", """
v = list(map(int, input().split()))
print(*v[$a:] + v[:$a]<+, '$c'+>)""", numbers(0, 30, 4, 7), THEN, a=range(1, 4))
template(2, "Read integers on one line. Print the running sums, starting from $a, on one line.", """
v = list(map(int, input().split()))
s = $a
out = []
for x in v:
    s += x
    out.append(s)
print(*out)""", numbers(0, 30), LARGE, a=range(0, 20))
template(2,
    "Read integers on one line. Print those at the places 1, $a + 1, 2 * $a + 1 and so on<+, then '$c'+>, on one "
    "line.", """
v = list(map(int, input().split()))
print(*v[::$a]<+, '$c'+>)""", numbers(0, 30, 4, 8), THEN, a=range(2, 4))
template(2, "Read a line. Print how many of its characters are not $a<+, plus $c+>.", """
s = input()
print(len(s) - s.count('$a')<+ + $c+>)""", words, PLUS, a=LETTERS)
template(2, "Read a line. Print it backwards, with each $a replaced by $b.", """
s = input()
print(s.replace('$a', '$b')[::-1])""", words,
    {"a": ascii_lowercase, "b": ascii_uppercase + digits + "!#%&*+-/:;<=>?@^_~"}, a=LETTERS, b="xyz*#")
template(2, "Read a line. Print its words in reverse order<+, then '$c'+>.", """
print(*input().split()[::-1]<+, '$c'+>)""", words, THEN)
template(2, "Read a line. Print its words with a $a after each, the shorter first, else in their order.", """
w = sorted(input().split(), key=len)
print(''.join(x + '$a' for x in w))""", words, PAIR, a="-+_/:.")
template(2,
    "Read a word of small letters. Print it with each letter moved $a places on in the alphabet, from z on to "
    "a<+, then '$c'+>.", """
s = input()
print(''.join(chr((ord(c) - 97 + $a) % 26 + 97) for c in s)<+, '$c'+>)""", word, THEN, a=range(1, 26))
template(2, "Read two integers, one a line. Print their greatest common divisor plus $a.", """
from math import gcd
x = int(input())
y = int(input())
print(gcd(x, y) + $a)""", multiples, LARGE, a=range(0, 20))

# Level 3: several steps.
template(3, "Read an integer n. Print the primes from $a to n on one line, or none.", """
n = int(input())
out = []
for i in range($a, n + 1):
    if i > 1 and all(i % d for d in range(2, int(i ** 0.5) + 1)):
        out.append(i)
print(*out or ['none'])""", number(20, 60), a=range(2, 20))
template(3,
    "Read an integer n greater than 1. Print the prime factors of n times $a, from small to large, on one "
    "line.", """
n = int(input()) * $a
d = 2
out = []
while n > 1:
    while n % d == 0:
        out.append(d)
        n //= d
    d += 1
print(*out)""", number(2, 90), {"a": range(2, 200)}, a=range(2, 12))
template(3,
    "Read a positive integer n. Count the steps until it is 1: halve it if it is even, else make it $a * n + "
    "1; stop after $c steps. Print the count.", """
n = int(input())
steps = 0
while n != 1 and steps < $c:
    n = n // 2 if n % 2 == 0 else $a * n + 1
    steps += 1
print(steps)""", number(1, 40), {"a": (1, 3, 5, 7), "c": range(20, 100)}, a=(1, 3), c=(50,))
template(3,
    "Read an integer n. The sequence starts with $a and $b, and then each is the sum of the two before it. "
    "Print the first n of it on one line.", """
n = int(input())
x, y = $a, $b
out = []
for _ in range(n):
    out.append(x)
    x, y = y, x + y
print(*out)""", number(1, 9), {"a": range(100), "b": range(1, 100)}, a=range(0, 10), b=range(1, 10))
template(3, "Read an integer n. Print <+$c more than +>it in base $a.", """
def solve():
    n = int(input())<+ + $c+>
    digits = ''
    while n:
        digits = str(n % $a) + digits
        n //= $a
    return digits or '0'""", number(10, 200), PLUS, a=range(3, 10))
template(3, "Read the height and width of a matrix, then its rows. Print its transpose, each number plus $a.", """
h, w = map(int, input().split())
m = [list(map(int, input().split())) for _ in range(h)]
for j in range(w):
    print(*[m[i][j] + $a for i in range(h)])""", matrix(0, 20), LARGE, a=range(1, 10))
template(3,
    "Read the height and width of a matrix, then its rows. Print the sum of each row times $a, one a line.", """
h, w = map(int, input().split())
for _ in range(h):
    print(sum(map(int, input().split())) * $a)""", matrix(0, 20), LARGE, a=range(1, 10))
template(3,
    "Read n and then the n rows of a square matrix. Print the sum of its diagonal plus $a times the sum of "
    "its other diagonal.", """
n = int(input())
m = [list(map(int, input().split())) for _ in range(n)]
print(sum(m[i][i] + $a * m[i][n - 1 - i] for i in range(n)))""", matrix(0, 9, True), LARGE, a=range(0, 10))
template(3,
    "Read n and then the n rows of a square matrix. Print the square of the matrix, each number modulo $a.", """
n = int(input())
m = [list(map(int, input().split())) for _ in range(n)]
for i in range(n):
    print(*[sum(m[i][k] * m[k][j] for k in range(n)) % $a for j in range(n)])""", matrix(0, 9, True),
    {"a": range(5, 300)}, a=range(5, 30))
template(3, "Read a word. Print its runs of equal letters as the letter, $a and the length, on one line.", """
s = input()
out = []
i = 0
while i < len(s):
    j = i
    while j < len(s) and s[j] == s[i]:
        j += 1
    out.append(s[i] + '$a' + str(j - i))
    i = j
print(*out)""", letters, PAIR, a=":=-x*")
template(3, "Read a line of brackets. Print the deepest nesting times $a.", """
depth = deepest = 0
for c in input():
    depth += 1 if c == '(' else -1
    deepest = max(deepest, depth)
print(deepest * $a)""", brackets, LARGE, a=range(1, 10))
template(3,
    "Read how many lines follow, then lines with a name and a score. Print the names with a score of at least "
    "$a, the best first, equal ones by name, one a line, or none.", """
rows = []
for _ in range(int(input())):
    name, score = input().split()
    if int(score) >= $a:
        rows.append((-int(score), name))
for _, name in sorted(rows):
    print(name)
if not rows:
    print('none')""", counted(scored), a=range(5, 26))
template(3,
    "Read how many integers follow, then the integers, one a line. Print how many pairs of them have a sum "
    "that $a divides<+, plus $c+>.", """
v = []
for _ in range(int(input())):
    v.append(int(input()))
pairs = 0
for i in range(len(v)):
    for j in range(i + 1, len(v)):
        pairs += (v[i] + v[j]) % $a == 0
print(pairs<+ + $c+>)""", counted(number(0, 20), 3, 6), PLUS, a=range(2, 7))
template(3,
    "Read a line. Print each word of at least $a letters with its count, in the order of the alphabet, as "
    "word$ccount on one line, or none.", """
count = {}
for w in input().split():
    if len(w) >= $a:
        count[w] = count.get(w, 0) + 1
print(*[w + '$c' + str(count[w]) for w in sorted(count)] or ['none'])""", repeated, {"c": "=:#+-*/~"},
    a=range(2, 5), c="=")
template(3,
    "Read a line of integers, then a line with the places l and r, counted from 1. Print the sum from place l "
    "to place r times $a.", """
v = list(map(int, input().split()))
l, r = map(int, input().split())
print(sum(v[l - 1:r]) * $a)""", stretch, LARGE, a=range(1, 10))
template(3,
    "Read integers on one line. Print the length of the longest stretch of neighbours that each differ by at "
    "most $a.", """
v = list(map(int, input().split()))
best = run = 1
for x, y in zip(v, v[1:]):
    run = run + 1 if abs(x - y) <= $a else 1
    best = max(best, run)
print(best)""", numbers(0, 20, 5, 9), {"a": range(1000, 6000), "given": numbers(0, 9999, 5, 9)}, a=range(2, 9))
template(3, "Read an integer n. Print in how many ways coins of 1, $a and $b add up to n.", """
n = int(input())
ways = [1] + [0] * n
for coin in (1, $a, $b):
    for i in range(coin, n + 1):
        ways[i] += ways[i - coin]
print(ways[n])""", number(5, 40), {"a": range(2, 16), "b": range(16, 40)}, a=range(2, 6), b=range(6, 12))
template(3, "Read integers on one line. Print each once, in the order of their first places, plus $a, on one line.", """
out = []
for x in map(int, input().split()):
    if x + $a not in out:
        out.append(x + $a)
print(*out)""", numbers(0, 9, 5, 9), LARGE, a=range(1, 10))
template(3,
    "Read two words, one a line. Print the length of the longest sequence of letters that is in both, in "
    "order but not always side by side, plus $a.", """
s = input()
t = input()
row = [0] * (len(t) + 1)
for c in s:
    new = [0]
    for j, d in enumerate(t):
        new.append(row[j] + 1 if c == d else max(row[j + 1], new[j]))
    row = new
print(row[-1] + $a)""", lines(word, word), LARGE, a=range(0, 10))

# Functions, for ded only.
function(2, "fuel", "with an integer mass: a third of it, rounded down, minus $a, and never less than 0.", """
def fuel(mass):
    return max(0, mass // 3 - $a)""", arguments(99), {"a": range(1, 30)}, a=range(1, 9))
function(2, "mix", "with integers x and y: x times $a plus y times $b.", """
def mix(x, y):
    return x * $a + y * $b""", arguments(30, 30), TWO, a=range(2, 10), b=range(2, 10))
function(2, "shout", "with a text: the text in capitals and $a exclamation marks.", """
def shout(text):
    return text.upper() + '!' * $a""", lambda rng: [words(rng)], {"a": range(1, 20)}, a=range(1, 6))
function(2, "total", "with a list of integers: the sum of those less than $a.", """
def total(values):
    return sum(x for x in values if x < $a)""", arguments([30]), {"a": range(8, 30)}, a=range(8, 26))
function(3, "mirror",
    "with a text: 'yes' and the number of its letters if it is the same from both ends, else 'no$a'.", """
def mirror(text):
    return 'yes' + str(len(text)) if text == text[::-1] else 'no$a'""", lambda rng: [mirrored(rng)], PAIR, a="xyz-.")
function(3, "power", "with integers x and n: x to the power of n, modulo $a.", """
def power(x, n):
    return pow(x, n, $a)""", arguments(20, 30), a=range(50, 150))
function(3, "nearest", "with a list of integers: the one nearest to $a, and the smaller of two that are as near.", """
def nearest(values):
    return min(values, key=lambda x: (abs(x - $a), x))""", arguments([50]), a=range(10, 40))

# fmt: on
