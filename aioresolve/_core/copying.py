"""Objects that hold connections, copied and pickled as the arguments that they were created with."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

T = TypeVar("T")

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Copyable:
    """Copied and pickled as the arguments of its constructor, and the attributes that were set afterwards.

    The copy has no connections. The arguments must be copyable and picklable themselves; `copy.copy` shares
    them, except those that are `Copyable`.
    """

    _kept_attributes: ClassVar[frozenset[str]] = frozenset()
    """The attributes that a copy has too if they were set after the constructor returned."""

    _is_copy = False
    _arguments_of_init: Arguments
    _assignments: dict[str, tuple[int, Any]]  # name to the number of assignments, and the last value

    if not TYPE_CHECKING:  # type checkers would read this signature instead of that of `__init__`

        def __new__(cls, *args: Any, **kwargs: Any) -> Self:
            self = super().__new__(cls)
            # Later changes of a list or a mapping do not change the object.
            vars(self).update(_arguments_of_init=_copy_containers((args, kwargs)), _assignments={})
            return self

        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            # Python 3.11.2 shows the signature of `__new__` for a class that inherits its `__init__`.
            signature = inspect.signature(cls.__init__)
            cls.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in self._kept_attributes:
            number, _ = self._assignments.get(name, (0, None))
            self._assignments[name] = number + 1, value

    def _copied_arguments(self) -> Arguments:
        """Return the arguments of the constructor that make an equal object."""
        return self._arguments_of_init

    def __copy__(self) -> Self:
        args, kwargs = _copy_containers(self._copied_arguments(), _copy_leaf)
        return recreate(type(self), args, kwargs, self._assignments)

    def __reduce__(self) -> tuple[Any, ...]:
        return recreate, (type(self), *self._copied_arguments(), self._assignments)


def recreate(
    kind: type[T], args: tuple[Any, ...], kwargs: dict[str, Any], assignments: dict[str, tuple[int, Any]]
) -> T:
    """Return a new `kind` with these arguments, on which the assignments are repeated."""
    new: Any = kind.__new__(kind, *args, **kwargs)
    vars(new)["_is_copy"] = True
    new.__init__(*args, **kwargs)
    for name, (number, value) in assignments.items():
        # The constructor has made the first ones again, with the values of this process.
        if number > new._assignments.get(name, (0, None))[0]:
            setattr(new, name, value)
    copied: T = new
    return copied


def _copy_leaf(value: Any) -> Any:
    return copy.copy(value) if isinstance(value, Copyable) else value


def _copy_containers(value: Any, copy_leaf: Callable[[Any], Any] = lambda leaf: leaf) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy_containers(item, copy_leaf) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copy_containers(item, copy_leaf) for item in value)
    return copy_leaf(value)
