"""auth-providers: OIDC tokens, Google's command, and the mend for all else."""

from __future__ import annotations

import json
import time
import traceback
from typing import TYPE_CHECKING

import pytest

from aioresolve.errors import ConfigurationError, CredentialsError, ResolveError
from aioresolve.kubernetes.auth.auth_provider import google_command, identity_of
from aioresolve.kubernetes.auth.identity import Identity
from aioresolve.kubernetes.auth.kubeconfig import AuthProvider

from .kubeconfigs import id_token, plugin

if TYPE_CHECKING:
    from pathlib import Path

HOUR = 3600


def provider(name: str, **config: str) -> AuthProvider:
    return AuthProvider(
        f"the {name} entry", name, tuple((key.replace("_", "-"), value) for key, value in config.items())
    )


def test_a_valid_oidc_token_is_the_bearer_token() -> None:
    expires = int(time.time()) + HOUR
    token = id_token(exp=expires)
    assert identity_of(provider("oidc", id_token=token)) == Identity(f"Bearer {token}", expires=expires)


def test_an_oidc_token_without_an_end_never_expires() -> None:
    assert identity_of(provider("oidc", id_token=id_token(sub="ada"))).expires is None


def test_an_expired_oidc_token_is_told_with_the_mend() -> None:
    with pytest.raises(
        CredentialsError, match="the oidc entry: its token has expired; run any kubectl command"
    ):
        identity_of(provider("oidc", id_token=id_token(exp=1), refresh_token="r"))


def test_a_missing_oidc_token_is_told() -> None:
    with pytest.raises(CredentialsError, match="its token is missing"):
        identity_of(provider("oidc", refresh_token="r"))


@pytest.mark.parametrize("token", ["hunter22", "a.hunter22.b", "a.aGk.b", "a.a.b", "ä.ä.ä", "a.W10.b"])
def test_an_oidc_token_that_is_none_is_told_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigurationError, match="its id-token is no JSON Web Token") as caught:
        identity_of(provider("oidc", id_token=token))
    assert "hunter22" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("name", ["azure", "openstack"])
def test_a_provider_that_is_gone_from_kubectl_is_told_with_the_mend(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"the {name} entry is not known here, nor to kubectl since 1.26"
    ):
        identity_of(provider(name))


def test_a_google_token_that_is_still_good_is_used() -> None:
    good = provider("gcp", access_token="t", expiry="2100-01-01T00:00:00Z")
    assert identity_of(good) == Identity("Bearer t", expires=4102444800)
    assert google_command(good) is None


def test_a_google_token_that_has_expired_is_told_with_the_mend() -> None:
    with pytest.raises(CredentialsError, match="has expired; use the exec plugin gke-gcloud-auth-plugin"):
        identity_of(provider("gcp", access_token="t", expiry="2000-01-01T00:00:00Z"))
    with pytest.raises(ConfigurationError, match="its expiry is no RFC 3339 time"):
        identity_of(provider("gcp", access_token="t", expiry="soon"))


def google(path: Path, **config: str) -> AuthProvider:
    keys = {"token_key": "{.credential.access_token}", "expiry_key": "{.credential.token_expiry}"}
    return provider("gcp", cmd_path=str(path), cmd_args="config config-helper", **{**keys, **config})


async def test_googles_command_gives_the_token(tmp_path: Path) -> None:
    printed = {"credential": {"access_token": "t", "token_expiry": "2100-01-01T00:00:00Z"}}
    path = plugin(
        tmp_path, f"assert sys.argv[1:] == ['config', 'config-helper']\nprint({json.dumps(printed)!r})"
    )
    command = google_command(google(path))
    assert command is not None
    assert await command.identity() == Identity("Bearer t", expires=4102444800)


@pytest.mark.parametrize(
    "printed", ["hunter22", '{"credential": 5}', "{}", '{"credential": {"access_token": 5}}']
)
async def test_googles_command_without_a_token_is_told_and_its_output_not_shown(
    tmp_path: Path, printed: str
) -> None:
    command = google_command(google(plugin(tmp_path, f"print({printed!r})")))
    assert command is not None
    with pytest.raises(CredentialsError, match=r"'plugin' .* printed no token where") as caught:
        await command.identity()
    assert "hunter22" not in str(caught.value)


async def test_googles_command_that_is_not_there_is_told(tmp_path: Path) -> None:
    command = google_command(google(tmp_path / "gcloud"))
    assert command is not None
    with pytest.raises(ResolveError, match=r"the command 'gcloud' .* could not be started: No such file"):
        await command.identity()
