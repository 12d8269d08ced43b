// Completion statuses and their hints.
#include "transport/roce/completion_error.h"

#include "absl/strings/str_cat.h"

namespace tributary::transport::roce {

absl::string_view HintFor(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:  // 12
      return "nothing was acknowledged: the peer or the path is gone, the path drops large packets "
             "(MTU) or whole bursts (PFC, ECN), UDP port 4791 is filtered, or the GID is of "
             "another "
             "network";
    case IBV_WC_REM_ACCESS_ERR:  // 10
      return "the peer's device refused the remote key or the address: the two sides disagree "
             "about "
             "slots";
    case IBV_WC_RNR_RETRY_EXC_ERR:  // 13
      return "the peer had no receive request posted: it breaks the link protocol or is overrun";
    case IBV_WC_LOC_PROT_ERR:  // 4
      return "our device refused our own local key or address";
    case IBV_WC_LOC_LEN_ERR:  // 1
      return "a message was longer than the receiver's request or the port's limit";
    case IBV_WC_LOC_QP_OP_ERR:  // 2
      return "our device found the request or the queue pair inconsistent";
    case IBV_WC_REM_INV_REQ_ERR:  // 9
      return "the peer's device found the request invalid: are its access flags and depths as "
             "agreed?";
    case IBV_WC_REM_OP_ERR:  // 11
      return "the peer's device failed in carrying the request out";
    case IBV_WC_WR_FLUSH_ERR:  // 5
      return "the queue pair had gone to its error state before";
    default:
      return "";
  }
}

absl::Status CompletionError(VerbsApi& api, absl::string_view peer, const QueuePair& pair,
                             const ibv_wc& completion) {
  const absl::string_view hint = HintFor(completion.status);
  return absl::UnavailableError(absl::StrCat(
      peer, ", queue pair ", pair.index(), " (", pair.number(), " to ", pair.peer_number(), "): a ",
      QueuePair::IsReceive(completion.wr_id) ? "receive" : "send", " failed: ",
      api.WcStatusText(completion.status), " (status ", static_cast<int>(completion.status),
      ", vendor ", completion.vendor_err, ")", hint.empty() ? "" : "; ", hint));
}

}  // namespace tributary::transport::roce
