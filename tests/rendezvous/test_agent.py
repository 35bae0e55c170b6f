"""Agents agree on rounds and ranks over a loopback API server.

`trainer(i)` is the pod `trainer-i` of an Indexed Job, with the address 10.0.0.(i + 1), and `nodes` the
minimum and the maximum of a round. A round begins when the maximum waits, or the minimum and every pod that
is expected.
"""

import asyncio
from collections import Counter
from random import Random
from typing import Any

import anyio
import pytest
import yaml
from msgspec.structs import replace

from aioresolve.errors import ConfigurationError, ForbiddenError, IncompleteClusterError
from aioresolve.kubernetes.api.objects import ObjectMeta
from aioresolve.rendezvous.agent import POLICY, Agent, ClosedError, Round
from aioresolve.rendezvous.objects import ConfigMapQuery, Lease, LeaseQuery, LeaseSpec, Objects
from aioresolve.rendezvous.protocol import Closed, Life, Limits, Node, World
from aioresolve.testing import Answer, Cut, Delay, RequestRecord, Reset
from tests.testing.client import bearer, fetch
from tests.virtual_time import in_virtual_time

from .conftest import USER, Cluster, join, trainer, until


def numbers(rounds: list[Round]) -> list[tuple[int, int, int]]:
    """Return the round, the rank and the size of the world of each agent."""
    return [(each.world.round, each.rank, len(each.world.nodes)) for each in rounds]


async def test_ranks_follow_the_index_and_rank_0_offers_the_store(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(3)))
    rounds = await join(await cluster.agents(2, 0, 1, nodes=(2, 3)))
    assert numbers(rounds) == [(1, 2, 3), (1, 0, 3), (1, 1, 3)]
    assert {each.world.host for each in rounds} == {"10.0.0.1"}


async def test_the_others_continue_without_a_lost_pod_which_gets_its_rank_back(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(3)))
    first, second, third = await cluster.agents(0, 1, 2, nodes=(2, 3))
    await join([first, second, third])
    assert second.nodes_waiting == 0
    cluster.server.delete("trainer-0", "ml")
    await until(lambda: second.nodes_waiting == third.nodes_waiting == 1)
    assert numbers(await join([second, third])) == [(2, 0, 2), (2, 1, 2)]
    cluster.server.add(trainer(0))
    replaced = await cluster.agent(0, nodes=(2, 3))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(join, [replaced])
        await until(lambda: second.nodes_waiting == third.nodes_waiting == 1)
        assert numbers(await join([third, second])) == [(3, 2, 3), (3, 1, 3)]


async def test_a_restarted_container_takes_part_as_another_process(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)))
    first, second = await cluster.agents(0, 1, nodes=(2, 3))
    await join([first, second])
    cluster.server.patch("trainer-1", "ml", patch=trainer(1, restarts=1))
    await until(lambda: first.nodes_waiting == 1)
    again = await cluster.agent(1, nodes=(2, 3))
    assert numbers(await join([first, again])) == [(2, 0, 2), (2, 1, 2)]


@pytest.mark.parametrize(
    "crashed",
    [
        trainer(1, exit_code=1),
        trainer(1, waiting="CrashLoopBackOff", restarts=1),
        trainer(1, restarts=1),
        trainer(1, phase="Failed"),
        trainer(1, deleting=True),
    ],
)
async def test_a_crash_in_a_pod_that_no_watch_reports_is_noticed(
    cluster: Cluster, crashed: dict[str, Any]
) -> None:
    cluster.server.add(*map(trainer, range(3)))
    without_1 = "batch.kubernetes.io/job-completion-index!=1"
    first, second, spare = await cluster.agents(0, 1, 2, nodes=(2, 2), selector=without_1)
    await join([first, second])
    cluster.server.patch("trainer-1", "ml", patch=crashed)
    assert numbers(await join([first, spare])) == [(2, 0, 2), (2, 1, 2)]


async def test_a_restarted_container_is_alive_although_no_watch_reports_its_pod(cluster: Cluster) -> None:
    cluster.server.add(trainer(0), trainer(1, exit_code=1))
    first, second = await cluster.agents(0, 1, nodes=(2, 2), selector="app=other")
    # The status of the pod is that of the process before it.
    assert numbers(await join([first, second])) == [(1, 0, 2), (1, 1, 2)]


