# Sourced by bin/quickstart and bin/test, which then stand in the project's root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# make_environment [EXTRAS]: makes .venv with the package and these extras, once for each state of setup.py.
make_environment() {
    local extras="${1:-}" python stamp
    stamp=".venv/.installed-${extras:-base}-$(sha256sum setup.py | cut -c1-16)"
    [ -f "$stamp" ] && return
    python=$(command -v python3.11 || command -v python3) || { echo "error: expected Python 3.11 on PATH" >&2; exit 2; }
    "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
        || { echo "error: expected Python 3.11, received $("$python" --version)" >&2; exit 2; }
    echo "making .venv (about 3 GB; once)" >&2
    exec 9>.environment.lock && flock 9 # one installation at a time
    .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv # absent, or half made
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extras:+[$extras]}"
    touch "$stamp"
    exec 9>&-
}

# make_peers: makes .peers, what the slow tests compare with, once for each state of tests/peers.txt.
make_peers() {
    local stamp cpu=https://download.pytorch.org/whl/cpu
    stamp=".peers/.installed-$(sha256sum tests/peers.txt | cut -c1-16)"
    [ -f "$stamp" ] && return
    echo "making .peers (about 1 GB; once)" >&2
    exec 9>.environment.lock && flock 9
    rm -rf .peers
    # torch by itself and from its own index, whose wheel needs no CUDA; where that index is out of reach, any torch.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --target .peers --no-deps \
        --extra-index-url "$cpu" "$(grep '^torch==' tests/peers.txt)"
    grep -v '^torch==' tests/peers.txt | .venv/bin/python -m pip install --quiet --disable-pip-version-check \
        --target .peers --no-deps --requirement /dev/stdin
    touch "$stamp"
    exec 9>&-
}
