"""ClusterSpec, Endpoint, ClusterState and ClusterDiff: what they hold, refuse, compare and say."""

from __future__ import annotations

import copy
import enum
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError, InvalidClusterError, ResolveError, UnknownTaskError
from aioresolve.spec import ClusterDiff, ClusterSpec, ClusterState, Endpoint, Member, Move, host_port
from aioresolve.spec.cluster_pb2 import ClusterDef

# The ClusterDef of {"worker": ["a:1", "b:2"], "ps": {3: "c:4"}} as TensorFlow 2.21 wrote it.
WRITTEN_BY_TENSORFLOW = (
    b"\x0a\x0d\x0a\x02ps\x12\x07\x08\x03\x12\x03c:4"
    b"\x0a\x1a\x0a\x06worker\x12\x07\x08\x01\x12\x03b:2\x12\x07\x08\x00\x12\x03a:1"
)
TRAINING = ClusterSpec({"worker": ["a:1", "b:2"], "ps": {3: "c:4"}})

INT32 = st.integers(-(2**31), 2**31 - 1)
CLUSTERS = st.dictionaries(
    st.text(), st.lists(st.text()) | st.lists(st.text()).map(tuple) | st.dictionaries(INT32, st.text())
)
SPECS = CLUSTERS.map(ClusterSpec)


def written(spec: ClusterSpec) -> bytes:
    return spec.as_cluster_def().SerializeToString(deterministic=True)


class TestBuildingASpec:
    def test_a_list_numbers_its_tasks_from_zero(self) -> None:
        assert ClusterSpec({"worker": ["a:1", "b:2"]}) == {"worker": {0: "a:1", 1: "b:2"}}

    def test_a_tuple_is_as_good_as_a_list(self) -> None:
        assert ClusterSpec({"worker": ("a:1", "b:2")}) == ClusterSpec({"worker": ["a:1", "b:2"]})

    def test_a_sparse_mapping_keeps_its_task_indices(self) -> None:
        assert ClusterSpec({"worker": {7: "b:2", 3: "a:1"}}).task_indices("worker") == [3, 7]

    def test_any_mapping_will_do(self) -> None:
        frozen = MappingProxyType({"worker": MappingProxyType({1: "b:2"})})
        assert ClusterSpec(frozen) == {"worker": {1: "b:2"}}

    def test_jobs_keep_the_order_given(self) -> None:
        assert ClusterSpec({"worker": ["a:1"], "chief": ["b:2"], "ps": []}).jobs == ["worker", "chief", "ps"]

    def test_index_keys_pass_through_int_and_the_last_of_equal_ones_counts(self) -> None:
        tasks: Any = {"1": "a:1", 1: "b:2", b"01": "c:3", 2.9: "d:4", False: "e:5"}
        assert ClusterSpec({"worker": tasks}) == {"worker": {0: "e:5", 1: "c:3", 2: "d:4"}}

    def test_a_str_of_another_type_becomes_a_plain_one(self) -> None:
        class Job(enum.StrEnum):
            WORKER = "worker"

        jobs = ClusterSpec({Job.WORKER: ["a:1"]}).jobs
        assert jobs == ["worker"]
        assert type(jobs[0]) is str

    def test_bytes_are_kept_as_tensorflow_keeps_them_until_the_spec_is_copied(self) -> None:
        cluster: Any = {b"worker": [b"a:1", bytearray(b"b:2")]}
        spec = ClusterSpec(cluster)
        assert spec == {b"worker": {0: b"a:1", 1: b"b:2"}}
        assert ClusterSpec(spec).as_dict() == {"worker": ["a:1", "b:2"]}
        assert written(spec) == written(ClusterSpec(spec))

    def test_a_copy_made_by_the_constructor_has_its_jobs_by_name(self) -> None:
        assert ClusterSpec(TRAINING) == TRAINING
        assert ClusterSpec(TRAINING).jobs == ["ps", "worker"]

    def test_what_it_was_built_from_may_change_afterwards(self) -> None:
        addresses, message = ["a:1"], ClusterDef()
        message.job.add(name="worker").tasks[0] = "a:1"
        spec, from_message = ClusterSpec({"worker": addresses}), ClusterSpec(message)
        addresses.append("b:2")
        message.job[0].tasks[1] = "b:2"
        assert spec.num_tasks("worker") == from_message.num_tasks("worker") == 1
        assert len(from_message.as_cluster_def().job[0].tasks) == 1

    @pytest.mark.parametrize(
        ("cluster", "words"),
        [
            (None, "got NoneType"),
            ("worker=a:1", "got str"),
            (["a:1"], "got list"),
            ({"worker": "a:1"}, "job 'worker': its tasks must be a list"),
            ({"worker": None}, "got NoneType None"),
            ({"worker": 3}, "got int 3"),
            ({"worker": {"a:1"}}, "got set"),
            ({"worker": iter(["a:1"])}, "job 'worker': its tasks must be a list"),
            ({"worker": ["a:1", None]}, "address of task 1 in job 'worker': expected a str, got NoneType"),
            ({"worker": {4: 8470}}, "address of task 4 in job 'worker': expected a str, got int 8470"),
            ({"worker": ["\ud800"]}, "not valid Unicode"),
            ({"worker": [b"\xff"]}, "not valid Unicode"),
            ({3: ["a:1"]}, "job name: expected a str, got int 3"),
            ({b"worker": ["a:1"], "ps": []}, "str or bytes, not both: b'worker', 'ps'"),
            ({"worker": {"first": "a:1"}}, "job 'worker': the task index 'first' is no whole number"),
            ({"worker": {None: "a:1"}}, "the task index None is no whole number"),
            ({"worker": {float("inf"): "a:1"}}, "the task index inf is no whole number"),
            ({"worker": {2**31: "a:1"}}, "the task index 2147483648 does not fit in 32 bits"),
            ({"worker": {-(2**31) - 1: "a:1"}}, "does not fit in 32 bits"),
        ],
    )
    def test_what_describes_no_cluster_is_refused_with_the_place_named(
        self, cluster: Any, words: str
    ) -> None:
        with pytest.raises(InvalidClusterError) as refused:
            ClusterSpec(cluster)
        assert words in str(refused.value)
        assert isinstance(refused.value, TypeError)
        assert isinstance(refused.value, ResolveError)


