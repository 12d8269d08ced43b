#!/usr/bin/env bash
# clang-tidy over sources (given, or all but tests); fails where it finds something, or cannot read a
# file, and names it. What passed is looked at again only once something it depends on has changed.
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
    xargs grep -LE '"client/trainer/(trainer|internal/(correction|network|weights|local_sgd|small_networks|resnet|script_network|fleet|logging_trainer))\.h')
fi
# Without GCC's precompiled headers, which clang cannot read.
mkdir -p "$build/lint"
sed -E 's/ -Winvalid-pch -include [^ "]+//; s/ -fpch-preprocess//' "$build/compile_commands.json" \
  >"$build/lint/compile_commands.json"
exec /usr/bin/python3 -B tests/lint/tidy.py "$build/lint" "$build/lint/passed" "${files[@]}"
