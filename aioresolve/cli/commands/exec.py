"""`aioresolve exec`: a program, started once its cluster is complete, with the variables that it reads."""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aioresolve import launch
from aioresolve.cli import options, sources
from aioresolve.cli.application import run_async
from aioresolve.cli.error_messages import status_line
from aioresolve.errors import PartialClusterError, ResolveError

from .wait import condition_options, new_condition, pop_condition, wait_for_cluster

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from aioresolve.cli.application import ExitWith
    from aioresolve.cli.live import StatusReporter
    from aioresolve.cli.program import Program
    from aioresolve.resolver.base import ClusterResolver
    from aioresolve.resolver.completeness import WaitCondition
    from aioresolve.spec import ClusterState

RETRY_PERIOD = 30.0
"""Seconds after which a watch that failed is tried again."""

_PROGRAMS = "\n".join(
    textwrap.fill(each.help, 98, initial_indent=f"  {name:12}", subsequent_indent=" " * 14)
    for name, each in launch.VARIABLE_READERS.items()
)

EPILOG = f"""\
\b
Programs (--for):
{_PROGRAMS}
  {" ".join(launch.HOST_FILE_READERS)}
              a host file, whose path is AIORESOLVE_HOSTFILE; for mpi it is Open MPI's default, for
              mpich that of MPICH and Intel MPI. The program starts the tasks, and is not a task.

\b
Exit codes: that of the program, which replaces this process; 126 it is not executable; 127 it
does not exist. Before it is started, those of other commands.
"""

exec_options = options.combine_options(
    options.text_option(
        "--for consumer",
        None,
        "The kind of program, which decides which variables are set.",
        type=click.Choice([*launch.VARIABLE_READERS, *launch.HOST_FILE_READERS]),
        default="env",
    ),
    options.text_option(
        "--task",
        "JOB:INDEX",
        "The task of this process.  [default: found by its pod's uid or name, host name, or address]",
        parse=options.parse_task,
    ),
    options.program_options,
    options.text_option(
        "--hostfile",
        "PATH",
        "For programs with a host file: where to write it.  [default: a temporary file]",
        type=click.Path(dir_okay=False),
    ),
    options.flag_option(
        "--restart-on-change is_restarted",
        "When the members of the cluster change, stop the program, wait until the cluster is complete"
        " again, and start it with the new variables.",
    ),
    options.duration_option(
        "--grace", "With --restart-on-change: time between SIGTERM and SIGKILL when it is stopped.", "30s"
    ),
)


class ExecCommand(click.Command):
    """A command whose arguments after `--` are another command: its parameter `command`.

    It is None without `--`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before `--`; a UsageError if nothing is after it."""
        end = args.index("--") if "--" in args else len(args)
        before, command = args[:end], tuple(args[end + 1 :])
        if not (command or ctx.resilient_parsing or {"-h", "--help"} & {*before}):
            raise click.UsageError(
                "no command was passed; write it after --, such as: -- python train.py", ctx
            )
        ctx.params["command"] = command if end < len(args) else None
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the parts of the usage line."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND [ARGUMENT]..."]

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete options, and files after `--`."""
        from click.shell_completion import CompletionItem

        if ctx.params.get("command") is not None:
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)


@click.group(
    "exec",
    cls=options.CommandGroup,
    no_args_is_help=False,
    short_help="A program, once its cluster is complete.",
)
def exec() -> None:  # noqa: A001 - the name of the command
    """Wait until a cluster is complete, and start a program with the variables that it reads.

    \b
    aioresolve exec kubernetes -l app=trainer --count 16 --for jax -- python train.py
    """


def _exec_source(
    source: str,
    /,
    command: tuple[str, ...],
    consumer: str,
    hostfile: str | None,
    is_restarted: bool,
    grace: float,
    interval: float = 5.0,
    **parameters: Any,
) -> None:
    environ = dict(os.environ)  # as it is before an import or an option changes it
    given = pop_condition(parameters) if sources.TERMINAL_SOURCES[source].has_conditions else {}
    request = sources.new_request(source, parameters)
    _validate(request, consumer, hostfile)
    from aioresolve.cli.program import find_program, leave_init_process, replace_process
    from aioresolve.resolver.completeness import WaitCondition

    condition = WaitCondition()
    if given:
        # All programs but those for `env` connect to all tasks, so that none may have ended before.
        condition = new_condition(request, **given, needs_all=consumer != "env")
    path = find_program(command[0])
    request, resolver = sources.open_source(request)
    execution = _Execution(
        request, condition, resolver, interval, path, command, environ, consumer, hostfile, is_restarted
    )
    try:
        if is_restarted:
            leave_init_process()
            code = run_async(lambda exit_with: execution.supervise(exit_with, grace))
            click.get_current_context().exit(code)
        replace_process(run_async(lambda _: execution.wait()))
    finally:  # not after a program that has replaced this process, and reads the file
        if execution.temporary is not None:
            Path(execution.temporary).unlink(missing_ok=True)


def _validate(request: sources.ClusterRequest, consumer: str, hostfile: str | None) -> None:
    """Raise an error for what would prevent the start of the program once the cluster is complete."""
    if sys.platform == "win32":  # where no process can become another program, nor send it signals
        raise click.UsageError(
            "`aioresolve exec` is not available on Windows. Wait for the cluster with `aioresolve wait`, set"
            " the variables that `-o env` prints, and then start the program"
        )
    sources.validate_program_options(request, consumer, "--for")
    is_launcher = consumer in launch.HOST_FILE_READERS
    if is_launcher and request.task is not None:
        raise click.UsageError(f"--for {consumer} starts all tasks; leave out --task")
    if hostfile is not None and not is_launcher:
        raise click.UsageError(f"--hostfile requires --for {' or '.join(launch.HOST_FILE_READERS)}")
    if hostfile is not None and not Path(hostfile).absolute().parent.is_dir():
        raise click.UsageError(
            f"--hostfile {hostfile}: the folder does not exist; create it, or pass another path"
        )
    if request.jobs and not is_launcher:
        from aioresolve.spec import ClusterSpec

        # Whether such a program can have several jobs does not depend on their tasks.
        spec = ClusterSpec({job: ["127.0.0.1:1"] for job in request.jobs})
        launch.environment(consumer, spec, spec.tasks[0])


sources.add_sources(
    exec,
    _exec_source,
    "Wait for {what}, and start COMMAND as one of the tasks.\n\nThe process becomes COMMAND: it keeps its"
    " process id, and thus receives all signals.",
    {
        "kubernetes": """\
  # four nodes with eight GPUs; started again whenever a pod is replaced
  aioresolve exec kubernetes -l app=trainer --count 4 --for torchrun --processes-per-task 8 \\
    --restart-on-change -- torchrun train.py

