#!/usr/bin/env bash
# Each public header compiles alone, and nobody includes a neighbour's private folder.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
build=${1:-build/release}
failed=0
flags=(-std=c++20 -fsyntax-only -I. -isystem "$build/proto" -DHWY_COMPILE_ALL_ATTAINABLE
  -DSPDLOG_SHARED_LIB -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL)
for header in $(git ls-files 'base/*.h' 'compression/*.h' 'aggregation/*.h' 'transport/*.h' 'models/*.h' \
  'server/*.h' 'client/*.h' 'bench/*.h' 'doctor/*.h' | grep -vE '^[a-z]+/(internal|tcp|sim|door|cli|trainer)/'); do
  if ! printf '#include "%s"\n' "$header" | g++ "${flags[@]}" -x c++ -; then
    echo "$header does not compile alone"
    failed=1
  fi
done
for private in compression/internal aggregation/internal transport/internal transport/tcp/ transport/sim/ server/door client/internal doctor/internal; do
  owner=${private%%/*}
  if git grep -nE "#include \"$private" -- '*.h' '*.cc' | grep -vE "^(tests/)?$owner/"; then
    echo "$private is private to $owner/"
    failed=1
  fi
done
exit "$failed"
