#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/rank_failure.h"

namespace kintsugi {

class Backend;

// All ranks of the group call these functions. They use host memory.

// Returns the values of all ranks, indexed by rank.
template <class T>
std::vector<T> gather_values(Communicator& group, T own) {
  if (group.size() == 1) return {own};
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  group.wait(group.all_gather(Tensor(all.data(), DTypeOf<T>::value, {group.size()}),
                              Tensor(&own, DTypeOf<T>::value, {1})));
  return all;
}
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

// Named values that must be the same on all ranks: {"optimizer.lr", "0.001"}.
using Facts = std::vector<std::pair<std::string, std::string>>;

// All ranks of the group call it with their own facts. If the facts differ, all ranks throw the
// same SharedUserError, which names the ranks and facts that differ from the majority. Costs one
// all-reduce of two numbers if all agree; otherwise the texts of a few ranks are broadcast.
void check_agreement(Communicator& group, const Facts& local);

// Seconds to add to this rank's clock to get that of rank 0. 0 on the same host, which has one
// clock; otherwise measured with a few messages to rank 0, accurate to half the shortest round
// trip. All ranks call it, with a group for host memory. Only ranks for which `asks` returns true
// ask for it, all of them if it is empty; it must be the same function on all ranks.
double clock_offset(Communicator& group, const std::string& host,
                    const std::function<double()>& now, const std::function<bool(int)>& asks = {});

}  // namespace kintsugi
