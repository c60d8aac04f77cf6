"""The command line of a program with dataclasses of its own: key=value in, instances out.

    [keys] = program.parse(sys.argv[1:], "merge.py", Keys, about=__doc__)
    keys, options = program.parse(words, "envs.serve", Keys, textcraft=Config)      # Config's keys are textcraft.NAME

A field without a default must be given. rl/config/arguments.py has the types that a field may have. Imports the
standard library, and arguments.py, refusals.py and help.py beside it.
"""

from dataclasses import MISSING, fields

from rl.config import arguments, help
from rl.config.arguments import ArgumentError
from rl.config.refusals import unknown_key


def parse(
    words: list[str], program: str, *classes: type, about: str = "", positional: str = "", **groups: type
) -> list:
    """Return an instance of each dataclass, those of `groups` last. Print the help and exit with 0 on --help; print one
    line and exit with 2 on a wrong word.

    positional: the key that a first word without "=" sets.
    about: text above the keys in the help.
    """
    owners = [("", cls) for cls in classes] + list(groups.items())
    if arguments.wants_help(words):
        blocks = [help.key_lines(cls, group) for group, cls in owners]
        help.print_and_exit(help.page(program, about, blocks, positional))
    if positional and words and "=" not in words[0]:
        words = [f"{positional}={words[0]}", *words[1:]]
    try:
        given = arguments.split(words)
        check_keys(given, owners)
        return [arguments.build(cls, given, group) for group, cls in owners]
    except (ArgumentError, OSError) as error:  # OSError: a __post_init__ looked for a file and could not
        arguments.fail(program, error)


def check_keys(given: dict[str, str], owners: list[tuple[str, type]]) -> None:
    """Raise ArgumentError for a key that no dataclass has, and for one without a default that is not given."""
    known = {key: f for group, cls in owners for key, f in zip(arguments.keys_of(cls, group), fields(cls), strict=True)}
    for key in given:
        if key not in known:
            raise ArgumentError(unknown_key(key, list(known)))
    for key, f in known.items():
        if key not in given and f.default is MISSING and f.default_factory is MISSING:
            raise ArgumentError(f"{key}= is missing; --help lists the keys")
