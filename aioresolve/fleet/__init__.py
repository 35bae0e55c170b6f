"""Many clusters at once: resolved, polled or watched concurrently, so that a bad one does not delay the
others.

`read_fleet("fleet.yaml")` makes the targets from a file, whose format docs/fleets.md describes.
"""

from __future__ import annotations

from .config import FleetFile, fleet_of, fleet_schema, read_fleet
from .fleet import Fleet
from .status import Health, TargetStatus

__all__ = ["Fleet", "FleetFile", "Health", "TargetStatus", "fleet_of", "fleet_schema", "read_fleet"]


def __dir__() -> list[str]:
    return __all__
