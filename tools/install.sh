#!/usr/bin/env bash
# install.sh REASON PACKAGE...: installs those Debian packages that are missing. It says why, and every line before it
# runs it, on stderr. With INSTALL=0 it says the same and runs nothing. Fails unless all are installed at the end.
set -uo pipefail
reason=$1
shift

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing=()
for package in "$@"; do installed "$package" || missing+=("$package"); done
[ ${#missing[@]} = 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
    echo "$reason This is no Debian: install what your system has instead of $*." >&2
    exit 1
fi
root=()
if [ "$(id -u)" != 0 ]; then
    if sudo -n true 2>/dev/null; then root=(sudo -n); else root=(sudo) INSTALL=0; fi
fi
apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120)
line=("${apt[@]}" install -y --no-install-recommends "${missing[@]}")
if [ "${INSTALL:-1}" = 0 ]; then
    echo "$reason Nothing is installed; run: ${line[*]}" >&2
    exit 1
fi

echo "$reason Installing ${missing[*]}:" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() { echo "+ $*" >&2; "$@" >"$log" 2>&1; }
run "${line[@]}" || { run "${apt[@]}" update && run "${line[@]}"; } && exit 0
tail -n 5 "$log" >&2
exit 1
