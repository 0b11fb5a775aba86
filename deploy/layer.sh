#!/bin/sh
# Prepare /layer, with packages, to become a layer of an image: remove what no server needs, compile modules, and give all
# files one date, so that equal packages make an equal layer.
set -eu
cd /layer

# What a server never needs: tests of packages, Java's half of Ray, pages of its dashboard, zstandard's second back end,
# and what environments of Python 3.12 come without, too.
for path in 'numpy/*tests' onnx/backend/test ray/jars ray/dashboard/client/build 'zstandard/_cffi.*' \
    setuptools 'setuptools-*' pkg_resources _distutils_hack distutils-precedence.pth; do
    find . -path "*/site-packages/$path" -prune -exec rm -rf {} +
done

date() {
    find . -exec touch --no-dereference --date 1980-01-01T00:00Z {} +
}
date # of sources, which compiled modules hold
python -m compileall -q -j 0 -s /layer -p / /layer
date
