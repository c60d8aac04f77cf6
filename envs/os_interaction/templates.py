"""The templates of os_interaction's tasks, one in each paragraph:

    instruction     one line or several
    + command       what prepares the machine
    $ command       one line of the solution; the commands in all of them together make the level
    ? condition     what has to hold at the end: a command with exit status 0

Words in capitals are drawn: DIR NAME WORD USER GROUP MODE DMODE NUM ID DAYS DATE SHELL EXT; DIR2, DIR3 and so on are
others of their kind. DIR is an absolute path, NAME a file's name that ends in .txt or .md, EXT another ending, WORD a
word, MODE and DMODE octal modes of a file and of a directory that are not the usual ones, NUM a number from 3 to 9, ID
one from 3000 to 3999.

What a condition expects is written out or counted from what was drawn, never read from files that the agent can change.
Leaving out any line of a solution leaves a condition unmet.
"""

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

Copy the directory DIR with all that is in it to DIR2, which does not exist yet.
+ mkdir -p DIR/WORD
+ echo WORD2 > DIR/WORD/NAME
$ cp -r DIR DIR2
? test "$(cat DIR2/WORD/NAME)" = WORD2
? test "$(cat DIR/WORD/NAME)" = WORD2

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
? test "$(readlink DIR/NAME2)" = DIR/NAME
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
+ printf 'WORD WORD3\nWORD4 WORD\n' > DIR/NAME
$ sed -i s/WORD/WORD2/g DIR/NAME
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 WORD3\nWORD4 WORD2')"

Delete the line NUM of DIR/NAME.
+ mkdir DIR
+ seq 10 > DIR/NAME
$ sed -i NUMd DIR/NAME
? test "$(cat DIR/NAME)" = "$(seq 10 | grep -vx NUM)"

Delete all empty files below DIR, at any depth, and nothing else.
+ mkdir -p DIR/WORD DIR2
+ touch DIR/NAME DIR/WORD/NAME2 DIR2/NAME
+ echo WORD2 > DIR/WORD/NAME
$ find DIR -type f -empty -delete
? test ! -e DIR/NAME
? test ! -e DIR/WORD/NAME2
? test "$(cat DIR/WORD/NAME)" = WORD2
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
+ printf 'WORD3 WORD\nWORD NUM\n' > DIR/NAME
$ vi -es -c %s/WORD/WORD2/g -c wq DIR/NAME
? test "$(cat DIR/NAME)" = "$(printf 'WORD3 WORD2\nWORD2 NUM')"

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
? test "$(readlink DIR)" = DIR2

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
+ printf 'WORD WORD3\nWORD4 WORD\n' > DIR/NAME
$ cp DIR/NAME DIR/NAME.orig
$ vi -es -c %s/WORD/WORD2/g -c wq DIR/NAME
? test "$(cat DIR/NAME.orig)" = "$(printf 'WORD WORD3\nWORD4 WORD')"
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 WORD3\nWORD4 WORD2')"

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

Set up the directory DIR for the new group GROUP: the users USER and USER2, who exist already, are added to it; DIR is
created with the group GROUP and mode 2775, and holds the line WORD in the file NAME.
+ useradd USER
+ useradd USER2
$ groupadd GROUP
$ usermod -aG GROUP USER
$ usermod -aG GROUP USER2
$ mkdir DIR
$ chgrp GROUP DIR
$ chmod 2775 DIR
$ echo WORD > DIR/NAME
? id -nG USER | grep -qw GROUP
? id -nG USER2 | grep -qw GROUP
? test "$(stat -c '%G %a' DIR)" = 'GROUP 2775'
? test "$(cat DIR/NAME)" = WORD

Make a new user USER: user number ID, home directory /home/USER (created), login shell SHELL, a member of the new
group GROUP, whose passwords are valid for at most DAYS days and whose account expires on DATE.
$ groupadd GROUP
$ useradd -m -u ID -s /bin/bash USER
$ chsh -s SHELL USER
$ gpasswd -a USER GROUP
$ chage -M DAYS -E DATE USER
? test "$(id -u USER)" = ID
? test "$(getent passwd USER | cut -d : -f 6-7)" = /home/USER:SHELL
? test -d /home/USER
? id -nG USER | grep -qw GROUP
? test "$(getent shadow USER | cut -d : -f 5)" = DAYS
? test "$(getent shadow USER | cut -d : -f 8)" = "$(($(date -u -d DATE +%s) / 86400))"

