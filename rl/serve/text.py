"""Text of ids that come one by one."""

from models import Tokenizer

HALF = "\ufffd"  # decoding part of a character's bytes gives this


class Text:
    """The text of a reply that grows. Its parts put together are the decoded reply.

    A token's text depends on the token before it (a leading space, the bytes of one character). So each part is the
    difference of two decoded texts that begin at the same earlier token.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.ids = tokenizer, []
        self.start = self.end = 0  # the last complete part came from ids[start:end]

    def add(self, ids: list[int], last: bool = False) -> str:
        """Return the text that these ids add; "" while the last character is incomplete, unless they are the last."""
        self.ids += ids
        before = self.tokenizer.decode(self.ids[self.start : self.end])
        now = self.tokenizer.decode(self.ids[self.start :])
        if not last and (now.endswith(HALF) or len(now) < len(before)):
            return ""
        self.start, self.end = self.end, len(self.ids)
        return now[len(before) :]
