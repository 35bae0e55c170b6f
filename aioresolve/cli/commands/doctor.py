"""`aioresolve doctor`: checks of a cluster one by one, or of this machine, with what to change."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from aioresolve.cli import clusters, formats, options, sources, streams
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import COULD_NOT_RESOLVE, option_spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from aioresolve._core.deadline import Progress
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.checks import Check

EPILOG = """\
\b
Outputs:
  table  CHECK, RESULT (ok, warning, failed, or skipped: it needs something that is missing) and
         what was FOUND; and then what to change, for each check that has a remedy
  json   an object with the list of checks

\b
The exit code is 1 if a check failed.
"""

STYLES = {"failed": "red", "warning": "yellow", "skipped": "bright_black"}
"""The color of the row of a check on a terminal, by its result."""

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
    aioresolve doctor                              versions, and what describes this process
    aioresolve doctor kubernetes -l app=trainer    from the kubeconfig to the tasks
    aioresolve doctor tpu my-tpu                   from the credentials to the tasks
    aioresolve doctor here                         the same for the cluster of this process
    aioresolve doctor torchrun train               the permissions that a rendezvous needs

    Nothing is changed, and no secret is printed.
    """
    if context.invoked_subcommand is None:
        request = sources.new_request("here", parameters)
        _run(request, partial(_check_cluster, None, request, check_timeout))
        return
    origins = map(context.get_parameter_source, context.params)
    if ParameterSource.COMMANDLINE in origins:
        raise click.UsageError(
            f"options come after the source: aioresolve doctor {context.invoked_subcommand} ..."
        )


def _run_with_source(source: str, /, check_timeout: float, **parameters: Any) -> None:
    request, resolver = sources.open_source(sources.new_request(source, parameters))
    _run(request, partial(_check_cluster, resolver, request, check_timeout))


sources.add_sources(
    doctor,
    _run_with_source,
    "Check the way to {what}, step by step.\n\nKubernetes: the kubeconfig or service account, its"
    " credentials, the API server, and permissions. TPUs: where the TPU is named, the credentials, the state"
    " and health of each TPU. Then the tasks, TCP connections to them, and which task this process is."
    " Every step that does not need a failed one is checked.",
    {
        "kubernetes": """\
  # why are the pods not found?
  aioresolve doctor kubernetes -n ml -l app=trainer
""",
        "tpu": """\
  # why is the TPU not ready?
  aioresolve doctor tpu my-tpu --zone us-central2-b --project my-project
""",
        "here": """\
  # in a pod, a job step of Slurm or a TPU VM
  aioresolve doctor here
""",
    },
    doctor_options,
    epilog=EPILOG,
)


@doctor.command("torchrun", epilog=EPILOG, short_help="The permissions of a rendezvous of torchrun.")
@options.rendezvous_options
@doctor_options
@options.quiet_option
@options.verbose_option
def torchrun(job: str, check_timeout: float, **parameters: Any) -> None:
    """Check what `torchrun --rdzv-backend=kubernetes --rdzv-id=JOB` needs.

    The way to the API server, and each permission, by access reviews that change nothing. If one is missing,
    the Role to apply is printed. Run it in a pod of the job, or as its service account:

    \b
    aioresolve doctor torchrun train -n ml --as system:serviceaccount:ml:trainer
    """
    request = sources.new_request("torchrun", parameters)
    _run(request, partial(_check_rendezvous, job, request, check_timeout))


def _run(
    request: sources.ClusterRequest, find: Callable[[Progress], Coroutine[Any, Any, Sequence[Check]]]
) -> None:
    """Print the checks that `find` returns, and exit with 1 if one has failed."""
    from aioresolve._core.deadline import Progress
    from aioresolve.cli.live import show_progress

    async def run() -> Sequence[Check]:
        progress = Progress()
        with show_progress(progress, quiet=request.quiet):
            return await find(progress)

    checks = run_async(lambda _: run())
    remedies = [
        "" if check.remedy is None else check.remedy.render(option_spelling).rstrip("\n") for check in checks
    ]
    if request.output == "json":
        documents = [
            {"name": check.name, "result": check.result, "found": check.found, "remedy": remedy or None}
            for check, remedy in zip(checks, remedies, strict=True)
        ]
        streams.write_stdout(clusters.format_document("json", {"checks": documents}))
    else:
        groups: dict[str, list[Check]] = {}  # the checks that one failure has prevented share a row
        for check in checks:
            groups.setdefault(check.found if check.result == "skipped" else check.name, []).append(check)
        rows = [
            (
                group[0].name + (f" and {len(group) - 1} more" if len(group) > 1 else ""),
                group[0].result,
                formats.one_line(group[0].found),
            )
            for group in groups.values()
        ]
        styles = [STYLES.get(group[0].result, "") for group in groups.values()]
        table = formats.Table(("CHECK", "RESULT", "FOUND"), rows, styles, wraps=True)
        streams.write_stdout(table, has_headers=request.has_headers)
        for check, remedy in zip(checks, remedies, strict=True):
            if remedy:  # it may be several lines, such as a manifest
                lines = f"{check.name}: {remedy}".split("\n")
                streams.write_stdout("\n" + "\n".join(map(formats.printable, lines)) + "\n")
    failed = sum(check.result == "failed" for check in checks)
    if failed:
        streams.write_stderr(f"error: {failed} of {len(checks)} checks failed\n")
        click.get_current_context().exit(COULD_NOT_RESOLVE)


async def _check_cluster(
    resolver: ClusterResolver | None,
    request: sources.ClusterRequest,
    check_timeout: float,
    progress: Progress,
) -> Sequence[Check]:
    from aioresolve.environment.doctor import doctor as run_doctor

    return await run_doctor(resolver, timeout=request.timeout, check_timeout=check_timeout, progress=progress)


async def _check_rendezvous(
    job: str, request: sources.ClusterRequest, check_timeout: float, progress: Progress
) -> Sequence[Check]:
    from aioresolve.kubernetes.checks import ServerChecks
    from aioresolve.rendezvous.inspection import PermissionChecks
    from aioresolve.rendezvous.objects import config_map_of
    from aioresolve.resolver.checks import run_checks

    server = ServerChecks(partial(sources.find_connection, request.arguments))
    plan = PermissionChecks(server, config_map_of(job), request.arguments["namespace"]).plan()
    try:
        return await run_checks(plan, timeout=request.timeout, check_timeout=check_timeout, progress=progress)
    finally:
        await server.aclose()
