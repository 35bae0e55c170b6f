"""The reader of fleet.yaml; see `aioresolve.fleet.config.fleet_file` for the format."""

from .fleet_file import FleetFile, fleet_of, read_fleet

__all__ = ["FleetFile", "fleet_of", "read_fleet"]
