"""Requests to Google's APIs: their hosts, what they carry, how they end."""

import pytest

from aioresolve.errors import ConfigurationError, ConnectionFailedError, DeadlineExceededError, TLSError
from aioresolve.testing import GoogleServer, Hang, tpu_node

from .loopback import PATH, all_text, error_from, request_my_tpu, tls_server, user_credentials

pytestmark = pytest.mark.usefixtures("no_leak")

OVERRIDE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU"


async def test_a_token_of_another_cloud_is_not_sent_to_google(monkeypatch: pytest.MonkeyPatch) -> None:
    other = "example-cloud.test"
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # no request leaves this machine
    error = await error_from(request_my_tpu(user_credentials(universe_domain=other)))
    assert isinstance(error, ConfigurationError)
    assert f"are of the cloud {other}" in str(error)
    assert f"{OVERRIDE}=https://tpu.{other}" in str(error)


async def test_a_bearer_token_goes_to_the_api_over_tls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GoogleServer([tpu_node("my-tpu")]) as server:
        monkeypatch.setenv(OVERRIDE, f"{server.url}/")
        # There are no default credentials here: a search for them would be an error.
        assert (await request_my_tpu()).state == "READY"
        assert (await request_my_tpu(user_credentials())).state == "READY"
        assert [request.scheme for request in server.requests] == ["", ""]
    async with tls_server() as server:
        # The endpoint is given, so that a token of another cloud may be meant for it.
        for credentials in (user_credentials(), user_credentials(universe_domain="example-cloud.test")):
            assert (await request_my_tpu(credentials)).state == "READY"
        assert {(one.scheme, one.user) for one in server.requests} == {("Bearer", "user:alice@example.com")}
        assert server.requests[0].user_agent.startswith("aioresolve/")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://10.0.0.1:8080", "to which requests would be sent unencrypted"),
        ("ftp://tpu.example", "is not a URL. Write it as https://HOST"),
        ("https://", "is not a URL"),
        ("https://[", "is not a URL"),
        ("https://user:MARKER@tpu.example", "has a user, a query or a fragment"),
        ("https://tpu.example?key=MARKER", "has a user, a query or a fragment"),
    ],
)
async def test_an_invalid_endpoint_is_an_error(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERRIDE, url)
    error = await error_from(request_my_tpu(user_credentials()))
    assert isinstance(error, ConfigurationError)
    assert f"the environment variable {OVERRIDE}" in str(error)
    assert message in str(error)
    assert "MARKER" not in all_text(error)


async def test_an_unknown_certificate_authority_is_a_tls_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with GoogleServer(tls=True).in_thread() as server:
        monkeypatch.setenv(OVERRIDE, server.url)
        error = await error_from(request_my_tpu(user_credentials()))
        assert isinstance(error, TLSError)
        assert not error.retryable
        assert "SSL_CERT_FILE" in str(error)
        assert server.requests == ()


async def test_a_proxy_of_the_environment_is_used_except_for_exempt_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with GoogleServer() as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        error = await error_from(request_my_tpu(user_credentials()))
        assert isinstance(error, ConnectionFailedError)
        assert "the proxy returned status 4" in str(error)
        assert not error.retryable
    monkeypatch.setenv("https_proxy", "http://user:MARKER@127.0.0.1:9")
    async with tls_server():  # whose address is exempt
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert (await request_my_tpu(user_credentials())).state == "READY"


async def test_a_deadline_error_names_the_missing_response() -> None:
    async with tls_server() as server:
        server.inject(Hang())
        error = await error_from(request_my_tpu(user_credentials(), timeout=0.1))
        assert isinstance(error, DeadlineExceededError)
        assert error.missing == {f"TPU node {PATH}": f"{server.url} has not responded"}
