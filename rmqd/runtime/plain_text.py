"""Functions that make foreign texts safe to show. Such texts come from brokers, producers and handlers' exceptions.

The functions never raise, regardless of an object's own methods, and their results can be encoded as UTF-8. A terminal
obeys escape sequences, and text after a line break looks like another log line: `printable` escapes both.

Errors may also quote secrets of the configuration: `hide_secrets` removes the secrets that this process knows.
"""

from __future__ import annotations

import functools
import json
import re
import traceback
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote, unquote

# the descriptor of `type` itself, because a metaclass may define any __name__
name_of_class: Final[Callable[[type], str]] = type.__dict__["__name__"].__get__


class RemoteFailure:
    """A mixin for exceptions that represent an exception of another process. `told_traceback` is the traceback that
    Python printed in that process.
    """

    told_traceback = ""


def escape_surrogates(text: str) -> str:
    """Return the text with lone surrogates escaped: JSON may contain them, but UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def class_name(value: object) -> str:
    return name_of_class(type(value))


def text_of(value: object, make: Callable[[Any], str] = str) -> str:
    """Return the object's `str` or `repr` (`make`); a text with the name of its class if `make` raises."""
    try:
        text = str.__str__(make(value))  # a plain string, also if the result's class inherits from str
    except BaseException:  # noqa: BLE001  foreign code, whose failure must not matter
        return f"<{class_name(value)} without a text>"
    return hide_secrets(escape_surrogates(text))


def duration(seconds: float) -> str:
    """Return a duration for a sentence: `7 ms`, `2.5 s`, `40 s`, `12 min`, `3 h`, `2 d`."""
    if 0 < seconds < 0.9995:
        return f"{max(1, round(seconds * 1000))} ms"
    seconds = max(seconds, 0)
    whole = seconds < 600 and float(seconds).is_integer()  # probably a setting, which is shown exactly
    size, unit = next((one for one in _UNITS if seconds >= 2 * one[0] and not (whole and seconds % one[0])), (1, "s"))
    return f"{round(seconds / size, 1 if seconds < 10 * size else 0):g} {unit}"


_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def count_noun(number: int, noun: str) -> str:
    """Return a count with its noun: `1 queue`, `2 queues`, `1,000 queues`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_age(seconds: float | None) -> str:
    """Return an age for a table, in at most six characters: `0s`, `0.4s`, `12s`, `7m12s`, `3h05m`, `2d23h`."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds >= 0.05 else "0s"
    whole = int(seconds + 0.05)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return (
                f"{whole // size}{unit}{whole % size // below:02}{small}"
                if whole < 100 * size
                else f"{whole // size}{unit}"
            )
    return f"{whole}s"


def describe(error: BaseException) -> str:
    """Return the class of an exception and its text, if it has one."""
    text = text_of(error)
    return f"{class_name(error)}: {text}" if text else class_name(error)


def traceback_tail(error: BaseException, lines: int, characters: int) -> tuple[str, ...]:
    """Return the last lines of the traceback, each cut to this many characters. Formats only the innermost frames."""
    try:
        text = _told(error) or "".join(traceback.format_exception(error, limit=-lines, chain=False))
    except BaseException:  # noqa: BLE001  foreign code: the exception's attributes are read
        text = describe(error)
    return tuple(escape_surrogates(line[:characters]) for line in hide_secrets(text).rstrip().splitlines()[-lines:])


def traceback_of(error: BaseException) -> str:
    """Return the traceback as Python prints it; only the exception if printing fails."""
    try:
        text = _told(error) or "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001  foreign code: the exception's attributes are read
        return describe(error)
    return hide_secrets(escape_surrogates(text))


def _told(error: BaseException) -> str:
    return error.told_traceback if isinstance(error, RemoteFailure) else ""


