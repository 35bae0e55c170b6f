"""What to grant when the API server says no: the smallest Role that would do, as YAML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["denied_user", "manifest"]

SERVICE_ACCOUNT = "system:serviceaccount:"

_USER = re.compile(r'User "((?:[^"\\]|\\.)*)" cannot')


def denied_user(message: str) -> str | None:
    """Return the user that the API server's 403 message names, or None where it names none."""
    found = _USER.search(message)
    return found[1] if found else None


def manifest(user: str, namespace: str | None, verbs: Sequence[str] = ("list",)) -> str:
    """Return the smallest RBAC objects that let `user` do so with pods, as YAML for `kubectl apply -f -`.

    Args:
        user: the user as the API server names it; `system:serviceaccount:NAMESPACE:NAME` is a ServiceAccount.
        namespace: a Role and RoleBinding there; None for a ClusterRole and ClusterRoleBinding.
        verbs: what the user is to be allowed.
    """
    cluster = "Cluster" if namespace is None else ""
    where = "" if namespace is None else f", namespace: {json.dumps(namespace)}"
    # A binding of its own for each user: applying one must not take another's away.
    binding = json.dumps("aioresolve-" + re.sub("[^A-Za-z0-9.-]+", "-", user.removeprefix(SERVICE_ACCOUNT)))
    return f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: {cluster}Role
metadata: {{name: aioresolve{where}}}
rules:
- apiGroups: [""]
  resources: [pods]
  verbs: [{", ".join(verbs)}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {cluster}RoleBinding
metadata: {{name: {binding}{where}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: {cluster}Role, name: aioresolve}}
subjects:
- {_subject(user)}
"""


def _subject(user: str) -> str:
    match user.split(":"):
        case ["system", "serviceaccount", namespace, name]:
            return f"{{kind: ServiceAccount, name: {json.dumps(name)}, namespace: {json.dumps(namespace)}}}"
    return f"{{apiGroup: rbac.authorization.k8s.io, kind: User, name: {json.dumps(user)}}}"
