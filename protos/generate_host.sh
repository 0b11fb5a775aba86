#!/usr/bin/env bash
# Generates the classes of the step protocol for hosts in Python: `protos/generate_host.sh client/hosts/python/src`.
#
# They are those of `rollserve_wire`, without the check that refuses libraries older than the generator: environments of
# long ago need such libraries, and what rows exchange is read by all of them since 3.20.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?the folder to generate into}/rollserve_env_host/messages
mkdir -p "$target"
for name in v1/tensor v1/space rows/v1/rows rows/v1/row_service; do
  file=$target/$(basename "$name")_pb2.py
  sed -E -e '/^_runtime_version\.Validate/,/^\)/d' -e '/import runtime_version/d' \
    -e 's/rollserve_wire\.(v1|rows\.v1)/rollserve_env_host.messages/g' "client/src/rollserve_wire/${name}_pb2.py" > "$file"
  sed -E 's/rollserve_wire\.(v1|rows\.v1)/rollserve_env_host.messages/g' "client/src/rollserve_wire/${name}_pb2.pyi" > "${file}i"
done
