"""`TFConfigClusterResolver`."""

import json
from typing import Any

import pytest

from aioresolve import (
    ConfigurationError,
    EnvironmentVariableError,
    Task,
    TFConfigClusterResolver,
    UnknownTaskError,
    launch,
)

CLUSTER = {"ps": ["ps0:2222", "ps1:2222"], "worker": ["worker0:2222", "worker1:2222", "worker2:2222"]}


@pytest.fixture
def set_config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set `$TF_CONFIG` to the given keys."""

    def set_config(**config: Any) -> None:
        monkeypatch.setenv("TF_CONFIG", json.dumps(config))

    return set_config


def task(job: Any, index: Any) -> dict[str, Any]:
    return {"type": job, "index": index}


async def test_sparse_job_has_its_indices_as_keys(set_config: Any) -> None:
    set_config(cluster={"worker": {"1": "a:1", "3": "b:1"}})
    assert (await TFConfigClusterResolver().cluster_spec()).as_dict() == {"worker": {1: "a:1", 3: "b:1"}}


@pytest.mark.parametrize("value", [None, '{"cluster": {}}'])
async def test_without_a_cluster_it_is_empty(value: str | None, monkeypatch: Any) -> None:
    if value is not None:
        monkeypatch.setenv("TF_CONFIG", value)
    resolver = TFConfigClusterResolver()
    assert not await resolver.cluster_spec()
    assert await resolver.master() == ""
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)


class TestTask:
    async def test_task_is_that_of_the_variable(self, set_config: Any) -> None:
        set_config(cluster=CLUSTER, task=task("worker", 1), rpc_layer="grpc")
        resolver = TFConfigClusterResolver()
        assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")
        assert await resolver.this_task() == Task("worker", 1, "worker1:2222", 3, 5)
        assert await resolver.master() == "grpc://worker1:2222"

    async def test_overrides_decide(self, set_config: Any) -> None:
        set_config(cluster=CLUSTER, task=task("ps", 1), rpc_layer="grpc")
        resolver = TFConfigClusterResolver("worker", 0, "http", "google")
        assert await resolver.master() == "http://worker0:2222"
        assert resolver.environment == "google"
        resolver.task_type, resolver.task_id, resolver.rpc_layer = "ps", 0, "test"
        assert await resolver.master() == "test://ps0:2222"
        resolver.task_type = resolver.task_id = resolver.rpc_layer = None
        assert await resolver.master() == "grpc://ps1:2222"

    def test_index_and_type_may_be_numbers_or_text(self, set_config: Any) -> None:
        for index, expected in (("1", 1), (1.0, 1), (2**31 - 1, 2**31 - 1)):
            set_config(task=task(123456, index))
            resolver = TFConfigClusterResolver()
            assert (resolver.task_type, resolver.task_id) == ("123456", expected)
        assert TFConfigClusterResolver("worker", "0000000001").task_id == 1  # type: ignore[arg-type]

    async def test_task_without_a_name_is_identified_by_the_host_name(
        self, set_config: Any, monkeypatch: Any
    ) -> None:
        monkeypatch.setattr("socket.gethostname", lambda: "worker2")
        set_config(cluster=CLUSTER)
        assert (await TFConfigClusterResolver().this_task()).index == 2

    async def test_evaluator_outside_the_cluster_is_a_task_without_an_address(self, set_config: Any) -> None:
        set_config(cluster=CLUSTER, task=task("evaluator", 1))
        resolver = TFConfigClusterResolver()
        evaluator = await resolver.this_task()
        assert evaluator == Task("evaluator", 1, "", 0, 0)
        assert await resolver.this_task(await resolver.cluster_state()) == evaluator
        variables = launch.tensorflow(await resolver.cluster_spec(), evaluator)
        assert json.loads(variables["TF_CONFIG"]) == {"cluster": CLUSTER, "task": task("evaluator", 1)}
        with pytest.raises(UnknownTaskError, match="no job 'evaluator'"):
            await resolver.master()
        set_config(cluster=CLUSTER, task={"type": "evaluator"})
        assert (await resolver.this_task()).index == 0
        set_config(cluster={**CLUSTER, "evaluator": ["e:1"]}, task=task("evaluator", 0))
        assert (await resolver.this_task()).address == "e:1"


class TestMaster:
    async def test_session_master_decides(self, set_config: Any) -> None:
        set_config(cluster=CLUSTER, task=task("ps", 0), session_master="m:1", rpc_layer="grpc")
        resolver = TFConfigClusterResolver()
        assert await resolver.master() == await resolver.master("worker", 0) == "m:1"
        with pytest.raises(ConfigurationError, match="`timeout=`"):
            await resolver.master(timeout=0)

    async def test_single_task_needs_no_master(self, set_config: Any) -> None:
        set_config(cluster={"worker": ["a:1"]})
        assert await TFConfigClusterResolver().master() == ""
        set_config(cluster={"worker": {"1": "a:1"}}, task=task("worker", 1))
        assert await TFConfigClusterResolver().master() == "a:1"
        set_config(cluster={"ps": [], "worker": ["a:1"]}, task=task("worker", 0))
        assert await TFConfigClusterResolver().master() == "a:1"


class TestMalformed:
    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ("", "is not JSON: it is empty"),
            ("{", "is not JSON: "),
            ('{"cluster": null}', "`object`, got `null` - at `$.cluster`"),
            ('{"cluster": {"worker": "a:1"}}', "`$.cluster`: job 'worker': the tasks must be a list"),
            ('{"cluster": {"worker": [' + "[" * 100_000, "is not JSON: "),
            ('{"task": "worker"}', "`object`, got `str` - at `$.task`"),
            ('{"task": {"index": 1.5}}', "got `float` - at `$.task.index`"),
            ('{"task": {"index": -1}}', "Expected `int` >= 0 - at `$.task.index`"),
            ('{"task": {"index": 2147483648}}', "Expected `int` <= 2147483647 - at `$.task.index`"),
        ],
    )
    async def test_each_shape_is_one_error_that_names_the_place(
        self, value: str, problem: str, monkeypatch: Any
    ) -> None:
        monkeypatch.setenv("TF_CONFIG", value)
        resolver = TFConfigClusterResolver()
        with pytest.raises(EnvironmentVariableError) as error:
            await resolver.cluster_spec()
        assert error.value.summary.startswith("$TF_CONFIG is ")
        assert problem in error.value.summary
        assert "Set it to JSON such as" in str(error.value)
        assert error.value.variable == "TF_CONFIG"
        with pytest.raises(EnvironmentVariableError):
            _ = resolver.task_type

    @pytest.mark.parametrize("task_id", [-1, True, "one", "00000000001"])
    def test_invalid_override_is_an_error(self, task_id: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"`task_id=`: .* is not an integer from 0"):
            TFConfigClusterResolver("worker", task_id)
        with pytest.raises(ConfigurationError, match="`task_id=`"):
            TFConfigClusterResolver().task_id = task_id
