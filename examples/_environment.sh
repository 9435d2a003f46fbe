# Sourced by the other scripts. Without `worldsmith` on PATH, the environment that `make` created next to the clone is used.

if ! command -v worldsmith >/dev/null; then
    clone="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
    if [[ ! -x $clone/.venv/bin/worldsmith ]]; then
        echo "$0: worldsmith is neither on PATH nor in $clone/.venv; run \`make install\` in $clone" >&2
        exit 2
    fi
    export PATH="$clone/.venv/bin:$PATH"
fi
