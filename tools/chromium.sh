#!/usr/bin/env bash
# Prints the path of Chromium, in which the browser's runner is tested. Where there is none, Debian's is installed
# (install.sh says how). Fails if there is none at the end.
set -uo pipefail

find() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
find && exit 0
"$(dirname "$0")/install.sh" "The tests in a browser need Chromium (some 100 MB)." chromium && find
