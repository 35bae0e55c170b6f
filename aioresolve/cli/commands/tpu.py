"""From a request to the TPUs that were found: what `aioresolve tpu` does while it waits.

`aioresolve tpu`: the workers of Cloud TPUs as the tasks of a cluster, and the list of all TPUs.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from aioresolve.cli.error_messages import COULD_NOT_RESOLVE
from aioresolve.cli.options import (
    TPURequest,
    check_tpus,
    output_option,
    quiet_option,
    task_option,
    timeout_option,
    tpu_options,
    verbose_option,
    watch_option,
    worker_timeout_option,
    workers_at_once_option,
)
from aioresolve.cli.output.cluster_text import OUTPUTS, check_watched_output, workers_text
from aioresolve.cli.output.formats import as_json, as_yaml, printable
from aioresolve.cli.output.tpu_tables import node_names, nodes_document, nodes_table
from aioresolve.cli.terminal import streams
from aioresolve.errors import ConfigurationError, ResolveError

if TYPE_CHECKING:
    from aioresolve._core.retry import Progress
    from aioresolve.gcp.tpu_api import NodeList
    from aioresolve.probe import WorkerProbe
    from aioresolve.spec import ClusterState
    from aioresolve.tpu import TPUClusterResolver, TPUSlice

__all__ = ["FoundTPUs", "found_tpus", "listed_nodes", "tpu", "tpu_resolver"]

ALL_ZONES = "-"


@dataclass(frozen=True, slots=True)
class FoundTPUs:
    """What was found.

    Attributes:
        slices: in the order of their tasks; none where the TPU is this host's own.
        state: the cluster that they are.
        probes: what each worker says of itself, by address; None where they were not asked.
    """

    slices: tuple[TPUSlice, ...]
    state: ClusterState
    probes: dict[str, WorkerProbe] | None = None


def found_tpus(request: TPURequest) -> FoundTPUs:
    """Return the TPUs that were asked for, or that the environment names.

    Raises:
        ResolveError: they were not found, are not ready, or not before the deadline.
    """
    # Imported here, so that `--help` and completion load click only.
    from aioresolve.cli.running import run

    return run(lambda _: _found(request))


def listed_nodes(request: TPURequest) -> NodeList:
    """Return every TPU node of a zone, or of all zones, in whatever state.

    Raises:
        ResolveError: the API could not be asked, or not before the deadline.
    """
    from aioresolve.cli.running import run

    return run(lambda _: _listed(request))


def tpu_resolver(request: TPURequest) -> TPUClusterResolver:
    """Return the resolver of what was asked for."""
    from aioresolve.tpu import TPUClusterResolver

    return TPUClusterResolver(
        request.names or None,
        request.zone,
        request.project,
        request.job_name,
        api_version=request.api_version,
        timeout=request.timeout,
    )


async def _found(request: TPURequest) -> FoundTPUs:
    from aioresolve._core.retry import within_deadline
    from aioresolve.cli.terminal.progress import shown
    from aioresolve.tpu.slices import cluster_of

    ends = time.monotonic() + request.timeout

    async def operation(progress: Progress) -> tuple[TPUSlice, ...]:
        with shown(progress, quiet=request.quiet):
            return await resolver.fetch_slices(progress)

    resolver = tpu_resolver(request)
    async with resolver:
        slices = await within_deadline(request.timeout, request.asked, operation)
    state = cluster_of(slices, resolver.get_job_name(), {}, datetime.now(UTC))
    probes = await _probes(request, slices, ends) if request.is_probed else None
    return FoundTPUs(slices, state, probes)


async def _probes(request: TPURequest, slices: tuple[TPUSlice, ...], ends: float) -> dict[str, WorkerProbe]:
    # Here and not above: grpc takes a fifth of a second to load.
    from aioresolve.probe import LIBTPU_PORTS

    from .probe import Probing, probed

    told = [one.environment.runtime_metrics_ports for one in slices]
    how = Probing(
        addresses=tuple(endpoint.address for one in slices for endpoint in one.endpoints),
        timeout=max(ends - time.monotonic(), 0.001),
        worker_timeout=request.worker_timeout,
        max_concurrency=request.max_concurrency,
        libtpu_ports=next(filter(None, told), LIBTPU_PORTS),
        quiet=request.quiet,
    )
    return {probe.address: probe for probe in await probed(how)}


async def _listed(request: TPURequest) -> NodeList:
    from aioresolve._core.retry import within_deadline
    from aioresolve.cli.terminal.progress import shown
    from aioresolve.gcp.client import GoogleSession
    from aioresolve.gcp.tpu_api import TPUAPI
    from aioresolve.tpu.resolver import api_base_url

    base = api_base_url(None, os.environ, request.api_version)
    zone = request.zone or ALL_ZONES

    async def operation(progress: Progress) -> NodeList:
        with shown(progress, quiet=request.quiet):
            project = request.project or await _own_project(progress)
            async with GoogleSession(endpoints={} if base is None else {"tpu": base}) as session:
                return await TPUAPI(session, request.api_version).nodes(project, zone, progress)

    where = "all zones" if zone == ALL_ZONES else f"zone {zone}"
    return await within_deadline(request.timeout, f"the list of TPUs in {where}", operation)


async def _own_project(progress: Progress) -> str:
    """Return the project of this VM."""
    from aioresolve.gcp.metadata_server import MetadataServer

    try:
        return await MetadataServer().project_id(progress)
    except ResolveError as error:
        if error.retryable:
            raise
        raise ConfigurationError(
            "the project whose TPUs are to be listed is not known: give --project; this VM's metadata"
            f" server did not tell: {error}"
        ) from error


EPILOG = """\
\b
Examples:
  # the workers of a TPU; of two, the second's workers follow the first's
  aioresolve tpu my-tpu --zone us-central2-b --project my-project
  aioresolve tpu slice-0 slice-1 -o wide

