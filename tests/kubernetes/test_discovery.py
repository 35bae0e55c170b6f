"""Discovery: the sources of an API server and its credentials, and the service account of a pod."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import anyio
import pytest
import trustme

from aioresolve._core import concurrency
from aioresolve.errors import ConfigurationError, CredentialsError
from aioresolve.kubernetes.auth import ExecutableLocation, discovery

from .kubeconfigs import SERVER, bearer_of, connect, isolate, kubeconfig, write_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder."""
    return isolate(tmp_path, monkeypatch)


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the service account of the pod that the test runs in."""
    folder = tmp_path / "serviceaccount"
    write_file(folder / "token", "pod-token\n")
    write_file(folder / "ca.crt", trustme.CA().cert_pem.bytes())
    write_file(folder / "namespace", "ml\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return folder


async def test_given_kubeconfig_comes_first(
    tmp_path: Path, home: Path, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    monkeypatch.setenv("KUBECONFIG", str(write_file(tmp_path / "env", kubeconfig({"token": "env"}))))
    given = write_file(tmp_path / "given", kubeconfig({"token": "given"}))
    connection = await connect(given)
    assert await bearer_of(connection) == "given"
    assert connection.source == f"kubeconfig {given}, context 'dev'"
    assert (connection.server, connection.namespace) == (SERVER, "ml")


async def test_order_is_variable_then_pod_then_home_folder(
    tmp_path: Path, home: Path, pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    monkeypatch.setenv("KUBECONFIG", str(write_file(tmp_path / "env", kubeconfig({"token": "env"}))))
    assert await bearer_of(await connect()) == "env"
    monkeypatch.delenv("KUBECONFIG")
    assert await bearer_of(await connect()) == "pod-token"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    assert await bearer_of(await connect()) == "home"


async def test_context_is_searched_in_kubeconfigs_only(home: Path, pod: Path) -> None:
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    assert await bearer_of(await connect(context="dev")) == "home"
    with pytest.raises(ConfigurationError, match="there is no context 'x'; there are: 'dev'"):
        await connect(context="x")


async def test_location_limits_the_sources(home: Path, pod: Path) -> None:
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    within = await connect(location=ExecutableLocation.WITHIN_CLUSTER)
    assert await bearer_of(within) == "pod-token"
    assert await bearer_of(await connect(location="OFF_CLUSTER")) == "home"


async def test_files_of_the_variable_are_merged_and_missing_ones_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write_file(tmp_path / "a/config", {**kubeconfig({"tokenFile": "token"}), "clusters": []})
    second = write_file(
        tmp_path / "b/config", kubeconfig({"token": "second"}, **{"certificate-authority": "ca"})
    )
    write_file(tmp_path / "a/token", "first")
    write_file(tmp_path / "b/ca", trustme.CA().cert_pem.bytes())
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(tmp_path / "none"), str(first), str(second)]))
    connection = await connect()
    assert await bearer_of(connection) == "first"
    assert await connection.ssl_context() is not None


async def test_given_kubeconfigs_are_merged_and_must_all_exist(tmp_path: Path) -> None:
    first = write_file(tmp_path / "a", kubeconfig({"token": "first"}))
    second = write_file(tmp_path / "b", kubeconfig({"token": "second"}, name="prod"))
    assert await bearer_of(await connect([first, str(second)])) == "first"
    assert await bearer_of(await connect([first, str(second)], "prod")) == "second"
    with pytest.raises(ConfigurationError, match=r"kubeconfig .*/none cannot be read: No such file"):
        await connect([first, tmp_path / "none"])


async def test_tilde_is_the_home_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_file(home / "x", kubeconfig({"token": "t"}))
    assert await bearer_of(await connect("~/x")) == "t"
    monkeypatch.setenv("KUBECONFIG", "~/x")
    assert await bearer_of(await connect()) == "t"


async def test_error_without_any_source_lists_all_that_were_tried(home: Path) -> None:
    with pytest.raises(CredentialsError) as caught:
        await connect()
    assert caught.value.tried == (
        "$KUBECONFIG: is not set",
        "in-cluster service account: KUBERNETES_SERVICE_HOST is not set, so this process is not in a pod",
        f"~/.kube/config: {home}/.kube/config: no such file",
    )
    assert all(line in str(caught.value) for line in caught.value.tried)
    assert "Pass `kubeconfig=`, set KUBECONFIG, or run in a pod" in str(caught.value)


async def test_home_folder_is_ignored_while_the_variable_is_set(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistyped KUBECONFIG must not lead to another cluster."""
    write_file(home / ".kube/config", kubeconfig({"token": "home"}))
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/typo")
    with pytest.raises(CredentialsError) as caught:
        await connect(location="OFF_CLUSTER")
    assert caught.value.tried == (
        f"$KUBECONFIG: {tmp_path}/typo: no such file",
        "~/.kube/config: ignored while KUBECONFIG is set",
    )


