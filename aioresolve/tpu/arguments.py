"""The arguments of TPUClusterResolver, checked: each wrong one is told by its name, with the mend. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aioresolve.errors import ConfigurationError

from .addresses import worker_address

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aioresolve.gcp.tpu_api import TPUVersion

__all__ = ["api_base", "checked_coordinator", "checked_text", "checked_version"]

DISCOVERY_VARIABLE = "TPU_API_DISCOVERY_URL"

DIRECTORY = "/discovery/v1/apis/"
"""Where Google keeps the discovery documents of all its APIs, whose host says nothing of where they are."""

_PARAMETER = re.compile(r"\{(\w*)\}")


def checked_text(name: str, text: Any) -> str | None:
    """Return `text`, or None where it is None or empty, as the seed of every project and zone has it."""
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise ConfigurationError(f"{name}={text!r} is no text; give its name")
    return text


def checked_version(version: Any) -> TPUVersion:
    """Return the API's version where there is one of that name."""
    if version not in ("v1", "v2"):
        raise ConfigurationError(f"api_version={version!r} is none of 'v2' and 'v1'")
    return version  # type: ignore[no-any-return]


def checked_coordinator(name: Any, address: Any, job_name: str) -> tuple[str | None, str | None]:
    """Return name and address of the coordinator; both None where it is to be no part of the cluster.

    Raises:
        ConfigurationError: one of them is none, or the name is that of the TPU's own job.
    """
    name = checked_text("coordinator_name", name)
    address = checked_text("coordinator_address", address)
    if name is None:
        return None, None
    if name == job_name:
        raise ConfigurationError(
            f"coordinator_name={name!r} is the job of the TPU workers; name the coordinator otherwise, or"
            " them with job_name"
        )
    return name, None if address is None else worker_address(address, "coordinator_address")


def api_base(discovery_url: Any, environ: Mapping[str, str], version: str) -> str | None:
    """Return the base URL of the API that a discovery document's URL stands for; None for Google's own.

    `$TPU_API_DISCOVERY_URL` comes before the argument. A discovery document is served by its API, so that the
    URL's scheme and host are the API's; but for that in Google's directory of all documents.

    Args:
        discovery_url: a template with `{api}` and `{apiVersion}`, or None.
        environ: the environment variables.
        version: the API's version.

    Raises:
        ConfigurationError: it is no such template.
    """
    variable = environ.get(DISCOVERY_VARIABLE)
    where = f"${DISCOVERY_VARIABLE}" if variable else "discovery_url"
    template = variable or discovery_url
    if not template:
        return None
    mend = "write it as https://tpu.googleapis.com/$discovery/rest?version={apiVersion}"
    if not isinstance(template, str):
        raise ConfigurationError(f"{where}={template!r} is no text; {mend}")
    values = {"api": "tpu", "apiVersion": version}
    if unknown := sorted(set(_PARAMETER.findall(template)) - values.keys()):
        raise ConfigurationError(f"{where}={template!r} has the parameter {{{unknown[0]}}}; {mend}")
    url = _PARAMETER.sub(lambda found: values[found[1]], template)
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise ConfigurationError(f"{where}={template!r} is no URL ({error}); {mend}") from error
    if not is_url:
        raise ConfigurationError(f"{where}={template!r} is no URL; {mend}")
    if parts.path.startswith(DIRECTORY) and (parts.hostname or "").endswith(".googleapis.com"):
        return None
    return f"{parts.scheme}://{parts.netloc}"
