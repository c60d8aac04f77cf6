"""The templates of os_interaction's tasks, one file per level, one template per paragraph:

    instruction     one line or several
    + command       prepares the machine
    $ command       one line of the solution; the number of commands in all of them is the level
    ? condition     must hold at the end: a command with exit status 0

Words in capitals are slots with random values: DIR NAME WORD USER GROUP MODE DMODE NUM ID DAYS DATE SHELL EXT; DIR2,
DIR3 and so on are other values of the same kind. DIR is an absolute path, NAME a file name that ends in .txt or .md,
EXT another ending, WORD a word, MODE and DMODE unusual octal modes of a file and of a directory, NUM a number from 3
to 9, ID a number from 3000 to 3999.

A condition's expected values are written out or computed from the slots, never read from files that the agent can
change. Leaving out any line of a solution leaves a condition unmet.
"""

from envs.os_interaction.templates import level_1, level_2, level_3, level_4

TEMPLATES = "".join(level.TEMPLATES for level in (level_1, level_2, level_3, level_4))
