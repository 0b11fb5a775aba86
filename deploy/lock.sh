#!/bin/sh
# Write requirements.lock: the packages of the images, in the versions of constraints.txt, with the hashes of all files
# of each release.
#
#   deploy/lock.sh UV
set -eu
cd "$(dirname "$0")/.."
new=$(mktemp)
trap 'rm -f "$new"' EXIT
sed -n '/^#/p' requirements.lock > "$new"
{
    python3 deploy/requirements.py client
    python3 deploy/requirements.py server atari,data,envpool,mujoco,pettingzoo,tracing,video
    printf '%s\n' hatchling matplotlib pip rich
} | "$1" pip compile --quiet --no-config --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --constraint constraints.txt --generate-hashes --no-header --no-annotate --no-emit-index-url --allow-unsafe - >> "$new"
cp "$new" requirements.lock
