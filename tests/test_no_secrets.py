"""Our messages, log records, spans and reprs contain no credential, however a call with it fails.

Each test uses one marked secret as a credential. It is searched for in the errors of the calls, their causes
and contexts, the log, the spans, the checks of `doctor` and the command line.
"""

import base64
import importlib
import json
import logging
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import psutil
import pytest
import trustme

import aioresolve
from aioresolve import KubernetesClusterResolver, TPUClusterResolver
from aioresolve.errors import ResolveError
from aioresolve.testing import KubernetesServer
from tests.core.recording import record_telemetry
from tests.kubernetes.kubeconfigs import (
    base64_of,
    client_pair,
    exec_user,
    id_token,
    isolate,
    kubeconfig,
    write_file,
    write_plugin,
)
from tests.kubernetes.loopback import attributes_of, error_chain

pytestmark = pytest.mark.slow

SECRET = "hunter22+Zebra/7-Quux"

REFUSED = "127.0.0.1:9"
"""An address where nothing listens."""

PROXY = f"http://ada:{quote(SECRET, safe='')}@{REFUSED}"


def forms(secret: str) -> set[str]:
    """Return the secret as it is, URL-encoded, and the parts of base64 that only depend on it."""
    shifted = set()
    for shift in range(3):
        text = base64.b64encode(bytes(shift) + secret.encode()).decode().rstrip("=")
        shifted.add(text[(0, 2, 3)[shift] : (shift + len(secret)) * 8 // 6])
    return {form.lower() for form in {secret, quote(secret, safe=""), *shifted}}


@pytest.fixture(autouse=True)
def reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[list[BaseException]]:
    """Search the errors that a test adds, the log, the spans and the command line for the secret."""
    isolate(tmp_path, monkeypatch)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("kubernetes").setLevel(logging.INFO)  # at DEBUG it logs the body of each response
    errors: list[BaseException] = []
    with record_telemetry() as recording:
        yield errors
        texts = {"span": recording.text()}
    assert errors
    for number, error in enumerate(errors):
        # Errors of other libraries keep what could not be read in attributes.
        chain = [*error_chain(error)]
        own = [attributes_of(link) for link in chain if isinstance(link, ResolveError)]
        texts[f"error {number}"] = f"{own} {[*map(repr, chain)]} {[*map(str, chain)]}"
    texts["log"] = "\n".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    texts["command line"] = " ".join(psutil.Process().cmdline())
    for place, text in texts.items():
        for line in text.lower().splitlines():
            for form in forms(SECRET):
                assert form not in line, f"{place}: {form} in {line}"


async def fail(reported: list[BaseException], call: Awaitable[Any]) -> None:
    with anyio.fail_after(60), pytest.raises(ResolveError) as caught:
        await call
    reported.append(caught.value)


def resolver(folder: Path, user: dict[str, Any], **cluster: Any) -> KubernetesClusterResolver:
    path = write_file(folder / "config", kubeconfig(user, **cluster))
    return KubernetesClusterResolver({"worker": ["app=x"]}, kubeconfig=path, timeout=2)


# Kubernetes


def users(folder: Path) -> list[dict[str, Any]]:
    """Return a user with each kind of credential. The key of a certificate ends with the secret."""
    certificate, key = client_pair(trustme.CA())
    key += SECRET.encode()
    credential = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()}
    plugin = write_plugin(folder, f'credential({{"token": {SECRET!r}}})')
    oidc = {"id-token": id_token(exp=1 << 33, sub=SECRET), "refresh-token": SECRET}
    return [
        {"token": SECRET},
        {"tokenFile": str(write_file(folder / "token", SECRET))},
        {"username": "ada", "password": SECRET},
        exec_user(plugin, args=[SECRET], env=[{"name": "A", "value": SECRET}]),
        {"auth-provider": {"name": "oidc", "config": oidc}},
        {"client-certificate-data": base64_of(certificate), "client-key-data": base64_of(key)},
        exec_user(write_plugin(folder, f"credential({credential!r})", "certified")),
    ]


async def test_credentials_that_the_server_rejects(tmp_path: Path, reported: list[BaseException]) -> None:
    with KubernetesServer(tls=True, tokens={"another": "alice"}).in_thread() as server:
        cluster = {"server": server.url, "insecure-skip-tls-verify": True}
        for user in users(tmp_path):
            await fail(reported, resolver(tmp_path, user, **cluster).cluster_spec())


async def test_connections_that_fail(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"token": SECRET}
    with KubernetesServer(tls=True).in_thread() as server:
        for url in (server.url, server.url.replace("https", "http"), f"https://{REFUSED}"):
            await fail(reported, resolver(tmp_path, token, server=url).cluster_spec())
    for cluster in ({"proxy-url": PROXY}, {"server": f"https://ada:{quote(SECRET, safe='')}@a b"}):
        await fail(reported, resolver(tmp_path, token, **cluster).cluster_spec())
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    await fail(reported, resolver(tmp_path, token).cluster_spec())


BROKEN_USERS: list[dict[str, Any]] = [
    {"token": f"{SECRET} x"},
    {"token": [SECRET]},
    {"password": SECRET},
    {"Token": SECRET},
    {
        "client-certificate-data": base64_of(b"x"),
        "client-key-data": base64_of(f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n".encode()),
    },
    {"client-certificate-data": "eA==", "client-key-data": SECRET},
    {"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}},
    exec_user("/no/such/plugin", args=[SECRET], env=[{"name": "A", "value": SECRET}]),
]
BROKEN_PLUGINS = [
    'sys.exit("failed: " + " ".join(sys.argv) + os.environ["A"] + os.environ["MY_TOKEN"])',
    f'credential({{"token": {SECRET!r}, "expirationTimestamp": {SECRET!r}}})',
    f"print({'a: ' + SECRET + ': b'!r})",
]


async def test_credentials_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    plugins = [
        exec_user(
            write_plugin(tmp_path, code, f"plugin-{number}"),
            args=[SECRET],
            env=[{"name": "A", "value": SECRET}],
        )
        for number, code in enumerate(BROKEN_PLUGINS)
    ]
    broken_file = {"tokenFile": str(write_file(tmp_path / "token", f"{SECRET}\n\n{SECRET}"))}
    for user in [*BROKEN_USERS, *plugins, broken_file]:
        await fail(reported, resolver(tmp_path, user, server=f"https://{REFUSED}").cluster_spec())
    for text in ("users: [{name: a, token: %s", "token: \x00%s", "%s"):
        path = write_file(tmp_path / "config", text % SECRET)
        await fail(reported, KubernetesClusterResolver({"w": ["a=b"]}, kubeconfig=path).cluster_spec())


@pytest.fixture(scope="module", params=["kubernetes", "kubernetes_asyncio"])
def package(request: pytest.FixtureRequest) -> Any:
    """The module of a client, imported before an event loop runs: that takes seconds."""
    return importlib.import_module(f"{request.param}.client")


async def test_client_of_kubernetes_that_fails(package: Any, reported: list[BaseException]) -> None:
    configuration = package.Configuration()
    configuration.retries = False
    configuration.host = f"https://{REFUSED}"
    configuration.api_key = dict.fromkeys(("BearerToken", "authorization"), SECRET)
    configuration.api_key_prefix = dict.fromkeys(configuration.api_key, "Bearer")
    configuration.proxy = PROXY
    credentials = base64_of(f"ada:{SECRET}".encode())
    configuration.proxy_headers = {"Proxy-Authorization": f"Basic {credentials}"}
    client = package.ApiClient(configuration)
    resolver = KubernetesClusterResolver({"worker": ["app=x"]}, override_client=client, timeout=2)
    await fail(reported, resolver.cluster_spec())
    closed = client.close()
    if closed is not None:
        await closed


# Google


def external_account(subject: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/x",
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        "token_url": f"http://{REFUSED}/v1/token",
        "credential_source": subject,
    }


def google_credentials(folder: Path) -> list[Any]:
    """Return the contents of files with credentials that cannot be used."""
    program = write_file(folder / "executable", "#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    key = f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n"
    as_json = {"type": "json", "subject_token_field_name": "token"}
    subject = str(write_file(folder / "subject", SECRET))
    return [
        SECRET,
        {"type": "service_account", "private_key": key},
        {
            "type": "service_account",
            "private_key": key,
            "client_email": "robot@example.com",
            "token_uri": f"http://{REFUSED}/token",
        },
        {"type": "authorized_user", "refresh_token": SECRET},
        {
            "type": "impersonated_service_account",
            "source_credentials": {"type": "x", "refresh_token": SECRET},
        },
        external_account({"file": subject}),
        external_account({"file": subject, "format": as_json}),
        external_account({"executable": {"command": f"{program} {SECRET}", "timeout_millis": 30_000}}),
    ]


def my_tpu() -> TPUClusterResolver:
    return TPUClusterResolver("my-tpu", "us-central2-b", "my-project", timeout=2)


async def test_credentials_of_google_that_cannot_be_used(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES", "1")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    for content in google_credentials(tmp_path):
        path = write_file(tmp_path / "credentials.json", json.dumps(content))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        await fail(reported, my_tpu().cluster_spec())


# Checks


async def test_checks_of_doctor(
    tmp_path: Path, reported: list[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    path = write_file(tmp_path / "credentials.json", json.dumps(SECRET))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    monkeypatch.setenv("KUBECONFIG", str(write_file(tmp_path / "own", kubeconfig({"token": SECRET}))))
    broken = [resolver(tmp_path, user, server=f"https://{REFUSED}") for user in BROKEN_USERS[:1]]
    proxied = resolver(tmp_path, {"token": SECRET}, **{"proxy-url": PROXY})
    for checked in (None, *broken, proxied, my_tpu()):
        with anyio.fail_after(60):
            checks = await aioresolve.doctor(checked, check_timeout=2.0)
        texts = [text for check in checks for text in (repr(check), str(check), check.found)]
        texts += [str(check.remedy) for check in checks]
        reported.append(ResolveError("\n".join(texts)))
