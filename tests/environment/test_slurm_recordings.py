"""The environments of real Slurm tasks and jobs, compared with where Slurm started the tasks.

The recordings are of Slurm 22.05; `slurm_cluster.py` describes and makes them.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aioresolve import EnvironmentVariableError, SlurmClusterResolver

from .slurm_cluster import Recording, missing_programs, read_recordings, record, slurm_cluster

RECORDINGS = {
    path.stem: list(read_recordings(path.read_text()))
    for path in sorted(Path(__file__).with_name("recordings").glob("slurm-*.txt"))
}

GPUS = {
    "--gpus-per-node=4 --gpu-bind=per_task:2 -w r1g01": [2, 2],
    "--gpus=4 -w r1g01": [2, 2],
    "--gpus-per-node=4": [2, 2],
    "--gpus-per-node=4 --gpu-bind=single:1": [1, 1],
    "--gpus-per-task=1": [1, 1],
    "--gpus-per-node=4 --gpu-bind=closest": [4, 4],
    "--gpus-per-node=4 --gpu-bind=none": [2, 2],
    "--gpus-per-node=4 --gpu-bind=map_gpu:3,1": [1, 1],
    "--gpus-per-node=4 --gpu-bind=mask_gpu:0xf,0x3": [4, 2],
    "--ntasks-per-gpu=1 --gpus=2": [1, 1],
    "--gpus=5": [2, 2, 1],
    "--gpus-per-node=4 -- srun --gpus-per-task=1": [1, 1],
    "--gpus-per-node=4 -- srun --gpus-per-node=2": [1, 1],
}
"""The GPUs of each task, by options: what it sees if Slurm has bound it, or else its share of the node."""


@pytest.fixture
def set_environ(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str]], None]:
    """Replace the environment of this process."""
    return lambda variables: monkeypatch.setattr(os, "environ", dict(variables))


async def read_tasks(**arguments: Any) -> tuple[list[str], int | None]:
    """Return `node:local id` of each task, and the rank of this process."""
    resolver = SlurmClusterResolver(port_base=1000, auto_set_gpu=False, **arguments)
    addresses = (await resolver.cluster_spec()).as_dict()["worker"]
    return _local_ids(addresses), resolver.get_task_info()[1]


def _local_ids(addresses: Any) -> list[str]:
    return [f"{host}:{int(port) - 1000}" for host, port in (each.split(":") for each in addresses)]


@pytest.mark.parametrize("kind", RECORDINGS)
async def test_tasks_are_where_slurm_started_them(kind: str, set_environ: Any) -> None:
    async def read_all(recording: Recording) -> None:
        for environ in recording.environs:
            set_environ(environ)
            await read_tasks()

    for recording in RECORDINGS[kind]:
        if recording.is_refused:
            # Not each task of such a step knows where the others are, so that the step cannot start.
            with pytest.raises(EnvironmentVariableError, match=r"--distribution|tasks_per_node"):
                await read_all(recording)
            continue
        for rank, environ in enumerate(recording.environs):
            set_environ(environ)
            expected = [*recording.truth], rank if recording.is_step else None
            assert await read_tasks() == expected, recording.command


async def test_each_task_has_the_gpus_that_it_sees_or_its_share(set_environ: Any) -> None:
    found = {}
    for recording in RECORDINGS["slurm-gpus"]:
        numbers = []
        for environ in recording.environs:
            set_environ(environ)
            numbers.append((await SlurmClusterResolver().num_accelerators())["GPU"])
        if recording.is_step:
            found[recording.command] = numbers
    assert [*found.values()] == [*GPUS.values()]
    assert all(options in command for options, command in zip(GPUS, found, strict=True))


@pytest.fixture
def real_recordings() -> list[Recording]:
    """Recordings of a cluster on this machine."""
    if missing := missing_programs():
        pytest.skip(f"not installed: {', '.join(missing)}")
    commands = (
        "srun -N2 -n5 -m cyclic",
        "srun -N3 -n7 -m plane=2",
        "srun -N2 -n5 -w n3,n4 : -N2 -n5 -w n1,n2",
        "sbatch -N2 --exclusive -- srun",
        "salloc -N1 -n1 -w n4 : -N2 --exclusive -w n1,n2 -- srun --het-group=0-1",
    )
    with tempfile.TemporaryDirectory() as folder, slurm_cluster(Path(folder)) as cluster:
        return [recording for command in commands for recording in record(command, cluster)]


@pytest.mark.slow
async def test_tasks_of_a_real_cluster(real_recordings: list[Recording], set_environ: Any) -> None:
    assert len(real_recordings) == 7
    for recording in real_recordings:
        for rank, environ in enumerate(recording.environs):
            set_environ(environ)
            expected = [*recording.truth], rank if recording.is_step else None
            assert await read_tasks() == expected, recording.command