Sort the files of DIR: those whose name ends in .EXT go into the new directory DIR/EXT, those in .EXT2 into the new
directory DIR/EXT2. Write how many files each of the two then holds to DIR/NAME: first that of EXT, then that of EXT2,
a number in each line.
+ mkdir DIR
+ touch DIR/{1..NUM}.EXT DIR/{1..NUM2}.EXT2
$ mkdir DIR/EXT DIR/EXT2
$ mv DIR/*.EXT DIR/EXT
$ mv DIR/*.EXT2 DIR/EXT2
$ ls DIR/EXT | wc -l > DIR/NAME
$ ls DIR/EXT2 | wc -l >> DIR/NAME
? test "$(find DIR/EXT -name '*.EXT' | wc -l)" -eq NUM
? test "$(find DIR/EXT2 -name '*.EXT2' | wc -l)" -eq NUM2
? test "$(find DIR -maxdepth 1 -type f | wc -l)" -eq 1
? test "$(tr -d ' ' < DIR/NAME)" = "$(printf 'NUM\nNUM2')"

Move USER from the group GROUP to the group GROUP2, which does not exist yet, and give the directory DIR with all that
is below it to USER and GROUP2 as owner and group. Of DIR itself, others may do nothing and the group everything (mode
770).
+ groupadd GROUP
+ useradd -G GROUP USER
+ mkdir -p DIR/WORD
+ touch DIR/WORD/NAME
$ addgroup GROUP2
$ gpasswd -d USER GROUP
$ gpasswd -a USER GROUP2
$ chown -R USER DIR
$ chgrp -R GROUP2 DIR
$ chmod 770 DIR
? id -nG USER | grep -qw GROUP2
? test -z "$(getent group GROUP | cut -d : -f 4)"
? test "$(stat -c '%U %G %a' DIR)" = 'USER GROUP2 770'
? test "$(stat -c '%U %G' DIR/WORD/NAME)" = 'USER GROUP2'

Clean up below DIR: delete all files whose name ends in .EXT and all that are empty, write the number of regular files
that are left to DIR/NAME (without counting that file), make GROUP the group of DIR and of all that is left below it,
and set the mode of DIR to DMODE.
+ groupadd GROUP
+ mkdir -p DIR/WORD DIR/WORD2
+ echo WORD3 | tee DIR/WORD.EXT DIR/WORD/WORD4.EXT > DIR/WORD2/WORD3.EXT
+ touch DIR/WORD/WORD3.EXT2
+ for i in $(seq NUM); do echo $i > DIR/WORD2/$i.EXT2; done
$ find DIR -name '*.EXT' -delete
$ find DIR -type f -empty -delete
$ find DIR -type f | wc -l > /tmp/count; mv /tmp/count DIR/NAME
$ chgrp -R GROUP DIR
$ chmod DMODE DIR
? test "$(find DIR -name '*.EXT' | wc -l)" -eq 0
? test ! -e DIR/WORD/WORD3.EXT2
? test "$(find DIR/WORD2 -name '*.EXT2' -group GROUP | wc -l)" -eq NUM
? test "$(cat DIR/NAME)" -eq NUM
? test "$(stat -c '%G %a' DIR)" = 'GROUP DMODE'

The log DIR/NAME has a level (info, warn or error), a space and a word in each line. Write the lines of level error to
DIR/error.log and those of level warn to DIR/warn.log, in their order; write the words of the errors, sorted and
without repeats, to DIR/words.log; then delete DIR/NAME.
+ mkdir DIR
+ printf 'info WORD3\nerror WORD\nwarn WORD2\nerror WORD4\nwarn WORD\nerror WORD\n' > DIR/NAME
$ grep '^error' DIR/NAME > DIR/error.log
$ grep '^warn' DIR/NAME > DIR/warn.log
$ awk '$1 == "error" {print $2}' DIR/NAME | sort | uniq > DIR/words.log
$ rm DIR/NAME
? test "$(cat DIR/error.log)" = "$(printf 'error WORD\nerror WORD4\nerror WORD')"
? test "$(cat DIR/warn.log)" = "$(printf 'warn WORD2\nwarn WORD')"
? test "$(cat DIR/words.log)" = "$(printf '%s\n' WORD WORD4 | sort)"
? test ! -e DIR/NAME

Back up DIR: copy it with all that is in it to DIR2, set the mode of all regular files in the copy to 440, make USER
the owner of the copy and of all that is below it, write the names of the entries of DIR2 in alphabetical order to
/tmp/NAME3, and make DIR/WORD a symbolic link to DIR2.
+ useradd USER
+ mkdir DIR
+ echo WORD2 | tee DIR/NAME > DIR/NAME2
$ cp -r DIR DIR2
$ find DIR2 -type f -exec chmod 440 {} +
$ chown -R USER DIR2
$ ls DIR2 > /tmp/NAME3
$ ln -s DIR2 DIR/WORD
? test "$(cat DIR2/NAME DIR2/NAME2)" = "$(printf 'WORD2\nWORD2')"
? test "$(stat -c '%U %a' DIR2/NAME)" = 'USER 440'
? test "$(stat -c '%U %a' DIR2/NAME2)" = 'USER 440'
? test "$(stat -c '%U %a' DIR/NAME)" = 'root 644'
? test "$(stat -c %U DIR2)" = USER
? test "$(cat /tmp/NAME3)" = "$(printf '%s\n' NAME NAME2 | sort)"
? test "$(readlink DIR/WORD)" = DIR2

Change the settings in DIR/NAME: the value of WORD becomes NUM, the line of WORD2 is deleted, and the line WORD4=NUM2
is added at the end. Before that, keep a copy as DIR/NAME.old with mode 400. Make GROUP, which does not exist yet, the
group of DIR/NAME, with mode 640.
+ mkdir DIR
+ printf 'WORD=1\nWORD2=2\nWORD3=ID\n' > DIR/NAME
$ cp DIR/NAME DIR/NAME.old
$ chmod 400 DIR/NAME.old
$ sed -i s/^WORD=.*/WORD=NUM/ DIR/NAME
$ sed -i /^WORD2=/d DIR/NAME
$ echo WORD4=NUM2 >> DIR/NAME
$ groupadd GROUP
$ chgrp GROUP DIR/NAME
$ chmod 640 DIR/NAME
? test "$(cat DIR/NAME.old)" = "$(printf 'WORD=1\nWORD2=2\nWORD3=ID')"
? test "$(stat -c %a DIR/NAME.old)" = 400
? test "$(sed -n 1p DIR/NAME)" = WORD=NUM
? test "$(sed -n 2p DIR/NAME)" = WORD3=ID
? test "$(sed -n '3,$p' DIR/NAME)" = WORD4=NUM2
? test "$(stat -c '%G %a' DIR/NAME)" = 'GROUP 640'

