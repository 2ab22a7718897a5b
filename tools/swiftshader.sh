#!/usr/bin/env bash
# Prints the path of the file that registers SwiftShader with Vulkan: the software adapter on which Dawn is tested, which
# Debian's chromium-common brings. Where that is not installed, it is downloaded, and two files of it are unpacked into
# .venv; if that is not possible, one line on stderr says so. Fails if there is none at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
package=chromium-common
inside=usr/lib/chromium
kept=$PWD/.venv/swiftshader

for folder in "/$inside" "$kept/$inside"; do
    if [ -e "$folder/vk_swiftshader_icd.json" ] && [ -e "$folder/libvk_swiftshader.so" ]; then
        echo "$folder/vk_swiftshader_icd.json"
        exit 0
    fi
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "No SwiftShader: Debian's $package brings it, and there is no apt-get here." >&2
    exit 1
fi
reason="The tests on Dawn need SwiftShader; Debian's $package has it (some 30 MB)."
if [ "${INSTALL:-1}" = 0 ]; then
    echo "$reason Nothing is downloaded; run: apt-get install -y --no-install-recommends $package" >&2
    exit 1
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
run() { echo "+ $*" >&2; log=$(cd "$folder" && "$@" 2>&1); }
echo "$reason Two files of it go into .venv, nothing is installed:" >&2
run apt-get -q download $package || { [ "$(id -u)" = 0 ] && run apt-get -q update && run apt-get -q download $package; } || {
    echo "No SwiftShader: apt-get download $package fails: $(echo "$log" | tail -n 1)" >&2
    exit 1
}
mkdir -p "$kept"
if log=$(dpkg-deb --fsys-tarfile "$folder"/*.deb |
    tar -x -C "$kept" "./$inside/libvk_swiftshader.so" "./$inside/vk_swiftshader_icd.json" 2>&1); then
    echo "$kept/$inside/vk_swiftshader_icd.json"
    exit 0
fi
echo "No SwiftShader: $package does not have it: $(echo "$log" | tail -n 1)" >&2
exit 1
