"""A shell variable: scalar, indexed or associative array, and its attributes."""

from dataclasses import dataclass


def bucket(key: str) -> int:
    """Return a key's bucket in bash's hash table: FNV over its bytes, modulo 1,024."""
    value = 2166136261
    for c in key:
        value = (value * 16777619 & 0xFFFFFFFF) ^ ord(c)
    return value & 1023


@dataclass(slots=True)
class Var:
    """One variable; `value` is None if declared but not set, {int: str} of an array, {str: str} of a map."""

    value: str | dict | None = None
    exported: bool = False
    readonly: bool = False
    integer: bool = False
    case: str = ""  # "l" or "u": what is assigned becomes lower or upper case
    kind: str = ""  # "a" indexed, "A" associative, "n" a nameref, whose value is a name

    def copy(self) -> "Var":
        value = dict(self.value) if isinstance(self.value, dict) else self.value
        return Var(value, self.exported, self.readonly, self.integer, self.case, self.kind)

    def scalar(self) -> str | None:
        """Return the value of the bare name."""
        if type(self.value) is dict:
            return self.value.get("0" if self.kind == "A" else 0)
        return self.value

    def values(self) -> list[str]:
        """Return all values, of an array in the order of its indices."""
        if type(self.value) is dict:
            return [self.value[key] for key in self.indices()]
        return [] if self.value is None else [self.value]

    def indices(self) -> list:
        """Return all indices of an array in order; of a map in the order of bash's hash table, which bash prints."""
        if type(self.value) is dict:
            return sorted(reversed(self.value), key=bucket) if self.kind == "A" else sorted(self.value)
        return [] if self.value is None else [0]
