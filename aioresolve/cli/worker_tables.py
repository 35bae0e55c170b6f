"""Workers with their TPU slices and devices, and lists of TPU nodes, as tables and documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from aioresolve.spec import host_port

from .error_messages import error_message
from .formats import (
    TASK,
    Table,
    TaskName,
    TextTable,
    format_cluster,
    format_document,
    format_latency,
    is_document,
    spec_table,
    tasks_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aioresolve.gcp.tpu_api import Node, NodeList
    from aioresolve.probe import WorkerProbe
    from aioresolve.spec import ClusterState
    from aioresolve.tpu import TPUSlice

PROBE_COLUMNS = ("DEVICES", "CORES", "CHIPS", "LATENCY", "ERROR")
SLICE_COLUMNS = ("SLICE", "WORKER", "STATE", "HEALTH", "TYPE")
NODE_COLUMNS = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "ENDPOINTS")

TPU_PORT = 8470
"""The port of a worker if the API does not report one."""

MAX_ENDPOINTS = 3
"""How many endpoints of a node its row shows, unless it is wide."""


class FoundTPUs(msgspec.Struct, frozen=True):
    """Resolved TPUs and the cluster of their workers.

    `slices` are in the order of their tasks; they are empty if the TPU belongs to this host. `probes` is
    worker address to the result of its probe, None if the workers were not probed.
    """

    slices: tuple[TPUSlice, ...]
    state: ClusterState
    probes: dict[str, WorkerProbe] | None = None


def format_workers(
    output: str, found: FoundTPUs, task: TaskName | None, options: Mapping[str, Any]
) -> str | Table:
    """Return the workers of TPUs in the format `output` (see `format_cluster`)."""
    if is_document(output):
        document = slices_document(found)
        return format_document(output, document, tasks_of(document))
    if output in ("table", "wide"):
        return workers_table(found, is_wide=output == "wide")
    if output == "megascale" and "slices" not in options:
        options = {**options, "slices": [one.tasks for one in found.slices]}
    return format_cluster(output, found.state.spec, found.state, task, options)


def workers_table(found: FoundTPUs, *, is_wide: bool) -> Table:
    """Return one row per worker: its task and address, and its devices if it was probed.

    With `is_wide`, rows also have the columns `SLICE_COLUMNS`; `WORKER` is the number of the worker in its
    slice.
    """
    columns: Sequence[str] = TASK
    rows = [tuple(row) for row in spec_table(found.state.spec).rows]
    if is_wide:
        columns = (*columns, *SLICE_COLUMNS)
        rows = [(*row, *cells) for row, cells in zip(rows, _slice_rows(found.slices), strict=True)]
    if found.probes is not None:
        columns = (*columns, *PROBE_COLUMNS)
        addresses = [member.endpoint.address for member in found.state.members]
        rows = [
            (*row, *_probe_cells(found.probes[address])) for row, address in zip(rows, addresses, strict=True)
        ]
    return Table(columns, rows)


def slices_document(found: FoundTPUs) -> dict[str, Any]:
    """Return the cluster as one object: that of `ClusterState.as_dict`, with the slice of each task.

    In addition, each task has `slice`, `state`, `health` and `accelerator_type`, and, if the workers were
    probed, `probe` (see `probe_document`).
    """
    document = found.state.as_dict()
    tasks = [task for job in document["jobs"].values() for task in job]
    slices = [one for one in found.slices for _ in one.endpoints]
    for task, one in zip(tasks, slices, strict=True):
        state, health = _state_and_health(one)
        task |= {
            "slice": one.name,
            "state": state or None,
            "health": health or None,
            "accelerator_type": one.accelerator_type,
        }
        if found.probes is not None:
            task["probe"] = probe_document(found.probes[task["address"]])
    return document


def new_probe_table(addresses: Iterable[str], *, has_headers: bool = True) -> TextTable:
    """Return a table whose rows are those of `probe_row`; `addresses` are those of all workers."""
    widths = (max(map(len, addresses), default=0), len("tensorflow"), len("TPU:4096"), 6, 6, 7)
    return TextTable(("ADDRESS", "SOURCE", *PROBE_COLUMNS), widths, has_headers=has_headers)


def probe_row(probe: WorkerProbe) -> tuple[str, ...]:
    """Return the row of a probed worker."""
    return (probe.address, probe.source or "", *_probe_cells(probe))


def probe_document(probe: WorkerProbe) -> dict[str, Any]:
    """Return a probed worker as an object.

    `{"address", "source", "accelerators": {type: number}, "cores", "chips", "latency", "devices": [{"name",
    "type", "memory", "incarnation"}], "error": {"code", "message", "retryable"}}`: latency is in seconds,
    memory in bytes. The values of unknown fields, and of `error` after a success, are null.
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
            {"name": one.name, "type": one.type, "memory": one.memory, "incarnation": one.incarnation}
            for one in probe.devices
        ],
        "error": None
        if error is None
        else {"code": error.code, "message": error_message(error), "retryable": error.retryable},
    }


