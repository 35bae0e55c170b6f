"""`aioresolve doctor`: checks of a cluster one by one, or of this machine, with what to change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from aioresolve.cli.detection import detect_resolver
from aioresolve.cli.options import (
    CommandGroup,
    combine_options,
    duration_option,
    max_requests_option,
    output_option,
    pod_options,
    quiet_option,
    timeout_option,
    tpu_options,
    verbose_option,
)
from aioresolve.cli.output.check_tables import checks_document, checks_table, remedies
from aioresolve.cli.output.error_messages import COULD_NOT_RESOLVE
from aioresolve.cli.output.formats import aligned, as_json
from aioresolve.cli.requests import (
    ClusterRequest,
    HereRequest,
    PodRequest,
    TPURequest,
    new_pod_resolver,
    new_tpu_resolver,
    validate_selection,
)
from aioresolve.cli.terminal import streams

if TYPE_CHECKING:
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.checks import Check

EPILOG = """\
\b
Outputs:
  table  CHECK, RESULT (ok, warning, failed, or skipped: it needs something that is missing) and
         what was FOUND; and then what to change, for each check that has a remedy
  json   {"checks": [{"name", "result", "found", "remedy"}, ...]}

\b
Exit codes: 0 nothing failed; 1 a check failed; 2 invalid usage or configuration.
"""

COLORS = {"failed": "red", "warning": "yellow", "skipped": "bright_black"}
"""The color of the row of a check on a terminal, by its result."""

doctor_options = combine_options(
    output_option(("table", "json")),
    timeout_option(effect="Deadline of all checks"),
    duration_option("--check-timeout", "Deadline of each check.", "10s"),
    quiet_option,
    verbose_option,
)


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    epilog=EPILOG,
    short_help="What works and what does not, step by step, and what to change.",
)
@doctor_options
@click.pass_context
def doctor(context: click.Context, /, check_timeout: float, **parameters: Any) -> None:
    """Check a cluster step by step, or without a source this machine.

    \b
    aioresolve doctor                              versions, extras, and which credentials there are
    aioresolve doctor kubernetes -l app=trainer    from the kubeconfig to the devices of the pods
    aioresolve doctor tpu my-tpu                   from the metadata server to the devices of the TPU
    aioresolve doctor here                         the same for the cluster of this process

    Nothing is changed, and no secret is printed.
    """
    if context.invoked_subcommand is None:
        _run(context, None, HereRequest(**parameters), check_timeout)
        return
    passed = (
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    if next(passed, None) is not None:
        raise click.UsageError(
            f"options come after the source: aioresolve doctor {context.invoked_subcommand} ..."
        )


@doctor.command(
    "kubernetes",
    short_help="The pods of label selectors.",
    epilog=f"""\
\b
Examples:
  # why are the pods not found?
  aioresolve doctor kubernetes -n ml -l app=trainer

\b
  # the names of what failed
  aioresolve doctor kubernetes -l app=trainer -o json | jq -r '.checks[]|select(.result=="failed").name'

{EPILOG}""",
)
@pod_options
@max_requests_option
@doctor_options
@click.pass_context
def doctor_kubernetes(context: click.Context, /, check_timeout: float, **parameters: Any) -> None:
    """Check the way to the pods of label selectors, step by step.

    The kubeconfig or service account, its credentials, the name, port, certificate and version of the API
    server, clocks, permissions, what each selector matches, indices, Services, DNS names, TCP connections to
    the pods and their devices. Every step that does not need a failed one is checked.
    """
    request = PodRequest(**parameters)
    validate_selection(request)
    _run(context, new_pod_resolver(request), request, check_timeout)


@doctor.command(
    "tpu",
    short_help="The workers of Cloud TPUs.",
    epilog=f"""\
\b
Example:
  # why is the TPU not ready?
  aioresolve doctor tpu my-tpu --zone us-central2-b --project my-project

{EPILOG}""",
)
@tpu_options
@doctor_options
@click.pass_context
def doctor_tpu(context: click.Context, /, check_timeout: float, **parameters: Any) -> None:
    """Check the way to the workers of Cloud TPUs, step by step.

    Where the TPU is named, the metadata server, project and zone, the credentials, the Cloud TPU API, the
    state and health of each TPU, TCP connections to the workers and their devices. For NAME see
    `aioresolve tpu --help`.
    """
    request = TPURequest(**parameters)
    _run(context, new_tpu_resolver(request), request, check_timeout)


@doctor.command(
    "here",
    short_help="The cluster that this process is part of.",
    epilog=f"""\
\b
Example:
  # in a pod, a job step of Slurm or a TPU VM
  aioresolve doctor here

{EPILOG}""",
)
@doctor_options
@click.pass_context
def doctor_here(context: click.Context, /, check_timeout: float, **parameters: Any) -> None:
    """Check the way to the cluster that this process is part of, step by step.

    `aioresolve here` prints which cluster that is, and why.
    """
    request, resolver = detect_resolver(HereRequest(**parameters))
    _run(context, resolver, request, check_timeout)


def _run(
    context: click.Context, resolver: ClusterResolver | None, request: ClusterRequest, check_timeout: float
) -> None:
    """Run the checks and print their results; exit with 1 if one failed."""
    streams.silence_grpc()
    from aioresolve.cli.application import run_async

    checks = run_async(lambda _: _check(resolver, request, check_timeout))
    if request.output == "json":
        streams.write_stdout(as_json(checks_document(checks)))
    else:
        streams.write_stdout(_table(checks, request.has_headers) + remedies(checks))
    failed = sum(check.result == "failed" for check in checks)
    if failed:
        streams.write_stderr(f"error: {failed} of {len(checks)} checks failed\n")
        context.exit(COULD_NOT_RESOLVE)


def _table(checks: tuple[Check, ...], has_headers: bool) -> str:
    lines = aligned(checks_table(checks), has_headers=has_headers).splitlines()
    if streams.has_colors(sys.stdout):
        headers = len(lines) - len(checks)
        colors = [None] * headers + [COLORS.get(check.result) for check in checks]
        lines = [click.style(line, fg=color) for line, color in zip(lines, colors, strict=True)]
    return "".join(f"{line}\n" for line in lines)


async def _check(
    resolver: ClusterResolver | None, request: ClusterRequest, check_timeout: float
) -> tuple[Check, ...]:
    from aioresolve._core.deadline import Progress
    from aioresolve.cli.terminal.progress import show_progress
    from aioresolve.environment.doctor import doctor as run_doctor

    progress = Progress()
    with show_progress(progress, quiet=request.quiet):
        return await run_doctor(
            resolver, timeout=request.timeout, check_timeout=check_timeout, progress=progress
        )
