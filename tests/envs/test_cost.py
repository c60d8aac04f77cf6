"""Processor time and memory of one step: a small fuzzer looks for expensive actions in every environment.

`python tests/envs/test_cost.py N SEED` draws N actions per simulator and prints those of more than a second.
"""

import random
import resource
import sys
import time
from contextlib import suppress

import pytest

import envs
from envs.simulators.mysql import Database, MySQLError
from envs.simulators.shell import Shell, base_machine

SECONDS = 6.0  # of processor time, of one step on a slow core
MEBIBYTES = 512  # that one step may add to the largest memory of the process

BOMBS = [
    ":(){ :|:& };:",
    "f(){ f & f & wait; }; f",
    "f(){ f | f & f; }; f",
    "while :; do sleep 100 & done",
    "while :; do (while :; do sleep 0.001; done) & done",
    'for i in $(seq 1 3000); do eval "v$i=1"; done; while :; do (:); done',
    *(
        f"shopt -s extglob; a=$(head -c 3000 /dev/zero | tr '\\0' x); while :; do {use}; done"
        for use in (
            "[[ $a == +(x|+(x))y ]]",
            "[[ $a == +(x|x|x|x|x|x|x|x)y ]]",
            "[[ $a == !(x)*y ]]",
            "b=${a##+(x|+(x))y}",
            "b=${a%%+(x)*y*}",
            "b=${a//*(x|*)y/}",
        )
    ),
    "head -c 900000 /dev/urandom > /tmp/f; while :; do tar czf /tmp/t.tgz /tmp/f; done",
    "set -- $(seq 1 20000); while :; do (:); done",
    "a=($(seq 1 20000)); while :; do x=$(:); done",
    "for i in $(seq 1 150); do (while :; do :; done) & done; wait",
]
LOOPS = [
    "while :; do {}; done",
    "for i in $(seq 1 5000); do {}; done",
    "f(){{ {}; f; }}; f",
    "f(){{ {}; f | f; }}; f",
    "f(){{ {}; f & f; }}; f",
    "({} ) & wait",
    'x=$({}); echo "$x"',
    "{} | {}",
    "eval \"$(printf '{};%.0s' 1 2 3)\"",
    "trap '{}' EXIT; exit",
    "until false; do {} & done",
]
PARTS = [
    ":",
    "(:)",
    "x=$x$x$x",
    "x=x$x; y=$y$x",
    "a+=(1 2 3)",
    "x=${x//a/aa}",
    "echo {1..200}{1..200}",
    "cat /etc/passwd",
    "seq 1 10000",
    "seq 1 10000 | sort -rn",
    "grep -r root /etc",
    "find / -name '*'",
    "ls -laR /",
    "yes | head -5000",
    "sed -e ':a;s/a/aa/;ta' /etc/passwd",
    "awk 'BEGIN{while(1)x=x \"a\"}'",
    "awk '{for(i=0;i<999;i++)s=s $0}END{print s}' /etc/passwd",
    "tar cf /tmp/x.tar /etc",
    "cp -r /etc /tmp/$RANDOM",
    "printf '%9999s' x",
    "printf '%s' {1..5000}",
    "echo $((2**62%7))",
    "[[ aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa =~ (a*)*b ]]",
    "expr aaaaaaaaaaaaaaaaaaaaaaaaaa : '\\(a*\\)*b'",
    "sleep 0.001",
    "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa | grep -E '(a|a)*b'",
    "dd if=/dev/zero of=/tmp/z bs=1M count=7",
    "wc -c /tmp/*",
    "diff <(seq 1 3000) <(seq 3000 -1 1)",
    "sort -u /etc/* 2>/dev/null",
    "xargs -n1 echo < /etc/passwd",
    "mkdir -p /tmp/a/b/c/d",
    'eval "v$RANDOM=1"',
    "declare -A m; m[$RANDOM]=1",
    "case $x in *a*a*a*a*b) ;; esac",
    "shopt -s extglob; case aaaaaaaaaaaaaaaaaaa in *(*(a))b) ;; esac",
    "for f in /*/*/*; do :; done",
    "touch /tmp/{1..500}",
    "ln -s / /tmp/l$RANDOM",
    "gzip -kf /tmp/* 2>/dev/null",
    "cat /dev/zero | head -c 900000 | tr x y",
]
SQL_PARTS = [
    "SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f",
    "SELECT REPEAT('ab', 4000)",
    "SELECT REPLACE(REPEAT('a', 3999), 'a', 'aa')",
    "WITH RECURSIVE r AS (SELECT 1 n UNION ALL SELECT n + 1 FROM r) SELECT COUNT(*) FROM r",
    "WITH RECURSIVE r AS (SELECT 'a' n UNION ALL SELECT CONCAT(n, n) FROM r) SELECT MAX(LENGTH(n)) FROM r",
    "SELECT REPEAT('a', 200) REGEXP '(a*)*b'",
    "SELECT REPEAT('a', 3000) LIKE '%a%a%a%a%a%a%a%a%b'",
    "INSERT INTO t SELECT * FROM t",
    "SELECT GROUP_CONCAT(a.name) FROM t a, t b, t c",
    "SELECT JSON_ARRAY(REPEAT('[', 3000))",
    "SELECT CAST(REPEAT('[', 3000) AS JSON)",
    "SELECT SUM(x.id) OVER (ORDER BY x.id) FROM t x, t y, t z",
    "UPDATE t SET name = REPEAT(name, 500)",
    "SELECT POW(9, 999999)",
    "SELECT 9" + "9" * 3000,
    "SELECT DISTINCT a.id * b.id + c.id FROM t a, t b, t c ORDER BY 1",
    "SELECT (SELECT COUNT(*) FROM t b, t c, t d WHERE b.id > a.id) FROM t a",
    "CREATE TABLE u AS SELECT * FROM t",
    "SELECT " + "(" * 300 + "1" + ")" * 300,
    "SELECT 1" + " + 1" * 3000,
    "CREATE VIEW v AS SELECT * FROM t a, t b",
    "SELECT INSTR(REPEAT('a', 4000), REPEAT('a', 2000)) FROM t a, t b, t c, t d",
    "SELECT LPAD('x', 999999999, 'y')",
    "SELECT DATE_FORMAT('2024-05-06', REPEAT('%M', 1999))",
]


