#include "comm/collective_checks.h"

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
