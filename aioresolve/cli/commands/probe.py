"""`aioresolve probe`: the devices of workers, as the workers report them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from aioresolve.cli import formats, options, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, error_message

if TYPE_CHECKING:
    from collections.abc import Sequence

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
"""


@click.command(epilog=EPILOG, short_help="The devices of workers, as each reports them over gRPC.")
@click.argument("hosts", metavar="HOST[:PORT]...", nargs=-1, required=True)
@options.output_option(("table", "json"))
@options.total_timeout_option
@options.worker_timeout_option
@options.quiet_option
@options.verbose_option
@click.pass_context
def probe(
    context: click.Context, /, hosts: tuple[str, ...], output: str, has_headers: bool, **parameters: Any
) -> None:
    """Print the devices of each worker.

    All workers are probed concurrently. The TensorFlow server of a worker, at PORT or 8470, reports its
    devices; if nothing listens there, libtpu on the same host, at port 8431, reports its cores, chips and
    devices. The exit code is 1 if a worker did not respond.

    \b
    Outputs:
      table      address, source, devices by type, cores, chips and latency; or the error
      json       an object on one line for each worker; latency in seconds, memory in bytes
    """
    from aioresolve.tpu.discovery import worker_address

    addresses = [worker_address(host, "HOST") for host in hosts]
    probed = run_async(lambda _: probe_workers(addresses, **parameters))
    if output == "json":
        streams.write_stdout("".join(formats.as_json_line(probe_document(one)) for one in probed))
    else:
        rows = [(one.address, one.source or "", *probe_cells(one)) for one in probed]
        styles = ["" if one.error is None else "red" for one in probed]
        table = formats.Table(("ADDRESS", "SOURCE", *COLUMNS), rows, styles)
        streams.write_stdout(table, has_headers=has_headers)
    report_failed_probes(context, probed)


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
    """Return a probed worker as an object. Unknown values are null."""
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


async def probe_workers(addresses: Sequence[str], *, quiet: bool, **given: Any) -> list[WorkerProbe]:
    """Return the result of each worker, with progress on stderr."""
    from aioresolve.cli.live import show_counts
    from aioresolve.probe import stream_workers

    results: dict[str, WorkerProbe] = {}
    with show_counts(len(addresses), results.values, quiet=quiet):
        async with stream_workers(addresses, **given) as probes:
            async for probe in probes:
                results[probe.address] = probe
    return [results[address] for address in addresses]
