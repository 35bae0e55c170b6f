"""The permissions that a rendezvous needs: the Role, and the checks of `aioresolve doctor`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from aioresolve.errors import Hint
from aioresolve.kubernetes.api.client import AS_JSON
from aioresolve.kubernetes.api.errors import error_from_response, rbac_subject
from aioresolve.kubernetes.api.queries import PodQuery
from aioresolve.kubernetes.api.transport import Request
from aioresolve.kubernetes.server_checks import AUTHENTICATION
from aioresolve.resolver.checks import Finding, PlannedCheck

if TYPE_CHECKING:
    from aioresolve._core.deadline import Progress
    from aioresolve.kubernetes.server_checks import ServerChecks

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class Rule(NamedTuple):
    """Verbs that a rendezvous needs for a resource.

    Attributes:
        group: the API group; empty for the core group.
        verbs: the RBAC verbs.
        is_named: whether they are needed only for the ConfigMap of the rendezvous.
        is_outside: whether only nodes outside of pods need them.
    """

    group: str
    resource: str
    verbs: tuple[str, ...]
    is_named: bool = False
    is_outside: bool = False


RULES = (
    Rule("", "pods", ("get", "list", "watch")),
    Rule("", "configmaps", ("create",)),
    Rule("", "configmaps", ("get", "list", "patch", "watch"), is_named=True),
    Rule("coordination.k8s.io", "leases", ("create", "delete", "list", "patch", "watch"), is_outside=True),
)
"""What a rendezvous needs. A permission to create cannot be limited to a name."""


def role(namespace: str, name: str, user: str = "") -> str:
    """Return the Role for the ConfigMap `name` as YAML, bound to the user if the name is not empty."""
    lines = [
        f"- {{apiGroups: [{json.dumps(rule.group)}], resources: [{rule.resource}]"
        + (f", resourceNames: [{name}]" if rule.is_named else "")
        + f", verbs: [{', '.join(rule.verbs)}]}}\n"
        for rule in RULES
        if not rule.is_outside
    ]
    rules = f"""\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: {name}, namespace: {namespace}}}
rules:
{"".join(lines)}"""
    if not user:
        return rules
    return f"""{rules}---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {name}, namespace: {namespace}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: {name}}}
subjects:
- {rbac_subject(user)}
"""


@dataclass
class PermissionChecks:
    """The checks of a rendezvous for `aioresolve doctor`; without a namespace, in that of the context."""

    server: ServerChecks
    name: str
    namespace: str | None

    def plan(self) -> list[PlannedCheck]:
        """Return the checks in the order in which a user reads them."""
        return [
            *self.server.plan(),
            *(
                PlannedCheck(
                    f"{', '.join(rule.verbs)} {rule.resource}", partial(self._check, rule), (AUTHENTICATION,)
                )
                for rule in RULES
            ),
        ]

    async def _check(self, rule: Rule, _: Progress) -> Finding:
        namespace = self.namespace or self.server.connection.default_namespace()
        denied = [verb for verb in rule.verbs if not await self._may(verb, rule, namespace)]
        if not denied:
            return Finding(f"may {', '.join(rule.verbs)} in namespace {namespace!r}")
        found = f"may not {', '.join(denied)} in namespace {namespace!r}"
        if rule.is_outside:
            return Finding(f"{found}; only nodes outside of pods have to", "warning")
        text = "Have this Role applied and bound to the service account of the pods:\n{manifest}"
        hint = Hint(text, values={"manifest": role(namespace, self.name)})
        return Finding(found, "failed", hint)

    async def _may(self, verb: str, rule: Rule, namespace: str) -> bool:
        attributes = {"namespace": namespace, "verb": verb, "group": rule.group, "resource": rule.resource}
        if rule.is_named:
            attributes["name"] = self.name
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        api = self.server.api
        headers = {"Accept": AS_JSON, "Content-Type": AS_JSON}
        response = await api.send(Request("POST", REVIEWS, {}, headers, json.dumps(body).encode()))
        if response.status != 201:
            query = PodQuery("", namespace)
            raise error_from_response(response, query, host=api.host, source=api.source, verbs=(verb,))
        return bool(json.loads(response.body)["status"]["allowed"])
