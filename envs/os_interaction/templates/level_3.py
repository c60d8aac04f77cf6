"""Templates of level 3, with 5 to 8 commands; the package's docstring explains their format."""

TEMPLATES = r"""
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
? getent passwd USER

Clean up below DIR: delete all files whose name ends in .EXT and all files that are empty, write the number of regular
files that are left to DIR/NAME (without counting that file), make GROUP the group of DIR and of all that is left below
it, and set the mode of DIR to DMODE.
+ groupadd GROUP
+ mkdir -p DIR/WORD DIR/WORD2 DIR/WORD5
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
? test -d DIR/WORD5
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
? test -L DIR/WORD -a "$(readlink -f DIR/WORD)" = DIR2
? test ! DIR -ef DIR2

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
? test ! DIR/NAME -ef DIR/NAME.old

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
? getent passwd USER

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
+ printf 'WORD3\nWORD WORD4\nWORD WORD5 WORD\nWORD4\n' > DIR/NAME
$ vi -es -c 1d -c %s/WORD/WORD2/g -c wq DIR/NAME
$ cat DIR/NAME | tr ' ' '\n' | sort -u > DIR/NAME2
$ wc -l < DIR/NAME2 > DIR/NAME3
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 WORD4\nWORD2 WORD5 WORD2\nWORD4')"
? test "$(cat DIR/NAME2)" = "$(printf '%s\n' WORD2 WORD4 WORD5 | sort)"
? test "$(cat DIR/NAME3)" -eq 3
"""
