"""Where an API server is looked for, and what a pod is given."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import anyio
import pytest
import trustme

from aioresolve.errors import ConfigurationError, CredentialsError
from aioresolve.kubernetes.auth import ExecutableLocation, discovery
from aioresolve.kubernetes.auth import connection as refresh

from .kubeconfigs import SERVER, bearer_of, connect, kubeconfig, without_surroundings, written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder."""
    return without_surroundings(tmp_path, monkeypatch)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the service account of a pod, in which we are."""
    folder = tmp_path / "serviceaccount"
    written(folder / "token", "pod-token\n")
    written(folder / "ca.crt", trustme.CA().cert_pem.bytes())
    written(folder / "namespace", "ml\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


async def test_a_kubeconfig_that_is_given_comes_first(
    tmp_path: Path, home: Path, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home / ".kube/config", kubeconfig({"token": "home"}))
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "env", kubeconfig({"token": "env"}))))
    given = written(tmp_path / "given", kubeconfig({"token": "given"}))
    connection = await connect(given)
    assert await bearer_of(connection) == "given"
    assert connection.source == f"kubeconfig {given}, context 'dev'"
    assert (connection.server, connection.namespace) == (SERVER, "ml")


async def test_the_order_is_the_variable_then_the_pod_then_the_home_folder(
    tmp_path: Path, home: Path, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(home / ".kube/config", kubeconfig({"token": "home"}))
    monkeypatch.setenv("KUBECONFIG", str(written(tmp_path / "env", kubeconfig({"token": "env"}))))
    assert await bearer_of(await connect()) == "env"
    monkeypatch.delenv("KUBECONFIG")
    assert await bearer_of(await connect()) == "pod-token"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert await bearer_of(await connect()) == "home"


async def test_a_context_is_looked_for_in_kubeconfigs_only(home: Path, pod: Path) -> None:
    written(home / ".kube/config", kubeconfig({"token": "home"}))
    assert await bearer_of(await connect(context="dev")) == "home"
    with pytest.raises(ConfigurationError, match="there is no context 'x'; there are: 'dev'"):
        await connect(context="x")


async def test_a_location_forces_one_side(home: Path, pod: Path) -> None:
    written(home / ".kube/config", kubeconfig({"token": "home"}))
    within = await connect(location=ExecutableLocation.WITHIN_CLUSTER)
    assert await bearer_of(within) == "pod-token"
    assert await bearer_of(await connect(location="OFF_CLUSTER")) == "home"


async def test_the_files_of_the_variable_are_merged_and_missing_ones_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path / "a/config", {**kubeconfig({"tokenFile": "token"}), "clusters": []})
    second = written(
        tmp_path / "b/config", kubeconfig({"token": "second"}, **{"certificate-authority": "ca"})
    )
    written(tmp_path / "a/token", "first")
    written(tmp_path / "b/ca", trustme.CA().cert_pem.bytes())
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(tmp_path / "none"), str(first), str(second)]))
    connection = await connect()
    assert await bearer_of(connection) == "first"
    assert await connection.ssl() is not None


async def test_several_kubeconfigs_that_are_given_are_merged_and_each_must_be_there(tmp_path: Path) -> None:
    first = written(tmp_path / "a", kubeconfig({"token": "first"}))
    second = written(tmp_path / "b", kubeconfig({"token": "second"}, name="prod"))
    assert await bearer_of(await connect([first, str(second)])) == "first"
    assert await bearer_of(await connect([first, str(second)], "prod")) == "second"
    with pytest.raises(ConfigurationError, match=r"kubeconfig .*/none cannot be read: No such file"):
        await connect([first, tmp_path / "none"])


async def test_a_tilde_is_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(home / "x", kubeconfig({"token": "t"}))
    assert await bearer_of(await connect("~/x")) == "t"
    monkeypatch.setenv("KUBECONFIG", "~/x")
    assert await bearer_of(await connect()) == "t"


async def test_when_nothing_works_everything_that_was_tried_is_told_with_the_mend(home: Path) -> None:
    with pytest.raises(CredentialsError) as caught:
        await connect()
    assert caught.value.tried == (
        "$KUBECONFIG: is not set",
        "in-cluster service account: KUBERNETES_SERVICE_HOST is not set, so this is no pod",
        f"~/.kube/config: {home}/.kube/config: no such file",
    )
    assert all(line in str(caught.value) for line in caught.value.tried)
    assert "Pass `kubeconfig=`, set KUBECONFIG, or run in a pod" in str(caught.value)


async def test_the_home_folder_is_left_alone_while_the_variable_is_set(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped KUBECONFIG must not lead to another cluster."""
    written(home / ".kube/config", kubeconfig({"token": "home"}))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/typo")
    with pytest.raises(CredentialsError) as caught:
        await connect(location="OFF_CLUSTER")
    assert caught.value.tried == (
        f"$KUBECONFIG: {tmp_path}/typo: no such file",
        "~/.kube/config: is not looked at while KUBECONFIG is set",
    )