async def test_kubeconfig_without_entries_is_skipped(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    write_file(home / ".kube/config", "apiVersion: v1\nkind: Config\n")
    with pytest.raises(CredentialsError) as caught:
        await connect()
    assert "$KUBECONFIG: /dev/null: has no clusters, contexts or users" in caught.value.tried
    monkeypatch.delenv("KUBECONFIG")
    with pytest.raises(CredentialsError, match=r"~/.kube/config: .* has no clusters"):
        await connect()


@pytest.mark.parametrize("place", ["given", "variable", "home"])
async def test_invalid_kubeconfig_is_an_error_and_no_other_source_is_tried(
    home: Path, pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    invalid = write_file(home / ".kube/config" if place == "home" else tmp_path / "invalid", "a: [")
    if place == "variable":
        monkeypatch.setenv("KUBECONFIG", str(invalid))
    with pytest.raises(ConfigurationError, match=f"kubeconfig {invalid}:2: not valid YAML"):
        await connect(
            invalid if place == "given" else None, location=None if place == "given" else "OFF_CLUSTER"
        )


async def test_kubeconfig_that_is_too_large_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MAX_FILE", 100)
    with pytest.raises(ConfigurationError, match="is larger than 0 MiB"):
        await connect(write_file(tmp_path / "config", "x" * 101))


async def test_folder_is_rejected_as_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"kubeconfig {tmp_path} cannot be read: Is a directory"):
        await connect(tmp_path)


async def test_read_that_hangs_does_not_delay_a_cancellation(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Opening the other side ends the abandoned thread, also if the test fails.
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


async def test_pod_uses_its_service_account(pod: Path) -> None:
    connection = await connect()
    assert connection.server == "https://10.96.0.1:443"
    assert connection.source == "in-cluster service account"
    assert connection.namespace == "ml"
    assert await connection.headers() == {"Authorization": "Bearer pod-token"}
    context = await connection.ssl_context()
    assert context is not None
    assert context.cert_store_stats()["x509_ca"] == 1


async def test_ipv6_address_of_the_service_gets_brackets(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert (await connect()).server == "https://[fd00::1]:443"


async def test_pod_without_a_namespace_file_has_no_namespace(pod: Path) -> None:
    (pod / "namespace").unlink()
    assert (await connect()).namespace is None


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
async def test_error_for_a_pod_without_token_or_ca_names_the_file(pod: Path, missing: str) -> None:
    (pod / missing).unlink()
    with pytest.raises(CredentialsError) as caught:
        await connect(location="WITHIN_CLUSTER")
    [tried] = caught.value.tried
    assert f"in-cluster service account: {pod}/{missing} cannot be read: No such file" in tried
    assert "automountServiceAccountToken" in tried


async def test_missing_port_is_reported(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "")
    with pytest.raises(CredentialsError, match="KUBERNETES_SERVICE_PORT is not set"):
        await connect()


async def test_error_for_an_invalid_port_names_the_variable(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "tcp://10.96.0.1:443")
    with pytest.raises(ConfigurationError, match="KUBERNETES_SERVICE_PORT: 'https:"):
        await connect()


async def test_rotated_token_is_read_after_a_minute(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await connect()
    write_file(pod / "token", "rotated")
    assert await bearer_of(connection) == "pod-token"
    later = time.monotonic() + 61
    monkeypatch.setattr(concurrency, "monotonic", lambda: later)
    assert await bearer_of(connection) == "rotated"


async def test_last_token_is_kept_while_its_file_cannot_be_read(pod: Path) -> None:
    connection = await connect()
    (pod / "token").unlink()
    assert not await connection.renew(await connection.headers())
    assert await bearer_of(connection) == "pod-token"
    write_file(pod / "token", "")
    assert not await connection.renew(await connection.headers())
    write_file(pod / "token", "back")
    assert await connection.renew(await connection.headers())
    assert await bearer_of(connection) == "back"
