#!/usr/bin/env bash
# Prints the path of the file that registers SwiftShader with Vulkan: the software adapter on which Dawn is tested, which
# Debian's chromium package brings. Where that is not installed, it is downloaded and unpacked into .venv; if that is
# not possible, one line on stderr says so. Fails if there is none at the end.
set -uo pipefail
cd "$(dirname "$0")/.."
inside=usr/lib/chromium
kept=$PWD/.venv/swiftshader

for folder in "/$inside" "$kept/$inside"; do
    if [ -e "$folder/vk_swiftshader_icd.json" ] && [ -e "$folder/libvk_swiftshader.so" ]; then
        echo "$folder/vk_swiftshader_icd.json"
        exit 0
    fi
done

if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    echo "No SwiftShader: Debian's chromium package brings it, and there is no apt-get here." >&2
    exit 1
fi
echo "Downloading Debian's chromium for its SwiftShader (some 80 MB, once)" >&2
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
mkdir -p "$kept"
log=$(cd "$download" && apt-get -qq download chromium 2>&1 && dpkg-deb --fsys-tarfile chromium_*.deb |
    tar -x -C "$kept" "./$inside/libvk_swiftshader.so" "./$inside/vk_swiftshader_icd.json" 2>&1) &&
    echo "$kept/$inside/vk_swiftshader_icd.json" && exit 0
echo "No SwiftShader: apt-get download chromium fails ($(echo "$log" | tail -n 1)). Run: apt-get update" >&2
exit 1
