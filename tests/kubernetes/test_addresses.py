"""Server URLs, proxy URLs, and which hosts the proxy of the environment applies to."""

from __future__ import annotations

import pytest

from aioresolve.errors import ConfigurationError
from aioresolve.kubernetes.auth.kubeconfig import (
    proxy_from_environment,
    validate_proxy_url,
    validate_server_url,
    without_credentials,
)

PROXY = "http://proxy:3128"


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://10.0.0.1:6443", "https://10.0.0.1:6443"),
        ("https://10.0.0.1:6443/", "https://10.0.0.1:6443"),
        ("https://rancher.example/k8s/clusters/c-1/", "https://rancher.example/k8s/clusters/c-1"),
        ("http://localhost:8001", "http://localhost:8001"),
        ("https://[fd00::1]:6443", "https://[fd00::1]:6443"),
        ("https://host/?watch=1", "https://host"),
        ("https://host/?", "https://host"),
        ("https://host/#top", "https://host"),
        # Without a scheme, the default one.
        ("10.0.0.1:6443", "http://10.0.0.1:6443"),
        ("localhost:6443", "http://localhost:6443"),
        ("api.example", "http://api.example"),
    ],
)
def test_server_url_keeps_its_path_without_a_trailing_slash(url: str, server: str) -> None:
    assert validate_server_url(url, "here") == server


@pytest.mark.parametrize(
    "url",
    [
        "ftp://api.example",
        "https://",
        "https://host:99999",
        "https://host:0",
        "https://[fd00::1",
        "https://ho st",
        "https://host\n",
        "https://1.2.3:1",
        "https://1.2.3.4.:1",
        "api.example/path",
    ],
)
def test_invalid_server_url_is_reported_with_its_place(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^here: .*https://"):
        validate_server_url(url, "here")


@pytest.mark.parametrize(
    "url", ["https://root:hunter22@host", "https://hunter22@host", "root:hunter22@host:1"]
)
def test_password_in_a_server_url_is_rejected_and_not_shown(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        validate_server_url(url, "here")
    assert "hunter22" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://proxy:3128", "https://me:pw@proxy", "http://[::1]:3128"])
def test_http_proxy_is_accepted_unchanged(url: str) -> None:
    assert validate_proxy_url(url, "here") == url


@pytest.mark.parametrize(
    "url", ["socks5://me:hunter22@proxy:1080", "socks5h://hunter22@proxy", "ftp://hunter22@p", "hunter22"]
)
def test_other_proxies_are_rejected_without_showing_their_passwords(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^here: ") as caught:
        validate_proxy_url(url, "here")
    assert "@" not in str(caught.value)
    assert "hunter22" not in str(caught.value) or url == "hunter22"


def test_error_for_a_socks_proxy_says_that_it_is_not_supported() -> None:
    with pytest.raises(ConfigurationError, match=r"SOCKS proxies \(socks5\) are not supported"):
        validate_proxy_url("socks5://proxy:1080", "here")


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://api.example", {}, None),
        ("https://api.example", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.example", {"https_proxy": PROXY}, PROXY),
        ("https://api.example", {"HTTPS_PROXY": PROXY, "https_proxy": "http://other"}, PROXY),
        ("https://api.example", {"HTTPS_PROXY": "", "https_proxy": PROXY}, PROXY),
        ("https://api.example", {"HTTPS_PROXY": "proxy:3128"}, PROXY),
        ("https://api.example", {"HTTP_PROXY": PROXY}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY}, PROXY),
        ("http://api.example", {"HTTPS_PROXY": PROXY}, None),
        ("https://api.example", {"ALL_PROXY": PROXY}, None),
        ("https://localhost:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://127.0.0.7:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://[::1]:6443", {"HTTPS_PROXY": PROXY}, None),
        ("https://LOCALHOST:6443", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.example", {"HTTPS_PROXY": PROXY, "REQUEST_METHOD": "GET"}, PROXY),
        ("http://api.example", {"HTTP_PROXY": PROXY, "REQUEST_METHOD": ""}, PROXY),
        ("http://api.example", {"REQUEST_METHOD": "GET"}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "api.example:80"}, None),
        ("http://api.example", {"HTTP_PROXY": PROXY, "NO_PROXY": "api.example:443"}, PROXY),
    ],
)
def test_proxy_depends_on_the_scheme_of_the_server(
    server: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert proxy_from_environment(server, environ) == proxy


@pytest.mark.parametrize(
    ("no_proxy", "server", "exempt"),
    [
        ("", "https://[::ffff:127.0.0.1]:6443", True),
        ("10.0.0.0/8", "https://[::ffff:10.1.2.3]:6443", True),
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
    ],
)
def test_no_proxy_exempts_the_same_hosts_as_for_kubectl(no_proxy: str, server: str, exempt: bool) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        found = proxy_from_environment(server, {"HTTPS_PROXY": PROXY, name: no_proxy})
        assert found == (None if exempt else PROXY)


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy"])
def test_proxy_that_the_client_of_a_cgi_program_could_set_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^environment variable {name} is not used in a CGI"):
        proxy_from_environment("http://api.example", {name: PROXY, "REQUEST_METHOD": "GET", "NO_PROXY": "*"})


def test_error_for_a_socks_proxy_names_the_environment_variable() -> None:
    with pytest.raises(ConfigurationError, match="environment variable https_proxy: SOCKS proxies"):
        proxy_from_environment("https://api.example", {"https_proxy": "socks5://p:1"})


def test_credentials_are_removed_from_a_proxy_url_for_messages() -> None:
    assert without_credentials("http://me:pw@proxy:3128/x") == "http://proxy:3128/x"
    assert without_credentials("http://proxy:3128") == "http://proxy:3128"
