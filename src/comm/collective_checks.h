#pragma once

#include "comm/communicator.h"

namespace kintsugi {

// Checks of the operands of a collective, used by all implementations. They throw Failure.
void check_contiguous(const Communicator& group, const char* collective, Tensor x);
// `full` must have group.size() times the elements of `shard`.
void check_parts(const Communicator& group, const char* collective, Tensor full, Tensor shard);
// `sent` and `received` must have as many elements as the counts say, and the counts one entry per
// rank.
void check_exchange(const Communicator& group, Tensor received, Tensor sent,
                    const ExchangeCounts& counts);
// The bytes that an exchange sends to other ranks.
std::size_t bytes_to_others(const Communicator& group, Tensor sent, const ExchangeCounts& counts);
void check_rank(const Communicator& group, const char* collective, int rank);
// Like check_rank; in addition, `rank` must not be this rank.
void check_peer(const Communicator& group, const char* collective, int rank);

}  // namespace kintsugi
