#!/bin/sh
# Write requirements.lock: the packages of the images, in the versions of constraints.txt, with the hashes of all files
# of each release; and requirements-gpu.lock: what images for GPUs have besides.
#
#   deploy/lock.sh UV
set -eu
cd "$(dirname "$0")/.."
uv=$1
new=$(mktemp)
trap 'rm -f "$new"' EXIT

# Write the packages that standard input names, and what they depend on, to a file.
lock() {
    file=$1
    shift
    sed -n '/^#/p' "$file" > "$new"
    "$uv" pip compile --quiet --no-config --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
        --constraint constraints.txt --generate-hashes --no-header --no-annotate --no-emit-index-url --allow-unsafe \
        "$@" - >> "$new"
    cp "$new" "$file"
}

{
    python3 deploy/requirements.py client
    python3 deploy/requirements.py server atari,data,envpool,mujoco,pettingzoo,tracing,video
    printf '%s\n' hatchling matplotlib pip rich
} | lock requirements.lock

version=$(sed -n 's/^onnxruntime==//p' constraints.txt)
echo "onnxruntime-gpu[cuda,cudnn]==$version" | lock requirements-gpu.lock \
    --no-emit-package flatbuffers --no-emit-package numpy --no-emit-package packaging --no-emit-package protobuf
