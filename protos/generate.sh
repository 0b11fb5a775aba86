#!/usr/bin/env bash
# Generates the Python classes of the protos into the folder given: `protos/generate.sh client/src`.
#
# The generators have their own virtual environment, .venv-protos, because they are the oldest ones that the client
# supports: generated code refuses to run with libraries older than its generator.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?the folder to generate into}
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
