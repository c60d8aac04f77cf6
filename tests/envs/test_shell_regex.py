"""Regular expressions and globs of find, grep, sed and awk, beside what the real programs printed.

Every expected output was obtained on Debian 12 with LC_ALL=C: bash 5.2, grep 3.8 with PCRE2 10.42, sed 4.9, findutils
4.9 and mawk 1.3.4. A last line "status N" stands for an exit status other than 0.
"""

import pytest
from conftest import no_hang

from envs.simulators.regex.match import compile_regex
from envs.simulators.shell import Shell, base_machine
from envs.simulators.shell.files import Caller

pytestmark = pytest.mark.all_only

Shell.strict = True  # errors of the simulator must be seen

GLOBS = [
    (r"touch a.py b.txt; find . -name '*\.py'", "./a.py\n"),
    (r"touch 'x*y' xay; find . -name 'x\*y'", "./x*y\n"),
    (r"touch 'x?y' xay; find . -name 'x\?y'", "./x?y\n"),
    (r"touch '[q]' q; find . -name '\[q\]'", "./[q]\n"),
    (r"touch 'a\b' ab; find . -name 'a\\b'", "./a\\b\n"),
    (r"touch 'a\b' ab; find . -name 'a\b'", "./ab\n"),
    (r"touch AbC; find . -iname 'A\BC'", "./AbC\n"),
    ("touch AbC abc; find . -name '[[:upper:]]*'", "./AbC\n"),
    (r"touch 'a\'; find . -name '*\'; echo none", "none\n"),
    (r"mkdir -p d/e; touch d/e/f; find . -path '*e\/f'", "./d/e/f\n"),
    (r"ln -s a.b l; find . -lname 'a\.b'", "./l\n"),
]
GREP_GLOBS = [
    (r"echo x > a.py; echo x > b.txt; grep -r x --include='*\.py'", "a.py:x\n"),
    (r"echo x > a.py; echo x > b.txt; grep -r x --exclude='*\.py'", "b.txt:x\n"),
    ("echo x > a.py; echo x > b.txt; grep -r x --include='[^a]*'", "b.txt:x\n"),
    (r"echo x > '[q]'; echo x > q; grep -r x --include='\[q\]'", "[q]:x\n"),
    (r"echo x > a.py; echo x > b.txt; grep x --include='./a\.py' ./a.py ./b.txt", "./a.py:x\n"),
    ("mkdir d; echo x > d/a; echo x > d/b; grep x --exclude='d/a' ./d/a ./d/b", "./d/b:x\n"),
    (r"mkdir d e.f; echo x > d/a; echo x > e.f/b; grep -r x --exclude-dir='e\.f'", "d/a:x\n"),
    ("mkdir d e; echo x > d/a; echo x > e/b; grep -r x --exclude-dir=e/", "d/a:x\n"),
    ("mkdir d e; echo x > d/a; echo x > e/b; grep -r x --exclude-dir=e d e", "d/a:x\n"),
    (
        "echo x > a.py; echo x > b.py; echo x > c.txt; grep -r x --exclude='a*' --include='*.py' | sort",
        "a.py:x\nb.py:x\nc.txt:x\n",
    ),
    (
        "echo x > a.py; echo x > b.py; echo x > c.txt; grep -r x --exclude='a*' --include='*.c' | sort",
        "b.py:x\nc.txt:x\n",
    ),
]
SED_CODES = [
    (r'echo axb | sed "s/x/\x27/"', "a'b\n"),
    (r"echo axb | sed 's/x/\x41\o102\d67/'", "aABCb\n"),
    (r"echo axb | sed 's/x/[\x4\o1\d9]/' | od -An -c", "   a   [ 004 001  \\t   ]   b  \\n\n"),
    (r"echo axb | sed 's/x/\x414\o1018\d0669/'", "aA4A8B9b\n"),
    (r"echo axb | sed 's/x/\d300/'", "a,b\n"),
    (r"echo axb | sed 's/x/\ca\cA\c[\c{\c?/' | od -An -c", "   a 001 001 033   ; 177   b  \\n\n"),
    (r"echo axb | sed 's/x/\c\\/' | od -An -c", "   a 034   b  \\n\n"),
    (r"echo axb | sed 's/x/\x26\d038\o046/'", "a&&&b\n"),
    (r"echo axb | sed 's/x/\x5c1\x5cn/'", "a\\1\\nb\n"),
    (r"echo axb | sed 's/x/\x5cU\x62&/'", "a\\Ubxb\n"),
    (r"echo axb | sed 's/x/\U\x62/'", "aBb\n"),
    (r"echo axb | sed 's/x/\x0a/'", "a\nb\n"),
    (r"echo 'a b' | sed 's/\x20/\x09/' | od -An -c", "   a  \\t   b  \\n\n"),
    (r"echo axb | sed 's/\x78/Y/; s/\o141/X/; s/\d98/Z/'", "XYZ\n"),
    (r"echo 'a/b' | sed 's/\x2f/\x2f\x2f/'", "a//b\n"),
    (r"printf 'a\tb\n' | sed 's/\cI/Y/'", "aYb\n"),
    (r"printf 'a\tb\n' | sed 's/[\x09]/Y/'", "aYb\n"),
    (r"printf 'a\nb\n' | sed 'N; s/a\x0ab/Y/'", "Y\n"),
    (r"printf 'a\033[31mb\n' | sed 's/\x1b\[[0-9;]*m//g'", "ab\n"),
    (r"printf 'a\033[31mb\n' | sed -E 's/\o033\[[0-9;]*m//g'", "ab\n"),
    (r"printf 'caf\303\251\n' | sed 's/[^\x01-\x7F]//g'", "caf\n"),
    (r"printf 'caf\303\251\n' | sed 's/\xc3\xa9/e/'", "cafe\n"),
    (r"echo abcdz | sed 's/[^\x61-\x63]/Y/g'", "abcYY\n"),
    (r"echo 'a5/b' | sed 's/[\d0-9]/X/g'", "aXXb\n"),
    (r"echo 'aBz' | sed 's/\x62/Y/I'", "aYz\n"),
    (r"echo 'xxx' | sed -E 's/(\x78)\1/[\1]/'", "[x]x\n"),
    (r"echo 'xxx' | sed 's/\x78\{2\}/Y/'", "Yx\n"),
    (r"echo 'a^b' | sed 's/\x5e/b/'", "ba^b\n"),
    (r"echo 'aab' | sed 's/a\x2a/Y/'", "Yb\n"),
    (r"echo 'a.b' | sed 's/\x2e/Y/'", "Y.b\n"),
    (r"echo 'a$b' | sed 's/\x24/Y/'", "a$bY\n"),
    (r"echo 'a[b]' | sed 's/\x5bb]/Y/'", "a[Y]\n"),
    (r"echo 'a\b' | sed 's/\x5c\x5c/Y/'", "aYb\n"),
    (r"echo 'a+b' | sed -E 's/a\x2b/Y/'", "Y+b\n"),
    (r"echo 'a^b' | sed 's/[\x5eb]/Y/g'", "YYb\n"),
    (r"echo 'a\nb' | sed 's/[\\n]/X/g'", "aXXb\n"),
    (r"echo 'a\A' | sed 's/\\\x41/Y/'", "aY\n"),
    (r"echo 'axb' | sed -n '/\x78/p; \,\o170,p'", "axb\naxb\n"),
    (
        r"echo 'axb' | sed 's/x/\c\d/'",
        "sed: -e expression #1, char 9: recursive escaping after \\c not allowed\nstatus 1\n",
    ),
    (r"echo 'axb' | sed 's/[\c]/Y/'", "sed: -e expression #1, char 9: Unmatched [, [^, [:, [., or [=\nstatus 1\n"),
    (r"echo x | sed 'a foo\x41\o102\d067'", "x\nfooABC\n"),
    (r"echo x | sed 'i\\x41b'", "Ab\nx\n"),
    (r"echo x | sed 'c foo\x5cn\\x41'", "foo\\n\\x41\n"),
    (r"echo x | sed 'a foo\x0abar'", "x\nfoo\nbar\n"),
]
DELIMITERS = [
    (r"sed 's|a\|b|X|' <<< 'a|b'", "X\n"),
    (r"sed -E 's|a\|b|X|g' <<< 'a|b'", "X|X\n"),
    (r"sed 's+a\+b+X+' <<< 'a+b aab'", "X aab\n"),
    (r"sed -E 's+a\+b+X+' <<< 'a+b aab'", "a+b X\n"),
    (r"sed 's.a\.b.X.' <<< 'axb'", "X\n"),
    (r"sed 's*a\*b*X*' <<< 'aab'", "X\n"),
    (r"sed 's^\^b^X^' <<< 'b^b'", "X^b\n"),
    (r"sed 's$a\$$X$' <<< 'a$ a'", "a$ X\n"),
    (r"sed 's?a\?b?X?' <<< 'b a?b'", "b X\n"),
    (r"sed -E 's?a\?b?X?' <<< 'ab'", "X\n"),
    (r"sed 's(a\(b(X(' <<< 'a(b'", "X\n"),
    (r"sed -E 's(a\(b(X(' <<< 'a(b'", "sed: -e expression #1, char 9: Unmatched ( or \\(\nstatus 1\n"),
    (r"sed 's)a\)b)X)' <<< 'a)b'", "X\n"),
    (r"sed 's{a\{2}{X{' <<< 'a{2}'", "X\n"),
    (r"sed -E 's{a\{2}{X{' <<< 'aa'", "X\n"),
    (r"sed -E 's}a{2\}}X}' <<< 'aa'", "X\n"),
    (r"sed 's[a\[b]c[X[' <<< 'abc'", "X\n"),
    (r"sed 's&a&[\&]&' <<< 'ab'", "[&]b\n"),
    (r"sed 's+\+\++X+' <<< '+++'", "X+\n"),
    (r"sed 's.\.*.X.' <<< 'abc'", "X\n"),
    (r"sed 's|\|*|X|' <<< '||a'", "Xa\n"),
    (r"sed 's|a\\\|b|X|' <<< 'a\|b'", "X\n"),
    (r"sed 's|\(a\|b\)|<\1>|' <<< 'a|b'", "<a|b>\n"),
    (r"sed -n '\|a\|b|p' <<< $'a|b\na'", "a|b\n"),
    (r"sed -n '\+a\+b+p' <<< $'a+b\naab'", "a+b\n"),
    (r"sed -n '\.a\.b.p' <<< $'a.b\naxb'", "a.b\naxb\n"),
    (r"sed -E -n '\*a\*b*p' <<< $'a*b\naab\nc'", "a*b\naab\n"),
]
BASIC_STARS = [
    (r"printf '* a\nb*\n' | grep -c '^*'", "1\n"),
    (r"printf '* a\nb*\n' | sed 's/^* /- /'", "- a\nb*\n"),
    (r"printf '*** a\n' | sed 's/^**/X/'", "X a\n"),
    (r"printf '* a\n' | sed 's/\(^* \)/[\1]/'", "[* ]a\n"),
    (r"printf '* a\n' | sed 's/z\|^*/X/'", "X a\n"),
    (r"printf '* a\n' | grep -o '^* a'", "* a\n"),
    (r"printf 'aaa\n' | grep -c '^*a'", "0\nstatus 1\n"),
    (r"printf '*** a\n' | sed 's/^*\{2\}/X/'", "X* a\n"),
    (r"printf '*** a\n' | sed 's/^*\+/X/'", "X a\n"),
    (r"printf '+b ?b\n' | sed 's/^\+b/X/; s/\?b/X/'", "X X\n"),
    (r"printf '?b\n' | grep -o '^\?b'", "?b\n"),
    (r"printf '{1}b\n' | grep -o '^\{1\}b'", "{1}b\n"),
    (r"printf '{1}b\n' | grep -o '\(\{1\}b\)'", "{1}b\n"),
    (r"printf '^^^*\n' | sed 's/^^*/X/'", "X*\n"),
    (r"printf '^a\n' | sed 's/^^/X/'", "Xa\n"),
    (r"printf 'a\n* b\n' | sed 'N; s/^*/X/M'", "a\nX b\n"),
    (r"printf 'x*a\n' | sed 's/\b*a/X/'", "xX\n"),
    (r"printf 'a*\n' | sed 's/a\>*/X/'", "X\n"),
    (r"printf 'a\n*b\n' | sed -n '/^*/p'", "*b\n"),
    (r"printf 'a\n* b\n' | grep -v '^*'", "a\n"),
    (r"printf 'a\n*b\n' | grep -nx '^*.*'", "2:*b\n"),
    (
        r"printf 'a\n' | sed 's/a**/X/'",
        "sed: -e expression #1, char 8: Invalid preceding regular expression\nstatus 1\n",
    ),
    (
        r"printf 'b\n' | sed 's/^\{1\}b/X/'",
        "sed: -e expression #1, char 12: Invalid preceding regular expression\nstatus 1\n",
    ),
    (
        r"printf '* a\n' | sed -E 's/^*/X/'",
        "sed: -e expression #1, char 7: Invalid preceding regular expression\nstatus 1\n",
    ),
    (
        r"printf '* a\n' | sed -E 's/(^+)/X/'",
        "sed: -e expression #1, char 9: Invalid preceding regular expression\nstatus 1\n",
    ),
    (
        r"printf 'aa\n' | sed -E 's/{2}a/X/'",
        "sed: -e expression #1, char 9: Invalid preceding regular expression\nstatus 1\n",
    ),
    (
        r"printf 'aa\n' | sed -E 's/a|^{2}/X/'",
        "sed: -e expression #1, char 11: Invalid preceding regular expression\nstatus 1\n",
    ),
    ("expr '*a' : '^*a'", "2\n"),
    (r"expr '{1}b' : '\{1\}b'", "4\n"),
    (r"touch '*a' a; find . -regex '.*/\(*\)a'", "./*a\n"),
    (r"touch +a a; find . -regex '.*/\(b\|+\)a'", "./+a\n"),
    ("touch 'a^b' ab; find . -regex './a^b'", "./a^b\n"),
    ("touch 'a$b' ab; find . -regex './a$b'", "./a$b\n"),
    (
        "touch a; find . -regextype posix-extended -regex '.(*/a)' 2>&1 | sed 's/.*: //'",
        "Invalid preceding regular expression\n",
    ),
    (
        r"printf 'a\n' | awk '/^*a/'",
        "awk: line 1: regular expression compile failed (syntax error ^* or ^+)\n^*a\nstatus 2\n",
    ),
    (
        r"printf 'a\n' | awk '/b|*a/'",
        "awk: line 1: regular expression compile failed (missing operand)\nb|*a\nstatus 2\n",
    ),
    (
        "printf 'a\\n' | awk '{ gsub(\"+\", \"x\") } 1'",
        "awk: line 1: regular expression compile failed (missing operand)\n+\nstatus 2\n",
    ),
]
NEWLINES = [
    (r"[[ $'a\nb' =~ a.b ]]; echo $?", "0\n"),
    (r"[[ $'a\nb' =~ a[^x]b ]]; echo $?", "0\n"),
    (r"expr $'a\nb' : '.*'", "3\n"),
    (r"printf 'a\nb\0' | grep -zo 'a.b' | od -An -c", "   a  \\n   b  \\0\n"),
    (r"printf 'a\nb\0' | grep -zoE 'a[^x]b' | od -An -c", "   a  \\n   b  \\0\n"),
    (r"printf 'a\nb\0' | grep -zoP 'a[^x]b' | od -An -c", "   a  \\n   b  \\0\n"),
]
AWK_CODES = [
    ("echo xty | awk '{ gsub(/\\x74/, \"T\") } 1'", "xTy\n"),
    ("echo xty | awk '{ gsub(/[\\x74]/, \"T\") } 1'", "xTy\n"),
    ("echo xty | awk '{ gsub(/[\\164]/, \"T\") } 1'", "xTy\n"),
    ('echo xty | awk \'{ gsub("\\\\x74", "T") } 1\'', "xTy\n"),
    ("echo xt4y | awk '{ gsub(/\\x744/, \"T\") } 1'", "xTy\n"),
    ("printf 'x\\004g\\n' | awk '{ gsub(/\\x4g/, \"T\") } 1'", "xT\n"),
    ("echo 'a.b*c' | awk '{ gsub(/\\x2e/, \"T\"); gsub(/b\\x2a/, \"S\") } 1'", "aTSc\n"),
    ("echo 'a^b' | awk '{ gsub(/[\\x5eb]/, \"T\") } 1'", "aTT\n"),
    ("echo 'a-b+z' | awk '{ gsub(/[+\\x2dz]/, \"T\") } 1'", "aTbTT\n"),
    ("echo abcdz | awk '{ gsub(/[\\x61-\\x63]/, \"T\") } 1'", "TTTdz\n"),
    ("echo abcdz | awk '{ gsub(/[^\\141-\\143]/, \"T\") } 1'", "abcTT\n"),
    ("printf 'caf\\303\\251\\n' | awk '{ gsub(/[\\x80-\\xff]/, \"T\") } 1'", "cafTT\n"),
    ("printf '\\033[31mb\\n' | awk '{ gsub(/\\x1b\\[[0-9;]*m/, \"\") } 1'", "b\n"),
    ('printf "a\'b\\n" | awk \'{ gsub(/\\x27/, "T") } 1\'', "aTb\n"),
    (r"printf 'a\tb\n' | awk -F '[\\x09]' '{ print $2 }'", "b\n"),
    (r"printf 'a|b\n' | awk -F '\\x7c' '{ print $2 }'", "b\n"),
    ("awk 'BEGIN { print split(\"x1y2z\", p, /[\\x31\\x32]/), p[2] }'", "3 y\n"),
]
PERL = [
    (r"printf 'caf\303\251\n' | grep -oP '[^\x00-\x7F]' | od -An -c", " 303  \\n 251  \\n\n"),
    (r"printf 'caf\303\251\nabc\n' | grep -cP '[\x80-\xFF]'", "1\n"),
    (r"printf 'caf\303\251\nabc\n' | grep -cP '[^[:ascii:]]'", "1\n"),
    (r"printf 'caf\303\251\n' | grep -oP '\p{L}+' | od -An -c", "   c   a   f 303  \\n\n"),
    (r"echo 'aB1,c-_$' | grep -oP '\p{Lu}|\p{N}|\p{P}+|\p{Sc}'", "B\n1\n,\n-_\n$\n"),
    (r"echo 'aB1,c' | grep -oP '\pL+'", "aB\nc\n"),
    (r"echo 'aB1,c' | grep -oP '\P{L}+'", "1,\n"),
    (r"echo 'aB1,c' | grep -oP '\p{^L}+'", "1,\n"),
    (r"echo 'aB1,c' | grep -oP '[^\p{L}\d]'", ",\n"),
    (r"echo 'aB1,c' | grep -oP '\p{L&}+'", "aB\nc\n"),
    (r"echo 'aB1,c' | grep -oPi '\p{Lu}'", "B\n"),
    (r"echo 'aB1,c' | grep -oPi '[^\p{Lu}]'", "a\n1\n,\nc\n"),
    (r"echo xty | grep -oP '\x{74}'", "t\n"),
    (r"echo xty | grep -oP '[\x74-\x79]+'", "xty\n"),
    (r"echo xty | grep -oP '[\x{74}\171]+'", "ty\n"),
    (r"echo xty | grep -oP '\164'", "t\n"),
    (r"echo xty | grep -oP '\o{164}'", "t\n"),
    (r"echo xTy | grep -oPi '\x74'", "T\n"),
    (r"printf 'x\007g\n' | grep -oP '\x7g' | od -An -c", "  \\a   g  \\n\n"),
    (r"printf 'x\033[0m\n' | grep -oP '\033|\cA' | od -An -c", " 033  \\n\n"),
    (r"printf 'x\001\n' | grep -oP '\cA' | od -An -c", " 001  \\n\n"),
    (r"printf 'a\fb\n' | grep -oP 'a\vb' | od -An -c", "   a  \\f   b  \\n\n"),
    (r"printf 'a\240b\n' | grep -oP 'a\hb' | od -An -c", "   a 240   b  \\n\n"),
    (r"printf 'a\bb\n' | grep -oP '[\b]' | od -An -c", "  \\b  \\n\n"),
    (r"printf 'x\r\n' | grep -cP 'x\R$'", "1\n"),
    (r"printf 'a\r\nb\0' | grep -zoP 'a\Rb' | od -An -c", "   a  \\r  \\n   b  \\0\n"),
    (r"printf 'a\nb\n\0' | grep -zoP 'b\Z' | od -An -c", "   b  \\0\n"),
    (r"echo 'a.b*c' | grep -oP '\Q.b*\E.'", ".b*c\n"),
    (r"echo 'a.b*c' | grep -oP '\Qb*c'", "b*c\n"),
    (r"echo 'a..b' | grep -oP 'a\Q.\E+'", "a..\n"),
    (r"echo 'a]b' | grep -oP '[\Q]\E]'", "]\n"),
    (r"echo aab | grep -oP '(?<n>a)\k<n>'", "aa\n"),
    ("echo aab | grep -oP \"(?'n'a)\\\\k'n'\"", "aa\n"),
    ("echo aab | grep -oP '(?P<n>a)(?P=n)'", "aa\n"),
    (r"echo aab | grep -oP '(?<n>a)\g{n}'", "aa\n"),
    (r"echo aab | grep -oP '(a)\g{-1}'", "aa\n"),
    (r"echo abcdefghijkk | grep -oP '(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)(k)\11'", "abcdefghijkk\n"),
    ("echo ABC | grep -oP '(?i)ab(?-i)C'", "ABC\n"),
    ("echo ABC | grep -oP '(?i:b)C'", "BC\n"),
    ("echo ABC | grep -cP '((?i)b)c'", "0\nstatus 1\n"),
    ("echo ABC | grep -oP '(?i)a|(?-i)b'", "A\n"),
    ("echo 'AA C' | grep -oP '(?x) A {2} [ ] C # comment'", "AA C\n"),
    ("echo 'AAC' | grep -oP '(?xi) a + c'", "AAC\n"),
    ("echo 'ab' | grep -oP 'a(?#comment)b'", "ab\n"),
    (r"printf 'a\nb\0' | grep -zoP '(?s)a.b' | od -An -c", "   a  \\n   b  \\0\n"),
    (r"printf 'a\nb\0' | grep -zoP '(?m)^b' | od -An -c", "   b  \\0\n"),
    ("echo aaab | grep -oP '(?>a+)b'", "aaab\n"),
    ("echo aaab | grep -cP '(?>a+)ab'", "0\nstatus 1\n"),
    ("echo aaab | grep -cP 'a++ab'", "0\nstatus 1\n"),
    ("echo aaab | grep -oP 'a?+ab'", "aab\n"),
    ("echo abc | grep -oP '(?<=a|ab)c'", "c\n"),
    (r"echo abcabc | grep -oP '(.)(?!.*\1)'", "a\nb\nc\n"),
    (r"echo aaab | grep -oP '(?=(a+))\1b'", "aaab\n"),
    (r"echo foobar | grep -cP '(?<=foo\b)bar'", "0\nstatus 1\n"),
    ("echo foobar | grep -oP '(?<=foo(?=b))bar'", "bar\n"),
    ("echo 'a{,3}b' | grep -oP 'a{,3}b'", "a{,3}b\n"),
    ("echo aB | grep -oP '[[:^upper:]]'", "a\n"),
    ("echo 'aB_' | grep -oP '[[:word:]]+'", "aB_\n"),
    ("echo 'b[:' | grep -oP '[[:b]+'", "b[:\n"),
]
PERL_ERRORS = [
    (r"echo a | grep -P '\x{100}'", "grep: character code point value in \\x{} or \\o{} is too large\nstatus 2\n"),
    (r"echo a | grep -P '\p{L'", "grep: malformed \\P or \\p sequence\nstatus 2\n"),
    ("echo a | grep -P 'a**'", "grep: quantifier does not follow a repeatable item\nstatus 2\n"),
    ("echo a | grep -P 'a{2}{3}'", "grep: quantifier does not follow a repeatable item\nstatus 2\n"),
    ("echo a | grep -P '^*a'", "grep: quantifier does not follow a repeatable item\nstatus 2\n"),
    ("echo a | grep -P '{2}a'", "grep: quantifier does not follow a repeatable item\nstatus 2\n"),
    (r"echo a | grep -P 'a\'", "grep: \\ at end of pattern\nstatus 2\n"),
    ("echo a | grep -P '(a'", "grep: missing closing parenthesis\nstatus 2\n"),
    ("echo a | grep -P 'a)'", "grep: unmatched closing parenthesis\nstatus 2\n"),
    ("echo a | grep -P '[a'", "grep: missing terminating ] for character class\nstatus 2\n"),
    ("echo a | grep -P '[b-a]'", "grep: range out of order in character class\nstatus 2\n"),
    (r"echo a | grep -P '[\w-z]'", "grep: invalid range in character class\nstatus 2\n"),
    ("echo a | grep -P '[:alpha:]'", "grep: POSIX named classes are supported only within a class\nstatus 2\n"),
    ("echo a | grep -P '[[.a.]]'", "grep: POSIX collating elements are not supported\nstatus 2\n"),
    ("echo a | grep -P '[[:foo:]]'", "grep: unknown POSIX class name\nstatus 2\n"),
    (r"echo a | grep -P '[\N]'", "grep: \\N is not supported in a class\nstatus 2\n"),
    ("echo a | grep -P 'a{2,1}'", "grep: numbers out of order in {} quantifier\nstatus 2\n"),
    (r"echo a | grep -P '(?<n>a)\k<m>'", "grep: reference to non-existent subpattern\nstatus 2\n"),
    (r"echo a | grep -P '(a)\2'", "grep: reference to non-existent subpattern\nstatus 2\n"),
    (
        "echo a | grep -P '(?<n>a)(?<n>b)'",
        "grep: two named subpatterns have the same name (PCRE2_DUPNAMES not set)\nstatus 2\n",
    ),
    ("echo a | grep -P '(?<=a+)b'", "grep: lookbehind assertion is not fixed length\nstatus 2\n"),
    ("echo a | grep -P '(?<=(?:a|bb))b'", "grep: lookbehind assertion is not fixed length\nstatus 2\n"),
    (r"echo a | grep -P '(?<=\R)b'", "grep: lookbehind assertion is not fixed length\nstatus 2\n"),
    (
        r"echo a | grep -P '(?<=\K)b'",
        "grep: \\K is not allowed in lookarounds (but see PCRE2_EXTRA_ALLOW_LOOKAROUND_BSK)\nstatus 2\n",
    ),
    ("echo a | grep -P '(?#a'", "grep: missing ) after (?# comment\nstatus 2\n"),
    ("echo a | grep -P -e a -e b", "grep: the -P option only supports a single pattern\nstatus 2\n"),
]

