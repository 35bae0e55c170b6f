"""The values ClusterSpec, Endpoint, ClusterState and ClusterDiff."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError, InvalidClusterError, ResolveError, UnknownTaskError
from aioresolve.fleet import Health, TargetStatus
from aioresolve.spec import (
    ClusterDiff,
    ClusterSpec,
    ClusterState,
    DoneTask,
    Endpoint,
    ExpectedTasks,
    Member,
    Move,
    Observation,
    host_port,
)
from aioresolve.spec.cluster_pb2 import ClusterDef

# The ClusterDef of {"worker": ["a:1", "b:2"], "ps": {3: "c:4"}}, serialized by TensorFlow 2.21.
TENSORFLOW_BYTES = (
    b"\x0a\x0d\x0a\x02ps\x12\x07\x08\x03\x12\x03c:4"
    b"\x0a\x1a\x0a\x06worker\x12\x07\x08\x01\x12\x03b:2\x12\x07\x08\x00\x12\x03a:1"
)
TRAINING = ClusterSpec({"worker": ["a:1", "b:2"], "ps": {3: "c:4"}})

INT32 = st.integers(-(2**31), 2**31 - 1)
CLUSTERS = st.dictionaries(
    st.text(), st.lists(st.text()) | st.lists(st.text()).map(tuple) | st.dictionaries(INT32, st.text())
)
SPECS = CLUSTERS.map(ClusterSpec)


def serialize(spec: ClusterSpec) -> bytes:
    return spec.as_cluster_def().SerializeToString(deterministic=True)


def errors_of(create: Callable[[Any], object], value: Any) -> str:
    """Return the text of the error with which a constructor rejects a value."""
    with pytest.raises(InvalidClusterError) as caught:
        create(value)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ResolveError)
    return str(caught.value)


class TestClusterSpecConstructor:
    def test_mappings_keep_their_task_indices_and_lists_number_theirs_from_zero(self) -> None:
        spec = ClusterSpec(MappingProxyType({"worker": ("a:1", "b:2"), "ps": MappingProxyType({7: "c:3"})}))
        assert spec == {"worker": {0: "a:1", 1: "b:2"}, "ps": {7: "c:3"}}
        assert spec.jobs == ["worker", "ps"]

    def test_invalid_cluster_is_rejected_with_its_location(self) -> None:
        for cluster, words in (
            (None, "got NoneType"),
            (["a:1"], "got list"),
            (ClusterDef().job.add(name="worker"), "got JobDef"),
            (TENSORFLOW_BYTES[:-1], f"{len(TENSORFLOW_BYTES) - 1} bytes that are not a ClusterDef"),
            ({"worker": "a:1"}, "job 'worker': the tasks must be a list"),
            ({"worker": None}, "got NoneType None"),
            ({"worker": {"a:1"}}, "got set"),
            ({"worker": ["a:1", None]}, "address of task 1 in job 'worker': expected a str, got NoneType"),
            ({"worker": {4: 8470}}, "address of task 4 in job 'worker': expected a str, got int 8470"),
            ({"worker": ["\ud800"]}, "not valid Unicode"),
            ({"worker": [b"a:1"]}, "address of task 0 in job 'worker': expected a str, got bytes"),
            ({3: ["a:1"]}, "job name: expected a str, got int 3"),
            ({"worker": {"first": "a:1"}}, "job 'worker': the task index 'first' is not an integer"),
            ({"worker": {float("inf"): "a:1"}}, "the task index inf is not an integer"),
            ({"worker": {2**31: "a:1"}}, "the task index 2147483648 does not fit in 32 bits"),
            ({"worker": {-(2**31) - 1: "a:1"}}, "does not fit in 32 bits"),
        ):
            assert words in errors_of(ClusterSpec, cluster)

    def test_copy_made_by_the_constructor_has_its_jobs_sorted_by_name(self) -> None:
        assert ClusterSpec(TRAINING) == TRAINING
        assert ClusterSpec(TRAINING).jobs == ["ps", "worker"]

    def test_spec_does_not_change_with_the_value_that_it_was_created_from(self) -> None:
        addresses, message = ["a:1"], ClusterDef()
        message.job.add(name="worker").tasks[0] = "a:1"
        spec, from_message = ClusterSpec({"worker": addresses}), ClusterSpec(message)
        addresses.append("b:2")
        message.job[0].tasks[1] = "b:2"
        assert spec.num_tasks("worker") == from_message.num_tasks("worker") == 1
        assert len(from_message.as_cluster_def().job[0].tasks) == 1


class TestClusterDefMessage:
    def test_bytes_from_tensorflow_are_parsed_and_serialized_again(self) -> None:
        spec = ClusterSpec(TENSORFLOW_BYTES)
        assert spec == TRAINING
        assert spec.as_cluster_def() == TRAINING.as_cluster_def() == ClusterDef.FromString(TENSORFLOW_BYTES)

    @given(SPECS)
    def test_spec_created_from_its_own_message_or_bytes_is_equal(self, spec: ClusterSpec) -> None:
        assert ClusterSpec(spec.as_cluster_def()) == spec
        assert ClusterSpec(serialize(spec)) == spec
        assert serialize(ClusterSpec(serialize(spec))) == serialize(spec)

    @given(st.binary())
    def test_random_bytes_are_a_cluster_or_raise_an_error(self, message: bytes) -> None:
        try:
            spec = ClusterSpec(message)
        except InvalidClusterError:
            return
        assert ClusterSpec(serialize(spec)) == spec


class TestClusterSpecMembers:
    def test_dense_job_is_a_list_and_any_other_job_a_dict(self) -> None:
        spec = ClusterSpec({"worker": {1: "b:2", 0: "a:1"}, "ps": {3: "c:4"}, "chief": []})
        assert spec.as_dict() == {"worker": ["a:1", "b:2"], "ps": {3: "c:4"}, "chief": {}}
        assert spec.job_tasks("ps") == [None, None, None, "c:4"]
        assert (spec.job_tasks("chief"), spec.num_tasks("chief")) == ([], 0)
        assert ClusterSpec({"worker": {-1: "z:9", 1: "b:2"}}).job_tasks("worker") == [None, "b:2"]

    def test_spec_is_true_if_it_has_jobs(self) -> None:
        assert ClusterSpec({"ps": []})
        assert not ClusterSpec({})
        assert ClusterSpec({"ps": []}).__nonzero__()

    def test_unknown_job_or_task_is_named_together_with_the_known_ones(self) -> None:
        for member in ("num_tasks", "task_indices", "job_tasks"):
            with pytest.raises(UnknownTaskError, match=r"no job 'chief' in .*: its jobs are 'worker', 'ps'"):
                getattr(TRAINING, member)("chief")
            with pytest.raises(ValueError, match="it has no jobs"):
                getattr(ClusterSpec({}), member)("chief")
        tasks: Any
        for tasks, words in (
            ([], "which has 0 tasks: []"),
            ({2 * i: "a" for i in range(20)}, "which has 20 tasks: [0, 2, 4, 6, 8, 10, ...]"),
        ):
            with pytest.raises(UnknownTaskError) as unknown:
                ClusterSpec({"worker": tasks}).task("worker", 7)
            assert str(unknown.value) == f"no task 7 in job 'worker', {words}"

    def test_changing_returned_values_does_not_change_the_spec(self) -> None:
        spec = ClusterSpec({"worker": ["a:1"], "ps": {3: "c:4"}})
        spec.jobs.append("chief")
        spec.task_indices("worker").append(7)
        spec.job_tasks("worker").append("b:2")
        for tasks in spec.as_dict().values():
            tasks.clear()
        assert spec == {"worker": {0: "a:1"}, "ps": {3: "c:4"}}

    @given(SPECS)
    def test_members_agree_with_each_other(self, spec: ClusterSpec) -> None:
        assert list(spec.as_dict()) == spec.jobs
        assert spec.tasks == tuple(spec.task(task.job, task.index) for task in spec.tasks)
        assert len(spec.tasks) == sum(spec.num_tasks(job) for job in spec.jobs)
        for job, tasks in spec.as_dict().items():
            indices = spec.task_indices(job)
            assert indices == sorted(indices)
            addresses = [spec.task_address(job, index) for index in indices]
            assert list(tasks if isinstance(tasks, list) else tasks.values()) == addresses


class TestClusterSpecAsValue:
    @given(CLUSTERS)
    def test_equal_specs_have_equal_hashes_for_any_order_of_jobs(self, cluster: Any) -> None:
        spec, reversed_ = ClusterSpec(cluster), ClusterSpec(dict(reversed(cluster.items())))
        assert spec == reversed_
        assert not spec != reversed_  # noqa: SIM202
        assert hash(spec) == hash(reversed_)

    def test_mapping_is_equal_only_in_its_sparse_form(self) -> None:
        spec = ClusterSpec({"worker": ["a:1"]})
        assert spec == {"worker": {0: "a:1"}}
        assert {"worker": {0: "a:1"}} == spec  # noqa: SIM300
        assert spec != {"worker": ["a:1"]}
        assert spec != "worker"

    @given(SPECS)
    def test_pickling_and_copying_return_an_equal_spec(self, spec: ClusterSpec) -> None:
        pickled = (
            pickle.loads(pickle.dumps(spec, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
        )
        for again in (*pickled, copy.copy(spec), copy.deepcopy(spec)):
            assert again == spec
            assert again.jobs == spec.jobs
            assert serialize(again) == serialize(spec)

    def test_spec_is_immutable(self) -> None:
        with pytest.raises(AttributeError, match="ClusterSpec is immutable: cannot set"):
            TRAINING.jobs = []  # type: ignore[misc]
        with pytest.raises(AttributeError, match="ClusterSpec is immutable: cannot delete"):
            del TRAINING._tasks  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(AttributeError):
            TRAINING.extra = 1

    @given(SPECS)
    def test_repr_is_the_call_that_creates_the_spec(self, spec: ClusterSpec) -> None:
        text = repr(spec)
        if text.startswith("<"):  # longer than a line
            assert f"<ClusterSpec of {len(spec.tasks)} task" in text
        else:
            assert eval(text, {"ClusterSpec": ClusterSpec}) == spec


def test_only_ipv6_addresses_are_put_in_brackets() -> None:
    for host in ("10.0.0.7", "trainer-0.trainer.default.svc", "gpu_node-1.Example.", "007", f"{'a' * 63}.b"):
        assert host_port(host, 8470) == f"{host}:8470"
    for host in ("fd00::7", "fe80::1%eth0", "::ffff:10.0.0.7", "::"):
        assert host_port(host, 8470) == host_port(f"[{host}]", 8470) == f"[{host}]:8470"


@pytest.mark.parametrize(
    "host",
    [
        *("", "[]", "10.0.0.7:8470", "[fd00::7]:8470", "[fd00::7", "host]", "[host]", "g::1", "1::2::3"),
        *("n1\n", "n1 n2", "n1\x1b[2J", "n1\0", "n1,n2", "n1/x", "u@n1", "n1=1", "n1;x"),
        *("-oProxyCommand=x", "n1-", ".n1", "n1..n2", "wörker", "n1\ud800", "n\u0661"),
        *("256.0.0.1", "1.2.3", "01.2.3.4", "fe80::1%", "fe80::1%eth 0", "a" * 64, ".".join(["a" * 60] * 5)),
    ],
)
def test_invalid_host_or_port_raises_an_error(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a host name or IP address"):
        host_port(host, 65535)
    for port in (-1, 65536):
        with pytest.raises(ConfigurationError, match=f"port {port} of host .* is not in 0 to 65535"):
            host_port(host, port)


NAMES = st.none() | st.sampled_from(["", "trainer-0", "trainer-1", "trainer-2"])
ENDPOINTS = st.builds(
    Endpoint,
    st.sampled_from(["a:1", "b:2", "c:3"]),
    name=NAMES,
    uid=st.none() | st.sampled_from(["", "u0", "u1", "u2"]),
    namespace=st.none() | st.sampled_from(["", "default", "other"]),
    node=NAMES,
    ready=st.none() | st.booleans(),
    index=st.none(),
)
STATES = st.dictionaries(
    st.sampled_from(["worker", "ps", "chief"]),
    st.lists(ENDPOINTS, max_size=4) | st.dictionaries(st.integers(-1, 3), ENDPOINTS),
).map(ClusterState.of)


def with_other_node(state: ClusterState, *, ready: bool, node: str) -> ClusterState:
    """Return a state with the same members, but another readiness and another node."""
    tasks = {
        job: {
            index: Endpoint(e.address, name=e.name, uid=e.uid, namespace=e.namespace, node=node, ready=ready)
            for index, e in zip(state.spec.task_indices(job), endpoints, strict=True)
        }
        for job, endpoints in state.endpoints.items()
    }
    return ClusterState.of(tasks)


def test_identity_is_the_uid_or_else_the_name_or_else_the_address() -> None:
    assert Endpoint("a:1", uid="u1", name="trainer-0").identity == ("uid", "u1")
    assert Endpoint("a:1", uid="u1", restarts=1).identity == ("uid", "u1, restart 1")
    assert Endpoint("a:1", namespace="default", name="trainer-0").identity == ("name", "default/trainer-0")
    assert Endpoint("a:1", name="tpu-0").identity == ("name", "tpu-0")
    assert Endpoint("a:1", namespace="default").identity == ("address", "a:1")


class TestClusterState:
    def test_list_is_dense_for_any_index_of_its_endpoints(self) -> None:
        state = ClusterState.of({"worker": [Endpoint("a:1", index=5), Endpoint("b:2")], "ps": []})
        assert state.spec == ClusterSpec({"worker": ["a:1", "b:2"], "ps": []})
        assert state == ClusterState.of({"worker": [Endpoint("a:1", index=5), Endpoint("b:2")]})

    def test_members_are_in_the_order_of_jobs_and_task_indices(self) -> None:
        state = ClusterState.of({"worker": [Endpoint("a:1"), Endpoint("b:2")], "ps": {3: Endpoint("c:4")}})
        assert state.members == (
            Member("worker", 0, Endpoint("a:1")),
            Member("worker", 1, Endpoint("b:2")),
            Member("ps", 3, Endpoint("c:4")),
        )

    def test_invalid_endpoints_are_rejected_with_their_location(self) -> None:
        invalid: Any
        for invalid, words in (
            ([Endpoint("a:1")], "must be a mapping of job names to endpoints"),
            ({"worker": Endpoint("a:1")}, "job 'worker': the tasks must be a list"),
            ({"worker": ["a:1"]}, "job 'worker', task 0: expected an Endpoint, got str"),
            ({"worker": {4: Endpoint("a:1", index=5)}}, "is 4, but its index is 5"),
            ({"worker": {"first": Endpoint("a:1")}}, "the task index 'first' is not an integer"),
            ({"worker": [Endpoint(None)]}, "address of task 0 in job 'worker'"),  # type: ignore[arg-type]
        ):
            assert words in errors_of(ClusterState.of, invalid)
        assert "must be a ClusterSpec" in errors_of(ClusterState.from_spec, {"worker": ["a:1"]})

    def test_endpoints_of_a_sparse_mapping_are_sorted_by_task_index(self) -> None:
        second, first = Endpoint("b:2", index=7), Endpoint("a:1")
        state = ClusterState.of({"worker": {7: second, 3: first}})
        assert state.endpoints == {"worker": (first, second)}
        assert state.spec.task_indices("worker") == [3, 7]

    def test_observed_at_is_converted_to_utc(self) -> None:
        noon = datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=2)))
        observed_at = ClusterState.from_spec(TRAINING, observed_at=noon).observed_at
        assert observed_at == noon
        assert observed_at is not None
        assert observed_at.tzinfo is UTC
        with pytest.raises(ConfigurationError, match="has no time zone"):
            ClusterState.from_spec(TRAINING, observed_at=datetime(2026, 1, 2))  # noqa: DTZ001

    def test_state_is_json(self) -> None:
        endpoint = Endpoint("a:1", name="train-3", uid="u3", index=3, accelerators={"google.com/tpu": 4})
        at = datetime(2026, 1, 2, 12, tzinfo=UTC)
        state = replace(
            ClusterState.of({"worker": {3: endpoint}, "ps": []}, version="42", observed_at=at),
            done=(DoneTask("worker", 0, "ml/train-0"),),
        )
        assert json.loads(json.dumps(state.as_dict())) == {
            "jobs": {
                "worker": [
                    {
                        "task": 3,
                        "address": "a:1",
                        "name": "train-3",
                        "namespace": None,
                        "uid": "u3",
                        "node": None,
                        "ready": None,
                        "status": None,
                        "index": 3,
                        "restarts": 0,
                        "accelerators": {"google.com/tpu": 4},
                    }
                ],
                "ps": [],
            },
            "done": [{"job": "worker", "task": 0, "name": "ml/train-0", "uid": None}],
            "version": "42",
            "observed_at": "2026-01-02T12:00:00Z",
        }

    def test_endpoints_are_read_only(self) -> None:
        endpoints: Any
        for endpoints in (ClusterState.of({}).endpoints, ClusterState.from_spec(TRAINING).endpoints):
            with pytest.raises(TypeError):
                endpoints["worker"] = ()
        with pytest.raises(KeyError):
            endpoints["chief"]
        assert (len(endpoints), list(endpoints)) == (2, ["worker", "ps"])

    @given(STATES)
    def test_pickling_and_copying_return_an_equal_state(self, state: ClusterState) -> None:
        for again in (pickle.loads(pickle.dumps(state)), copy.copy(state), copy.deepcopy(state)):
            assert again == state
            assert again.endpoints == state.endpoints
            assert repr(again) == repr(state)

    @given(STATES, STATES)
    def test_states_are_equal_if_they_have_the_same_members(
        self, one: ClusterState, other: ClusterState
    ) -> None:
        assert (one == other) == (set(one.members) == set(other.members))
        assert one != other or hash(one) == hash(other)
        now = datetime(2026, 1, 2, tzinfo=UTC)
        later = ClusterState(one.endpoints, one.spec, version="43", observed_at=now)
        unready = with_other_node(one, ready=False, node="n9")
        assert one == later == unready
        assert hash(one) == hash(later) == hash(unready)
        assert (one == one.endpoints) is False


class TestClusterDiff:
    def test_diff_has_the_members_that_joined_left_and_moved(self) -> None:
        remaining, leaving = Endpoint("a:1", uid="u0"), Endpoint("b:2", uid="u1")
        old, new = Endpoint("c:3", uid="u2"), Endpoint("d:4", uid="u2")
        joining = Endpoint("e:5", uid="u3")
        diff = ClusterState.of({"worker": [remaining, new, joining]}).diff(
            ClusterState.of({"worker": [remaining, leaving, old]})
        )
        assert diff == ClusterDiff(
            joined=(Member("worker", 2, joining),),
            left=(Member("worker", 1, leaving),),
            moved=(Move(Member("worker", 2, old), Member("worker", 1, new)),),
        )

    def test_pod_created_again_with_the_same_name_has_left_and_joined(self) -> None:
        old = ClusterState.of({"worker": [Endpoint("a:1", uid="u0", namespace="default", name="trainer-0")]})
        new = ClusterState.of({"worker": [Endpoint("a:1", uid="u1", namespace="default", name="trainer-0")]})
        diff = new.diff(old)
        assert (len(diff.joined), len(diff.left), len(diff.moved)) == (1, 1, 0)

    def test_diff_is_formatted_as_one_line(self) -> None:
        old = ClusterState.of(
            {"worker": [Endpoint("a:1"), Endpoint("b:2", namespace="default", name="trainer-1")]}
        )
        new = ClusterState.of(
            {"worker": [Endpoint("c:3"), Endpoint("d:4", namespace="default", name="trainer-1")]}
        )
        assert str(new.diff(old)) == (
            "joined /job:worker/task:0 at c:3; "
            "left /job:worker/task:0 at a:1; "
            "moved /job:worker/task:1 at b:2 (default/trainer-1) -> "
            "/job:worker/task:1 at d:4 (default/trainer-1)"
        )

    @given(STATES, STATES)
    def test_diff_is_true_if_and_only_if_the_states_differ(
        self, new: ClusterState, old: ClusterState
    ) -> None:
        assert bool(new.diff(old)) == (new != old)
        same = new.diff(with_other_node(new, ready=True, node="n9"))
        assert (same, str(same)) == (ClusterDiff(), "no change")

    @given(STATES, STATES)
    def test_older_state_and_diff_determine_the_newer_state(
        self, new: ClusterState, old: ClusterState
    ) -> None:
        diff = new.diff(old)
        removed = {*diff.left, *(move.old for move in diff.moved)}
        added = {*diff.joined, *(move.new for move in diff.moved)}
        assert removed <= set(old.members)
        assert (set(old.members) - removed) | added == set(new.members)
        assert len(removed) == len(diff.left) + len(diff.moved)
        assert len(added) == len(diff.joined) + len(diff.moved)
        for move in diff.moved:
            assert move.old.job == move.new.job
            assert move.old.endpoint.identity == move.new.endpoint.identity
            assert move.old != move.new


def test_observations_and_statuses_are_hashable_with_their_counts() -> None:
    counts = {"worker": 1}
    observation = Observation(
        None, expected={"worker": ExpectedTasks(1, "a label")}, controllers={"worker": ()}
    )
    now = datetime(2026, 1, 2, tzinfo=UTC)
    status = TargetStatus(name="a", health=Health.READY, reason="", since=now, found=counts, wanted=counts)
    assert {observation, replace(observation), status, replace(status)} == {observation, status}
