"""The awk command, and the state of a running program: variables, the record and its fields, open files."""

import re
from collections.abc import Iterable
from contextlib import suppress
from random import Random

from envs.simulators.shell.commands.awk.compile import Compiler, Leave, Next
from envs.simulators.shell.commands.awk.lexer import unescaped
from envs.simulators.shell.commands.awk.parse import Parser
from envs.simulators.shell.commands.awk.values import Field, number, split_fields, text_of, whole
from envs.simulators.shell.commands.options import Fail, read
from envs.simulators.shell.files import MAX_TEXT, Timeout, raw
from envs.simulators.shell.process import Process

USAGE = "Usage: mawk [Options] [Program] [file ...]"


def awk(p: Process) -> int:
    words, assigned, separator, sources = list(p.argv[1:]), [], None, []
    while words and words[0].startswith("-") and len(words[0]) > 1:
        word = words.pop(0)
        if word == "--":
            break
        if word[1] not in "Fvf":
            if word[:2] == "-W":
                words[:1] = words[1:] if word == "-W" else words[:1]
                continue
            raise Fail(f"not an option: {word}", 2)
        value = word[2:] or (words.pop(0) if words else None)
        if value is None:
            raise Fail(f"option requires an argument -- {word[1]}", 2)
        if word[1] == "F":
            separator = value
        elif word[1] == "v":
            if "=" not in value:
                raise Fail(f"improper assignment: -v {value}", 2)
            assigned.append(value)
        else:
            try:
                sources.append(read(p, value))
            except OSError as error:
                raise Fail(f"cannot open {value} ({error.strerror})", 2) from None
    if not sources:
        if not words:
            p.stderr.write(USAGE + "\n")
            return 0
        sources = [words.pop(0)]
    machine = Awk(p, Parser("\n".join(sources)).parse(), words)
    if separator is not None:
        machine.vars["FS"] = unescaped(separator)
    for assignment in assigned:
        machine.assign(assignment)
    return machine.run()


