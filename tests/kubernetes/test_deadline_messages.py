"""The error at the deadline says what was being waited for: the credentials or the server."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from aioresolve import DeadlineExceededError, KubernetesClusterResolver
from aioresolve.testing import Hang, KubernetesServer

if TYPE_CHECKING:
    from pathlib import Path


async def missing_of(kubeconfig: Path) -> DeadlineExceededError:
    resolver = KubernetesClusterResolver({"worker": ["app=t"]}, kubeconfig=kubeconfig)
    with pytest.raises(DeadlineExceededError) as caught:
        await resolver.cluster_spec(timeout=0.5)
    return caught.value


async def test_the_error_distinguishes_a_hanging_plugin_from_a_hanging_server(tmp_path: Path) -> None:
    path = tmp_path / "config"
    with KubernetesServer(tls=True, tokens={"a-token": "alice"}).in_thread() as server:
        server.inject(Hang(), times=None)
        scope = "selector 'app=t' in all namespaces"
        error = await missing_of(server.write_kubeconfig(path))
        assert error.missing == dict.fromkeys(
            (scope, f"{scope}, phase other than Running"), f"{server.url} has not responded"
        )
        assert error.reached == {}

        config: dict[str, Any] = server.kubeconfig()
        config["users"][0]["user"] = {
            "exec": {
                "apiVersion": "client.authentication.k8s.io/v1",
                "command": sys.executable,
                "args": ["-c", "import time; time.sleep(600)"],
                "interactiveMode": "Never",
            }
        }
        path.write_text(yaml.safe_dump(config))
        error = await missing_of(path)
        assert "the credentials of kubeconfig" in error.missing[scope]