Retire the user USER: lock the password, let the account expire on DATE, change the login shell to /usr/sbin/nologin,
take the user out of the group GROUP, make USER2 the owner of the directory DIR with all that is below it, and write
the line WORD to DIR/NAME.
+ groupadd GROUP
+ useradd -G GROUP -s /bin/bash -p WORD2 USER
+ useradd USER2
+ mkdir -p DIR/WORD3
+ chown -R USER DIR
$ usermod -L USER
$ chage -E DATE USER
$ usermod -s /usr/sbin/nologin USER
$ gpasswd -d USER GROUP
$ chown -R USER2 DIR
$ echo WORD > DIR/NAME
? test "$(getent shadow USER | cut -d : -f 2)" = '!WORD2'
? test "$(getent shadow USER | cut -d : -f 8)" = "$(($(date -u -d DATE +%s) / 86400))"
? test "$(getent passwd USER | cut -d : -f 7)" = /usr/sbin/nologin
? test -z "$(getent group GROUP | cut -d : -f 4)"
? test "$(stat -c %U DIR)" = USER2
? test "$(stat -c %U DIR/WORD3)" = USER2
? test "$(cat DIR/NAME)" = WORD

In DIR, number the files: rename WORD.EXT to 1.EXT, WORD2.EXT to 2.EXT and WORD3.EXT to 3.EXT. Join them in this order
in DIR/all.EXT, write the number of its lines to DIR/lines, and make all.EXT read-only for everybody (mode 444).
+ mkdir DIR
+ seq NUM > DIR/WORD.EXT
+ echo WORD4 > DIR/WORD2.EXT
+ seq NUM2 > DIR/WORD3.EXT
$ cd DIR && mv WORD.EXT 1.EXT
$ cd DIR && mv WORD2.EXT 2.EXT
$ mv DIR/WORD3.EXT DIR/3.EXT
$ cat DIR/1.EXT DIR/2.EXT DIR/3.EXT > DIR/all.EXT
$ wc -l < DIR/all.EXT > DIR/lines
$ chmod 444 DIR/all.EXT
? test "$(cat DIR/1.EXT)" = "$(seq NUM)"
? test "$(cat DIR/2.EXT)" = WORD4
? test "$(cat DIR/3.EXT)" = "$(seq NUM2)"
? test "$(cat DIR/all.EXT)" = "$(seq NUM; echo WORD4; seq NUM2)"
? test "$(cat DIR/lines)" -eq $((NUM + NUM2 + 1))
? test "$(stat -c %a DIR/all.EXT)" = 444

