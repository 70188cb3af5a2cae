"""Replaces `${NAME}`, `${NAME:-default}` and `${file:PATH}` in the values of the configuration.

It works on parsed values, so that the content of a variable or file cannot become YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from rmqd.config.model.kinds import Substituted
from rmqd.config.model.small_file import MAX_FILE_BYTES, read_small_file

_REFERENCE: Final = re.compile(r"\$(\$\{)|\$\{([^{}]*)\}|\$\{")
_NAME: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL | re.ASCII)
_FORMS: Final = "expected ${NAME}, ${NAME:-default}, ${file:PATH}, and $${ for a literal ${"


class SubstitutionError(ValueError):
    """A reference without a value, or in an unknown form."""


def substitute(text: str, environ: Mapping[str, str]) -> str:
    """Replace all references in a text. Raises SubstitutionError. File paths are relative to the working directory."""
    if "${" not in text:
        return text

    def replacement(match: re.Match[str]) -> str:
        if match[1]:
            return match[1]
        if match[2] is None:
            raise SubstitutionError(f"a ${{ without its }}; {_FORMS}")
        return _value_of(match[2], environ)

    replaced = _REFERENCE.sub(replacement, text)
    return Substituted(replaced)


def is_utf8(text: str) -> bool:
    """Return whether a variable or an argument is UTF-8. Python keeps other bytes as lone surrogates."""
    return text.isascii() or text == text.encode("utf-8", "replace").decode()


def _value_of(reference: str, environ: Mapping[str, str]) -> str:
    if reference.startswith("file:"):
        return _content(reference.removeprefix("file:"))
    match = _NAME.fullmatch(reference)
    if match is None:
        raise SubstitutionError(f"${{{reference}}} is not valid; {_FORMS}")
    name, default = match.groups()
    value = environ.get(name)
    if value is not None and not is_utf8(value):
        raise SubstitutionError(f"the environment variable {name} is not UTF-8; expected text")
    if value or (value is not None and default is None):
        return value
    if default is not None:
        return default
    raise SubstitutionError(
        f"the environment variable {name} is not set; set it, or add a default with ${{{name}:-default}}"
    )


def _content(name: str) -> str:
    path = Path(name).absolute()
    try:
        content = read_small_file(path)
        if len(content) > MAX_FILE_BYTES:
            raise SubstitutionError(f"the file {path} is longer than 1MiB; expected a file with one value")
        return content.decode("utf-8").rstrip("\r\n")
    except OSError as error:
        reason = error.strerror or str(error)
        raise SubstitutionError(f"the file {path} cannot be read: {reason}; expected a readable file") from None
    except UnicodeDecodeError:
        raise SubstitutionError(f"the file {path} is not UTF-8; expected text") from None
