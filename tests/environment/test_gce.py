"""GCEClusterResolver against a loopback Google Cloud: groups, zones, states, addresses."""

from typing import Any

import anyio
import pytest

from aioresolve import ClusterSpec, GCEClusterResolver, Observation, Progress, Want
from aioresolve.errors import (
    APIError,
    ConfigurationError,
    FailedClusterError,
    ForbiddenError,
    InstanceNotRunningError,
    ProtocolError,
)
from aioresolve.spec import ClusterState
from aioresolve.testing import Answer, GoogleRequest, GoogleServer, instance

PROJECT, ZONE, REGION = "demo-project", "us-central2-b", "us-central2"
LATER = {"Metadata-Flavor": "Google", "Retry-After": "3600"}
PATIENCE = 60.0
"""Seconds until a test fails; generous for a busy machine."""


def numbers(observation: Observation) -> dict[str, int]:
    """Return how many tasks each job will have."""
    return {job: expected.number for job, expected in observation.expected.items()}


async def observe(resolver: GCEClusterResolver) -> Observation:
    return await resolver.observe(Want(), Progress())


def add_group(google: GoogleServer, *names: str, group: str = "workers") -> None:
    """Add a group of running instances with the addresses 10.0.0.1, 10.0.0.2, ... in this order."""
    google.add(*(instance(name, ip=f"10.0.0.{number}") for number, name in enumerate(names, 1)))
    google.instance_groups[group] = list(names)


def workers(**arguments: Any) -> GCEClusterResolver:
    return GCEClusterResolver(PROJECT, ZONE, "workers", **{"timeout": PATIENCE, **arguments})


def requested(google: GoogleServer, service: str = "compute") -> list[GoogleRequest]:
    return [request for request in google.requests if request.service == service]


# Groups


async def test_instances_of_a_group_are_the_tasks_in_the_order_of_numbers_in_their_names(
    google: GoogleServer,
) -> None:
    add_group(google, "vm-10", "vm-9", "vm-1")
    spec = await workers().cluster_spec()
    assert spec == ClusterSpec({"worker": ["10.0.0.3:8470", "10.0.0.2:8470", "10.0.0.1:8470"]})
    endpoint = (await workers(port=2222, task_type="ps").cluster_state()).endpoints["ps"][0]
    assert (endpoint.address, endpoint.name, endpoint.node) == ("10.0.0.3:2222", "vm-1", ZONE)
    assert (endpoint.status, endpoint.uid) == ("RUNNING", google.get("vm-1")["id"])


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (({"nvidia-l4": 1, "nvidia-tesla-t4": 2}, {"nvidia-l4": 3}), {"GPU": 3}),
        (({"nvidia-l4": 1}, {"nvidia-l4": 2}), None),
        (({"something-new": 1}, {"something-new": 1}), None),
    ],
)
async def test_declared_accelerators_are_those_of_the_instances(
    kinds: tuple[dict[str, int], ...], expected: dict[str, int] | None, google: GoogleServer
) -> None:
    google.add(*(instance(f"vm-{number}", accelerators=one) for number, one in enumerate(kinds)))
    google.instance_groups["workers"] = ["vm-0", "vm-1"]
    endpoints = (await workers().cluster_state()).endpoints["worker"]
    assert [dict(each.accelerators or {}) for each in endpoints] == list(kinds)
    assert (await workers()._declared_accelerators(None, None, PATIENCE)).counts == expected


async def test_addresses_of_many_instances_take_few_requests(google: GoogleServer) -> None:
    # 50 names, each with a quoted separator, are 1,000 characters.
    names = [f"trainer-group-{number:03}" for number in range(150)]
    google.add(*(instance(name) for name in names))
    google.instance_groups["workers"] = names
    spec = await workers().cluster_spec()
    assert spec.num_tasks("worker") == 150
    filters = [request.query["filter"] for request in requested(google)[1:]]
    assert [text.count("|") + 1 for text in filters] == [50, 50, 50]
    assert max(map(len, filters)) < 2000


async def test_pages_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GoogleServer(page_size=2) as google:
        for name, value in google.environ().items():
            monkeypatch.setenv(name, value)
        add_group(google, *(f"vm-{number}" for number in range(5)))
        assert (await workers().cluster_spec()).num_tasks("worker") == 5
        assert len(requested(google)) == 3 + 3
        assert {request.query["maxResults"] for request in requested(google)} == {"500"}
        observation = await observe(workers())
        assert (numbers(observation), observation.absent) == ({"worker": 5}, ())
        monkeypatch.setattr("aioresolve.gcp.client.MAX_PAGES", 2)
        with pytest.raises(ProtocolError, match="its pages do not end"):
            await workers().cluster_spec()


