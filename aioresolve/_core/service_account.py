"""What the kubelet gives the containers of a pod: the API server's address, a token, and the namespace.

Source: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder with the files `token`, `ca.crt` and `namespace`."""

SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
"""The variable with the address of the API server, which every container of a pod has."""


def is_in_pod() -> bool:
    """Whether this process runs in a pod."""
    return bool(os.environ.get(SERVICE_HOST))


def pod_namespace(environ: Mapping[str, str]) -> str | None:
    """Return the namespace of the pod that this process runs in, as client-go; None if it is not known.

    Reads a file, so it should run in a thread.
    """
    if named := environ.get("POD_NAMESPACE"):
        return named
    try:
        return Path(FOLDER, "namespace").read_bytes().decode("ascii", "replace").strip() or None
    except OSError:
        return None
