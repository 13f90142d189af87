#include "plan/costs/loading.h"

#include <algorithm>

namespace kintsugi {

double loading_s(const PlanJob& job, const Layout& l, const Machine& machine) {
  // Every rank reads the sequences of its data rank; a node reads shared sequences once.
  const double gpus = static_cast<double>(machine.node.gpus);
  const double nodes = std::max(1.0, l.ranks() / gpus);
  const double data_ranks = std::clamp(gpus / (l.tp * l.cp), 1.0, static_cast<double>(l.dp));
  const double per_node = job.tokens() * data_ranks / l.dp;
  // The width of tokens in a token store.
  const double token_bytes = job.model.vocab_size <= 65536 ? 2 : 4;
  double seconds = 0;
  if (machine.storage_gb_s > 0)
    seconds = nodes * per_node * token_bytes / (machine.storage_gb_s * 1e9);
  if (machine.node.loader_mtokens_s > 0)
    seconds = std::max(seconds, per_node / (machine.node.loader_mtokens_s * 1e6));
  return seconds;
}

}  // namespace kintsugi