Make a script DIR/WORD.sh for bash with mode 750 and the owner USER, who exists already. Called with a number, it
prints the number plus NUM; called without, it prints the line usage and ends with exit status 2. Run it with 40 and
write its output to DIR/NAME, and write the line WORD2 to DIR/NAME2.
+ useradd USER
+ mkdir DIR
$ echo 'if [ $# -eq 0 ]; then echo usage; exit 2; fi' > DIR/WORD.sh
$ echo 'echo $(($1 + NUM))' >> DIR/WORD.sh
$ chown USER DIR/WORD.sh
$ chmod 750 DIR/WORD.sh
$ bash DIR/WORD.sh 40 > DIR/NAME
$ echo WORD2 > DIR/NAME2
? test "$(bash DIR/WORD.sh 17)" = $((17 + NUM))
? test "$(bash DIR/WORD.sh)" = usage
? (bash DIR/WORD.sh; test $? -eq 2)
? test "$(stat -c '%U %a' DIR/WORD.sh)" = 'USER 750'
? test "$(cat DIR/NAME)" = $((40 + NUM))
? test "$(cat DIR/NAME2)" = WORD2

For each of the users USER, USER2 and USER3 that exists, create a directory in DIR that has the user's name, belongs
to the user and has mode 700. At the end, write the names of the directories in DIR, in alphabetical order, to
/tmp/NAME.
+ useradd USER
+ useradd USER3
+ mkdir DIR
$ id USER || exit; mkdir DIR/USER; chown USER DIR/USER; chmod 700 DIR/USER
$ mkdir -m 700 DIR/USER3; chown USER3 DIR/USER3
$ ls DIR > /tmp/NAME
? test "$(stat -c '%U %a' DIR/USER)" = 'USER 700'
? test "$(stat -c '%U %a' DIR/USER3)" = 'USER3 700'
? test ! -e DIR/USER2
? test "$(cat /tmp/NAME)" = "$(printf '%s\n' USER USER3 | sort)"

Queue three jobs: create the empty files DIR/1.EXT, DIR/2.EXT and DIR/3.EXT in this order, with at least NUM seconds
between one and the next. Then write their names, without the directory, the latest first, to /tmp/NAME.
+ mkdir DIR
$ touch DIR/1.EXT
$ sleep NUM
$ touch DIR/2.EXT
$ sleep NUM
$ touch DIR/3.EXT
$ ls -t DIR > /tmp/NAME
? test $(($(stat -c %Y DIR/2.EXT) - $(stat -c %Y DIR/1.EXT))) -ge NUM
? test $(($(stat -c %Y DIR/3.EXT) - $(stat -c %Y DIR/2.EXT))) -ge NUM
? test "$(cat /tmp/NAME)" = "$(printf '3.EXT\n2.EXT\n1.EXT')"

Each line of DIR/NAME is a name, a colon and a number. Make a directory DIR/WORD and write there: to sum the sum of
the numbers, to top the line with the greatest number, to names the names in alphabetical order, a line each.
+ mkdir DIR
+ printf 'USER:NUM\nUSER2:ID\nUSER3:1ID\nUSER4:NUM2\n' > DIR/NAME
$ mkdir DIR/WORD
$ awk -F : '{s += $2} END {print s}' DIR/NAME > DIR/WORD/sum
$ sort -t : -k 2 -n DIR/NAME | tail -n 1 > DIR/WORD/top
$ awk -F : '{print $1}' DIR/NAME | sort > DIR/WORD/names
? test "$(cat DIR/WORD/sum)" = $((NUM + ID + 1ID + NUM2))
? test "$(cat DIR/WORD/top)" = USER3:1ID
? test "$(cat DIR/WORD/names)" = "$(printf '%s\n' USER USER2 USER3 USER4 | sort)"

Tidy the text DIR/NAME with vi, which has no screen here (vi -es, and -c for each command): delete its first line,
replace every WORD with WORD2, and save it. Write the words of the text to DIR/NAME2, one in each line, sorted and
without repeats, and the number of those lines to DIR/NAME3.
+ mkdir DIR
+ printf 'WORD3\nWORD WORD4\nWORD5 WORD\nWORD4\n' > DIR/NAME
$ vi -es -c 1d -c %s/WORD/WORD2/g -c wq DIR/NAME
$ cat DIR/NAME | tr ' ' '\n' | sort -u > DIR/NAME2
$ wc -l < DIR/NAME2 > DIR/NAME3
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 WORD4\nWORD5 WORD2\nWORD4')"
? test "$(cat DIR/NAME2)" = "$(printf '%s\n' WORD2 WORD4 WORD5 | sort)"
? test "$(cat DIR/NAME3)" -eq 3

