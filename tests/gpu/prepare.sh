#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the folder that tests/gpu/run_in_container.py needs on a machine with GPUs and no network:
# a small Debian root with systemd and Python, LXC's packages, and the probe with its wheels.
# Runs as root on a Debian machine with the network, debootstrap, xz and rackwell's own environment (scripts/setup);
# takes 2 to 4 minutes.
#
#   tests/gpu/prepare.sh [FOLDER]                    FOLDER: default .gpu-carry
#   TREE=/path tests/gpu/prepare.sh                  start from a finished debootstrap tree of $SUITE instead
set -eu

here=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-$here/.gpu-carry}
suite=${SUITE:-bookworm}                    # its Python decides which wheels the container takes
python=${CONTAINER_PYTHON:-3.11}
hosts=${HOST_PYTHONS:-3.12}                 # Pythons outside the container, for the comparison; "" = none
bindings=${BINDINGS:-cuda-bindings==12.9.*}

say() { printf '%s\n' "$*" >&2; }
[ "$(id -u)" = 0 ] || { say "prepare.sh: must run as root (debootstrap)"; exit 2; }
for tool in xz apt-get; do
    command -v $tool >/dev/null || { say "prepare.sh: $tool is missing; apt-get install xz-utils"; exit 2; }
done
py=$here/.venv/bin/python
[ -x "$py" ] || { say "prepare.sh: rackwell's environment is missing; run scripts/setup first"; exit 2; }

mkdir -p "$out/wheels" "$out/debs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

if [ -n "${TREE:-}" ]; then
    say "copying $TREE"
    mkdir "$work/root"
    tar -C "$TREE" --one-file-system --exclude=./dev --exclude=./proc --exclude=./sys --exclude=./var/cache \
        --exclude=./var/lib/apt/lists --exclude=./usr/share/doc --exclude=./usr/share/man -cf - . | tar -C "$work/root" -xf -
else
    say "debootstrap $suite"
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,python3 "$suite" "$work/root" >&2
fi
say "trimming"
cd "$work/root"
mkdir -p dev proc sys var/cache/apt var/lib/apt/lists
rm -rf usr/share/doc/* usr/share/man/* usr/share/locale/* usr/share/info/* usr/share/i18n usr/share/zoneinfo \
    usr/share/perl usr/share/perl5 usr/lib/x86_64-linux-gnu/perl usr/lib/x86_64-linux-gnu/gconv \
    usr/lib/udev/hwdb.d usr/lib/udev/hwdb.bin var/lib/apt/lists/* var/cache/* var/log/* tmp/* root/.cache dev/* \
    usr/lib/python3*/test usr/lib/python3*/lib2to3 usr/lib/python3*/idlelib
find . -xdev -name __pycache__ -type d -prune -exec rm -rf {} +
cd "$here"
tar -C "$work/root" --sort=name --numeric-owner -cf - . | xz -T2 -6 >"$out/rootfs.tar.xz.partial"
mv "$out/rootfs.tar.xz.partial" "$out/rootfs.tar.xz"

say "LXC's packages"
(cd "$out/debs" && rm -f ./*.deb && apt-get -q download lxc liblxc1 liblxc-common libapparmor1 >&2)

say "wheels"
rm -f "$out"/wheels/*.whl
"$py" -m pip download -q --no-deps -d "$out/wheels" cuda-pathfinder nvidia-ml-py pip >&2
for version in $python $hosts; do
    "$py" -m pip download -q --no-deps --only-binary=:all: --implementation cp --python-version "$version" \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_17_x86_64 \
        -d "$out/wheels" "$bindings" >&2
done
PYTHONPATH=$here/src "$py" - "$out/wheels" <<'PYTHON'
import pathlib, sys
from rackwell.build.probewheel import probe_wheel
name, data = probe_wheel()
(pathlib.Path(sys.argv[1]) / name).write_bytes(data)
PYTHON
du -sh "$out" >&2
