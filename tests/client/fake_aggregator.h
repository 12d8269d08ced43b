// A scripted aggregator for the client's tests: typed (protobuf) gRPC, so that what the client
// writes by hand is read by somebody else's parser. It keeps what came and does what the test says.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "grpcpp/server.h"
#include "tributary/v1/client_service.grpc.pb.h"

namespace tributary::client::testing {

struct ReceivedUpload {
  v1::UploadHeader header;
  std::string segments;  // of all messages
  v1::UploadTrailer trailer;
  std::vector<size_t> message_segment_bytes;
  size_t messages = 0;
  bool whole = false;  // the trailer came
};

// What is to happen to an upload; each entry of the script serves one call, then ACCEPTED.
struct UploadScript {
  int break_after_messages = -1;  // ends the call with UNAVAILABLE after so many
  v1::UploadResponse::Status answer = v1::UploadResponse::ACCEPTED;
  std::string reason;
  uint64_t retry_after_ms = 0;
  std::function<void()> before_answer = {};
};

struct DownloadScript {
  enum Fault { kNone, kBadCrc, kBadBytes, kTooLong, kCutOff, kNotFound } fault = kNone;
};

class FakeAggregator final : public v1::Aggregator::Service {
 public:
  // Port 0: any. `setup` is called before the first client can come. Null credentials: no TLS.
  explicit FakeAggregator(int port = 0, const std::function<void(FakeAggregator&)>& setup = {},
                          std::shared_ptr<grpc::ServerCredentials> credentials = nullptr);
  ~FakeAggregator() override { Kill(); }
  int port() const { return port_; }
  std::string endpoint() const;
  // As if the process died: every call breaks off, the port closes.
  void Kill();

  // --- Script, before the client comes or while it is there.
  void SetModel(std::string bytes, uint64_t version = 0);
  // Who says that it holds the chain's base is sent the chain in place of the model.
  void SetSteps(v1::DeltaChain chain, std::string deltas);
  void SetJoined(v1::Joined joined);
  // Sent to every session right after Joined, as an aggregator does while a round is open.
  void SetOpenTask(v1::Task task);
  void ClearOpenTask();
  void AnswerJoinsWith(v1::SessionResponse response);  // instead of Joined, once
  void ScriptUpload(UploadScript script);
  // What an Inquiry is answered with; others than of these rounds: that nobody knows.
  void ScriptFate(uint64_t round, bool included);
  void AnswerInquiries(bool answer);  // or not at all
  void ScriptDownload(DownloadScript script);

  // --- Acts on the session that is up; waits for one.
  void Send(const v1::SessionResponse& message);
  void SendTask(const v1::Task& task);
  void SendOutcome(uint64_t round, bool included, const std::string& reason = "");
  void SendGrant(uint64_t round);
  void SendStop(v1::Stop::Kind kind, uint64_t retry_after_ms = 0);
  void DropSession();

  // --- What came. Wait returns false where a minute did not bring it: a watchdog, not a measure.
  bool Wait(
      const std::function<bool()>& condition);  // called with the lock held: use the members below
  std::vector<v1::Join> joins();
  std::vector<ReceivedUpload> uploads();
  std::vector<v1::Report> reports();
  std::vector<v1::Offer> offers();
  std::vector<uint64_t> inquiries();  // their rounds
  std::vector<v1::Heartbeat> heartbeats();
  std::vector<std::string> leaves();
  int downloads();
  std::vector<std::string> helds();  // what each download said was held
  bool WaitForJoins(size_t n);
  bool WaitForUploads(size_t n);  // whole ones and broken ones that have been answered
  bool WaitForReports(size_t n);
  bool WaitForOffers(size_t n);
  bool WaitForInquiries(size_t n);
  bool WaitForHeartbeats(size_t n, const std::string& phase);
  bool WaitForLeaves(size_t n);
  bool WaitForNoSession();
  std::set<std::string> peers();  // the connections that sessions came over

  // --- The service.
  using SessionStream = grpc::ServerReaderWriter<v1::SessionResponse, v1::SessionRequest>;
  grpc::Status Session(grpc::ServerContext* context, SessionStream* stream) override;
  grpc::Status Download(grpc::ServerContext* context, const v1::DownloadRequest* request,
                        grpc::ServerWriter<v1::DownloadResponse>* writer) override;
  grpc::Status Upload(grpc::ServerContext* context, grpc::ServerReader<v1::UploadRequest>* reader,
                      v1::UploadResponse* response) override;

 private:
  void Take(const v1::SessionRequest& request);  // mu_ held
  size_t CountHeartbeats(const std::string& phase) const;

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;

  std::mutex mu_;  // guards everything below
  std::condition_variable changed_;
  std::string model_;
  uint64_t model_version_ = 0;
  v1::DeltaChain chain_;
  std::string deltas_;
  std::vector<std::string> helds_;
  v1::Joined joined_;
  std::unique_ptr<v1::Task> open_task_;
  std::deque<v1::SessionResponse> join_answers_;
  std::deque<UploadScript> upload_scripts_;
  std::deque<DownloadScript> download_scripts_;
  SessionStream* stream_ = nullptr;
  grpc::ServerContext* context_ = nullptr;
  bool dead_ = false;
  std::vector<v1::Join> joins_;
  std::set<std::string> peers_;
  std::vector<ReceivedUpload> uploads_;
  std::vector<v1::Report> reports_;
  std::vector<v1::Offer> offers_;
  std::vector<uint64_t> inquiries_;
  std::map<uint64_t, bool> fates_;
  bool answers_inquiries_ = true;
  std::vector<v1::Heartbeat> heartbeats_;
  std::vector<std::string> leaves_;
  int downloads_ = 0;
};

}  // namespace tributary::client::testing
