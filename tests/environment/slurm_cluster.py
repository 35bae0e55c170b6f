"""A Slurm cluster on this machine, and recordings of the environments in which its tasks run.

A command is `srun` with options, or `sbatch` or `salloc` with options, `--`, and `srun` with options, which
runs in the job. If it starts all tasks of the job, the job outside of its steps is a recording too.

A recording in a file is a line with the command, `step` or `job`, the truth as `node:local id` of each rank,
and `refused` if the variables do not determine the truth. Its variables follow, without `SLURM_`, and then
those in which a task differs. `read_recordings` adds what follows from the truth.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc")

NODES = ("g1", "g2", "n1", "n2", "n3", "n4")
"""The nodes, with 8 CPUs each."""

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
JobAcctGatherType=jobacct_gather/none
PartitionName=main Nodes=ALL Default=YES
"""

_DERIVED = ("SLURMD_NODENAME", "SLURM_GTIDS", "SLURM_LOCALID", "SLURM_PROCID")

Environ = dict[str, str]


@dataclass(frozen=True, slots=True)
class Recording:
    """The environments of the tasks of a step, or that of a job outside its steps."""

    command: str
    is_step: bool
    is_refused: bool
    truth: tuple[str, ...]
    environs: tuple[Environ, ...]


def missing_programs() -> list[str]:
    """Return the programs of Slurm that are not installed."""
    return [name for name in PROGRAMS if _find(name) is None]


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[Environ]:
    """Run a cluster, and yield the environment for its commands."""
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    control, *ports = _free_ports(1 + len(NODES))
    lines = [
        f"NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8"
        for name, port in zip(NODES, ports, strict=True)
    ]
    configuration = CONFIGURATION.format(port=control, user=user, folder=folder)
    (folder / "slurm.conf").write_text("\n".join((configuration, *lines, "")))
    (folder / "state").mkdir()
    (folder / "munge.key").touch(0o400)
    (folder / "munge.key").chmod(0o600)
    (folder / "munge.key").write_bytes(os.urandom(64))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    environ["SLURM_CONF"] = str(folder / "slurm.conf")
    files = [
        f"--{name}={folder}/munge.{name[:-5]}" for name in ("key-file", "pid-file", "log-file", "seed-file")
    ]
    with ExitStack() as stack:
        _start(stack, environ, "munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        _wait_until((folder / "munge.socket").exists)
        _start(stack, environ, "slurmctld", "-D", "-i")
        for name in NODES:
            _start(stack, environ, "slurmd", "-D", "-N", name)
        idle = ["sinfo", "--noheader", "--states=idle", "--format=%D"]
        _wait_until(lambda: _output(idle, environ).strip() == str(len(NODES)))
        yield environ


def record(command: str, environ: Environ) -> Iterator[Recording]:
    """Run a command in a cluster, and return its recordings."""
    with tempfile.TemporaryDirectory() as folder:
        allocation, separator, step = command.partition(" -- ")
        dump = f"""/bin/sh -c 'env -0 >"{folder}/$0.$$.$SLURMD_NODENAME"'"""
        # Each component of a step has a program.
        step = (step or allocation).replace(" : ", f" {dump} step : ") + f" {dump} step"
        script = Path(folder, "script")
        script.write_text(f"#!/bin/sh\n{dump} job\n{step}\n")
        script.chmod(0o755)
        waiting = " --wait --output=/dev/null" if allocation.startswith("sbatch") else ""
        line = f"{allocation.replace(' ', waiting + ' ', 1)} {script}" if separator else step
        _output(["sh", "-c", line], environ)
        steps = sorted(
            map(_read_variables, Path(folder).glob("step.*")), key=lambda each: int(each["SLURM_PROCID"])
        )
        jobs = [_read_variables(path) for path in Path(folder).glob("job.*")]
    truth = tuple(f"{each['SLURMD_NODENAME']}:{each['SLURM_LOCALID']}" for each in steps)
    whole_job = f"{allocation} -- srun", f"{allocation} -- srun --het-group=0-{allocation.count(' : ')}"
    if command in whole_job:
        yield from (Recording(command, False, False, truth, (job,)) for job in jobs)
    yield Recording(command, True, False, truth, tuple(steps))


def read_recordings(text: str) -> Iterator[Recording]:
    """Return the recordings in a text."""
    for block in re.split(r"\n(?=\S)", text.strip()):
        header, *lines = block.split("\n")
        command, kind, tasks = header.split(" | ")
        name, *refused = kind.split()
        truth = tuple(tasks.split())
        is_step = name == "step"
        environs = [_derived(truth, rank) if is_step else {} for rank in range(len(truth) if is_step else 1)]
        selected = environs
        for word in " ".join(lines).split():
            variable, separator, value = word.partition("=")
            if not separator:
                selected = [environs[int(word.removesuffix(":"))]]
                continue
            is_short = not variable.startswith(("SLURMD_", "CUDA_", "ROCR_", "ZE_"))
            for environ in selected:
                environ[f"SLURM_{variable}" if is_short else variable] = value
        yield Recording(command, is_step, bool(refused), truth, tuple(environs))


def _derived(truth: tuple[str, ...], rank: int) -> Environ:
    node, local_id = truth[rank].split(":")
    ranks = [str(number) for number, task in enumerate(truth) if task.split(":")[0] == node]
    return dict(zip(_DERIVED, (node, ",".join(ranks), local_id, str(rank)), strict=True))


def _read_variables(path: Path) -> Environ:
    pairs = (text.partition("=") for text in path.read_text().split("\0"))
    return {name: value for name, _, value in pairs if name.startswith("SLURM")}


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _start(stack: ExitStack, environ: Environ, program: str, *arguments: str) -> None:
    process = subprocess.Popen(
        [_find(program) or program, *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def stop() -> None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(stop)


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("Slurm did not start")
        time.sleep(0.1)


def _output(command: Iterable[str], environ: Environ) -> str:
    run = subprocess.run([*command], env=environ, capture_output=True, text=True, timeout=120, check=False)
    if run.returncode:
        print(run.stderr, file=sys.stderr)
    return run.stdout
