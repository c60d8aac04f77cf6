"""The grammar of numbers in envs/answers.py: one table, for replies, for answers of files and for graders."""

import json
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envs
from envs import rows
from envs.answers import answer_number, final_number, marked_number, numbers_in
from envs.planner import prediction_in
from envs.tau_retail.customer import says

PLAIN = """
42 | 42
42. | 42
-3.5 | -3.5
+5 | 5
.5 | 0.5
007 | 7
1e3 | 1000
1E3 | 1000
2.5e-1 | 0.25
1e400 | -
1e-400 | -
1,000 | 1000
1,234.50 | 1234.5
-1,234,567 | -1234567
1,00,000 | 100000
12,34,567 | 1234567
1,5 | -
3,14 | -
3,50 | -
0,5 | -
1234,567 | -
1,2345 | -
0,123 | -
12,34 | -
1.234,56 | 1234.56
1.234.567,8 | 1234567.8
1.234.567 | -
1.234 | 1.234
1 000 | 1000
1 000 000 | 1000000
1 234,5 | 1234.5
1\u2009000 | 1000
1\u202f000 | 1000
1\u00a0000\u00a0000 | 1000000
12\u202f34 | -
1'000 | 1000
1\u2019000 | 1000
5'11 | -
1_000 | 1000
1_00 | -
\u221242 | -42
\uff0d7 | -7
\uff14\uff12 | 42
\u0664\u0662 | 42
1\u066c000 | 1000
1\u066b5 | 1.5
1/2 | 0.5
-1/2 | -0.5
1 / 4 | 0.25
1/0 | -
2 1/2 | 2.5
-2 1/4 | -2.25
\u00bd | 0.5
3\u00bd | 3.5
1/3 | 0.333333333333333
1/2/2024 | -
2024-05-06 | -
12:30 | -
3:2 | -
10^6 | 1000000
10^{6} | 1000000
2**10 | 1024
10\u2076 | 1000000
10\u207b\u00b2 | 0.01
2^-1 | 0.5
0^-1 | -
9^999999 | -
10^400 | -
-2^2 | -4
2^x | -
x^2 | -
2^{1/2} | -
1.5 x 10^3 | 1500
1.5\u00d710^3 | 1500
3 * 10^4 | 30000
1.5 \u00b7 10^-2 | 0.015
50% | 50
12.5 % | 12.5
$18.00 | 18
$1,234.50 | 1234.5
-$5 | -5
$-5 | -5
US$ 5 | 5
\u20ac7 | 7
7 \u20ac | 7
\u20b91,00,000 | 100000
Rs. 500 | 500
18 dollars | 18
42 kg | 42
42kg | 42
5 cm^2 | 5
5 m\u00b2 | 5
60 km/h | 60
5/day | 5
90\u00b0 | 90
5th | 5
3E | 3
1.5k | 1500
5K | -
$5K | 5000
5M | -
$5M | 5000000
$1.5 million | 1500000
2 billion | 2000000000
3 hundred | 300
5x | -
5 \u03c0 | -
\u221a2 | -
5! | 5
H2O | -
v2.0.1 | -
10.0.0.1 | -
3-5 | -
3 - 5 | -
3\u20135 | -
10\u201412 | -
3 to 5 | -
3..5 | -
3 or 4 | -
x=2 or x=-3 | -
(3, 4) | -
(3,4) | -
[8.124, 12.852] | -
[8.124,12.852] | -
{1, 2, 3} | -
{1,2,3} | -
{100,200,300} | -
(1,000, 2) | -
3 + 4 | -
3+4 | -
3 * 4 | -
3 \u00d7 4 | -
x + 5 | -
x-5 | -
x > 5 | -
5 < x | -
\u00b15 | -
0.333... | -
x = 5 | 5
x=-5 | -5
x = - 5 | -5
a: 7 | 7
**42** | 42
*7* | 7
<answer>42</answer> | 42
seven | -
nan | -
inf | -
\u00b2 | -
. | -
- | -
"""
LATEX = r"""
1{,}000 | 1000
10{,}500 | 10500
1{,}5 | 1.5
1{,}000{,}000 | 1000000
10\,000 | 10000
10\,000\,000 | 10000000
10\ 000 | 10000
10~000 | 10000
10,\!000 | 10000
1\,00 | -
\frac{1}{2} | 0.5
\frac{-1}{2} | -0.5
\frac{-3}{2} | -1.5
\dfrac{-1}{-2} | 0.5
\tfrac{3}{4} | 0.75
\cfrac{3}{4} | 0.75
-\frac{1}{2} | -0.5
-\frac{-1}{2} | 0.5
\frac{1}{-4} | -0.25
\frac12 | 0.5
\frac 1 2 | 0.5
\frac{1}{0} | -
\frac{1,000}{8} | 125
\frac{1{,}000}{8} | 125
\frac{x}{2} | -
\frac{\pi}{2} | -
\frac{\frac{1}{2}}{3} | -
3\frac{1}{2} | 3.5
3 \frac{1}{2} | 3.5
-3\frac{1}{2} | -3.5
2\cdot\frac{1}{2} | -
10^6 | 1000000
10^{-3} | 0.001
2^{10} | 1024
1.5 \times 10^3 | 1500
1.5 \times 10^{-3} | 0.0015
1.5 \cdot 10^{3} | 1500
3 \times 4 | -
3\sqrt{2} | -
\sqrt{16} | -
\pi | -
2\pi | -
\pi/2 | -
5\pi/2 | -
\$42 | 42
42\% | 42
\text{42} | 42
\mathrm{42} | 42
42\text{ kg} | 42
42 \text{ cm}^2 | 42
90^\circ | 90
90^{\circ} | 90
x = 42 | 42
x=\frac{1}{2} | 0.5
x_1 = 5 | 5
\left(3, 4\right) | -
(3, 4) | -
(7, 4) | -
\{1, 2\} | -
[1, 2) | -
3,4 | -
1,000 | 1000
3-5 | -
2 \text{ or } 3 | -
\pm 5 | -
x \geq 5 | -
+5 | 5
004 | 4
"""
TEXTS = r"""
so 41 #### 42 is for 3 days | 42
####$1,234.50 | 1234.5
#### 1,000. | 1000
#### -3 | -3
#### - 3 | -3
#### \$5 | 5
#### 1 000 | 1000
#### 1 #### 2 | 2
#### 42 9 | -
#### 3-5 | -
#### 3 or 4 | -
#### 5, 6 | -
#### 2 hours and 30 minutes | -
#### 2. Add them: it is 8 | 8
#### 1e999 | -
#### Step 2: the answer is 8 | 8
\boxed{7} of 9 | 7
\boxed{} has 5 | 5
\boxed{5} and \boxed{x} | -
\boxed{42 | -
\boxed{\boxed{4}} | 4
\boxed{- 5} | -5
\fbox{4} | 4
\boxed{5} or rather \boxed{6} | 6
It is one of 2,3 | 3
The roots are 2,3 | 3
The roots are 2, 3 | 3
The roots are 2 and 3 | 3
Step 1,2: done. Answer 7 | 7
The answer is 1,2 | -
x is 1,5 m | -
between 3-5 | -
page 10-12 | -
5 - 3 = 2 | 2
The total - 5 | 5
The answer is 7- | 7
0.1+0.2=0.30000000000000004 | 0.3
COVID-19 took 3 | 3
3 of the GPT-4 | 3
It takes 2 1/2 hours. | 2.5
The answer is 42! | 42
The answer is 42... | 42
f(2) | -
5 km2 | 5
in the end, 1,234 | 1234
"""


