"""Many clusters at once: resolved, polled or watched concurrently, so that a bad one does not delay the
others.

`read_fleet("fleet.yaml")` makes the targets from a file, whose format docs/fleets.md describes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .fleet import Fleet
from .status import Health, TargetStatus

if TYPE_CHECKING:
    from .config import FleetFile, fleet_of, fleet_schema, read_fleet

__all__ = ["Fleet", "FleetFile", "Health", "TargetStatus", "fleet_of", "fleet_schema", "read_fleet"]


def __getattr__(name: str) -> object:
    # A fleet that is not read from a file does not need the reader of files.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.config"), name)


def __dir__() -> list[str]:
    return __all__
