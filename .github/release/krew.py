"""Writes the plugin for krew, kubectl's plugin manager, into a folder: its archive and its manifest.

    python .github/release/krew.py FOLDER

The manifest's format: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ARCHIVE = "kubectl-aioresolve.tar.gz"

MANIFEST = """\
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: aioresolve
spec:
  version: v{version}
  homepage: {repository}
  shortDescription: Find the members of distributed jobs
  description: |
    Lists the tasks of a distributed job and their addresses from its pods, waits until the job is
    complete, follows its changes, and reports why a member is missing. Needs aioresolve, uv or pipx.
  platforms:
  - selector:
      matchExpressions:
      - {{key: os, operator: In, values: [linux, darwin]}}
    uri: {repository}/releases/download/v{version}/{archive}
    sha256: {sha256}
    bin: kubectl-aioresolve
"""


def main(folder: Path) -> None:
    """Write the archive and the manifest, of the version in `aioresolve/_version.py`."""
    [version] = re.findall(r'= "(.+)"', (ROOT / "aioresolve" / "_version.py").read_text())
    server = os.environ.get("GITHUB_SERVER_URL", "https://github.com")
    repository = f"{server}/{os.environ.get('GITHUB_REPOSITORY', 'aioresolve/aioresolve')}"
    script = (HERE / "kubectl-aioresolve").read_text().replace("{version}", version).encode()
    files = {"kubectl-aioresolve": script, "LICENSE": (ROOT / "LICENSE").read_bytes()}
    archive = folder / ARCHIVE
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest = MANIFEST.format(version=version, repository=repository, archive=ARCHIVE, sha256=sha256)
    (folder / "krew.yaml").write_text(manifest)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