Set up a shared project. Create the groups GROUP and GROUP2 and the users USER and USER2 with home directories; USER
is a member of both groups, USER2 of GROUP2 alone. Create DIR/WORD with the group GROUP and mode 2770, and DIR/WORD2
with the group GROUP2 and mode 2775. USER is the owner of both. Write the line WORD3 to DIR/WORD/NAME.
+ mkdir DIR
$ groupadd GROUP
$ groupadd GROUP2
$ useradd -m -G GROUP,GROUP2 USER
$ useradd -m -G GROUP2 USER2
$ mkdir DIR/WORD DIR/WORD2
$ chgrp GROUP DIR/WORD
$ chgrp GROUP2 DIR/WORD2
$ chmod 2770 DIR/WORD
$ chmod 2775 DIR/WORD2
$ chown USER DIR/WORD DIR/WORD2
$ echo WORD3 > DIR/WORD/NAME
? id -nG USER | grep -w GROUP | grep -qw GROUP2
? id -nG USER2 | grep -qw GROUP2
? test "$(getent group GROUP | cut -d : -f 4)" = USER
? test -d /home/USER
? test -d /home/USER2
? test "$(stat -c '%U %G %a' DIR/WORD)" = 'USER GROUP 2770'
? test "$(stat -c '%U %G %a' DIR/WORD2)" = 'USER GROUP2 2775'
? test "$(cat DIR/WORD/NAME)" = WORD3

Prepare the account USER, who exists already: login shell SHELL, comment WORD, passwords valid for at least 1 and at
most DAYS days with a warning 5 days before, the account expires on DATE, and USER is the administrator and a member
of the new group GROUP with the group number ID. Create DIR with the owner USER, the group GROUP and mode DMODE, and
in it an empty file NAME.
+ useradd -s /bin/bash USER
$ chsh -s SHELL USER
$ usermod -c WORD USER
$ chage -m 1 -M DAYS -W 5 USER
$ chage -E DATE USER
$ addgroup --gid ID GROUP
$ gpasswd -A USER GROUP
$ gpasswd -a USER GROUP
$ mkdir DIR
$ touch DIR/NAME
$ chown USER DIR
$ chgrp GROUP DIR
$ chmod DMODE DIR
? test "$(getent passwd USER | cut -d : -f 5,7)" = WORD:SHELL
? test "$(getent shadow USER | cut -d : -f 4-6)" = 1:DAYS:5
? test "$(getent shadow USER | cut -d : -f 8)" = "$(($(date -u -d DATE +%s) / 86400))"
? test "$(getent group GROUP | cut -d : -f 3-4)" = ID:USER
? grep -q '^GROUP:[^:]*:USER:' /etc/gshadow
? test "$(stat -c '%U %G %a' DIR)" = 'USER GROUP DMODE'
? test -f DIR/NAME

Release DIR/WORD: copy it with all that is in it to DIR/WORD2. In the copy, replace every WORD3 with WORD4 in NAME,
delete all files whose name ends in .EXT, and create an empty file done. Set the mode of NAME in the copy to 444 and
of the directory DIR/WORD2 to 755 (it is copied with mode 700). Make DIR/current a symbolic link to DIR/WORD2, write
the names of all that is in DIR/WORD2 to DIR/NAME2, in alphabetical order, and the number of the lines of that list to
DIR/NAME3, and make GROUP the group of DIR/NAME2. The group does not exist yet.
+ mkdir -p -m 700 DIR/WORD
+ printf 'WORD3\nWORD5 WORD3\n' > DIR/WORD/NAME
+ touch DIR/WORD/{1..NUM}.EXT DIR/WORD/{1..NUM2}.EXT2
$ cp -r DIR/WORD DIR/WORD2
$ sed -i s/WORD3/WORD4/g DIR/WORD2/NAME
$ find DIR/WORD2 -name '*.EXT' -delete
$ touch DIR/WORD2/done
$ chmod 444 DIR/WORD2/NAME
$ chmod 755 DIR/WORD2
$ ln -s DIR/WORD2 DIR/current
$ ls DIR/WORD2 > DIR/NAME2
$ wc -l < DIR/NAME2 > DIR/NAME3
$ groupadd GROUP
$ chgrp GROUP DIR/NAME2
? test "$(cat DIR/WORD2/NAME)" = "$(printf 'WORD4\nWORD5 WORD4')"
? test "$(cat DIR/WORD/NAME)" = "$(printf 'WORD3\nWORD5 WORD3')"
? test ! -e DIR/WORD2/1.EXT
? test -f DIR/WORD2/done
? test "$(stat -c %a DIR/WORD2)" = 755
? test "$(stat -c %a DIR/WORD2/NAME)" = 444
? test "$(readlink DIR/current)" = DIR/WORD2
? test "$(cat DIR/NAME2)" = "$(printf '%s\n' NAME done $(seq -f %g.EXT2 NUM2) | sort)"
? test "$(cat DIR/NAME3)" -eq $((NUM2 + 2))
? test "$(stat -c %G DIR/NAME2)" = GROUP