async def test_a_restart_that_is_reported_late_is_that_of_the_process_itself(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)))
    agents = await cluster.agents(0, 1, nodes=(2, 2))
    cluster.server.patch("trainer-1", "ml", patch=trainer(1, restarts=1))
    assert numbers(await join(agents)) == [(1, 0, 2), (1, 1, 2)]


async def test_a_program_that_waits_for_its_restart_is_dead(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(3)))
    first, second, third = await cluster.agents(0, 1, 2, nodes=(2, 3))
    await join([first, second, third])
    crashed = trainer(2, waiting="CrashLoopBackOff")
    crashed["status"]["containerStatuses"][0]["lastState"] = {"terminated": {"exitCode": 1}}
    cluster.server.patch("trainer-2", "ml", patch=crashed)
    assert numbers(await join([first, second])) == [(2, 0, 2), (2, 1, 2)]


async def test_each_agent_sends_few_requests_and_writes_little(cluster: Cluster) -> None:
    size = 12
    cluster.server.add(*map(trainer, range(size)))
    await join(await cluster.agents(*range(size), nodes=(2, size)))
    methods = Counter(request.method for request in cluster.server.requests if request.path != "/healthz")
    # Each agent reads its pod and the ConfigMap, and watches both. All try to create the ConfigMap; all but
    # one are refused, and write their entries. One writes the world.
    assert methods["GET"] == 4 * size
    assert size < methods["POST"] + methods["PATCH"] <= 2 * size


@pytest.mark.parametrize(
    ("second", "pods", "rank"), [(1, [trainer(1), trainer(2, phase="Pending")], 1), (None, [], 2)]
)
async def test_the_first_round_waits_for_a_pod_that_has_not_started_and_with_nodes_outside_for_any(
    cluster: Cluster, second: int | None, pods: list[Any], rank: int
) -> None:
    cluster.server.add(trainer(0), *pods)
    agents = await cluster.agents(0, second, nodes=(2, 3))
    joining = asyncio.create_task(join(agents))
    await until(lambda: all(len(each.view.waiting) == 2 for each in agents))
    cluster.server.add(trainer(2))
    await join(await cluster.agents(2, nodes=(2, 3)))
    assert numbers(await joining) == [(1, 0, 3), (1, rank, 3)]


async def test_the_first_round_begins_when_a_pod_that_was_waited_for_is_deleted(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)), trainer(2, phase="Pending"))
    first, second = await cluster.agents(0, 1, nodes=(2, 3))
    joining = asyncio.create_task(join([first, second]))
    await until(lambda: len(first.view.waiting) == 2)
    cluster.server.delete("trainer-2", "ml")
    assert numbers(await joining) == [(1, 0, 2), (1, 1, 2)]


async def test_the_first_round_begins_without_a_pod_that_misses_the_last_call(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)), trainer(2, phase="Pending"))
    agents = await cluster.agents(0, 1, nodes=(2, 3))
    rounds = await asyncio.gather(*(each.join(port=1, timeout=60, last_call=0.1) for each in agents))
    assert numbers(rounds) == [(1, 0, 2), (1, 1, 2)]


async def test_pods_without_an_index_have_ranks_by_age(cluster: Cluster) -> None:
    for index, created in enumerate(("2026-11-20T00:00:02Z", "2026-11-20T00:00:01Z")):
        found = trainer(index, created=created)
        found["metadata"]["uid"] = f"uid-{index}"  # the reverse of the order by age
        for kind in ("labels", "annotations"):
            found["metadata"][kind].pop("batch.kubernetes.io/job-completion-index", None)
        cluster.server.add(found)
    assert numbers(await join(await cluster.agents(0, 1, nodes=(2, 2)))) == [(1, 1, 2), (1, 0, 2)]


async def test_too_few_nodes_are_an_error_that_says_why_each_pod_is_missing(cluster: Cluster) -> None:
    cluster.server.add(trainer(0), trainer(1, phase="Pending", reason="Unschedulable", message="no GPU"))
    cluster.server.add(trainer(2))
    [agent] = await cluster.agents(0, nodes=(2, 3))
    message = ""
    with anyio.fail_after(60):
        while "trainer-2" not in message:  # until the pods were listed
            with pytest.raises(IncompleteClusterError) as caught:
                await agent.join(port=1, timeout=0.05, last_call=60)
            message = str(caught.value)
    reasons = message.partition(" at least 2 nodes have to wait: ")[2].partition(". Repair")[0]
    assert sorted(reasons.split("; ")) == [
        "1 wait (trainer-0)",
        "ml/trainer-1: Pending (Unschedulable: no GPU)",
        "ml/trainer-2: it runs, but has not come to the barrier",
    ]
    await agent.end(failed=True)
    assert not agent.view.state.nodes


