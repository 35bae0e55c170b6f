"""Writes the `*_pb2.py` and `*_pb2.pyi` beside every `.proto` file of the package.

Run `python -m aioresolve._core.generate_protos` in a checkout, with Python 3.11 or 3.12 (grpcio-tools 1.62
has no wheels for later ones), after a change of a `.proto` file. It needs a package index and leaves nothing
installed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

# Code made by protoc 5.26 and later refuses a protobuf runtime older than itself or more than one
# major version newer. protoc 4.25, which grpcio-tools 1.62 carries, puts no such check into its code
# and uses nothing that protobuf 4.25, 5, 6 or 7 lacks, so users keep the protobuf that their
# TensorFlow asks for. setuptools: grpcio-tools 1.62 imports pkg_resources, which setuptools 81 warns of.
TOOLS = ("grpcio-tools==1.62.3", "setuptools<81")

# protoc writes a bare `Mapping` into its stubs, which `mypy --strict` refuses.
STUB_HEADER = "# mypy: disable-error-code=type-arg"

PACKAGE = Path(__file__).parent.parent
ROOT = PACKAGE.parent


def main() -> None:
    """Compiles every `.proto` file, in place."""
    sources = [path.relative_to(ROOT).as_posix() for path in sorted(PACKAGE.rglob("*.proto"))]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "Scripts" if sys.platform == "win32" else "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *TOOLS], check=True)  # noqa: S603
        outputs = ["--proto_path=.", "--python_out=.", "--pyi_out=."]
        subprocess.run([python, "-m", "grpc_tools.protoc", *outputs, *sources], check=True, cwd=ROOT)  # noqa: S603
    for stub in PACKAGE.rglob("*_pb2.pyi"):
        stub.write_text(f"{STUB_HEADER}\n{stub.read_text()}")


if __name__ == "__main__":
    main()
