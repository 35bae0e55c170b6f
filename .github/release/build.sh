#!/usr/bin/env bash
# Builds a release: the distributions in dist/; the bill of materials of the command with what it installs (CycloneDX)
# and the plugin for krew in release/. Needs Python 3.13 and an index of packages.
set -euo pipefail
cd "$(dirname "$0")/../.."

rm -rf dist release
environments=$(mktemp -d)
trap 'rm -rf "$environments"' EXIT

python3 -m venv "$environments/tools"
tools=$environments/tools/bin
"$tools/pip" install --quiet --require-hashes --requirement .github/release/requirements.txt
"$tools/python" -m build --no-isolation # with the hatchling of the requirements
"$tools/python" -m twine check --strict dist/*

python3 -m venv --without-pip "$environments/product"
"$tools/pip" --python "$environments/product/bin/python" install --quiet "$(echo dist/*.whl)[cli,serve]"
mkdir release
"$tools/cyclonedx-py" environment "$environments/product/bin/python" --pyproject pyproject.toml --mc-type application \
    --output-reproducible --output-file release/aioresolve.cdx.json

python3 .github/release/krew.py release