async def test_a_success_closes_the_rendezvous_for_pods_that_start_later(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)))
    first, second = await cluster.agents(0, 1, nodes=(2, 3))
    await join([first, second])
    await first.end(failed=False)
    await until(lambda: second.view.closed is not None)
    assert second.nodes_waiting == 0
    await second.end(failed=True)  # which changes nothing
    cluster.server.add(trainer(2))
    late = await cluster.agent(2, nodes=(2, 3))
    with pytest.raises(ClosedError, match="ended on 'trainer-0' in round 1") as caught:
        await late.join(port=1, timeout=60, last_call=60)
    assert not caught.value.is_spare


async def test_a_node_that_never_came_to_the_barrier_closes_the_rendezvous(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)))
    first, second = await cluster.agents(0, 1, nodes=(1, 1))
    await join([first])
    await second.close()
    await until(lambda: first.view.closed == Closed("trainer-1", 1))


@pytest.mark.parametrize("ended", [{"status": {"phase": "Succeeded"}}, trainer(1, exit_code=0)])
async def test_a_pod_that_ended_with_success_closes_it_too(cluster: Cluster, ended: dict[str, Any]) -> None:
    cluster.server.add(*map(trainer, range(2)))
    first, second = await cluster.agents(0, 1, nodes=(2, 3))
    await join([first, second])
    cluster.server.patch("trainer-1", "ml", patch=ended)
    await until(lambda: first.view.closed is not None)
    assert first.nodes_waiting == 0


async def test_the_next_attempt_starts_over_after_a_failure(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)))
    first, second = await cluster.agents(0, 1, nodes=(2, 3))
    await join([first, second])
    await first.end(failed=True)
    with pytest.raises(ClosedError, match="failed on 'trainer-0'"):
        await second.join(port=1, timeout=60, last_call=60)
    await second.end(failed=True)
    for index in range(2):
        cluster.server.delete(f"trainer-{index}", "ml")
        cluster.server.add(trainer(index))
    assert numbers(await join(await cluster.agents(0, 1, nodes=(2, 3)))) == [(3, 0, 2), (3, 1, 2)]


async def test_a_new_job_of_the_same_name_starts_over(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)))
    first, second = await cluster.agents(0, 1, nodes=(2, 3))
    await join([first, second])
    await first.end(failed=False)
    for index in range(2):
        cluster.server.delete(f"trainer-{index}", "ml")
        cluster.server.add(trainer(index, uid="-2"))
    assert numbers(await join(await cluster.agents(0, 1, nodes=(2, 3)))) == [(3, 0, 2), (3, 1, 2)]
    await until(lambda: second.view.state.world.round == 3)
    with pytest.raises(ClosedError, match="is in use by another workload"):
        await second.join(port=1, timeout=60, last_call=60)


async def test_a_spare_node_takes_the_place_of_a_lost_one(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(3)))
    first, second, spare = await cluster.agents(0, 1, 2, nodes=(2, 2))
    await join([first, second])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(join, [spare])
        await until(lambda: len(second.view.waiting) == 1)
        assert second.nodes_waiting == 0
        cluster.server.delete("trainer-0", "ml")
        await until(lambda: second.nodes_waiting == 2)
        assert numbers(await join([second])) == [(2, 0, 2)]


async def test_a_spare_node_learns_that_it_was_not_needed(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(3)))
    first, second, spare = await cluster.agents(0, 1, 2, nodes=(2, 2))
    await join([first, second])
    waiting = asyncio.create_task(spare.join(port=1, timeout=60, last_call=60))
    await until(lambda: len(spare.view.waiting) == 1)
    await first.end(failed=False)
    with pytest.raises(ClosedError) as caught:
        await waiting
    assert caught.value.is_spare


