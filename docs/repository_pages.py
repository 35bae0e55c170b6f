"""A hook of MkDocs: pages of the repository outside `docs/` become pages of the site, as they are.

So does the JSON Schema of `fleet.yaml`, as `fleet.schema.json`.

The links in every page lead to files of the repository, so that they also work on GitHub. This hook makes
them lead to the pages of the site.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from aioresolve.fleet import fleet_schema

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PATTERNS = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "LICENSE",
    "benchmarks/README.md",
    "examples/**/*.*",
    "aioresolve/fleet/README.md",
)
"""The files of the repository that are part of the site."""

LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#:]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that are outside `docs/`."""
    for path in sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern)):
        files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    schema = json.dumps(fleet_schema(), indent=2)
    files.append(File.generated(config, "fleet.schema.json", content=schema))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links between files of the repository lead to the pages of the site."""
    source = page.file.src_uri
    here = posixpath.dirname(_path_in_repository(page.file))

    def replacement(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link["path"]))
        if (ROOT / target).is_dir():
            target += "/README.md"
        uri = target.removeprefix("docs/")
        return posixpath.relpath(uri, posixpath.dirname(source) or ".") + (link["anchor"] or "")

    return LINK.sub(replacement, markdown)


def _path_in_repository(file: File) -> str:
    path = file.abs_src_path
    assert path is not None, file
    return Path(path).relative_to(ROOT).as_posix()
