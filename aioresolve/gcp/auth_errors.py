"""google-auth's exceptions, in our words."""

from __future__ import annotations

from google.auth import exceptions

from aioresolve.errors import ConnectionFailedError, CredentialsError, ResolveError

__all__ = ["FAILURES", "credentials_error"]

FAILURES = (exceptions.GoogleAuthError, OSError, ValueError, TypeError, KeyError, AttributeError)
"""What google-auth raises; the last three where a file or an answer lacks a field."""


def credentials_error(error: Exception, source: str) -> ResolveError:
    """Return our error for one of google-auth.

    Args:
        error: one of FAILURES. It loses the token server's answer, where it holds it, for that may be secret.
        source: where the credentials come from, in words.
    """
    _forget_answers(error)
    said = str(error).partition("\n")[0][:500].rstrip(". ") or type(error).__name__
    passing = bool(getattr(error, "retryable", False))
    match error:
        case exceptions.TransportError() | exceptions.TimeoutError():
            return ConnectionFailedError(
                f"the token server of {source} was not reached: {said}; see that the network lets it through"
            )
        case exceptions.RefreshError():
            return CredentialsError(
                f"{source} did not get an access token: {said}; {_mend(said)}",
                tried=[f"{source}: {said}"],
                retryable=passing,
            )
        case exceptions.GoogleAuthError():
            pass
        case KeyError() | AttributeError() | TypeError():
            said = f"a field is missing or of another kind ({type(error).__name__}: {said})"
    return CredentialsError(
        f"{source} cannot be used: {said}; make the file anew, or give other credentials",
        tried=[f"{source}: {said}"],
        retryable=passing,
    )


def _forget_answers(error: BaseException | None) -> None:
    while error is not None:
        if isinstance(error, exceptions.GoogleAuthError):
            error.args = error.args[:1]
        error = error.__cause__ or error.__context__


def _mend(said: str) -> str:
    if "invalid_grant" in said or "eauth" in said:
        return (
            "log in again with `gcloud auth application-default login`; for a service account, see that its"
            " key still exists and that the clock is right"
        )
    return "log in again with `gcloud auth application-default login`, or see to the account"
