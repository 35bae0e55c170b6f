"""Which process of a launcher, such as `mpirun` or `torchrun`, this process is. No I/O.

A launcher may run inside the step, the job or the pod of another one. Its processes inherit the variables of
the outer launcher, which counts them as one task. Only the variables of the inner launcher distinguish them.

The variables:

- torchrun: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
- DeepSpeed: `deepspeed/launcher/launch.py`; Horovod without MPI: `horovod/runner/gloo_run.py`
- Open MPI: https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html
- MVAPICH2: its user guide; PMI: MPICH, Intel MPI and `srun --mpi=pmi2`; PMIx: `srun --mpi=pmix`
"""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve.errors import EnvironmentVariableError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Launcher:
    """The names of the variables of one launcher; None for what it does not say.

    `rank` has the number of the process, and `size` how many processes there are; `local_rank` and
    `local_size` have the same among the processes of its host. `marker` is set by this launcher only, if
    others set these variables too. `placement` have the options by which processes do not fill one host after
    another. Launchers of MPI programs (`is_mpi`) may start other launchers.
    """

    name: str
    rank: str
    size: str | None = None
    local_rank: str | None = None
    local_size: str | None = None
    marker: str | None = None
    is_mpi: bool = False
    placement: tuple[str, ...] = ()


def _prefixed(prefix: str) -> tuple[str, str, str, str]:
    return f"{prefix}RANK", f"{prefix}SIZE", f"{prefix}LOCAL_RANK", f"{prefix}LOCAL_SIZE"


LAUNCHERS = (
    Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"),
    Launcher("DeepSpeed", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK"),
    Launcher("Horovod", *_prefixed("HOROVOD_")),
    Launcher(
        "Open MPI",
        *_prefixed("OMPI_COMM_WORLD_"),
        is_mpi=True,
        placement=(  # `--map-by`, `--rank-by` and `--rankfile`
            "OMPI_MCA_rmaps_base_mapping_policy",
            "OMPI_MCA_rmaps_base_ranking_policy",
            "OMPI_MCA_orte_rankfile",
        ),
    ),
    Launcher("MVAPICH2", *_prefixed("MV2_COMM_WORLD_"), is_mpi=True),
    Launcher("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", is_mpi=True),
    Launcher("PMIx", "PMIX_RANK", is_mpi=True),
)
"""The launchers, the innermost first: `torchrun` runs inside `mpirun`, not the other way around."""

_FILLS_HOSTS = re.compile(r"(?:slot|core|ppr:[0-9]+:node)(?::PE=[0-9]+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LaunchedProcess:
    """The numbers that a launcher gave to this process, as in `Launcher`; None for what it does not say.

    `placement` is the option by which processes do not fill one host after another, as `$VARIABLE is VALUE`.
    """

    launcher: Launcher
    rank: int
    size: int | None
    local_rank: int | None
    local_size: int | None
    placement: str | None

    def __str__(self) -> str:
        if self.size is None:
            return f"process {self.rank} of {self.launcher.name} (${self.launcher.rank})"
        variables = f"${self.launcher.rank} and ${self.launcher.size}"
        return f"process {self.rank} of {self.size} of {self.launcher.name} ({variables})"

    @property
    def all_on_this_host(self) -> bool:
        """Whether all processes of the launcher run on this host."""
        return self.size is not None and self.size == (self.local_size or 1)

    def has_number(self, rank: int | None, size: int) -> bool:
        """Return whether this is the process with that rank of `size` processes."""
        return self.rank == rank and self.size in (None, size)

    def place(self, hosts: Sequence[str], own: str | None) -> list[str] | None:
        """Return the host of each process, by rank, if each host has as many as `own`, that of this one.

        Launchers fill one host after another. Where an unknown option said otherwise, that does not fit the
        numbers of at least one process, which gets None. `own` is None if it is not known.
        """
        number = self.local_size or 1
        position, local_rank = divmod(self.rank, number)
        if self.size != len(hosts) * number or local_rank != (self.local_rank or 0):
            return None
        if own not in (None, hosts[position]) or (self.placement is not None and len(hosts) > 1):
            return None
        return [host for host in hosts for _ in range(number)]

    def contradicts(self, outer: str) -> EnvironmentVariableError:
        """Return the error for what other variables say, as a clause, such as `$SM_HOSTS has 2 hosts`."""
        local = ""
        if self.local_size is not None:
            local = f", {self.local_size} of them on this host (${self.launcher.local_size})"
        placed = "" if self.placement is None else f", and {self.placement}"
        return EnvironmentVariableError(
            f"this is {self}{local}, but {outer}{placed}; no variable has the hosts of all processes",
            variable=self.launcher.rank,
            hint="Let the platform start each process (on Slurm `srun --mpi=pmi2`), resolve the cluster"
            " before the launcher starts (`aioresolve exec --for mpi` writes the host file of `mpirun`), or"
            " use what the launcher gives to the program (mpi4py, torch.distributed)."
            f" Unset ${self.launcher.rank} if no launcher started this process.",
        )


def launched_process(environ: Mapping[str, str]) -> LaunchedProcess | None:
    """Return what the innermost launcher says about this process; None if no launcher started it.

    Raises:
        EnvironmentVariableError: the variables of a launcher are malformed, or contradict those of another.
    """
    found = [
        _read(launcher, environ)
        for launcher in LAUNCHERS
        if environ.get(launcher.rank) and (launcher.marker is None or launcher.marker in environ)
    ]
    found = [process for process in found if not _is_task_of_srun(process, environ)]
    if not found:
        return None
    first, *others = found
    for other in others if first.launcher.is_mpi else ():
        if first.rank != other.rank or (other.size is not None and first.size != other.size):
            raise EnvironmentVariableError(
                f"this is {first}, but also {other}",
                variable=first.launcher.rank,
                hint=f"Unset ${first.launcher.rank} or ${other.launcher.rank}: that of the outer launcher.",
            )
    return first


def _is_task_of_srun(process: LaunchedProcess, environ: Mapping[str, str]) -> bool:
    """Return whether the numbers are those of `srun`, which the processes of its task inherit."""
    size = process.size
    return (
        process.local_size is None
        and environ.get("SLURM_PROCID") == str(process.rank)
        and (size is None or environ.get("SLURM_STEP_NUM_TASKS") == str(size))
    )


def _read(launcher: Launcher, environ: Mapping[str, str]) -> LaunchedProcess:
    rank, size = _integer(environ, launcher.rank), _integer(environ, launcher.size)
    local_rank, local_size = _integer(environ, launcher.local_rank), _integer(environ, launcher.local_size)
    assert rank is not None
    if size is not None and rank >= size:
        raise _reject(f"is {rank}, but ${launcher.size} is {size}", launcher.rank)
    options = (
        f"${name} is {environ[name]!r}"
        for name in launcher.placement
        if environ.get(name) and not _FILLS_HOSTS.fullmatch(environ[name])
    )
    return LaunchedProcess(launcher, rank, size, local_rank, local_size, next(options, None))


def _integer(environ: Mapping[str, str], variable: str | None) -> int | None:
    text = environ.get(variable) if variable else None
    if not text:
        return None
    if not re.fullmatch("[0-9]{1,9}", text):
        raise _reject(f"is {reprlib.repr(text)}, not an integer from 0", variable)
    return int(text)


def _reject(problem: str, variable: str | None) -> EnvironmentVariableError:
    return EnvironmentVariableError(
        f"${variable} {problem}",
        variable=variable,
        hint="A launcher such as mpirun or torchrun sets it. Unset it if none started this process.",
    )
