#!/usr/bin/env bash
# Each public header compiles alone: those directly in a folder, and client/trainer's that need no
# LibTorch.
#   tests/lint/headers.sh [BUILD]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
build=${1:-build/release}
export flags="-std=c++20 -fsyntax-only -I. -isystem $build/proto -DHWY_COMPILE_ALL_ATTAINABLE"
flags+=" -DSPDLOG_SHARED_LIB -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL"
alone() {
  printf '#include "%s"\n' "$1" | g++ $flags -x c++ - || {
    echo "$1 does not compile alone"
    return 1
  }
}
export -f alone
git ls-files '*/*.h' 'client/trainer/*.h' | grep -E '^(base|compression|aggregation|transport|models|server|client|bench|doctor|simulate)/([^/]+|trainer/[^/]+)$' |
  # grep says 1 where it leaves none out: no fault, and without this the script ended in silence.
  { xargs grep -LE '<torch/|client/trainer/internal/(network|weights|local_sgd)|client/trainer/trainer.h' || true; } |
  sort -u | xargs -P "$(nproc)" -I{} bash -c 'alone {}'
