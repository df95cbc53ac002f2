# shellcheck shell=sh disable=SC2154,SC2016
# SPDX-License-Identifier: Apache-2.0
#
# STAND-IN, laboratory only: the head of the .run file. makeself sources this file (--header) and puts the
# archive behind what it writes. NVIDIA's own .run files have a head of this kind: it knows a few options and
# hands all others to ./nvidia-installer, where makeself's usual head would refuse them.
cat <<EOF >"$archname"
#!/bin/sh
# STAND-IN of the rackwell laboratory for an NVIDIA driver installer. Nothing in here is NVIDIA's.
label="$LABEL"
targetdir="$archdirname"
skip=$SKIP
size=${filesizes:-0}
md5="$MD5sum"
sha256="$SHAsum"
EOF
cat <<'EOF' >>"$archname"
archive=$0
case $archive in /*) ;; *) archive=$PWD/$archive ;; esac
previous= extract_only= keep= target= tmpdir=${TMPDIR:-/tmp}

payload() { tail -n "+$((skip + 1))" "$archive" | head -c "$size"; }
verify() {
    [ "$(payload | md5sum | cut -b-32)" = "$md5" ] || { echo "Error in MD5 checksums: $archive is damaged" >&2; return 1; }
    [ "$(payload | sha256sum | cut -b-64)" = "$sha256" ] || { echo "Error in SHA256 checksums: $archive is damaged" >&2; return 1; }
}

for argument; do
    case $argument in
    --info)
EOF
cat <<EOF >>"$archname"
        cat <<INFO
  Identification    : \$label
  Target directory  : \$targetdir
  Uncompressed size : ${RACKWELL_LAB_SIZE_KB:-0} KB
  Compression       : $COMPRESS
  Date of packaging : $DATE
  Application run after extraction : $SCRIPT
  The directory \$targetdir will be removed after extraction.
INFO
        exit 0
        ;;
EOF
cat <<'EOF' >>"$archname"
    --list)
        echo "Target directory: $targetdir"
        payload | tar tvf -
        exit $?
        ;;
    --check)
        verify || exit 1
        echo "MD5 checksums are OK. SHA256 checksums are OK."
        exit 0
        ;;
    --tmpdir=*) tmpdir=${argument#--tmpdir=} ;;
    --target=*) target=${argument#--target=} keep=yes ;;
    --keep) keep=yes ;;
    -x | --extract-only) extract_only=yes keep=yes ;;
    esac
    case $previous in
    --tmpdir) tmpdir=$argument ;;
    --target) target=$argument keep=yes ;;
    esac
    previous=$argument
done

printf 'Verifying archive integrity... '
verify || exit 1
echo OK
umask 022
if [ "$keep" ]; then
    target=${target:-$targetdir}
    if [ -e "$target" ]; then
        echo "ERROR: the directory '$target' exists already" >&2
        exit 1
    fi
    mkdir -p "$target" || exit 1
else
    [ -d "$tmpdir" ] || { echo "ERROR: the temporary directory '$tmpdir' does not exist" >&2; exit 1; }
    target=$(mktemp -d "$tmpdir/selfgz.XXXXXX") || exit 1
    trap 'rm -rf "$target"' EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 143' TERM
fi
printf 'Uncompressing %s' "$label"
if ! payload | tar -xf - -C "$target" --no-same-owner; then
    echo
    echo "Extraction failed." >&2
    exit 1
fi
echo
[ "$extract_only" ] && exit 0
cd "$target" || exit 1
RACKWELL_LAB_TMPDIR=$tmpdir ./nvidia-installer "$@"
exit $?
EOF