class Awk:
    """The state of a running program: variables, the record and its fields, open files."""

    def __init__(self, p: Process, program, operands: list[str]):
        self.p, self.program = p, program
        self.vars: dict = {"FS": " ", "OFS": " ", "ORS": "\n", "RS": "\n", "SUBSEP": "\x1c", "CONVFMT": "%.6g"}
        self.vars |= {"OFMT": "%.6g", "NR": 0.0, "FNR": 0.0, "FILENAME": "", "RSTART": 0.0, "RLENGTH": -1.0}
        self.vars |= {"ARGC": float(len(operands) + 1), "ENVIRON": {k: Field(v) for k, v in p.env.items()}}
        self.vars["ARGV"] = {"0": p.argv[0]} | {str(i): Field(word) for i, word in enumerate(operands, 1)}
        self.record, self.fields = "", []
        self.split_done = True  # the fields are those of the record
        self.rebuilt = True  # the record is that of the fields
        self.rng, self.seed = Random("awk"), 0.0
        self.writers: dict[tuple[str, str], list[str]] = {}  # commands that are written to
        self.opened: set[str] = set()
        self.out: list[str] = []
        self.size = 0
        self.records = None
        self.argument = 1
        self.seen_file = False
        self.status = 0

    # -- running

    def run(self) -> int:
        compiled = Compiler(self).program(self.program)
        try:
            with suppress(Leave):
                for statement in compiled.begin:
                    statement()
                if compiled.rules or compiled.end:
                    self.main(compiled.rules)
            with suppress(Leave):
                for statement in compiled.end:
                    statement()
        except Fail as failure:  # what was printed is still in the buffer
            self.p.fail(failure.message)
            raise Fail(status=failure.status) from None
        finally:
            self.flush()
        for name in list(self.writers):
            self.close_writer(name)
        return self.status

    def main(self, rules: list) -> None:
        while (line := self.next_record()) is not None:
            self.set_record(line)
            try:
                for rule in rules:
                    rule()
            except Next as skipped:
                if skipped.args:
                    self.records = None

    def flush(self) -> None:
        if self.out:
            shown, self.out, self.size = "".join(self.out), [], 0
            self.p.out(shown)

    def emit(self, shown: str) -> None:
        self.out.append(shown)
        self.size += len(shown)
        if self.size > 1 << 16:
            self.flush()

    def assign(self, word: str) -> None:
        """Carry out an operand or option `name=value`."""
        name, _, value = word.partition("=")
        self.set_var(name, Field(unescaped(value)))

    def set_var(self, name: str, value) -> None:
        if name == "NF":
            self.set_count(whole(value))
        else:
            self.vars[name] = value

    def text(self, value) -> str:
        return text_of(value, self.vars["CONVFMT"])

    # -- input

    def next_record(self) -> str | None:
        """Return the next record of the operands or of standard input."""
        while True:
            if self.records is None and not self.open_next():
                return None
            line = next(self.records, None)
            if line is not None:
                self.p.tick()
                self.vars["NR"] = number(self.vars["NR"]) + 1
                self.vars["FNR"] = number(self.vars["FNR"]) + 1
                return line
            self.records = None

    def open_next(self) -> bool:
        while self.argument < number(self.vars["ARGC"]):
            word = text_of(self.vars["ARGV"].get(str(self.argument), ""), "%.6g")
            self.argument += 1
            if re.match(r"[A-Za-z_]\w*=", word, re.ASCII):
                self.assign(word)
            elif word:
                self.open(word)
                return True
        if self.seen_file:
            return False
        self.open("-")
        return True

    def open(self, name: str) -> None:
        self.seen_file = True
        try:
            data = read(self.p, "-" if name == "/dev/stdin" else name)
        except OSError as error:
            if error.strerror != "Is a directory":
                raise Fail(f"cannot open {name} ({error.strerror})", 2) from None
            data = ""
        self.vars["FILENAME"] = "" if name == "-" else name
        self.vars["FNR"] = 0.0
        self.records = self.split_records(data)

    def split_records(self, data: str):
        """Yield the records of a text, separated by RS as it is when each is read."""
        at = 0
        while at < len(data):
            separator = text_of(self.vars["RS"], "%.6g")
            if len(separator) != 1:
                self.fail("RS is only simulated as one character")
            end = data.find(separator, at)
            yield data[at : end if end >= 0 else None]
            at = end + 1 if end >= 0 else len(data)

    # -- the record and its fields

    def set_record(self, line) -> None:
        self.record, self.split_done, self.rebuilt = line, False, True

    def need_fields(self) -> None:
        if not self.split_done:
            self.fields = split_fields(self, self.record, text_of(self.vars["FS"], "%.6g"))
            self.split_done = True

    def field(self, index: int):
        if index == 0:
            if not self.rebuilt:
                self.record = self.joined(map(self.text, self.fields))
                self.rebuilt = True
            return Field(self.record)
        if index < 0:
            self.fail(f"negative field index ${index}")
        self.need_fields()
        return self.fields[index - 1] if index <= len(self.fields) else Field()

    def joined(self, parts: Iterable[str]) -> str:
        parts, between = list(parts), self.text(self.vars["OFS"])
        size = sum(map(len, parts)) + len(between) * len(parts)
        self.p.tick(1 + (size >> 8))
        if size > MAX_TEXT:
            raise Timeout
        return between.join(parts)

    def set_field(self, index: int, value) -> None:
        if index == 0:
            self.set_record(self.text(value))
            return
        if index < 0:
            self.fail(f"negative field index ${index}")
        self.need_fields()
        if index > len(self.fields):
            self.extend(index)
        self.fields[index - 1] = value
        self.rebuilt = False

    def extend(self, count: int) -> None:
        if count > 32767:
            self.fail(f"maximum field number 32767 exceeded: ${count}")
        self.fields += [""] * (count - len(self.fields))

    def set_count(self, count: int) -> None:
        self.need_fields()
        if count > len(self.fields):
            self.extend(count)
        del self.fields[max(0, count) :]
        self.rebuilt = False

    def fail(self, message: str) -> None:
        where = f'\tFILENAME="{self.vars["FILENAME"]}" FNR={whole(self.vars["FNR"])} NR={whole(self.vars["NR"])}'
        raise Fail(f"run time error: {message}\n{where}", 2)

    # -- files and commands

    def print(self, shown: str, kind: str, target: str) -> None:
        """Write the output of print and printf to its destination."""
        if not kind or target in ("/dev/stdout", "-"):
            self.emit(shown)
        elif target == "/dev/stderr":
            self.p.stderr.write(shown)
        elif kind == "|":
            self.writers.setdefault(("|", target), []).append(shown)
            self.size += len(shown)
            if self.size > 1 << 22:
                self.p.tick(1 << 30)
        else:
            try:
                if target not in self.opened and kind == ">":
                    self.p.write(target, b"")
                self.opened.add(target)
                self.p.write(target, raw(shown), append=True)
            except OSError as error:
                raise Fail(f'cannot open "{target}" for output ({error.strerror})', 2) from None

    def close_writer(self, name: tuple[str, str]) -> int:
        data = raw("".join(self.writers.pop(name)))
        self.flush()
        return self.shell(name[1], data)

    def shell(self, command: str, data: bytes | None = None) -> int:
        return self.p.run(["sh", "-c", command], stdin=data)

    def close(self, name: str) -> float:
        if ("|", name) in self.writers:
            return float(self.close_writer(("|", name)))
        if name in self.opened:
            self.opened.discard(name)
            return 0.0
        return -1.0


COMMANDS = {"awk": awk, "mawk": awk}
