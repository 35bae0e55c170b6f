"""`docs/limits.md` states the value of every limit."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "aioresolve"

UNITS = {"": 1, "s": 1, "ms": 0.001, "KiB": 1 << 10, "MiB": 1 << 20}

NO_LIMITS = {
    "_core.certificates.GENERALIZED_TIME",
    "_core.http.client.BEGINNING_ROUNDS",
    "_core.http.client.CLOSING_ROUNDS",
    "environment.gce.DEFAULT_PORT",
    "gcp.api_request.NOT_MODIFIED",
    "jax.DEFAULT_PORT",
    "kubernetes.auth.expiry.END_OF_TIME",
    "launch.JAX_TPU_PORT",
    "probe.devices.TENSOR_CORE",
    "probe.devices.UNKNOWN_CORE",
    "resolver.checks.SHARE",
    "tpu.discovery.TPU_PORT",
    "tpu.topology.CHIPS_PER_HOST",
}
"""Other numbers: ports, numbers of protocols, facts."""


def stated_limits() -> dict[str, str]:
    """Return the value of each constant in the tables."""
    rows = re.findall(r"^\| .+ \| (\S.*) \| `(\S+)` \|$", (ROOT / "docs/limits.md").read_text(), re.MULTILINE)
    return {constant: value for value, constant in rows}


def numbers() -> dict[str, float]:
    """Return the constants of all modules that are numbers. No module is imported."""
    found: dict[str, float] = {}
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(file.relative_to(PACKAGE).with_suffix("").parts)
        if module.startswith("testing.") or module.endswith("_pb2"):
            continue
        for node in ast.parse(file.read_text()).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name.isupper():
                    if all(
                        isinstance(part, (ast.Constant, ast.BinOp, ast.operator)) for part in ast.walk(value)
                    ):
                        number = eval(compile(ast.Expression(value), file, "eval"))
                        if isinstance(number, (int, float)):
                            found[f"{module}.{name}"] = number
    return found


def test_every_limit_is_stated_with_its_value() -> None:
    stated, found = {}, numbers()
    for constant, value in stated_limits().items():
        number, _, unit = value.partition(" ")
        stated[constant] = float(number.replace(",", "")) * UNITS[unit]
    assert stated == {constant: found.get(constant) for constant in stated}
    limits = {constant for constant in found if not constant.startswith("cli.")}
    assert sorted(limits - stated.keys() - NO_LIMITS) == []
    assert limits >= NO_LIMITS
