// Private to client/trainer: a trainer that tells the log what another one does.
#pragma once

#include <memory>
#include <string>

#include "client/client.h"

namespace tributary::client::trainer {

// One line a task and one an outcome; at level info, or debug where `quiet`.
std::unique_ptr<Trainer> MakeLoggingTrainer(std::string client_id, std::unique_ptr<Trainer> inner,
                                            bool quiet);

}  // namespace tributary::client::trainer
