# shellcheck shell=sh
# Makes .venv in the checkout and installs the pinned dependencies. Sourced, with $root set to the checkout's path;
# gives `set_up LAYER...` (runtime, dev), `say` and $venv. POSIX sh; works with macOS's bash 3.2 as well.
#
# A layer is there when its stamp fits. Stamps are written last and taken away first, so a set-up that was cut short
# never counts: it is made again.

# shellcheck disable=SC2154
venv=$root/.venv

say() { printf 'toolgraft: %s\n' "$*" >&2; }

# The version of an interpreter, where it is one that fits: CPython >= 3.13 with its lock.
version_of() {
    "$1" -I -S -c 'import sys
if sys.version_info < (3, 13) or sys.implementation.name != "cpython" or "t" in sys.abiflags:
    sys.exit(1)
print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null
}

candidates() (
    IFS=:
    for name in python3.13 python3.14 python3.15 python3.16 python3.17 python3 python; do
        for folder in $PATH; do
            printf '%s\n' "$folder/$name"
        done
    done
    home=${HOME:-/nonexistent}
    for python in "${PYENV_ROOT:-$home/.pyenv}"/versions/*/bin/python \
        "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$home/.local/share}/uv/python}"/*/bin/python3; do
        printf '%s\n' "$python"
    done
)

# The interpreter to use: the first of the version that .python-version names, else the first that fits.
find_python() {
    wanted=$(head -n 1 "$root/.python-version")
    candidates 2>/dev/null | {
        fitting=
        while IFS= read -r python; do
            [ -x "$python" ] || continue
            version=$(version_of "$python") || continue
            case $version in
                "$wanted" | "$wanted".*)
                    printf '%s\n' "$python"
                    exit
                    ;;
            esac
            fitting=${fitting:-$python}
        done
        printf '%s\n' "$fitting"
    }
}

# What a finished set-up is known by: where it stands, its Python, and what it was made from.
stamp() {
    printf '%s\n' "$root"
    version_of "$venv/bin/python" && cat "$root/pyproject.toml" "$root/constraints.txt" "$root/.python-version" | cksum
}

ready() {
    for layer do
        [ -f "$venv/.ready-$layer" ] && [ "$(cat "$venv/.ready-$layer")" = "$(stamp)" ] || return 1
    done
}

has_uv() { command -v uv >/dev/null 2>&1; }

make_venv() {
    rm -f "$venv"/.ready-* && rm -rf "$venv" || return 1
    if has_uv; then
        uv venv --quiet --python "$1" "$venv"
    else
        "$1" -I -m venv "$venv"
    fi || return 1
    # What an editable install would give: the packages can be imported, and the command is there.
    site=$("$venv/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
        printf '%s\n' "$root" >"$site/toolgraft.pth" &&
        printf '#!/bin/sh\nexec "%s" -P -m addon "$@"\n' "$venv/bin/python" >"$venv/bin/toolgraft" &&
        chmod +x "$venv/bin/toolgraft"
}

install() {
    wants=$("$venv/bin/python" -I "$root/scripts/requirements.py" "$1") || return 1
    if has_uv; then
        printf '%s\n' "$wants" | uv pip install --quiet --python "$venv/bin/python" -c "$root/constraints.txt" -r -
    else
        printf '%s\n' "$wants" | "$venv/bin/python" -I -m pip install --quiet --disable-pip-version-check --no-input \
            -c "$root/constraints.txt" -r /dev/stdin
    fi
}

# Run a part of the set-up; what it prints is shown only where it fails.
quietly() {
    output=$("$@" 2>&1) && return
    printf '%s\n' "$output" >&2
    say "the set-up failed at \`$*\`; what it said is above"
    exit 1
}

set_up() {
    ready "$@" && return
    python=$(find_python)
    if [ -z "$python" ]; then
        say "Python 3.13 or newer is needed, and there is none on PATH, in pyenv or in uv. One of these installs it:
  Debian 13, Ubuntu 25.04 or newer   sudo apt install python3 python3-venv
  macOS                              brew install python@3.13
  anywhere                           uv python install 3.13    or    pyenv install 3.13"
        exit 1
    fi
    # One at a time. The kernel's lock goes with its last holder, so a set-up that was killed leaves none behind.
    exec 9>>"$root/constraints.txt"
    "$python" -I -S -c 'import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("toolgraft: waiting for another set-up of this checkout", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
except OSError:
    pass  # a file system without locks'
    if ! ready runtime; then
        say "setting up .venv with Python $(version_of "$python") (once; takes up to a minute)"
        quietly make_venv "$python"
    fi
    for layer do
        ready "$layer" && continue
        [ "$layer" = runtime ] || say "installing the $layer dependencies"
        # While pip works, no layer counts; where it gives up by itself it has changed nothing, and the others do again.
        [ "$layer" = runtime ] || mv "$venv/.ready-runtime" "$venv/.held-runtime"
        (quietly install "$layer") || failed=$layer
        [ "$layer" = runtime ] || mv "$venv/.held-runtime" "$venv/.ready-runtime"
        [ -z "${failed:-}" ] || exit 1
        stamp >"$venv/.ready-$layer"
    done
    exec 9>&-
}
