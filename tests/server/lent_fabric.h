// A fabric that a test keeps, for something that wants to own one.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "transport/link.h"

namespace tributary::server {

class LentFabric final : public transport::Fabric {
 public:
  explicit LentFabric(transport::Fabric* fabric) : fabric_(fabric) {}
  std::string_view name() const override { return fabric_->name(); }
  absl::StatusOr<std::unique_ptr<transport::Listener>> Listen(
      const std::string& address, const transport::LinkOptions& options) override {
    return fabric_->Listen(address, options);
  }
  absl::StatusOr<std::unique_ptr<transport::Link>> Connect(
      const std::string& address, const transport::LinkOptions& options) override {
    return fabric_->Connect(address, options);
  }

 private:
  transport::Fabric* fabric_;
};

}  // namespace tributary::server
