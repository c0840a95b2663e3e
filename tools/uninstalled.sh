#!/usr/bin/env bash
# Runs a command with this checkout as the package, where nothing can be installed:
#     bash tools/uninstalled.sh python3 -m pytest tests/frontend/ranks
# The entry point by which torch finds backend="superkernel" comes from a folder that is made for the command.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
mkdir "$made/superkernel-0.dist-info"
printf 'Metadata-Version: 2.1\nName: superkernel\nVersion: 0\n' > "$made/superkernel-0.dist-info/METADATA"
sed -n '/^\[project.entry-points.torch_dynamo_backends\]/,/^$/p' "$root/pyproject.toml" |
    sed 's/project\.entry-points\.//; s/"//g' > "$made/superkernel-0.dist-info/entry_points.txt"
PYTHONPATH="$root/src:$made${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 "$@"
