#!/bin/sh
# Print what is in deploy/kubernetes/rollserve.yaml: the chart with its defaults.
#
#   manifest.sh HELM
set -eu
documents=$("$1" template rollserve "$(dirname "$0")/../helm" --namespace default)
cat << 'END'
# A gateway, and a Ray cluster by KubeRay for its workers: what the chart in deploy/helm makes with its defaults. Written
# by `make manifest`; docs/kubernetes.md describes the secrets that it needs.
END
echo "$documents" | sed '/^# Source: /d'