def cases(table: str, form: str = "{}") -> list[tuple[str, float | None]]:
    """Return (text, number or None) of each line of a table; \\u codes stand for characters."""
    found = []
    for line in table.strip().splitlines():
        text, _, number = line.rpartition(" | ")
        found.append((form.format(text), None if number == "-" else float(number)))
    return found


BOXED = cases(LATEX, "so $\\boxed{{{}}}$, not 3")
ALL = [*cases(PLAIN), *cases(LATEX), *BOXED, *cases(TEXTS)]


def test_the_table_is_large():
    assert len(cases(PLAIN)) + len(cases(LATEX)) + len(cases(TEXTS)) >= 200


@pytest.mark.parametrize(("text", "number"), ALL, ids=range(len(ALL)))
def test_the_number_of_a_reply(text, number):
    assert final_number(text) == number


WHOLE = [*cases(PLAIN), *cases(LATEX)]


@pytest.mark.parametrize(("text", "number"), WHOLE, ids=range(len(WHOLE)))
def test_the_number_of_an_answer(text, number):
    assert answer_number(text) == number


@pytest.mark.parametrize("text", ["2 and 3", "2,3", "5 + 3 = 8", "2 hours and 30 minutes", "roots are 2, 3", ""])
def test_an_answer_with_several_numbers_has_none(text):
    assert answer_number(text) is None and answer_number(f"{text}\n#### 8") == 8


