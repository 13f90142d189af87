#include "comm/collective_checks.h"

#include <numeric>

namespace kintsugi {

void check_contiguous(const Communicator& group, const char* collective, Tensor x) {
  KINTSUGI_CHECK(x.contiguous(), "{} in group {}: a tensor {} is not contiguous", collective,
                 group.name(), to_string(x.shape()));
}

void check_parts(const Communicator& group, const char* collective, Tensor full, Tensor shard) {
  check_contiguous(group, collective, full);
  check_contiguous(group, collective, shard);
  KINTSUGI_CHECK(full.dtype() == shard.dtype(), "{} in group {}: full is {}, but shard is {}",
                 collective, group.name(), to_string(full.dtype()), to_string(shard.dtype()));
  KINTSUGI_CHECK(full.elements() == shard.elements() * group.size(),
                 "{} in group {}: {} elements are not {} shards of {}", collective, group.name(),
                 full.elements(), group.size(), shard.elements());
}

void check_exchange(const Communicator& group, Tensor received, Tensor sent,
                    const ExchangeCounts& counts) {
  check_contiguous(group, "all_to_all", received);
  check_contiguous(group, "all_to_all", sent);
  KINTSUGI_CHECK(received.dtype() == sent.dtype(), "all_to_all in group {}: {} is received as {}",
                 group.name(), to_string(sent.dtype()), to_string(received.dtype()));
  const auto check = [&](const char* what, const std::vector<std::int64_t>& by_rank, Tensor x) {
    const std::int64_t sum = std::accumulate(by_rank.begin(), by_rank.end(), std::int64_t{0});
    KINTSUGI_CHECK(static_cast<int>(by_rank.size()) == group.size() && sum == x.elements(),
                   "all_to_all in group {}: {} elements are {}, the counts of {} ranks say {}",
                   group.name(), x.elements(), what, by_rank.size(), sum);
  };
  check("received", counts.received, received);
  check("sent", counts.sent, sent);
}

std::size_t bytes_to_others(const Communicator& group, Tensor sent, const ExchangeCounts& counts) {
  return sent.bytes() -
         static_cast<std::size_t>(counts.sent[static_cast<std::size_t>(group.rank())]) *
             size_of(sent.dtype());
}

void check_rank(const Communicator& group, const char* collective, int rank) {
  KINTSUGI_CHECK(rank >= 0 && rank < group.size(),
                 "{} in group {}: there is no rank {}, the group has {}", collective, group.name(),
                 rank, group.size());
}

void check_peer(const Communicator& group, const char* collective, int rank) {
  check_rank(group, collective, rank);
  KINTSUGI_CHECK(rank != group.rank(), "{} in group {}: rank {} is the caller itself", collective,
                 group.name(), rank);
}

}  // namespace kintsugi
