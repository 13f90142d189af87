#pragma once

#include "comm/communicator.h"

namespace kintsugi {

// What every implementation asks of the operands of a collective; Failure otherwise.
void check_contiguous(const Communicator& group, const char* collective, Tensor x);
// full holds group.size() times shard.
void check_parts(const Communicator& group, const char* collective, Tensor full, Tensor shard);
void check_rank(const Communicator& group, const char* collective, int rank);
// As check_rank, and not this rank itself.
void check_peer(const Communicator& group, const char* collective, int rank);

}  // namespace kintsugi
