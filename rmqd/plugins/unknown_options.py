"""Finds options that a plugin's model does not have: typos, which pydantic ignores unless the model forbids them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import AliasChoices, AliasPath, BaseModel
from pydantic.fields import FieldInfo

from rmqd.config.problems import Path


def unknown_options(given: object, model: object, path: Path = ()) -> Iterator[tuple[Path, list[str]]]:
    """Find the keys of `given` that are not fields of the validated `model`. Yields paths and the known names.

    Models in fields, lists and mappings are searched too. A model that sets `extra` decides about unknown keys itself,
    and is skipped.
    """
    if isinstance(model, BaseModel) and isinstance(given, Mapping):
        yield from unknown_keys(given, type(model), path)
        for name, field in type(model).model_fields.items():
            for key in _names(name, field):
                if key in given:
                    yield from unknown_options(given[key], getattr(model, name), (*path, key))
    elif isinstance(model, Mapping) and isinstance(given, Mapping):
        for key in given.keys() & model.keys():
            yield from unknown_options(given[key], model[key], (*path, key))
    elif _is_list(model) and _is_list(given) and len(model) == len(given):  # type: ignore[arg-type]
        for index, (one, held) in enumerate(zip(given, model, strict=True)):  # type: ignore[call-overload]
            yield from unknown_options(one, held, (*path, index))


def unknown_keys(
    given: Mapping[str, object], model: type[BaseModel], path: Path = ()
) -> Iterator[tuple[Path, list[str]]]:
    """Find the unknown keys at the top level of `given`. The rest of `given` need not be valid."""
    if "extra" in model.model_config:
        return
    known = [name for field in model.model_fields.items() for name in _names(*field)]
    for key in given:
        if key not in known:
            yield (*path, key), known


def _names(name: str, field: FieldInfo) -> list[str]:
    """Return the keys that a field accepts: its alias and, if the model allows it, its name."""
    aliases = [field.alias, field.validation_alias]
    for choice in field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else ():
        aliases.append(choice if isinstance(choice, str) else str(choice.path[0]))
    if isinstance(field.validation_alias, AliasPath):
        aliases.append(str(field.validation_alias.path[0]))
    return list(dict.fromkeys([*(alias for alias in aliases if isinstance(alias, str)), name]))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
