#!/usr/bin/env bash
# Sees to it that PyTorch can be imported. The build that most indexes have needs NVIDIA's libraries, which no lock of ours
# holds: PyTorch names them with their versions, and they are installed only here, only if it cannot do without.
set -uo pipefail
python=${1:?usage: torch.sh PYTHON}
log=$("$python" -c "import torch" 2>&1) && exit 0
line=("$python" -m pip --disable-pip-version-check -q install -c constraints.txt torch)
echo "This build of PyTorch needs NVIDIA's libraries ($(echo "$log" | tail -n 1)). Installing them, without hashes:" >&2
echo "+ ${line[*]}" >&2
"${line[@]}"