async def test_regional_group_has_instances_of_several_zones(google: GoogleServer) -> None:
    places = [("a", "vm-2"), ("b", "vm-1"), ("b", "vm-10")]
    names = [f"projects/{PROJECT}/zones/{REGION}-{zone}/instances/{name}" for zone, name in places]
    google.add(*(instance(name, ip=f"10.0.0.{number}") for number, name in enumerate(names, 1)))
    google.instance_groups[f"projects/{PROJECT}/regions/{REGION}/instanceGroups/workers"] = names
    resolver = GCEClusterResolver(
        instance_group=f"projects/{PROJECT}/regions/{REGION}/instanceGroups/workers"
    )
    state = await resolver.cluster_state()
    assert [(one.name, one.node) for one in state.endpoints["worker"]] == [
        ("vm-1", "us-central2-b"),
        ("vm-2", "us-central2-a"),
        ("vm-10", "us-central2-b"),
    ]
    observation = await observe(resolver)
    assert (observation.state, numbers(observation)) == (state, {"worker": 3})


async def test_name_of_a_group_may_be_a_full_name_or_a_url(google: GoogleServer) -> None:
    add_group(google, "vm-0")
    full = f"projects/{PROJECT}/zones/{ZONE}/instanceGroups/workers"
    for name in (full, f"https://www.googleapis.com/compute/v1/{full}"):
        assert await GCEClusterResolver(instance_group=name).master("worker", 0) == "grpc://10.0.0.1:8470"
    assert requested(google, "metadata") == []


async def test_group_of_the_vm_is_the_default(google: GoogleServer) -> None:
    with pytest.raises(ConfigurationError, match="has no attribute created-by"):
        await GCEClusterResolver().cluster_spec()
    google.metadata["instance/attributes/created-by"] = "projects/p/jobs/j"
    with pytest.raises(ConfigurationError, match="'projects/p/jobs/j'"):
        await GCEClusterResolver().cluster_spec()
    google.inject(Answer(503, headers=LATER))
    with pytest.raises(APIError, match="status 503"):
        await GCEClusterResolver().cluster_spec()
    add_group(google, "vm-0")
    manager = f"projects/{PROJECT}/zones/{ZONE}/instanceGroupManagers/workers"
    google.metadata["instance/attributes/created-by"] = manager
    assert await GCEClusterResolver().master("worker", 0) == "grpc://10.0.0.1:8470"


async def test_machine_outside_google_cloud_belongs_to_no_group() -> None:
    with pytest.raises(ConfigurationError, match=r"no instance group was given.* Pass `instance_group=`"):
        await GCEClusterResolver().cluster_spec()


async def test_ipv6_address_is_written_in_brackets(google: GoogleServer) -> None:
    add_group(google, "vm-0")
    google.patch("vm-0", networkInterfaces=[{"ipv6Address": "fd20::1"}, {"networkIP": "10.1.0.1"}])
    assert await workers().master("worker", 0) == "grpc://[fd20::1]:8470"


# States


async def test_instances_that_do_not_run_are_all_named(google: GoogleServer) -> None:
    add_group(google, *(f"vm-{number}" for number in range(22)))
    google.patch("vm-2", status="STAGING")
    google.patch("vm-0", status="PROVISIONING")
    shown = r"2 instances of projects/.*/workers not running: vm-0: PROVISIONING; vm-2: STAGING\. "
    with pytest.raises(InstanceNotRunningError, match=shown) as raised:
        await workers().cluster_spec()
    assert raised.value.instances == {"vm-0": "PROVISIONING", "vm-2": "STAGING"}
    assert raised.value.retryable
    assert isinstance(raised.value, RuntimeError)
    for number in range(22):
        google.patch(f"vm-{number}", status="TERMINATED")
    with pytest.raises(InstanceNotRunningError, match=r"vm-19: TERMINATED; and 2 more\. ") as raised:
        await workers().cluster_spec()
    assert not raised.value.retryable


