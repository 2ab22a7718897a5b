#!/usr/bin/env bash
# Prints the path of Chromium, in which the browser's runner is tested. Where there is none, Debian's is installed if that
# is possible (as root); if not, one line on stderr says so. Fails if there is none at the end.
set -uo pipefail

find() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
find && exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "No Chromium. Run: sudo apt-get install -y --no-install-recommends chromium" >&2
    exit 1
fi
echo "Installing Debian's chromium (some 100 MB, once)" >&2
apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
install() { "${apt[@]}" install -y --no-install-recommends chromium 2>&1; }
log=$(install) || { "${apt[@]}" update >/dev/null 2>&1 && log=$(install); } || {
    echo "No Chromium: apt-get install chromium fails: $(echo "$log" | tail -n 1)" >&2
    exit 1
}
find
