"""A cluster and a task as environment variables and host files."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from aioresolve import ClusterSpec, ClusterState, DoneTask, Endpoint, LaunchError, Task, launch
from aioresolve.errors import PartialClusterError

WORKERS = ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"]})
TWO_JOBS = ClusterSpec({"worker": ["10.0.0.2:8470"], "chief": ["10.0.0.1:8470"]})
SPARSE = ClusterSpec({"worker": {0: "10.0.0.1:8470", 2: "10.0.0.3:8470"}})
IPV6 = ClusterSpec({"worker": ["[fd00::1]:8470", "[fd00::2]:8470"]})

FOR_EQUAL_TASKS = ["accelerate", "jax", "megascale", "torch", "torchrun"]


def test_variables_of_a_task_name_the_leader() -> None:
    assert launch.task_variables(TWO_JOBS, TWO_JOBS.task("worker", 0)) == {
        "AIORESOLVE_JOB": "worker",
        "AIORESOLVE_INDEX": "0",
        "AIORESOLVE_ADDRESS": "10.0.0.2:8470",
        "AIORESOLVE_RANK": "1",
        "AIORESOLVE_NUM_TASKS": "2",
        "AIORESOLVE_LEADER": "10.0.0.1:8470",
        "AIORESOLVE_LEADER_HOST": "10.0.0.1",
        "AIORESOLVE_LEADER_PORT": "8470",
    }


def test_host_of_the_leader_has_no_brackets_and_its_port_may_be_absent() -> None:
    for address, host, port in (("[fd00::1]:8470", "fd00::1", "8470"), ("n1", "n1", None)):
        variables = launch.leader_variables(ClusterSpec({"worker": [address]}))
        assert variables["AIORESOLVE_LEADER_HOST"] == host
        assert variables.get("AIORESOLVE_LEADER_PORT") == port


def indexed(*indices: int, done: tuple[int, ...] = ()) -> ClusterState:
    """Return a state of tasks that a controller gave these indices."""
    spec = ClusterState.of(
        {"worker": {index: Endpoint(f"10.0.0.{index}:8470", index=index) for index in indices}}
    )
    return replace(spec, done=tuple(DoneTask("worker", index, f"ml/w-{index}") for index in done))


def test_tensorflow_counts_the_tasks_of_a_later_group_from_0() -> None:
    state = indexed(2, 3)
    config = json.loads(launch.tensorflow(state, state.task("worker", 3))["TF_CONFIG"])
    assert config["cluster"] == {"worker": ["10.0.0.2:8470", "10.0.0.3:8470"]}
    assert config["task"] == {"type": "worker", "index": 1}
    sparse = json.loads(launch.tensorflow(indexed(2, 4))["TF_CONFIG"])
    assert sparse["cluster"] == {"worker": {"2": "10.0.0.2:8470", "4": "10.0.0.4:8470"}}
    without_done = json.loads(launch.tensorflow(indexed(1, done=(0,)))["TF_CONFIG"])
    assert without_done["cluster"] == {"worker": {"1": "10.0.0.1:8470"}}


def test_task_has_its_rank_after_others_are_done_but_none_that_connect_to_them_can_start() -> None:
    state = indexed(2, 3, done=(0, 1))
    task = state.task("worker", 3)
    assert launch.environment("env", state, task) == {
        "AIORESOLVE_JOB": "worker",
        "AIORESOLVE_INDEX": "3",
        "AIORESOLVE_ADDRESS": "10.0.0.3:8470",
        "AIORESOLVE_RANK": "3",
        "AIORESOLVE_NUM_TASKS": "4",
    }
    assert "AIORESOLVE_LEADER" in launch.VARIABLE_READERS["env"].cleared
    for consumer in launch.VARIABLE_READERS.keys() - {"env"}:
        with pytest.raises(LaunchError, match=r"task:0 \(ml/w-0\) and 1 more ended with success") as error:
            launch.environment(consumer, state, task)
        assert consumer in error.value.summary.lower()
    for consumer, reader in launch.HOST_FILE_READERS.items():
        with pytest.raises(LaunchError, match="ended with success") as error:
            reader.function(state)
        assert consumer in error.value.summary.lower()


def test_task_of_another_cluster_is_refused() -> None:
    for task in (SPARSE.task("worker", 2), Task("worker", 3, "10.0.0.4:8470", 3, 4)):
        for consumer in launch.VARIABLE_READERS:
            with pytest.raises(LaunchError, match="is not a task of this cluster of 3 tasks"):
                launch.environment(consumer, WORKERS, task)
    evaluator = ClusterSpec({"evaluator": ["10.0.0.9:8470"]})
    with pytest.raises(LaunchError, match=r"^/job:evaluator/task:7 at .* is not a task of this cluster"):
        launch.tensorflow(evaluator, Task("evaluator", 7, "10.0.0.7:8470", 7, 8))


def test_unknown_consumer_and_option_name_the_known_ones() -> None:
    task = WORKERS.task("worker", 0)
    with pytest.raises(LaunchError, match=r"'mxnet' is not a kind of program.*tensorflow"):
        launch.environment("mxnet", WORKERS, task)
    with pytest.raises(LaunchError, match=r"'torchrun' has no option 'slots'.*processes_per_task"):
        launch.environment("torchrun", WORKERS, task, slots=2)
    with pytest.raises(LaunchError, match=r"'env' has no option 'slots'\. Leave it out"):
        launch.environment("env", WORKERS, task, slots=2)


def test_tensorflow_has_the_cluster_and_the_task_which_may_be_an_evaluator_outside() -> None:
    task = TWO_JOBS.task("worker", 0)
    assert json.loads(launch.tensorflow(TWO_JOBS, task, rpc_layer="grpc")["TF_CONFIG"]) == {
        "cluster": {"worker": ["10.0.0.2:8470"], "chief": ["10.0.0.1:8470"]},
        "task": {"type": "worker", "index": 0},
        "rpc_layer": "grpc",
    }
    evaluator = launch.tensorflow(WORKERS, Task("evaluator", 0, "10.0.0.9:8470", 0, 1))["TF_CONFIG"]
    assert json.loads(evaluator)["task"] == {"type": "evaluator", "index": 0}


class TestEqualTasks:
    @pytest.mark.parametrize("consumer", FOR_EQUAL_TASKS)
    def test_two_jobs_and_gaps_are_refused(self, consumer: str) -> None:
        with pytest.raises(LaunchError, match="all alike, but the cluster has the jobs chief, worker"):
            launch.environment(consumer, TWO_JOBS, TWO_JOBS.task("worker", 0))
        with pytest.raises(LaunchError, match="job 'worker' has no task 1"):
            launch.environment(consumer, SPARSE, SPARSE.task("worker", 2))

    @pytest.mark.parametrize("consumer", ["jax", "megascale", "torchrun"])
    def test_ranks_count_from_0_whatever_the_first_index_is(self, consumer: str) -> None:
        # The second group of a LeaderWorkerSet, or a set whose first index is not 0.
        later = ClusterSpec({"worker": {task.index + 5: task.address for task in WORKERS.tasks}})
        options = {"slices": 3} if consumer == "megascale" else {}
        for task, same in zip(later.tasks, WORKERS.tasks, strict=True):
            found = launch.environment(consumer, later, task, **options)
            expected = launch.environment(consumer, WORKERS, same, **options)
            assert found == expected | {"AIORESOLVE_INDEX": str(same.rank + 5)}

    @pytest.mark.parametrize("consumer", ["jax", "torchrun"])
    def test_leader_without_a_port_needs_one(self, consumer: str) -> None:
        spec = ClusterSpec({"worker": ["n1", "n2"]})
        with pytest.raises(LaunchError, match=r"needs a port on n1.* 'n1' has none\. .*`port=`"):
            launch.environment(consumer, spec, spec.task("worker", 1))
        assert "n1" in str(launch.environment(consumer, spec, spec.task("worker", 1), port=29500))

    def test_port_out_of_range_is_refused(self) -> None:
        for port in (0, 65536):
            with pytest.raises(LaunchError, match=f"but {port} is not one. .* 1 to 65535"):
                launch.jax(WORKERS, WORKERS.task("worker", 0), port=port)
        for port in (1, 65535):
            variables = launch.jax(IPV6, IPV6.task("worker", 1), port=port)
            assert variables["JAX_COORDINATOR_ADDRESS"] == f"[fd00::1]:{port}"

    def test_jax(self) -> None:
        assert launch.jax(WORKERS, WORKERS.task("worker", 2)) == {
            "JAX_COORDINATOR_ADDRESS": "10.0.0.1:8470",
            "JAX_NUM_PROCESSES": "3",
            "JAX_PROCESS_ID": "2",
        }

    def test_jax_needs_three_attributes_of_a_part_of_the_cluster(self) -> None:
        known: dict[str, Any] = {"coordinator": "fd00::1", "num_processes": 8, "process_id": 5}
        for port, found in ((None, 8482), (8476, 8476)):
            assert launch.jax_processes(PartialClusterError("slice 1 of 2", **known), port=port) == {
                "JAX_COORDINATOR_ADDRESS": f"[fd00::1]:{found}",
                "JAX_NUM_PROCESSES": "8",
                "JAX_PROCESS_ID": "5",
            }
        for name in known:
            lacking: dict[str, Any] = known | {name: None}
            with pytest.raises(PartialClusterError):
                launch.jax_processes(PartialClusterError("slice 1 of 2", **lacking))

    def test_torchrun(self) -> None:
        assert launch.torchrun(WORKERS, WORKERS.task("worker", 1), processes_per_task=8) == {
            "PET_NNODES": "3",
            "PET_NODE_RANK": "1",
            "PET_MASTER_ADDR": "10.0.0.1",
            "PET_MASTER_PORT": "8470",
            "PET_RDZV_BACKEND": "static",
            "PET_RDZV_ENDPOINT": "",
            "PET_RDZV_ID": "none",
            "PET_RDZV_CONF": "",
            "PET_STANDALONE": "0",
            "PET_NPROC_PER_NODE": "8",
        }

    @pytest.mark.slow
    @pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
    def test_torchrun_reads_these_variables_and_not_those_of_an_elastic_job(self) -> None:
        kubeflow = {
            "PET_NNODES": "2:8",
            "PET_NPROC_PER_NODE": "2",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": "train-worker-0:23456",
            "PET_RDZV_ID": "train",
            "PET_RDZV_CONF": "timeout=1",
            "PET_STANDALONE": "1",
            "PET_LOCAL_ADDR": "10.0.0.9",
        }
        variables = launch.torchrun(WORKERS, WORKERS.task("worker", 1), port=29501)
        program = (
            "import json; from torch.distributed.run import config_from_args, parse_args;"
            " c = config_from_args(parse_args(['train.py']))[0]; print(json.dumps([c.min_nodes, c.max_nodes,"
            " c.nproc_per_node, c.run_id, c.rdzv_backend, c.rdzv_endpoint, c.rdzv_configs]))"
        )
        run = subprocess.run(
            [sys.executable, "-c", program],
            env=kubeflow | variables,
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(run.stdout) == [
            3,
            3,
            2,
            "none",
            "static",
            "10.0.0.1:29501",
            {"rank": 1, "timeout": 900},
        ]

    def test_accelerate_has_the_variables_of_torchrun_and_torch_with_its_own_port(self) -> None:
        task = WORKERS.task("worker", 1)
        expected = launch.torchrun(WORKERS, task, port=29500) | launch.torch(WORKERS, task, port=29500)
        assert launch.accelerate(WORKERS, task) == expected

    def test_torch_has_the_master_without_brackets(self) -> None:
        assert launch.torch(IPV6, IPV6.task("worker", 1)) == {
            "MASTER_ADDR": "fd00::1",
            "MASTER_PORT": "8470",
            "WORLD_SIZE": "2",
            "RANK": "1",
            "LOCAL_WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "NODE_RANK": "1",
            "GROUP_RANK": "1",
        }

    @pytest.mark.parametrize(
        ("hosts", "local"),
        [
            # By rank: the position on the host, the tasks on the host, and the position of the host.
            (["n1", "n1", "n1", "n2"], [(0, 3, 0), (1, 3, 0), (2, 3, 0), (0, 1, 1)]),
            (["n1", "n2", "n1", "n2"], [(0, 2, 0), (0, 2, 1), (1, 2, 0), (1, 2, 1)]),
        ],
    )
    def test_tasks_of_one_host_share_its_devices(
        self, hosts: list[str], local: list[tuple[int, int, int]]
    ) -> None:
        spec = ClusterSpec({"worker": [f"{host}:{8470 + rank}" for rank, host in enumerate(hosts)]})
        for task, (position, number, host) in zip(spec.tasks, local, strict=True):
            variables = launch.torch(spec, task)
            assert variables["LOCAL_RANK"] == str(position)
            assert variables["LOCAL_WORLD_SIZE"] == str(number)
            assert variables["NODE_RANK"] == variables["GROUP_RANK"] == str(host)
            device = launch.jax(spec, task).get("JAX_LOCAL_DEVICE_IDS")
            assert device == (str(position) if number > 1 else None)


class TestHostFiles:
    def test_hosts_are_in_the_order_of_ranks_and_tasks_of_one_host_share_a_line(self) -> None:
        assert launch.hostfile(TWO_JOBS, slots=4) == "10.0.0.1 slots=4\n10.0.0.2 slots=4\n"
        spec = ClusterSpec({"worker": ["n1:1", "n2:1", "n1:2"]})
        assert launch.hostfile(spec, slots=2) == "n1 slots=4\nn2 slots=2\n"
        assert launch.hostfile(SPARSE) == "10.0.0.1 slots=1\n10.0.0.3 slots=1\n"
        assert launch.host_slots(SPARSE) == "10.0.0.1:1\n10.0.0.3:1\n"

    @pytest.mark.parametrize(
        ("address", "message"),
        [
            ("[fd00::1]:8470", r"cannot express the IPv6 address fd00::1.*address="),
            ("n1\nn2:8470", r"'n1\\nn2' is not a host name"),
            ("-oProxyCommand=x:1", "is not a host name"),
        ],
    )
    def test_host_that_the_reader_cannot_use_is_refused(self, address: str, message: str) -> None:
        for write in (launch.hostfile, launch.host_slots):
            with pytest.raises(LaunchError, match=message):
                write(ClusterSpec({"worker": ["10.0.0.1:8470", address]}))

    def test_empty_cluster_and_no_slots_are_refused(self) -> None:
        with pytest.raises(LaunchError, match="has no tasks"):
            launch.hostfile(ClusterSpec({"worker": []}))
        with pytest.raises(LaunchError, match="at least 1"):
            launch.hostfile(WORKERS, slots=0)


class TestMegascale:
    SPEC = ClusterSpec({"worker": [f"host-{index}:8470" for index in range(6)]})

    def test_tasks_divide_into_slices_of_one_size(self) -> None:
        assert launch.megascale(self.SPEC, self.SPEC.task("worker", 4), slices=3, port=8081) == {
            "MEGASCALE_COORDINATOR_ADDRESS": "host-0",
            "MEGASCALE_NUM_SLICES": "3",
            "MEGASCALE_SLICE_ID": "2",
            "MEGASCALE_PORT": "8081",
        }
        assert launch.megascale(self.SPEC, self.SPEC.task("worker", 5))["MEGASCALE_NUM_SLICES"] == "1"

    def test_number_of_slices_that_does_not_divide_the_tasks_is_refused(self) -> None:
        for slices in (0, 4):
            with pytest.raises(LaunchError, match=f"6 tasks cannot be divided into {slices} slices"):
                launch.megascale(self.SPEC, self.SPEC.task("worker", 0), slices=slices)


class TestLeaderWorker:
    def test_leader_may_be_a_job_of_its_own(self) -> None:
        assert launch.leader_worker(TWO_JOBS, TWO_JOBS.task("worker", 0)) == {
            "LWS_LEADER_ADDRESS": "10.0.0.1",
            "LWS_GROUP_SIZE": "2",
            "LWS_WORKER_INDEX": "1",
        }

    def test_only_workers_of_ray_have_the_address_of_the_head(self) -> None:
        head, worker = (launch.ray(TWO_JOBS, task) for task in TWO_JOBS.tasks)
        assert "RAY_ADDRESS" not in head
        assert worker["RAY_ADDRESS"] == "10.0.0.1:6379"
