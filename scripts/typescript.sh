#!/usr/bin/env bash
# Installs what the tests of the npm package need by npm into the directory $1 (kept from time to time), with the package as it
# is here beside it, and prints where it is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

packages=(typescript@5.9.3 @types/node@20.19.43 @langchain/langgraph@1.7.3 @langchain/langgraph-checkpoint@1.2.2
    @langchain/langgraph-checkpoint-validation@1.1.1 @langchain/core@1.4.0 @openai/agents@0.20.0 openai@7.57.0 @mastra/core@1.71.0
    ai@7.0.173 @ai-sdk/openai-compatible@3.0.92 zod@4.6.7 bun@1.4.5 deno@2.9.6)

mkdir -p "$1"
into=$(cd "$1" && pwd)
if [ "$(cat "$into/ready" 2>/dev/null)" != "${packages[*]}" ]; then
    npm install --prefix "$into" --no-audit --no-fund --silent "${packages[@]}" >&2
    echo "${packages[*]}" >"$into/ready"
fi
# A copy: a link would look for its peers beside the sources.
rm -rf "$into/node_modules/outlast"
cp -r typescript "$into/node_modules/outlast"
echo "$into"