class TestTheClusterDefMessage:
    def test_tensorflows_bytes_are_read_and_written_back(self) -> None:
        spec = ClusterSpec(WRITTEN_BY_TENSORFLOW)
        assert spec == TRAINING
        assert (
            spec.as_cluster_def() == TRAINING.as_cluster_def() == ClusterDef.FromString(WRITTEN_BY_TENSORFLOW)
        )
        assert written(spec) == written(TRAINING)

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_any_bytes_like_value_is_read(self, kind: Any) -> None:
        assert ClusterSpec(kind(WRITTEN_BY_TENSORFLOW)) == TRAINING

    @given(SPECS)
    def test_a_spec_comes_back_from_its_message_and_from_its_bytes(self, spec: ClusterSpec) -> None:
        assert ClusterSpec(spec.as_cluster_def()) == spec
        assert ClusterSpec(written(spec)) == spec
        assert written(ClusterSpec(written(spec))) == written(spec)

    def test_the_jobs_of_a_message_keep_their_order(self) -> None:
        message = ClusterDef()
        for name in ("worker", "chief"):
            message.job.add(name=name)
        for spec in (ClusterSpec(message), ClusterSpec(ClusterSpec(message))):
            assert spec.jobs == ["worker", "chief"]
            assert spec.as_cluster_def() == message

    def test_of_a_job_that_a_message_holds_twice_the_last_counts(self) -> None:
        message = ClusterDef()
        for address in ("a:1", "b:2"):
            message.job.add(name="worker").tasks[0] = address
        spec = ClusterSpec(message)
        assert spec == {"worker": {0: "b:2"}}
        assert spec.as_cluster_def() == message

    def test_a_message_handed_out_is_the_callers_own(self) -> None:
        spec = ClusterSpec({"worker": ["a:1"]})
        spec.as_cluster_def().job[0].tasks[1] = "b:2"
        assert spec.as_cluster_def().job[0].tasks == {0: "a:1"}

    @pytest.mark.parametrize("malformed", [b"hello", WRITTEN_BY_TENSORFLOW[:-1], b"\x0a\x03\x0a\x01\xff"])
    def test_bytes_that_are_no_message_are_refused(self, malformed: bytes) -> None:
        with pytest.raises(InvalidClusterError, match=f"these {len(malformed)} bytes are no ClusterDef"):
            ClusterSpec(malformed)

    @given(st.binary())
    def test_random_bytes_are_a_cluster_or_refused(self, message: bytes) -> None:
        try:
            spec = ClusterSpec(message)
        except InvalidClusterError:
            return
        assert ClusterSpec(written(spec)) == spec

    def test_another_message_is_refused(self) -> None:
        with pytest.raises(InvalidClusterError, match="got JobDef"):
            ClusterSpec(ClusterDef().job.add(name="worker"))


