"""`aioresolve rendezvous`: the round, the nodes and the missing pods of an elastic job of torchrun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from aioresolve.cli import formats, options, sources, streams
from aioresolve.cli.application import run_async

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress
    from aioresolve.rendezvous.inspection import RendezvousStatus

COLUMNS = ("RANK", "POD", "NODE", "ADDRESS", "STATE", "REASON")

STYLES = {"lost": "red", "missing": "red", "waiting": "yellow"}
"""The color of the row of a node on a terminal, by its state."""


@click.command(short_help="The round and the nodes of an elastic job of torchrun.")
@options.rendezvous_options
@options.output_option(("table", "json"))
@options.total_timeout_option
@options.quiet_option
@options.verbose_option
def rendezvous(job: str, **parameters: Any) -> None:
    """Print the state of the rendezvous of `torchrun --rdzv-backend=kubernetes --rdzv-id=JOB`.

    With --rdzv-endpoint, pass its name as /NAME, and its namespace as -n.

    \b
    Outputs:
      table  RANK in the current round, POD, its NODE and ADDRESS, and its STATE: running in the
             round, waiting for the next one, ended with success, lost since the round began, or
             missing, with the REASON
      json   the round, the store, and the nodes as one object
    """
    request = sources.new_request("torchrun", parameters)
    status = run_async(lambda _: _fetch(job, request))
    if request.output == "json":
        streams.write_stdout(formats.as_json_line(msgspec.to_builtins(status)))
        return
    rows = [
        [
            "" if each.rank is None else str(each.rank),
            *(each.pod, each.node or "", each.address or "", each.state, formats.one_line(each.reason)),
        ]
        for each in status.nodes
    ]
    styles = [STYLES.get(each.state, "") for each in status.nodes]
    streams.write_stdout(formats.Table(COLUMNS, rows, styles), has_headers=request.has_headers)
    how = f"closed: the training {status.closed}" if status.closed else f"the store is at {status.store}"
    request.note(f"round {status.round} of {status.name} in namespace {status.namespace}, {how}")


async def _fetch(job: str, request: sources.ClusterRequest) -> RendezvousStatus:
    from aioresolve.kubernetes.api.client import open_api
    from aioresolve.rendezvous.inspection import fetch_status
    from aioresolve.rendezvous.objects import config_map_of

    connection = await sources.find_connection(request.arguments)
    namespace = request.arguments["namespace"] or connection.default_namespace()
    name = config_map_of(job)

    async def fetch(progress: Progress) -> RendezvousStatus:
        async with open_api(connection) as api:
            return await fetch_status(api, namespace, name, progress)

    return await sources.run_with_progress(request, fetch, f"rendezvous {name!r}")
