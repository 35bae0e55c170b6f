"""The handler that torchrun's agent calls: rounds, stores and errors as torch documents them.

These are the cases of torch's own tests of rendezvous back ends (`api_test`, `dynamic_rendezvous_test`,
`out_of_tree_rendezvous_test`) that a user can notice. The others do not apply:

- `rendezvous_backend_test` and the state holder: their state is one text with a token. Here nodes write
  entries of their own, and the server compares versions; `test_protocol` checks what follows from that.
- Participants, wait lists, operations and their executor: private to torch's implementation.
- Heartbeats and their timers: pods and Leases show which nodes live.
- Two handlers that are given one store: a round has a new store.
"""

# PyTorch may be missing where types are checked.
# pyright: reportMissingImports=false

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aioresolve.testing import Hang, KubernetesServer, ThreadedKubernetesServer

pytestmark = [pytest.mark.real, pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")]

USER = "trainer"


class Nodes:
    """Nodes outside of pods, whose liveness Leases show, each with a handler and a thread."""

    def __init__(self, server: ThreadedKubernetesServer) -> None:
        self.server = server
        self._threads = ThreadPoolExecutor(8)
        self._handlers: list[Any] = []

    def handler(self, nodes: str = "2:2", **config: Any) -> Any:
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        least, most = map(int, nodes.split(":"))
        options = {"last_call_timeout": "1", "local_addr": "127.0.0.1", "endpoint": "ml", **config}
        run_id = options.pop("run_id", "train")
        parameters = RendezvousParameters(
            "kubernetes", run_id=run_id, min_nodes=least, max_nodes=most, **options
        )
        found = get_rendezvous_handler(parameters)
        self._handlers.append(found)
        return found

    def start(self, handler: Any) -> Any:
        """Return the future of its next round."""
        return self._threads.submit(handler.next_rendezvous)

    def join(self, *handlers: Any) -> list[Any]:
        """Return the next round of each of them."""
        return [each.result(60) for each in [self.start(handler) for handler in handlers]]

    @property
    def entries(self) -> int:
        """How often the ConfigMap was changed."""
        return sum((each.method, each.resource) == ("PATCH", "configmaps") for each in self.server.requests)

    def until(self, condition: Any) -> None:
        for _ in range(1200):
            if condition():
                return
            threading.Event().wait(0.05)
        pytest.fail("the condition was not true within 60 s")

    def close(self) -> None:
        for handler in self._handlers:
            handler.shutdown()
        self._threads.shutdown()


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    with KubernetesServer(tls=True, tokens={"a-token": USER}).in_thread() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "config")))
        found = Nodes(server)
        yield found
        found.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_nodes_share_the_store_of_rank_0(nodes: Nodes, address: str) -> None:
    first, second = nodes.join(*(nodes.handler(local_addr=address) for _ in range(2)))
    assert {first.rank, second.rank} == {0, 1}
    assert first.world_size == second.world_size == 2
    first.store.set("key", "value")
    assert second.store.get("key") == b"value"
    assert first.bootstrap_store_info == second.bootstrap_store_info
    assert first.bootstrap_store_info.master_addr == address


