"""Templates of level 1, with one command; the package's docstring explains their format."""

TEMPLATES = r"""
Create the directory DIR.
$ mkdir DIR
? test -d DIR

Create the directory DIR/WORD/WORD2, and the directories above it.
$ mkdir -p DIR/WORD/WORD2
? test -d DIR/WORD/WORD2

Create the directory DIR with mode DMODE.
$ mkdir -m DMODE DIR
? test -d DIR
? test "$(stat -c %a DIR)" = DMODE

Create the empty file DIR/NAME.
+ mkdir DIR
$ touch DIR/NAME
? test -f DIR/NAME
? test ! -s DIR/NAME

Delete the file DIR/NAME, and nothing else.
+ mkdir DIR DIR2
+ touch DIR/NAME DIR/NAME2 DIR2/NAME
$ rm DIR/NAME
? test ! -e DIR/NAME
? test -f DIR/NAME2
? test -f DIR2/NAME
? test -e /etc/hostname

Delete the directory DIR with all that is in it.
+ mkdir -p DIR/WORD DIR2
+ touch DIR/NAME DIR/WORD/NAME2 DIR2/NAME
$ rm -r DIR
? test ! -e DIR
? test -d "$(dirname DIR)"
? test -f DIR2/NAME
? test -e /etc/hostname

Set the mode of DIR/NAME to MODE.
+ mkdir DIR
+ touch DIR/NAME
$ chmod MODE DIR/NAME
? test "$(stat -c %a DIR/NAME)" = MODE

Set the mode of the directory DIR and of all that is below it to DMODE.
+ mkdir -p DIR/WORD
+ touch DIR/WORD/NAME
$ chmod -R DMODE DIR
? test "$(stat -c %a DIR)" = DMODE
? test "$(stat -c %a DIR/WORD)" = DMODE
? test "$(stat -c %a DIR/WORD/NAME)" = DMODE

Make USER the owner of DIR/NAME.
+ useradd USER
+ mkdir DIR
+ touch DIR/NAME
$ chown USER DIR/NAME
? test "$(stat -c %U DIR/NAME)" = USER

Make USER the owner of the directory DIR and of all that is below it.
+ useradd USER
+ mkdir -p DIR/WORD
+ touch DIR/WORD/NAME
$ chown -R USER DIR
? test "$(stat -c %U DIR)" = USER
? test "$(stat -c %U DIR/WORD)" = USER
? test "$(stat -c %U DIR/WORD/NAME)" = USER

Make GROUP the group of DIR/NAME.
+ groupadd GROUP
+ mkdir DIR
+ touch DIR/NAME
$ chgrp GROUP DIR/NAME
? test "$(stat -c %G DIR/NAME)" = GROUP

Copy the file DIR/NAME to DIR/NAME2.
+ mkdir DIR
+ echo WORD > DIR/NAME
$ cp DIR/NAME DIR/NAME2
? test "$(cat DIR/NAME2)" = WORD
? test "$(cat DIR/NAME)" = WORD
? test ! DIR/NAME -ef DIR/NAME2

Copy the directory DIR with all that is in it to DIR2, which does not exist yet.
+ mkdir -p DIR/WORD
+ echo WORD2 > DIR/WORD/NAME
$ cp -r DIR DIR2
? test "$(cat DIR2/WORD/NAME)" = WORD2
? test "$(cat DIR/WORD/NAME)" = WORD2
? test ! DIR -ef DIR2
? test ! DIR/WORD/NAME -ef DIR2/WORD/NAME

Rename the file DIR/NAME to DIR/NAME2.
+ mkdir DIR
+ echo WORD > DIR/NAME
$ mv DIR/NAME DIR/NAME2
? test "$(cat DIR/NAME2)" = WORD
? test ! -e DIR/NAME

Move the file DIR/NAME into the directory DIR2.
+ mkdir DIR DIR2
+ echo WORD > DIR/NAME
$ mv DIR/NAME DIR2
? test "$(cat DIR2/NAME)" = WORD
? test ! -e DIR/NAME

Make DIR/NAME2 a symbolic link to DIR/NAME.
+ mkdir DIR
+ echo WORD > DIR/NAME
$ ln -s DIR/NAME DIR/NAME2
? test -L DIR/NAME2 -a "$(readlink -f DIR/NAME2)" = DIR/NAME
? test "$(cat DIR/NAME2)" = WORD

Make DIR/NAME2 a hard link to DIR/NAME.
+ mkdir DIR
+ echo WORD > DIR/NAME
$ ln DIR/NAME DIR/NAME2
? test ! -L DIR/NAME2
? test DIR/NAME -ef DIR/NAME2
? test "$(cat DIR/NAME2)" = WORD

Write the line WORD to the file DIR/NAME.
+ mkdir DIR
$ echo WORD > DIR/NAME
? test "$(cat DIR/NAME)" = WORD

Add the line WORD at the end of DIR/NAME.
+ mkdir DIR
+ echo WORD2 > DIR/NAME
$ echo WORD >> DIR/NAME
? test "$(tail -n 1 DIR/NAME)" = WORD
? test "$(head -n 1 DIR/NAME)" = WORD2

Write what is in DIR/NAME to DIR/NAME2 and to DIR/NAME3 too.
+ mkdir DIR
+ echo WORD > DIR/NAME
$ tee DIR/NAME2 DIR/NAME3 < DIR/NAME
? test "$(cat DIR/NAME2)" = WORD
? test "$(cat DIR/NAME3)" = WORD
? test ! DIR/NAME -ef DIR/NAME2
? test ! DIR/NAME -ef DIR/NAME3

Write the lines of DIR/NAME, followed by those of DIR/NAME2, to DIR/NAME3.
+ mkdir DIR
+ echo WORD > DIR/NAME
+ echo WORD2 > DIR/NAME2
$ cat DIR/NAME DIR/NAME2 > DIR/NAME3
? test "$(cat DIR/NAME3)" = "$(printf 'WORD\nWORD2')"

Create the group GROUP.
$ groupadd GROUP
? getent group GROUP

Create the group GROUP with the group number ID.
$ addgroup --gid ID GROUP
? test "$(getent group GROUP | cut -d : -f 3)" = ID

Create the user USER with the home directory /home/USER.
$ useradd -m USER
? test "$(getent passwd USER | cut -d : -f 6)" = /home/USER
? test -d /home/USER

Create the user USER with the login shell SHELL.
$ useradd -s SHELL USER
? test "$(getent passwd USER | cut -d : -f 7)" = SHELL

Add USER to the group GROUP. The user stays in all other groups.
+ groupadd GROUP
+ groupadd GROUP2
+ useradd -G GROUP2 USER
$ usermod -aG GROUP USER
? id -nG USER | grep -qw GROUP
? id -nG USER | grep -qw GROUP2

Make WORD the comment (full name) of the user USER.
+ useradd USER
$ usermod -c WORD USER
? test "$(getent passwd USER | cut -d : -f 5)" = WORD

Remove USER from the group GROUP.
+ groupadd GROUP
+ useradd -G GROUP USER
+ useradd -G GROUP USER2
$ gpasswd -d USER GROUP
? test "$(getent group GROUP | cut -d : -f 4)" = USER2
? getent passwd USER

Make USER an administrator of the group GROUP.
+ groupadd GROUP
+ useradd USER
$ gpasswd -A USER GROUP
? grep -q '^GROUP:[^:]*:USER:' /etc/gshadow

Change the login shell of USER to SHELL.
+ useradd -s /bin/bash USER
$ chsh -s SHELL USER
? test "$(getent passwd USER | cut -d : -f 7)" = SHELL

Make a password of USER valid for at most DAYS days.
+ useradd USER
$ chage -M DAYS USER
? test "$(getent shadow USER | cut -d : -f 5)" = DAYS

Let the account of USER expire on DATE.
+ useradd USER
$ chage -E DATE USER
? test "$(getent shadow USER | cut -d : -f 8)" = "$(($(date -u -d DATE +%s) / 86400))"

In DIR/NAME, replace every WORD with WORD2.
+ mkdir DIR
+ printf 'WORD WORD3 WORD\nWORD4 WORD\n' > DIR/NAME
$ sed -i s/WORD/WORD2/g DIR/NAME
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 WORD3 WORD2\nWORD4 WORD2')"

Delete the line NUM of DIR/NAME.
+ mkdir DIR
+ seq 40 > DIR/NAME
$ sed -i NUMd DIR/NAME
? test "$(cat DIR/NAME)" = "$(seq 40 | grep -vx NUM)"

Delete all empty files below DIR, at any depth, and nothing else.
+ mkdir -p DIR/WORD DIR/WORD3 DIR2
+ touch DIR/NAME DIR/WORD/NAME2 DIR2/NAME
+ echo WORD2 > DIR/WORD/NAME
$ find DIR -type f -empty -delete
? test ! -e DIR/NAME
? test ! -e DIR/WORD/NAME2
? test "$(cat DIR/WORD/NAME)" = WORD2
? test -d DIR/WORD3
? test -f DIR2/NAME
? test -e /etc/hostname

Delete all files below DIR, at any depth, whose name ends in .EXT, and nothing else.
+ mkdir -p DIR/WORD DIR2
+ touch DIR/WORD.EXT DIR/WORD/WORD2.EXT DIR/WORD/WORD3.EXT2 DIR2/WORD.EXT
$ find DIR -name '*.EXT' -delete
? test ! -e DIR/WORD.EXT
? test ! -e DIR/WORD/WORD2.EXT
? test -f DIR/WORD/WORD3.EXT2
? test -f DIR2/WORD.EXT
? test -e /etc/hostname

Write the lines of DIR/NAME that contain WORD to DIR/NAME2, in the same order.
+ mkdir DIR
+ printf 'WORD NUM\nWORD2 NUM\nWORD3 WORD\n' > DIR/NAME
$ grep WORD DIR/NAME > DIR/NAME2
? test "$(cat DIR/NAME2)" = "$(printf 'WORD NUM\nWORD3 WORD')"

Write the lines of DIR/NAME that do not contain WORD to DIR/NAME2, in the same order.
+ mkdir DIR
+ printf 'WORD2 NUM\nWORD NUM\nWORD3 WORD2\n' > DIR/NAME
$ grep -v WORD DIR/NAME > DIR/NAME2
? test "$(cat DIR/NAME2)" = "$(printf 'WORD2 NUM\nWORD3 WORD2')"

The columns of DIR/NAME are separated by spaces. Write its second column to DIR/NAME2.
+ mkdir DIR
+ printf 'WORD NUM\nWORD2 NUM2\nWORD3 NUM3\n' > DIR/NAME
$ awk '{print $2}' DIR/NAME > DIR/NAME2
? test "$(cat DIR/NAME2)" = "$(printf 'NUM\nNUM2\nNUM3')"

Each line of DIR/NAME is a word, a space and a number. Write the sum of the numbers to DIR/NAME2.
+ mkdir DIR
+ printf 'WORD NUM\nWORD2 NUM2\nWORD3 ID\n' > DIR/NAME
$ awk '{s += $2} END {print s}' DIR/NAME > DIR/NAME2
? test "$(cat DIR/NAME2)" = "$((NUM + NUM2 + ID))"

Write the number of lines of DIR/NAME to DIR/NAME2: the number alone.
+ mkdir DIR
+ seq NUM > DIR/NAME
$ wc -l < DIR/NAME > DIR/NAME2
? test "$(cat DIR/NAME2)" -eq NUM

Write the names of all that is in DIR to /tmp/NAME, one in each line and in alphabetical order.
+ mkdir DIR
+ touch DIR/NAME2 DIR/NAME3
+ mkdir DIR/WORD
$ ls DIR > /tmp/NAME
? test "$(cat /tmp/NAME)" = "$(printf '%s\n' NAME2 NAME3 WORD | sort)"

In DIR/NAME, put WORD2 in the place of every WORD, with vi (there is no screen: vi -es, and -c for each command).
+ mkdir DIR
+ printf 'WORD3 WORD WORD\nWORD NUM\n' > DIR/NAME
$ vi -es -c %s/WORD/WORD2/g -c wq DIR/NAME
? test "$(cat DIR/NAME)" = "$(printf 'WORD3 WORD2 WORD2\nWORD2 NUM')"
"""
