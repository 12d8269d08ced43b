#!/usr/bin/env bash
# Includes follow the folders: a folder's sub-folders are private to it, and arrows go downward only.
# client/trainer is a folder of its own, transport/rdma (what a machine's devices are) open to all that
# stand above transport/. Reads text, compiles nothing.
#   tests/lint/includes.sh [TREE]
set -euo pipefail
cd "${1:-$(dirname "$(readlink -f "$0")")/../..}"

# What each folder may include beside itself and proto/. server/cli alone may use bench/, doctor/
# and simulate/, whose commands it offers.
declare -A below=(
  [base]=""
  [compression]="base"
  [aggregation]="base compression"
  [transport]="base"
  [models]="base aggregation"
  [client]="base compression aggregation models"
  [simulate]="base aggregation transport"
  [bench]="base compression aggregation transport models client simulate"
  [server]="base compression aggregation transport models"
  [doctor]="base server transport"
)
failed=0
complain() {
  echo "$1: $2"
  failed=1
}

while IFS=: read -r file line text; do
  included=${text#*\"}
  included=${included%%\"*}
  [[ $included == */* ]] || continue
  owner=${included%%/*} includer=${file%%/*}
  place=${included%/*} own=${file%/*}
  [[ $includer == tests ]] && own=${own#tests/} && includer=${own%%/*}
  [[ $file == tests/rdma_vm/* ]] && own=transport  # its tests on two emulated hosts
  # Private: all below a top folder, but client/trainer's own headers within client/trainer.
  home=$owner
  [[ $place == client/trainer* ]] && home=client/trainer
  [[ $place == transport/rdma ]] && home=$place
  if [[ -n ${below[$owner]+known} && $place != "$home" || $place == client/trainer ]]; then
    [[ $own/ == "$home"/* ]] || complain "$file:$line" "$included is private to $home/"
  fi
  [[ $file == tests/* || -z ${below[$owner]+known} || $owner == "$includer" ]] && continue
  [[ $own == server/cli && " bench doctor simulate " == *" $owner "* ]] && continue
  [[ $own == client/trainer* && $owner == simulate ]] && continue  # training in virtual time
  [[ " ${below[$includer]:-} " == *" $owner "* ]] || complain "$file:$line" "$includer/ may not include $included"
done < <(grep -rnE '^#include "' --include='*.h' --include='*.cc' "${!below[@]}" tests 2>/dev/null)
exit "$failed"
