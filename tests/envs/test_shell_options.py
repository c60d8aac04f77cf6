"""Options and words that agents write, with what bash 5.2, coreutils 9.1, findutils 4.9, tar 1.34 and vim answered."""

import pytest

from envs.simulators.shell import Shell, base_machine

FILES = "mkdir -p /w/src/lib /w/.h; cd /w; touch src/a.py src/b.py src/lib/c.py .h/x.py; printf k > src/conf.ini\n"
DATES = {  # on Monday, 6 May 2024, 10:00 UTC
    "2024/05/06": "2024-05-06 00:00:00",
    "2024/5/6 7:08": "2024-05-06 07:08:00",
    "2 days ago 2024-05-06": "2024-05-04 00:00:00",
    "next month 2024-01-15": "2024-02-15 00:00:00",
    "2024-05-07 12": "2024-05-07 12:00:00",
    "2024-05-07 1234": "2024-05-07 12:34:00",
    "3pm": "2024-05-06 15:00:00",
    "tomorrow 3 pm": "2024-05-07 15:00:00",
    "12am": "2024-05-06 00:00:00",
    "6": "2024-05-06 06:00:00",
    "": "2024-05-06 00:00:00",
    "friday": "2024-05-10 00:00:00",
    "friday 10:30": "2024-05-10 10:30:00",
    "last friday": "2024-05-03 00:00:00",
    "next monday": "2024-05-13 00:00:00",
    "last friday 2024-05-07": "2024-05-07 00:00:00",
}
SCRIPTS = {
    "bash -n checks the syntax alone": (
        "echo 'touch made; exit 4' > s.sh; bash -n s.sh && echo ok; ls made 2>&1",
        "ok\nls: cannot access 'made': No such file or directory\n",
    ),
    "bash -n of a broken script": (
        "echo 'if x' > s.sh; bash -n s.sh 2> /dev/null; echo $?",
        "2\n",
    ),
    "set -n ends execution": (
        "echo a\nset -n\necho b\n",
        "a\n",
    ),
    "globstar": (
        "shopt -s globstar; echo **/*.py; echo **/; echo src/**",
        "src/a.py src/b.py src/lib/c.py\nsrc/ src/lib/\nsrc/ src/a.py src/b.py src/conf.ini src/lib src/lib/c.py\n",
    ),
    "without globstar": (
        "echo **/*.py",
        "src/a.py src/b.py\n",
    ),
    "du --exclude": (
        "du -s src; du -s --exclude='*.ini' src",
        "12\tsrc\n8\tsrc\n",
    ),
    "du -S": (
        "du -S src",
        "4\tsrc/lib\n8\tsrc\n",
    ),
    "tar -X reads patterns from a file": (
        "echo '*.py' > skip; tar cf a.tar -X skip src; tar tf a.tar",
        "src/\nsrc/conf.ini\nsrc/lib/\n",
    ),
    "ls -L of a dangling link": (
        "ln -s nope l; ls -L l 2>&1; echo $?",
        "ls: cannot access 'l': No such file or directory\n2\n",
    ),
    "ls --sort=extension": (
        "cd src; touch none; ls --sort=extension",
        "lib\nnone\nconf.ini\na.py\nb.py\n",
    ),
    "xargs -E": (
        "printf 'a b\\nEND c\\nd\\n' | xargs -E END echo",
        "a b\n",
    ),
    "vi moves lines": (
        "seq 3 > f; vi -es -c '1,2m$' -c wq f; paste -sd, f",
        "3,1,2\n",
    ),
    "vi moves lines up": (
        "seq 3 > f; vi -es -c '3m0' -c wq f; paste -sd, f",
        "3,1,2\n",
    ),
    "vi goes on behind a sort that shrinks": (
        "printf 'b\\nb\\na\\n' > f; vi -es -c '$' -c 'sort u' -c 'normal x' -c wq f; paste -sd, f",
        ",b\n",
    ),
    "du -Sc": ("du -Sc src | tail -n 1", "12\ttotal\n"),
    "globstar between folders": (
        "shopt -s globstar; echo src/a.py/**; echo **/lib/**; echo src/**/**",
        "src/a.py/**\nsrc/lib src/lib/c.py\nsrc/ src/a.py src/b.py src/conf.ini src/lib src/lib/c.py\n",
    ),
    "vi sorts": (
        "printf '3\\n1\\n3\\n2\\n' > f; vi -es -c 'sort u' -c wq f; paste -sd, f",
        "1,2,3\n",
    ),
}
REFUSED = {
    "seq 3 > f; vi -es -c '1m99' f; echo $?; false": "1\n",
    "seq 3 > f; vi -es -c '2t9' f; echo $?; false": "1\n",
    "seq 3 > f; vi -es -c 'g/1/m$' f; echo $?; false": "1\n",
    "date -d 0pm": "date: invalid date '0pm'",
    "shopt -s failglob": "shopt: failglob: this option is not simulated",
    "du -L src": "du: invalid option -- 'L'",
    "useradd -K A=b joe": "useradd: invalid option -- 'K'",
    "ls --sort=version": "ls: invalid argument 'version' for '--sort'",
    "date -d noon": "date: invalid date 'noon'",
    "date -d 13pm": "date: invalid date '13pm'",
    "date -d '2024-05-06 25'": "date: invalid date '2024-05-06 25'",
}


def run(script: str):
    return Shell(base_machine()).run(FILES + script)


@pytest.mark.parametrize("words", DATES)
def test_date_reads_forms_of_coreutils(words):
    assert run(f"date -d '{words}' '+%F %T'").output == DATES[words] + "\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_prints_what_the_real_programs_print(name):
    script, output = SCRIPTS[name]
    assert run(script).output == output


@pytest.mark.parametrize("script", REFUSED)
def test_what_is_not_simulated_is_refused(script):
    result = run(script)
    assert REFUSED[script] in result.output and result.status


def test_globstar_is_paid_by_the_folders_it_reads():
    script = "shopt -s globstar; d=/d; for i in {1..60}; do d=$d/a; done; mkdir -p $d; "
    assert Shell(base_machine()).run(script + "for i in {1..3000}; do : /d/**/**; done").timed_out
