"""Server URLs, proxy URLs, and which hosts the proxy of the environment applies to."""

from __future__ import annotations

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.kubernetes.auth.addresses import (
    proxy_from_environment,
    validate_proxy_url,
    validate_server_url,
)

PROXY = "http://proxy:3128"


SERVERS = {
    "https://10.0.0.1:6443": "https://10.0.0.1:6443",
    "https://rancher.example/k8s/clusters/c-1/": "https://rancher.example/k8s/clusters/c-1",
    "http://localhost:8001": "http://localhost:8001",
    "https://[fd00::1]:6443": "https://[fd00::1]:6443",
    "https://host/?watch=1": "https://host",
    "https://host/#top": "https://host",
    # Without a scheme, the default one.
    "10.0.0.1:6443": "http://10.0.0.1:6443",
    "localhost:6443": "http://localhost:6443",
    "api.example": "http://api.example",
}


def test_server_url_keeps_its_path_without_a_trailing_slash() -> None:
    assert {url: validate_server_url(url, "here") for url in SERVERS} == SERVERS


@pytest.mark.parametrize(
    "url",
    [
        "ftp://api.example",
        "https://",
        "https://host:99999",
        "https://[fd00::1",
        "https://ho st",
        "https://host\n",
        "api.example/path",
    ],
)
def test_invalid_server_url_is_reported_with_its_place(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^here: .*https://"):
        validate_server_url(url, "here")


def test_password_in_a_server_url_is_rejected_and_not_shown() -> None:
    for url in ("https://root:hunter22@host", "https://hunter22@host", "root:hunter22@host:1"):
        with pytest.raises(ConfigurationError) as caught:
            validate_server_url(url, "here")
        assert "hunter22" not in str(caught.value)


def test_only_http_proxies_are_accepted_and_no_password_is_shown() -> None:
    for url in ("http://proxy:3128", "https://me:pw@proxy", "http://[::1]:3128"):
        assert validate_proxy_url(url, "here") == url
    for url in ("socks5://me:hunter22@proxy:1080", "socks5h://hunter22@proxy", "ftp://hunter22@p", "proxy"):
        with pytest.raises(ConfigurationError, match=r"^here: ") as caught:
            validate_proxy_url(url, "here")
        assert "@" not in str(caught.value)
        assert "hunter22" not in str(caught.value)


def test_proxy_depends_on_the_scheme_of_the_server() -> None:
    both = {"HTTPS_PROXY": PROXY, "https_proxy": "http://other"}
    for server, environ, proxy in (
        ("https://api.example", {}, None),
        ("https://api.example", {"https_proxy": PROXY}, PROXY),
        ("https://api.example", both, PROXY),
        ("https://api.example", {"HTTPS_PROXY": "", "https_proxy": PROXY}, PROXY),
        ("https://api.example", {"HTTPS_PROXY": "proxy:3128"}, PROXY),
        ("https://api.example", {"HTTP_PROXY": PROXY, "ALL_PROXY": PROXY}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://api.example", {"HTTPS_PROXY": PROXY}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://127.0.0.7:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "api.example:80"}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "api.example:443"}, PROXY),
    ):
        assert (server, environ, proxy_from_environment(server, environ)) == (server, environ, proxy)


NO_PROXY = {
    (no_proxy, server): is_exempt
    for no_proxy, server, is_exempt in (
        ("*", "https://api.example", True),
        ("", "https://api.example", False),
        ("api.example", "https://api.example", True),
        ("example", "https://api.example", True),
        ("ample", "https://api.example", False),
        (".example", "https://api.example", True),
        (".api.example", "https://api.example", False),
        ("*.example", "https://api.example", True),
        ("*.api.example", "https://api.example", False),
        ("API.example", "https://api.Example", True),
        ("x, api.example ,y", "https://api.example", True),
        ("api.example:6443", "https://api.example:6443", True),
        ("api.example:443", "https://api.example", True),
        ("api.example:443", "https://api.example:6443", False),
        ("10.0.0.1", "https://10.0.0.1", True),
        ("10.0.0.1:443", "https://10.0.0.1", True),
        ("10.0.0.1:80", "https://10.0.0.1", False),
        ("0.0.1", "https://10.0.0.1", True),  # Go compares the end of an address, too
        ("10.0.0.0/8", "https://10.1.2.3:6443", True),
        ("10.0.0.0/8", "https://11.1.2.3:6443", False),
        ("10.0.0.0/8", "https://api.example", False),
        ("10.0.0.0/88", "https://10.0.0.1", False),
        ("fd00::/8", "https://[fd00::1]:6443", True),
        ("fd00::1", "https://[fd00::1]:6443", True),
        ("[fd00::1]:6443", "https://[fd00::1]:6443", True),
        ("[fd00::1]:443", "https://[fd00::1]:6443", False),
        ("[fd00::1]", "https://[fd00::1]:6443", False),
        ("[api.example]", "https://api.example", False),
        ("[api.example]:443", "https://api.example", True),
        ("*example", "https://api.example", False),
        ("*api.example", "https://api.example", False),
        ("localhost", "https://LOCALHOST:6443", True),
        (":443", "https://api.example", False),
    )
}


def test_no_proxy_exempts_the_same_hosts_as_for_kubectl() -> None:
    for name in ("NO_PROXY", "no_proxy"):
        found = {
            (no_proxy, server): proxy_from_environment(server, {"HTTPS_PROXY": PROXY, name: no_proxy}) is None
            for no_proxy, server in NO_PROXY
        }
        assert found == NO_PROXY


def test_error_for_a_socks_proxy_names_the_environment_variable() -> None:
    with pytest.raises(ConfigurationError, match=r"environment variable https_proxy: .* SOCKS proxies"):
        proxy_from_environment("https://api.example", {"https_proxy": "socks5://p:1"})
