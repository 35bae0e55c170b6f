"""`this_task()`: which task of the cluster the calling process is."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve import (
    ClusterSpec,
    ClusterState,
    Endpoint,
    SimpleClusterResolver,
    TaskIdentityError,
    TPUClusterResolver,
    UnionClusterResolver,
    UnknownTaskError,
)
from aioresolve._core import service_account
from aioresolve.resolver import this_task
from aioresolve.resolver.this_task import Process, TaskClaim, identify_task, local_addresses

if TYPE_CHECKING:
    from pathlib import Path

ANY = TaskClaim()


def pod(number: int, *, namespace: str = "ml", address: str | None = None) -> Endpoint:
    return Endpoint(
        address or f"10.0.0.{number}:8470",
        name=f"trainer-{number}",
        uid=f"uid-{namespace}-{number}",
        namespace=namespace,
        index=number,
    )


FOUR = ClusterState.of({"ps": [pod(9)], "worker": [pod(0), pod(1), pod(2)]})


class TestRanks:
    def test_chief_has_rank_0_and_the_other_jobs_follow_in_the_order_of_the_spec(self) -> None:
        spec = ClusterSpec({"worker": ["w0:1", "w1:1"], "chief": ["c:1"], "ps": ["p:1"]})
        assert [str(task) for task in spec.tasks] == [
            "/job:chief/task:0",
            "/job:worker/task:0",
            "/job:worker/task:1",
            "/job:ps/task:0",
        ]
        assert [task.rank for task in spec.tasks] == [0, 1, 2, 3]
        assert {task.num_tasks for task in spec.tasks} == {4}

    @given(
        st.dictionaries(
            st.sampled_from(["worker", "chief", "ps", "master", "evaluator"]),
            st.dictionaries(st.integers(0, 20), st.just("host:1"), max_size=5),
        )
    )
    def test_tasks_and_task_agree(self, jobs: dict[str, dict[int, str]]) -> None:
        spec = ClusterSpec(jobs)
        assert tuple(spec.task(task.job, task.index) for task in spec.tasks) == spec.tasks
        assert [task.rank for task in spec.tasks] == list(range(len(spec.tasks)))
        assert ClusterState.from_spec(spec).tasks == spec.tasks


class TestEvidence:
    def test_claimed_job_and_index_decide(self) -> None:
        process = Process(uid="uid-ml-2")
        assert identify_task(FOUR, process, TaskClaim("worker", 1)) == FOUR.task("worker", 1)

    def test_claim_of_a_task_that_does_not_exist_names_those_that_do(self) -> None:
        with pytest.raises(UnknownTaskError, match="tasks 0 to 2"):
            identify_task(FOUR, Process(), TaskClaim("worker", 3))

    def test_uid_decides(self) -> None:
        assert identify_task(FOUR, Process(uid="uid-ml-2"), ANY) == FOUR.task("worker", 2)

    def test_uid_of_no_member_is_an_error_even_if_the_name_matches(self) -> None:
        # A pod that was replaced has the name of the new one: both would otherwise claim the same task.
        with pytest.raises(TaskIdentityError, match="the uid 'old' of \\$POD_UID: no member") as error:
            identify_task(FOUR, Process(uid="old", name="trainer-1", namespace="ml"), ANY)
        assert error.value.candidates == ()

    def test_name_decides_within_its_namespace(self) -> None:
        state = ClusterState.of({"worker": [pod(1, namespace="a"), pod(1, namespace="b")]})
        process = Process(name="trainer-1", namespace="b")
        assert identify_task(state, process, ANY).index == 1

    def test_name_without_a_namespace_that_several_members_have_is_an_error(self) -> None:
        state = ClusterState.of({"worker": [pod(1, namespace="a"), pod(1, namespace="b")]})
        with pytest.raises(TaskIdentityError, match="\\$POD_NAME: 2 members") as error:
            identify_task(state, Process(name="trainer-1"), ANY)
        assert error.value.candidates == ("/job:worker/task:0", "/job:worker/task:1")

    def test_host_name_is_the_name_of_the_pod(self) -> None:
        process = Process(hostname="trainer-2", namespace="ml")
        assert identify_task(FOUR, process, ANY) == FOUR.task("worker", 2)

    def test_host_name_of_a_pod_in_another_namespace_does_not_match(self) -> None:
        with pytest.raises(TaskIdentityError, match="the host name 'trainer-2': no member"):
            identify_task(FOUR, Process(hostname="trainer-2", namespace="other"), ANY)

    def test_host_name_is_the_first_label_of_the_address(self) -> None:
        for address in ("n7:1", "n7.cluster.local:1"):
            state = ClusterState.from_spec(ClusterSpec({"worker": ["n70:1", address]}))
            assert identify_task(state, Process(hostname="n7"), ANY).index == 1

    def test_host_name_is_no_part_of_an_ip_address(self) -> None:
        with pytest.raises(TaskIdentityError, match="the host name '10': no member"):
            identify_task(FOUR, Process(hostname="10"), ANY)

    def test_address_of_this_machine_decides(self) -> None:
        process = Process(hostname="other", local_hosts=frozenset({"10.0.0.1"}))
        assert identify_task(FOUR, process, ANY) == FOUR.task("worker", 1)

    def test_two_tasks_at_an_address_of_this_machine_are_ambiguous(self) -> None:
        state = ClusterState.from_spec(ClusterSpec({"worker": ["10.0.0.1:1", "10.0.0.1:2"]}))
        with pytest.raises(TaskIdentityError, match="this machine: 2 members") as error:
            identify_task(state, Process(local_hosts=frozenset({"10.0.0.1"})), ANY)
        assert "Set `task_type=` and `task_id=`" in str(error.value)

    def test_claimed_job_limits_the_search(self) -> None:
        both = ClusterState.of({"chief": [pod(1)], "worker": [pod(1)]})
        assert identify_task(both, Process(uid="uid-ml-1"), TaskClaim("worker")) == both.task("worker", 0)
        with pytest.raises(TaskIdentityError, match="could be several"):
            identify_task(both, Process(uid="uid-ml-1"), ANY)

    def test_error_lists_everything_that_was_tried(self) -> None:
        with pytest.raises(TaskIdentityError) as error:
            identify_task(FOUR, Process(hostname="laptop"), ANY)
        assert error.value.tried == (
            "$POD_UID, which is not set: no member",
            "$POD_NAME, which is not set: no member",
            "the host name 'laptop': no member",
            "the addresses of this machine: no member",
        )


class TestContradictions:
    CLAIM = TaskClaim(index_variable="JOB_COMPLETION_INDEX")

    def test_index_that_agrees_is_accepted(self) -> None:
        process = Process(uid="uid-ml-2", environ={"JOB_COMPLETION_INDEX": "2"})
        assert identify_task(FOUR, process, self.CLAIM).index == 2

    @pytest.mark.parametrize("value", ["1", "two"])
    def test_index_that_differs_is_an_error(self, value: str) -> None:
        process = Process(uid="uid-ml-2", environ={"JOB_COMPLETION_INDEX": value})
        with pytest.raises(TaskIdentityError, match=rf"\$JOB_COMPLETION_INDEX is '{value}', but .* index 2"):
            identify_task(FOUR, process, self.CLAIM)

    def test_claimed_task_with_another_index_is_an_error(self) -> None:
        process = Process(environ={"JOB_COMPLETION_INDEX": "2"})
        with pytest.raises(TaskIdentityError, match="has index 0"):
            identify_task(FOUR, process, TaskClaim("worker", 0, "JOB_COMPLETION_INDEX"))

    @pytest.mark.parametrize("value", ["", "-1"])
    def test_variable_without_an_index_is_ignored(self, value: str) -> None:
        process = Process(uid="uid-ml-2", environ={"TPU_WORKER_ID": value})
        assert identify_task(FOUR, process, TaskClaim(index_variable="TPU_WORKER_ID")).index == 2

    def test_member_without_an_index_agrees_with_any(self) -> None:
        state = ClusterState.from_spec(ClusterSpec({"worker": ["n1:1", "n2:1"]}))
        process = Process(hostname="n2", environ={"JOB_COMPLETION_INDEX": "7"})
        assert identify_task(state, process, self.CLAIM).index == 1


def completion(job: str, index: int, *, node: str, ip: str = "10.0.0.1", port: int = 8470) -> Endpoint:
    name = f"{job}-{index}-x7k2p"
    return Endpoint(f"{ip}:{port}", name=name, uid=name, namespace="ml", node=node, index=index)


NODES = ("n1", "n1", "n2", "n2")
TRAIN = ClusterState.of({"worker": [completion("train-1", i, node=n) for i, n in enumerate(NODES)]})
TWO_JOBS = ClusterState.of(
    {job: [completion(job, i, node=n) for i, n in enumerate(NODES[:2])] for job in ("ps", "worker")}
)
BY_NAME = ClusterState.of(
    {"worker": [completion("train-1", i, node=n, ip=f"train-1-{i}.svc") for i, n in enumerate(NODES)]}
)


class TestIndexedJobs:
    """Without `$POD_UID` and `$POD_NAME`. With `hostNetwork`, a pod has the name and address of its node."""

    CLAIM = TaskClaim(index_variable="JOB_COMPLETION_INDEX")

    def process(self, hostname: str, index: int | None, *, local: bool = True) -> Process:
        hosts = frozenset({"10.0.0.1"}) if local else frozenset()
        environ = {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
        return Process(hostname=hostname, namespace="ml", local_hosts=hosts, environ=environ)

    def test_host_name_is_that_of_the_job_and_the_index(self) -> None:
        for hostname in ("train-1-2", "train-1-2.svc.ml.svc.cluster.local"):
            for process in (self.process(hostname, 2, local=False), self.process(hostname, None)):
                assert identify_task(TRAIN, process, self.CLAIM).index == 2

    @pytest.mark.parametrize("index", [None, 1])
    def test_pod_of_a_stateful_set_of_the_same_name_is_no_task(self, index: int | None) -> None:
        with pytest.raises(TaskIdentityError, match="the host name 'train-1-2': no member"):
            identify_task(TRAIN, self.process("train-1-2", index, local=False), self.CLAIM)

    def test_completion_index_decides_among_tasks_of_one_address_or_node(self) -> None:
        for index, node in enumerate(NODES):
            assert identify_task(TRAIN, self.process("n1", index), self.CLAIM).index == index
            process = self.process(node, index, local=False)
            assert identify_task(BY_NAME, process, self.CLAIM).index == index

    def test_equal_indices_of_two_jobs_are_ambiguous(self) -> None:
        with pytest.raises(TaskIdentityError) as error:
            identify_task(TWO_JOBS, self.process("n1", 1), self.CLAIM)
        at = "at 10.0.0.1:8470"
        both = f"2 members, /job:ps/task:1 {at} (ml/ps-1-x7k2p), /job:worker/task:1 {at} (ml/worker-1-x7k2p)"
        addresses, node = error.value.tried[-2:]
        assert addresses.startswith("the addresses of this machine: 4 members, ")
        assert addresses.endswith(f"; of these, index 1 of $JOB_COMPLETION_INDEX: {both}")
        assert node == f"the node 'n1' and index 1: {both}"
        claim = TaskClaim("ps", index_variable="JOB_COMPLETION_INDEX")
        assert str(identify_task(TWO_JOBS, self.process("n1", 1), claim)) == "/job:ps/task:1"

    def test_process_of_another_job_is_no_task(self) -> None:
        with pytest.raises(TaskIdentityError, match="is not known to be one"):
            identify_task(BY_NAME, self.process("other-1", 1, local=False), self.CLAIM)


def test_pod_of_a_leader_worker_set_is_named_by_its_leader_and_its_index() -> None:
    names = ("vllm-1", "vllm-1-1", "vllm-1-2")
    state = ClusterState.of({"worker": [Endpoint("10.0.0.1:1", name=n, namespace="ml") for n in names]})
    for index in range(3):
        environ = {"LWS_LEADER_ADDRESS": "vllm-1.vllm.ml", "LWS_WORKER_INDEX": str(index)}
        process = Process(hostname="n1", local_hosts=frozenset({"10.0.0.1"}), environ=environ)
        assert identify_task(state, process, ANY).index == index


class TestThisMachine:
    def test_loopback_addresses_are_local_and_others_are_not(self) -> None:
        hosts = ["127.0.0.1", "198.51.100.7", "host.invalid", "", "not an address"]
        assert local_addresses(hosts) == {"127.0.0.1"}

    def test_nothing_is_concluded_if_any_address_can_be_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(this_task, "UNASSIGNED", "127.0.0.2")
        assert local_addresses(["127.0.0.1"]) == frozenset()

    def test_namespace_is_that_of_the_service_account(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "namespace").write_text("ml\n")
        monkeypatch.setattr(service_account, "FOLDER", str(tmp_path))
        monkeypatch.delenv("POD_NAMESPACE", raising=False)
        assert this_task.read_process(FOUR).namespace == "ml"


class TestResolvers:
    async def test_union_is_the_task_of_its_first_resolver(self) -> None:
        first = SimpleClusterResolver(ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1)
        union = UnionClusterResolver(first, SimpleClusterResolver(ClusterSpec({"worker": ["c:1"]})))
        assert (await union.this_task()).address == "b:1"

    async def test_override_of_a_union_takes_precedence(self) -> None:
        first = SimpleClusterResolver(ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1)
        assert (await UnionClusterResolver(first, task_id=0).this_task()).address == "a:1"

    async def test_default_task_id_of_a_tpu_resolver_does_not_identify_a_worker(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(socket, "gethostname", lambda: "unrelated")
        resolver = TPUClusterResolver("grpc://198.51.100.1,grpc://198.51.100.2")
        with pytest.raises(TaskIdentityError):
            await resolver.this_task()
        resolver.task_id = 1
        assert (await resolver.this_task()).address == "198.51.100.2:8470"

    async def test_tpu_pod_is_the_worker_of_its_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t-0,t-1")
        monkeypatch.setenv("TPU_WORKER_ID", "1")
        assert (await TPUClusterResolver().this_task()).address == "t-1:8470"