# (expression, message): valid for PCRE2, but missing here
REFUSED = [
    (r"\X", r"\X is not simulated"),
    (r"a\Gb", r"\G is not simulated"),
    (r"\C", r"\C is not simulated"),
    (r"(a)\g<1>", r"\g is not simulated"),
    (r"\p{Greek}", r"\p{Greek} is not simulated"),
    (r"[\p{Xan}]", r"\p{Xan} is not simulated"),
    (r"\N{U+41}", r"\N{...} is not simulated"),
    (r"a(?R)?b", "(?R...) is not simulated"),
    (r"(a)(?1)", "(?1...) is not simulated"),
    (r"(?<n>a)(?&n)", "(?&n...) is not simulated"),
    (r"(?|(a)|(b))", "(?|...) is not simulated"),
    (r"(a)?(?(1)b|c)", "(?(1...) is not simulated"),
    (r"(?U)a+", "(?U...) is not simulated"),
    (r"(?xx)[a b]", "(?xx...) is not simulated"),
    (r"(*UTF8)a", "(*UTF8...) is not simulated"),
    (r"a(*SKIP)(*F)|b", "(*SKIP...) is not simulated"),
    (r"(o)(?<=\1)b", "a back reference in a lookbehind is not simulated"),
]

# They would take hours if their compilation or their search were free.
ENDLESS = [
    "p=$(head -c 100000 /dev/zero | tr '\\0' '?'); while :; do find / -path \"$p*x$RANDOM\"; done",
    "p=$(head -c 100000 /dev/zero | tr '\\0' '*'); while :; do find / -name \"$p$RANDOM\"; done",
    "p=$(head -c 100000 /dev/zero | tr '\\0' '?'); while :; do grep -r --include=\"*$p*x$RANDOM\" q /; done",
    "p=$(head -c 90000 /dev/zero | tr '\\0' '/'); while :; do grep -r --exclude-dir=\"*x*$RANDOM\" q $p; done",
    "p=$(printf '\\\\x41%.0s' {1..20000}); while :; do echo a | sed \"s/$p$RANDOM/$p/\"; done",
    "p=$(printf '[[:%.0s' {1..20000}); while :; do echo a | grep -P \"$p$RANDOM]\"; done",
]