class TestAskingASpec:
    def test_a_dense_job_is_a_list_and_a_sparse_one_a_dict(self) -> None:
        assert TRAINING.as_dict() == {"worker": ["a:1", "b:2"], "ps": {3: "c:4"}}

    def test_a_dense_job_given_as_a_mapping_is_a_list(self) -> None:
        assert ClusterSpec({"worker": {1: "b:2", 0: "a:1"}}).as_dict() == {"worker": ["a:1", "b:2"]}

    def test_a_job_without_tasks_is_an_empty_dict_and_has_an_empty_list_of_tasks(self) -> None:
        spec = ClusterSpec({"ps": []})
        assert spec.as_dict() == {"ps": {}}
        assert spec.job_tasks("ps") == []
        assert spec.num_tasks("ps") == 0

    def test_job_tasks_holds_none_where_no_task_is(self) -> None:
        assert TRAINING.job_tasks("ps") == [None, None, None, "c:4"]

    def test_a_task_below_zero_neither_gets_lost_nor_overwrites_another(self) -> None:
        spec = ClusterSpec({"worker": {-1: "z:9", 1: "b:2"}})
        assert spec.as_dict() == {"worker": {-1: "z:9", 1: "b:2"}}
        assert spec.job_tasks("worker") == [None, "b:2"]
        assert spec.task_address("worker", -1) == "z:9"

    def test_what_is_handed_out_is_the_callers_own(self) -> None:
        spec = ClusterSpec({"worker": ["a:1"], "ps": {3: "c:4"}})
        spec.jobs.append("chief")
        spec.task_indices("worker").append(7)
        spec.job_tasks("worker").append("b:2")
        for tasks in spec.as_dict().values():
            tasks.clear()
        assert spec == {"worker": {0: "a:1"}, "ps": {3: "c:4"}}

    def test_a_spec_is_true_if_it_has_jobs(self) -> None:
        assert ClusterSpec({"ps": []})
        assert not ClusterSpec({})
        assert ClusterSpec({"ps": []}).__nonzero__()

    @given(SPECS)
    def test_the_members_agree_with_each_other(self, spec: ClusterSpec) -> None:
        assert list(spec.as_dict()) == spec.jobs
        for job, tasks in spec.as_dict().items():
            indices = spec.task_indices(job)
            addresses = [spec.task_address(job, index) for index in indices]
            assert indices == sorted(indices)
            assert len(indices) == spec.num_tasks(job)
            assert list(tasks if isinstance(tasks, list) else tasks.values()) == addresses
            if max(indices, default=0) < 10_000:
                places = dict(enumerate(spec.job_tasks(job)))
                assert {i: a for i, a in places.items() if a is not None} == {
                    i: a for i, a in zip(indices, addresses, strict=True) if i >= 0
                }

    @pytest.mark.parametrize("member", ["num_tasks", "task_indices", "job_tasks"])
    def test_an_unknown_job_is_named_beside_those_there_are(self, member: str) -> None:
        with pytest.raises(
            UnknownTaskError, match="no job 'chief' in this cluster: its jobs are 'worker', 'ps'"
        ):
            getattr(TRAINING, member)("chief")
        with pytest.raises(ValueError, match="it has no jobs"):
            getattr(ClusterSpec({}), member)("chief")

    @pytest.mark.parametrize(
        ("tasks", "words"),
        [
            ([], "which has no tasks"),
            (["a:1"], "which has tasks 0"),
            (["a:1"] * 4, "which has tasks 0 to 3"),
            ({0: "a", 1: "b", 2: "c", 5: "d", 8: "e", 10: "f"}, "which has tasks 0 to 2, 5, 8, 10"),
            ({2 * i: "a" for i in range(20)}, "which has tasks 0, 2, 4, 6, 8, 10, 12, 14, ..."),
        ],
    )
    def test_an_unknown_task_is_named_beside_those_there_are(self, tasks: Any, words: str) -> None:
        with pytest.raises(UnknownTaskError) as unknown:
            ClusterSpec({"worker": tasks}).task_address("worker", 7)
        assert str(unknown.value) == f"no task 7 in job 'worker', {words}"
        assert isinstance(unknown.value, ValueError)


