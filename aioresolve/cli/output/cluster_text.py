"""A cluster as the text for stdout, in each of the forms that `-o` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from aioresolve.cli.terminal import streams

from .formats import (
    address_lines,
    as_json,
    as_yaml,
    cluster_json,
    cluster_yaml,
    spec_table,
    state_table,
    tf_config,
)
from .tpu_tables import slices_document, workers_table

if TYPE_CHECKING:
    from aioresolve.cli.commands.tpu import FoundTPUs
    from aioresolve.cli.options import Task, TPURequest
    from aioresolve.spec import ClusterSpec, ClusterState

__all__ = ["OUTPUTS", "WATCHED", "check_watched_output", "cluster_text", "workers_text"]

OUTPUTS = ("table", "wide", "json", "yaml", "tf-config", "name")

WATCHED = ("table", "wide", "json", "yaml", "tf-config")
"""The forms of a cluster that changes: a list of names would not say where the next one begins."""


def check_watched_output(output: str) -> None:
    """Raise that a cluster which is watched cannot be printed so."""
    if output not in WATCHED:
        raise click.UsageError(
            f"-o {output} is of one moment and does not tell changes; give -o {' or -o '.join(WATCHED)}"
        )


def cluster_text(output: str, spec: ClusterSpec, state: ClusterState | None, task: Task | None) -> str:
    """Return the cluster in the form `output`, of which `wide`, `json` and `yaml` need the state."""
    match output:
        case "table":
            return streams.table_text(spec_table(spec))
        case "tf-config":
            return tf_config(spec, task)
        case "name":
            return address_lines(spec)
    assert state is not None
    match output:
        case "json":
            return cluster_json(state)
        case "yaml":
            return cluster_yaml(state)
    return streams.table_text(state_table(state))


def workers_text(request: TPURequest, found: FoundTPUs) -> str:
    """Return the workers of TPUs in the form that was asked for."""
    match request.output:
        case "json":
            return as_json(slices_document(found))
        case "yaml":
            return as_yaml(slices_document(found))
        case "tf-config":
            return tf_config(found.state.spec, request.task)
        case "name":
            return address_lines(found.state.spec)
        case _:
            return streams.table_text(workers_table(found, is_wide=request.output == "wide"))
