#!/bin/sh
# Copy Debian's library of netty-tcnative to where Netty looks for it, by the name that Netty knows: tcnative.sh OUT.
set -eu
library=$(dpkg-query --listfiles libnetty-tcnative-jni | grep '/libnetty-tcnative\.so$')
mkdir -p "$1/META-INF/native"
cp -u "$library" "$1/META-INF/native/libnetty_tcnative.so"
