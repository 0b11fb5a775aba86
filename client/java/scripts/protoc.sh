#!/bin/sh
# Generate the classes of the protos with Debian's protoc: protoc.sh PROTOS OUT. Does nothing if they are up to date.
set -eu
protos=$1 out=$2
if [ -e "$out.done" ] && [ -z "$(find "$protos/rollserve/v1" "$0" -newer "$out.done")" ]; then
  exit 0
fi
rm -rf "$out"
mkdir -p "$out"
protoc --proto_path="$protos" --java_out="$out" --plugin=protoc-gen-grpc-java="$(command -v grpc_java_plugin)" \
  --grpc-java_out="$out" "$protos"/rollserve/v1/*.proto
touch "$out.done"