async def test_instance_that_its_group_deletes_is_not_a_member(google: GoogleServer) -> None:
    add_group(google, "vm-0", "vm-1", "vm-2")
    google.patch("vm-1", status="STOPPING")
    google.managed_instances["vm-1"] = {"currentAction": "DELETING"}
    assert (await workers().cluster_spec()).num_tasks("worker") == 2
    assert (await observe(workers())).absent == ()
    google.patch("vm-2", status="STOPPING")
    with pytest.raises(InstanceNotRunningError) as raised:
        await workers().cluster_spec()
    assert raised.value.instances == {"vm-2": "STOPPING"}
    assert (await workers(not_running="skip").cluster_spec()).as_dict() == {"worker": ["10.0.0.1:8470"]}


# Errors


async def test_missing_group_is_a_404_with_the_command_that_lists_groups(google: GoogleServer) -> None:
    with pytest.raises(APIError) as raised:
        await workers().cluster_spec()
    assert raised.value.status == 404
    assert "gcloud compute instance-groups list --project=demo-project" in str(raised.value)


@pytest.mark.parametrize(
    ("permission", "names", "scope"),
    [
        ("compute.instanceGroups.list", ["vm-0"], "instances of projects/"),
        ("compute.instances.list", ["vm-0"], "instances vm-0 of projects/"),
        ("compute.instances.list", ["vm-0", "vm-1"], "instances vm-0 and 1 other of projects/"),
        ("compute.instances.list", ["vm-0", "vm-1", "vm-2"], "instances vm-0 and 2 others of projects/"),
    ],
)
async def test_missing_permission_is_named_with_its_role(
    google: GoogleServer, permission: str, names: list[str], scope: str
) -> None:
    add_group(google, *names)
    google.denied.add(permission)
    with pytest.raises(ForbiddenError) as raised:
        await workers().cluster_spec()
    assert permission in str(raised.value)
    assert scope in str(raised.value)
    assert "--role=roles/compute.viewer" in str(raised.value)
    with pytest.raises(ForbiddenError):
        await observe(workers())


async def test_responses_that_are_not_from_the_api_are_protocol_errors(google: GoogleServer) -> None:
    add_group(google, "vm-0")
    for body in (b"<html>", b'{"items": [{"instance": 7}]}', b'{"items": [{"instance": "x/y z"}]}'):
        google.inject(Answer(200, body))
        with pytest.raises(ProtocolError):
            await workers().cluster_spec()


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"instance_group": "a/b"}, "instance_group"),
        ({"instance_group": 7}, "instance_group"),
        ({"zone": "z-a"}, "instance_group"),
        ({"project": 1}, "project"),
        ({"port": 0}, "port"),
        ({"not_running": "keep"}, "not_running"),
    ],
)
def test_invalid_argument_is_named(arguments: dict[str, Any], argument: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        GCEClusterResolver(**arguments)
    assert raised.value.argument == argument


# Watching and waiting


async def test_wait_returns_all_instances_that_the_group_will_have(google: GoogleServer) -> None:
    add_group(google, "vm-0")
    google.instance_groups["workers"] = ["vm-0", "vm-1"]

    states: list[ClusterState] = []

    async def wait() -> None:
        states.append(await workers().wait(timeout=PATIENCE, interval=0.01))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await google.until(lambda: len(requested(google)) >= 6)
        google.add(instance("vm-1", ip="10.0.0.2"))
    assert states[0].spec.as_dict() == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}