async def test_a_node_outside_of_pods_writes_its_lease_before_its_entry_and_renews_it_until_it_ends(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aioresolve.rendezvous.agent.LEASE_DURATION", 0.2)
    agent = await cluster.agent(None, nodes=(1, 1), address=None)
    [found] = await join([agent])
    assert found.world.host == cluster.server.host  # the address from which it reaches the server
    written = [request.resource for request in cluster.server.requests if request.verb == "create"]
    assert written == ["leases", "configmaps"]

    def writes(agent: Agent) -> list[str]:
        return [request.verb for request in cluster.server.requests if request.name == agent.own.key]

    await until(lambda: len(writes(agent)) > 3)
    await agent.end(failed=True)
    later = await cluster.agent(None, nodes=(1, 1))
    await join([later])
    await until(lambda: len(writes(later)) > 5)
    assert writes(agent)[-1] == "delete"


async def test_a_node_outside_of_pods_lives_as_long_as_its_lease(cluster: Cluster) -> None:
    cluster.server.add(trainer(0))
    first, outside = await cluster.agents(0, None, nodes=(2, 2))
    assert first.view.life(outside.own) is Life.UNKNOWN  # which counts as alive
    assert numbers(await join([first, outside])) == [(1, 0, 2), (1, 1, 2)]
    [node] = [node for node in first.view.state.nodes.values() if node.has_lease]
    await until(lambda: first.view.life(node) is Life.ALIVE)
    await outside.end(failed=True)
    await until(lambda: first.view.life(node) is Life.DEAD)


@in_virtual_time
async def test_a_lease_counts_from_when_its_renewal_was_observed() -> None:
    objects = Objects(ConfigMapQuery("", "ml"), None, LeaseQuery("", "ml"))
    node = Node("p", "n1", "h", has_lease=True, key="lease")
    for wait, renewed, life in ((0, 1, "alive"), (40, 1, "alive"), (1, 1, "dead"), (0, 2, "alive")):
        await anyio.sleep(wait)
        lease = Lease(metadata=ObjectMeta(name="lease"), spec=LeaseSpec(renew_time=f"0{renewed}:00"))
        objects.leases.replace([lease], "1")
        assert objects.life(node) is Life(life)
    objects.leases.replace([], "2")
    assert objects.life(node) is Life.DEAD


async def test_a_node_outside_of_pods_waits_for_others_until_the_last_call(cluster: Cluster) -> None:
    agent = await cluster.agent(None, nodes=(1, 2))
    with pytest.raises(IncompleteClusterError):
        await agent.join(port=1, timeout=0.5, last_call=60)


async def test_the_server_restarts_and_forgets_its_history_during_rounds(cluster: Cluster) -> None:
    server = cluster.server
    server.add(*map(trainer, range(3)))
    agents = await cluster.agents(0, 1, 2, nodes=(2, 3))
    await join(agents)
    await server.restart()
    server.compact()
    server.delete("trainer-2", "ml")
    await until(lambda: agents[0].nodes_waiting == agents[1].nodes_waiting == 1)
    server.inject(Answer(503), Reset(), Answer(429, headers={"Retry-After": "0"}))
    assert numbers(await join(agents[:2])) == [(2, 0, 2), (2, 1, 2)]


CONFIG_MAP = {"kind": "ConfigMap", "metadata": {"name": "torchrun-train", "namespace": "ml"}}
OF_ANOTHER_NODE = {**CONFIG_MAP, "data": {"world": '{"round": 1, "host": "h", "nodes": ["other/1"]}'}}


@pytest.mark.parametrize(("patch", "written", "round_"), [(1, [], 1), (2, [OF_ANOTHER_NODE], 2)])
async def test_a_config_map_that_is_deleted_meanwhile_is_created_again_and_no_world_is_overwritten(
    cluster: Cluster, patch: int, written: list[Any], round_: int
) -> None:
    cluster.server.add(trainer(0), CONFIG_MAP)
    agent = await cluster.agent(0, nodes=(1, 1))

    def interfere(request: RequestRecord) -> bool:
        sent = [each.method for each in cluster.server.requests].count("PATCH")
        if (request.method, sent) == ("PATCH", patch):
            cluster.server.delete("torchrun-train", "ml", kind="ConfigMap")
            cluster.server.add(*written)
        return False

    cluster.server.inject(Delay(0), match=interfere, times=None)
    assert numbers(await join([agent])) == [(round_, 0, 1)]


async def test_the_config_map_is_deleted_with_the_job_that_owns_the_pods(cluster: Cluster) -> None:
    cluster.server.add(trainer(0))
    await join(await cluster.agents(0, nodes=(1, 1)))
    path = "/api/v1/namespaces/ml/configmaps/torchrun-train"
    found = await fetch(cluster.server, path, headers=bearer("a-token"))
    [owner] = found.json["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job"}


async def test_a_missing_permission_names_the_role_to_apply(cluster: Cluster) -> None:
    cluster.server.add(*map(trainer, range(2)))
    cluster.server.resources = {USER: ["pods"]}
    [agent] = await cluster.agents(0, nodes=(2, 3))
    with pytest.raises(ForbiddenError) as caught:
        await agent.join(port=1, timeout=60, last_call=60)
    assert caught.value.manifest in str(caught.value)
    role, binding = yaml.safe_load_all(caught.value.manifest)
    assert role["metadata"] == binding["metadata"] == {"name": "torchrun-train", "namespace": "ml"}
    assert binding["roleRef"]["name"] == "torchrun-train"
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "trainer", "namespace": "ml"}]


