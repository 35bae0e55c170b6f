"""Reading fleet.yaml; for its format see `aioresolve.fleet.config.fleet_file`."""

from .fleet_file import FleetFile, fleet_of, read_fleet

__all__ = ["FleetFile", "fleet_of", "read_fleet"]
