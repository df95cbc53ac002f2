#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Packs a whole machine for tests/gpu/run.py to enter where there is neither network nor LXC: the laboratory's host
# layer as its root, this checkout's environment, the laboratory's cache, and the releases of its site.
# Runs as root on a Debian machine with the network, after scripts/setup; takes some minutes.
#
#   tests/gpu/prepare.sh [FOLDER]           FOLDER (default .gpu-carry) gets machine.tar.xz.00, .01, ... of 45 MiB each
#   tests/gpu/prepare.sh --engine [FOLDER]  for tests/gpu/engine.py: another Debian in the containers, with a compiler, and
#                                           SGLang in the place of the stand-in engine
#   BLOBS=SITE/.rackwell/blobs tests/gpu/prepare.sh      take wheels from there instead of fetching them again
set -eu

cd "$(dirname "$0")/../.."
engine=
[ "${1:-}" = --engine ] && { engine=1; shift; }
out=${1:-.gpu-carry}
lab=${LAB:-gpu-prepare}
suite=bookworm
[ -z "$engine" ] || suite=trixie  # whose C library is as new as those of the machines with GPUs

say() { printf '[prepare] %s\n' "$*" >&2; }
[ "$(id -u)" = 0 ] || { say "must run as root: the laboratory starts LXC containers"; exit 2; }
for tool in xz hardlink split; do
    command -v $tool >/dev/null || { say "$tool is missing (Debian's xz-utils, util-linux, coreutils)"; exit 2; }
done
[ -x .venv/bin/rackwell ] || { say "rackwell's environment is missing; run scripts/setup first"; exit 2; }

work=$(mktemp -d /var/tmp/rackwell-prepare.XXXXXX)
cleanup() {
    .venv/bin/rackwell lab down --purge --name "$lab" >&2 || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say "the laboratory's cache and a site of it"
.venv/bin/rackwell lab up --name "$lab" --suite $suite
status=$(.venv/bin/rackwell lab status --name "$lab" --json)
value() { printf '%s' "$status" | python3 -c "import json, sys; print(json.load(sys.stdin)$1)"; }
site=$(value '["site"]')
layer=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["hosts"][0]["layer"])' "$(value '["directory"]')/lab.json")
cache=${RACKWELL_LAB_CACHE:-/var/cache/rackwell-lab}

say "the releases"
if [ -n "${BLOBS:-}" ]; then
    mkdir -p "$site/.rackwell/blobs"
    cp -a "$BLOBS/." "$site/.rackwell/blobs/"
fi
if [ -n "$engine" ]; then
    cp -a tests/gpu/site/. "$site/"
    .venv/bin/python tests/gpu/bundle.py "$site/wheels" ${BUNDLE_WORK:+--work "$BUNDLE_WORK"}
    for vars in "$site"/host_vars/glm5-*.yml; do
        sed -i 's/^release_build:.*/release_build: engine-gpu/' "$vars"
        echo 'bench_client_profile: engine-gpu' >>"$vars"
    done
fi
.venv/bin/rackwell build -i "$site"

say "the machine's root"
root=$work/root
cp -a "$cache/layer/$layer" "$root"
there=$root/var/cache/rackwell-lab
mkdir -p "$there/base" "$there/layer" "$there/pve"
cp -a "$cache/base/bookworm" "$cache/base/bookworm.recipe" "$there/base/"
cp -a "$cache/layer/$layer" "$there/layer/"
if [ -n "$engine" ]; then
    cp -a "$cache/base/trixie" "$cache/base/trixie.recipe" "$there/base/"
    template=$there/base/trixie
    cp -L /etc/resolv.conf "$template/etc/resolv.conf"
    printf '#!/bin/sh\nexit 101\n' >"$template/usr/sbin/policy-rc.d"
    chmod 0755 "$template/usr/sbin/policy-rc.d"
    chroot "$template" apt-get update -q -o Acquire::Languages=none >&2
    # engines look at the processors with lscpu, which minimal Debian has; g++ is for the kernels that they compile
    DEBIAN_FRONTEND=noninteractive chroot "$template" apt-get install -q -y --no-install-recommends g++ >&2
    rm -rf "$template/etc/resolv.conf" "$template/usr/sbin/policy-rc.d" "$template"/var/lib/apt/lists/* \
        "$template"/var/cache/apt/*.bin "$template"/var/cache/apt/archives/*.deb
fi
cp -a "$cache"/pve/*.json "$there/pve/"
cp -a "$cache/wheels" "$there/"
prepared=$root/srv/site
mkdir -p "$prepared/builds" "$prepared/.rackwell"
cp -a "$site"/builds/*.lock "$prepared/builds/"
for part in blobs releases builds; do cp -a "$site/.rackwell/$part" "$prepared/.rackwell/"; done
if [ -n "$engine" ]; then
    bundle=$(ls "$site"/wheels/rackwell_engine_bundle-*.whl)
    digest=$(sha256sum <"$bundle")
    mkdir -p "$prepared/wheels"
    ln "$prepared/.rackwell/blobs/sha256/${digest%% *}" "$prepared/wheels/${bundle##*/}"  # as one file it is packed once
fi

say "its Python environment"
venv=$root/srv/rackwell/.venv
packages=$venv/lib/python3.11/site-packages
chroot "$root" python3 -m venv --without-pip /srv/rackwell/.venv
UV_SYSTEM_CERTS=1 UV_NATIVE_TLS=1 .venv/bin/uv pip install -q --require-hashes --only-binary :all: --target "$packages" \
    --python-version 3.11 --python-platform x86_64-manylinux_2_28 -r requirements/run.lock
rm -f "$packages"/bin/uv "$packages"/bin/uvx  # 60 MB that only resolve new releases
for program in "$packages"/bin/*; do
    sed -i '1s|^#!.*python.*|#!/srv/rackwell/.venv/bin/python|' "$program"
    mv "$program" "$venv/bin/"
done
echo /srv/rackwell/src >"$packages/rackwell.pth"
mkdir -p "$packages/ansible_collections/rackwell"
ln -sfn /srv/rackwell "$packages/ansible_collections/rackwell/gpu"
printf '#!/srv/rackwell/.venv/bin/python\nfrom rackwell.cli.main import run\n\nrun()\n' >"$venv/bin/rackwell"
chmod 0755 "$venv/bin/rackwell"
find "$root" -name __pycache__ -type d -prune -exec rm -rf {} +

say "packing"
hardlink -q "$root" >/dev/null
mkdir -p "$out"
rm -rf "${out:?}"/*
tar -C "$root" --sort=name --numeric-owner -cf - . | xz -T2 -2 | split -b 45M -d - "$out/machine.tar.xz."
du -sh "$out" >&2
