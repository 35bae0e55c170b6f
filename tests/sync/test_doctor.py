"""`aioresolve.sync.doctor`: the checks of the async function, for blocking code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import aioresolve
from aioresolve import ClusterSpec, ConfigurationError, InvalidClusterError, sync
from aioresolve.testing import KubernetesServer, pod

if TYPE_CHECKING:
    from pathlib import Path

NOTHING = sync.SimpleClusterResolver(ClusterSpec({"worker": ["127.0.0.1:1"]}))


def test_resolver_of_the_facade_is_checked(tmp_path: Path) -> None:
    pods = [pod("train-0", labels={"app": "train"}, ip="127.0.0.1")]
    with KubernetesServer(pods, tls=True, tokens={"secret": "alice"}).in_thread() as server:
        path = server.write_kubeconfig(tmp_path / "config")
        with sync.KubernetesClusterResolver({"worker": "app=train"}, 1, kubeconfig=path) as resolver:
            checks = {check.name: check.result for check in sync.doctor(resolver, check_timeout=20.0)}
            assert resolver.cluster_spec() == ClusterSpec({"worker": ["127.0.0.1:1"]})
        server.until(lambda: server.connections == 0)
    assert (checks["API server"], checks["tasks"], checks["addresses"]) == ("ok", "ok", "failed")


async def test_it_can_be_called_inside_a_running_loop() -> None:
    assert [check.result for check in sync.doctor(NOTHING)] == ["ok", "failed", "skipped", "ok"]


def test_without_a_resolver_this_machine_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    names = ["versions", "extras", "Kubernetes", "metadata server", "this process"]
    assert [check.name for check in sync.doctor()] == names


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="check_timeout"):
        sync.doctor(NOTHING, check_timeout=-1)
    with pytest.raises(InvalidClusterError, match=r"Wrap an async resolver in aioresolve\.sync"):
        sync.doctor(aioresolve.SimpleClusterResolver(ClusterSpec({})))  # type: ignore[arg-type]
