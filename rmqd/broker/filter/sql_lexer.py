"""Splits a condition into tokens, one at a time. As in Java, text after a complete condition is never read."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

_TOKEN_ERROR: Final = "org.apache.rocketmq.filter.parser.TokenMgrError"


class ExpressionError(Exception):
    """A condition is invalid. The text is the real broker's, including the name of Java's exception."""


class UnexpectedTokenError(ExpressionError):
    """A token was found where another one was expected."""


class TokenKind(StrEnum):
    """The kinds of tokens as Java's parser writes them, in the order of its lists of expected tokens."""

    END = "<EOF>"
    NOT = '"NOT"'
    AND = '"AND"'
    OR = '"OR"'
    BETWEEN = '"BETWEEN"'
    IN = '"IN"'
    TRUE = '"TRUE"'
    FALSE = '"FALSE"'
    NULL = '"NULL"'
    IS = '"IS"'
    CONTAINS = '"CONTAINS"'
    STARTSWITH = '"STARTSWITH"'
    ENDSWITH = '"ENDSWITH"'
    INTEGER = "<DECIMAL_LITERAL>"
    DOUBLE = "<FLOATING_POINT_LITERAL>"
    STRING = "<STRING_LITERAL>"
    PROPERTY = "<ID>"
    EQUAL = '"="'
    NOT_EQUAL = '"<>"'
    GREATER = '">"'
    GREATER_EQUAL = '">="'
    LESS = '"<"'
    LESS_EQUAL = '"<="'
    OPEN = '"("'
    COMMA = '","'
    CLOSE = '")"'
    MINUS = '"-"'
    PLUS = '"+"'


KIND_ORDER: Final = {kind: number for number, kind in enumerate(TokenKind)}


class Token(NamedTuple):
    """A token, and its position, counted from 1."""

    kind: TokenKind
    text: str
    line: int
    column: int


_KEYWORDS: Final = {kind.strip('"'): kind for kind in list(TokenKind)[1:13]}
_SYMBOLS: Final = {kind.strip('"'): kind for kind in list(TokenKind)[17:]}
# a comment up to the end of the line requires the line break; otherwise `--` is two minus signs
_BLANK: Final = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*[\n\r]|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)*")
_TOKEN: Final = re.compile(
    r"(?P<double>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<integer>0|[1-9][0-9]*[lL]?)"
    r"|(?P<string>'(?:''|[^'])*')"
    r"|(?P<word>[a-zA-Z_$][a-zA-Z0-9_$]*)"
    r"|(?P<symbol><>|<=|>=|[=<>(),+-])"
)
_LITERALS: Final = {"double": TokenKind.DOUBLE, "integer": TokenKind.INTEGER, "string": TokenKind.STRING}


class Lexer:
    """Reads the tokens of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def next(self) -> Token:
        """Return the next token; END after the last one. Raises ExpressionError if the characters are not a token."""
        text = self._text
        blank = _BLANK.match(text, self._at)
        start = self._at if blank is None else blank.end()
        if start == len(text):
            return Token(TokenKind.END, "", *self._place(start - 1))
        found = _TOKEN.match(text, start)
        if found is None:
            raise ExpressionError(f"{_TOKEN_ERROR}: {self._error_at(start)}")
        self._at = found.end()
        image, group = found.group(), found.lastgroup
        if group == "word":
            kind = _KEYWORDS.get(image.upper(), TokenKind.PROPERTY)
        else:
            kind = _SYMBOLS[image] if group == "symbol" else _LITERALS[group or ""]
        return Token(kind, image, *self._place(start))

    def _place(self, index: int) -> tuple[int, int]:
        """Return line and column of a character. The first character is at line 1, column 1; before it is line 0."""
        if index < 0:
            return 0, 0
        lines = self._text.count("\n", 0, index)
        return lines + 1, index - self._text.rfind("\n", 0, index)

    def _error_at(self, start: int) -> str:
        """Return Java's error about characters that are not a token. It names the character, or the end of the text."""
        text = self._text
        if text[start] == "'" or text.startswith("/*", start):
            last = len(text) - 1
        else:
            last = min(start + (1 if text[start] in "./" else 0), len(text) - 1)
        line, column = self._place(last)
        if last + 1 == len(text):
            line, column = (line + 1, 0) if text[last] in "\r\n" else (line, column + 1)
            met, after = "<EOF>", text[start : last + 1] if last > start else ""
        else:
            met, after = f'"{_escaped(text[last])}" ({ord(text[last])}),', text[start:last]
        return f'Lexical error at line {line}, column {column}.  Encountered: {met} after : "{_escaped(after)}"'


_ESCAPES: Final = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "'": "\\'",
    "\\": "\\\\",
}


def _escaped(text: str) -> str:
    return "".join(
        _ESCAPES.get(char) or (char if " " <= char <= "~" else f"\\u{ord(char) & 0xFFFF:04x}") for char in text
    )


def unexpected(token: Token, expected: set[TokenKind]) -> UnexpectedTokenError:
    """Return Java's error about an unexpected token."""
    met = token.kind.value if token.kind is TokenKind.END else f' {token.kind.value} "{_escaped(token.text)} "'
    choices = "".join(f"{kind.value} ...\n    " for kind in sorted(expected, key=KIND_ORDER.__getitem__))
    return UnexpectedTokenError(
        f'org.apache.rocketmq.filter.parser.ParseException: Encountered "{met}" at line {token.line}, '
        f"column {token.column}.\nWas expecting{'' if len(expected) == 1 else ' one of'}:\n    {choices}"
    )
