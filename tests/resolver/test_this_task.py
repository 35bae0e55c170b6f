"""`this_task()`: which task of the cluster the calling process is."""

import errno
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

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
from aioresolve.resolver import this_task
from aioresolve.resolver.this_task import Process, TaskClaim, identify_task, local_addresses

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


def test_chief_has_rank_0_and_the_other_jobs_follow_in_the_order_of_the_spec() -> None:
    tasks = ClusterSpec({"worker": ["w0:1", "w1:1"], "chief": ["c:1"], "ps": ["p:1"]}).tasks
    assert [task.job for task in tasks] == ["chief", "worker", "worker", "ps"]
    assert [task.rank for task in tasks] == [0, 1, 2, 3]
    assert {task.num_tasks for task in tasks} == {4}


COMPLETION = TaskClaim(index_variable="JOB_COMPLETION_INDEX")
TWO_NAMESPACES = ClusterState.of({"worker": [pod(1, namespace="a"), pod(1, namespace="b")]})
BOTH = ClusterState.of({"chief": [pod(1)], "worker": [pod(1)]})


def hosts(*addresses: str) -> ClusterState:
    return ClusterState.from_spec(ClusterSpec({"worker": list(addresses)}))


LOCAL = frozenset({"10.0.0.1"})
LWS = {"LWS_LEADER_ADDRESS": "vllm-1.vllm", "LWS_WORKER_INDEX": "1"}
FIRST = TaskClaim("worker", 1, index_source="$LWS_WORKER_INDEX")


def completing(index: str, **more: Any) -> Process:
    return Process(**more, environ={"JOB_COMPLETION_INDEX": index})


@pytest.mark.parametrize(
    ("state", "process", "claim", "task"),
    [
        (FOUR, Process(uid="uid-ml-2"), TaskClaim("worker", 1), "/job:worker/task:1"),
        (FOUR, Process(uid="uid-ml-2"), ANY, "/job:worker/task:2"),
        (TWO_NAMESPACES, Process(name="trainer-1", namespace="b"), ANY, "/job:worker/task:1"),
        (FOUR, Process(hostname="trainer-2", namespace="ml"), ANY, "/job:worker/task:2"),
        (hosts("n70:1", "n7:1"), Process(hostname="n7"), ANY, "/job:worker/task:1"),
        (hosts("n70:1", "n7.cluster.local:1"), Process(hostname="n7"), ANY, "/job:worker/task:1"),
        (FOUR, Process(hostname="x", local_hosts=frozenset({"10.0.0.1"})), ANY, "/job:worker/task:1"),
        (BOTH, Process(uid="uid-ml-1"), TaskClaim("worker"), "/job:worker/task:0"),
        (FOUR, completing("2", uid="uid-ml-2"), COMPLETION, "/job:worker/task:2"),
        (FOUR, Process(uid="uid-ml-0", environ={"PMI_RANK": "1"}), ANY, "/job:worker/task:0"),
        # An address may have no port, and members no uid and no name.
        (hosts("n70", "n7"), Process(uid="u", name="p", hostname="n7"), ANY, "/job:worker/task:1"),
        # The variables of a LeaderWorkerSet may give a name that no member has.
        (hosts("n70:1", "n7:1"), Process(hostname="n7", environ=LWS), ANY, "/job:worker/task:1"),
        # The machine may be unknown, but not another one.
        (FOUR, Process(hostname="x"), FIRST, "/job:worker/task:1"),
        (FOUR, Process(hostname="trainer-1"), FIRST, "/job:worker/task:1"),
        # Neither is an index.
        (FOUR, completing("", uid="uid-ml-2"), COMPLETION, "/job:worker/task:2"),
        (FOUR, completing("-1", uid="uid-ml-2"), COMPLETION, "/job:worker/task:2"),
        # A member without an index agrees with any.
        (hosts("n1:1", "n2:1"), completing("7", hostname="n2"), COMPLETION, "/job:worker/task:1"),
    ],
)
def test_first_evidence_that_matches_one_member_decides(
    state: ClusterState, process: Process, claim: TaskClaim, task: str
) -> None:
    assert str(identify_task(state, process, claim)) == task


@pytest.mark.parametrize(
    ("state", "process", "claim", "problem"),
    [
        # A pod that was replaced has the name of the new one: both would otherwise claim the same task.
        (FOUR, Process(uid="old", name="trainer-1", namespace="ml"), ANY, "'old' of \\$POD_UID: no member"),
        (TWO_NAMESPACES, Process(name="trainer-1"), ANY, "\\$POD_NAME: 2 members"),
        (FOUR, Process(name="old", hostname="trainer-1"), ANY, "'old' of \\$POD_NAME: no member"),
        (FOUR, Process(hostname="trainer-2"), FIRST, "INDEX is 1, .*:1 .* host name 'trainer-2': .*task:2 "),
        (
            hosts(*["10.0.0.1:1"] * 4),
            Process(local_hosts=LOCAL),
            ANY,
            "4 members, .*task:3 at 10.0.0.1:1\\. Set",
        ),
        (hosts(*["10.0.0.1:1"] * 5), Process(local_hosts=LOCAL), ANY, "5 members, .*task:3 at .*, \\.\\.\\."),
        (FOUR, Process(hostname="trainer-2", namespace="x"), ANY, "the host name 'trainer-2': no member"),
        (FOUR, Process(hostname="10"), ANY, "the host name '10': no member"),
        (BOTH, Process(uid="uid-ml-1"), ANY, "could be several"),
        (FOUR, completing("1", uid="uid-ml-2"), COMPLETION, "is '1', but .* index 2"),
        (FOUR, completing("two", uid="uid-ml-2"), COMPLETION, "is 'two', but .* index 2"),
        (FOUR, completing("2"), TaskClaim("worker", 0, "JOB_COMPLETION_INDEX"), "has index 0"),
    ],
)
def test_process_that_no_evidence_identifies_is_an_error(
    state: ClusterState, process: Process, claim: TaskClaim, problem: str
) -> None:
    with pytest.raises(TaskIdentityError, match=problem):
        identify_task(state, process, claim)


