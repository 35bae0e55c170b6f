"""Launchers inside launchers: `mpirun`, `mpiexec` or `torchrun` inside Slurm, SageMaker, a pod, or alone."""

import asyncio
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import aioresolve
from aioresolve import (
    ClusterSpec,
    SageMakerClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    Task,
)
from aioresolve.errors import EnvironmentVariableError, ResolveError, TaskIdentityError

from .slurm_cluster import missing_programs, slurm_cluster

VARIABLES = {
    "Open MPI": [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
    "MVAPICH2": [f"MV2_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
    "PMI": ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
    "torchrun": ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"],
    "DeepSpeed": ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_SIZE"],
    "Horovod": [f"HOROVOD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
}
MARKERS = {"torchrun": {"TORCHELASTIC_RUN_ID": "none"}, "DeepSpeed": {"CROSS_RANK": "0"}}
MPI = ("Open MPI", "MVAPICH2", "PMI")


def launched(launcher: str, *numbers: int) -> dict[str, str]:
    """Return the variables of the process with that rank, size, local rank and local size."""
    variables = dict(zip(VARIABLES[launcher], map(str, numbers), strict=False))
    return {**variables, **MARKERS.get(launcher, {})}


def world(launcher: str, nodes: Sequence[int]) -> list[dict[str, str]]:
    """Return the variables of the processes, by rank, if `nodes` has the node of each."""
    return [
        launched(launcher, rank, len(nodes), nodes[:rank].count(node), nodes.count(node))
        for rank, node in enumerate(nodes)
    ]


def slurm_step(hosts: Sequence[str], node: int) -> dict[str, str]:
    """Return the variables of a step of one task on each node, such as that of the daemons of `mpirun`."""
    return {
        "SLURM_STEP_NODELIST": ",".join(hosts),
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{len(hosts)})",
        "SLURM_STEP_NUM_TASKS": str(len(hosts)),
        "SLURM_PROCID": str(node),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
        "SLURMD_NODENAME": hosts[node],
    }


def outer_variables(outer: str, launcher: str, hosts: Sequence[str], node: int) -> dict[str, str]:
    """Return the variables that the processes on a node inherit from the platform."""
    job = {"SLURM_JOB_NODELIST": ",".join(hosts), "SLURM_TASKS_PER_NODE": f"4(x{len(hosts)})"}
    match outer:
        case "Slurm":
            return {**job, **slurm_step(hosts, node)}
        case "Slurm, a step on some nodes":
            return {**job, "SLURM_JOB_NODELIST": ",".join(["other", *hosts]), **slurm_step(hosts, node)}
        case "Slurm, mpirun on the first node":
            if node > 0:
                return {**job, **slurm_step(hosts[1:], node - 1)}
            return {**job, "SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURMD_NODENAME": hosts[0]}
        case "SageMaker":
            current = hosts[0] if launcher in MPI else hosts[node]
            return {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": current}
        case "TF_CONFIG":
            cluster = {"worker": [f"{host}:2222" for host in hosts]}
            task = {"type": "worker", "index": node}
            return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
    return {}


def resolve(environ: dict[str, str]) -> tuple[dict[str, Any], int] | None:
    """Return the cluster of a process with these variables, and its rank; None after an error."""

    async def call() -> tuple[dict[str, Any], int] | None:
        try:
            resolver = (await aioresolve.detect()).resolver
            return (await resolver.cluster_spec()).as_dict(), (await resolver.this_task()).rank
        except ResolveError:
            return None

    with (
        mock.patch.object(os, "environ", dict(environ)),
        mock.patch("aioresolve.environment.detection.ABSENT_TIMEOUT", 0.001),
        mock.patch("aioresolve.environment.detection.PRODUCT_FILE", Path("/none")),
    ):
        return asyncio.run(call())


OUTER = (
    "Slurm",
    "Slurm, a step on some nodes",
    "Slurm, mpirun on the first node",
    "SageMaker",
    "TF_CONFIG",
)


@given(st.sampled_from(OUTER), st.sampled_from(list(VARIABLES)), st.data())
def test_processes_of_a_launcher_have_one_cluster_and_different_ranks_or_an_error(
    outer: str, launcher: str, data: st.DataObject
) -> None:
    assume(launcher in MPI or not outer.endswith("first node"))  # whose daemons start MPI programs
    assume(launcher not in MPI or not outer.endswith("some nodes"))  # the nodes of `mpirun` may be others
    number = data.draw(st.integers(1, 3), "hosts")
    filled = st.integers(1, 3).map(lambda per_host: [node for node in range(number) for _ in range(per_host)])
    nodes = data.draw(filled | st.lists(st.integers(0, number - 1), min_size=1, max_size=6), "nodes by rank")
    if outer == "SageMaker" and launcher in MPI:
        nodes = sorted(nodes)  # its mpirun fills the hosts in their order, and no variable names the host
    hosts = [f"algo-{node + 1}" for node in range(number)]
    processes = world(launcher, nodes)
    results = [
        resolve({**outer_variables(outer, launcher, hosts, node), **process})
        for node, process in zip(nodes, processes, strict=True)
    ]
    known = [result for result in results if result is not None]
    assert all(one[0] == other[0] for one, other in pairwise(known))
    assert [result[1] for result in known] == [rank for rank, result in enumerate(results) if result]
    if len(known) == len(nodes):
        (addresses,) = known[0][0].values()
        assert [address.split(":")[0] for address in addresses] == [hosts[node] for node in nodes]
    # All hosts have as many processes, which fill one host after another.
    is_filled = (
        len(set(nodes)) == number and nodes == sorted(nodes) and len(set(map(nodes.count, nodes))) == 1
    )
    is_known = is_filled and (outer != "TF_CONFIG" or len(nodes) == number)
    if is_known:
        assert len(known) == len(nodes)


@given(
    st.sampled_from(["Slurm", "SageMaker", "TF_CONFIG"]),
    st.sampled_from(list(VARIABLES)),
    *[st.integers(1, 3)] * 2,
)
@example("Slurm", "torchrun", 2, 2)
def test_launchers_of_their_own_in_each_task_are_an_error(
    outer: str, launcher: str, tasks: int, size: int
) -> None:
    hosts = [f"algo-{node + 1}" for node in range(tasks)]
    results = [
        resolve({**outer_variables(outer, launcher, hosts, node), **process})
        for node in range(tasks)
        for process in world(launcher, [node] * size)
    ]
    if tasks > 1:
        assert not any(results)
    elif outer != "TF_CONFIG" or size == 1:
        assert [result and result[1] for result in results] == list(range(size))


OPEN_MPI = launched("Open MPI", 1, 2, 0, 1)
SLURM = {"SLURM_JOB_NODELIST": "algo-[1-2]", **slurm_step(["algo-1", "algo-2"], 1)}
SAGEMAKER = {"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": "algo-1"}
ONE_TPU = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
ONE_WORKER = {"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'}


@pytest.mark.parametrize(
    ("environ", "texts"),
    [
        ({"OMPI_COMM_WORLD_RANK": "-1"}, ["$OMPI_COMM_WORLD_RANK is '-1', not an integer"]),
        (launched("PMI", 4, 4), ["$PMI_RANK is 4, but $PMI_SIZE is 4"]),
        (launched("PMI", 1, 2), ["process 1 of 2 of PMI", "no other source describes the cluster"]),
        (
            OPEN_MPI | launched("PMI", 0, 2, 0, 1),
            ["process 1 of 2 of Open MPI ($OMPI_", "process 0 of 2 of PMI ($PMI_"],
        ),
        (OPEN_MPI | launched("PMI", 1, 4), ["process 1 of 2 of Open MPI", "process 1 of 4 of PMI"]),
        (
            SLURM | {"PMIX_RANK": "0"},
            ["process 0 of PMIx ($PMIX_RANK)", "$SLURM_STEP_NODELIST has 2 tasks, and this is 1"],
        ),
        (SLURM | launched("PMI", 1, 4), ["process 1 of 4 of PMI", "$SLURM_STEP_NODELIST has 2 tasks"]),
        (
            SLURM | launched("Open MPI", 3, 4, 1, 3),
            [
                "3 of them on this host ($OMPI_",
                "$SLURM_JOB_NODELIST has 2 nodes, and this is algo-2 ($SLURM_NODEID)",
            ],
        ),
        (SLURM | OPEN_MPI | {"SLURM_NODEID": "2"}, ["has 2 nodes, and $SLURM_NODEID is 2"]),
        (SLURM | OPEN_MPI | {"SLURM_HET_SIZE": "2"}, ["$SLURM_HET_SIZE is 2"]),
        (SLURM | OPEN_MPI | {"OMPI_MCA_orte_rankfile": "ranks"}, ["$OMPI_MCA_orte_rankfile is 'ranks'"]),
        (
            SAGEMAKER | launched("torchrun", 1, 2, 0, 1),
            ["process 1 of 2 of torchrun", "($SM_HOSTS), and this is algo-1"],
        ),
        (ONE_TPU | OPEN_MPI, ["process 1 of 2 of Open MPI", "rank 0 of 1 ($TPU_WORKER_ID"]),
        (ONE_TPU | launched("PMI", 1, 2, 1, 2), ["process 1 of 2 of PMI", "rank 0 of 1 ($TPU_WORKER_ID"]),
        (
            ONE_WORKER | launched("DeepSpeed", 1, 2, 1, 2),
            ["process 1 of 2 of DeepSpeed", "rank 0 of 1 ($TF_CONFIG)"],
        ),
    ],
)
async def test_contradiction_is_one_error_that_names_both_values_and_both_variables(
    environ: dict[str, str], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("aioresolve.environment.detection.ABSENT_TIMEOUT", 0.05)
    with pytest.raises((EnvironmentVariableError, TaskIdentityError)) as raised:
        await (await aioresolve.detect()).resolver.this_task()
    assert all(text in raised.value.summary for text in texts)
    assert raised.value.hint


async def test_task_that_was_passed_is_compared_with_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ClusterSpec({"ps": ["a:1"], "worker": ["b:1", "b:2", "c:1"]})
    for name, value in launched("Open MPI", 1, 3, 1, 2).items():
        monkeypatch.setenv(name, value)
    # The launcher started the tasks of one job.
    resolver = SimpleClusterResolver(cluster, task_type="worker", task_id=1)
    assert await resolver.this_task() == Task("worker", 1, "b:2", 2, 4)
    for job, index in (("worker", 0), ("worker", 2), ("ps", 0)):
        with pytest.raises(TaskIdentityError, match=r"process 1 of 3 of Open MPI .*identified as /job:"):
            await SimpleClusterResolver(cluster, task_type=job, task_id=index).this_task()


async def test_processes_on_one_host_may_be_placed_in_any_way(monkeypatch: pytest.MonkeyPatch) -> None:
    process = launched("Open MPI", 1, 2, 1, 2) | {"OMPI_MCA_rmaps_base_mapping_policy": "node"}
    for name, value in (slurm_step(["algo-1"], 0) | {"SLURM_JOB_NODELIST": "algo-1"} | process).items():
        monkeypatch.setenv(name, value)
    assert (await SlurmClusterResolver().this_task()).rank == 1


@pytest.mark.parametrize(
    "numbers", [{"PMI_RANK": "0", "PMI_SIZE": "1"}, {"PMIX_RANK": "0"}, launched("torchrun", 1, 4, 1, 2)]
)
async def test_cluster_of_an_interactive_shell_of_slurm_is_that_of_its_job(
    numbers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = slurm_step(["algo-1"], 0) | {**numbers, "SLURM_STEP_ID": "4294967290"}
    job = {"SLURM_JOB_NODELIST": "algo-[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_NTASKS": "4"}
    for name, value in (shell | job).items():
        monkeypatch.setenv(name, value)
    assert (await SlurmClusterResolver().cluster_spec()).num_tasks("worker") == 4


async def test_attributes_and_master_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (SAGEMAKER | OPEN_MPI | SLURM).items():
        monkeypatch.setenv(name, value)
    resolver = SageMakerClusterResolver()
    assert (resolver.task_type, resolver.task_id, await resolver.master()) == ("worker", 1, "algo-2:2223")
    monkeypatch.setattr("socket.gethostname", lambda: "algo-1")
    with pytest.raises(EnvironmentVariableError, match="and this is algo-1"):
        await resolver.cluster_spec()
    assert (await SlurmClusterResolver(tasks_per_node=1).this_task()).rank == 1
    slurm = SlurmClusterResolver({"chief": 1, "a": 1})
    assert (slurm.get_task_info(), await slurm.master()) == (("chief", 0), "grpc://algo-2:8888")
    assert await slurm.this_task() == Task("chief", 0, "algo-2:8888", 0, 2)


# Real launchers

HERE = [sys.executable, "-m", "aioresolve", "here", "-o", "jax", "--this-task", "--quiet"]


IDS = ["JAX_NUM_PROCESSES=4"] * 4 + [f"JAX_PROCESS_ID={rank}" for rank in range(4)]


@pytest.mark.slow
@pytest.mark.skipif(
    bool(missing_programs()) or shutil.which("mpirun") is None,
    reason="Slurm and Open MPI are not installed (Debian: slurm-wlm, openmpi-bin)",
)
def test_processes_of_mpirun_in_a_batch_script_are_on_all_nodes(tmp_path: Path) -> None:
    script, output = tmp_path / "script", tmp_path / "output"
    options = "--allow-run-as-root -np 4 -x PYTHONPATH"
    script.write_text(f"#!/bin/sh\nmpirun {options} {shlex.join(HERE)}\n")
    with slurm_cluster(tmp_path) as environ:
        command = ["sbatch", "--wait", "-N2", "--ntasks-per-node=2", f"--output={output}", str(script)]
        subprocess.run(command, env=environ, capture_output=True, timeout=120, check=False)
    lines = output.read_text().splitlines()
    assert sorted(line for line in lines if "_PROCESS" in line) == IDS, lines
    assert len({line for line in lines if "COORDINATOR" in line}) == 1