async def test_a_kubeconfig_without_entries_is_none(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    written(home / ".kube/config", "apiVersion: v1\nkind: Config\n")
    with pytest.raises(CredentialsError) as caught:
        await connect()
    assert "$KUBECONFIG: /dev/null: holds no clusters, contexts or users" in caught.value.tried
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(CredentialsError, match=r"~/.kube/config: .* holds no clusters"):
        await connect()


@pytest.mark.parametrize("place", ["given", "variable", "home"])
async def test_a_broken_kubeconfig_is_an_error_and_nothing_else_is_tried(
    home: Path, pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    broken = written(home / ".kube/config" if place == "home" else tmp_path / "broken", "a: [")
    if place == "variable":
        monkeypatch.setenv("KUBECONFIG", str(broken))
    with pytest.raises(ConfigurationError, match=f"kubeconfig {broken}:2: not valid YAML"):
        await connect(
            broken if place == "given" else None, location=None if place == "given" else "OFF_CLUSTER"
        )


async def test_a_kubeconfig_that_is_too_long_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_FILE", 100)
    with pytest.raises(ConfigurationError, match="is longer than 0 MiB: is it the right file"):
        await connect(written(tmp_path / "config", "x" * 101))


async def test_a_folder_is_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"kubeconfig {tmp_path} cannot be read: Is a directory"):
        await connect(tmp_path)


async def test_a_read_that_hangs_does_not_hold_a_cancellation_up(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Opening it from the other side lets the abandoned thread end, and a test that fails as well.
    release = threading.Timer(5, lambda: os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK)))
    release.start()
    before = time.monotonic()
    with anyio.move_on_after(0.05) as scope:
        await connect(fifo)
    elapsed = time.monotonic() - before
    release.cancel()
    release.function()
    assert scope.cancelled_caught
    assert elapsed < 4


# In a pod


async def test_a_pod_uses_its_service_account(pod: Path) -> None:
    connection = await connect()
    assert connection.server == "https://10.96.0.1:443"
    assert connection.source == "in-cluster service account"
    assert connection.namespace == "ml"
    assert await connection.headers() == {"Authorization": "Bearer pod-token"}
    context = await connection.ssl()
    assert context is not None
    assert context.cert_store_stats()["x509_ca"] == 1


async def test_an_ipv6_service_is_put_in_brackets(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert (await connect()).server == "https://[fd00::1]:443"


async def test_a_pod_without_a_namespace_file_has_none(pod: Path) -> None:
    (pod / "namespace").unlink()
    assert (await connect()).namespace is None


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
async def test_a_pod_without_a_token_or_ca_says_which(pod: Path, missing: str) -> None:
    (pod / missing).unlink()
    with pytest.raises(CredentialsError) as caught:
        await connect(location="WITHIN_CLUSTER")
    [tried] = caught.value.tried
    assert f"in-cluster service account: {pod}/{missing} cannot be read: No such file" in tried
    assert "automountServiceAccountToken" in tried


async def test_a_port_that_is_missing_is_told(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "")
    with pytest.raises(CredentialsError, match="KUBERNETES_SERVICE_PORT is not set"):
        await connect()


async def test_a_port_that_is_none_is_told_with_its_variables(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp://10.96.0.1:443")
    with pytest.raises(ConfigurationError, match="KUBERNETES_SERVICE_PORT: 'https:"):
        await connect()


async def test_a_token_that_the_kubelet_replaced_is_read_after_a_while(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await connect()
    written(pod / "token", "rotated")
    assert await bearer_of(connection) == "pod-token"
    later = time.monotonic() + 61
    monkeypatch.setattr(refresh, "monotonic", lambda: later)
    assert await bearer_of(connection) == "rotated"


async def test_a_token_that_cannot_be_read_just_now_stays_what_it_was(pod: Path) -> None:
    connection = await connect()
    (pod / "token").unlink()
    assert not await connection.renew(await connection.headers())
    assert await bearer_of(connection) == "pod-token"
    written(pod / "token", "")
    assert not await connection.renew(await connection.headers())
    written(pod / "token", "back")
    assert await connection.renew(await connection.headers())
    assert await bearer_of(connection) == "back"
