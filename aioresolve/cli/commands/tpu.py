"""`aioresolve tpu`: the workers of Cloud TPUs as the tasks of a cluster, and the list of all TPUs."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from aioresolve.cli import formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE
from aioresolve.cli.worker_tables import FoundTPUs, format_nodes, format_workers
from aioresolve.errors import ConfigurationError, ResolveError

from .probe import probe_workers, report_failed_probes

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress
    from aioresolve.gcp.tpu_api import NodeList
    from aioresolve.probe import WorkerProbe
    from aioresolve.tpu import TPUSlice

ALL_ZONES = "-"

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
@click.option(
    "--list",
    "is_list",
    is_flag=True,
    help="List TPUs in any state instead of resolving them: those of all zones, or of --zone.",
)
@click.option("--probe", "is_probed", is_flag=True, help="Request the devices of each worker, and add them.")
@options.allow_empty_option
@options.output_option()
@options.coordinator_port_option
@options.task_options
@options.watch_option("tpu")
@options.timeout_option()
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
      table      job, task and address; with --list name, zone, type, state, health, endpoints
      wide       in addition slice, number in the slice, state, health and accelerator type of
                 each worker; with --list all endpoints
      json yaml  {"jobs": {JOB: [{"task", "address", "name", "slice", "state", "health",
                 "accelerator_type", "index", ...}]}, "version", "observed_at"};
                 with --list {"nodes": [...], "unreachable": [...]}
      tf-config  TensorFlow's TF_CONFIG, on one line
      name       only the addresses, one per line; with --list the full names
      env jax torch torchrun accelerate tensorflow megascale ray vllm sglang
                 the variables that such a program reads in the task of --task or --this-task,
                 as lines NAME=VALUE, quoted for a shell; env are those of aioresolve
      hostfile host:slots
                 the hosts as Open MPI and DeepSpeed, or as Horovod and MPICH read them
    """
    request = sources.new_request("tpu", parameters)
    _validate(request, is_list=is_list, is_probed=is_probed)
    if is_watched:
        from .watch import run_watch

        if is_list or is_probed:
            raise click.UsageError("-w cannot be combined with --list or --probe; leave them out")
        sources.validate_watch_output(request.output)
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
    for_programs = ("tf-config", *formats.PROGRAM_OUTPUTS)
    if is_list and request.output in for_programs:
        raise click.UsageError(f"--list has no -o {request.output}; pass NAME instead of --list")
    if is_probed and request.output in ("name", *for_programs):
        raise click.UsageError(
            f"-o {request.output} cannot show the result of --probe; leave out one of them"
        )
    sources.validate_output(request)


def _print_workers(
    context: click.Context,
    request: sources.ClusterRequest,
    probe_options: dict[str, Any] | None,
    *,
    allow_empty: bool,
) -> None:
    """Print the workers; exit with 1 without workers, or if a probe failed."""
    if probe_options is not None:
        streams.silence_grpc()
    found, task = run_async(lambda _: _resolve(request, probe_options))
    content = format_workers(request.output, found, task, request.program_options(request.output))
    if not found.slices:
        report = (
            f"{request.scope} has no workers: it belongs to this host, which needs no address on the network"
        )
        if not allow_empty:
            streams.write_stderr(f"error: {report}; pass --allow-empty if this is expected\n")
            context.exit(COULD_NOT_RESOLVE)
        if not request.quiet:
            streams.write_stderr(f"{report}\n")
    streams.write_stdout(content, has_headers=request.has_headers)
    report_failed_probes(context, list((found.probes or {}).values()))


def _print_list(context: click.Context, request: sources.ClusterRequest) -> None:
    """Print all TPUs; exit with 1 if a location was not reached."""
    listing = run_async(lambda _: _list_nodes(request))
    content = format_nodes(request.output, listing)
    if not (listing.nodes or request.quiet):
        streams.write_stderr("No TPUs found.\n")
    streams.write_stdout(content, has_headers=request.has_headers)
    if listing.unreachable:
        # An error rather than a note: the list is incomplete, which --quiet must not hide.
        places = ", ".join(place.rpartition("/")[2] for place in listing.unreachable)
        streams.write_stderr(formats.printable(f"error: these locations were not reached: {places}") + "\n")
        context.exit(COULD_NOT_RESOLVE)


def found_tpus(slices: tuple[TPUSlice, ...], job_name: str) -> FoundTPUs:
    """Return slices with the cluster of their workers."""
    from aioresolve.tpu.slices import cluster_of

    return FoundTPUs(slices, cluster_of(slices, job_name, {}, datetime.now(UTC)))


async def find_tpus(resolver: Any, timeout: float) -> FoundTPUs:
    """Return the slices of a TPUClusterResolver, with the cluster of their workers."""
    return found_tpus(await resolver.slices(timeout=timeout), resolver.get_job_name())


async def _resolve(
    request: sources.ClusterRequest, probe_options: dict[str, Any] | None
) -> tuple[FoundTPUs, formats.TaskName | None]:
    resolver = sources.new_resolver(request)
    ends = time.monotonic() + request.timeout
    async with resolver:
        slices = await sources.run_with_progress(request, resolver.fetch_slices)
        found = found_tpus(slices, resolver.get_job_name())
        task = await sources.find_task_name(resolver, request, found.state)
    if probe_options is not None:
        left = sources.with_time_left(request, ends)
        found = replace(found, probes=await _probe(left, slices, probe_options))
    return found, task


async def _probe(
    request: sources.ClusterRequest, slices: tuple[TPUSlice, ...], given: dict[str, Any]
) -> dict[str, WorkerProbe]:
    # Imported only for --probe: grpc takes a fifth of a second.
    from aioresolve.probe import LIBTPU_PORTS
    from aioresolve.tpu.slices import libtpu_ports

    addresses = [endpoint.address for one in slices for endpoint in one.endpoints]
    ports = libtpu_ports(slices) or LIBTPU_PORTS
    probes = await probe_workers(
        addresses, quiet=request.quiet, timeout=request.timeout, libtpu_ports=ports, **given
    )
    return {probe.address: probe for probe in probes}


async def _list_nodes(request: sources.ClusterRequest) -> NodeList:
    from aioresolve.gcp.client import GoogleSession
    from aioresolve.gcp.tpu_api import TPUAPI
    from aioresolve.tpu.resolver import api_base_url

    given = request.arguments
    base = api_base_url(None, os.environ, given["api_version"])
    zone = given["zone"] or ALL_ZONES

    async def operation(progress: Progress) -> NodeList:
        project = given["project"] or await _project_of_this_vm(progress)
        async with GoogleSession(endpoints={} if base is None else {"tpu": base}) as session:
            return await TPUAPI(session, given["api_version"]).nodes(project, zone, progress)

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
