"""TLS contexts: which servers they trust, which certificate they present, and that no file remains."""

import os
import ssl
import tempfile
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from aioresolve.errors import ConfigurationError
from aioresolve.kubernetes.auth.connection import Trust, new_ssl_context
from aioresolve.kubernetes.auth.credentials import ClientCertificate

from .kubeconfigs import client_pair

HOST = "api.example"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["in memory", "in a folder"])
def temporary(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, on a system with files in memory and on one without."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if request.param == "in a folder":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    return tmp_path


def server_context(authority: trustme.CA, host: str = HOST, common_name: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host, common_name=common_name).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


def seen_by_server(client: ssl.SSLContext, server: ssl.SSLContext, name: str = HOST) -> bytes | None:
    """The client certificate that a server sees in a handshake, which runs in memory."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    pending = [ours, theirs]
    for _ in range(10):
        for side in list(pending):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            pending.remove(side)
    assert not pending
    return theirs.getpeercert(binary_form=True)


def test_only_the_host_and_the_authority_of_the_cluster_are_trusted(authority: trustme.CA) -> None:
    context = new_ssl_context(Trust(authority.cert_pem.bytes(), "ca"), None)
    assert seen_by_server(context, server_context(authority)) is None
    with pytest.raises(ssl.SSLCertVerificationError):
        seen_by_server(context, server_context(trustme.CA()))
    with pytest.raises(ssl.SSLCertVerificationError):
        seen_by_server(context, server_context(authority), "other.example")
    with pytest.raises(ssl.SSLCertVerificationError):  # as in Go, a common name is not a host name
        seen_by_server(context, server_context(authority, "admin@api.example", HOST))


def test_roots_of_the_system_are_trusted_only_without_an_authority(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(bundle)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert seen_by_server(new_ssl_context(Trust(), None), server_context(authority)) is None
    context = new_ssl_context(Trust(trustme.CA().cert_pem.bytes(), "ca"), None)
    with pytest.raises(ssl.SSLCertVerificationError):
        seen_by_server(context, server_context(authority))


def test_intermediate_certificate_is_an_anchor_and_insecure_trusts_any_server(authority: trustme.CA) -> None:
    intermediate = authority.create_child_ca()
    context = new_ssl_context(Trust(intermediate.cert_pem.bytes(), "ca"), None)
    assert seen_by_server(context, server_context(intermediate)) is None
    assert not context.verify_flags & ssl.VERIFY_X509_STRICT
    context = new_ssl_context(Trust(verify=False), None)
    assert seen_by_server(context, server_context(authority), "other.example") is None


def test_invalid_certificate_in_a_bundle_is_skipped(authority: trustme.CA) -> None:
    valid, invalid = authority.cert_pem.bytes(), trustme.CA().cert_pem.bytes().replace(b"MII", b"%II", 1)
    for bundle in (invalid + "# Türk\n".encode("latin-1") + valid, valid + invalid[:200]):
        context = new_ssl_context(Trust(bundle, "ca"), None)
        assert seen_by_server(context, server_context(authority)) is None


def test_error_for_an_authority_that_is_not_pem_names_its_place() -> None:
    for pem in (b"", b"\xff", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        with pytest.raises(ConfigurationError, match=r"^the place contains no valid CA certificate"):
            new_ssl_context(Trust(pem, "the place"), None)


def test_client_certificate_is_presented(authority: trustme.CA, temporary: Path, no_leak: None) -> None:
    chain, key = client_pair(authority)
    ours = ClientCertificate(chain.rstrip(), key, where="here")  # its end may lack a line break
    context = new_ssl_context(Trust(authority.cert_pem.bytes(), "ca"), ours)
    shown = seen_by_server(context, server_context(authority))
    assert shown == ssl.PEM_cert_to_DER_cert(ours.chain.decode())
    assert not list(temporary.iterdir())


def test_certificate_and_key_that_do_not_fit_are_an_error_and_leave_no_file(
    authority: trustme.CA, temporary: Path, no_leak: None
) -> None:
    (chain, key), (_, other) = client_pair(authority), client_pair(authority)
    for pair, reason in (((chain, other), "KEY_VALUES"), ((b"junk", key), ""), ((chain, b""), "")):
        mixed = ClientCertificate(*pair, where="the place")
        with pytest.raises(ConfigurationError, match=f"^the place: .* cannot be used .{reason}"):
            new_ssl_context(Trust(verify=False), mixed)
    assert not list(temporary.iterdir())


def test_encrypted_key_is_an_error_without_a_password_prompt(
    authority: trustme.CA, capfd: pytest.CaptureFixture[str]
) -> None:
    chain, key = client_pair(authority)
    for form in (serialization.PrivateFormat.PKCS8, serialization.PrivateFormat.TraditionalOpenSSL):
        encrypted = serialization.load_pem_private_key(key, None).private_bytes(
            serialization.Encoding.PEM, form, serialization.BestAvailableEncryption(b"hunter22")
        )
        with pytest.raises(ConfigurationError, match=r"^the place: the key is encrypted, .*openssl pkey"):
            new_ssl_context(Trust(verify=False), ClientCertificate(chain, encrypted, where="the place"))
    assert capfd.readouterr() == ("", "")
