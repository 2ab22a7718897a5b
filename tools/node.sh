#!/usr/bin/env bash
# Fails, with one line on stderr, where there is no node of version 20 or later with npm.
if command -v node >/dev/null && command -v npm >/dev/null; then
    version=$(node -p 'process.versions.node.split(".")[0]')
    [ "$version" -ge 20 ] && exit 0
    echo "node $version is too old: web/ needs 20." >&2
else
    echo "No node with npm." >&2
fi
exit 1
