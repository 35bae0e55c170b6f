"""`SageMakerClusterResolver`."""

import json
from typing import Any

import pytest

from aioresolve import (
    ConfigurationError,
    EnvironmentVariableError,
    SageMakerClusterResolver,
    Task,
    TaskIdentityError,
    UnknownTaskError,
)


@pytest.fixture
def set_hosts(monkeypatch: pytest.MonkeyPatch) -> Any:
    def set_hosts(hosts: list[str] | str, current: str | None = None) -> None:
        monkeypatch.setenv("SM_HOSTS", hosts if isinstance(hosts, str) else json.dumps(hosts))
        if current is not None:
            monkeypatch.setenv("SM_CURRENT_HOST", current)

    return set_hosts


async def test_each_host_is_a_worker_in_sagemakers_order(set_hosts: Any) -> None:
    set_hosts(["algo-2", "algo-10", "algo-1"], "algo-10")
    resolver = SageMakerClusterResolver()
    workers = ["algo-1:2223", "algo-10:2223", "algo-2:2223"]
    assert (await resolver.cluster_spec()).as_dict() == {"worker": workers}
    assert await resolver.this_task() == Task("worker", 1, "algo-10:2223", 1, 3)
    assert (resolver.known_jobs, resolver.task_type, resolver.task_id) == (["worker"], "worker", 1)
    assert await resolver.master() == "algo-10:2223"


async def test_overrides_decide(set_hosts: Any) -> None:
    set_hosts(["algo-1", "algo-2"], "algo-1")
    resolver = SageMakerClusterResolver(5000, "worker", 1, "grpc", "google")
    assert await resolver.master() == "grpc://algo-2:5000"
    assert resolver.environment == "google"
    resolver.task_id, resolver.rpc_layer = 0, "test"
    assert await resolver.master() == "test://algo-1:5000"


async def test_no_host_or_one_needs_no_master(set_hosts: Any) -> None:
    for hosts in ("", "[]", ["algo-1"]):
        set_hosts(hosts, "")
        assert await SageMakerClusterResolver().master() == ""


async def test_master_of_an_unknown_host_is_an_error(set_hosts: Any) -> None:
    set_hosts(["algo-1", "algo-2"])
    with pytest.raises(UnknownTaskError, match="Pass `task_type=` and `task_id=`"):
        await SageMakerClusterResolver().master()


async def test_current_host_outside_the_list_is_an_error(set_hosts: Any) -> None:
    set_hosts(["algo-1", "algo-2"], "algo-3")
    with pytest.raises(
        EnvironmentVariableError, match=r"\$SM_CURRENT_HOST is 'algo-3', which is not in \$SM"
    ):
        await SageMakerClusterResolver().cluster_spec()


async def test_host_of_a_group_that_does_not_train_is_no_task(
    set_hosts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_hosts(["algo-1", "algo-2"], "algo-1")
    groups = {"data": {"hosts": ["algo-1"]}, "dnn": {"hosts": ["algo-2"]}}
    monkeypatch.setenv("SM_INSTANCE_GROUPS_DICT", json.dumps(groups))
    monkeypatch.setenv("SM_DISTRIBUTION_INSTANCE_GROUPS", '["dnn"]')
    monkeypatch.setattr("socket.gethostname", lambda: "algo-1")
    resolver = SageMakerClusterResolver()
    assert (await resolver.cluster_spec()).as_dict() == {"worker": ["algo-2:2223"]}
    with pytest.raises(TaskIdentityError, match="the host name 'algo-1': no member"):
        await resolver.this_task()


async def test_groups_that_train_must_be_known(set_hosts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    set_hosts(["algo-1", "algo-2"], "algo-1")
    groups = {"a": {"hosts": ["algo-1"]}, "b": {"hosts": ["algo-2"]}}
    monkeypatch.setenv("SM_INSTANCE_GROUPS_DICT", json.dumps(groups))
    for value, problem in (
        ("", "does not say which of the groups ['a', 'b'] ($SM_INSTANCE_GROUPS) are the cluster"),
        ('["x"]', "has 'x', which is not one of the groups ['a', 'b'] ($SM_INSTANCE_GROUPS)"),
    ):
        monkeypatch.setenv("SM_DISTRIBUTION_INSTANCE_GROUPS", value)
        with pytest.raises(EnvironmentVariableError) as error:
            await SageMakerClusterResolver().cluster_spec()
        assert error.value.summary == f"$SM_DISTRIBUTION_INSTANCE_GROUPS {problem}"


async def test_without_the_variables_this_is_not_sagemaker() -> None:
    with pytest.raises(EnvironmentVariableError, match=r"\$SM_HOSTS is not set. Run this in a SageMaker"):
        await SageMakerClusterResolver().cluster_spec()


@pytest.mark.parametrize(
    ("hosts", "problem"),
    [
        ("algo-1", r"'algo-1', not the JSON that SageMaker writes: .*\. Set it to JSON such as \["),
        ("[1]", r"'\[1\]', not .*: Expected `str`, got `int` - at `\$\[0\]`\. Set it to JSON such as \["),
        ('["a:1"]', r"invalid: 'a:1' is not a host name or IP address\. Leave out the port"),
    ],
)
async def test_malformed_list_is_one_error(hosts: str, problem: str, set_hosts: Any) -> None:
    set_hosts(hosts)
    with pytest.raises(EnvironmentVariableError, match=rf"^\$SM_HOSTS is {problem}"):
        await SageMakerClusterResolver().this_task()


def test_invalid_port_is_rejected() -> None:
    for port in (0, 65536, True, "2224", None):
        with pytest.raises(ConfigurationError, match=r"`port=`: .* is not a port from 1 to 65535"):
            SageMakerClusterResolver(port)  # type: ignore[arg-type]
