#!/usr/bin/env bash
# Fetches the page's libraries by npm into crates/server/web/vendor, as they are published but for two lines: the name of
# Preact in its hooks becomes a path, because a browser knows no names, and no file points to a map that is not there.
#
# Run it again after a version below was changed, and look at the difference before it is committed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../crates/server/web/vendor"

preact=11.2.0 htm=3.1.1 uplot=1.6.32

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
npm install --prefix "$work" --no-audit --no-fund --silent --ignore-scripts "preact@$preact" "htm@$htm" "uplot@$uplot"
from=$work/node_modules
cp "$from/preact/dist/preact.mjs" preact.mjs
cp "$from/preact/hooks/dist/hooks.mjs" hooks.mjs
cp "$from/htm/dist/htm.module.js" htm.mjs
cp "$from/uplot/dist/uPlot.esm.js" uPlot.mjs
cp "$from/uplot/dist/uPlot.min.css" uPlot.min.css
for package in preact htm uplot; do cp "$from/$package/LICENSE" "LICENSE.$package"; done
sed -i -e 's#from"preact"#from"./preact.mjs"#' -e '/^\/\/# sourceMappingURL/d' preact.mjs hooks.mjs
