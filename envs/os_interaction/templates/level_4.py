"""Templates of level 4, with 9 to 12 commands; the package's docstring explains their format."""

TEMPLATES = r"""
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
+ printf 'WORD3\nWORD3 WORD5 WORD3\n' > DIR/WORD/NAME
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
? test "$(cat DIR/WORD2/NAME)" = "$(printf 'WORD4\nWORD4 WORD5 WORD4')"
? test "$(cat DIR/WORD/NAME)" = "$(printf 'WORD3\nWORD3 WORD5 WORD3')"
? test ! -e DIR/WORD2/1.EXT
? test -f DIR/WORD2/done
? test "$(stat -c %a DIR/WORD2)" = 755
? test "$(stat -c %a DIR/WORD2/NAME)" = 444
? test -L DIR/current -a "$(readlink -f DIR/current)" = DIR/WORD2
? test "$(cat DIR/NAME2)" = "$(printf '%s\n' NAME done $(seq -f %g.EXT2 NUM2) | sort)"
? test "$(cat DIR/NAME3)" -eq $((NUM2 + 2))
? test "$(stat -c %G DIR/NAME2)" = GROUP
? test ! DIR/WORD -ef DIR/WORD2

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
? test -L DIR/last -a "$(readlink -f DIR/last)" = DIR/WORD/NAME2
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
? getent passwd USER
? getent passwd USER2

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
+ printf 'WORD NUM\nWORD WORD5 WORD\n' > DIR/1.EXT
+ printf 'WORD2\nWORD2 NUM2\n' > DIR/2.EXT
+ printf 'WORD3\nWORD3 NUM3 WORD3\n' > DIR/3.EXT
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
? test "$(cat /tmp/NAME)" = "$(printf 'WORD2 NUM\nWORD2 WORD5 WORD2\nWORD2 NUM2\nWORD4\nWORD4 NUM3 WORD4')"
? test "$(cat DIR/NAME)" = "$(printf 'WORD2 NUM\nWORD2 WORD5 WORD2\nWORD2 NUM2\nWORD4\nWORD4 NUM3 WORD4\nend')"
? test "$(cat DIR/NAME2)" = "$(printf 'WORD2 NUM\nWORD2 WORD5 WORD2\nWORD2 NUM2')"
? test "$(cat DIR/NAME3)" -eq 3
? test "$(stat -c %a /tmp/NAME)" = 444
? test "$(find DIR -name '*.EXT' | wc -l)" -eq 0
? test ! DIR/NAME -ef /tmp/NAME

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
? test -L DIR.live/NAME2 -a "$(readlink -f DIR.live/NAME2)" = DIR.live/WORD2/NAME
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