@pytest.mark.all_only
@given(st.text(alphabet="0123456789.,/-+^ex{}()\\#$% frac\u2009½²√|ox\u00d7", max_size=40))
def test_no_text_raises(text):
    for place in ("{}", "\\boxed{{{}}}", "#### {}", "3 {}"):
        for read in (final_number, answer_number, marked_number, numbers_in, prediction_in):
            read(place.format(text))


@pytest.mark.all_only
@given(st.integers(-(10**40), 10**40), st.integers(-2, 2))
def test_whole_numbers_are_compared_exactly(number, other):
    assert (final_number(f"{number:,}") == final_number(f"\\boxed{{{number + other}}}")) == (other == 0)


@pytest.mark.all_only
@given(st.integers(-99, 99), st.integers(1, 99), st.sampled_from(["\\frac{{{}}}{{{}}}", "{}/{}", "\\boxed{{{}/{}}}"]))
def test_fractions_have_their_value(top, bottom, form):
    assert final_number(form.format(top, bottom)) == pytest.approx(float(Fraction(top, bottom)), rel=1e-14)


PIECES = [
    "9",
    "9,",
    "1 000 ",
    "3\\frac{,}{2}",
    "1/",
    "½",
    "1 1/",
    "#### 1 ",
    "\\boxed{",
    "\\boxed{1}",
    "{,}",
    "1^",
    "- ",
    "1e9",
]


@pytest.mark.parametrize("piece", PIECES)
def test_long_texts_take_linear_time(piece):
    """Ten times the text takes about ten times as long, and some seconds at most."""
    spent = []
    for count in (4_000, 40_000):
        began = time.process_time()
        for read in (final_number, answer_number, numbers_in):
            read(piece * count)
        spent.append(time.process_time() - began)
    assert spent[1] < max(0.3, 30 * spent[0]) and spent[1] < 6


@pytest.mark.parametrize("digits", [310, 5_000])
def test_thousands_of_digits_are_a_wrong_answer(digits, tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "1?", "answer": "1"}) + "\n")
    env = envs.make("qa", data=str(tmp_path / "rows.jsonl"), match="number", splits="own")
    env.reset(0)
    assert env.step("The total is " + "9" * digits + r"\frac{1}{2}").reward == 0


def test_a_planners_worker_is_read_by_the_same_grammar():
    read = {'{"final_answer": "1{,}000"}': 1000, "It is (3, 4)": None, "10^3 pens": 1000, '{"final_answer": "$5"}': 5}
    assert {text: prediction_in(text) for text in read} == read


@pytest.mark.parametrize(
    ("text", "output", "told"),
    [
        ("It costs $1,234.50.", "1234.50", True),
        ("It is 54.0 dollars", "54", True),
        ("It is 154", "54", False),
        ("It is 54.04", "54.0", False),
        ("Number 12345", "234", False),
        ("Between 5-7", "7", True),
        ("The Grey one", "grey", True),
        ("greyish", "grey", False),
    ],
)
def test_part_of_a_number_is_no_output(text, output, told):
    assert says(text, output) is told


def test_rows_without_a_number_are_left_out(tmp_path, capsys):
    given = [{"question": f"{i}?", "answer": str(i)} for i in range(20)]
    given += [{"question": "p?", "answer": answer} for answer in ("(1, 2)", r"3\sqrt{2}", "x=2 or x=-3")]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in given))
    env = envs.make("qa", data=str(path), match="number", splits="own")
    assert env.count("train") == 20
    assert f"data: 3 of 23 rows of {path} left out: no number in its answer" in capsys.readouterr().err
    path.write_text("".join(json.dumps(row) + "\n" for row in given[18:]))
    with pytest.raises(ValueError, match=r"3 of 5 rows of .* a file of which more than half is left out is refused"):
        envs.make("qa", data=str(path), match="number", splits="own")
    assert rows.LeftOut.__mro__[1] is Exception  # no ValueError, which refuses the file


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("5 + 5 => 10", 10), ("5 + 5 -> 10", 10), ("Answer:\n> 10", 10), ("<answer> 10 </answer>", 10)),
        *(("42 </s>", 42), ("42 <|im_end|>", 42), ("42 <br>", 42), ("x > 5", None), ("5 < x", None), ("3 <= 4", None)),
    ],
)
def test_arrows_tags_and_quotes_are_no_relations(text, number):
    assert final_number(text) == number