\b
  # does every worker answer, and with how many devices
  aioresolve tpu my-tpu --probe

\b
  # on a TPU VM, or in a pod of a TPU slice on GKE: its own slice, as TensorFlow reads it
  export TF_CONFIG=$(aioresolve tpu -o tf-config --task worker:0)

\b
  # all TPUs of a project, in whatever state
  aioresolve tpu --list --project my-project

\b
Exit codes: 0 answered; 1 could not resolve, a worker did not answer --probe, or a location
was not reached by --list; 2 wrong usage or configuration; 3 the deadline passed.
"""


@click.command(epilog=EPILOG, short_help="The workers of Cloud TPUs, as the tasks of a cluster.")
@tpu_options
@click.option(
    "--list",
    "is_list",
    is_flag=True,
    help="List all TPUs, in whatever state, and resolve none: those of all zones, unless --zone names one.",
)
@click.option(
    "--probe", "is_probed", is_flag=True, help="Ask every worker for its devices, and add what it answers."
)
@output_option(OUTPUTS)
@task_option
@watch_option("tpu")
@timeout_option()
@worker_timeout_option
@workers_at_once_option
@quiet_option
@verbose_option
@click.pass_context
def tpu(context: click.Context, /, is_watched: bool, **parameters: Any) -> None:
    """Print the workers of Cloud TPUs as the tasks of a cluster.

    NAME is a TPU's id or full name, a queued resource's, which stands for its nodes, or a worker's address.
    Each TPU is a slice; all are asked for at once, and all have to be ready. Without a NAME the environment
    says which TPU it is: GKE's variables, $TPU_NAME, $TPU_CONFIG, or the metadata server of a TPU VM.

    \b
    Outputs:
      table      job, task and address; with --list name, zone, type, state, health, endpoints
      wide       and each worker's slice, its number there, state, health and accelerator type;
                 with --list all endpoints
      json yaml  {"jobs": {JOB: [{"task", "address", "name", "slice", "state", "health",
                 "accelerator_type", "index", ...}]}, "version", "observed_at"};
                 with --list {"nodes": [...], "unreachable": [...]}
      tf-config  TensorFlow's TF_CONFIG, on one line
      name       the addresses alone, one a line; with --list the full names
    """
    request = TPURequest(**parameters)
    _check(request)
    if is_watched:
        _watch(request)
        return
    is_whole = _print_list(request) if request.is_list else _print_workers(request)
    if not is_whole:
        context.exit(COULD_NOT_RESOLVE)


def _check(request: TPURequest) -> None:
    """Raise what is wrong with the request as a whole."""
    if request.is_list and (request.names or request.is_probed):
        what = "--probe" if request.is_probed else "NAME"
        raise click.UsageError(f"--list shows all TPUs; leave out {what}, or --list")
    if request.is_list and request.output == "tf-config":
        raise click.UsageError("-o tf-config is of workers; name a TPU in place of --list")
    if request.is_probed and request.output in ("tf-config", "name"):
        raise click.UsageError(f"-o {request.output} has no place for what --probe finds; leave out one")
    check_tpus(request)


def _watch(request: TPURequest) -> None:
    """Print the cluster, and go on with its changes."""
    if request.is_list or request.is_probed:
        raise click.UsageError("-w watches the cluster itself; leave out --list and --probe")
    check_watched_output(request.output)
    # Here and not above: `--help` and completion are not to pay for it.
    from .watch import watch_tpus

    watch_tpus(request)


def _print_list(request: TPURequest) -> bool:
    """Print all TPUs, and return whether every location was reached."""
    listing = listed_nodes(request)
    text = _list_text(request, listing)
    if not (listing.nodes or request.quiet):
        streams.complain("No TPUs found.\n")
    streams.write(text)
    if listing.unreachable:
        # No note: the list is not whole, and --quiet is not to hide that.
        places = ", ".join(place.rpartition("/")[2] for place in listing.unreachable)
        streams.complain(printable(f"error: not reached, so that their TPUs are missing: {places}") + "\n")
    return not listing.unreachable


def _list_text(request: TPURequest, listing: NodeList) -> str:
    match request.output:
        case "json":
            return as_json(nodes_document(listing))
        case "yaml":
            return as_yaml(nodes_document(listing))
        case "name":
            return node_names(listing.nodes)
        case _:
            return streams.table_text(nodes_table(listing.nodes, is_wide=request.output == "wide"))


def _print_workers(request: TPURequest) -> bool:
    """Print the workers, and return whether all that were probed have answered."""
    if request.is_probed:
        streams.hush_grpc()
    found = found_tpus(request)
    text = workers_text(request, found)
    if not (found.slices or request.quiet):
        streams.complain("No workers: the TPU is this host's own, and none is reached over the network.\n")
    streams.write(text)
    probes = (found.probes or {}).values()
    failed = sum(probe.error is not None for probe in probes)
    if failed:
        streams.complain(f"error: {failed} of {len(probes)} workers did not answer\n")
    return not failed
