"""`aioresolve probe`: the devices of workers, as the workers report them."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aioresolve.cli.options import (
    Integer,
    max_workers_option,
    output_option,
    quiet_option,
    timeout_option,
    verbose_option,
    worker_timeout_option,
)
from aioresolve.cli.output.error_messages import COULD_NOT_RESOLVE
from aioresolve.cli.output.worker_tables import ProbeRows, probe_json
from aioresolve.cli.terminal import streams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aioresolve.cli.application import ExitRequest
    from aioresolve.probe import WorkerProbe
    from aioresolve.probe.workers import LibtpuPorts

EPILOG = """\
\b
Examples:
  # two hosts, at port 8470
  aioresolve probe 10.0.0.7 10.0.0.8

\b
  # the workers of a TPU that failed, and why
  aioresolve probe -o json $(aioresolve tpu my-tpu -o name) | jq 'select(.error)'

\b
Exit codes: 0 every worker responded; 1 some did not, but each has its row;
2 invalid usage or configuration.
"""


@click.command(epilog=EPILOG, short_help="The devices of workers, as each reports them over gRPC.")
@click.argument("hosts", metavar="HOST[:PORT]...", nargs=-1, required=True)
@output_option(("table", "json"))
@timeout_option()
@worker_timeout_option
@max_workers_option
@click.option(
    "--libtpu-port",
    "libtpu_ports",
    metavar="PORT",
    type=Integer(1, 65535),
    multiple=True,
    default=(8431,),
    show_default=True,
    help="The port of libtpu on each host; repeat it for several processes, for the ports in the hosts'"
    " $TPU_RUNTIME_METRICS_PORTS.",
)
@click.option(
    "--tls",
    "is_tls",
    is_flag=True,
    help="Use TLS, and trust the certificate authorities in $GRPC_DEFAULT_SSL_ROOTS_FILE_PATH, a PEM file, or"
    " gRPC's default ones.",
)
@quiet_option
@verbose_option
@click.pass_context
def probe(
    context: click.Context, /, hosts: tuple[str, ...], output: str, has_headers: bool, **parameters: Any
) -> None:
    """Print the devices of each worker as soon as it responds.

    All workers are probed concurrently. The TensorFlow server of a worker, at PORT or 8470, reports its
    devices; if nothing listens there, libtpu on the same host reports its cores, chips and devices.

    \b
    Outputs, one line per worker in the order of the responses:
      table      address, source, devices by type, cores, chips and latency; or the error
      json       {"address", "source", "accelerators", "cores", "chips", "latency", "devices":
                 [{"name", "type", "memory", "incarnation"}], "error": null or {"code",
                 "message", "retryable"}}; latency in seconds, memory in bytes
    """
    streams.silence_grpc()
    from aioresolve.cli.application import run_async
    from aioresolve.tpu.discovery import worker_address

    addresses = tuple(worker_address(host, "HOST") for host in hosts)
    request = ProbeRequest(addresses=addresses, **parameters)
    format_probe = probe_json if output == "json" else _row_formatter(addresses, has_headers)
    probes = run_async(partial(_print_probes, request, format_probe))
    failed = sum(probe.error is not None for probe in probes)
    if failed:
        streams.write_stderr(f"error: {failed} of {len(probes)} workers failed the probe\n")
        context.exit(COULD_NOT_RESOLVE)


def _row_formatter(addresses: tuple[str, ...], has_headers: bool) -> Callable[[WorkerProbe], str]:
    """Return a function that formats the row of a worker, in red if it failed."""
    rows = ProbeRows(addresses, has_headers=has_headers)
    is_colored = streams.has_colors(sys.stdout)

    def format_row(worker: WorkerProbe) -> str:
        *header, row = rows.format(worker).splitlines()
        if is_colored and worker.error is not None:
            row = click.style(row, fg="red")
        return "".join(f"{line}\n" for line in [*header, row])

    return format_row


class ProbeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The workers to probe; `timeout` is the deadline of all, `worker_timeout` that of each, in seconds."""

    addresses: tuple[str, ...]
    timeout: float
    worker_timeout: float
    max_concurrency: int
    libtpu_ports: LibtpuPorts
    is_tls: bool = False
    quiet: bool = False


async def _print_probes(
    request: ProbeRequest, format_probe: Callable[[WorkerProbe], str], exit_request: ExitRequest
) -> list[WorkerProbe]:
    """Write the result of each worker to stdout as soon as it has responded, and return all."""
    from aioresolve.cli.terminal.background_writer import background_writer

    with background_writer(sys.stdout, exit_request.exit, is_endless=False) as stdout:
        return await probe_workers(request, lambda probe: stdout.write(format_probe(probe)))


async def probe_workers(
    request: ProbeRequest, write: Callable[[WorkerProbe], Awaitable[None]] | None = None
) -> list[WorkerProbe]:
    """Return the result of each worker in the order of the responses, with a progress bar on stderr.

    `write`, if given, is called with each result as soon as the worker has responded.
    """
    from aioresolve.cli.terminal.progress import show_bar
    from aioresolve.probe import ProbeChannels, stream_workers

    results: list[WorkerProbe] = []
    channels = ProbeChannels.over_tls() if request.is_tls else ProbeChannels()
    with show_bar(len(request.addresses), quiet=request.quiet) as bar:
        async with stream_workers(
            request.addresses,
            timeout=request.timeout,
            worker_timeout=request.worker_timeout,
            max_concurrency=request.max_concurrency,
            libtpu_ports=request.libtpu_ports,
            channels=channels,
        ) as probes:
            async for probe in probes:
                results.append(probe)
                bar.add(is_failure=probe.error is not None)
                if write is not None:
                    with bar.hidden():
                        await write(probe)
    return results
