#!/usr/bin/env bash
# Sees to it that WebGPU finds an adapter: installs Debian's Vulkan loader and Mesa drivers if none is found and it
# may (as root or with passwordless sudo), else prints the one line to run. Fails if there is no adapter at the end.
set -uo pipefail
python=${1:?usage: ensure-vulkan.sh PYTHON}
packages="libvulkan1 mesa-vulkan-drivers"

has_adapter() {
    "$python" - 2>/dev/null <<'PY'
import sys
import wgpu
from wgpu.backends.wgpu_native.extras import set_instance_extras

set_instance_extras(backends=["Vulkan", "Metal", "D3D12"])
sys.exit(not wgpu.gpu.enumerate_adapters_sync())
PY
}

has_adapter && exit 0

if ! command -v apt-get >/dev/null; then
    echo "No Vulkan adapter found. Install your system's Vulkan loader and driver (Debian: $packages)." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    sudo=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    sudo=(sudo -n)
else
    echo "No Vulkan adapter found. Run: sudo apt-get install -y $packages" >&2
    exit 1
fi

echo "No Vulkan adapter found: installing $packages"
export DEBIAN_FRONTEND=noninteractive
if log=$("${sudo[@]}" apt-get update -qq 2>&1 &&
         "${sudo[@]}" apt-get install -y -qq --no-install-recommends $packages 2>&1) && has_adapter; then
    exit 0
fi
echo "${log:-}" | tail -n 5 >&2
echo "Still no Vulkan adapter. Run, and read what it says: apt-get install -y $packages" >&2
exit 1
