"""The metadata server of a VM, and the OAuth 2.0 requests with which Google's token servers issue tokens.

Rules of the metadata server: https://cloud.google.com/compute/docs/metadata/querying-metadata
"""

from __future__ import annotations

import base64
import functools
import json
import secrets
import time
from typing import TYPE_CHECKING, Any

from aioresolve.errors import MissingDependencyError
from aioresolve.testing.replies import Reply

from .apis import json_reply, oauth_failure, unauthenticated

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .resources import Cloud

_ROOT = "/computeMetadata/v1/"
_ACCOUNT = "instance/service-accounts/default/"
_COMMON_HEADERS = {"Metadata-Flavor": "Google", "Server": "Metadata Server for VM", "X-XSS-Protection": "0"}
_TEXT_HEADERS = {**_COMMON_HEADERS, "Content-Type": "application/text"}
_JSON_HEADERS = {**_COMMON_HEADERS, "Content-Type": "application/json"}
_HTML_HEADERS = {**_COMMON_HEADERS, "Content-Type": "text/html; charset=UTF-8"}


def default_metadata(project: str, zone: str, email: str) -> dict[str, str]:
    """Return the values that every VM's metadata server has, by path."""
    return {
        "project/project-id": project,
        "project/numeric-project-id": "123456789012",
        "instance/id": "1152921504606846976",
        "instance/name": "loopback",
        "instance/zone": f"projects/123456789012/zones/{zone}",
        "instance/network-interfaces/0/ip": "10.128.0.2",
        "universe/universe-domain": "googleapis.com",
        f"{_ACCOUNT}aliases": "default",
        f"{_ACCOUNT}email": email,
        f"{_ACCOUNT}scopes": "https://www.googleapis.com/auth/cloud-platform",
    }


class Tokens:
    """The valid access tokens, and the secrets for which new ones are issued.

    Attributes:
        tokens: access token to IAM member, in addition to the tokens that the server issues; None if the APIs
            need no credentials.
        token_lifetime: the lifetime in seconds of access tokens that are issued from now on.
        email: the service account's address.
    """

    def __init__(self, tokens: Mapping[str, str] | None, email: str) -> None:
        self.tokens = None if tokens is None else dict(tokens)
        self.token_lifetime = 3599.0
        self.email = email
        self._subject_token = f"subject-{secrets.token_hex(8)}"
        self._issued: dict[str, tuple[str, float]] = {}

    def revoke_tokens(self) -> None:
        """Reject every access token issued so far (401)."""
        self._issued.clear()

    def _member(self, token: str) -> str | None:
        """Return the IAM member to which a token belongs, None if it is not valid."""
        if self.tokens is not None and token in self.tokens:
            return self.tokens[token]
        member, end = self._issued.get(token, ("", 0.0))
        return member if time.time() < end else None

    def _issue(self, member: str) -> tuple[str, float]:
        """Issue a token; return it and its expiry in Unix time."""
        token = f"ya29.{secrets.token_urlsafe(24)}"
        end = time.time() + self.token_lifetime
        self._issued[token] = (member, end)
        return token, end

    def _issue_json(self, member: str, **more: Any) -> dict[str, Any]:
        """Issue a token; return the JSON document of a token endpoint."""
        token, _ = self._issue(member)
        return {"access_token": token, "expires_in": int(self.token_lifetime), "token_type": "Bearer", **more}

    def _oauth_reply(self, form: Mapping[str, str]) -> Reply:
        """Return the reply of `oauth2.googleapis.com/token`."""
        scope = form.get("scope", "")
        if form.get("grant_type") == "refresh_token":
            return json_reply(self._issue_json("user:alice@example.com", scope=scope))
        # RFC 7523; the signature is not verified.
        payload = form["assertion"].split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        if claims.get("iss") != self.email:
            raise oauth_failure("invalid_grant", "Invalid grant: account not found")
        return json_reply(self._issue_json(f"serviceAccount:{self.email}", scope=claims.get("scope", "")))

    def _sts_reply(self, form: Mapping[str, str]) -> Reply:
        """Return the reply of `sts.googleapis.com/v1/token` (RFC 8693)."""
        if form.get("subject_token") != self._subject_token:
            raise oauth_failure("invalid_grant", "The given credential is rejected.")
        kind = "urn:ietf:params:oauth:token-type:access_token"
        return json_reply(self._issue_json("principal://pool/subject/workload", issued_token_type=kind))

    def _impersonation_reply(self, email: str, member: str | None) -> Reply:
        """Return the reply of `iamcredentials.googleapis.com` to generateAccessToken."""
        if member is None:
            raise unauthenticated(True)
        token, end = self._issue(f"serviceAccount:{email}")
        expire = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
        return json_reply({"accessToken": token, "expireTime": expire})


def service_account_key(email: str, project: str, token_uri: str) -> dict[str, str]:
    """Return the key file of a service account whose assertions `Tokens` accepts; needs cryptography."""
    return {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "0123456789abcdef0123456789abcdef01234567",
        "private_key": _private_key(),
        "client_email": email,
        "client_id": "112233445566778899000",
        "token_uri": token_uri,
        "universe_domain": "googleapis.com",
    }


@functools.cache
def _private_key() -> str:
    """Return an RSA key as PEM; it is created once per process because that takes 0.1 s."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa
    except ImportError as error:
        raise MissingDependencyError(
            "a service account key needs cryptography", hint="Run: pip install 'aioresolve[testing]'"
        ) from error
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem.decode()


def metadata_reply(
    cloud: Cloud, tokens: Tokens, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> Reply:
    """Return the reply to a request; `wait_for_change` is not implemented."""
    if path == "/":
        return Reply(200, b"computeMetadata/\n", _TEXT_HEADERS)
    if headers.get("Metadata-Flavor") != "Google":
        return Reply(403, b"<!DOCTYPE html>\n<title>Error 403 (Forbidden)!!1</title>\n", _HTML_HEADERS)
    values = dict(cloud.metadata)
    # The default account is also available under its address.
    email = values.get(f"{_ACCOUNT}email", "default")
    name = path.removeprefix(_ROOT).replace(f"instance/service-accounts/{email}/", _ACCOUNT, 1)
    if name == f"{_ACCOUNT}token" and f"{_ACCOUNT}email" in values:
        document = tokens._issue_json(f"serviceAccount:{email}")
        return Reply(200, json.dumps(document).encode(), _JSON_HEADERS)
    within = {each.removeprefix(name): values[each] for each in values if each.startswith(name)}
    if name in values:
        body, kind = values[name].encode(), _TEXT_HEADERS
    elif name.endswith("/") and within and query.get("recursive") == "true":
        body, kind = json.dumps(_tree(within)).encode(), _JSON_HEADERS
    else:
        return Reply(404, b"<!DOCTYPE html>\n<title>Error 404 (Not Found)!!1</title>\n", _HTML_HEADERS)
    return Reply(200, body, kind)


def _tree(values: Mapping[str, str]) -> dict[str, Any]:
    """Return a directory as `recursive=true` shows it; values with one item per line become lists."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        directory = tree
        *parents, name = path.split("/")
        for parent in parents:
            directory = directory.setdefault(parent, {})
        directory[name] = value.split("\n") if name in ("scopes", "aliases") else value
    return tree
