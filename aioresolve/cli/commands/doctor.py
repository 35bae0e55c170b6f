"""`aioresolve doctor`: checks of a cluster one by one, or of this machine, with what to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from aioresolve.cli import formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, option_spelling

if TYPE_CHECKING:
    from collections.abc import Sequence

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

STYLES = {"failed": "red", "warning": "yellow", "skipped": "bright_black"}
"""The style of the row of a check on a terminal, by its result."""

doctor_options = options.combine_options(
    options.output_option(("table", "json")),
    options.timeout_option(effect="Deadline of all checks"),
    options.duration_option("--check-timeout", "Deadline of each check.", "10s"),
)


@click.group(
    cls=options.CommandGroup,
    invoke_without_command=True,
    no_args_is_help=False,
    epilog=EPILOG,
    short_help="What works and what does not, step by step, and what to change.",
)
@doctor_options
@options.quiet_option
@options.verbose_option
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
        _run(None, sources.new_request("here", parameters), check_timeout)
        return
    passed = (
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )
    if next(passed, None) is not None:
        raise click.UsageError(
            f"options come after the source: aioresolve doctor {context.invoked_subcommand} ..."
        )


def _run_with_source(source: str, /, check_timeout: float, **parameters: Any) -> None:
    request, resolver = sources.open_source(sources.new_request(source, parameters))
    _run(resolver, request, check_timeout)


options.add_sources(
    doctor,
    _run_with_source,
    doctor_options,
    texts={
        "kubernetes": (
            """Check the way to the pods of label selectors, step by step.

    The kubeconfig or service account, its credentials, the name, port, certificate and version of the API
    server, clocks, permissions, what each selector matches, indices, Services, DNS names, TCP connections to
    the pods and their devices. Every step that does not need a failed one is checked.
            """,
            """\
  # why are the pods not found?
  aioresolve doctor kubernetes -n ml -l app=trainer

\b
  # the names of what failed
  aioresolve doctor kubernetes -l app=trainer -o json | jq -r '.checks[]|select(.result=="failed").name'
""",
        ),
        "tpu": (
            """Check the way to the workers of Cloud TPUs, step by step.

    Where the TPU is named, the metadata server, project and zone, the credentials, the Cloud TPU API, the
    state and health of each TPU, TCP connections to the workers and their devices. For NAME see
    `aioresolve tpu --help`.
            """,
            """\
  # why is the TPU not ready?
  aioresolve doctor tpu my-tpu --zone us-central2-b --project my-project
""",
        ),
        "here": (
            """Check the way to the cluster that this process is part of, step by step.

    `aioresolve here` prints which cluster that is, and why.
            """,
            """\
  # in a pod, a job step of Slurm or a TPU VM
  aioresolve doctor here
""",
        ),
    },
    epilog=EPILOG,
)


def _run(resolver: ClusterResolver | None, request: sources.ClusterRequest, check_timeout: float) -> None:
    """Run the checks and print their results; exit with 1 if one failed."""
    streams.silence_grpc()
    checks = run_async(lambda _: _check(resolver, request, check_timeout))
    if request.output == "json":
        streams.write_stdout(formats.format_document("json", {"checks": list(map(_document, checks))}, []))
    else:
        streams.write_stdout(_table(checks), has_headers=request.has_headers)
        streams.write_stdout(_remedies(checks))
    failed = sum(check.result == "failed" for check in checks)
    if failed:
        streams.write_stderr(f"error: {failed} of {len(checks)} checks failed\n")
        click.get_current_context().exit(COULD_NOT_RESOLVE)


async def _check(
    resolver: ClusterResolver | None, request: sources.ClusterRequest, check_timeout: float
) -> tuple[Check, ...]:
    from aioresolve._core.deadline import Progress
    from aioresolve.cli.live import show_progress
    from aioresolve.environment.doctor import doctor as run_doctor

    progress = Progress()
    with show_progress(progress, quiet=request.quiet):
        return await run_doctor(
            resolver, timeout=request.timeout, check_timeout=check_timeout, progress=progress
        )


def _table(checks: Sequence[Check]) -> formats.Table:
    rows = [(check.name, check.result, formats.one_line(check.found)) for check in checks]
    return formats.Table(
        ("CHECK", "RESULT", "FOUND"), rows, [STYLES.get(check.result, "") for check in checks]
    )


def _remedies(checks: Sequence[Check]) -> str:
    """Return what to change for each check that has a remedy; it may be several lines, such as a manifest."""
    texts = [f"{check.name}: {_remedy(check)}" for check in checks if check.remedy]
    return "".join("\n" + "\n".join(map(formats.printable, text.split("\n"))) + "\n" for text in texts)


def _document(check: Check) -> dict[str, Any]:
    return {
        "name": check.name,
        "result": check.result,
        "found": check.found,
        "remedy": _remedy(check) or None,
    }


def _remedy(check: Check) -> str:
    return "" if check.remedy is None else check.remedy.render(option_spelling).rstrip("\n")
