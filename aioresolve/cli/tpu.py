"""`aioresolve tpu`: the workers of Cloud TPUs as the tasks of a cluster, and the list of all TPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import streams
from .answers import OUTPUTS, check_watched_output, workers_text
from .failures import COULD_NOT_RESOLVE
from .options import (
    output_option,
    quiet_option,
    task_option,
    timeout_option,
    verbose_option,
    watch_option,
    worker_timeout_option,
    workers_at_once_option,
)
from .output import as_json, as_yaml, printable
from .request import TPURequest
from .tpu_options import check_tpus, tpu_options
from .tpu_output import node_names, nodes_document, nodes_table

if TYPE_CHECKING:
    from aioresolve.gcp.tpu_api import NodeList

__all__ = ["tpu"]

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
    from .watching import watch_tpus

    watch_tpus(request)


def _print_list(request: TPURequest) -> bool:
    """Print all TPUs, and return whether every location was reached."""
    # Here and not above: `--help` and completion are not to pay for it.
    from .tpu_lookup import listed_nodes

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
    # Here and not above: `--help` and completion are not to pay for it.
    from .tpu_lookup import found_tpus

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
