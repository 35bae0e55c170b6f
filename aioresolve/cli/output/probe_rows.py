"""From what workers say of their devices to the text that is printed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve.cli.error_messages import error_message

from .formats import RowByRow, as_json_line, latency

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aioresolve.probe import WorkerProbe

__all__ = ["PROBE_COLUMNS", "Rows", "json_line", "probe_cells", "probe_document"]

PROBE_COLUMNS = ("DEVICES", "CORES", "CHIPS", "LATENCY", "ERROR")


class Rows:
    """Rows that are printed one by one.

    Args:
        addresses: of all the workers that a row may be of.
    """

    COLUMNS = ("ADDRESS", "SOURCE", *PROBE_COLUMNS)

    def __init__(self, addresses: Iterable[str]) -> None:
        longest = max(map(len, addresses), default=0)
        self._table = RowByRow(self.COLUMNS, (longest, len("tensorflow"), len("TPU:4096"), 6, 6, 7))

    def header(self) -> str:
        """Return the line of the columns' names."""
        return self._table.header()

    def row(self, probe: WorkerProbe) -> str:
        """Return the line of one worker."""
        return self._table.rows([(probe.address, probe.source or "", *probe_cells(probe))])


def probe_cells(probe: WorkerProbe) -> tuple[str, ...]:
    """Return a worker's cells under `PROBE_COLUMNS`: of an error its code and the first clause."""
    return (
        ",".join(f"{kind}:{number}" for kind, number in sorted(probe.accelerators.items())),
        "" if probe.cores is None else str(probe.cores),
        "" if probe.chips is None else str(probe.chips),
        latency(probe.latency),
        "" if probe.error is None else f"{probe.error.code}: {probe.error.summary.partition('; ')[0]}",
    )


def probe_document(probe: WorkerProbe) -> dict[str, Any]:
    """Return a worker as an object.

    `{"address", "source", "accelerators": {type: number}, "cores", "chips", "latency", "devices": [{"name",
    "type", "memory", "incarnation"}], "error": {"code", "message", "retryable"}}`: latency is in seconds,
    memory in bytes; what is not known, and the error of a worker that answered, is null.
    """
    error = probe.error
    return {
        "address": probe.address,
        "source": probe.source,
        "accelerators": probe.accelerators,
        "cores": probe.cores,
        "chips": probe.chips,
        "latency": round(probe.latency, 6),
        "devices": [
            {
                "name": device.name,
                "type": device.type,
                "memory": device.memory,
                "incarnation": device.incarnation,
            }
            for device in probe.devices
        ],
        "error": None
        if error is None
        else {"code": error.code, "message": error_message(error), "retryable": error.retryable},
    }


def json_line(probe: WorkerProbe) -> str:
    """Return a worker as one line of JSON."""
    return as_json_line(probe_document(probe))
