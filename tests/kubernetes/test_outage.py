"""An API server that has just started rejects every request until it has read its roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aioresolve import ForbiddenError, KubernetesClusterResolver
from aioresolve.testing import Answer, KubernetesServer, pod

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_403_after_an_outage_is_retried(tmp_path: Path) -> None:
    async with KubernetesServer(
        [pod("train-0", "ml", labels={"app": "t"}, ip="10.0.0.1")], tls=True, tokens={"t": "u"}
    ) as server:
        server.inject(Answer(503, headers={"Retry-After": "0"}))
        server.inject(Answer(403, headers={"Retry-After": "0"}))
        resolver = KubernetesClusterResolver(
            {"worker": ["app=t"]},
            kubeconfig=server.write_kubeconfig(tmp_path / "config"),
            not_running="skip",  # which sends one request
        )
        assert (await resolver.cluster_spec()).as_dict() == {"worker": ["10.0.0.1:8470"]}
        assert len(server.requests) == 3


async def test_a_403_without_an_outage_is_final(tmp_path: Path) -> None:
    async with KubernetesServer(tls=True, tokens={"t": "u"}) as server:
        server.inject(Answer(403), times=None)
        resolver = KubernetesClusterResolver(
            {"worker": ["app=t"]},
            kubeconfig=server.write_kubeconfig(tmp_path / "config"),
            not_running="skip",
        )
        with pytest.raises(ForbiddenError):
            await resolver.cluster_spec()
        assert len(server.requests) == 1
