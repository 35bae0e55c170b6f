"""A loopback cluster, the environment of its user, and the command in this process."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest import mock

import pytest

from aioresolve.cli import main
from aioresolve.testing import ThreadedKubernetesServer

from .process import Result, Run, cluster, environment


@pytest.fixture
def server() -> Iterator[ThreadedKubernetesServer]:
    """A cluster of its own for each test: a server may read the last requests of a call after its end."""
    with cluster() as running:
        yield running


@pytest.fixture
def kubeconfig(server: ThreadedKubernetesServer, tmp_path: Path) -> Path:
    """The kubeconfig of the cluster; its context `here` has the namespace `ml`."""
    return server.write_kubeconfig(tmp_path / "config", namespace="ml", context="here")


@pytest.fixture
def env(kubeconfig: Path) -> dict[str, str]:
    return environment(kubeconfig)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `aioresolve ARGUMENTS` in this process, with captured streams and this environment only."""
    monkeypatch.setattr("aioresolve.cli.live.SHOW_AFTER", 60.0)  # as on a machine that is never busy

    def run(arguments: tuple[str, ...], env: Mapping[str, str]) -> Result:
        capsys.readouterr()
        with mock.patch.dict(os.environ, env, clear=True):
            code = main(arguments)
        written = capsys.readouterr()
        return Result(code, written.out, written.err)

    return run
