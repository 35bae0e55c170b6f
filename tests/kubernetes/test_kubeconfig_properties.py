"""Whatever a kubeconfig contains: a server, or one error that names file and field, and never a secret."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

import pytest
import trustme
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aioresolve.errors import ConfigurationError, CredentialsError
from aioresolve.kubernetes.auth.connection import new_ssl_context
from aioresolve.kubernetes.auth.discovery import discover_server

from .kubeconfigs import EXEC_V1, SERVER, base64_of, client_pair, kubeconfig

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY = trustme.CA()
CA = AUTHORITY.cert_pem.bytes()
CHAIN, KEY = client_pair(AUTHORITY)
SECRET = "hunter22"
SHOWN_SECRETS = (SECRET, base64_of(SECRET.encode()), base64_of(KEY)[40:80], KEY.decode()[60:100])

JUNK: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 10**20),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from([[], {}, [None], {"": None}, "\ud800", "a\0b", "x\n", "~", "../x", "dangling/x", "/"]),
)
SECRET_JUNK = st.sampled_from([SECRET, f"{SECRET}\n", f"{SECRET}\0", [SECRET], {SECRET: SECRET}]) | JUNK


def mostly(valid: st.SearchStrategy[Any], junk: st.SearchStrategy[Any] = JUNK) -> st.SearchStrategy[Any]:
    # Hypothesis likes small numbers, and most kubeconfigs are to get past their first field.
    return st.integers(0, 24).flatmap(lambda number: junk if number == 17 else valid)


def either(*values: Any) -> st.SearchStrategy[Any]:
    return mostly(st.sampled_from(values))


def secret(*values: Any) -> st.SearchStrategy[Any]:
    return mostly(st.sampled_from(values), SECRET_JUNK)


def fields(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    optional = {name.replace("__", "-"): value for name, value in values.items()}
    misspelt = st.fixed_dictionaries({}, optional=dict.fromkeys(("Token", "tokn", "Server", SECRET), JUNK))
    return st.builds(
        lambda known, others: known | others,
        st.fixed_dictionaries({}, optional=optional),
        mostly(st.just({}), misspelt),
    )


CLUSTERS = mostly(
    fields(
        certificate__authority=either("ca.pem", "missing.pem"),
        certificate__authority__data=either(base64_of(CA), base64_of(CA + b"broken")),
        insecure__skip__tls__verify=either(True, False),
        tls__server__name=either("api.example", "10.0.0.1", "api.example."),
        proxy__url=secret("http://proxy:3128", f"http://me:{SECRET}@proxy", f"socks5://me:{SECRET}@proxy"),
        disable__compression=either(True, False),
        extensions=either([], [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1.5}}]),
    )
)
SERVERS = either(
    SERVER, SERVER, SERVER, "HTTPS://h/x?y", "h:80", f"https://me:{SECRET}@h", f"https://h?k={SECRET}"
)
PLUGINS = fields(
    apiVersion=either(EXEC_V1, "client.authentication.k8s.io/v1beta1"),
    command=either("aws", "./bin/login", "/x/y"),
    args=secret([], ["--token", SECRET], None),
    env=secret([], [{"name": "A", "value": SECRET}], [{"name": "A"}]),
    interactiveMode=either("Never", "IfAvailable", "Always"),
    provideClusterInfo=either(True, False),
    installHint=either("Install it."),
)
USERS = mostly(
    st.one_of(
        fields(
            token=secret(f"{SECRET}-token"),
            tokenFile=either("token", "empty", "lines", "missing", "loop", "."),
            username=secret(f"{SECRET}-name"),
            password=secret(f"{SECRET}-password"),
            client__certificate=either("client.pem", "missing.pem"),
            client__certificate__data=secret(base64_of(CHAIN), base64_of(SECRET.encode())),
            client__key=either("client.key", "missing.pem"),
            client__key__data=secret(base64_of(KEY), base64_of(SECRET.encode())),
            exec=mostly(PLUGINS, SECRET_JUNK),
            auth__provider=secret(
                {"name": "oidc", "config": {"id-token": f"{SECRET}-id"}}, {"name": "azure"}
            ),
        ),
        fields(token=secret(f"{SECRET}-token"), exec=PLUGINS),
        fields(
            token=secret(f"{SECRET}-token"),
            **{
                "as": either("ada"),
                "as__uid": either("7"),
                "as__groups": either([], ["a", "b"]),
                "as__user__extra": either({}, {"k": ["v", "w"]}),
            },
        ),
    ),
    SECRET_JUNK,
)
CONTEXTS = fields(cluster=either("dev"), user=either("dev"), namespace=either("ml"))


@st.composite
def kubeconfigs(draw: st.DrawFn) -> dict[str, Any]:
    """Kubeconfigs of one context, most of them nearly valid."""
    cluster = draw(CLUSTERS)
    if isinstance(cluster, dict):
        cluster = {"server": draw(SERVERS)} | cluster
    context = draw(CONTEXTS)
    if isinstance(context, dict):
        context = {"cluster": "dev", "user": "dev"} | context
    return {
        "current-context": draw(either("dev")),
        "clusters": [{"name": draw(either("dev")), "cluster": cluster}],
        "contexts": [{"name": draw(either("dev")), "context": context}],
        "users": [{"name": draw(either("dev")), "user": draw(USERS)}],
    }


PLACES = ("current-context", "context", "cluster", "user")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kubeconfigs")
    content = {"ca.pem": CA, "client.pem": CHAIN, "client.key": KEY, "token": b"t", "empty": b""}
    for name, each in {**content, "lines": f"{SECRET}\n{SECRET}".encode()}.items():
        (folder / name).write_bytes(each)
    (folder / "loop").symlink_to(folder / "loop")
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(config=kubeconfigs(), is_json=st.booleans())
@example(config={"contexts": [], "users": [{"name": "x"}]}, is_json=False)
@example(config=kubeconfig(**{"certificate-authority": "\x1f"}), is_json=True)
@example(config=kubeconfig({"tokenFile": "\x1b[2J"}), is_json=True)
@example(config=kubeconfig(**{"proxy-url": SECRET}), is_json=True)
def test_a_kubeconfig_names_a_server_or_raises_one_error_that_names_file_and_field(
    folder: Path, config: dict[str, Any], is_json: bool
) -> None:
    path = folder / "config"
    if is_json:
        path.write_text(json.dumps(config))
    else:
        path.write_bytes(yaml.safe_dump(config).encode("utf-8", "replace"))
    try:
        found = discover_server([str(path)], None, None, {})
        if found.trust is not None:
            new_ssl_context(found.trust, found.identity.certificate)
        shown = repr(found)
        summary = f"{path}: cluster"
    except (ConfigurationError, CredentialsError) as error:
        shown = "".join(traceback.format_exception(error)) + repr(error)
        summary = error.summary
    assert str(path) in summary
    assert "not valid YAML" in summary or any(place in summary for place in PLACES), summary
    assert summary.isprintable()
    assert not [secret for secret in SHOWN_SECRETS if secret in shown]
