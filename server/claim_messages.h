// Claims and their answers, cut into messages that a session takes however many clients they name.
#pragma once

#include <cstddef>
#include <vector>

#include "tributary/v1/client_service.pb.h"

namespace tributary::server {

// No message on a session is larger than 2 MiB; a parent ends the session of a child that sends
// one. So much of it may be ids, as they are encoded: what else is in the message has the rest.
inline constexpr size_t kMostIdsInMessage = (size_t{2} << 20) - 4096;
// What an id of n bytes, 16,383 at most, takes beside itself.
inline constexpr size_t kBesideAnId = 3;

// With the ids in their order, and in each all else that `claims` says. One where it names nobody.
std::vector<v1::Claims> InMessages(v1::Claims claims);
// With the ids of each list in their order, and the round in each. None where it names nobody.
std::vector<v1::ClaimsAnswer> InMessages(const v1::ClaimsAnswer& answer);

}  // namespace tributary::server
