#!/usr/bin/env bash
# clang-tidy over sources (given, or all but tests); fails where it finds something, or cannot read a
# file.
#   tests/lint/tidy.sh [--build DIR] [FILE...]
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
build=build/release
if [[ ${1:-} == --build ]]; then
  build=$2
  shift 2
fi
files=("$@")
if ((${#files[@]} == 0)); then
  # Not what includes LibTorch's headers: a minute each, and all findings are in them.
  mapfile -t files < <(git ls-files 'base/*.cc' 'compression/*.cc' 'aggregation/*.cc' 'transport/*.cc' \
    'models/*.cc' 'server/*.cc' 'client/*.cc' 'bench/*.cc' 'doctor/*.cc' 'simulate/*.cc' |
    xargs grep -LE '"client/trainer/(trainer|internal/(network|weights|local_sgd|small_networks|resnet|script_network|fleet|logging_trainer))\.h')
fi
# Without GCC's precompiled headers, which clang cannot read.
mkdir -p "$build/lint"
sed -E 's/ -Winvalid-pch -include [^ "]+//; s/ -fpch-preprocess//' "$build/compile_commands.json" \
  >"$build/lint/compile_commands.json"
# xargs fails where one of its commands did. Only the count of suppressed warnings goes.
printf '%s\0' "${files[@]}" |
  xargs -0 -P "$(nproc)" -n 2 clang-tidy -p "$build/lint" --quiet 2> >(grep -v 'warnings.* generated' >&2 || true)