def shell_action(rng: random.Random) -> str:
    """Draw a script: loops, recursion and forks around commands that grow something."""
    loop = rng.choice(LOOPS)
    if rng.random() < 0.4:
        loop = loop.replace("{}", rng.choice(LOOPS).replace("{}", "{0}").replace("{{", "{{{{").replace("}}", "}}}}"), 1)
    try:
        return loop.format(*["; ".join(rng.choices(PARTS, k=rng.randint(1, 3)))] * 4)
    except (IndexError, KeyError, ValueError):  # braces of a nested loop that do not fit
        return "; ".join(rng.choices(PARTS, k=4))


def sql_action(rng: random.Random) -> str:
    """Draw some statements, separated by semicolons."""
    return "; ".join(rng.choices(SQL_PARTS, k=rng.randint(1, 4)))


def cost_of_script(script: str) -> float:
    machine, began = base_machine(), time.process_time()
    Shell(machine).run(script)
    return time.process_time() - began


def cost_of_sql(sql: str) -> float:
    database = Database().load("t", [("id", "INT"), ("name", "TEXT")], [(i, f"name {i}") for i in range(40)])
    began = time.process_time()
    with suppress(MySQLError):
        database.run(sql)
    return time.process_time() - began


def memory() -> float:
    """Return the largest memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("script", BOMBS)
def test_a_fork_bomb_ends_within_seconds(script):
    before = memory()
    assert cost_of_script(script) < SECONDS and memory() - before < MEBIBYTES


def test_bash_says_that_it_cannot_fork():
    result = Shell(base_machine()).run("for i in $(seq 1 300); do sleep 100 & done; echo never")
    assert (result.output, result.status) == ("bash: line 1: fork: Resource temporarily unavailable\n", 254)


def test_a_shell_works_after_a_fork_bomb():
    machine = base_machine()
    Shell(machine).run(":(){ :|:& };:")
    result = Shell(machine).run("(echo a; sleep 1) & wait; echo b | cat")
    assert (result.output, result.status) == ("a\nb\n", 0)


def test_jobs_that_wait_for_each_other_take_turns():
    """Two jobs that wake at the same time: the one that waits for the other lets it go on."""
    machine = base_machine()
    result = Shell(machine).run("f(){ { sleep 1; echo a; } & }; (f | cat; sleep 1) & (f | cat) & wait; echo b")
    assert sorted(result.output.split()) == ["a", "a", "b"] and machine.turns < 200


@pytest.mark.all_only
@pytest.mark.parametrize("seed", range(3))
def test_drawn_scripts_are_cheap(seed):
    rng, before = random.Random(f"cost {seed}"), memory()
    for _ in range(4):
        script = shell_action(rng)
        assert cost_of_script(script) < SECONDS, script
    assert memory() - before < MEBIBYTES


@pytest.mark.all_only
@pytest.mark.parametrize("sql", SQL_PARTS, ids=range(len(SQL_PARTS)))
def test_each_statement_is_cheap(sql):
    before = memory()
    assert cost_of_sql(sql) < SECONDS and memory() - before < MEBIBYTES


PIECES = [
    "Action:",
    "Act:",
    "[",
    "]",
    "(",
    ")",
    "{",
    "}",
    "click",
    "search[",
    "9",
    "x1=True ",
    "<INPUT>",
    "```",
    "\n",
    "craft ",
    "go to ",
    '"a":',
    ",",
    "  ",
]


@pytest.mark.all_only
@pytest.mark.parametrize("name", [name for name in envs.NAMES if name not in envs.WITHOUT_TASKS])
@pytest.mark.parametrize("prompt", ["native", "short"])
def test_long_replies_are_cheap(name, prompt):
    """Pieces of the grammars of replies, thousands of times, alone and in pairs."""
    rng, env, before = random.Random(name), envs.make(name, prompt=prompt), memory()
    for _ in range(12):
        env.reset(rng.randrange(100))
        reply = "".join(rng.choices(PIECES, k=rng.randint(1, 2))) * 10_000
        began = time.process_time()
        env.step(reply)
        assert time.process_time() - began < 1, reply[:40]
    assert memory() - before < MEBIBYTES


if __name__ == "__main__":
    count, seed = (int(word) for word in (*sys.argv[1:], *["20", "0"][len(sys.argv) - 1 :]))
    rng = random.Random(seed)
    for _ in range(count):
        for draw, cost in ((shell_action, cost_of_script), (sql_action, cost_of_sql)):
            if (spent := cost(action := draw(rng))) > 1:
                print(f"{spent:.1f} s {memory():.0f} MiB  {action[:300]}", flush=True)
