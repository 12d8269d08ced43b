#!/usr/bin/env bash
# The include check itself: passes this tree, and finds what it is there to find.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
"$here/includes.sh"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
put() {  # FILE INCLUDED
  mkdir -p "$tree/$(dirname "$1")"
  echo "#include \"$2\"" >>"$tree/$1"
}
mkdir -p "$tree"/{base,compression,aggregation,transport,models,server,client/trainer,bench,doctor,simulate,tests/server}
put server/good.cc transport/link.h
put server/good.cc server/door/framing.h
put server/cli/main.cc bench/commands.h
put server/cli/main.cc doctor/doctor.h
put server/cli/main.cc simulate/report.h
put client/trainer/internal/good.cc simulate/clients.h
put doctor/good.cc transport/rdma/gid.h
put tests/server/good_test.cc server/door/framing.h
put client/trainer/internal/good.cc client/trainer/config.h
"$here/includes.sh" "$tree" || { echo "good includes are refused"; exit 1; }

expect() {  # FILE INCLUDED MESSAGE
  put "$1" "$2"
  local out
  if out=$("$here/includes.sh" "$tree"); then
    echo "$1 may include $2"
    exit 1
  fi
  [[ $out == *"$1:"*"$3"* ]] || { echo "expected \"$3\", got: $out"; exit 1; }
  rm "$tree/$1"
}
expect server/bad.cc transport/tcp/core.h "transport/tcp/core.h is private to transport/"
expect server/bad.cc compression/internal/half-inl.h "is private to compression/"
expect tests/server/bad_test.cc aggregation/internal/block_pack.h "is private to aggregation/"
expect bench/bad.cc client/trainer/trainer.h "is private to client/trainer/"
expect client/bad.cc client/trainer/internal/weights.h "is private to client/trainer/"
expect client/bad.cc simulate/clients.h "client/ may not include simulate/clients.h"
expect server/bad.cc simulate/config.h "server/ may not include simulate/config.h"
expect aggregation/bad.cc server/config.h "aggregation/ may not include server/config.h"
expect transport/bad.cc aggregation/round.h "transport/ may not include aggregation/round.h"
expect compression/bad.cc transport/rdma/gid.h "compression/ may not include transport/rdma/gid.h"
expect server/bad.cc bench/commands.h "server/ may not include bench/commands.h"
