"""`aioresolve tpu`: the workers of Cloud TPUs as the tasks of a cluster, and the list of all TPUs."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli import clusters, formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE
from aioresolve.errors import ConfigurationError, ResolveError

from . import probe as probes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.client import Page
    from aioresolve.gcp.tpu_api import Node
    from aioresolve.probe import WorkerProbe
    from aioresolve.spec import ClusterState
    from aioresolve.tpu import TPUSlice

ALL_ZONES = "-"

NODE_COLUMNS = ("NAME", "ZONE", "TYPE", "STATE", "HEALTH", "ENDPOINTS")

MAX_ENDPOINTS = 3
"""How many endpoints of a node its row shows, unless it is wide."""

EPILOG = """\
\b
Examples:
  # the workers of one TPU, and of two: the workers of the second follow those of the first
  aioresolve tpu my-tpu --zone us-central2-b --project my-project
  aioresolve tpu slice-0 slice-1 -o wide

\b
  # whether each worker responds, and with how many devices
  aioresolve tpu my-tpu --probe

\b
  # on a TPU VM, or in a pod of a TPU slice on GKE: its own slice, for TensorFlow
  export TF_CONFIG=$(aioresolve tpu -o tf-config --task worker:0)

\b
  # all TPUs of a project, in any state
  aioresolve tpu --list --project my-project