Close the shop DIR. Write the sum of the numbers in DIR/NAME (each line: a word, a space, a number) to DIR/total, and
its lines sorted by the number, the smallest first, to DIR/NAME2. Delete DIR/NAME. Move DIR/NAME2 into the new
directory DIR/WORD and make a symbolic link DIR/last to where it is then. Create the group GROUP, add USER, who exists
already, to it, and give DIR/WORD the group GROUP and mode DMODE.
+ useradd USER
+ mkdir DIR
+ printf 'WORD2 ID\nWORD3 NUM\nWORD4 2ID\n' > DIR/NAME
$ awk '{s += $2} END {print s}' DIR/NAME > DIR/total
$ sort -k 2 -n DIR/NAME > DIR/NAME2
$ rm DIR/NAME
$ mkdir DIR/WORD
$ mv DIR/NAME2 DIR/WORD
$ ln -s DIR/WORD/NAME2 DIR/last
$ groupadd GROUP
$ usermod -aG GROUP USER
$ chgrp GROUP DIR/WORD
$ chmod DMODE DIR/WORD
? test "$(cat DIR/total)" = $((NUM + ID + 2ID))
? test "$(cat DIR/WORD/NAME2)" = "$(printf 'WORD3 NUM\nWORD2 ID\nWORD4 2ID')"
? test ! -e DIR/NAME
? test ! -e DIR/NAME2
? test "$(readlink DIR/last)" = DIR/WORD/NAME2
? id -nG USER | grep -qw GROUP
? test "$(stat -c '%G %a' DIR/WORD)" = 'GROUP DMODE'

Write a bash script DIR/WORD.sh, mode 755, that creates the empty file DIR/done if the directory DIR/WORD2 exists, and
ends with exit status NUM if not, creating nothing. Run it, with DIR/WORD2 not there yet, and write its exit status to
DIR/first. Create DIR/WORD2, run it again and write its exit status to DIR/second. Write the lines of DIR/first and
DIR/second to DIR/NAME, make USER, who exists already, the owner of DIR/WORD.sh, and set the mode of DIR/NAME to MODE.
+ useradd USER
+ mkdir DIR
$ echo 'cd DIR/WORD2 2> /dev/null || exit NUM; touch DIR/done' > DIR/WORD.sh
$ chmod 755 DIR/WORD.sh
$ bash DIR/WORD.sh; echo $? > DIR/first
$ mkdir DIR/WORD2
$ bash DIR/WORD.sh; echo $? > DIR/second
$ cat DIR/first DIR/second > DIR/NAME
$ chown USER DIR/WORD.sh
$ chmod MODE DIR/NAME
? test "$(stat -c '%U %a' DIR/WORD.sh)" = 'USER 755'
? test "$(cat DIR/first)" = NUM
? test "$(cat DIR/second)" = 0
? test -f DIR/done
? test -d DIR/WORD2
? test "$(cat DIR/NAME)" = "$(printf 'NUM\n0')"
? test "$(stat -c %a DIR/NAME)" = MODE

Move the staff of GROUP to GROUP2. Both groups exist, with USER and USER2 as the members of GROUP and nobody in
GROUP2. Take both out of GROUP and add them to GROUP2, and make USER its administrator. Change the login shell of both
to SHELL, and let the account of USER2 expire on DATE. Give the directory DIR with all that is below it the group
GROUP2, set the mode of DIR to 2770, and write a line with the two names, USER first, with a space between, to
DIR/NAME.
+ groupadd GROUP
+ groupadd GROUP2
+ useradd -s /bin/bash -G GROUP USER
+ useradd -s /bin/bash -G GROUP USER2
+ mkdir -p DIR/WORD
$ gpasswd -d USER GROUP
$ gpasswd -d USER2 GROUP
$ gpasswd -a USER GROUP2
$ gpasswd -a USER2 GROUP2
$ gpasswd -A USER GROUP2
$ chsh -s SHELL USER
$ chsh -s SHELL USER2
$ chage -E DATE USER2
$ chgrp -R GROUP2 DIR
$ chmod 2770 DIR
$ echo 'USER USER2' > DIR/NAME
? test -z "$(getent group GROUP | cut -d : -f 4)"
? id -nG USER | grep -qw GROUP2
? id -nG USER2 | grep -qw GROUP2
? grep -q '^GROUP2:[^:]*:USER:' /etc/gshadow
? test "$(getent passwd USER | cut -d : -f 7)" = SHELL
? test "$(getent passwd USER2 | cut -d : -f 7)" = SHELL
? test "$(getent shadow USER2 | cut -d : -f 8)" = "$(($(date -u -d DATE +%s) / 86400))"
? test "$(stat -c '%G %a' DIR)" = 'GROUP2 2770'
? test "$(stat -c %G DIR/WORD)" = GROUP2
? test "$(cat DIR/NAME)" = 'USER USER2'

