"""Templates of level 2, with 2 to 4 commands; the package's docstring explains their format."""

TEMPLATES = r"""
Create the group GROUP and the directory DIR. The directory belongs to the group GROUP and has mode 2770.
$ groupadd GROUP
$ mkdir DIR
$ chgrp GROUP DIR
$ chmod 2770 DIR
? getent group GROUP
? test "$(stat -c %G DIR)" = GROUP
? test "$(stat -c %a DIR)" = 2770

Create the group GROUP, and the user USER with the home directory /home/USER as a member of GROUP.
$ groupadd GROUP
$ useradd -m -G GROUP USER
? getent group GROUP
? test -d /home/USER
? id -nG USER | grep -qw GROUP

Write how many lines of DIR/NAME contain WORD to DIR/NAME2: the number alone.
+ mkdir DIR
+ for i in $(seq NUM); do echo WORD $i WORD2; echo WORD3 $i; done > DIR/NAME
$ grep WORD DIR/NAME | wc -l > DIR/NAME2
? test "$(cat DIR/NAME2)" -eq NUM

Write how many regular files there are below DIR, at any depth, to /tmp/NAME: the number alone.
+ mkdir -p DIR/WORD/WORD2
+ touch DIR/{1..NUM}.EXT DIR/WORD/WORD2/{1..NUM2}.EXT
$ find DIR -type f | wc -l > /tmp/NAME
? test "$(cat /tmp/NAME)" -eq $((NUM + NUM2))

Write the lines of DIR/NAME and of DIR/NAME2 that contain WORD to DIR/NAME3, sorted.
+ mkdir DIR
+ printf 'WORD3 WORD\nWORD2\n' > DIR/NAME
+ printf 'WORD4\nWORD2 WORD\nWORD\n' > DIR/NAME2
$ cat DIR/NAME DIR/NAME2 | grep WORD | sort > DIR/NAME3
? test "$(cat DIR/NAME3)" = "$(printf 'WORD3 WORD\nWORD2 WORD\nWORD\n' | sort)"

In DIR, create the directories WORD and WORD2, and in each of them an empty file NAME.
+ mkdir DIR
$ cd DIR && mkdir WORD WORD2
$ cd DIR && touch WORD/NAME WORD2/NAME
? test -d DIR/WORD
? test -d DIR/WORD2
? test -f DIR/WORD/NAME
? test -f DIR/WORD2/NAME

Copy DIR/NAME to DIR/NAME.bak, and set the mode of the copy to MODE. DIR/NAME keeps its own.
+ mkdir DIR
+ echo WORD > DIR/NAME
$ cp DIR/NAME DIR/NAME.bak
$ chmod MODE DIR/NAME.bak
? test "$(cat DIR/NAME.bak)" = WORD
? test "$(stat -c %a DIR/NAME.bak)" = MODE
? test "$(stat -c %a DIR/NAME)" = 644
? test ! DIR/NAME -ef DIR/NAME.bak

Create the empty file DIR/NAME, wait for NUM seconds, then create the empty file DIR/NAME2.
+ mkdir DIR
$ touch DIR/NAME
$ sleep NUM
$ touch DIR/NAME2
? test -f DIR/NAME
? test -f DIR/NAME2
? test $(($(stat -c %Y DIR/NAME2) - $(stat -c %Y DIR/NAME))) -ge NUM

Add the time in seconds, as date +%s prints it, to DIR/NAME as a line, NUM times and once a second, so that each line
is at least 1 more than the one above it.
+ mkdir DIR
$ for i in $(seq NUM); do date +%s >> DIR/NAME; sleep 1; done
? test "$(wc -l < DIR/NAME)" -eq NUM
? awk 'NR > 1 && $1 < last + 1 {exit 1} {last = $1}' DIR/NAME

Move all files of DIR whose name ends in .EXT into DIR/WORD. All other files stay.
+ mkdir -p DIR/WORD
+ touch DIR/WORD2.EXT DIR/WORD3.EXT DIR/WORD4.EXT2
$ cd DIR || exit 1; mv *.EXT WORD
? test -f DIR/WORD/WORD2.EXT
? test -f DIR/WORD/WORD3.EXT
? test ! -e DIR/WORD2.EXT
? test ! -e DIR/WORD3.EXT
? test -f DIR/WORD4.EXT2

If the file DIR/NAME has a line with WORD, copy the file to DIR/NAME2. In the same way, copy DIR/NAME3 to DIR/NAME4
only if it has one.
+ mkdir DIR
+ printf 'WORD2\nWORD\n' > DIR/NAME
+ echo WORD3 > DIR/NAME3
$ grep -q WORD DIR/NAME || exit 0; cp DIR/NAME DIR/NAME2
? test "$(cat DIR/NAME2)" = "$(printf 'WORD2\nWORD')"
? test "$(cat DIR/NAME)" = "$(printf 'WORD2\nWORD')"
? test ! -e DIR/NAME4

Each line of DIR/NAME is a word, a space and a number. Write the words whose number is greater than NUM to DIR/NAME2,
one in each line and in alphabetical order.
+ mkdir DIR
+ printf 'WORD 1\nWORD2 ID\nWORD3 NUM\nWORD4 1ID\n' > DIR/NAME
$ awk '$2 > NUM {print $1}' DIR/NAME | sort > DIR/NAME2
? test "$(cat DIR/NAME2)" = "$(printf '%s\n' WORD2 WORD4 | sort)"

Add the line WORD at the end of DIR/NAME and at the end of DIR/NAME2.
+ mkdir DIR
+ echo WORD2 | tee DIR/NAME > DIR/NAME2
$ echo WORD | tee -a DIR/NAME DIR/NAME2
? test "$(cat DIR/NAME)" = "$(printf 'WORD2\nWORD')"
? test "$(cat DIR/NAME2)" = "$(printf 'WORD2\nWORD')"

Lock the password of USER, and let the account expire on DATE.
+ useradd -p WORD USER
$ usermod -L USER
$ chage -E DATE USER
? test "$(getent shadow USER | cut -d : -f 2)" = '!WORD'
? test "$(getent shadow USER | cut -d : -f 8)" = "$(($(date -u -d DATE +%s) / 86400))"

Change the login shell of USER to SHELL, and move the home directory with all that is in it to /home/WORD.
+ useradd -m -s /bin/bash USER
+ touch /home/USER/NAME
$ chsh -s SHELL USER
$ usermod -m -d /home/WORD USER
? test "$(getent passwd USER | cut -d : -f 7)" = SHELL
? test "$(getent passwd USER | cut -d : -f 6)" = /home/WORD
? test -f /home/WORD/NAME
? test ! -e /home/USER

Set the mode of DIR and of all directories below it to 750, and that of all regular files below it to MODE.
+ mkdir -p DIR/WORD/WORD2
+ touch DIR/NAME DIR/WORD/WORD2/NAME2
$ find DIR -type d -exec chmod 750 {} +
$ find DIR -type f -exec chmod MODE {} +
? test "$(find DIR -type d -perm 750 | wc -l)" -eq 3
? test "$(stat -c %a DIR/NAME)" = MODE
? test "$(stat -c %a DIR/WORD/WORD2/NAME2)" = MODE

Move the directory DIR to DIR2, and make DIR a symbolic link to DIR2.
+ mkdir DIR
+ echo WORD > DIR/NAME
$ mv DIR DIR2
$ ln -s DIR2 DIR
? test "$(cat DIR2/NAME)" = WORD
? test ! -L DIR2
? test -L DIR -a "$(readlink -f DIR)" = DIR2

Delete the empty lines of DIR/NAME, and make USER its owner.
+ useradd USER
+ mkdir DIR
+ printf 'WORD\n\nWORD2\n\n\nWORD3\n' > DIR/NAME
$ sed -i '/^$/d' DIR/NAME
$ chown USER DIR/NAME
? test "$(cat DIR/NAME)" = "$(printf 'WORD\nWORD2\nWORD3')"
? test "$(stat -c %U DIR/NAME)" = USER

Create the group GROUP with exactly two members, USER and USER2, who exist already.
+ useradd USER
+ useradd USER2
$ addgroup GROUP
$ gpasswd -M USER,USER2 GROUP
? getent group GROUP
? id -nG USER | grep -qw GROUP
? id -nG USER2 | grep -qw GROUP
? test "$(getent group GROUP | cut -d : -f 4 | tr , '\n' | wc -l)" -eq 2

Copy DIR/NAME to DIR/NAME.orig. Then, in DIR/NAME, replace every WORD with WORD2.
+ mkdir DIR
+ printf 'WORD WORD3 WORD\nWORD4 WORD\n' > DIR/NAME
$ cp DIR/NAME DIR/NAME.orig
$ vi -es -c %s/WORD/WORD2/g -c wq DIR/NAME
? test "$(cat DIR/NAME.orig)" = "$(printf 'WORD WORD3 WORD\nWORD4 WORD')"
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 WORD3 WORD2\nWORD4 WORD2')"
? test ! DIR/NAME -ef DIR/NAME.orig

Write a bash script DIR/WORD.sh that prints the line WORD2 and then ends with exit status NUM. Its mode is 755.
+ mkdir DIR
$ echo 'echo WORD2; exit NUM' > DIR/WORD.sh
$ chmod 755 DIR/WORD.sh
? test "$(stat -c %a DIR/WORD.sh)" = 755
? test "$(bash DIR/WORD.sh)" = WORD2
? (bash DIR/WORD.sh; test $? -eq NUM)

Write how many entries (files and directories) there are in DIR to /tmp/NAME, the number alone, and delete DIR.
+ mkdir -p DIR/WORD
+ touch DIR/{1..NUM}.EXT
$ ls DIR | wc -l > /tmp/NAME
$ rm -r DIR
? test "$(cat /tmp/NAME)" -eq $((NUM + 1))
? test ! -e DIR
? test -d "$(dirname DIR)"
? test -e /etc/hostname
"""
