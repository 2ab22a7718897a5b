#!/usr/bin/env bash
# Makes .venv with the given Python, or says what makes that possible. Debian's Python gets its python3-venv, if it lacks
# it (install.sh says how).
set -euo pipefail
python=${1:?usage: make-venv.sh PYTHON}

if ! command -v "$python" >/dev/null; then
    echo "There is no '$python' here. Run: apt-get install -y python3 python3-venv, or: make PYTHON=..." >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "ptegpu needs Python 3.11 or newer; '$python' is $("$python" -V). Run: make PYTHON=python3.11" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    "$(dirname "$0")/install.sh" "$python cannot make virtual environments." "$version-venv" || exit 1
fi
echo "Making .venv with $("$python" -V)"
"$python" -m venv .venv