def printed(script: str) -> str:
    """Run a script in an empty folder; return its output and its status."""
    machine = base_machine()
    Caller(machine).mkdir("/w")
    result = Shell(machine, cwd="/w").run(script)
    return result.output + (f"status {result.status}\n" if result.status else "")


def assert_printed(table: list[tuple[str, str]]) -> None:
    wrong = [f"$ {script}\n{real}-- ours:\n{ours}" for script, real in table if (ours := printed(script)) != real]
    assert not wrong, "\n".join(wrong)


def test_a_backslash_in_a_glob_of_find_quotes():
    assert_printed(GLOBS)


def test_the_last_include_or_exclude_of_grep_decides():
    assert_printed(GREP_GLOBS)


def test_character_codes_in_sed_expressions_and_texts():
    assert_printed(SED_CODES)


def test_an_escaped_delimiter_of_sed_is_the_bare_character():
    assert_printed(DELIMITERS)


def test_an_operator_after_an_anchor_repeats_nothing():
    assert_printed(BASIC_STARS)


def test_dots_and_negated_brackets_match_newlines():
    assert_printed(NEWLINES)


def test_character_codes_in_awk_expressions():
    assert_printed(AWK_CODES)


def test_perl_expressions_match_as_in_pcre():
    assert_printed(PERL)


def test_perl_errors_have_the_messages_of_pcre():
    assert_printed(PERL_ERRORS)


@pytest.mark.parametrize(("expression", "message"), REFUSED)
def test_missing_perl_features_are_errors(expression, message):
    assert printed(f"echo ab | grep -P '{expression}'") == f"grep: {message}\nstatus 2\n"


@pytest.mark.parametrize("script", ENDLESS)
def test_long_patterns_use_up_the_steps(script):
    with no_hang():
        assert Shell(base_machine()).run(script).timed_out


@pytest.mark.parametrize("pattern", ["(a++)*b", "(?>(?>a*)*)*b", "((?=a*)a)*b", "(?<=a{99})b"])
def test_look_arounds_and_atomic_groups_take_quadratic_time(pattern):
    spent = []
    assert compile_regex(pattern, "perl").search("a" * 400, 0, spent.append) is None
    assert sum(spent) < 400 * 400
