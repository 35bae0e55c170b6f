"""`SlurmClusterResolver`: steps, jobs, heterogeneous jobs, ranks, jobs of the cluster, and GPUs.

`test_slurm_recordings.py` has the variables of real steps and jobs.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve import (
    ConfigurationError,
    EnvironmentVariableError,
    SlurmClusterResolver,
    Task,
    TaskIdentityError,
)

SetVariables = Callable[..., None]


@pytest.fixture
def set_slurm(monkeypatch: pytest.MonkeyPatch) -> SetVariables:
    """Set variables by their names without `SLURM_`."""

    def set_slurm(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"SLURM_{name}", str(value))

    return set_slurm


def step(nodes: str, tasks_per_node: str, rank: int | None = None) -> dict[str, str]:
    """Return the variables of a task of a step, without `SLURM_`."""
    variables = {"STEP_NODELIST": nodes, "STEP_TASKS_PER_NODE": tasks_per_node}
    return variables if rank is None else {**variables, "PROCID": str(rank)}


async def addresses(**arguments: Any) -> dict[str, Any]:
    return (await SlurmClusterResolver(**arguments).cluster_spec()).as_dict()


class TestStep:
    async def test_tasks_follow_the_node_list_and_ports_count_up(self, set_slurm: SetVariables) -> None:
        set_slurm(**step("n[9-10],m1", "2(x2),1", 2))
        assert await addresses() == {"worker": ["n9:8888", "n9:8889", "n10:8888", "n10:8889", "m1:8888"]}
        assert await SlurmClusterResolver().this_task() == Task("worker", 2, "n10:8888", 2, 5)
        state = await SlurmClusterResolver().cluster_state()
        assert [(each.index, each.node) for each in state.endpoints["worker"]] == list(
            enumerate(["n9", "n9", "n10", "n10", "m1"])
        )
        set_slurm(DISTRIBUTION="plane", DIST_PLANESIZE=2)
        assert (await SlurmClusterResolver().this_task()).address == "n10:8888"

    async def test_master_is_the_address_of_this_task(self, set_slurm: SetVariables) -> None:
        set_slurm(**step("n[1-2]", "1(x2)", 1))
        resolver = SlurmClusterResolver()
        assert await resolver.master() == "grpc://n2:8888"
        assert await resolver.master("worker", 0, "http") == "http://n1:8888"
        resolver.rpc_layer = None
        assert await resolver.master() == "n2:8888"

    async def test_outside_slurm_is_an_error_that_names_srun(self) -> None:
        resolver = SlurmClusterResolver()
        with pytest.raises(EnvironmentVariableError, match=r"NODELIST are not set\. Start .* with `srun`"):
            await resolver.cluster_spec()
        assert repr(resolver) == "<SlurmClusterResolver of jobs ['worker']>"

    async def test_jobs_take_the_ranks_in_the_order_of_their_names(self, set_slurm: SetVariables) -> None:
        set_slurm(**step("n[1-2]", "2(x2)", 3))
        resolver = SlurmClusterResolver({"worker": 3, "ps": 0, "chief": 1})
        assert (await resolver.cluster_spec()).as_dict() == {
            "chief": ["n1:8888"],
            "ps": {},
            "worker": ["n1:8889", "n2:8888", "n2:8889"],
        }
        assert resolver.get_task_info() == ("worker", 2)
        assert (await resolver.this_task()).rank == 3
        assert resolver.known_jobs == ["chief", "ps", "worker"]
        for rank, task in enumerate([("chief", 0), ("worker", 0)]):
            set_slurm(PROCID=rank)
            assert resolver.get_task_info() == task

    async def test_another_number_of_tasks_is_an_error(self, set_slurm: SetVariables) -> None:
        set_slurm(**step("n1", "2", 0))
        with pytest.raises(RuntimeError, match="`jobs=`: the jobs have 5 tasks together, but Slurm starts 2"):
            await addresses(jobs={"ps": 1, "worker": 4})


class TestRanks:
    @given(
        st.lists(st.integers(0, 6), min_size=1, max_size=6).filter(any),
        st.sampled_from(["block", "cyclic", "plane"]),
        st.integers(1, 4),
    )
    def test_every_task_has_one_rank_and_one_port(
        self, counts: list[int], distribution: str, plane: int
    ) -> None:
        environ = {
            "SLURM_STEP_NODELIST": f"n[1-{len(counts)}]",
            "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
            "SLURM_DISTRIBUTION": distribution,
            "SLURM_DIST_PLANESIZE": str(plane),
            "SLURM_PROCID": "0",
        }
        with mock.patch.dict(os.environ, environ):
            found = asyncio.run(addresses(port_base=1000))["worker"]
        assert len(set(found)) == len(found) == sum(counts)
        for number, count in enumerate(counts, 1):
            on_node = [each for each in found if each.startswith(f"n{number}:")]
            assert on_node == [f"n{number}:{1000 + local_id}" for local_id in range(count)]

    async def test_task_that_is_elsewhere_is_an_error_that_names_both_variables(
        self, set_slurm: SetVariables, monkeypatch: Any
    ) -> None:
        set_slurm(**step("n[1-2]", "2(x2)", 1))
        monkeypatch.setenv("SLURMD_NODENAME", "n2")
        with pytest.raises(
            EnvironmentVariableError,
            match=r"\$SLURMD_NODENAME is 'n2', but task 1 \(\$SLURM_PROCID\) is number 1 of the tasks \["
            r"0, 1\] on n1, according to \$SLURM_STEP_NODELIST 'n\[1-2\]'",
        ):
            await addresses()
        set_slurm(DISTRIBUTION="cyclic", LOCALID="0")
        assert (await SlurmClusterResolver().this_task()).address == "n2:8888"
        set_slurm(LOCALID="1")
        with pytest.raises(EnvironmentVariableError, match=r"\$SLURM_LOCALID is '1'"):
            await addresses()
        set_slurm(LOCALID="0", GTIDS="1")
        with pytest.raises(EnvironmentVariableError, match=r"\$SLURM_GTIDS is '1', .* tasks \[1, 3\]"):
            await addresses()

    @pytest.mark.parametrize("distribution", ["block", "fancy"])
    async def test_ranks_of_this_node_decide_if_there_are_two(
        self, distribution: str, set_slurm: SetVariables, monkeypatch: Any
    ) -> None:
        monkeypatch.setenv("SLURMD_NODENAME", "b")
        set_slurm(DISTRIBUTION=distribution, LOCALID=1, GTIDS="0,3", **step("a,b", "2(x2)", 3))
        assert await addresses() == {"worker": ["b:8888", "a:8888", "a:8889", "b:8889"]}

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("c*2\na,b", "ccab"),
            ("c,b\n\n# c\nc a,a", "cbca"),
            ("a\nb\nc*262142", "abcc"),
            ("a\nb\nc*262143", None),
            ("a\nb\nc\n", None),
            ("c*x,b,c,a", None),
        ],
    )
    async def test_host_file_has_the_order_of_an_arbitrary_distribution(
        self, text: str, expected: str | None, set_slurm: SetVariables, tmp_path: Path
    ) -> None:
        file = tmp_path / "hosts"
        file.write_text(text)
        set_slurm(DISTRIBUTION="arbitrary", HOSTFILE=file, **step("a,b,c", "1(x2),2", 2))
        if expected is None:
            with pytest.raises(EnvironmentVariableError, match=r"\$SLURM_HOSTFILE is '.*hosts'"):
                await addresses()
        else:
            assert [address[0] for address in (await addresses())["worker"]] == list(expected)
            file.unlink()
            with pytest.raises(EnvironmentVariableError, match=r"cannot be read: .* No such file"):
                await addresses()


class TestTasksPerNode:
    async def test_number_or_mapping_replaces_the_variable(self, set_slurm: SetVariables) -> None:
        set_slurm(STEP_NODELIST="n[1-3]")
        assert await addresses(tasks_per_node=1) == {"worker": ["n1:8888", "n2:8888", "n3:8888"]}
        assert await addresses(tasks_per_node={"n3": 1, "n1": 2}) == {
            "worker": ["n1:8888", "n1:8889", "n3:8888"]
        }
        with pytest.raises(ConfigurationError, match=r"`tasks_per_node=`: \['n4'\] are not among the nodes"):
            await addresses(tasks_per_node={"n4": 1})
        for too_many in (262_144, {"n1": 10**12}):
            with pytest.raises(EnvironmentVariableError, match="stands for more than 262144 tasks"):
                await addresses(tasks_per_node=too_many)


class TestJob:
    async def test_batch_script_sees_the_tasks_that_srun_would_start(self, set_slurm: SetVariables) -> None:
        set_slurm(JOB_NODELIST="n[1-2]", TASKS_PER_NODE="1(x2)", PROCID=0)
        resolver = SlurmClusterResolver()
        assert (await resolver.cluster_spec()).as_dict() == {"worker": ["n1:8888", "n2:8888"]}
        # It has a rank, but is not a task.
        assert resolver.get_task_info() == (None, None)
        assert await resolver.master() == ""
        with pytest.raises(TaskIdentityError):
            await resolver.this_task()
        resolver.task_type, resolver.task_id = "worker", 1
        assert (await resolver.this_task()).address == "n2:8888"

    async def test_distribution_of_a_job_on_one_node_does_not_matter(self, set_slurm: SetVariables) -> None:
        set_slurm(JOB_NODELIST="n1", TASKS_PER_NODE="2", NTASKS=2, DISTRIBUTION="plane", JOB_CPUS_PER_NODE=8)
        assert await addresses() == {"worker": ["n1:8888", "n1:8889"]}

    @pytest.mark.parametrize(
        ("nodes", "node_name", "host_name", "index"),
        [
            ("n[1-2]", None, "n2", 1),
            ("gpub[073,095]", "gpub073", "gpub073.delta.example", 0),
            ("gpub[073,095]", None, "gpub095.delta.example", 1),
            ("gpub[073,095].delta.example", None, "gpub095", 1),
            ("n[1-2]", "n2", "node-7.example", 1),
            ("n[1-2]", None, "n10.example", None),
            ("n1.a,n1.b", None, "n1", None),
        ],
    )
    async def test_node_identifies_the_task_of_a_job(
        self,
        nodes: str,
        node_name: str | None,
        host_name: str,
        index: int | None,
        set_slurm: SetVariables,
        monkeypatch: Any,
    ) -> None:
        set_slurm(JOB_NODELIST=nodes, TASKS_PER_NODE="8(x2)")
        if node_name is not None:
            monkeypatch.setenv("SLURMD_NODENAME", node_name)
        monkeypatch.setattr("socket.gethostname", lambda: host_name)
        if index is None:
            with pytest.raises(TaskIdentityError, match=r"not a task of `srun`, .* Start the program with"):
                await SlurmClusterResolver().this_task()
        else:
            assert (await SlurmClusterResolver({"ps": 1, "worker": 1}).this_task()).rank == index

    async def test_job_that_was_submitted_inside_a_step_is_no_task_of_that_step(
        self, set_slurm: SetVariables
    ) -> None:
        set_slurm(JOB_NODELIST="n[3-4]", TASKS_PER_NODE="1(x2)", GTIDS=0, **step("n[1-2]", "1(x2)", 0))
        assert await addresses() == {"worker": ["n3:8888", "n4:8888"]}
        assert SlurmClusterResolver().get_task_info() == (None, None)

    async def test_job_inside_a_heterogeneous_job_has_no_components(self, set_slurm: SetVariables) -> None:
        set_slurm(
            HET_SIZE=2, JOB_ID_HET_GROUP_0=1, JOB_NODELIST_HET_GROUP_0="n1", JOB_NODELIST_HET_GROUP_1="n2"
        )
        set_slurm(JOB_ID=3, JOB_NODELIST="n[3-4]", TASKS_PER_NODE="8(x2)", NTASKS_PER_NODE=2)
        assert (await SlurmClusterResolver().cluster_spec()).num_tasks("worker") == 4


class TestHeterogeneous:
    @pytest.mark.parametrize(
        ("cyclic", "rank", "hosts"),
        [(1, 4, "z1 z1 z2 z2 a1 a2 a1 a2 c1 c1 c2 c2"), (2, 0, "z1 z1 z2 z2 a1 a1 a2 a2 c1 c2 c1 c2")],
    )
    async def test_ranks_of_a_step_follow_its_components(
        self, cyclic: int, rank: int, hosts: str, set_slurm: SetVariables
    ) -> None:
        for component, nodes in enumerate(["z[1-2],b1", "a[1-2]", "c[1-2]"]):
            set_slurm(**{f"JOB_NODELIST_PACK_GROUP_{component}": nodes})
        # The distribution of a task is that of its own component, or of the last one.
        set_slurm(PACK_SIZE=3, DISTRIBUTION="cyclic", **{f"DISTRIBUTION_PACK_GROUP_{cyclic}": "cyclic"})
        set_slurm(**step("a[1-2],c[1-2],z[1-2]", "2(x6)", rank))
        assert [address[:2] for address in (await addresses())["worker"]] == hosts.split()
        set_slurm(PACK_SIZE=2, DIST_PLANESIZE=2, **step("a[1-2],z[1-2]", "2(x4)", 0))
        with pytest.raises(EnvironmentVariableError, match=r"\$SLURM_DIST_PLANESIZE_PACK_GROUP_0 is not set"):
            await addresses()
        set_slurm(**step("z[1-2]", "2(x2)", 1))
        assert [address[:2] for address in (await addresses())["worker"]] == ["z1", "z2"] * 2


class TestMalformed:
    @pytest.mark.parametrize(
        ("variables", "problem"),
        [
            (step("n[1-", "1"), "$SLURM_STEP_NODELIST is 'n[1-': an entry is empty, or brackets"),
            (step("n1", "x"), "$SLURM_STEP_TASKS_PER_NODE is 'x': 'x' is not a number such as 2"),
            ({"STEP_NODELIST": "n1"}, "$SLURM_STEP_TASKS_PER_NODE is not set"),
            (step("n[1-3]", "1(x2)"), "which has 2 nodes, but $SLURM_STEP_NODELIST is 'n[1-3]', which has 3"),
            (step("n1,n1", "1(x2)"), "$SLURM_STEP_NODELIST is 'n1,n1', which names a host twice"),
            ({**step("n1", "1", 0), "GTIDS": "0-1"}, "$SLURM_GTIDS is '0-1'"),
            ({"JOB_NODELIST": "n1", "TASKS_PER_NODE": "2", "NTASKS": "3"}, "is '3', but $SLURM_TASKS_PER"),
            ({**step("n1", "2"), "STEP_NUM_TASKS": "3"}, "$SLURM_STEP_NUM_TASKS is '3', but the step has 2"),
            ({**step("n1", "2"), "PROCID": "-1"}, "$SLURM_PROCID is '-1', not an integer from 0"),
            ({**step("n1", "2"), "PROCID": "2"}, "$SLURM_PROCID is '2', but the step has 2 tasks"),
            ({"HET_SIZE": "129"}, "$SLURM_HET_SIZE is '129', not an integer from 0 to 128"),
            ({"HET_SIZE": "128"}, "$SLURM_JOB_NODELIST_HET_GROUP_0 is not set"),
            (
                {
                    "HET_SIZE": "2", "JOB_NODELIST_HET_GROUP_0": "c1", "JOB_NODELIST_HET_GROUP_1": "c2",
                    **step("c[1-3]", "1(x3)", 1),
                },
                "$SLURM_STEP_NODELIST is 'c[1-3]', but no component of the job has 'c3' ($SLURM_JOB_NODELIST",
            ),
            *(
                ({**step("a,b,c", counts), "DISTRIBUTION": name}, f"$SLURM_DISTRIBUTION is '{name}', which")
                for name, counts in (("arbitrary", "1(x3)"), ("plane", "3,1,2"), ("fancy", "3,1,2"))
            ),
        ],
    )  # fmt: skip
    async def test_each_variable_is_named_with_its_problem(
        self, variables: dict[str, str], problem: str, set_slurm: SetVariables
    ) -> None:
        set_slurm(**variables)
        with pytest.raises(EnvironmentVariableError) as error:
            await addresses()
        assert problem in error.value.summary
        assert error.value.variable is not None
        assert f"${error.value.variable}" in error.value.summary
        assert error.value.hint is not None

    async def test_ports_beyond_the_last_one_are_an_error(self, set_slurm: SetVariables) -> None:
        set_slurm(**step("n1", "3"))
        with pytest.raises(ConfigurationError, match="`port_base=`: port 65536 of host 'n1' is not in"):
            await addresses(port_base=65534)
        assert (await addresses(port_base=65533))["worker"][-1] == "n1:65535"

    def test_invalid_argument_is_an_error(self) -> None:
        arguments: Any
        for arguments, problem in (
            ({"jobs": {}}, "such as {'worker': 4}"),
            ({"jobs": ["worker"]}, "such as {'worker': 4}"),
            ({"jobs": {"worker": -1}}, "not an integer from 0"),
            ({"jobs": {"worker": "2"}}, "not an integer from 0"),
            ({"tasks_per_node": "2"}, "not an integer from 0"),
            ({"tasks_per_node": {"n1": None}}, "such as {'n1': 4}"),
            ({"port_base": 0}, "not an integer of at least 1"),
            ({"gpus_per_task": True}, "not an integer from 0"),
        ):
            with pytest.raises(ConfigurationError, match=f"`{next(iter(arguments))}=`: .* {problem}"):
                SlurmClusterResolver(**arguments)


class TestGPUs:
    async def gpus(self, **arguments: Any) -> int:
        return (await SlurmClusterResolver(**arguments).num_accelerators())["GPU"]

    async def devices(self, **arguments: Any) -> str | None:
        """Return the devices of this process after a call."""
        await SlurmClusterResolver(**arguments).cluster_spec()
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    async def test_no_visible_device_means_no_gpu(self, set_slurm: SetVariables, monkeypatch: Any) -> None:
        set_slurm(**step("n1", "1", 0))
        assert await self.gpus() == 0
        for value in ("", "NoDevFiles", "-1"):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
            assert await self.gpus() == 0
        for request_of_job in ("GPUS_ON_NODE", "GPUS_PER_NODE", "GPUS_PER_TASK"):
            set_slurm(**{request_of_job: 2})
            assert await self.gpus() == 0
        assert await self.devices() == "-1"

    async def test_malformed_number_is_an_error(self, set_slurm: SetVariables) -> None:
        set_slurm(**step("n1", "2", 1))
        for value in ("many", "a100:", "1025"):
            set_slurm(GPUS_PER_NODE=value)
            with pytest.raises(
                EnvironmentVariableError, match=r"\$SLURM_GPUS_PER_NODE is .*, not a number of"
            ):
                await self.gpus()
        set_slurm(GPUS_PER_NODE="1024")
        assert await self.gpus() == 512

    @pytest.mark.parametrize(
        "variables",
        [
            {"GPUS_ON_NODE": "4"},
            {"GPUS_PER_NODE": "a100:1,gpu:v100:3"},
            {"STEP_GPUS": "0,1,2,3"},
            {"GPUS_ON_NODE": "4", "GPUS_PER_NODE": "8"},
        ],
    )
    async def test_gpus_of_the_node_are_divided_among_its_tasks(
        self, variables: dict[str, str], set_slurm: SetVariables
    ) -> None:
        set_slurm(**step("n1", "2", 0), **variables)
        assert await self.gpus() == 2
        assert await self.devices(auto_set_gpu=False) is None
        assert await self.devices() == "0,1"

    async def test_result_does_not_change_after_the_devices_were_set(
        self, set_slurm: SetVariables, monkeypatch: Any
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-a,GPU-b")
        set_slurm(**step("n1", "2", 1))
        for _ in range(3):
            assert await self.devices() == "GPU-a,GPU-b"
            assert await self.gpus() == 2
        # Those that the program sets later count.
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "8,9")
        assert await self.devices() == "9"

    async def test_task_with_fewer_visible_devices_than_its_node_keeps_them(
        self, set_slurm: SetVariables, monkeypatch: Any
    ) -> None:
        for visible, local_id in (("2,3", 2), ("1", 1), ("NoDevFiles", 0)):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            for gpus in (4, 8):
                set_slurm(**step("n1", "4", local_id), GPUS_ON_NODE=gpus)
                assert await self.devices() == visible

    async def test_devices_that_are_bound_to_a_task_or_too_few_for_its_node_are_kept(
        self, set_slurm: SetVariables, monkeypatch: Any
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
        set_slurm(**step("n1", "2", 1), GPUS_PER_TASK=2)
        assert await self.devices() == "2,3"
        monkeypatch.setenv("SLURMD_TRES_BIND", "gres/gpu:single:1")
        assert await self.devices(gpus_per_node=2) == "2,3"

    async def test_gpus_of_the_driver_count_if_nothing_else_says(
        self, set_slurm: SetVariables, monkeypatch: Any, tmp_path: Path
    ) -> None:
        for name in ("0000:01:00.0", "0000:02:00.0"):
            (tmp_path / name).mkdir()
        monkeypatch.setattr("aioresolve.environment.slurm.DRIVER_FOLDER", tmp_path)
        set_slurm(**step("n1", "2", 1))
        assert await self.devices() == "1"

    async def test_arguments_decide(self, set_slurm: SetVariables, monkeypatch: Any) -> None:
        set_slurm(**step("n1", "2", 1), GPUS_ON_NODE=8, GPUS_PER_TASK=4)
        assert await self.gpus() == 4
        assert await self.gpus(gpus_per_node=4) == 2
        assert await self.gpus(gpus_per_task=4) == 4
        with pytest.raises(RuntimeError, match="2 tasks with 5 GPUs each share a node, which has only 8"):
            await self.gpus(gpus_per_task=5)
        assert await self.devices(gpus_per_node=4, gpus_per_task=1) == "1"
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert await self.devices(gpus_per_node=4) == "2,3"

    async def test_step_without_tasks_uses_no_gpu(self, set_slurm: SetVariables) -> None:
        set_slurm(STEP_NODELIST="n1", GPUS_ON_NODE=4)
        assert await addresses(tasks_per_node=0, port_base=65535) == {"worker": {}}
        for gpus_per_node in (None, 4):
            assert await self.gpus(tasks_per_node=0, gpus_per_node=gpus_per_node) == 0
