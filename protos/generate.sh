#!/usr/bin/env bash
# Generates the Python classes of the protos, and the enum of error reasons, into a folder:
# `protos/generate.sh client/src`.
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
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
python -m grpc_tools.protoc --proto_path=protos --python_out="$generated" --mypy_out=quiet:"$generated" \
  protos/rollserve/v1/*.proto protos/rollserve/rows/v1/*.proto
python -m grpc_tools.protoc --proto_path=protos --grpc_python_out="$generated" --mypy_grpc_out=quiet:"$generated" \
  protos/rollserve/v1/sampler_service.proto
# The classes are a package of `rollserve_wire`: workers and servers import them without the client.
for folder in v1 rows/v1; do
  sed -i -E 's/\brollserve\.(v1|rows\.v1)(\.\w+_pb2| import)/rollserve_wire.\1\2/g' "$generated"/rollserve/$folder/*
  mkdir -p "$target/rollserve_wire/$folder"
  mv "$generated"/rollserve/$folder/*.py* "$target/rollserve_wire/$folder"
done
descriptors=$generated/descriptors
python -m grpc_tools.protoc --proto_path=protos --include_source_info --descriptor_set_out="$descriptors" \
  protos/rollserve/v1/errors.proto
python protos/reasons.py "$descriptors" "$target/rollserve_wire/reasons.py"