async def test_a_missing_permission_to_watch_ends_the_wait(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    backoff = replace(POLICY.backoff, first_wait=0.01, longest_wait=0.01)
    monkeypatch.setattr("aioresolve.rendezvous.agent.POLICY", replace(POLICY, backoff=backoff))
    cluster.server.add(*map(trainer, range(2)))
    cluster.server.verbs[USER] = {"create", "get", "list", "patch"}
    [agent] = await cluster.agents(0, nodes=(2, 3))
    with pytest.raises(ForbiddenError, match="may not watch"):
        await agent.join(port=1, timeout=60, last_call=60)


async def test_a_pod_without_a_known_controller_or_an_address_is_an_error(cluster: Cluster) -> None:
    for changed, message in (
        ({"metadata": {"name": "trainer-0", "namespace": "ml"}}, "--rdzv-conf selector=app=trainer"),
        ({"status": {"phase": "Running"}}, r"'ml/trainer-0' has no address.*--local-addr"),
    ):
        cluster.server.add({**trainer(0), **changed})
        with pytest.raises(ConfigurationError, match=message):
            await cluster.agent(0, nodes=(2, 3))


@pytest.mark.slow
async def test_pods_come_and_go_while_the_server_fails_and_no_two_worlds_have_one_round(
    cluster: Cluster,
) -> None:
    server, random = cluster.server, Random(7)
    worlds: dict[int, World] = {}
    agents: dict[int, Agent] = {}
    faults = (Answer(503), Reset(), Answer(500), Cut(after=50), Delay(0.05))

    async def train(index: int, agent: Agent) -> None:
        """Take part in round after round, as torchrun's agent does."""
        while agents.get(index) is agent:
            round_ = await agent.join(port=1, timeout=120, last_call=0.2)
            assert worlds.setdefault(round_.world.round, round_.world) == round_.world
            await until(lambda: agents.get(index) is not agent or agent.nodes_waiting > 0)

    async with anyio.create_task_group() as tasks:
        for _ in range(30):
            index = random.randrange(5)
            if index in agents:
                del agents[index]
                server.delete(f"trainer-{index}", "ml")
            else:
                server.add(trainer(index))
                agents[index] = await cluster.agent(index, nodes=(2, 4))
                tasks.start_soon(train, index, agents[index])
            match random.randrange(4):
                case 0:
                    server.inject(*random.sample(faults, 3))
                case 1:
                    server.disturb(Reset())
                    server.compact()
                case 2:
                    await server.restart()
            await anyio.sleep(random.uniform(0.0, 0.6))
        for index in set(range(3)) - agents.keys():
            server.add(trainer(index))
            agents[index] = await cluster.agent(index, nodes=(2, 4))
            tasks.start_soon(train, index, agents[index])
        # Every agent, but at most four of them, end up in one round.
        size = min(4, len(agents))
        await until(lambda: len(next(iter(agents.values())).view.running) == size)
        await until(
            lambda: (
                not any(agent.nodes_waiting for agent in agents.values() if agent.view.state.has(agent.own))
            )
        )
        tasks.cancel_scope.cancel()
    assert len(worlds) >= 3


def test_torchrun_creates_an_agent_with_a_valid_name_outside_of_an_event_loop() -> None:
    assert str(Agent("train", Limits(1, 1))) == "rendezvous 'train'"
    with pytest.raises(ConfigurationError, match="'My_Job' is not a valid name"):
        Agent("My_Job", Limits(1, 1))
