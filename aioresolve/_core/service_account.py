"""The files that the kubelet mounts into a pod: the token of its service account, and its namespace.

Source: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
"""The folder with the files `token`, `ca.crt` and `namespace`."""


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
