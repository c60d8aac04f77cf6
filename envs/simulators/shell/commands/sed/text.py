"""Strings for sed: replacements with case conversion (\\U, \\l, ...), and the output of the l command."""


def replacement(parts: list, text: str, found: tuple) -> str:
    """Return the replacement of a match."""
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


def visible(text: str, width: int) -> str:
    """Return the output of l: escapes for unprintable characters, long lines folded."""
    names = {"\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
    cells = [names.get(c) or (c if " " <= c <= "~" else f"\\{ord(c):03o}") for c in text]
    width = (width or 70) - 1
    shown, size = [], 0
    for cell in cells:
        if width > 0 and size + len(cell) > width:
            shown.append("\\\n")
            size = 0
        shown.append(cell)
        size += len(cell)
    return "".join(shown) + "$\n"
