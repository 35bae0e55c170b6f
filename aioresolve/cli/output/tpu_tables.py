"""From TPUs to the text that is printed. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aioresolve.spec import host_port

from .formats import Table, document, spec_table
from .probe_rows import PROBE_COLUMNS, probe_cells, probe_document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aioresolve.cli.commands.tpu import FoundTPUs
    from aioresolve.gcp.tpu_api import Node, NodeList
    from aioresolve.tpu import TPUSlice

__all__ = ["node_names", "nodes_document", "nodes_table", "slices_document", "workers_table"]

SLICE_COLUMNS = ("SLICE", "WORKER", "STATE", "HEALTH", "TYPE")
NODE_COLUMNS = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "ENDPOINTS")

TPU_PORT = 8470
"""Where a worker listens whose port the API does not tell."""

SHOWN = 3
"""Endpoints of a node that its row shows; `wide` has all."""


def workers_table(found: FoundTPUs, *, is_wide: bool) -> Table:
    """Return one row per worker: its task and address, and what else was asked for.

    Args:
        found: the workers; those that were probed have what they said of their devices.
        is_wide: with its slice's name, state, health and accelerator type, and its number there.
    """
    columns, rows = spec_table(found.state.spec)
    rows = [tuple(row) for row in rows]
    if is_wide:
        columns = (*columns, *SLICE_COLUMNS)
        rows = [(*row, *cells) for row, cells in zip(rows, _slice_rows(found.slices), strict=True)]
    if found.probes is not None:
        columns = (*columns, *PROBE_COLUMNS)
        addresses = [member.endpoint.address for member in found.state.members]
        rows = [
            (*row, *probe_cells(found.probes[address])) for row, address in zip(rows, addresses, strict=True)
        ]
    return Table(columns, rows)


def slices_document(found: FoundTPUs) -> dict[str, Any]:
    """Return the cluster as one object: that of `document`, and of each task what its slice is.

    Each task has `slice`, `state`, `health` and `accelerator_type` besides, and where the workers were probed
    `probe`, whose shape is that of `probe_document`.
    """
    whole = document(found.state)
    tasks = [task for job in whole["jobs"].values() for task in job]
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
    return whole


def nodes_table(nodes: Sequence[Node], *, is_wide: bool) -> Table:
    """Return one row per node; all its endpoints where it is wide, else the first of them."""
    rows = []
    for node in nodes:
        addresses = [str(endpoint["address"]) for endpoint in _endpoints(node)]
        more = 0 if is_wide else len(addresses[SHOWN:])
        shown = ",".join(addresses[: len(addresses) - more]) + (f"+{more}" if more else "")
        _, zone, name = _place(node)
        rows.append((name, zone, node.accelerator_type, node.state, node.health, shown))
    return Table(NODE_COLUMNS, rows)


def nodes_document(listing: NodeList) -> dict[str, Any]:
    """Return the list as one object.

    `{"nodes": [{"name", "zone", "project", "accelerator_type", "topology", "state", "health",
    "health_description", "runtime_version", "queued_resource", "endpoints": [{"address", "external_ip"}]}],
    "unreachable"}`: `unreachable` are the locations whose nodes are missing. What is not known is null.
    """
    return {"nodes": list(map(_node_document, listing.nodes)), "unreachable": list(listing.unreachable)}


def node_names(nodes: Sequence[Node]) -> str:
    """Return every node's full name on a line of its own."""
    return "".join(f"{node.name}\n" for node in nodes)


def _node_document(node: Node) -> dict[str, Any]:
    project, zone, name = _place(node)
    config = node.accelerator_config
    told = {
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
    return {field: value or None for field, value in told.items()} | {"endpoints": _endpoints(node)}


def _endpoints(node: Node) -> list[dict[str, str | None]]:
    """Return where its workers are; a node that is being created may have none yet."""
    return [
        {
            "address": host_port(endpoint.ip_address, endpoint.port or TPU_PORT),
            "external_ip": (endpoint.access_config.external_ip if endpoint.access_config else "") or None,
        }
        for endpoint in node.endpoints
        if endpoint.ip_address
    ]


def _place(node: Node) -> tuple[str, str, str]:
    """Return project, zone and id; a name of another shape is all id."""
    try:
        name = node.node_name
    except ValueError:
        return "", "", node.name
    return name.project, name.zone, name.name


def _slice_rows(slices: Sequence[TPUSlice]) -> list[tuple[str, ...]]:
    return [
        (one.name or "", str(endpoint.index), *_state_and_health(one), one.accelerator_type or "")
        for one in slices
        for endpoint in one.endpoints
    ]


def _state_and_health(one: TPUSlice) -> tuple[str, str]:
    return ("", "") if one.node is None else (one.node.state, one.node.health)