class TestASpecAsAValue:
    @given(CLUSTERS)
    def test_equal_specs_hash_alike_whatever_the_order_of_jobs(self, cluster: Any) -> None:
        spec, reversed_ = ClusterSpec(cluster), ClusterSpec(dict(reversed(cluster.items())))
        assert spec == reversed_
        assert not spec != reversed_  # noqa: SIM202
        assert hash(spec) == hash(reversed_)

    @given(SPECS, SPECS)
    def test_specs_are_equal_if_their_dicts_are(self, one: ClusterSpec, other: ClusterSpec) -> None:
        assert (one == other) == (one.as_dict() == other.as_dict())
        assert (one != other) == (not one == other)  # noqa: SIM201

    def test_a_mapping_is_equal_in_its_sparse_form_only(self) -> None:
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
            assert written(again) == written(spec)

    def test_a_spec_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError, match="build another"):
            TRAINING.jobs = []  # type: ignore[misc]
        with pytest.raises(AttributeError, match="does not change"):
            del TRAINING._tasks
        with pytest.raises(AttributeError):
            TRAINING.extra = 1

    @given(SPECS)
    def test_the_repr_is_the_call_that_builds_it(self, spec: ClusterSpec) -> None:
        assert eval(repr(spec), {"ClusterSpec": ClusterSpec}) == spec

    def test_values_need_neither_protobuf_nor_tensorflow(self) -> None:
        code = (
            "import sys; from aioresolve.spec import ClusterSpec\n"
            "ClusterSpec(ClusterSpec({'worker': ['a:1']})).as_dict()\n"
            "assert not {'google.protobuf', 'tensorflow'} & set(sys.modules)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


class TestHostPort:
    @pytest.mark.parametrize(
        ("host", "address"),
        [
            ("10.0.0.7", "10.0.0.7:8470"),
            ("trainer-0.trainer.default.svc", "trainer-0.trainer.default.svc:8470"),
            ("fd00::7", "[fd00::7]:8470"),
            ("[fd00::7]", "[fd00::7]:8470"),
            ("fe80::1%eth0", "[fe80::1%eth0]:8470"),
            ("::", "[::]:8470"),
        ],
    )
    def test_ipv6_alone_stands_in_brackets(self, host: str, address: str) -> None:
        assert host_port(host, 8470) == address

    @pytest.mark.parametrize("host", ["", "[]", "10.0.0.7:8470", "[fd00::7]:8470", "[fd00::7"])
    def test_what_is_not_a_host_alone_is_refused(self, host: str) -> None:
        with pytest.raises(ConfigurationError, match="is not a host alone"):
            host_port(host, 8470)

    @pytest.mark.parametrize("port", [-1, 65536])
    def test_a_port_out_of_range_is_refused(self, port: int) -> None:
        with pytest.raises(ConfigurationError, match=f"port {port} of host 'a'"):
            host_port("a", port)


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


def moved(state: ClusterState, *, ready: bool, node: str) -> ClusterState:
    """The same members, with another readiness and another node."""
    tasks = {
        job: {
            index: Endpoint(e.address, name=e.name, uid=e.uid, namespace=e.namespace, node=node, ready=ready)
            for index, e in zip(state.spec.task_indices(job), endpoints, strict=True)
        }
        for job, endpoints in state.endpoints.items()
    }
    return ClusterState.of(tasks)


class TestAnEndpoint:
    def test_readiness_and_node_take_no_part_in_comparison(self) -> None:
        ready = Endpoint("a:1", name="trainer-0", node="n1", ready=True)
        unready = Endpoint("a:1", name="trainer-0", node="n2", ready=False)
        assert ready == unready
        assert hash(ready) == hash(unready)
        assert ready != Endpoint("a:1", name="trainer-1", node="n1", ready=True)

    def test_its_identity_is_its_uid_else_its_name_else_its_address(self) -> None:
        assert Endpoint("a:1", uid="u1", name="trainer-0").identity == ("uid", "u1")
        assert Endpoint("a:1", namespace="default", name="trainer-0").identity == (
            "name",
            "default/trainer-0",
        )
        assert Endpoint("a:1", name="tpu-0").identity == ("name", "tpu-0")
        assert Endpoint("a:1", namespace="default").identity == ("address", "a:1")


class TestAState:
    def test_a_list_is_dense_whatever_index_its_endpoints_carry(self) -> None:
        state = ClusterState.of({"worker": [Endpoint("a:1", index=5), Endpoint("b:2")]})
        assert state.spec == ClusterSpec({"worker": ["a:1", "b:2"]})

    def test_a_sparse_mapping_puts_its_endpoints_in_task_order(self) -> None:
        second, first = Endpoint("b:2", index=7), Endpoint("a:1")
        state = ClusterState.of({"worker": {7: second, 3: first}})
        assert state.endpoints == {"worker": (first, second)}
        assert state.spec.task_indices("worker") == [3, 7]

    def test_a_spec_alone_makes_a_state_of_bare_addresses(self) -> None:
        state = ClusterState.from_spec(TRAINING, version="42")
        assert state.spec is TRAINING
        assert state.endpoints == {"worker": (Endpoint("a:1"), Endpoint("b:2")), "ps": (Endpoint("c:4"),)}
        assert state.version == "42"

    def test_endpoints_come_in_the_order_of_the_specs_jobs(self) -> None:
        endpoints = {"ps": (Endpoint("c:4"),), "worker": (Endpoint("a:1"), Endpoint("b:2"))}
        assert list(ClusterState(endpoints, TRAINING).endpoints) == ["worker", "ps"]

    def test_members_carry_job_task_index_and_endpoint(self) -> None:
        state = ClusterState.of({"worker": [Endpoint("a:1")], "ps": {3: Endpoint("c:4")}})
        assert state.members == (Member("worker", 0, Endpoint("a:1")), Member("ps", 3, Endpoint("c:4")))

    def test_the_moment_is_kept_in_utc(self) -> None:
        noon = datetime(2026, 1, 2, 12, tzinfo=timezone(timedelta(hours=2)))
        observed_at = ClusterState.from_spec(TRAINING, observed_at=noon).observed_at
        assert observed_at == noon
        assert observed_at is not None
        assert observed_at.tzinfo is UTC

    def test_a_moment_without_a_time_zone_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="has no time zone"):
            ClusterState.from_spec(TRAINING, observed_at=datetime(2026, 1, 2))  # noqa: DTZ001

    @pytest.mark.parametrize(
        ("endpoints", "words"),
        [
            ([Endpoint("a:1")], "by job in a mapping"),
            ({"worker": Endpoint("a:1")}, "job 'worker': its tasks must be a list"),
            ({"worker": ["a:1"]}, "job 'worker', task 0: expected an Endpoint, got str"),
            ({"worker": {4: Endpoint("a:1", index=5)}}, "is given as task 4, but says it is 5"),
            ({"worker": {"first": Endpoint("a:1")}}, "the task index 'first' is no whole number"),
            ({"worker": [Endpoint(None)]}, "address of task 0 in job 'worker'"),  # type: ignore[arg-type]
        ],
    )
    def test_what_makes_no_state_is_refused(self, endpoints: Any, words: str) -> None:
        with pytest.raises(InvalidClusterError) as refused:
            ClusterState.of(endpoints)
        assert words in str(refused.value)

    @pytest.mark.parametrize(
        ("endpoints", "words"),
        [
            ({}, "endpoints of jobs [], but a spec of jobs ['worker']"),
            ({"ps": ()}, "endpoints of jobs ['ps']"),
            ({"worker": (Endpoint("a:1"),)}, "job 'worker': 1 endpoints for 2 tasks"),
            ({"worker": (Endpoint("b:2"), Endpoint("a:1"))}, "is not at the spec's 'a:1'"),
            ({"worker": ("a:1", "b:2")}, "expected an Endpoint, got str"),
        ],
    )
    def test_endpoints_that_contradict_the_spec_are_refused(self, endpoints: Any, words: str) -> None:
        with pytest.raises(InvalidClusterError) as refused:
            ClusterState(endpoints, ClusterSpec({"worker": ["a:1", "b:2"]}))
        assert words in str(refused.value)

    def test_a_spec_must_be_a_spec(self) -> None:
        cluster: Any = {"worker": ["a:1"]}
        with pytest.raises(InvalidClusterError, match="must be a ClusterSpec"):
            ClusterState.from_spec(cluster)
        with pytest.raises(InvalidClusterError, match="must be a ClusterSpec"):
            ClusterState({"worker": (Endpoint("a:1"),)}, cluster)

    def test_its_endpoints_are_read_only(self) -> None:
        endpoints: Any = ClusterState.from_spec(TRAINING).endpoints
        with pytest.raises(TypeError):
            endpoints["worker"] = ()
        with pytest.raises(KeyError):
            endpoints["chief"]

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

    @given(STATES)
    def test_readiness_node_version_and_moment_make_no_difference(self, state: ClusterState) -> None:
        now = datetime(2026, 1, 2, tzinfo=UTC)
        later = ClusterState(state.endpoints, state.spec, version="43", observed_at=now)
        unready = moved(state, ready=False, node="n9")
        assert state == later == unready
        assert hash(state) == hash(later) == hash(unready)

    def test_a_job_without_tasks_makes_no_difference(self) -> None:
        assert ClusterState.of({"worker": []}) == ClusterState.of({})
        assert hash(ClusterState.of({"worker": []})) == hash(ClusterState.of({}))

    def test_a_state_is_equal_to_nothing_else(self) -> None:
        assert ClusterState.from_spec(TRAINING) != TRAINING


