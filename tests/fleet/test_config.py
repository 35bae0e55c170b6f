"""Fleet files: their content, and the errors for invalid ones."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioresolve import (
    GCEClusterResolver,
    KubernetesClusterResolver,
    SageMakerClusterResolver,
    SimpleClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    TPUClusterResolver,
    UnionClusterResolver,
)
from aioresolve.errors import ConfigurationError
from aioresolve.fleet import FleetFile, fleet_of, fleet_schema, read_fleet
from aioresolve.resolver import ClusterResolver
from tests.programs import ROOT

MINIMAL = "targets: {fixed: {static: {jobs: {worker: 'a:1'}}}}\n"


def fleet(text: str, **environ: str) -> FleetFile:
    return fleet_of(text, source="fleet.yaml", environ=environ)


def problem(text: str, **environ: str) -> str:
    """Return the error for `text`, without the name of the file."""
    with pytest.raises(ConfigurationError) as raised:
        fleet(text, **environ)
    file, _, found = str(raised.value).partition(":")
    assert file == "fleet.yaml"
    return found.strip()


def arguments_of(resolver: ClusterResolver) -> dict[str, Any]:
    """Return the arguments of the constructor with which a copy of the resolver would be made."""
    named: dict[str, Any] = resolver._copied_arguments()[1]
    return named


EXAMPLE = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "fleets.md").read_text(), re.DOTALL)[0]


class TestContent:
    def test_example_in_the_documentation_is_valid(self) -> None:
        file = fleet(EXAMPLE)
        assert (file.interval, file.timeout, file.max_concurrency) == (30.0, 10.0, 64)
        assert {name: type(resolver) for name, resolver in file.targets.items()} == {
            "us-east": KubernetesClusterResolver,
            "tpu-a": TPUClusterResolver,
            "group-a": GCEClusterResolver,
            "fixed": SimpleClusterResolver,
            "this-step": SlurmClusterResolver,
            "this-job": SageMakerClusterResolver,
            "this-task": TFConfigClusterResolver,
            "both": UnionClusterResolver,
        }
        assert arguments_of(file.targets["us-east"]) == {
            "job_to_label_mapping": {"worker": "app=trainer", "ps": ["app=ps", "app=ps-spare"]},
            "namespace": "training",
            "context": "us-east",
            "kubeconfig": "~/.kube/config",
            "timeout": 10.0,
        }
        assert arguments_of(file.targets["tpu-a"])["tpu"] == "my-tpu"
        members = file.targets["both"]._copied_arguments()[0]  # a union has its own
        assert not set(map(id, members)) & set(map(id, file.targets.values()))

    async def test_static_target_returns_its_tasks(self) -> None:
        text = 'targets: {a: {static: {jobs: {worker: ["h:1", "i:2"], ps: "p:3", eval: {0: d, 4: "e:5"}}}}}'
        file = fleet(text)
        spec = await file.targets["a"].cluster_spec()
        assert spec.as_dict() == {"worker": ["h:1", "i:2"], "ps": ["p:3"], "eval": {0: "d", 4: "e:5"}}
        assert (file.interval, file.timeout, file.max_concurrency) == (None, None, None)

    def test_timeout_applies_to_each_resolver(self) -> None:
        file = fleet(f"timeout: 500ms\n{EXAMPLE.replace('timeout:', 'x-timeout:')}")
        assert {resolver.timeout for resolver in file.targets.values()} == {0.5}

    def test_null_removes_a_default(self) -> None:
        file = fleet(
            "defaults: {kubernetes: {namespace: ml, jobs: {worker: app=a}}}\n"
            "targets:\n"
            "  narrow: {kubernetes: }\n"
            "  wide: {kubernetes: {namespace: null}}\n"
            "  own: {kubernetes: {namespace: CONTEXT_NAMESPACE}}\n"
        )
        namespaces = {name: arguments_of(each).get("namespace") for name, each in file.targets.items()}
        assert namespaces == {"narrow": "ml", "wide": None, "own": "CONTEXT_NAMESPACE"}

    def test_anchors_aliases_and_merge_keys_are_supported(self) -> None:
        file = fleet(
            "x-jobs: &jobs {worker: app=a}\n"
            "x-base: &base {port: 1, order_by: index}\n"
            "x-more: &more {port: 2, address: host_ip}\n"
            "targets:\n"
            "  one: {kubernetes: &one {<<: [*base, *more], jobs: *jobs}}\n"
            "  two: {kubernetes: {<<: *one, port: 3, jobs: {<<: *jobs, ps: app=b}}}\n"
        )
        one, two = map(arguments_of, file.targets.values())
        assert (one["tf_server_port"], one["order_by"], one["address"]) == (1, "index", "host_ip")
        assert (two["tf_server_port"], two["order_by"], two["address"]) == (3, "index", "host_ip")
        assert two["job_to_label_mapping"] == {"worker": "app=a", "ps": "app=b"}

    def test_numbers_may_be_quoted_or_zero(self) -> None:
        text = 'targets: {a: {kubernetes: {jobs: {w: a}, port: "99"}}}'
        assert arguments_of(fleet(text).targets["a"])["tf_server_port"] == 99
        assert repr(fleet(f"max_concurrency: '1'\n{MINIMAL}")) == (
            "FleetFile(interval=None, timeout=None, max_concurrency=1, expected={})"
        )
        target = fleet("targets: {a: {slurm: {jobs: {ps: 0, worker: 2}}}}").targets["a"]
        assert arguments_of(target)["jobs"] == {"ps": 0, "worker": 2}

    def test_relative_paths_are_relative_to_the_fleet_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/root")

        def written(field: str, value: str) -> dict[str, Any]:
            text = f"targets: {{a: {{kubernetes: {{jobs: {{w: a}}, {field}: {value}}}}}}}"
            file = fleet_of(text, source="/etc/fleet/fleet.yaml", environ={"HOME": "/home/me"})
            return arguments_of(file.targets["a"])

        for value, expected in {
            "kubeconfig": "/etc/fleet/kubeconfig",
            "../kube/config": "/etc/fleet/../kube/config",
            "/root/config": "/root/config",
            "~/.kube/config": "~/.kube/config",
            "[a, /b]": ["/etc/fleet/a", "/b"],
            "'${HOME}/c'": "/home/me/c",
        }.items():
            assert written("kubeconfig", value)["kubeconfig"] == expected
        for value, path in {
            "token": "/etc/fleet/token",
            "/run/token": "/run/token",
            "~/token": "~/token",
        }.items():
            assert written("token_file", value)["token_file"] == path


class TestVariables:
    def test_variables_are_replaced_in_any_value(self) -> None:
        file = fleet(
            "interval: ${EVERY}\n"
            "targets:\n"
            "  a:\n"
            "    kubernetes:\n"
            "      namespace: ${TEAM}-${MISSING:-ml}\n"
            "      port: ${PORT:-99}\n"
            "      context: '$${A}$$$${EMPTY:-x y}${NONE:-}${DOLLAR}'\n"
            "      jobs: {worker: 'app=$${TEAM},run=${RUN}'}\n",
            EVERY="2m",
            TEAM="nlp",
            RUN="7",
            PORT="",
            EMPTY="",
            DOLLAR="${A}",
        )
        resolver = arguments_of(file.targets["a"])
        assert file.interval == 120.0
        assert resolver["namespace"] == "nlp-ml"
        assert resolver["tf_server_port"] == 99
        assert resolver["context"] == "${A}$${EMPTY:-x y}${A}"
        assert resolver["job_to_label_mapping"] == {"worker": "app=${TEAM},run=7"}

    def test_dollar_that_starts_no_variable_and_unset_variables_are_rejected(self) -> None:
        for text in ("$", "$A", "${", "${}", "${A", "${1}", "${A-x}", "${A:-${B}}", "a$ b", "$$$"):
            assert "write $$ for a dollar" in problem(
                f"targets: {{a: {{tpu: {{name: '{text}'}}}}}}", A="S3cret"
            )
        assert problem("targets: {a: {tpu: {name: '${A}'}}}") == (
            "targets.a.tpu.name: $A is not set; set it, or give a default: ${A:-default}"
        )
        assert problem("targets: {a: {tpu: {name: ${A}}}}").endswith('put "${NAME}" in quotes.')

    @given(st.text("${}:-ab1"))
    def test_any_text_is_unchanged_if_its_dollars_are_doubled(self, text: str) -> None:
        target = f"targets: {{a: {{static: {{jobs: {{w: 'h{text.replace('$', '$$')}'}}}}}}}}"
        spec = arguments_of(fleet(target).targets["a"])["cluster_spec"]
        assert spec.as_dict() == {"w": [f"h{text}"]}

    @pytest.mark.parametrize(
        ("place", "text"),
        [
            (
                "targets.a.kubernetes.namespace",
                "targets: {a: {kubernetes: {jobs: {w: a}, namespace: '${V}'}}}",
            ),
            ("targets.a.kubernetes.port", "targets: {a: {kubernetes: {jobs: {w: a}, port: '${V}'}}}"),
            ("targets.a.tpu.name", "targets: {u: {union: [a]}, a: {tpu: {name: 'grpc://${V}:x'}}}"),
            ("targets.a.tpu.discovery_url", "targets: {a: {tpu: {name: ok, discovery_url: '${V}'}}}"),
            ("targets.a.expected", "targets: {a: {expected: '${V}', tpu: {name: ok}}}"),
            ("targets.u.union", "targets: {u: {union: ['${V}']}}"),
            ("timeout", "timeout: ${V}\ntargets: {a: {tpu: {name: ok}}}"),
            (
                "targets.a.gce",
                "targets: {a: {gce: {group: projects/p/zones/z/instanceGroups/g, zone: '${V}'}}}",
            ),
        ],
    )
    def test_no_message_shows_the_value_of_a_variable(self, place: str, text: str) -> None:
        found = problem(text, V="S3cret")
        assert found == f"{place}: the value of $V is invalid; write it here to see the reason"

    def test_value_that_is_written_in_the_file_is_shown_if_other_fields_have_variables(self) -> None:
        target = "kubernetes: {jobs: {w: a}, port: 99999, namespace: '${V}'}"
        found = problem(f"targets: {{a: {{{target}}}}}", V="ml")
        assert found == "targets.a.kubernetes.port: 99999 is not a port from 1 to 65535"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# nothing\n", "the file: Expected a mapping, got nothing"),
        ("targets: {}\n", "targets: add at least one target, such as"),
        (
            "targets: {a: {kubernets: }}",
            "targets.a.kubernets: unknown kind of target; did you mean 'kubernetes'?",
        ),
        ("targets: {a: {tpu: {name: x}, static: {jobs: {w: a}}}}", "targets.a: must have one kind"),
        (f"targets: {{{'a' * 61}: {{}}}}", f"targets.'{'a' * 60}...': must have one kind"),
        (
            "targets: {a: {kubernetes: {namespace: ml}}}",
            "targets.a.kubernetes: has no `jobs` and no `service`",
        ),
        (
            "targets: {a: {kubernetes: {jobs: {w: a}, service: b}}}",
            "targets.a.kubernetes.service: label selectors and Services exclude each other. Leave out `jobs`",
        ),
        (
            "targets: {a: {kubernetes: {jobs: {w: a}, namespaces: ml}}}",
            "targets.a.kubernetes.namespaces: unknown field of kubernetes; did you mean 'namespace'?",
        ),
        (f"intervall: 3\n{MINIMAL}", "intervall: unknown field of a fleet file; did you mean 'interval'?"),
        (f"timeout: {{}}\n{MINIMAL}", "timeout: Expected `float | str`, got `object`"),
        (f"defaults: {{union: {{}}}}\n{MINIMAL}", "defaults.union: unknown kind of target; there are"),
        (
            "targets: {a.b: {kubernetes: {jobs: {worker: [a, {b: c}]}}}}",
            "targets.'a.b'.kubernetes.jobs: Expected `str`, got `object` - at `$[...][1]`.",
        ),
        (
            "targets: {a: {tpu: {name: 7}}}",
            "targets.a.tpu.name: Expected `str | array`, got `int`. Put a text",
        ),
        ("targets: {no: {tpu: {name: a}}}", "targets: Expected `str`, got `bool`"),
        (
            "targets: {a: {tpu: {name: [a, 'grpc://b']}}}",
            "targets.a.tpu.name: ['a', 'grpc://b'] mixes names, addresses",
        ),
        (
            "targets: {a: {tpu: {name: a, not_healthy: no-such}}}",
            "targets.a.tpu.not_healthy: 'no-such' is not one of",
        ),
        ("targets: {a: {slurm: {jobs: {w: -1}}}}", "targets.a.slurm.jobs: -1 is not an integer from 0"),
        ("targets: {a: {static: {jobs: {w: {x: a}}}}}", "targets.a.static.jobs: Expected `int`, got `str`"),
        (
            "targets: {a: {static: {jobs: {w: {9999999999: a}}}}}",
            "targets.a.static.jobs: job 'w': the task index 9999999999 does not fit in 32 bits",
        ),
        (
            "targets: {a: {union: [b]}}",
            "targets.a.union: 'b' is not a target of this file, or a union itself; none exists",
        ),
        (
            "targets:\n  a: {static: {jobs: {w: h}}}\n  b: {union: [a, a]}\n",
            "targets.b.union: 'a' is listed twice; remove one of the two",
        ),
        (
            "targets:\n  a: {static: {jobs: {w: h}}}\n  b: {union: [a, b]}\n",
            "targets.b.union: 'b' is not a target of this file, or a union itself; there are 'a'",
        ),
        (
            "defaults: {tpu: {not_healthy: skip}}\ntargets: {a: {tpu: {name: a}}, b: {tpu: {name: a}}}",
            "defaults.tpu.not_healthy: 'skip'",
        ),
        (
            "targets:\n  a: {static: {jobs: {w: a}}}\n  a: {static: {jobs: {w: b}}}\n",
            "3: not valid YAML: 'a' is defined twice; remove one",
        ),
        (
            f"x-a: !python/object:os.system a\n{MINIMAL}",
            "1: not valid YAML: could not determine a constructor",
        ),
        ("targets: {a: {tpu: {name: ${A}}}}", "1: not valid YAML: while parsing a flow mapping"),
        ("targets: {a: {kubernetes: {jobs: &a {w: *a}}}}", "it is nested too deeply, or an anchor contains"),
    ],
)
def test_problem_names_the_field(text: str, expected: str) -> None:
    assert problem(text).startswith(expected)


def test_names_cannot_send_escape_sequences_to_the_terminal() -> None:
    assert "\x1b" not in problem('targets: {"\\e[31m": {"\\e[32m": "\\e[33m"}}')


class TestFields:
    def test_service_of_a_target_replaces_the_jobs_of_the_defaults(self) -> None:
        services = fleet(
            "defaults: {kubernetes: {namespace: ml, jobs: {worker: app=a}}}\n"
            "targets:\n"
            "  a: {kubernetes: {service: 'trainer:8470'}}\n"
            "  b: {kubernetes: {service: {worker: a, ps: [b, c]}}}\n"
        ).targets
        one = KubernetesClusterResolver(service="trainer:8470", namespace="ml")
        two = KubernetesClusterResolver(service={"worker": "a", "ps": ["b", "c"]}, namespace="ml")
        assert [repr(each) for each in services.values()] == [repr(one), repr(two)]


class TestReading:
    def test_variables_and_relative_paths_are_those_of_the_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = (
            "\ufeffinterval: ${EVERY}\ntargets: {a: {kubernetes: {jobs: {w: a}, kubeconfig: c, context: ü}}}"
        )
        (tmp_path / "fleet.yaml").write_text(text)
        monkeypatch.setenv("EVERY", "7")
        monkeypatch.chdir(tmp_path)
        file = read_fleet("fleet.yaml")
        assert file.interval == 7.0
        assert arguments_of(file.targets["a"])["kubeconfig"] == str(tmp_path / "c")
        assert arguments_of(file.targets["a"])["context"] == "ü"

    def test_unreadable_file_is_reported(self, tmp_path: Path) -> None:
        for name, reason in (
            ("none.yaml", "No such file or directory. Check the path"),
            (".", "Is a directory"),
            ("a\0b", "null"),
        ):
            path = os.path.join(tmp_path, name)
            with pytest.raises(ConfigurationError, match="cannot read the fleet file") as raised:
                read_fleet(path)
            assert reason in str(raised.value)
            assert str(raised.value).startswith(f"{path}: ")


def test_schema_has_the_fields_of_each_kind() -> None:
    kinds = fleet_schema()["$defs"]
    fields = kinds["kubernetes"]["properties"]
    assert {"type": "integer"} in fields["port"]["anyOf"]
    assert kinds["kubernetes"]["additionalProperties"] is False
    assert {"jobs", "service", "namespace", "not_running"} < fields.keys()
    assert not {"override_client", "timeout", "task_id"} & fields.keys()
    assert {"tpu", "gce", "static", "slurm", "union"} < kinds["target"]["properties"].keys()


def test_packages_that_no_target_needs_are_not_imported() -> None:
    script = (
        "import sys, aioresolve.fleet; assert 'yaml' not in sys.modules;"
        f"aioresolve.fleet.fleet_of({MINIMAL!r}, environ={{}}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"aioresolve.kubernetes", "aioresolve.tpu", "aiohttp", "grpc", "google"}


PUNCTUATION = st.sampled_from(
    [*"&*!|>%@`'\"{}[]:,-?#\n\t $a~<", "  ", ": ", "\n  ", "&a ", "*a", "${SECRET}"]
)


@given(
    (st.text(st.characters(codec="utf-8")) | st.lists(PUNCTUATION).map("".join)).map(str.encode) | st.binary()
)
@example("\x85".encode())
@example(b"%YAML 9.9\n---\na")
@example(b"a: 2024-99-99")
@example(b"a: &a [*a]")
@example(b"targets: \xe9")
def test_any_bytes_are_valid_or_raise_an_error_with_the_file(content: bytes) -> None:
    message = "dir/fleet.yaml: "
    try:
        assert fleet_of(content, source="dir/fleet.yaml", environ={"SECRET": "S3CRET value"}).targets
    except ConfigurationError as error:
        message = str(error)
    assert re.match(r"dir/fleet\.yaml:([1-9][0-9]*:)? ", message)
    assert "S3CRET" not in message
