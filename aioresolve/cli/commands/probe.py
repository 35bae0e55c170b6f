"""Asking workers for their devices, with a bar that moves on a terminal meanwhile.

`aioresolve probe`: which devices do workers have, asked of the workers themselves.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from aioresolve.cli.error_messages import COULD_NOT_RESOLVE
from aioresolve.cli.options import (
    output_option,
    quiet_option,
    timeout_option,
    verbose_option,
    worker_timeout_option,
    workers_at_once_option,
)
from aioresolve.cli.output.probe_rows import Rows, json_line
from aioresolve.cli.terminal import streams

if TYPE_CHECKING:
    from collections.abc import Callable

    from aioresolve.probe import WorkerProbe

__all__ = ["Probing", "probe", "probed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """Whom to ask, and how; `timeout` is for all of them and `worker_timeout` for each, in seconds."""

    addresses: tuple[str, ...]
    timeout: float
    worker_timeout: float
    max_concurrency: int
    libtpu_ports: tuple[int, ...]
    is_tls: bool = False
    quiet: bool = False


async def probed(how: Probing, text: Callable[[WorkerProbe], str] = lambda _: "") -> list[WorkerProbe]:
    """Return what each worker says of its devices, or why it does not, in the order of the answers.

    Args:
        how: whom to ask.
        text: what is written to stdout as soon as a worker has answered.

    Raises:
        ConfigurationError: the addresses are none.
        SystemExit: whoever read stdout has gone.
    """
    # Imported here, so that `--help` and completion load click only.
    from aioresolve.cli.terminal.progress import counted
    from aioresolve.probe import ProbeChannels, stream_workers

    answers: list[WorkerProbe] = []
    channels = ProbeChannels.over_tls() if how.is_tls else ProbeChannels()
    with counted(len(how.addresses), quiet=how.quiet) as count:
        async with stream_workers(
            how.addresses,
            timeout=how.timeout,
            worker_timeout=how.worker_timeout,
            max_concurrency=how.max_concurrency,
            libtpu_ports=how.libtpu_ports,
            channels=channels,
        ) as probes:
            async for probe in probes:
                answers.append(probe)
                count.add(is_failure=probe.error is not None)
                count.write(text(probe))
    return answers


EPILOG = """\
\b
Examples:
  # two hosts, at port 8470
  aioresolve probe 10.0.0.7 10.0.0.8

\b
  # the workers of a TPU; those that do not answer, and why
  aioresolve probe -o json $(aioresolve tpu my-tpu -o name) | jq 'select(.error)'

\b
Exit codes: 0 every worker answered; 1 some did not, and each has its row all the same;
2 wrong usage or configuration.
"""


@click.command(epilog=EPILOG, short_help="Which devices do workers have, asked of each over gRPC.")
@click.argument("hosts", metavar="HOST[:PORT]...", nargs=-1, required=True)
@output_option(("table", "json"))
@timeout_option()
@worker_timeout_option
@workers_at_once_option
@click.option(
    "--libtpu-port",
    "libtpu_ports",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    multiple=True,
    default=(8431,),
    show_default=True,
    help="Where a host's libtpu listens; repeat it for several processes, as its $TPU_RUNTIME_METRICS_PORTS"
    " says.",
)
@click.option(
    "--tls",
    "is_tls",
    is_flag=True,
    help="Speak TLS. The authorities of $GRPC_DEFAULT_SSL_ROOTS_FILE_PATH, a PEM file, are trusted; else"
    " gRPC's own.",
)
@quiet_option
@verbose_option
@click.pass_context
def probe(
    context: click.Context,
    hosts: tuple[str, ...],
    output: str,
    timeout: float,
    worker_timeout: float,
    max_concurrency: int,
    libtpu_ports: tuple[int, ...],
    is_tls: bool,
    quiet: bool,
) -> None:
    """Print which devices each worker has, as soon as it has told.

    All are asked at once. A worker's TensorFlow server at PORT, 8470 by default, tells its devices; where
    none listens there, libtpu on the same host tells its cores, chips and devices.

    \b
    Outputs, a line for each worker in the order of the answers:
      table      its address, who answered, devices by type, cores, chips, latency; or the error
      json       {"address", "source", "accelerators", "cores", "chips", "latency", "devices":
                 [{"name", "type", "memory", "incarnation"}], "error": null or {"code",
                 "message", "retryable"}}; latency in seconds, memory in bytes
    """
    streams.hush_grpc()
    # Here and not above: `--help` and completion are not to pay for it.
    from aioresolve.cli.running import run
    from aioresolve.tpu.discovery import worker_address

    how = Probing(
        addresses=tuple(worker_address(host, "HOST") for host in hosts),
        timeout=timeout,
        worker_timeout=worker_timeout,
        max_concurrency=max_concurrency,
        libtpu_ports=libtpu_ports,
        is_tls=is_tls,
        quiet=quiet,
    )
    text = json_line if output == "json" else _row_by_row(Rows(how.addresses))
    answers = run(lambda _: probed(how, text))
    failed = sum(answer.error is not None for answer in answers)
    if failed:
        streams.complain(f"error: {failed} of {len(answers)} workers did not answer\n")
        context.exit(COULD_NOT_RESOLVE)


def _row_by_row(rows: Rows) -> Callable[[WorkerProbe], str]:
    """Return what makes each worker's line, with the columns' names before the first; faults are red."""
    pending = [rows.header()]
    is_coloured = streams.has_colours(sys.stdout)

    def text(worker: WorkerProbe) -> str:
        row = rows.row(worker)
        if is_coloured and worker.error is not None:
            row = click.style(row.rstrip("\n"), fg="red") + "\n"
        return "".join([*(pending.pop() for _ in pending[:]), row])

    return text