def test_workers_have_a_store_of_their_own_if_sharing_is_disabled(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes.handler().use_agent_store
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    handlers = nodes.handler(), nodes.handler()
    assert not handlers[0].use_agent_store
    first, second = nodes.join(*handlers)
    assert first.bootstrap_store_info == second.bootstrap_store_info
    socket.create_server(("127.0.0.1", first.bootstrap_store_info.master_port)).close()  # it is free


def test_a_given_port_is_used_in_each_round(nodes: Nodes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    handlers = [nodes.handler(port=str(port)) for _ in range(2)]
    for _ in range(2):
        rounds = nodes.join(*handlers)
        assert {each.bootstrap_store_info.master_port for each in rounds} == {port}
        rounds[0].store.set("key", "value")
        assert rounds[1].store.get("key") == b"value"


def test_a_handler_has_the_options_of_the_command(nodes: Nodes) -> None:
    handler = nodes.handler(join_timeout="50", close_timeout="70", heartbeat_timeout="5")
    assert (handler.get_backend(), handler.get_run_id()) == ("kubernetes", "train")
    # Nothing is known before the first round.
    assert not handler.is_closed()
    assert handler.num_nodes_waiting() == 0
    assert handler.shutdown()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join_timeout": "0"}, "join_timeout=0 is not a positive number of seconds"),
        ({"port": "70000"}, "port=70000 is not in 0 to 65535"),
        ({"run_id": "none"}, "Pass --rdzv-id"),
        ({"run_id": "my job"}, "'torchrun-my job' is not a valid name"),
        ({"nodes": "0:1"}, "minimum"),
        ({"nodes": "3:2"}, "maximum"),
    ],
)
def test_an_invalid_option_is_a_value_error(nodes: Nodes, options: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nodes.handler(**options)


def test_a_new_node_is_counted_and_joins_the_next_round(nodes: Nodes) -> None:
    first, second, third = (nodes.handler("2:3") for _ in range(3))
    nodes.join(first, second)
    assert first.num_nodes_waiting() == 0
    waiting = nodes.start(third)
    nodes.until(lambda: first.num_nodes_waiting() == second.num_nodes_waiting() == 1)
    rounds = [*nodes.join(first, second), waiting.result(60)]
    assert sorted((each.rank, each.world_size) for each in rounds) == [(0, 3), (1, 3), (2, 3)]


def test_closing_ends_all_waits(nodes: Nodes) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousGracefulExitError

    first, second, spare = (nodes.handler() for _ in range(3))
    nodes.join(first, second)
    before = nodes.entries
    waiting = nodes.start(spare)
    nodes.until(lambda: nodes.entries > before)
    threading.Event().wait(0.1)
    first.set_closed()
    nodes.until(second.is_closed)
    assert second.num_nodes_waiting() == 0
    with pytest.raises(RendezvousClosedError, match="is closed: the training ended"):
        second.next_rendezvous()
    with pytest.raises(RendezvousGracefulExitError):
        waiting.result(60)
    assert first.shutdown()
    assert first.shutdown()


def test_too_few_nodes_are_a_timeout(nodes: Nodes) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    with pytest.raises(RendezvousTimeoutError, match="at least 2 nodes have to wait: 1 wait"):
        nodes.handler(join_timeout="1").next_rendezvous()


def test_a_missing_permission_is_a_connection_error_with_the_role(nodes: Nodes) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    nodes.server.resources = {USER: ["pods"]}
    with pytest.raises(RendezvousConnectionError, match=r"resourceNames: \[torchrun-train\]"):
        nodes.handler().next_rendezvous()


def test_a_config_map_of_another_use_is_a_state_error(nodes: Nodes) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousStateError

    metadata = {"name": "torchrun-train", "namespace": "ml"}
    nodes.server.add({"kind": "ConfigMap", "metadata": metadata, "data": {"world": "flat"}})
    with pytest.raises(RendezvousStateError, match="'world' is invalid"):
        nodes.handler().next_rendezvous()


def test_a_shutdown_of_a_server_that_hangs_fails_within_its_timeout(nodes: Nodes) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    handler = nodes.handler("1:1", close_timeout="1")
    nodes.join(handler)
    nodes.server.inject(Hang(), times=None)
    with pytest.raises(RendezvousConnectionError, match="did not respond within 1 s"):
        handler.set_closed()
    assert not handler.shutdown()


def test_a_store_that_cannot_listen_or_be_reached_is_a_connection_error(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError

    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RendezvousConnectionError, match=f"listen on port {port} .*--rdzv-conf port="):
            nodes.handler("1:1", run_id="a", port=str(port)).next_rendezvous()
    monkeypatch.setattr("aioresolve.torch.rendezvous.STORE_TIMEOUT", timedelta(seconds=0.5))
    with pytest.raises(RendezvousConnectionError, match=r"round 1 does not respond at name\.invalid:\d"):
        nodes.handler("1:1", run_id="b", local_addr="name.invalid").next_rendezvous()
