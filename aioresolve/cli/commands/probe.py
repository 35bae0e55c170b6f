"""`aioresolve probe`: the devices of workers, as the workers report them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
import msgspec

from aioresolve.cli import formats, options, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, error_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aioresolve.cli.application import ExitWith
    from aioresolve.probe import WorkerProbe

COLUMNS = ("DEVICES", "CORES", "CHIPS", "LATENCY", "ERROR")

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
@options.output_option(("table", "json"))
@options.total_timeout_option
@options.worker_timeout_option
@options.max_concurrency_option(256, "workers probed")
@options.port_option(
    "--libtpu-port libtpu_ports",
    "The port of libtpu on each host; repeat it for several processes, for the ports in the hosts'"
    " $TPU_RUNTIME_METRICS_PORTS.",
    multiple=True,
    default=(8431,),
)
@options.flag_option(
    "--tls is_tls",
    "Use TLS, and trust the certificate authorities in $GRPC_DEFAULT_SSL_ROOTS_FILE_PATH, a PEM file, or"
    " gRPC's default ones.",
)
@options.quiet_option
@options.verbose_option
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
    from aioresolve.tpu.discovery import worker_address

    addresses = tuple(worker_address(host, "HOST") for host in hosts)
    widths = (max(map(len, addresses)), len("tensorflow"), len("TPU:4096"), 6, 6, 7)
    table = formats.TextTable(
        ("ADDRESS", "SOURCE", *COLUMNS),
        widths,
        has_headers=has_headers,
        has_colors=streams.has_colors(sys.stdout),
    )

    async def print_probes(exit_with: ExitWith) -> list[WorkerProbe]:
        with streams.stdout_writer(exit_with, is_endless=False) as stdout:

            async def write(one: WorkerProbe) -> None:
                if output == "json":
                    text = formats.as_json_line(probe_document(one))
                else:
                    row = (one.address, one.source or "", *probe_cells(one))
                    text = table.lines([row], ["" if one.error is None else "red"])
                await stdout.write(text)

            return await probe_workers(addresses, write, **parameters)

    report_failed_probes(context, run_async(print_probes))


def report_failed_probes(context: click.Context, probes: Sequence[WorkerProbe]) -> None:
    """Exit with 1 if a probe failed."""
    failed = sum(probe.error is not None for probe in probes)
    if failed:
        streams.write_stderr(f"error: {failed} of {len(probes)} workers failed the probe\n")
        context.exit(COULD_NOT_RESOLVE)


def probe_cells(probe: WorkerProbe) -> tuple[str, ...]:
    """Return the cells of a probed worker in the columns `COLUMNS`."""
    error = probe.error
    return (
        ",".join(f"{kind}:{number}" for kind, number in sorted(probe.accelerators.items())),
        "" if probe.cores is None else str(probe.cores),
        "" if probe.chips is None else str(probe.chips),
        f"{probe.latency * 1000:.1f}ms" if probe.latency < 1 else f"{probe.latency:.2f}s",
        # The first clause only: a row should fit on a line of a terminal.
        "" if error is None else f"{error.code}: {error.summary.partition('; ')[0]}",
    )


def probe_document(probe: WorkerProbe) -> dict[str, Any]:
    """Return a probed worker as an object, which `--help` describes. Unknown values are null."""
    error = probe.error
    return {
        "address": probe.address,
        "source": probe.source,
        "accelerators": probe.accelerators,
        "cores": probe.cores,
        "chips": probe.chips,
        "latency": round(probe.latency, 6),
        "devices": msgspec.to_builtins(probe.devices),
        "error": None
        if error is None
        else {"code": error.code, "message": error_message(error), "retryable": error.retryable},
    }


async def probe_workers(
    addresses: Sequence[str],
    write: Callable[[WorkerProbe], Awaitable[None]] | None = None,
    *,
    quiet: bool,
    is_tls: bool = False,
    **given: Any,
) -> list[WorkerProbe]:
    """Return the result of each worker in the order of the responses, with progress on stderr.

    `write`, if given, is called with each result as soon as the worker has responded.
    """
    from aioresolve.cli.live import show_counts
    from aioresolve.probe import ProbeChannels, stream_workers

    results: list[WorkerProbe] = []

    channels = ProbeChannels.over_tls() if is_tls else ProbeChannels()
    with show_counts(len(addresses), lambda: results, quiet=quiet) as hide:
        async with stream_workers(addresses, channels=channels, **given) as probes:
            async for probe in probes:
                results.append(probe)
                if write is not None:
                    hide()  # stdout may be the same terminal
                    await write(probe)
    return results
