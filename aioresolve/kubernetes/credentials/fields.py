"""Text of a file -> a YAML document -> fields by type. Pure; every error names the place, never the value.

Parser errors quote the line they failed on, which may hold a secret: they are told as line and column
only. Errors are raised outside of `except`, because a parser's error keeps the text it failed on and
would go along as the new error's context.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aioresolve.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Fields", "document", "json_in", "kind_of"]


def document(content: bytes, where: str) -> Any:
    """Return what the YAML (or JSON) of a file says; None where it is empty.

    Args:
        content: the file's bytes.
        where: the file, in words for messages.

    Raises:
        ConfigurationError: it is not UTF-8, or neither YAML nor JSON.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        offset = error.start
    else:
        return _yaml(text, where)
    raise ConfigurationError(f"{where} is not UTF-8 (byte {offset}); save it as UTF-8")


def json_in(text: str | bytes) -> Any:
    """Return what the JSON in `text` says; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _yaml(text: str, where: str) -> Any:
    # Some tools write kubeconfigs as JSON indented by tabs, which YAML does not allow.
    if text.lstrip().startswith("{") and (value := json_in(text)) is not None:
        return value
    import yaml

    place = ""
    try:
        return yaml.load(text, Loader=_loader())  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is not None:
            place = f" at line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
    except RecursionError:
        place = " (nested too deeply)"
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError):
        pass  # PyYAML lets the last four through for values that do not fit their tag
    raise ConfigurationError(
        f"{where} is not valid YAML{place}; `kubectl config view` shows whether it reads"
    )


def _loader() -> Any:
    """PyYAML's safe loader on libyaml's scanner where there is one.

    `yaml.CSafeLoader` composes nodes in C and overflows the stack on deep nesting, which ends the
    process. Composed in Python the same text is a `RecursionError`.
    """
    import yaml
    from yaml.composer import Composer

    if not yaml.__with_libyaml__:
        return yaml.SafeLoader

    class Loader(Composer, yaml.CSafeLoader):
        def __init__(self, stream: str) -> None:
            yaml.CSafeLoader.__init__(self, stream)
            Composer.__init__(self)

    return Loader


class Fields:
    """The fields of one mapping, read by type; the error of a wrong type names the place, not the value."""

    __slots__ = ("_values", "where")

    def __init__(self, values: Any, where: str) -> None:
        if values is None:
            values = {}
        if not isinstance(values, dict):
            raise ConfigurationError(f"{where}: must be a mapping, not a {kind_of(values)}")
        self._values: dict[Any, Any] = values
        self.where = where

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._values if isinstance(key, str))

    def value(self, key: str) -> Any:
        return self._values.get(key)

    def text(self, key: str) -> str | None:
        """None where it is missing, null or empty."""
        value = self._values.get(key)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise ConfigurationError(
                f"{self.where}: {key} must be text, not a {kind_of(value)}; put it in quotes"
            )
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise ConfigurationError(
                f"{self.where}: {key} must be true or false (without quotes), not a {kind_of(value)}"
            )
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._list(key)
        for value in values:
            if not isinstance(value, str):
                raise ConfigurationError(
                    f"{self.where}: an item of {key} must be text, not a {kind_of(value)}; put it in quotes"
                )
        return tuple(values)

    def below(self, key: str) -> Fields | None:
        value = self._values.get(key)
        return None if value is None else Fields(value, f"{self.where}, {key}")

    def each(self, key: str) -> list[Fields]:
        return [Fields(value, f"{self.where}, {key}[{i}]") for i, value in enumerate(self._list(key))]

    def _list(self, key: str) -> list[Any]:
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigurationError(f"{self.where}: {key} must be a list, not a {kind_of(value)}")
        return value


def kind_of(value: object) -> str:
    kinds = {dict: "mapping", list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), type(value).__name__)
