"""The base class of all resolvers, and two resolvers that need no service: a fixed cluster, and a union."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .base import ClusterResolver

if TYPE_CHECKING:
    from .checks import Check
    from .static import SimpleClusterResolver
    from .union import UnionClusterResolver

__all__ = ["Check", "ClusterResolver", "SimpleClusterResolver", "UnionClusterResolver"]

_MODULES = {"Check": "checks", "SimpleClusterResolver": "static", "UnionClusterResolver": "union"}


def __getattr__(name: str) -> object:
    # Other resolvers need only the base class.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