async def test_observation_says_what_each_instance_lacks(google: GoogleServer) -> None:
    add_group(google, "vm-0", "vm-1", "vm-2")
    google.instance_groups["workers"] = ["vm-0", "vm-1", "vm-2", "vm-10", "vm-3"]
    google.patch("vm-1", status="TERMINATED")
    google.managed_instances["vm-1"] = {"currentAction": "RECREATING"}
    google.patch("vm-2", networkInterfaces=[])
    errors = [{"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "m" * 301}, *[{"code": "QUOTA"}] * 3]
    google.managed_instances["vm-3"] = {"lastAttempt": {"errors": {"errors": errors}}}
    observation = await observe(workers())
    failed = f"(ZONE_RESOURCE_POOL_EXHAUSTED: {'m' * 300}; QUOTA; QUOTA)"
    assert [(one.name, one.reason) for one in observation.absent] == [
        ("vm-1", "TERMINATED, RECREATING by its group"),
        ("vm-2", "RUNNING, but it has no internal address yet"),
        ("vm-3", f"not created, CREATING by its group {failed}"),
        ("vm-10", "not created, CREATING by its group"),
    ]
    assert not any(one.is_final for one in observation.absent)
    assert numbers(observation) == {"worker": 5}


async def test_running_instance_that_the_group_ends_is_not_ready(google: GoogleServer) -> None:
    add_group(google, "vm-0", "vm-1", "vm-2", "vm-3")
    actions = {"vm-1": "DELETING", "vm-2": "ABANDONING", "vm-3": "RECREATING"}
    for name, action in actions.items():
        google.managed_instances[name] = {"currentAction": action}
    observation = await observe(workers())
    assert {one.name: one.reason for one in observation.unready} == {
        name: f"RUNNING, {action} by its group" for name, action in actions.items()
    }
    assert (observation.absent, numbers(observation)) == ((), {"worker": 2})


async def test_stopped_instance_of_an_unmanaged_group_ends_the_wait(google: GoogleServer) -> None:
    add_group(google, "vm-0", "vm-1")
    google.inject(Answer(404), match=lambda request: "/instanceGroupManagers/" in request.path, times=None)
    google.patch("vm-1", status="TERMINATED")
    with pytest.raises(FailedClusterError, match="vm-1: TERMINATED"):
        await workers().wait(2, timeout=PATIENCE)


async def test_group_that_does_not_exist_may_be_created(google: GoogleServer) -> None:
    observation = await observe(workers())
    (absent,) = observation.absent
    assert (absent.name, absent.is_final, absent.tasks) == ("workers", False, None)
    assert absent.reason.endswith("instanceGroups/workers does not exist (yet)")
    add_group(google, group="trainers")
    explained = await workers()._explain(observation)
    assert explained.unmatched[0].reason == f"{absent.reason}; groups in {ZONE}: trainers"
    assert observation.state is not None
    assert observation.state.spec.as_dict() == {"worker": {}}


async def test_instance_that_changes_after_the_group_was_listed_is_absent(google: GoogleServer) -> None:
    add_group(google, "vm-0")
    for items, reason in (
        (b"", "listed by its group, but not found: it was just deleted"),
        (b'{"name": "vm-0", "status": "STOPPING"}', "STOPPING"),
        (b'{"name": "vm-0"}', "status unknown"),
    ):
        response = Answer(200, b'{"items": [%b]}' % items)
        google.inject(response, match=lambda request: request.path.endswith("/instances"))
        (absent,) = (await observe(workers())).absent
        assert (absent.name, absent.is_final, absent.reason) == ("vm-0", False, reason)


async def test_managers_that_may_not_be_read_are_not_needed(google: GoogleServer) -> None:
    add_group(google, "vm-0")
    google.denied.add("compute.instanceGroupManagers.get")
    assert (await workers().wait(1, timeout=PATIENCE)).spec.num_tasks("worker") == 1
    google.patch("vm-0", status="TERMINATED")
    (absent,) = (await observe(workers())).absent
    assert not absent.is_final  # its group may start it again
    limited = Answer(403, b'{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}', headers=LATER)
    google.inject(limited, match=lambda request: "/instanceGroupManagers/" in request.path)
    with pytest.raises(APIError, match=r"/workers \(managed\) .*: the quota of requests is exhausted"):
        await workers().cluster_spec()


async def test_watch_yields_the_cluster_after_each_change(google: GoogleServer) -> None:
    add_group(google, "vm-0", "vm-1")
    seen = []
    async for state in workers().watch(interval=0.01):
        seen.append(state.spec.num_tasks("worker"))
        if len(seen) == 1:
            google.patch("vm-0", status="STOPPING")
        elif len(seen) == 2:
            google.patch("vm-0", status="RUNNING")
        else:
            break
    assert seen == [2, 1, 2]
    tokens = [request.path for request in requested(google, "metadata") if request.path.endswith("token")]
    assert len(tokens) <= 1


# Tasks


async def test_this_task_is_found_by_address_although_task_id_is_zero(google: GoogleServer) -> None:
    google.add(instance("vm-0", ip="10.0.0.1"), instance("vm-1", ip="127.0.0.1"))
    google.instance_groups["workers"] = ["vm-0", "vm-1"]
    resolver = workers()
    assert (resolver.known_jobs, resolver.task_type, resolver.task_id) == (["worker"], "worker", 0)
    assert (await resolver.this_task()).index == 1
    assert (await workers(task_id=0).this_task()).index == 0
