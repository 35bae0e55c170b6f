"""The arguments of KubernetesClusterResolver, checked: each wrong one is told by its name, with the mend.

What is asked of the API server: one selector in one scope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from aioresolve.errors import ConfigurationError

__all__ = ["PodQuery", "checked_choice", "checked_jobs", "checked_namespaces", "checked_port"]

_NAMESPACE = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A DNS label, RFC 1123: what a namespace may be called. It becomes part of a URL's path."""


def checked_jobs(mapping: Any) -> Mapping[str, tuple[str, ...]]:
    """Return each job's selectors; TensorFlow's own default where `mapping` is None or empty."""
    if not mapping:
        return MappingProxyType({"worker": ("job-name=tensorflow",)})
    if not isinstance(mapping, Mapping):
        raise ConfigurationError(
            f"job_to_label_mapping is a {type(mapping).__name__};"
            " give a mapping such as {'worker': ['job-name=trainer']}"
        )
    return MappingProxyType(
        {_checked_job(job): _selectors(job, selectors) for job, selectors in mapping.items()}
    )


def checked_namespaces(namespace: Any) -> tuple[str | None, ...]:
    """Return the namespaces to look in, each once; `(None,)` for all of them."""
    if namespace is None:
        return (None,)
    given = [namespace] if isinstance(namespace, str) else namespace
    if not isinstance(given, Sequence) or not given:
        raise ConfigurationError(
            f"namespace={namespace!r}: give a name, a list of names, or None for all of them"
        )
    for name in given:
        if not isinstance(name, str) or not _NAMESPACE.fullmatch(name):
            raise ConfigurationError(
                f"namespace={name!r} cannot be a namespace: at most 63 lower-case letters, digits, '-'"
            )
    return tuple(dict.fromkeys(given))


def checked_port(port: Any) -> int:
    """Return `port` where it is a TCP port."""
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        raise ConfigurationError(f"tf_server_port={port!r} is not a port; give a number from 1 to 65535")
    return port


def checked_choice(name: str, choice: Any, choices: Sequence[str]) -> str:
    """Return `choice` where it is one of `choices`."""
    if not isinstance(choice, str) or choice not in choices:
        raise ConfigurationError(f"{name}={choice!r}: give one of {', '.join(map(repr, choices))}")
    return choice


def _checked_job(job: Any) -> str:
    if not isinstance(job, str) or not job:
        raise ConfigurationError(f"job_to_label_mapping has the job name {job!r}; give a string")
    return job


def _selectors(job: str, selectors: Any) -> tuple[str, ...]:
    given = [selectors] if isinstance(selectors, str) else selectors
    if (
        not isinstance(given, Sequence)
        or not given
        or not all(isinstance(selector, str) for selector in given)
    ):
        raise ConfigurationError(
            f"job_to_label_mapping[{job!r}] is {selectors!r}; give label selectors such as ['app=trainer']"
        )
    return tuple(given)


@dataclass(frozen=True, slots=True)
class PodQuery:
    """A question for pods.

    Attributes:
        selector: a label selector in the API's own grammar.
        namespace: the namespace to look in; None for all of them.
        name: the one pod name to look for; every name where None.
        limit: how many pods a page holds at most; all in one answer where None.
        continue_: the token of the page to continue from.
    """

    selector: str
    namespace: str | None = None
    name: str | None = None
    limit: int | None = None
    continue_: str = ""

    @property
    def path(self) -> str:
        """The URL's path."""
        return "/api/v1/pods" if self.namespace is None else f"/api/v1/namespaces/{self.namespace}/pods"

    @property
    def parameters(self) -> dict[str, str]:
        """The URL's query. `resourceVersion` stays unset: the answer is as fresh as can be."""
        parameters = {"labelSelector": self.selector}
        if self.name is not None:
            parameters["fieldSelector"] = f"metadata.name={self.name}"
        if self.limit is not None:
            parameters["limit"] = str(self.limit)
        if self.continue_:
            parameters["continue"] = self.continue_
        return parameters

    @property
    def where(self) -> str:
        """The scope's namespaces, in words."""
        return "all namespaces" if self.namespace is None else f"namespace {self.namespace!r}"

    @property
    def scope(self) -> str:
        """The question, in words for messages."""
        named = "" if self.name is None else f"pod {self.name!r} of "
        return f"{named}selector {self.selector!r} in {self.where}"

    def named(self, name: str) -> PodQuery:
        """Return the same question for the pods of one name."""
        return replace(self, name=name)

    def page(self, limit: int, continue_: str) -> PodQuery:
        """Return the same question for one page."""
        return replace(self, limit=limit, continue_=continue_)