\b
Exit codes: 0 success; 1 could not resolve, no workers, a worker failed --probe, or --list could
not reach a location; 2 invalid usage or configuration; 3 deadline passed.
"""


@click.command(epilog=EPILOG, short_help="The workers of Cloud TPUs, as the tasks of a cluster.")
@options.tpu_options
@options.flag_option(
    "--list is_list", "List TPUs in any state instead of resolving them: those of all zones, or of --zone."
)
@options.flag_option("--probe is_probed", "Request the devices of each worker, and add them.")
@options.allow_empty_option
@options.output_option()
@options.coordinator_port_option
@options.task_options
@options.watch_option
@options.total_timeout_option
@options.worker_timeout_option
@options.max_concurrency_option(256, "workers probed")
@options.quiet_option
@options.verbose_option
@click.pass_context
def tpu(
    context: click.Context,
    /,
    is_watched: bool,
    is_list: bool,
    is_probed: bool,
    allow_empty: bool,
    worker_timeout: float,
    max_concurrency: int,
    **parameters: Any,
) -> None:
    """Print the workers of Cloud TPUs as the tasks of a cluster.

    NAME is the id or full name of a TPU, that of a queued resource, which stands for its nodes, or the
    address of a worker. Each TPU is a slice. All are requested concurrently, and all must be ready. Without
    NAME, the environment determines the TPU: the variables of GKE, $TPU_NAME, $TPU_CONFIG, or the metadata
    server of a TPU VM.

    \b
    Outputs:
      table      job, task, name and address; with --list name, zone, type, state, health, endpoints
      wide       in addition the accelerator type, state and health of the TPU of each worker; with
                 --list all endpoints
      json yaml  {"jobs": {JOB: [{"task", "address", "name", "slice", "state", "health",
                 "accelerator_type", "index", ...}]}, "done", "version", "observed_at"};
                 with --list {"nodes": [...], "unreachable": [...]}
      name       only the addresses, one per line; with --list the full names
      All others are those of `aioresolve kubernetes`.
    """
    request = sources.new_request("tpu", parameters)
    _validate(request, is_list=is_list, is_probed=is_probed)
    if is_watched:
        from .watch import run_watch

        if is_list or is_probed:
            raise click.UsageError("-w cannot be combined with --list or --probe; leave them out")
        run_watch(request)
    elif is_list:
        _print_list(context, request)
    else:
        probe_options = {"worker_timeout": worker_timeout, "max_concurrency": max_concurrency}
        _print_workers(context, request, probe_options if is_probed else None, allow_empty=allow_empty)


def _validate(request: sources.ClusterRequest, *, is_list: bool, is_probed: bool) -> None:
    if is_list and (request.arguments["tpu"] or is_probed):
        other = "--probe" if is_probed else "NAME"
        raise click.UsageError(f"--list lists all TPUs; leave out {other} or --list")
    for_programs = ("tf-config", *clusters.PROGRAM_OUTPUTS)
    if is_list and request.output in for_programs:
        raise click.UsageError(f"--list has no -o {request.output}; pass NAME instead of --list")
    if is_probed and request.output in ("name", *for_programs):
        raise click.UsageError(
            f"-o {request.output} cannot show the result of --probe; leave out one of them"
        )
    sources.validate_output(request)


# The workers


def _print_workers(
    context: click.Context,
    request: sources.ClusterRequest,
    probe_options: dict[str, Any] | None,
    *,
    allow_empty: bool,
) -> None:
    if probe_options is not None:
        streams.silence_grpc()

    async def resolve() -> tuple[str | formats.Table, bool, list[WorkerProbe]]:
        from aioresolve.tpu.slices import cluster_of

        resolver = sources.new_resolver(request)
        ends = time.monotonic() + request.timeout
        async with resolver:
            slices = await sources.run_with_progress(request, resolver.fetch_slices)
            state = cluster_of(slices, resolver.get_job_name(), {}, datetime.now(UTC))
            task = await sources.find_task_name(resolver, request, state)
        found = []
        if probe_options is not None:
            left = sources.with_time_left(request, ends)
            found = await _probe(slices, quiet=request.quiet, timeout=left.timeout, **probe_options)
        by_address = {one.address: one for one in found}
        return format_workers(request, slices, state, task, by_address), bool(slices), found

    content, has_slices, probed = run_async(lambda _: resolve())
    if not has_slices:
        report = (
            f"{request.scope} has no workers: it belongs to this host, which needs no address on the network"
        )
        if not allow_empty:
            streams.write_stderr(f"error: {report}; pass --allow-empty if this is expected\n")
            context.exit(COULD_NOT_RESOLVE)
        request.note(report)
    streams.write_stdout(content, has_headers=request.has_headers)
    probes.report_failed_probes(context, probed)


async def find_slices(resolver: Any, timeout: float) -> tuple[tuple[TPUSlice, ...], ClusterState]:
    """Return the slices of a TPUClusterResolver, which its states do not have, and their cluster."""
    from aioresolve.tpu.slices import cluster_of

    slices = await resolver.slices(timeout=timeout)
    return slices, cluster_of(slices, resolver.get_job_name(), {}, datetime.now(UTC))


async def _probe(slices: tuple[TPUSlice, ...], **given: Any) -> list[WorkerProbe]:
    from aioresolve.tpu.slices import libtpu_ports

    addresses = [endpoint.address for one in slices for endpoint in one.endpoints]
    return await probes.probe_workers(addresses, libtpu_ports=libtpu_ports(slices), **given)


def format_workers(
    request: sources.ClusterRequest,
    slices: Sequence[TPUSlice],
    state: ClusterState,
    task: clusters.TaskName | None,
    probed: Mapping[str, WorkerProbe],
) -> str | formats.Table:
    """Return the workers of slices in the format of the output.

    `state` is the cluster of the workers, and `probed` the results of probes by address, empty without them.
    """
    output, given = request.output, request.program_options(request.output)
    workers = [(_facts(one), probed.get(each.address)) for one in slices for each in one.endpoints]
    if clusters.is_document(output):
        document = state.as_dict()
        tasks = [task for of_job in document["jobs"].values() for task in of_job]
        for task_document, (facts, probe) in zip(tasks, workers, strict=True):
            task_document |= {name: value or None for name, value in facts.items()}
            if probe is not None:
                task_document["probe"] = probes.probe_document(probe)
        return clusters.format_document(output, document, clusters.tasks_of(document))
    if output in ("table", "wide"):
        more: list[dict[str, str]] = []
        for facts, probe in workers:
            columns = {"TYPE": "accelerator_type", "STATE": "state", "HEALTH": "health"}
            cells = {name: facts[fact] for name, fact in columns.items()} if output == "wide" else {}
            probe_cells = () if probe is None else zip(probes.COLUMNS, probes.probe_cells(probe), strict=True)
            more.append({**cells, **dict(probe_cells)})
        return clusters.members_table(state, more=more if any(more) else ())
    if output == "megascale":
        given.setdefault("slices", [one.tasks for one in slices])
    return clusters.format_cluster(output, state, task, given)


def _facts(one: TPUSlice) -> dict[str, str]:
    """Return what the outputs say of the slice of a worker; unknown values are empty."""
    node = one.node
    return {
        "slice": one.name or "",
        "state": "" if node is None else node.state,
        "health": "" if node is None else node.health,
        "accelerator_type": one.accelerator_type or "",
    }


# The list


def _print_list(context: click.Context, request: sources.ClusterRequest) -> None:
    listing = run_async(lambda _: _list_nodes(request))
    content = _format_nodes(request.output, listing)
    if not listing.nodes:
        request.note("No TPUs found.")
    streams.write_stdout(content, has_headers=request.has_headers)
    if listing.unreachable:
        # An error rather than a note: the list is incomplete, which --quiet must not hide.
        places = ", ".join(place.rpartition("/")[2] for place in listing.unreachable)
        streams.write_stderr(formats.printable(f"error: these locations were not reached: {places}") + "\n")
        context.exit(COULD_NOT_RESOLVE)


async def _list_nodes(request: sources.ClusterRequest) -> Page[Node]:
    from aioresolve.gcp.client import GoogleSession
    from aioresolve.gcp.tpu_api import TPUAPI
    from aioresolve.tpu.resolver import api_base_url

    given = request.arguments
    base = api_base_url(None, os.environ)
    zone = given["zone"] or ALL_ZONES

    async def operation(progress: Progress) -> Page[Node]:
        project = given["project"] or await _project_of_this_vm(progress)
        async with GoogleSession(endpoints={} if base is None else {"tpu": base}) as session:
            return await TPUAPI(session).nodes(project, zone, progress)

    where = "all zones" if zone == ALL_ZONES else f"zone {zone}"
    return await sources.run_with_progress(request, operation, f"the list of TPUs in {where}")


async def _project_of_this_vm(progress: Progress) -> str:
    from aioresolve.gcp.metadata_server import MetadataServer

    try:
        return await MetadataServer().project_id(progress)
    except ResolveError as error:
        if error.retryable:
            raise
        raise ConfigurationError(
            f"no project was passed, and the metadata server of this VM did not return one: {error.summary}",
            hint="Pass {project}.",
        ) from error


def _format_nodes(output: str, listing: Page[Node]) -> str | formats.Table:
    """Return a list of TPU nodes as `table`, `wide`, `json`, `yaml`, `name` or by a template.

    The object is `{"nodes": [{"name", "zone", "project", "accelerator_type", "topology", "state", "health",
    "health_description", "runtime_version", "queued_resource", "endpoints": [{"address", "external_ip"}]}],
    "unreachable"}`: `unreachable` are the locations whose nodes are missing. Unknown values are null.
    """
    if output == "name":
        return "".join(f"{node.name}\n" for node in listing.nodes)
    nodes = [_node_document(node) for node in listing.nodes]
    if clusters.is_document(output):
        document = {"nodes": nodes, "unreachable": list(listing.unreachable)}
        return clusters.format_document(output, document, nodes)
    rows = []
    for node in nodes:
        addresses = [endpoint["address"] for endpoint in node["endpoints"]]
        more = 0 if output == "wide" else len(addresses[MAX_ENDPOINTS:])
        shown = ",".join(addresses[: len(addresses) - more]) + (f"+{more}" if more else "")
        cells = (node[key] or "" for key in ("name", "zone", "accelerator_type", "state", "health"))
        rows.append((*cells, shown))
    return formats.Table(NODE_COLUMNS, rows)


def _node_document(node: Node) -> dict[str, Any]:
    from aioresolve.spec import host_port
    from aioresolve.tpu.discovery import TPU_PORT

    parts = node.name.split("/")  # projects/PROJECT/locations/ZONE/nodes/NAME
    project, zone, name = parts[1::2] if len(parts) == 6 else ("", "", node.name)
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
        "runtime_version": node.runtime_version,
        "queued_resource": node.queued_resource,
    }
    # A node that is being created may have endpoints without an address.
    endpoints = [
        {
            "address": host_port(endpoint.ip_address, endpoint.port or TPU_PORT),
            "external_ip": (endpoint.access_config.external_ip if endpoint.access_config else "") or None,
        }
        for endpoint in node.network_endpoints
        if endpoint.ip_address
    ]
    return {key: value or None for key, value in values.items()} | {"endpoints": endpoints}
