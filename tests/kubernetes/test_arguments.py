"""An invalid argument is an error that names it, before any request is sent."""

import enum
from typing import Any

import pytest

from aioresolve import CONTEXT_NAMESPACE, ConfigurationError, KubernetesClusterResolver
from aioresolve.kubernetes.auth import ExecutableLocation, search_for
from aioresolve.kubernetes.selection import validate_jobs


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            {"job_to_label_mapping": ["app=a"]},
            "`job_to_label_mapping=`: a list is not a .*'job-name=trainer'",
        ),
        ({"job_to_label_mapping": {}}, "`job_to_label_mapping=`: an empty mapping is not"),
        ({"job_to_label_mapping": {1: ["app=a"]}}, "1 is not a valid job name"),
        ({"job_to_label_mapping": {"worker": []}}, r"\[\] is not a list of label selectors \(job 'worker'\)"),
        ({"job_to_label_mapping": {"worker": ["a", "app=\udcff"]}}, r"'app=\\udcff' is not a label selector"),
        ({"tf_server_port": 0}, "`tf_server_port=`: 0 is not a port from"),
        ({"namespace": "../secrets"}, "`namespace=`: '../secrets' is not a namespace"),
        ({"namespace": ["ml", "lab"]}, r"`namespace=`: \['ml', 'lab'\] is not a namespace.*UnionCluster"),
        (
            {"namespace": CONTEXT_NAMESPACE, "override_client": object()},
            "`namespace=`: CONTEXT_NAMESPACE is the namespace of a kubeconfig or service account, but",
        ),
        ({"address": "external_ip"}, "`address=`: 'external_ip' is not one of 'pod_ip'"),
        ({"order_by": ["label:a", "name"]}, "`order_by=`: 'name' is not one of 'label:KEY' and"),
        ({"not_running": "ignore"}, "`not_running=`: 'ignore' is not one of"),
        ({"max_concurrency": True}, "`max_concurrency=`: True"),
        ({"timeout": 0}, "`timeout=`: 0"),
        ({"kubeconfig": [""]}, "`kubeconfig=`: '' is not a path.*Pass the path"),
        ({"context": 1}, "`context=`: 1 is not text"),
        (
            {"executable_location": "MOON"},
            "`executable_location=`: 'MOON' .*Pass ExecutableLocation",
        ),
        (
            {"executable_location": "WITHIN_CLUSTER", "kubeconfig": "x"},
            "`executable_location=`: WITHIN_CLUSTER uses only the service account of the pod",
        ),
        ({"server": ""}, "`server=`: '' is not the URL of a server"),
        ({"server": "ftp://host"}, "`server=`: 'ftp://host' is not the URL of a server. Write https"),
        ({"server": "https://me:hunter2@host"}, "`server=`: the URL contains a user name or password"),
        ({"token_file": ""}, "`token_file=`: '' is not a path"),
        ({"impersonate": " "}, "`impersonate=`: ' ' is not the name"),
        ({"impersonate": "ada", "impersonate_groups": ["math", ""]}, "`impersonate_groups=`: '' is not"),
        (
            {"impersonate": "ada", "impersonate_groups": {"math": 1}},
            "`impersonate_groups=`: .* is not a list",
        ),
        (
            {"impersonate": "ada", "override_client": object()},
            "`override_client=`: the client has its own server, credentials and impersonation.*`server=`",
        ),
        ({"override_client": object()}, "`override_client=`: a builtins.object is not"),
    ],
)
def test_an_invalid_argument_is_named(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        KubernetesClusterResolver(**arguments)
    assert isinstance(caught.value, ValueError)


def test_a_selector_may_be_a_string_and_the_default_mapping_is_that_of_tensorflow() -> None:
    assert validate_jobs({"worker": "app=a"}) == {"worker": ("app=a",)}
    assert validate_jobs(None) == {"worker": ("job-name=tensorflow",)}


def test_later_changes_of_the_mapping_have_no_effect() -> None:
    mapping = {"worker": ["app=a"]}
    jobs = validate_jobs(mapping)
    mapping["worker"].append("app=b")
    mapping["ps"] = []
    assert jobs == {"worker": ("app=a",)}


class KubernetesExecutableLocation(enum.Enum):
    """A copy of TensorFlow's enum."""

    OFF_CLUSTER = 1


def test_location_may_be_ours_or_that_of_tensorflow_or_a_string() -> None:
    assert search_for().location is None
    for given in ("OFF_CLUSTER", ExecutableLocation.OFF_CLUSTER, KubernetesExecutableLocation.OFF_CLUSTER):
        location = search_for(kubeconfig="x", executable_location=given).location
        assert location is ExecutableLocation.OFF_CLUSTER
