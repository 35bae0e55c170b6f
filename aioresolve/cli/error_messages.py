"""Errors as the user of a terminal reads them, and the exit code of each."""

from __future__ import annotations

import sys

import click

from aioresolve.errors import (
    ConfigurationError,
    CredentialsError,
    DeadlineExceededError,
    FailedClusterError,
    ForbiddenError,
    IncompleteClusterError,
    LaunchError,
    MissingDependencyError,
    PartialClusterError,
    ResolveError,
)
from aioresolve.sources import SOURCES

from . import streams
from .formats import format_span, one_line, wait_report
from .options import SPELLINGS

COULD_NOT_RESOLVE = 1
WRONG_USAGE = 2
DEADLINE = 3

OPTIONS = {
    "channels": "`channels=` (of `aioresolve.probe`)",
    "job_to_label_mapping": "-l",
    "libtpu_ports": "`libtpu_ports=` (of `aioresolve.probe`)",
    "not_running": "--not-running",
    "service": "--service",
    "task_id": "INDEX of --task JOB:INDEX",
    "task_type": "JOB",
    "tf_server_port": "--port",
    "tpu": "NAME",
}
"""Arguments of the Python API to options or arguments with other names, or to the module that has them."""

FIELDS = {argument: field for source in SOURCES for field, argument in source.fields.items()}
"""Arguments of the Python API to the fields of a fleet file, where they differ."""

POLL_ARGUMENTS = frozenset({"interval", "max_concurrency", "shard", "timeout"})
"""Arguments of the Python API for which `aioresolve poll` has an option."""


def exit_code(error: ResolveError) -> int:
    """Return the exit code for `error`: 2 if the user has to correct something, 3 for a deadline, else 1."""
    match error:
        case ConfigurationError() | MissingDependencyError() | LaunchError() | PartialClusterError():
            return WRONG_USAGE
        case CredentialsError(tried=tried) if tried:
            # None are configured, as if a file that was named is missing.
            return WRONG_USAGE
        case DeadlineExceededError():
            return DEADLINE
    return COULD_NOT_RESOLVE


def option_spelling(argument: str, value: str | None) -> str:
    """Return an argument of the Python API as it is typed on the command line, for `ResolveError.render`.

    An argument without an option is written as in Python. So is `not_running` in `aioresolve here`: its
    option is one of `aioresolve kubernetes`, to which the remedies of `doctor kubernetes` refer.
    """
    option = OPTIONS.get(argument) or SPELLINGS.get(argument)
    if option is None or (argument == "not_running" and not _names_kubernetes()):
        return f"`{argument}=`" if value is None else f"`{argument}={value!r}`"
    return option if value is None else f"{option} {value}"


def _names_kubernetes() -> bool:
    """Return whether the command that is running, or has raised an error, has `kubernetes` in its name."""
    context = click.get_current_context()
    names = (*context.command_path.split(), context.invoked_subcommand)
    return "kubernetes" in names or "k8s" in names


def field_spelling(argument: str, value: str | None) -> str:
    """Return an argument as the option of `aioresolve poll`, or else as the field of a fleet file."""
    if argument in POLL_ARGUMENTS:
        return option_spelling(argument, value)
    field = FIELDS.get(argument, argument)
    return f"`{field}`" if value is None else f"`{field}: {value}`"


def error_message(error: ResolveError) -> str:
    """Return the summary and the hint of `error`, with arguments written as options."""
    return error.render(option_spelling)


def status_line(prefix: str, error: ResolveError) -> str:
    """Return a line about an error that a command continues after, without the manifest of a 403."""
    is_manifest = isinstance(error, ForbiddenError) and error.manifest
    return f"{prefix}: {one_line(error.summary if is_manifest else error_message(error))}"


def error_report(error: ResolveError, width: int | None = None) -> str:
    """Return `error: ...` for stderr: one line, and for a wait also the tables of missing tasks.

    The manifest of a ForbiddenError is left out. `width` is that of the terminal, if the tables have to fit.
    """
    message = error_message(error)
    if isinstance(error, IncompleteClusterError | FailedClusterError):
        # The summary lists the missing tasks in one sentence; here they are a table.
        message = "the cluster cannot become complete"
        if isinstance(error, IncompleteClusterError):
            within = f" within {format_span(error.timeout)}" if error.timeout else ""
            message = f"the cluster was not complete{within}"
        hint = "" if error.hint is None else f". {error.hint.render(option_spelling)}"
        report = wait_report(error.found, error.wanted, error.missing, error.sources, width=width)
        return f"error: {message}{hint}\n{report}"
    manifest = error.manifest if isinstance(error, ForbiddenError) else ""
    return f"error: {one_line(message.removesuffix(manifest))}\n"


def write_report(error: ResolveError, output: str | None) -> None:
    """Write the report of an error to stderr, and then the manifest of a 403.

    For `-o yaml`, and for a table that is not printed to a terminal, the manifest is alone on stdout, for
    `kubectl apply -f -`.
    """
    width = streams.terminal_width(sys.stderr) if streams.is_terminal(sys.stderr) else None
    streams.write_stderr(error_report(error, width))
    if not isinstance(error, ForbiddenError) or not error.manifest:
        return
    if output == "yaml" or (output in ("table", "wide") and not streams.is_terminal(sys.stdout)):
        streams.write_stdout(error.manifest)
    else:
        streams.write_stderr(f"\n{error.manifest}")