def test_error_lists_everything_that_was_tried_and_the_candidates() -> None:
    with pytest.raises(UnknownTaskError, match="which has 3 tasks"):
        identify_task(FOUR, Process(), TaskClaim("worker", 3))
    with pytest.raises(TaskIdentityError) as error:
        identify_task(
            hosts("10.0.0.1:1", "10.0.0.1:2"),
            Process(hostname="laptop", local_hosts=LOCAL, environ={"LWS_LEADER_ADDRESS": "vllm-1.vllm"}),
            ANY,
        )
    both = ("/job:worker/task:0", "/job:worker/task:1")
    assert error.value.tried == (
        "$POD_UID, which is not set: no member",
        "$POD_NAME, which is not set: no member",
        "the host name 'laptop': no member",
        f"the addresses of this machine: 2 members, {both[0]} at 10.0.0.1:1, {both[1]} at 10.0.0.1:2",
    )
    assert "Set `task_type=` and `task_id=`" in str(error.value)
    with pytest.raises(TaskIdentityError) as error:
        identify_task(TWO_NAMESPACES, Process(name="trainer-1"), ANY)
    assert error.value.candidates == both


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

    def process(self, hostname: str, index: int | None, *, local: bool = True) -> Process:
        hosts = frozenset({"10.0.0.1"}) if local else frozenset()
        environ = {} if index is None else {"JOB_COMPLETION_INDEX": str(index)}
        return Process(hostname=hostname, namespace="ml", local_hosts=hosts, environ=environ)

    def test_host_name_is_that_of_the_job_and_the_index(self) -> None:
        for hostname in ("train-1-2", "train-1-2.svc.ml.svc.cluster.local"):
            for process in (self.process(hostname, 2, local=False), self.process(hostname, None)):
                assert identify_task(TRAIN, process, COMPLETION).index == 2

    @pytest.mark.parametrize("index", [None, 1])
    def test_pod_of_a_stateful_set_of_the_same_name_is_no_task(self, index: int | None) -> None:
        with pytest.raises(TaskIdentityError, match="the host name 'train-1-2': no member"):
            identify_task(TRAIN, self.process("train-1-2", index, local=False), COMPLETION)

    def test_completion_index_decides_among_tasks_of_one_address_or_node(self) -> None:
        for index, node in enumerate(NODES):
            assert identify_task(TRAIN, self.process("n1", index), COMPLETION).index == index
            process = self.process(node, index, local=False)
            assert identify_task(BY_NAME, process, COMPLETION).index == index

    def test_equal_indices_of_two_jobs_are_ambiguous(self) -> None:
        with pytest.raises(TaskIdentityError) as error:
            identify_task(TWO_JOBS, self.process("n1", 1), COMPLETION)
        at = "at 10.0.0.1:8470"
        both = f"2 members, /job:ps/task:1 {at} (ml/ps-1-x7k2p), /job:worker/task:1 {at} (ml/worker-1-x7k2p)"
        addresses, node = error.value.tried[-2:]
        assert addresses.startswith("the addresses of this machine: 4 members, ")
        assert addresses.endswith(f"; of these, index 1 of $JOB_COMPLETION_INDEX: {both}")
        assert (node, error.value.candidates) == (f"the node 'n1' and index 1: {both}", ())
        claim = replace(COMPLETION, job="ps")
        assert str(identify_task(TWO_JOBS, self.process("other", 1), claim)) == "/job:ps/task:1"

    def test_process_of_another_job_is_no_task(self) -> None:
        with pytest.raises(TaskIdentityError, match="is not known to be one"):
            identify_task(BY_NAME, self.process("other-1", 1, local=False), COMPLETION)


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

    def test_lack_of_sockets_says_nothing_about_addresses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(socket, "socket", mock.Mock(side_effect=OSError(errno.EMFILE, "too many")))
        with pytest.raises(OSError, match="too many"):
            local_addresses(["127.0.0.1"])

    def test_namespace_is_that_of_the_service_account(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "namespace").write_text("ml\n")
        monkeypatch.setattr("aioresolve._core.service_account.FOLDER", str(tmp_path))
        assert this_task.read_process(FOUR).namespace == "ml"


class TestResolvers:
    async def test_union_is_the_task_of_its_first_resolver_unless_it_is_set(self) -> None:
        first = SimpleClusterResolver(ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1)
        union = UnionClusterResolver(first, SimpleClusterResolver(ClusterSpec({"worker": ["c:1"]})))
        assert (await union.this_task()).address == "b:1"
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
