// A failed completion in words: what failed, where, and where to look first.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "transport/roce/queue_pair.h"
#include "transport/roce/verbs_api.h"

namespace tributary::transport::roce {

// What is most often behind a status, for the one who reads the log. Empty where nothing is known.
absl::string_view HintFor(ibv_wc_status status);

// UNAVAILABLE; names `peer` (as messages do: peer "rack0" (10.0.0.5:7071)) and the queue pair.
absl::Status CompletionError(VerbsApi& api, absl::string_view peer, const QueuePair& pair,
                             const ibv_wc& completion);

}  // namespace tributary::transport::roce
