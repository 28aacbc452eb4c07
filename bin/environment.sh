# Sourced by bin/quickstart and bin/test, which then stand in the project's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# find_python: prints a Python of a supported version.
find_python() {
    local python
    for python in python3.11 python3.12 python3.13 python3; do
        "$python" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
            && { command -v "$python"; return; }
    done
    echo "error: expected Python 3.11, 3.12 or 3.13 with venv on PATH, received $(python3 --version 2>&1 || true)" >&2
    exit 2
}

# make_environment [EXTRAS]: makes .venv with the package and these extras, once for each state of setup.py and of the lock.
make_environment() {
    local extras="${1:-}" python state
    state=$(cat setup.py requirements.lock | sha256sum | cut -c1-16)
    [ -f ".venv/.installed-${extras:-base}-$state" ] || [ -f ".venv/.installed-dev-$state" ] && return # dev has all
    python=$(find_python)
    echo "making .venv with $("$python" --version) (about 3 GB; once, some minutes)" >&2
    exec 9>.environment.lock && flock 9 # one installation at a time
    .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv # absent, or half made
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
        --editable ".${extras:+[$extras]}"
    touch ".venv/.installed-${extras:-base}-$state"
    exec 9>&-
}

# make_peers: makes .peers, what the slow tests compare with, once for each state of tests/peers.txt.
make_peers() {
    local stamp
    stamp=".peers/.installed-$(sha256sum tests/peers.txt | cut -c1-16)"
    [ -f "$stamp" ] && return
    echo "making .peers (1 to 6 GB; once)" >&2
    exec 9>.environment.lock && flock 9
    rm -rf .peers
    # torch needs what it depends on; the others get what they need from .venv and from peers.txt.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --target .peers --constraint tests/peers.txt torch
    grep -v '^torch==' tests/peers.txt | .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --target .peers --no-deps --upgrade --requirement /dev/stdin
    touch "$stamp"
    exec 9>&-
}
