"""Checks for all kinds of plugins: the number of arguments, the pydantic model of the options, and the options.

The key paths of problems are relative to the section that names the plugin, such as `handler`. This module also finds
unknown options, because pydantic ignores unknown keys unless the model forbids them.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import AliasChoices, AliasPath, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rmqd.config.load import hide_options
from rmqd.config.model.forms import model_at
from rmqd.config.problems import ConfigFinding, KeyPath, unknown
from rmqd.handler_api.typed import signatures
from rmqd.runtime.plain_text import hide_secrets, map_texts
from rmqd.runtime.value_kinds import list_example


def unknown_options(given: object, model: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, list[str]]]:
    """Yield the path of each key in the options `given` that their model does not know, with the names that it knows.

    `model` is the instance that was validated from `given`. Models inside fields, lists and mappings are searched too.
    A model with pydantic's setting `extra` is skipped, because the setting decides about unknown keys.
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
    given: Mapping[str, object], model: type[BaseModel], path: KeyPath = ()
) -> Iterator[tuple[KeyPath, list[str]]]:
    """Yield the path of each key of `given` that `model` does not know, with the known names. Ignores nested keys."""
    if "extra" in model.model_config:
        return
    known = [name for field in model.model_fields.items() for name in _names(*field)]
    for key in given:
        if key not in known:
            yield (*path, key), known


def _names(name: str, field: FieldInfo) -> list[str]:
    """Return the keys of a field: its aliases and its name."""
    aliases = [field.alias, field.validation_alias]
    for choice in field.validation_alias.choices if isinstance(field.validation_alias, AliasChoices) else ():
        aliases.append(choice if isinstance(choice, str) else str(choice.path[0]))
    if isinstance(field.validation_alias, AliasPath):
        aliases.append(str(field.validation_alias.path[0]))
    return list(dict.fromkeys([*(alias for alias in aliases if isinstance(alias, str)), name]))


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


class PluginFaultError(Exception):
    """A plugin or its options cannot be used. `faults` are the reasons, with paths relative to the plugin's section."""

    def __init__(self, *faults: ConfigFinding) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = faults


def plugin_fault(message: str, *path: str | int, at_key: bool = False) -> PluginFaultError:
    """Return an error with one fault. `path` is the faulty key in the plugin's section; by default the key `plugin`."""
    return PluginFaultError(ConfigFinding(path or ("plugin",), message, at_key=at_key))


@dataclass(frozen=True, slots=True)
class OptionsForm:
    """How a plugin's function or constructor takes the plugin's options. `takes` is False if it takes no options."""

    takes: bool
    name: str = ""
    """The name of the parameter for the options; "" if the options are passed as the last positional argument."""
    model: type[BaseModel] | None = None
    needs: int = 0
    """The number of required positional arguments before the options."""
    most: int = 0
    """The maximum number of positional arguments before the options."""
    default: str = ""
    """For a hint: a parameter that could take the options, but has a default and another name; "" if none does."""

    @classmethod
    def of(cls, target: Callable[..., Any], place: int) -> OptionsForm:
        """Inspect a callable with `place` arguments before its options. Raises ValueError for unusable parameters."""
        needs, most = signatures.positional_argument_range(target, ("options",))
        taken = signatures.options_parameter(target, place)
        if taken is None:
            defaults = (one.name for one in signatures.parameters_of(target)[place:] if one.default is not one.empty)
            return cls(False, needs=needs, most=most, default=next((one for one in defaults if one != "options"), ""))
        by_place = taken.kind is taken.POSITIONAL_ONLY
        if taken.kind is not taken.KEYWORD_ONLY:
            needs, most = needs - (taken.default is taken.empty), most - 1
        return cls(True, "" if by_place else taken.name, model_of(target, taken), needs, most)

    @classmethod
    def of_function(cls, target: Callable[..., Any], place: int, expected: str) -> OptionsForm:
        """Inspect a function of `place` arguments, or `place` arguments and options. Raises PluginFaultError."""
        try:
            form = cls.of(target, place)
        except ValueError as error:
            raise plugin_fault(f"the plugin {error}; {expected}") from None
        if form.needs > place or form.most < place:
            count = form.needs + form.takes if form.needs > place else form.most
            raise plugin_fault(f"the plugin takes {count or 'no'} argument{'' if count == 1 else 's'}; {expected}")
        return form

    def bind_options(self, target: Callable[..., Any], options: Any) -> Callable[..., Any]:
        """Return the callable with its options bound, or unchanged if it takes no options. Other arguments remain."""
        if not self.takes:
            return target
        if self.name:
            return functools.partial(target, **{self.name: options})
        return lambda *first: target(*first, options)

    def validate_options(self, kind: str, options: dict[str, Any]) -> Any:
        """Return the options as an instance of the plugin's model, or as a dict without a model.

        Secrets are hidden in later texts; texts from `${...}` are recognized by their class. Raises PluginFaultError.
        """
        if not self.takes:
            if options:
                hint = f"; to get them, rename its parameter {self.default} to options"
                message = f"the {kind} takes no options{hint if self.default else ''}; expected no options"
                raise plugin_fault(message, "options", at_key=True)
            return options
        given = map_texts(options, str)  # plain str for the plugin, because text from `${...}` has a class of rmqd
        hide_options(options)
        if self.model is None:
            return given
        try:
            made = self.model.model_validate(given)
        except ValidationError as error:
            invalid = [_option_fault(self.model, one, options) for one in error.errors(include_url=False)]
            raise PluginFaultError(*invalid, *_unknown_faults(unknown_keys(given, self.model))) from None
        faults = _unknown_faults(unknown_options(given, made))
        if faults:
            raise PluginFaultError(*faults)
        hide_options({}, made)
        return made