class TestADiff:
    def test_it_names_what_joined_left_and_moved(self) -> None:
        stays, goes = Endpoint("a:1", uid="u0"), Endpoint("b:2", uid="u1")
        was, now = Endpoint("c:3", uid="u2"), Endpoint("d:4", uid="u2")
        comes = Endpoint("e:5", uid="u3")
        diff = ClusterState.of({"worker": [stays, now, comes]}).diff(
            ClusterState.of({"worker": [stays, goes, was]})
        )
        assert diff == ClusterDiff(
            joined=(Member("worker", 2, comes),),
            left=(Member("worker", 1, goes),),
            moved=(Move(Member("worker", 2, was), Member("worker", 1, now)),),
        )

    def test_a_pod_made_anew_under_its_old_name_has_left_and_joined(self) -> None:
        old = ClusterState.of({"worker": [Endpoint("a:1", uid="u0", namespace="default", name="trainer-0")]})
        new = ClusterState.of({"worker": [Endpoint("a:1", uid="u1", namespace="default", name="trainer-0")]})
        diff = new.diff(old)
        assert (len(diff.joined), len(diff.left), len(diff.moved)) == (1, 1, 0)

    def test_without_uids_a_name_at_a_new_address_has_moved(self) -> None:
        old = ClusterState.of({"worker": [Endpoint("a:1", namespace="default", name="trainer-0")]})
        new = ClusterState.of({"worker": [Endpoint("b:2", namespace="default", name="trainer-0")]})
        assert new.diff(old) == ClusterDiff(moved=(Move(old.members[0], new.members[0]),))

    def test_an_address_at_a_new_task_index_has_moved(self) -> None:
        old = ClusterState.from_spec(ClusterSpec({"worker": ["a:1", "b:2"]}))
        new = ClusterState.from_spec(ClusterSpec({"worker": ["b:2"]}))
        assert new.diff(old) == ClusterDiff(
            left=(old.members[0],), moved=(Move(old.members[1], new.members[0]),)
        )

    def test_a_task_found_in_another_job_has_left_and_joined(self) -> None:
        old = ClusterState.of({"ps": [Endpoint("a:1", uid="u0")]})
        new = ClusterState.of({"worker": [Endpoint("a:1", uid="u0")]})
        assert new.diff(old) == ClusterDiff(joined=new.members, left=old.members)

    def test_it_reads_as_one_line(self) -> None:
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

    @given(STATES)
    def test_a_state_does_not_differ_from_itself(self, state: ClusterState) -> None:
        diff = state.diff(moved(state, ready=True, node="n9"))
        assert diff == ClusterDiff()
        assert str(diff) == "no change"

    @given(STATES, STATES)
    def test_it_is_true_if_and_only_if_the_states_differ(self, new: ClusterState, old: ClusterState) -> None:
        assert bool(new.diff(old)) == (new != old)

    @given(STATES, STATES)
    def test_the_older_state_and_the_diff_make_the_newer_one(
        self, new: ClusterState, old: ClusterState
    ) -> None:
        diff = new.diff(old)
        gone = {*diff.left, *(move.old for move in diff.moved)}
        come = {*diff.joined, *(move.new for move in diff.moved)}
        assert gone <= set(old.members)
        assert (set(old.members) - gone) | come == set(new.members)
        assert len(gone) == len(diff.left) + len(diff.moved)
        assert len(come) == len(diff.joined) + len(diff.moved)

    @given(STATES, STATES)
    def test_whoever_moved_neither_joined_nor_left(self, new: ClusterState, old: ClusterState) -> None:
        diff = new.diff(old)
        for move in diff.moved:
            assert move.old.job == move.new.job
            assert move.old.endpoint.identity == move.new.endpoint.identity
            assert move.old != move.new
        joined = {(member.job, member.endpoint.identity) for member in diff.joined}
        left = {(member.job, member.endpoint.identity) for member in diff.left}
        assert joined.isdisjoint(left)