def format_nodes(output: str, listing: NodeList) -> str | Table:
    """Return a list of TPU nodes as `table`, `wide`, `json`, `yaml`, `name` or by a template.

    The object is `{"nodes": [{"name", "zone", "project", "accelerator_type", "topology", "state", "health",
    "health_description", "runtime_version", "queued_resource", "endpoints": [{"address", "external_ip"}]}],
    "unreachable"}`: `unreachable` are the locations whose nodes are missing. Unknown values are null.
    """
    if is_document(output):
        nodes = [_node_document(node) for node in listing.nodes]
        return format_document(output, {"nodes": nodes, "unreachable": list(listing.unreachable)}, nodes)
    if output == "name":
        return "".join(f"{node.name}\n" for node in listing.nodes)
    return nodes_table(listing.nodes, is_wide=output == "wide")


def nodes_table(nodes: Sequence[Node], *, is_wide: bool) -> Table:
    """Return one row per node, with all of its endpoints if `is_wide`, otherwise the first ones."""
    rows = []
    for node in nodes:
        addresses = [str(endpoint["address"]) for endpoint in _endpoints(node)]
        more = 0 if is_wide else len(addresses[MAX_ENDPOINTS:])
        shown = ",".join(addresses[: len(addresses) - more]) + (f"+{more}" if more else "")
        _, zone, name = _split_name(node)
        rows.append((name, zone, node.accelerator_type, node.state, node.health, shown))
    return Table(NODE_COLUMNS, rows)


def _probe_cells(probe: WorkerProbe) -> tuple[str, ...]:
    error = probe.error
    return (
        ",".join(f"{kind}:{number}" for kind, number in sorted(probe.accelerators.items())),
        "" if probe.cores is None else str(probe.cores),
        "" if probe.chips is None else str(probe.chips),
        format_latency(probe.latency),
        # The first clause only: a row should fit on a line of a terminal.
        "" if error is None else f"{error.code}: {error.summary.partition('; ')[0]}",
    )


def _slice_rows(slices: Sequence[TPUSlice]) -> list[tuple[str, ...]]:
    return [
        (one.name or "", str(endpoint.index), *_state_and_health(one), one.accelerator_type or "")
        for one in slices
        for endpoint in one.endpoints
    ]


def _state_and_health(one: TPUSlice) -> tuple[str, str]:
    return ("", "") if one.node is None else (one.node.state, one.node.health)


def _node_document(node: Node) -> dict[str, Any]:
    project, zone, name = _split_name(node)
    config = node.accelerator_config
    values = {
        "name": name,
        "zone": zone,
        "project": project,
        "accelerator_type": node.accelerator_type,
        "topology": "" if config is None else config.topology,
        "state": node.state,
        "health": node.health,
        "health_description": node.health_description,
        "runtime_version": node.runtime_version or node.tensorflow_version,
        "queued_resource": node.queued_resource,
    }
    return {key: value or None for key, value in values.items()} | {"endpoints": _endpoints(node)}


def _endpoints(node: Node) -> list[dict[str, str | None]]:
    # A node that is being created may have endpoints without an address.
    return [
        {
            "address": host_port(endpoint.ip_address, endpoint.port or TPU_PORT),
            "external_ip": (endpoint.access_config.external_ip if endpoint.access_config else "") or None,
        }
        for endpoint in node.endpoints
        if endpoint.ip_address
    ]


def _split_name(node: Node) -> tuple[str, str, str]:
    """Return project, zone and id. A name in another format is returned as the id."""
    try:
        name = node.node_name
    except ValueError:
        return "", "", node.name
    return name.project, name.zone, name.name