def refuse_unbound(name: str, target: object, instead: str) -> None:
    """Raise PluginFaultError if `target` is a method of a class, because rmqd would pass a batch as `self`.

    `instead` is the next step in the error, in which `{owner}` stands for `module:Class`.
    """
    function = target.function if isinstance(target, signatures.TypedHandler) else signatures.unbound_function(target)
    if owner := signatures.owner_of_unbound(function):
        raise plugin_fault(f"{name} is a method; {instead.format(owner=f'{function.__module__}:{owner}')}")


def model_of(
    target: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any] | None = None
) -> type[BaseModel] | None:
    """Return the pydantic model in the annotation of an options parameter; None without a model.

    `names` are passed to `type_hint_of`. Raises ValueError if the annotation allows neither a model nor a dict.
    """
    try:
        hint = signatures.without_extras(signatures.type_hint_of(target, parameter, names))
    except signatures.AnnotationError:
        return None
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [typing.get_origin(one) or one for one in (typing.get_args(hint) if is_union else [hint])]
    if models := [one for one in kinds if inspect.isclass(one) and issubclass(one, BaseModel)]:
        return models[0]
    if parameter.annotation is parameter.empty or any(map(_has_options, kinds)):
        return None
    raise ValueError(
        f"gets its options in the parameter {parameter.name}, which is annotated as {inspect.formatannotation(hint)}, "
        "not as a pydantic model or a dict"
    )


def _has_options(kind: object) -> bool:
    """Return whether a dict of options may be an instance of this type."""
    if kind is Any or not inspect.isclass(kind) or getattr(kind, "_is_protocol", False):
        return True
    return issubclass(kind, Mapping) or issubclass(dict, kind)


def with_article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _at(options: Any, path: KeyPath) -> object:
    """Return the configured value at a path; None if a step is not a key, such as the name of a union's member."""
    for step in path:
        if isinstance(options, dict):
            options = options.get(step)
        elif isinstance(options, list) and isinstance(step, int) and step < len(options):
            options = options[step]
        else:
            return None
    return options


def _option_fault(model: type[BaseModel], details: ErrorDetails, options: dict[str, Any]) -> ConfigFinding:
    path, key = ("options", *details["loc"]), str(details["loc"][-1]) if details["loc"] else ""
    holder = model_at(model, details["loc"][:-1])
    fields = holder.model_fields if holder is not None else {}
    if details["type"] == "extra_forbidden":
        if holder is None:  # for example in a union of models
            return ConfigFinding(path, "unknown option", at_key=True)
        return _unknown_option(path, [field.alias or name for name, field in fields.items()])
    if details["type"] == "missing":
        field = fields.get(key)
        return ConfigFinding(path, f"missing; expected {(field and field.description) or 'a value'}")
    if details["type"] == "value_error":
        return ConfigFinding(path, hide_secrets(str(details.get("ctx", {}).get("error", details["msg"]))))
    if details["type"] == "string_pattern_mismatch" and key in fields and fields[key].description:
        return ConfigFinding(path, f"the value is not valid; expected {fields[key].description}")
    if details["type"] == "list_type":
        return ConfigFinding(path, f"the value should be a list, such as {list_example(_at(options, details['loc']))}")
    return ConfigFinding(path, hide_secrets(details["msg"].replace("Input should", "the value should", 1)))


def _unknown_option(path: KeyPath, known: list[str]) -> ConfigFinding:
    return ConfigFinding(path, unknown("option", str(path[-1]), known), at_key=True)


def _unknown_faults(found: Iterable[tuple[KeyPath, list[str]]]) -> list[ConfigFinding]:
    return [_unknown_option(("options", *path), known) for path, known in found]