class TestPartsThatWereCheckedBefore:
    """`_trusted` takes parts as they are; of parts that agree it makes what the checked constructors make."""

    @given(CLUSTERS)
    def test_a_spec_of_them_is_the_same(self, cluster: dict[str, Any]) -> None:
        spec = ClusterSpec(cluster)
        tasks = {job: {i: spec.task_address(job, i) for i in spec.task_indices(job)} for job in spec.jobs}
        trusted = ClusterSpec._trusted(tasks)
        assert (trusted, hash(trusted), repr(trusted)) == (spec, hash(spec), repr(spec))
        assert (trusted.jobs, trusted.as_dict(), written(trusted)) == (
            spec.jobs,
            spec.as_dict(),
            written(spec),
        )
        assert pickle.loads(pickle.dumps(trusted)) == spec

    @given(STATES)
    def test_a_state_of_them_is_the_same(self, state: ClusterState) -> None:
        now = datetime(2026, 11, 20, tzinfo=UTC)
        checked = ClusterState(state.endpoints, state.spec, "7", now)
        trusted = ClusterState._trusted(dict(state.endpoints), state.spec, "7", now)
        assert (trusted, hash(trusted), repr(trusted)) == (checked, hash(checked), repr(checked))
        assert (trusted.members, trusted.version, trusted.observed_at) == (checked.members, "7", now)
        assert not trusted.diff(checked)
        assert pickle.loads(pickle.dumps(trusted)) == checked

    def test_a_state_of_them_does_not_change(self) -> None:
        trusted: Any = ClusterState._trusted({"worker": ()}, ClusterSpec({"worker": []}), None, None)
        with pytest.raises(AttributeError):
            trusted.version = "7"
        with pytest.raises(TypeError):
            trusted.endpoints["worker"] = ()