# Control characters, bidirectional controls, other line breaks, invisible characters, lone surrogates. Compiled at the
# first use and cached by re: every command imports this module, and help needs neither pattern.
_UNSAFE: Final = (
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_UNSAFE_BUT_LINES: Final = f"(?![\n\t]){_UNSAFE}"


def printable(text: str) -> str:
    """Return the text on one line, with control and invisible characters escaped as in Python source."""
    return text if text.isascii() and text.isprintable() else re.sub(_UNSAFE, _escaped, text)


def printable_lines(text: str) -> str:
    """Return the text like `printable`, but keep line breaks, and indent all lines after the first, so that no line
    looks like a log line.
    """
    return re.sub(_UNSAFE_BUT_LINES, _escaped, text).replace("\n", "\n    ")


def printable_values(value: Any) -> Any:
    """Return a JSON document with all its texts made printable."""
    return map_texts(value, printable)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON document with its texts replaced by `change`, except the keys."""
    match value:
        case str():
            return change(value)
        case list():
            return [map_texts(member, change) for member in value]
        case dict():
            return {key: map_texts(member, change) for key, member in value.items()}
        case _:
            return value


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


HIDDEN: Final = "(hidden)"
SECRET_WORDS: Final = (
    r"passw(?:or)?d|passphrase|pwd|secret|token|credential|(?:access|api|private|account|shared)[-_.]?key"
)
_NAMED: Final = (
    rf"((?:{SECRET_WORDS}|authorization)[\w.-]*(?:[\"']\s*[=:]|\s*%s)\s*[\"']?(?:bearer\s+|basic\s+)?)"
    r"(?!\(hidden\))([^\s,;&\"']+)"
)
# In a configuration, a secret may also follow a colon (`X-Token: abc`). In other texts, a message usually follows.
_IN_TEXT, _IN_CONFIGURATION = rf"(?i){_NAMED % '='}", rf"(?i){_NAMED % '[=:]'}"
_CREDENTIALS: Final = r"(?i)\b((?:bearer|basic)\s+)([\w.~+/=-]{6,})"
# Operators need the paths of files and object stores. The path of another URL, such as a webhook's, may contain a key.
_URL: Final = (
    r"(?P<start>\b(?!(?:file|unix|sqlite|s3\w?|gs|abfss?|wasbs?|hdfs|dbfs)://)\w[\w+.-]*://)(?P<user>[^/?#\s]*@)?"
    r"(?P<host>[^/?#\s@\"'<>]*)(?P<path>[/?#][^\s\"'<>]*)?"
)
_SIGNS: Final = (
    "pass", "pwd", "secret", "token", "credential", "access", "api", "private", "account", "shared", "auth", "bearer",
    "basic",
)  # fmt: skip  # every match of _IN_TEXT or _CREDENTIALS contains one of these words
_USER_OF_URL: Final = r"(?<=://)[^/?#\s]*@"
_LIKE_A_KEY: Final = r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[^\s/:.]{8,}"  # matches keys, but no words, hosts or paths
_MIN_CHARACTERS: Final = 4  # shorter texts are not hidden, because they occur in too many other texts
_UNIQUE_CHARACTERS: Final = 8  # shorter secrets, and numbers, are only hidden as whole words
_SETTING: Final = r"[+-]?[\d.]{1,7}[a-zA-Z]{0,3}|true|false|none|null"  # values of `max_tokens` or `token_ttl`
known_secrets: Final[dict[str, str]] = {}
"""The replacement of each secret that this process hides in texts, by the secret."""


def register_secret(secret: object, shown: str = HIDDEN) -> str:
    """Return the replacement of a secret. From now on, `hide_secrets` replaces the secret in every text of the process.

    It also replaces the secret as it is written in a URL, in Python or in JSON.
    """
    text = str(secret)
    written = quote(text, safe="", errors="replace"), unquote(text), repr(text)[1:-1], json.dumps(text)[1:-1]
    for one in {text, *text.splitlines(), *written} - {""}:
        if not re.fullmatch(_SETTING, one, re.IGNORECASE):
            known_secrets[one] = shown
    return shown if text else ""


def hide_possible_secret(value: str) -> str:
    """Return HIDDEN for a value that may be a secret, for example the value of an environment variable.

    In other texts, the value is hidden only if it looks like a key: operators need the names of tables and hosts.
    """
    hide_secrets_of_setting(value)
    return register_secret(value) if re.fullmatch(_LIKE_A_KEY, value) else HIDDEN


def hide_secrets_of_setting(text: str) -> str:
    """Return a configured text without its secrets: user, path and query of a URL, and values after secret names."""

    def of_url(url: re.Match[str]) -> str:
        start, user, host, path = url["start"], url["user"], url["host"], url["path"] or ""
        register_secret((user or "")[:-1].partition(":")[2])
        if len(path) > 1:
            for part in re.split("[/?#&=]", path):
                hide_possible_secret(part)
            host = register_secret(f"{host}{path}", f"{host}/{HIDDEN}")
        return f"{start}{HIDDEN}@{host}" if user else f"{start}{host}"

    for pattern in (_IN_CONFIGURATION, _CREDENTIALS):
        text = re.sub(pattern, lambda found: found[1] + register_secret(found[2]), text)
    return hide_secrets(re.sub(_URL, of_url, text))


def hide_secrets(text: str) -> str:
    """Return the text without known secrets, users of URLs, and values after names such as `password=`."""
    if known_secrets:
        if text in known_secrets:
            return known_secrets[text]
        text = _pattern_of(frozenset(known_secrets)).sub(lambda found: known_secrets[found[0]], text)
    if "://" in text:
        text = re.sub(_USER_OF_URL, f"{HIDDEN}@", text)
    lower = text.lower()
    if not any(word in lower for word in _SIGNS):  # the patterns are slow, and errors may be frequent or huge
        return text
    return re.sub(_CREDENTIALS, rf"\1{HIDDEN}", re.sub(_IN_TEXT, rf"\1{HIDDEN}", text))


@functools.lru_cache(maxsize=1)
def _pattern_of(secrets: frozenset[str]) -> re.Pattern[str]:
    found = (one for one in sorted(secrets, key=len, reverse=True) if len(one) >= _MIN_CHARACTERS)
    parts = [
        re.escape(one) if len(one) >= _UNIQUE_CHARACTERS and not one.isdigit() else rf"(?<!\w){re.escape(one)}(?!\w)"
        for one in found
    ]
    return re.compile("|".join(parts or ["(?!)"]))