\b
  # in a launcher, as soon as the SSH servers of the workers accept connections
  aioresolve exec kubernetes -l app=worker --port 22 --count 4 --reachable tcp --for mpi --slots 8 \\
    -- mpirun ./solve
""",
        "tpu": """\
  # on each VM of two slices
  aioresolve exec tpu slice-0 slice-1 --for megascale --port 8080 -- python train.py
""",
        "here": """\
  # in each pod of an Indexed Job, in each task of srun, or on each VM of a TPU slice
  aioresolve exec here --for jax -- python train.py
""",
        "slurm": """\
  # one parameter server and four workers, each at a port of this job
  srun --ntasks 5 aioresolve exec slurm --jobs ps=1 --jobs worker=4 \\
    --port-base $((10000 + SLURM_JOB_ID % 50000)) --for tensorflow -- python train.py
""",
    },
    exec_options,
    options.timeout_option("10m"),
    conditions=condition_options,
    epilog=EPILOG,
    has_port=True,
    cls=ExecCommand,
)


def _replace_file(path: str, text: str) -> None:
    """Write a file at once: readers never see a part of it, and a symbolic link is replaced, not followed."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe or a device
        Path(path).write_text(text)
        return
    descriptor, temporary = tempfile.mkstemp(prefix=".aioresolve-", dir=os.path.dirname(path))
    try:
        with open(descriptor, "w") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


