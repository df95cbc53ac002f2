#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Builds the laboratory's stand-in for NVIDIA's driver.
#   tests/lab/gpu/build.sh OUTDIR VERSION      e.g. VERSION 595.58.03
# Leaves OUTDIR/NVIDIA-Linux-x86_64-VERSION.run, and the same files unpacked with their links in OUTDIR/VERSION/.
# Equal sources, compiler and makeself give equal bytes. Does nothing when both are there from these sources.
set -eu

[ $# -eq 2 ] || { echo "usage: build.sh OUTDIR VERSION" >&2; exit 2; }
version=$2
case $version in
*[!0-9.]* | .* | *. | *..*) echo "build.sh: $version is no driver version (595.58.03)" >&2; exit 2 ;;
*.*) ;;
*) echo "build.sh: $version is no driver version (595.58.03)" >&2; exit 2 ;;
esac
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
name=NVIDIA-Linux-x86_64-$version

stamp=$({ echo "$version"; cat build.sh nvidia-installer run-header.sh ./*.c ./*.h; gcc --version; makeself --version; } | sha256sum | cut -d' ' -f1)
if [ -f "$out/$name.run" ] && [ "$(cat "$out/$version/.stamp" 2>/dev/null || true)" = "$stamp" ]; then
    exit 0
fi

work=$(mktemp -d "$out/.partial.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
files=$work/$name
mkdir "$files"

# c11 and not gnu11: with the GNU extensions a new glibc would bind strtoul to a symbol that older ones lack
compile() { gcc -std=c11 -O2 -g0 -Wall -Wextra -Werror -DRACKWELL_LAB_DRIVER_VERSION="\"$version\"" -Wl,--build-id=none "$@"; }
library() { # SONAME FILE SOURCES
    soname=$1 file=$2
    shift 2
    compile -fPIC -shared -fvisibility=hidden -pthread -Wl,-soname,"$soname" -o "$files/$file" "$@"
}
library libcuda.so.1 "libcuda.so.$version" libcuda.c libcuda_kernels.c libcuda_sums.c lab_bytes.c lab_links.c lab_marks.c lab_state.c lab_time.c -lm
library libnvidia-ml.so.1 "libnvidia-ml.so.$version" libnvidia-ml.c lab_marks.c lab_state.c
library libnvidia-ptxjitcompiler.so.1 "libnvidia-ptxjitcompiler.so.$version" placeholder.c
library libnvidia-nvvm.so.4 "libnvidia-nvvm.so.$version" placeholder.c
library "libnvidia-gpucomp.so.$version" "libnvidia-gpucomp.so.$version" placeholder.c
library libcudadebugger.so.1 "libcudadebugger.so.$version" placeholder.c
compile -o "$files/nvidia-smi" nvidia-smi.c -ldl
sed "s/@VERSION@/$version/" nvidia-installer >"$files/nvidia-installer"
chmod 0755 "$files"/*

# the archive: one order, one owner, one time; not compressed, since gzip would note the time of its input
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-1767225600}
RACKWELL_LAB_SIZE_KB=$(cat "$files"/* | wc -c)
RACKWELL_LAB_SIZE_KB=$((RACKWELL_LAB_SIZE_KB / 1024 + 1))
export SOURCE_DATE_EPOCH RACKWELL_LAB_SIZE_KB
here=$PWD
(
    cd "$work"
    TMPDIR=$work makeself --quiet --nocomp --sha256 --header "$here/run-header.sh" \
        --packaging-date "$(LC_ALL=C TZ=UTC date -u -d "@$SOURCE_DATE_EPOCH")" \
        --tar-extra "--mtime=@$SOURCE_DATE_EPOCH --owner=0 --group=0 --numeric-owner" \
        "$name" "$name.run" "NVIDIA Accelerated Graphics Driver for Linux-x86_64 $version" ./nvidia-installer
) >&2

mkdir "$work/$version"
cp -p "$files"/* "$work/$version/"
ln -s "libcuda.so.$version" "$work/$version/libcuda.so.1"
ln -s "libnvidia-ml.so.$version" "$work/$version/libnvidia-ml.so.1"
# NCCL is no part of the driver: it lies beside it here, and the laboratory packs it into its templates
files=$work/$version
library libnccl.so.2 libnccl.so.2.27.5 libnccl.c lab_marks.c lab_state.c -ldl
ln -s libnccl.so.2.27.5 "$files/libnccl.so.2"
printf '%s\n' "$stamp" >"$work/$version/.stamp"
rm -rf "${out:?}/$version"
mv -f "$work/$name.run" "$out/$name.run"
mv "$work/$version" "$out/$version"
