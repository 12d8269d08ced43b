#!/usr/bin/env bash
# The ways of bench/socket_ways.cc between two network namespaces over veth, in turn, three times. Needs root.
# usage: bench/socket_ways.sh [BINARY] [MEGABYTES]
set -euo pipefail
binary=${1:-build/release/bin/socket_ways}
megabytes=${2:-2048}
a=ways-a-$$ b=ways-b-$$
said=$(mktemp)
cleanup() { rm -f "$said"; ip netns del "$a" 2>/dev/null || true; ip netns del "$b" 2>/dev/null || true; }
trap cleanup EXIT
ip netns add "$a"
ip netns add "$b"
ip link add veth0 netns "$a" type veth peer name veth0 netns "$b"
for end in "$a 1" "$b 2"; do
  read -r name number <<<"$end"
  ip -n "$name" addr add "10.99.0.$number/24" dev veth0
  ip -n "$name" link set veth0 mtu 9000 up
done
for turn in 1 2 3; do
  for way in plain zerocopy uring uring_zerocopy; do
    port=$((9100 + RANDOM % 20000))
    : >"$said"
    ip netns exec "$b" "$binary" receive 10.99.0.2 "$port" "${way%_zerocopy}" "$megabytes" >"$said" 2>&1 &
    receiver=$!
    until grep -q listening "$said"; do sleep 0.05; done
    ip netns exec "$a" "$binary" send 10.99.0.2 "$port" "$way" "$megabytes"
    wait "$receiver"
    grep side "$said"
  done
done
