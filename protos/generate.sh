#!/usr/bin/env bash
# Generates the Python classes of the protos into a folder, and the table of error reasons into a page:
# `protos/generate.sh client/src docs/errors.md`.
#
# The generators have their own virtual environment, .venv-protos, because they are the oldest ones that the client
# supports: generated code refuses to run with libraries older than its generator.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?the folder to generate into}
page=${2:?the page that has the table of error reasons}
environment=.venv-protos
if ! cmp -s protos/requirements.txt "$environment/requirements.txt"; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --disable-pip-version-check -r protos/requirements.txt
  cp protos/requirements.txt "$environment/requirements.txt"
fi
export PATH="$PWD/$environment/bin:$PATH"
mkdir -p "$target"
python -m grpc_tools.protoc --proto_path=protos --python_out="$target" --mypy_out=quiet:"$target" \
  protos/rollserve/v1/*.proto
python -m grpc_tools.protoc --proto_path=protos --grpc_python_out="$target" --mypy_grpc_out=quiet:"$target" \
  protos/rollserve/v1/sampler_service.proto
descriptors=$(mktemp)
trap 'rm -f "$descriptors"' EXIT
python -m grpc_tools.protoc --proto_path=protos --include_source_info --descriptor_set_out="$descriptors" \
  protos/rollserve/v1/errors.proto
python protos/reasons.py "$descriptors" "$target/rollserve/reasons.py" "$page"
