# Sourced by the scripts beside it: goes to the root of the project and makes sure that it can be built.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A shell that was open before Rust was installed does not have it on its PATH yet.
if ! command -v cargo >/dev/null && [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi
if ! command -v cargo >/dev/null; then
    echo "${0##*/}: cargo is not on the PATH. Install Rust (https://rustup.rs), then run this again." >&2
    exit 1
fi
if ! command -v cc >/dev/null; then
    echo "${0##*/}: there is no C compiler, which Rust links with. On Debian: apt-get install gcc libc6-dev" >&2
    exit 1
fi

target_dir="${CARGO_TARGET_DIR:-target}"
