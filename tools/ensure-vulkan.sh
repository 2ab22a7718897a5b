#!/usr/bin/env bash
# Sees to it that WebGPU finds an adapter: only if there is none, Debian's Vulkan loader and Mesa's drivers are installed
# (install.sh says how). Fails if there is no adapter at the end.
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

reason="WebGPU finds no adapter; Mesa's drivers for Vulkan have one for any machine."
"$(dirname "$0")/install.sh" "$reason" $packages || exit 1
log=$(find_adapter 2>&1) && exit 0
echo "$log" | tail -n 5 >&2
echo "$packages are installed, but WebGPU still finds no adapter." >&2
exit 1