Archive DIR in DIR2, which does not exist yet: create DIR2/WORD and DIR2/WORD2, move the files of DIR whose name ends
in .EXT into DIR2/WORD and those in .EXT2 into DIR2/WORD2. Then wait for NUM seconds, and create the empty file
DIR/archived. Write the number of files in DIR2/WORD and then that of DIR2/WORD2 to DIR2/NAME, a number in each line.
Set the mode of all regular files below DIR2 to 440, and make GROUP, which exists already, the group of DIR2 and of
all that is below it.
+ groupadd GROUP
+ mkdir DIR
+ touch DIR/{1..NUM2}.EXT DIR/{1..NUM3}.EXT2
$ mkdir -p DIR2/WORD DIR2/WORD2
$ mv DIR/*.EXT DIR2/WORD
$ mv DIR/*.EXT2 DIR2/WORD2
$ sleep NUM; touch DIR/archived
$ ls DIR2/WORD | wc -l > DIR2/NAME
$ ls DIR2/WORD2 | wc -l | tee -a DIR2/NAME
$ find DIR2 -type f -exec chmod 440 {} +
$ chgrp -R GROUP DIR2
? test "$(find DIR2/WORD -name '*.EXT' -perm 440 -group GROUP | wc -l)" -eq NUM2
? test "$(find DIR2/WORD2 -name '*.EXT2' -perm 440 -group GROUP | wc -l)" -eq NUM3
? test "$(ls DIR)" = archived
? test $(($(stat -c %Y DIR/archived) - $(stat -c %Y DIR2/WORD))) -ge NUM
? test "$(tr -d ' ' < DIR2/NAME)" = "$(printf 'NUM2\nNUM3')"
? test "$(stat -c '%G %a' DIR2/NAME)" = 'GROUP 440'

Put the list DIR/NAME, a user name in each line, to use: create each of these users with a home directory (there are
three: USER, USER2 and USER3), and the group GROUP with exactly USER and USER3 as members. Write to DIR/NAME2 the
lines of the list in alphabetical order, and to DIR/NAME3 how many there are. Create the file welcome with the line
WORD in the home directory of USER, make USER its owner and set its mode to MODE. Delete DIR/NAME.
+ mkdir DIR
+ printf '%s\n' USER USER2 USER3 > DIR/NAME
$ useradd -m USER
$ useradd -m USER2
$ useradd -m USER3
$ addgroup GROUP
$ gpasswd -M USER,USER3 GROUP
$ sort DIR/NAME > DIR/NAME2
$ wc -l < DIR/NAME2 > DIR/NAME3
$ echo WORD > /home/USER/welcome
$ chown USER /home/USER/welcome
$ chmod MODE /home/USER/welcome
$ rm DIR/NAME
? test -d /home/USER
? test -d /home/USER2
? test -d /home/USER3
? getent passwd USER
? getent passwd USER2
? getent passwd USER3
? id -nG USER | grep -qw GROUP
? id -nG USER3 | grep -qw GROUP
? test "$(getent group GROUP | cut -d : -f 4 | tr , '\n' | wc -l)" -eq 2
? test "$(cat DIR/NAME2)" = "$(printf '%s\n' USER USER2 USER3 | sort)"
? test "$(cat DIR/NAME3)" -eq 3
? test "$(cat /home/USER/welcome)" = WORD
? test "$(stat -c '%U %a' /home/USER/welcome)" = 'USER MODE'
? test ! -e DIR/NAME

Edit the report in DIR, which has the parts 1.EXT, 2.EXT and 3.EXT. In 1.EXT replace every WORD with WORD2; delete the
first line of 2.EXT; in 3.EXT replace every WORD3 with WORD4, with vi (without a screen: vi -es, and -c for each
command) or otherwise. Join the three in this order in DIR/NAME, and delete them. Write the lines of DIR/NAME that
contain WORD2 to DIR/NAME2 and their number to DIR/NAME3. Copy DIR/NAME to /tmp/NAME, set the mode of the copy to 444,
and add the line end at the end of DIR/NAME.
+ mkdir DIR
+ printf 'WORD NUM\nWORD5 WORD\n' > DIR/1.EXT
+ printf 'WORD2\nWORD2 NUM2\n' > DIR/2.EXT
+ printf 'WORD3\nNUM3 WORD3\n' > DIR/3.EXT
$ sed -i s/WORD/WORD2/g DIR/1.EXT
$ sed -i 1d DIR/2.EXT
$ vi -es -c %s/WORD3/WORD4/g -c wq DIR/3.EXT
$ cd DIR && cat 1.EXT 2.EXT 3.EXT > NAME
$ rm DIR/1.EXT DIR/2.EXT DIR/3.EXT
$ grep WORD2 DIR/NAME > DIR/NAME2
$ wc -l < DIR/NAME2 > DIR/NAME3
$ cp DIR/NAME /tmp/NAME
$ chmod 444 /tmp/NAME
$ echo end >> DIR/NAME
? test "$(cat /tmp/NAME)" = "$(printf 'WORD2 NUM\nWORD5 WORD2\nWORD2 NUM2\nWORD4\nNUM3 WORD4')"
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 NUM\nWORD5 WORD2\nWORD2 NUM2\nWORD4\nNUM3 WORD4\nend')"
? test "$(cat DIR/NAME2)" = "$(printf 'WORD2 NUM\nWORD5 WORD2\nWORD2 NUM2')"
? test "$(cat DIR/NAME3)" -eq 3
? test "$(stat -c %a /tmp/NAME)" = 444
? test "$(find DIR -name '*.EXT' | wc -l)" -eq 0

Lay out a site in DIR, which does not exist yet: the directories DIR/WORD, DIR/WORD2 and DIR/WORD3; the line NUM in
DIR/WORD/NAME and in DIR/WORD2/NAME; DIR/WORD3/NAME as a hard link to DIR/WORD/NAME and DIR/NAME2 as a symbolic link
to DIR/WORD2/NAME. USER, who exists already, owns DIR/WORD with all that is in it; mode DMODE for DIR/WORD3, mode MODE
for DIR/WORD2/NAME. Then write the names of the directories in DIR, in alphabetical order, to /tmp/NAME3, their number
to /tmp/NAME4, and rename DIR to DIR.live; the symbolic link is made again so that it points to the file where it is
then, DIR.live/WORD2/NAME.
+ useradd USER
$ mkdir -p DIR/WORD DIR/WORD2 DIR/WORD3
$ echo NUM | tee DIR/WORD/NAME DIR/WORD2/NAME
$ ln DIR/WORD/NAME DIR/WORD3/NAME
$ chown -R USER DIR/WORD
$ chmod DMODE DIR/WORD3
$ chmod MODE DIR/WORD2/NAME
$ ls DIR > /tmp/NAME3
$ wc -l < /tmp/NAME3 > /tmp/NAME4
$ mv DIR DIR.live
$ ln -sfn DIR.live/WORD2/NAME DIR.live/NAME2
? test "$(stat -c '%U %h' DIR.live/WORD/NAME)" = 'USER 2'
? test DIR.live/WORD/NAME -ef DIR.live/WORD3/NAME
? test "$(cat DIR.live/WORD/NAME)" = NUM
? test "$(cat DIR.live/WORD2/NAME)" = NUM
? test "$(stat -c %U DIR.live/WORD)" = USER
? test "$(stat -c %a DIR.live/WORD3)" = DMODE
? test "$(stat -c %a DIR.live/WORD2/NAME)" = MODE
? test "$(cat /tmp/NAME3)" = "$(printf '%s\n' WORD WORD2 WORD3 | sort)"
? test "$(cat /tmp/NAME4)" -eq 3
? test "$(readlink DIR.live/NAME2)" = DIR.live/WORD2/NAME
? test ! -e DIR

Separate the accounts: USER, USER2 and USER3 exist already. Lock the passwords of USER and USER2. Passwords of USER3
are valid for at most DAYS days, the comment of USER3 becomes WORD, the home directory of USER3 is moved with all that
is in it to /home/WORD2, and the login name stays. Delete the directory /home/USER with all that is in it, and give
/home/USER2 with all that is below it to USER3 as the owner, with mode 700 for /home/USER2 itself. Create the group
GROUP with the group number ID, with USER3 as its only member, and write the line GROUP to DIR/NAME, where DIR is to
be created first.
+ useradd -m -p WORD3 USER
+ useradd -m -p WORD4 USER2
+ useradd -m USER3
+ touch /home/USER2/NAME2 /home/USER3/NAME3
$ usermod -L USER
$ usermod -L USER2
$ chage -M DAYS USER3
$ usermod -c WORD -m -d /home/WORD2 USER3
$ rm -r /home/USER
$ chown -R USER3 /home/USER2
$ chmod 700 /home/USER2
$ addgroup --gid ID GROUP
$ gpasswd -a USER3 GROUP
$ mkdir DIR
$ echo GROUP > DIR/NAME
? test "$(getent shadow USER | cut -d : -f 2)" = '!WORD3'
? test "$(getent shadow USER2 | cut -d : -f 2)" = '!WORD4'
? test "$(getent shadow USER3 | cut -d : -f 5)" = DAYS
? test "$(getent passwd USER3 | cut -d : -f 5-6)" = WORD:/home/WORD2
? test -f /home/WORD2/NAME3
? test ! -e /home/USER3
? test ! -e /home/USER
? test "$(stat -c '%U %a' /home/USER2)" = 'USER3 700'
? test "$(stat -c %U /home/USER2/NAME2)" = USER3
? test "$(getent group GROUP | cut -d : -f 3-4)" = ID:USER3
? test "$(cat DIR/NAME)" = GROUP
"""
