"""Strings for sed, awk and vi: matches replaced, with case conversion (\\U, \\l, ...), and the codes of sed."""

import re

from envs.simulators.shell.files import MAX_TEXT, Timeout

CODE = re.compile(r"\\(?:d([0-9]{1,3})|o([0-7]{1,3})|x([0-9a-fA-F]{1,2})|c(\\\\|[^\\])|.)", re.DOTALL)


def decoded(text: str, protected: str = "") -> str:
    """Return a text with \\dNNN, \\oNNN, \\xHH and \\cX replaced by their characters.

    `protected` characters get a backslash. Raises ValueError if an escape follows \\c.
    """

    def char(found: re.Match) -> str:
        decimal, octal, hexadecimal, control = found.groups()
        if control:
            return chr(ord(upper(control[0])) ^ 64)
        if found[0] == "\\c":
            if found.end() < len(text):
                raise ValueError("recursive escaping after \\c not allowed")
            return protect("\\")
        if decimal or octal or hexadecimal:
            code = int(decimal) if decimal else int(octal, 8) if octal else int(hexadecimal, 16)
            return protect(chr(code & 255))
        return found[0]

    def protect(char: str) -> str:
        return "\\" * (char in protected) + char

    return CODE.sub(char, text)


def substitute(regex, text: str, parts: list, tick, everywhere: bool, nth: int = 1) -> tuple[str, int]:
    """Return a text with its nth match, or this and all later ones, replaced, and their number."""
    at, seen, copied, shown, size, last_end = 0, 0, 0, [], 0, -1
    while at <= len(text) and (found := regex.search(text, at, tick)):
        begin, end = found[0], found[1]
        if begin == end == last_end:  # nothing, right behind a match, is no match
            at = end + 1
            continue
        seen += 1
        if seen >= nth:
            shown += [text[copied:begin], replacement(parts, text, found)]
            size += len(shown[-2]) + len(shown[-1])
            tick((len(parts) >> 3) + (len(shown[-1]) >> 10))
            if size > MAX_TEXT:
                raise Timeout
            copied = end
            if not everywhere:
                break
        last_end = end
        at = end if end > begin else end + 1
    return "".join(shown) + text[copied:], len(shown) // 2


def replacement_parts(text: str, escapes: dict[str, str]) -> list:
    """Return the parts of a replacement: strings, the numbers of groups, and ("case", letter) for \\U and its like."""
    parts: list = []
    for piece, letter in re.findall(r"(&|[^\\&]+|\\(.?))", text, re.DOTALL):
        if piece[0] != "\\":
            parts.append(0 if piece == "&" else piece)
        elif letter.isdecimal():
            parts.append(int(letter))
        else:
            parts.append(("case", letter) if letter and letter in "ULulE" else escapes.get(letter, letter))
    return parts


def replacement(parts: list, text: str, found: tuple) -> str:
    shown: list[str] = []
    lasting, once = "", ""
    for part in parts:
        if isinstance(part, tuple):
            if part[1] in "ul":
                once = part[1]
            else:
                lasting, once = part[1].replace("E", ""), ""
            continue
        if isinstance(part, int):
            begin = found[2 * part] if 2 * part < len(found) else -1
            part = text[begin : found[2 * part + 1]] if begin >= 0 else ""
        if part and (lasting or once):
            part = upper(part) if lasting == "U" else lower(part) if lasting == "L" else part
            if once:
                part = (upper if once == "u" else lower)(part[0]) + part[1:]
                once = ""
        shown.append(part)
    return "".join(shown)


def upper(text: str) -> str:
    """Return a text with the ASCII letters in upper case, as in the C locale."""
    return text.encode("latin-1").upper().decode("latin-1")


def lower(text: str) -> str:
    return text.encode("latin-1").lower().decode("latin-1")
