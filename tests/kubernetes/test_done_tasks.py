"""Members that end while others run: they are done, or replaced, or their job fails; and waits for them."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import anyio
import anyio.to_thread
import pytest

from aioresolve import ClusterState, DoneTask, KubernetesClusterResolver, Progress, UnionClusterResolver, Want
from aioresolve.errors import FailedClusterError, PodNotRunningError
from aioresolve.testing import Answer, pod

from .loopback import Loopback, is_controller_read
from .samples import watch_policy

RUN = "uid-of-this-run"


def job_pod(
    index: int, *, suffix: str = "aaaaa", job: str = "train", run: str = RUN, **more: Any
) -> dict[str, Any]:
    """Return a pod of an Indexed Job, by default `train-INDEX-aaaaa` of the Job `train`."""
    labels = {"app": "train", "batch.kubernetes.io/job-name": job, **more.pop("labels", {})}
    built = pod(f"{job}-{index}-{suffix}", "ml", labels=labels, index=index, **more)
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": run, "controller": True}
    built["metadata"]["ownerReferences"] = [reference]
    return built


def indexed_job(
    size: int, *, parallelism: int | None = None, suspend: bool = False, **status: Any
) -> dict[str, Any]:
    """Return the Job `train`."""
    spec = {
        "completions": size,
        "parallelism": parallelism or size,
        "completionMode": "Indexed",
        "suspend": suspend,
    }
    metadata = {"name": "train", "namespace": "ml"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec, "status": status}


def condition(type_: str, reason: str, message: str) -> Mapping[str, Any]:
    return {"conditions": [{"type": type_, "status": "True", "reason": reason, "message": message}]}


def ranks(state: ClusterState) -> list[tuple[int, int, int]]:
    """Return the task index, rank and number of tasks of each member."""
    return [(task.index, task.rank, task.num_tasks) for task in state.tasks]


def resolver_of(loopback: Loopback, interval: float = 0.05, **arguments: Any) -> KubernetesClusterResolver:
    resolver = loopback.resolver(**arguments)
    resolver.watch_policy = watch_policy(size_interval=interval)
    return resolver


async def until(loopback: Loopback, condition: Callable[[], bool]) -> None:
    await anyio.to_thread.run_sync(loopback.server.until, condition)


@pytest.fixture(params=["name", "index", "label:batch.kubernetes.io/job-completion-index"])
def order_by(request: pytest.FixtureRequest) -> str:
    order: str = request.param
    return order


async def test_members_keep_their_index_and_rank_when_another_member_is_done(
    loopback: Loopback, order_by: str
) -> None:
    loopback.server.add_controllers(indexed_job(4))
    loopback.server.add(job_pod(0), job_pod(1, phase="Succeeded"), job_pod(2), job_pod(3))
    state = await resolver_of(loopback, order_by=order_by).wait(timeout=30)
    assert ranks(state) == [(0, 0, 4), (2, 2, 4), (3, 3, 4)]
    uid = loopback.server.pod("train-1-aaaaa", "ml")["metadata"]["uid"]
    assert state.done == (DoneTask("worker", 1, "ml/train-1-aaaaa", uid),)
    assert state.spec.as_dict() == {
        "worker": {index: loopback.address(f"train-{index}-aaaaa") for index in (0, 2, 3)}
    }


async def test_failed_pod_ends_the_wait_unless_a_controller_replaces_it(loopback: Loopback) -> None:
    loopback.add_trainers("train-0")
    loopback.add_trainers("train-1", phase="Failed", reason="Evicted", message="The node was low on memory.")
    with pytest.raises(FailedClusterError, match=r"ml/train-1: Failed \(Evicted"):
        await resolver_of(loopback).wait(2, timeout=60)
    loopback.replace_pods([job_pod(0), job_pod(1, phase="Failed")])
    task = asyncio.ensure_future(resolver_of(loopback).wait(2, timeout=30))
    await until(loopback, lambda: loopback.server.watches > 0)
    loopback.server.add(job_pod(1, suffix="again"))
    assert (await task).spec.num_tasks("worker") == 2


async def test_wait_ends_only_when_the_late_members_of_a_job_run_too(loopback: Loopback) -> None:
    loopback.server.add_controllers(indexed_job(4))
    loopback.server.add(job_pod(0), job_pod(1, phase="Succeeded"), job_pod(2, phase="Pending"))
    task = asyncio.ensure_future(resolver_of(loopback).wait(timeout=30))
    await until(loopback, lambda: loopback.server.watches > 0)
    loopback.server.add(job_pod(2))
    assert not task.done()
    loopback.server.add(job_pod(3))
    assert ranks(await task) == [(0, 0, 4), (2, 2, 4), (3, 3, 4)]


@pytest.mark.parametrize("count", [2, (1, 2)])
async def test_more_tasks_than_wanted_are_an_error_that_names_them(loopback: Loopback, count: Any) -> None:
    loopback.server.add(job_pod(0), job_pod(1), pod("debug", "ml", labels={"app": "train"}))
    message = "there are 3 instead of 2: ml/debug, ml/train-0-aaaaa, ml/train-1-aaaaa"
    with pytest.raises(FailedClusterError, match=message) as caught:
        await resolver_of(loopback).wait(count, timeout=30)
    assert "Correct the selector, or `count=`" in str(caught.value)


async def test_success_in_an_earlier_run_of_the_job_does_not_count(loopback: Loopback, order_by: str) -> None:
    loopback.server.add_controllers(indexed_job(2))
    loopback.server.add(
        job_pod(0, suffix="old00", run="an-earlier-run", phase="Succeeded"), job_pod(0), job_pod(1)
    )
    state = await resolver_of(loopback, order_by=order_by).wait(timeout=30)
    assert (ranks(state), state.done) == ([(0, 0, 2), (1, 1, 2)], ())


@pytest.mark.parametrize("label", ["restart-attempt", "jobset-uid"])
async def test_success_in_an_earlier_run_of_a_jobset_does_not_count(loopback: Loopback, label: str) -> None:
    def of_run(run: int, index: int, **more: Any) -> dict[str, Any]:
        labels = {
            "jobset.sigs.k8s.io/jobset-name": "set",
            "jobset.sigs.k8s.io/replicatedjob-name": "w",
            "jobset.sigs.k8s.io/job-index": "0",
            f"jobset.sigs.k8s.io/{label}": str(run),
        }
        return job_pod(index, suffix=f"try0{run}", run=f"job-{run}", labels=labels, **more)

    ended = [of_run(run, 3 - run, phase="Succeeded") for run in (0, 1)]
    loopback.server.add(*ended, of_run(1, 0), of_run(1, 1))
    state = await resolver_of(loopback, order_by="index").wait(3, timeout=30)
    assert (ranks(state), [each.index for each in state.done]) == ([(0, 0, 3), (1, 1, 3)], [2])


async def test_pod_that_is_done_and_was_removed_keeps_its_index(loopback: Loopback) -> None:
    loopback.server.add_controllers(indexed_job(4, succeeded=2, completedIndexes="0,2"))
    loopback.server.add(job_pod(1), job_pod(3))
    resolver = resolver_of(loopback, order_by="index")
    first = await resolver.observe(Want(sizes=True), progress := Progress())
    assert (progress.missing, progress.reached["Job ml/train"]) == ({}, "status 200")
    assert first.state is not None
    assert (first.state.done, first.expected["worker"].done) == ((), 0)  # pods may be older than the Job
    loopback.server.add(job_pod(2, phase="Succeeded"))
    state = await resolver.wait(timeout=30)
    assert ranks(state) == [(1, 1, 4), (3, 3, 4)]
    assert [(each.index, each.name) for each in state.done] == [(2, "ml/train-2-aaaaa"), (0, None)]
    twice: dict[str, Any] = {"jobs": {"worker": ["app=train", "app=train"]}, "order_by": "index"}
    for number, arguments in ((1, {}), (2, twice)):
        with pytest.raises(FailedClusterError, match=f": {number} have ended with success and no longer exi"):
            await resolver_of(loopback, **arguments).wait(timeout=30)


@pytest.mark.parametrize("completed", ["x-3", "0-x", "-0", "0-200000"])
async def test_pods_that_were_removed_have_no_index_if_the_job_reports_invalid_ones(
    loopback: Loopback, completed: str
) -> None:
    loopback.server.add_controllers(indexed_job(4, succeeded=2, completedIndexes=completed))
    loopback.server.add(job_pod(1), job_pod(2, phase="Succeeded"), job_pod(3))
    with pytest.raises(FailedClusterError, match="1 have ended with success and no longer exist"):
        await resolver_of(loopback, order_by="index").wait(timeout=30)


async def test_watch_reports_a_member_that_is_done_as_such(loopback: Loopback) -> None:
    loopback.server.add(job_pod(0), job_pod(1), job_pod(2))
    async with aclosing(resolver_of(loopback).watch()) as states:
        before = await anext(states)
        loopback.server.patch("train-0-aaaaa", "ml", patch={"status": {"phase": "Succeeded"}})
        after = await anext(states)
    diff = after.diff(before)
    assert [member.endpoint.name for member in diff.done] == ["train-0-aaaaa"]
    assert (diff.left, diff.joined, diff.moved) == ((), (), ())
    assert str(diff).startswith("done /job:worker/task:0 at ")
    assert ranks(after) == [(1, 1, 3), (2, 2, 3)]


async def test_container_that_is_restarted_in_place_counts_as_a_replacement(loopback: Loopback) -> None:
    containers: dict[str, Any] = {
        "containers": ("proxy", "main"),
        "annotations": {"kubectl.kubernetes.io/default-container": "main"},
    }
    loopback.server.add(job_pod(0, **containers), job_pod(1, **containers))

    def restart(name: str, count: int) -> dict[str, Any]:
        statuses = loopback.server.pod("train-1-aaaaa", "ml")["status"]["containerStatuses"]
        changed = [each | {"restartCount": count} if each["name"] == name else each for each in statuses]
        return {"status": {"containerStatuses": changed}}

    async with aclosing(resolver_of(loopback).watch()) as states:
        before = await anext(states)
        loopback.server.patch("train-1-aaaaa", "ml", patch=restart("proxy", 7))  # not the program
        loopback.server.patch("train-1-aaaaa", "ml", patch=restart("main", 1))
        after = await anext(states)
    diff = after.diff(before)
    assert [member.task_index for member in diff.left] == [member.task_index for member in diff.joined] == [1]
    assert after.endpoints["worker"][1].restarts == 1


FAILED = condition("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")


async def test_failed_job_ends_the_wait_with_its_reason_and_the_exit_codes_of_its_pods(
    loopback: Loopback,
) -> None:
    loopback.server.add_controllers(indexed_job(2, **FAILED))
    loopback.server.add(
        job_pod(0, phase="Failed", exit_code=3), job_pod(0, suffix="again", phase="Failed", exit_code=7)
    )
    for count in (None, 2):
        with pytest.raises(FailedClusterError) as caught:
            await resolver_of(loopback).wait(count, timeout=30)
        text = str(caught.value)
        assert "ml/train: failed (BackoffLimitExceeded: Job has reached the specified backoff limit)" in text
        assert "ml/train-0-aaaaa: Failed (Error: exit code 3)" in text
        assert "ml/train-0-again: Failed (Error: exit code 7)" in text


async def test_complete_job_ends_the_wait(loopback: Loopback) -> None:
    loopback.server.add_controllers(indexed_job(1, **condition("Complete", "CompletionsReached", "")))
    loopback.server.add(job_pod(0, phase="Succeeded"))
    with pytest.raises(FailedClusterError, match=r"Job ml/train: complete \(CompletionsReached\)"):
        await resolver_of(loopback).wait(timeout=30)


async def test_suspended_job_is_waited_for_until_it_is_resumed(loopback: Loopback) -> None:
    loopback.server.add_controllers(indexed_job(1, suspend=True))
    resolver = resolver_of(loopback, jobs={"worker": ["batch.kubernetes.io/job-name=train"]}, namespace="ml")
    (status,) = (await resolver.observe(Want(controllers=True), Progress())).controllers["worker"]
    assert str(status) == "suspended"
    task = asyncio.ensure_future(resolver.wait(timeout=30))
    await until(loopback, lambda: len(list(filter(is_controller_read, loopback.requests))) > 1)
    assert not task.done()
    loopback.server.add_controllers(indexed_job(1))
    loopback.server.add(job_pod(0))
    assert ranks(await task) == [(0, 0, 1)]


async def test_job_that_is_created_after_the_wait_began_has_its_size(loopback: Loopback) -> None:
    labels = {"job-name": "train"}
    resolver = resolver_of(loopback, jobs={"worker": ["job-name=train"]}, namespace="ml")
    task = asyncio.ensure_future(resolver.wait(timeout=30))
    await until(loopback, lambda: loopback.server.watches > 0)
    loopback.server.add_controllers(indexed_job(2))
    loopback.server.add(job_pod(0, labels=labels))
    loopback.server.forget_requests()
    await until(loopback, lambda: any(map(is_controller_read, loopback.requests)))
    loopback.server.add(job_pod(1, labels=labels))
    assert ranks(await task) == [(0, 0, 2), (1, 1, 2)]


async def test_job_without_a_permission_to_read_it_is_waited_for(loopback: Loopback) -> None:
    loopback.server.inject(Answer(403), times=None, match=is_controller_read)
    loopback.server.add(job_pod(0, phase="Failed"))
    task = asyncio.ensure_future(resolver_of(loopback).wait(1, timeout=30))
    await until(loopback, lambda: any(map(is_controller_read, loopback.requests)))
    loopback.server.add(job_pod(0, suffix="again"))
    assert ranks(await task) == [(0, 0, 1)]


async def test_job_that_may_not_be_read_is_read_once_if_a_selector_of_it_matches_nothing(
    loopback: Loopback,
) -> None:
    loopback.server.inject(Answer(403), times=None, match=is_controller_read)
    labels = {"job-name": "train"}
    loopback.server.add(job_pod(0, labels=labels))
    jobs = {"worker": ["job-name=train"], "ps": ["job-name=train,role=ps"]}
    task = asyncio.ensure_future(resolver_of(loopback, 3600.0, jobs=jobs, namespace="ml").wait(timeout=30))
    await until(loopback, lambda: any(map(is_controller_read, loopback.requests)))
    loopback.server.add(job_pod(1, labels={**labels, "role": "ps"}))
    assert (await task).spec.num_tasks("ps") == 1
    assert sum(map(is_controller_read, loopback.requests)) == 1


async def test_calls_without_a_wait_raise_for_a_pod_that_is_done_or_skip_it(
    loopback: Loopback, order_by: str
) -> None:
    loopback.server.add(job_pod(0), job_pod(1, phase="Succeeded"), job_pod(2))
    with pytest.raises(PodNotRunningError, match="train-1-aaaaa: Succeeded"):
        await loopback.resolver(order_by=order_by).cluster_spec()
    skipping = loopback.resolver(order_by=order_by, not_running="skip")
    state = await skipping.cluster_state()
    assert ranks(state) == [(0, 0, 3), (2, 2, 3)]
    assert await skipping.cluster_spec() == state.spec


async def test_union_numbers_the_tasks_of_all_resolvers_with_those_that_are_done(loopback: Loopback) -> None:
    loopback.server.add(job_pod(0), job_pod(1, phase="Succeeded"), job_pod(0, job="more", run="more"))
    one, two = (
        loopback.resolver({"worker": [f"batch.kubernetes.io/job-name={job}"]}, not_running="skip")
        for job in ("train", "more")
    )
    union = UnionClusterResolver(one, two)
    state = await union.wait(3, timeout=30)
    assert ranks(state) == [(0, 0, 3), (2, 2, 3)]
    assert [(each.job, each.index) for each in state.done] == [("worker", 1)]
    assert await union.cluster_spec() == state.spec
