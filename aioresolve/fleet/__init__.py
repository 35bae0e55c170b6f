"""Many clusters at once: resolved, polled or watched side by side, so that a bad one stalls nobody.

`read_fleet("fleet.yaml")` makes the targets from a file, whose format `aioresolve.fleet.config` tells.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .fleet import Fleet
from .target import Reading

if TYPE_CHECKING:
    from .config import FleetFile, fleet_of, read_fleet

__all__ = ["Fleet", "FleetFile", "Reading", "fleet_of", "read_fleet"]


def __getattr__(name: str) -> object:
    # A fleet that is no file's needs no YAML.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.config"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
