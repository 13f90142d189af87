#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_failure.h"

namespace kintsugi {

class Backend;

// All ranks of the group call these functions. They use host memory.

// Returns the texts of all ranks, indexed by rank. Every rank stores all of them, so use it for
// short texts only.
std::vector<std::string> gather_texts(Communicator& group, const std::string& local);
// Returns the texts of all ranks on rank 0, and nothing on the other ranks.
std::vector<std::string> texts_at_first(Communicator& group, const std::string& local);
// Broadcasts the text of `root`.
std::string text_of(Communicator& group, int root, const std::string& text);

// The counts of an all_to_all that are known in the memory of `backend` only. `sent` (I64) has the
// number of elements for each rank. Writes to `received` how many come from each rank. The host
// waits for both.
ExchangeCounts exchange_counts(Communicator& group, Backend& backend, Tensor received, Tensor sent);

// Runs `work` on all ranks. If it throws on any rank, all ranks throw the error of the lowest such
// rank (throw_shared), so no rank continues alone. The ranks that threw the same error are its
// culprits and are named in its text, unless all did. `work` must not call collectives, because a
// rank that threw would not take part. Costs one all-reduce of one number if nothing throws.
void together(Communicator& group, const std::function<void()>& work);

}  // namespace kintsugi
