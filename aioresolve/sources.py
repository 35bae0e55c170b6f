"""The sources of clusters, one row each.

From a row and the signature of the resolver's constructor come its classes `aioresolve.NAME` and
`aioresolve.sync.NAME`, and the kind of target of `fleet.yaml` with its fields and their types. Detection
looks for the variables of rows with `has_variables`; what else it looks for is in
`aioresolve.environment.detection`. CONTRIBUTING.md lists what else a new source needs, such as lines for type
checkers and a command.

A row names a module, which is imported when it is needed.
"""

from __future__ import annotations

import builtins
import collections.abc
import os
import typing
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Source(NamedTuple):
    """Where clusters come from.

    Attributes:
        kind: its name in a fleet file, and of its subcommands if it has a row in `aioresolve.cli.sources`.
        module: where its resolver is.
        resolver: the name of the class.
        fields: the arguments of the constructor that have another name in a fleet file: field to argument.
        required: a target of a fleet file has one of these fields.
        constants: the arguments that are the same for every target of a fleet file.
        has_variables: whether the source has variables of its own, which `examine` of its module looks for.
    """

    kind: str
    module: str
    resolver: str
    fields: Mapping[str, str] = NOTHING
    required: tuple[str, ...] = ()
    constants: Mapping[str, Any] = NOTHING
    has_variables: bool = False

    def load(self) -> Any:
        """Return the class of its resolver."""
        return getattr(import_module(self.module), self.resolver)

    def load_examine(self) -> Any:
        """Return the function that finds it in the variables of this process."""
        return import_module(self.module).examine

    def field_types(self) -> dict[str, Any]:
        """Return the type of each argument that describes the source, by its name in a fleet file.

        A class that only type checkers import is `Any`.
        """
        import inspect  # `import aioresolve` need not wait for it

        kind = self.load()
        names = _Names(vars(import_module(kind.__module__)))
        signature = inspect.signature(kind.__init__, eval_str=True, locals=names)
        fields = {argument: field for field, argument in self.fields.items()}
        return {
            fields.get(name, name): parameter.annotation
            for name, parameter in list(signature.parameters.items())[1:]
            if name in fields or name not in (*self.constants, *OF_THE_CALLER)
        }


OF_THE_CALLER = ("task_type", "task_id", "environment", "timeout")
"""The arguments that describe the calling process, and not the source."""


class _Names(dict[str, Any]):
    """The names in the annotations of a module. It may import some of them for type checkers only."""

    def __missing__(self, name: str) -> Any:
        for module in (builtins, collections.abc, typing):
            if hasattr(module, name):
                return getattr(module, name)
        return os if name == "os" else Any


SOURCES = (
    Source(
        "tf_config",
        "aioresolve.environment.tf_config",
        "TFConfigClusterResolver",
        has_variables=True,
    ),
    Source(
        "slurm",
        "aioresolve.environment.slurm",
        "SlurmClusterResolver",
        fields={"port": "port_base"},
        constants={"auto_set_gpu": False},  # the caller is not the program that uses the GPUs
        has_variables=True,
    ),
    Source(
        "sagemaker",
        "aioresolve.environment.sagemaker",
        "SageMakerClusterResolver",
        has_variables=True,
    ),
    Source("tpu", "aioresolve.tpu", "TPUClusterResolver", fields={"name": "tpu"}, required=("name",)),
    Source(
        "kubernetes",
        "aioresolve.kubernetes",
        "KubernetesClusterResolver",
        fields={"jobs": "job_to_label_mapping", "port": "tf_server_port"},
        required=("jobs", "service"),
    ),
    Source(
        "gce",
        "aioresolve.environment.gce",
        "GCEClusterResolver",
        fields={"group": "instance_group", "job_name": "task_type"},
        required=("group",),
    ),
    Source(
        "static",
        "aioresolve.resolver.static",
        "SimpleClusterResolver",
        fields={"jobs": "cluster_spec"},
        required=("jobs",),
    ),
)
"""All sources. Detection looks for the variables of some of them in this order."""

BY_KIND = {source.kind: source for source in SOURCES}
BY_RESOLVER = {source.resolver: source for source in SOURCES}
