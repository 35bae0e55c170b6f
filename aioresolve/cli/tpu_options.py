"""The argument and options that say which TPUs are meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import check_task, stacked

if TYPE_CHECKING:
    from .request import TPURequest

__all__ = ["check_tpus", "tpu_options"]

tpu_options = stacked(
    click.argument("names", metavar="[NAME]...", nargs=-1),
    click.option("--zone", metavar="ZONE", help="The TPUs' zone.  [default: this VM's own]"),
    click.option("--project", metavar="PROJECT", help="The TPUs' project.  [default: this VM's own]"),
    click.option(
        "--api-version",
        type=click.Choice(["v2", "v1"]),
        default="v2",
        show_default=True,
        help="The version of the Cloud TPU API; v1 knows TPU nodes of old and no TPU VMs.",
    ),
    click.option(
        "--job-name", metavar="JOB", default="worker", show_default=True, help="The job that the workers are."
    ),
)


def check_tpus(request: TPURequest) -> None:
    """Raise what is wrong with the request as a whole."""
    check_task(request.task, request.output)
