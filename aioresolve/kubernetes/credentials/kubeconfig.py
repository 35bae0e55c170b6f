"""Kubeconfig files: their text in, the chosen context's cluster and user out. Pure: no file is read here.

Format: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/. Merging and precedence are
client-go's (`tools/clientcmd`): the first file that has an entry of a name wins it, and so does the
first that names a `current-context`; relative paths are relative to the file they stand in; one
name twice in one file is an error. Only the entries of the chosen context are looked into, so a
mistake in another context's entry stays that context's affair. Everything wrong is a
`ConfigurationError` that names file, entry and field, and never a value that may be a secret.
"""

from __future__ import annotations

import os.path
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from aioresolve.errors import ConfigurationError

from .entries import Cluster, Entry, User, cluster_in, user_in
from .fields import Fields, document, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Kubeconfig", "Selection", "merged", "parsed", "selected"]


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """One kubeconfig file, or several merged: entries by name."""

    paths: tuple[str, ...]
    current_context: str | None
    contexts: Mapping[str, Entry]
    clusters: Mapping[str, Entry]
    users: Mapping[str, Entry]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to connect to: client-go then looks elsewhere."""
        return not (self.contexts or self.clusters or self.users or self.current_context)


@dataclass(frozen=True, slots=True)
class Selection:
    """One context with its cluster and its user."""

    context: str
    where: str
    namespace: str | None
    cluster: Cluster
    user: User


def parsed(content: bytes, path: str) -> Kubeconfig:
    """One file's entries. `path` is absolute; an empty file is an empty kubeconfig, as for kubectl.

    Raises:
        ConfigurationError: the content is not UTF-8, not YAML or JSON, or not a kubeconfig.
    """
    where = f"kubeconfig {path}"
    contents = document(content, where)
    if contents is not None and not isinstance(contents, dict):
        raise ConfigurationError(
            f"{where} is no mapping of clusters, contexts and users but a {kind_of(contents)}: "
            "is it the right file?"
        )
    top = Fields(contents, where)
    for key, expected in (("kind", "Config"), ("apiVersion", "v1")):
        if (found := top.text(key)) not in (None, expected):
            raise ConfigurationError(
                f"{where}: {key} is {found!r}, a kubeconfig's is {expected!r}: is it the right file?"
            )
    folder = os.path.dirname(path)
    return Kubeconfig(
        paths=(path,),
        current_context=top.text("current-context"),
        contexts=_entries(top, "contexts", "context", folder),
        clusters=_entries(top, "clusters", "cluster", folder),
        users=_entries(top, "users", "user", folder),
    )


def merged(files: Sequence[Kubeconfig]) -> Kubeconfig:
    """The files as one: of each name, and of `current-context`, the first file's counts."""
    contexts: dict[str, Entry] = {}
    clusters: dict[str, Entry] = {}
    users: dict[str, Entry] = {}
    for file in reversed(files):
        contexts.update(file.contexts)
        clusters.update(file.clusters)
        users.update(file.users)
    return Kubeconfig(
        paths=tuple(path for file in files for path in file.paths),
        current_context=next((file.current_context for file in files if file.current_context), None),
        contexts=MappingProxyType(contexts),
        clusters=MappingProxyType(clusters),
        users=MappingProxyType(users),
    )


def selected(config: Kubeconfig, context: str | None) -> Selection:
    """The context of that name (None: the current one), with its cluster and user.

    Raises:
        ConfigurationError: there is no such context, it names a cluster or user that is not there, or
            a field of one of the three is wrong.
    """
    where = f"kubeconfig {', '.join(config.paths)}"
    name = context if context is not None else config.current_context
    if name is None:
        raise ConfigurationError(
            f"{where}: no current-context is set; give context= one of: {_listed(config.contexts)} "
            "(or run `kubectl config use-context NAME`)"
        )
    if name not in config.contexts:
        raise ConfigurationError(
            f"{where}: there is no context {name!r}; there are: {_listed(config.contexts)}"
        )
    entry = config.contexts[name]
    fields = Fields(entry.values, entry.where)
    cluster = fields.text("cluster")
    if cluster is None:
        raise ConfigurationError(f"{entry.where}: names no cluster; add `cluster: NAME`")
    user = fields.text("user")
    return Selection(
        context=name,
        where=entry.where,
        namespace=fields.text("namespace"),
        cluster=cluster_in(_referred(config.clusters, cluster, entry.where, "cluster")),
        user=(
            User(where=entry.where)
            if user is None
            else user_in(_referred(config.users, user, entry.where, "user"))
        ),
    )


def _referred(entries: Mapping[str, Entry], name: str, where: str, kind: str) -> Entry:
    if name not in entries:
        raise ConfigurationError(
            f"{where}: names the {kind} {name!r}, which is not there; there are: {_listed(entries)}"
        )
    return entries[name]


def _entries(top: Fields, key: str, kind: str, folder: str) -> Mapping[str, Entry]:
    entries: dict[str, Entry] = {}
    for item in top.each(key):
        name = item.text("name")
        if name is None:
            raise ConfigurationError(f"{item.where}: has no name; add `name: NAME`")
        if name in entries:
            raise ConfigurationError(
                f"{top.where}: {key} has the name {name!r} twice; rename or remove one of the two"
            )
        entries[name] = Entry(f"{top.where}, {kind} {name!r}", folder, item.value(kind))
    return MappingProxyType(entries)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "none at all"
