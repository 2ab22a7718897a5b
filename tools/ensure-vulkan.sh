#!/usr/bin/env bash
# Sees to it that WebGPU finds an adapter: installs Debian's Vulkan loader and Mesa drivers if none is found and it
# may (as root or with passwordless sudo), else prints the one line to run. Fails if there is no adapter at the end.
set -uo pipefail
python=${1:?usage: ensure-vulkan.sh PYTHON}
packages="libvulkan1 mesa-vulkan-drivers"

find_adapter() { # 0: there is one, 3: there is none, else the search itself failed
    "$python" - <<'PY'
import sys
import wgpu
from wgpu.backends.wgpu_native.extras import set_instance_extras

set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
sys.exit(0 if wgpu.gpu.enumerate_adapters_sync() else 3)
PY
}

log=$(find_adapter 2>&1)
case $? in
    0) exit 0 ;;
    3) ;;
    *) echo "$log" >&2; exit 1 ;;
esac

if ! command -v apt-get >/dev/null; then
    echo "No Vulkan adapter found. Install your system's Vulkan loader and driver (Debian: $packages)." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    apt=(sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
else
    echo "No Vulkan adapter found. Run: sudo apt-get install -y $packages" >&2
    exit 1
fi

echo "No Vulkan adapter found: installing $packages"
log=$("${apt[@]}" update 2>&1; "${apt[@]}" install -y --no-install-recommends $packages 2>&1) &&
    log=$(find_adapter 2>&1) && exit 0
echo "$log" | tail -n 5 >&2
echo "Still no Vulkan adapter. Run, and read what it says: apt-get install -y $packages" >&2
exit 1
