"""Which TPUs are usable, which may become ready, and what an error says about them."""

from typing import Any

import pytest

from aioresolve import TPUClusterResolver
from aioresolve.errors import TPUNotReadyError
from aioresolve.testing import GoogleServer, queued_resource, tpu_node

ZONE, PROJECT = "us-central2-b", "demo-project"


def resolver(*names: str) -> TPUClusterResolver:
    return TPUClusterResolver(list(names or ("my-tpu",)), ZONE, PROJECT)


async def error_of(google: GoogleServer, **fields: Any) -> TPUNotReadyError:
    """Return the error for the node `my-tpu` with these fields."""
    google.add(tpu_node("my-tpu", ips=["10.0.0.1"]))
    google.patch("my-tpu", **fields)
    with pytest.raises(TPUNotReadyError) as raised:
        await resolver().cluster_spec()
    return raised.value


async def test_a_ready_node_that_is_not_reported_unhealthy_is_usable(google: GoogleServer) -> None:
    google.add(tpu_node("my-tpu"))
    for health in ("", "HEALTHY", "HEALTH_UNSPECIFIED", "SOMETHING_NEW"):
        google.patch("my-tpu", health=health)
        assert (await resolver().cluster_spec()).num_tasks("worker") == 1
    for health in ("UNHEALTHY_MAINTENANCE", "UNHEALTHY_NEW", "TIMEOUT"):
        error = await error_of(google, health=health)
        assert (error.state, error.health, error.retryable) == ("READY", health, True)
        assert "`not_healthy='allow'`" in str(error)


@pytest.mark.parametrize(
    ("fields", "reason", "retryable"),
    [
        ({"state": ""}, "state unknown", True),
        ({"state": "NEW_STATE"}, "state NEW_STATE", True),
        ({"state": "REPAIRING", "healthDescription": "soon"}, "state REPAIRING; 'soon'", True),
        ({"state": "DELETING"}, "state DELETING; create it again when it is deleted", False),
        ({"state": "HIDDEN"}, "state HIDDEN", False),
        ({"state": "PREEMPTED"}, "state PREEMPTED; delete it and create it again", False),
        (
            {"state": "PREEMPTED", "queuedResource": "projects/p/locations/z/queuedResources/q"},
            "state PREEMPTED; delete its queued resource q and create it again",
            False,
        ),
        ({"state": "TERMINATED"}, "state TERMINATED; delete it and create it again", False),
        ({"state": "STOPPING"}, "state STOPPING", False),
        (
            {"state": "REPAIRING", "queuedResource": "projects/p/locations/z/queuedResources/q"},
            "state REPAIRING",
            True,
        ),
        ({"state": "STOPPED"}, "state STOPPED; start it with `gcloud compute tpus tpu-vm start`", False),
        (
            {"health": "UNHEALTHY_MAINTENANCE"},
            "state READY, health UNHEALTHY_MAINTENANCE; wait until the maintenance is over",
            True,
        ),
        ({"networkEndpoints": []}, "state READY, but it has no network endpoint", True),
        (
            {"networkEndpoints": [{"ipAddress": "10.0.0.1"}, {}]},
            "state READY, but worker 1 has no network endpoint",
            True,
        ),
    ],
)
async def test_the_error_has_the_reason_and_the_remedy(
    google: GoogleServer, fields: dict[str, Any], reason: str, retryable: bool
) -> None:
    error = await error_of(google, **fields)
    assert error.tpus == {"my-tpu": reason}
    assert error.retryable is retryable
    assert ("not_healthy" in str(error)) is ("health" in fields)


async def test_long_texts_of_the_server_are_truncated(google: GoogleServer) -> None:
    symptoms = [{"symptomType": f"KIND_{number}", "details": "~" * 1000} for number in range(7)]
    error = await error_of(google, state="REPAIRING", healthDescription="+" * 1000, symptoms=symptoms)
    assert (str(error).count("+"), str(error).count("~")) == (300, 5 * 200)
    assert [number for number in range(7) if f"KIND_{number}" in str(error)] == [2, 3, 4, 5, 6]
    assert len(error.symptoms) == 7


async def test_every_unready_tpu_is_listed_and_a_lost_one_makes_the_error_final(google: GoogleServer) -> None:
    google.add(tpu_node("a", state="CREATING"), tpu_node("b", state="PREEMPTED"))
    for call in (TPUClusterResolver.cluster_spec, TPUClusterResolver.slices):
        with pytest.raises(TPUNotReadyError) as raised:
            await call(resolver("a", "b"))
        error = raised.value
        assert (list(error.tpus), error.state, error.retryable) == (["a", "b"], "CREATING", False)
        assert error.summary.startswith("2 TPUs are not ready; retrying alone will not help. a: state CREAT")


@pytest.mark.parametrize(
    ("state", "retryable"),
    [
        ("ACCEPTED", True),
        ("NEW", True),
        ("FAILED", False),
        ("SUSPENDED", False),
        ("SUSPENDING", False),
        ("DELETING", False),
    ],
)
async def test_a_queued_resource_that_is_not_active_has_no_nodes(
    google: GoogleServer, state: str, retryable: bool
) -> None:
    google.add(queued_resource("q"))
    failed = {"error": {"code": 8, "message": "~" * 1000}}
    google.patch("q", state={"state": state, "failedData": failed})
    with pytest.raises(TPUNotReadyError) as raised:
        await resolver("q").cluster_spec()
    assert raised.value.retryable is retryable
    assert f"queued resource in state {state}; '{'~' * 300}'" in str(raised.value)