@dataclass
class _Execution:
    """One run of the command: waits for the cluster, and prepares the program for it."""

    request: sources.ClusterRequest
    condition: WaitCondition
    resolver: ClusterResolver
    interval: float
    path: str
    command: tuple[str, ...]
    environ: dict[str, str]
    consumer: str
    hostfile: str | None
    is_restarted: bool
    temporary: str | None = None
    """The path of a temporary host file."""
    own_uid: str | None = None
    """The uid of the pod of this process."""
    state: ClusterState | None = None
    """The cluster for which the program was prepared."""

    async def wait(self) -> Program:
        """Return the program for the cluster once it is complete."""
        async with self.resolver:
            return await self._prepare()

    async def supervise(self, exit_with: ExitWith, grace: float) -> int:
        """Run the program as a child until it ends; return its exit code."""
        from aioresolve.cli.program import Supervisor

        async with self.resolver:
            return await Supervisor(
                self._prepare, self._wait_for_change, grace=grace, exit_with=exit_with
            ).run()

    async def _prepare(self) -> Program:
        from aioresolve.cli.program import Program

        try:
            self.state = await wait_for_cluster(self.resolver, self.request, self.condition, self.interval)
        except PartialClusterError as part:
            # JAX needs no more of the cluster, and waits for it itself.
            if self.consumer != "jax" or self.is_restarted or self.request.task is not None:
                raise
            variables = launch.jax_processes(part, **self.request.program_options("jax"))
            what = f"as process {part.process_id} of {part.num_processes}"
        else:
            is_launcher = self.consumer in launch.HOST_FILE_READERS  # which is not a task
            variables, what = (
                self._launcher_variables(self.state)
                if is_launcher
                else await self._task_variables(self.state)
            )
        self.request.note(f"starting {self.command[0]} {what}")
        cleared = (launch.VARIABLE_READERS | launch.HOST_FILE_READERS)[self.consumer].cleared
        inherited = {name: value for name, value in self.environ.items() if name not in cleared}
        return Program(self.path, self.command, inherited | variables)

    async def _task_variables(self, state: ClusterState) -> tuple[dict[str, str], str]:
        state, given = await sources.consumer_options(self.request, self.resolver, state, self.consumer)
        if self.request.task is not None:
            self.resolver.task_type = self.request.task.job
            self.resolver.task_id = self.request.task.index
        task = await self.resolver.this_task(state)
        own = (one for one in state.members if (one.job, one.task_index) == (task.job, task.index))
        self.own_uid = next((one.endpoint.uid for one in own), None)
        variables = launch.environment(self.consumer, state, task, **given)
        return variables, f"as {task} at {task.address}, rank {task.rank}"

    def _launcher_variables(self, state: ClusterState) -> tuple[dict[str, str], str]:
        """Write the host file, and return the variables that name it, and what it has."""
        reader = launch.HOST_FILE_READERS[self.consumer]
        text = reader.function(state, **self.request.program_options(self.consumer))
        path = self.hostfile or self.temporary
        try:
            if path is None:
                # It remains for a program that replaces this process, and thus does not return.
                descriptor, path = tempfile.mkstemp(prefix="aioresolve-", suffix=".hostfile")
                self.temporary = path
                os.close(descriptor)
            _replace_file(path, text)
        except OSError as error:
            raise click.ClickException(f"cannot write the host file {path}: {error.strerror}") from error
        names = ("AIORESOLVE_HOSTFILE", *reader.path_variables)
        paths = dict.fromkeys(names, os.path.abspath(path))
        variables = {**paths, **launch.leader_variables(state), **reader.variables}
        return variables, f"with a host file for {len(state.tasks)} tasks"

    async def _wait_for_change(self) -> None:
        """Return when members of the cluster for which the program was prepared are lost, replaced or new.

        Never returns once a task has ended with success: the cluster cannot become complete again, so the
        program is left alone. Nor is a program stopped because of errors of the source, which is watched
        again later.
        """
        import anyio

        from aioresolve.cli.live import StatusReporter

        status = StatusReporter(quiet=self.request.quiet)
        program = self.command[0]
        while True:
            try:
                change = await self._next_change(status)
            except ResolveError as error:
                status.write(status_line("cannot watch the cluster, the program continues", error))
                await anyio.sleep(RETRY_PERIOD)
                continue
            if change is not None:
                status.write(f"the members of the cluster have changed: {change}; stopping {program}")
                return
            status.write(f"a task has ended with success: {program} is not stopped for changes from now on")
            await anyio.sleep_forever()

    async def _next_change(self, status: StatusReporter) -> str | None:
        """Return the next change of the members, as text; None once a task has ended with success."""
        older = self.state
        assert older is not None
        names = {one.endpoint.full_name for one in older.members}
        async with aclosing(self.resolver.observations(interval=self.interval)) as observations:
            async for observation in observations:
                status.report(observation)
                state = observation.state
                if state is None or observation.error is not None:
                    continue
                if state.done or any(one.has_succeeded and one.name in names for one in observation.absent):
                    return None
                if (change := self._change(state, older)) is not None:
                    return change
        raise RuntimeError("observations() must not end")

    def _change(self, state: ClusterState, older: ClusterState) -> str | None:
        diff = state.diff(older)
        changes = [("lost", one) for one in diff.left] + [("new", one) for one in diff.joined]
        own = self.own_uid
        if own is not None and any(one.endpoint.uid == own for one in state.members):
            # The container of this process may have been restarted before; the kubelet reports it later.
            changes = [(verb, one) for verb, one in changes if one.endpoint.uid != own]
        texts = [f"{verb} {one}" for verb, one in changes] + [f"moved {move}" for move in diff.moved]
        if not texts:
            return None
        return texts[0] if len(texts) == 1 else f"{texts[0]} and {len(texts) - 1} more"
