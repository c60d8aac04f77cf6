"""The error of models that somebody worded for the user: programs print its line; other errors keep their traceback."""


class Refusal(ValueError):
    """Something that the user gave cannot be used. The text says what, where, and what to do."""
