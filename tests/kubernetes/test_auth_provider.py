"""auth-providers: OIDC tokens, Google's command, and the hints for other providers."""

from __future__ import annotations

import json
import time
import traceback
from typing import TYPE_CHECKING

import pytest

from aioresolve.errors import ConfigurationError, CredentialsError
from aioresolve.kubernetes.auth.auth_provider import google_command, identity_of
from aioresolve.kubernetes.auth.connection import Identity
from aioresolve.kubernetes.auth.kubeconfig import AuthProvider

from .kubeconfigs import id_token, write_plugin

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600


def provider(name: str, **config: str) -> AuthProvider:
    return AuthProvider(
        f"the {name} entry", name, tuple((key.replace("_", "-"), value) for key, value in config.items())
    )


def test_valid_oidc_token_is_the_bearer_token_until_it_expires() -> None:
    expires = int(time.time()) + HOUR
    token = id_token(exp=expires)
    assert identity_of(provider("oidc", id_token=token)) == Identity(f"Bearer {token}", expires=expires)
    assert identity_of(provider("oidc", id_token=id_token(sub="ada"))).expires is None


def test_expired_or_missing_oidc_token_is_reported_with_a_hint() -> None:
    with pytest.raises(
        CredentialsError, match=r"the oidc entry: its token has expired\. Run any kubectl command"
    ):
        identity_of(provider("oidc", id_token=id_token(exp=1), refresh_token="r"))
    with pytest.raises(CredentialsError, match="its token is missing"):
        identity_of(provider("oidc", refresh_token="r"))


def test_malformed_oidc_token_is_reported_and_not_shown() -> None:
    for token in ("hunter22", "a.hunter22.b", "ä.ä.ä", "a.W10.b"):
        with pytest.raises(ConfigurationError, match="its id-token is not a JSON Web Token") as caught:
            identity_of(provider("oidc", id_token=token))
        assert "hunter22" not in "".join(traceback.format_exception(caught.value))


def test_provider_that_kubectl_does_not_support_is_reported_with_a_hint() -> None:
    with pytest.raises(
        ConfigurationError, match=r"the azure entry is not supported, and not by kubectl since 1\.26"
    ):
        identity_of(provider("azure"))


def test_google_token_is_used_until_it_expires() -> None:
    good = provider("gcp", access_token="t", expiry="2100-01-01T00:00:00Z")
    assert identity_of(good) == Identity("Bearer t", expires=4102444800)
    assert google_command(good) is None
    with pytest.raises(CredentialsError, match=r"has expired\. Use the exec plugin gke-gcloud-auth-plugin"):
        identity_of(provider("gcp", access_token="t", expiry="2000-01-01T00:00:00Z"))
    with pytest.raises(ConfigurationError, match="its expiry is not an RFC 3339 time"):
        identity_of(provider("gcp", access_token="t", expiry="soon"))


def google(path: Path) -> AuthProvider:
    keys = {"token_key": "{.credential.access_token}", "expiry_key": "{.credential.token_expiry}"}
    return provider("gcp", cmd_path=str(path), cmd_args="config config-helper", **keys)


async def test_google_command_provides_the_token(tmp_path: Path) -> None:
    printed = {"credential": {"access_token": "t", "token_expiry": "2100-01-01T00:00:00Z"}}
    path = write_plugin(
        tmp_path, f"assert sys.argv[1:] == ['config', 'config-helper']\nprint({json.dumps(printed)!r})"
    )
    command = google_command(google(path))
    assert command is not None
    assert await command.identity() == Identity("Bearer t", expires=4102444800)


@pytest.mark.parametrize("printed", ["hunter22", '{"credential": {"access_token": 5}}'])
async def test_google_command_without_a_token_is_reported_without_its_output(
    tmp_path: Path, printed: str
) -> None:
    command = google_command(google(write_plugin(tmp_path, f"print({printed!r})")))
    assert command is not None
    with pytest.raises(CredentialsError, match=r"'plugin' .* printed no token at") as caught:
        await command.identity()
    assert "hunter22" not in str(caught.value)
