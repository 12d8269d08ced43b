// How the MTU of a network device bounds the path MTU of RoCE on it.
#pragma once

#include <cstdint>

namespace tributary::transport::rdma {

// What the kernel takes off a frame before it chooses a path MTU (iboe_get_mtu): GRH 40 + UDP 8 +
// BTH 12 + XRC 4 + AtomicETH 28 + ICRC 4.
inline constexpr uint32_t kRoceHeaderBytes = 96;

// The largest of 256, 512, 1024, 2048, 4096 that fits; 0 where none does. Drivers may fit one
// larger, since few packets carry all these headers; none should do with less.
constexpr uint32_t RoceMtuFor(uint32_t netdev_mtu) {
  uint32_t best = 0;
  for (uint32_t mtu = 256; mtu <= 4096; mtu *= 2) {
    if (mtu + kRoceHeaderBytes <= netdev_mtu) best = mtu;
  }
  return best;
}

// The least MTU that a network device needs for a path MTU.
constexpr uint32_t NetdevMtuFor(uint32_t roce_mtu) { return roce_mtu + kRoceHeaderBytes; }

}  // namespace tributary::transport::rdma
