#include "comm/exchange.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "backend/backend.h"

namespace kintsugi {

std::vector<std::string> gather_texts(Communicator& group, const std::string& local) {
  if (group.size() == 1) return {local};
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<std::int64_t> lengths(ranks);
  std::int64_t length = static_cast<std::int64_t>(local.size());
  group.wait(group.all_gather(Tensor(lengths.data(), DType::I64, {group.size()}),
                              Tensor(&length, DType::I64, {1})));
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::vector<std::string> texts(ranks);
  if (longest == 0) return texts;
  std::string padded = local, all(static_cast<std::size_t>(longest) * ranks, '\0');
  padded.resize(static_cast<std::size_t>(longest));
  group.wait(group.all_gather(Tensor(all.data(), DType::U8, {longest * group.size()}),
                              Tensor(padded.data(), DType::U8, {longest})));
  for (std::size_t rank = 0; rank < ranks; ++rank)
    texts[rank] = all.substr(rank * static_cast<std::size_t>(longest),
                             static_cast<std::size_t>(lengths[rank]));
  return texts;
}

std::vector<std::string> texts_at_first(Communicator& group, const std::string& local) {
  if (group.size() == 1) return {local};
  const auto ranks = static_cast<std::size_t>(group.size());
  const bool first = group.rank() == 0;
  ExchangeCounts counts{.sent = std::vector<std::int64_t>(ranks),
                        .received = std::vector<std::int64_t>(ranks)};
  std::vector<std::int64_t> lengths(ranks);
  counts.sent[0] = static_cast<std::int64_t>(local.size());
  group.wait(group.all_gather(Tensor(lengths.data(), DType::I64, {group.size()}),
                              Tensor(counts.sent.data(), DType::I64, {1})));
  if (first) counts.received = lengths;
  const std::int64_t total =
      std::accumulate(counts.received.begin(), counts.received.end(), std::int64_t{0});
  std::string sent = local + '\0', all(static_cast<std::size_t>(total) + 1, '\0');
  group.wait(group.all_to_all(Tensor(all.data(), DType::U8, {total}),
                              Tensor(sent.data(), DType::U8, {counts.sent[0]}), counts));
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (std::size_t rank = 0; first && rank < ranks; ++rank) {
    texts.push_back(all.substr(begin, static_cast<std::size_t>(lengths[rank])));
    begin += static_cast<std::size_t>(lengths[rank]);
  }
  return texts;
}

std::string text_of(Communicator& group, int root, const std::string& text) {
  if (group.size() == 1) return text;
  std::int64_t length = static_cast<std::int64_t>(text.size());
  group.wait(group.broadcast(Tensor(&length, DType::I64, {1}), root));
  std::string result = group.rank() == root ? text : std::string();
  result.resize(static_cast<std::size_t>(length));
  if (length > 0) group.wait(group.broadcast(Tensor(result.data(), DType::U8, {length}), root));
  return result;
}

ExchangeCounts exchange_counts(Communicator& group, Backend& backend, Tensor received,
                               Tensor sent) {
  group.wait(group.all_to_all(received, sent));
  const auto ranks = static_cast<std::size_t>(group.size());
  ExchangeCounts counts{.sent = std::vector<std::int64_t>(ranks),
                        .received = std::vector<std::int64_t>(ranks)};
  backend.download(counts.sent.data(), sent);
  backend.download(counts.received.data(), received);
  return counts;
}

namespace {

// The failure that `work` ends with, as a message; empty on success.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    return to_message(failure_of(error, {}));
  }
  return "";
}

}  // namespace

void together(Communicator& group, const std::function<void()>& work) {
  const std::string error = error_of(work);
  const std::int64_t size = group.size();
  std::int64_t highest = error.empty() ? 0 : size - group.rank();
  group.wait(group.all_reduce(Tensor(&highest, DType::I64, {1}), ReduceOp::Max));
  if (highest == 0) return;
  const auto first = static_cast<int>(size - highest);  // the lowest rank that threw
  const std::string shared = text_of(group, first, error);
  std::int64_t own = error == shared ? 1 : 0;
  std::vector<std::int64_t> alike(static_cast<std::size_t>(size));
  group.wait(
      group.all_gather(Tensor(alike.data(), DType::I64, {size}), Tensor(&own, DType::I64, {1})));
  const std::int64_t count = std::accumulate(alike.begin(), alike.end(), std::int64_t{0});
  RankFailure failure = failure_from_message(shared);
  if (failure.rank() < 0) {  // of the ranks that threw it
    failure.culprits.clear();
    for (int rank = 0; count < size && rank < size; ++rank)
      if (alike[static_cast<std::size_t>(rank)] == 1) failure.culprits.push_back({.rank = rank});
  }
  if (count < size)
    failure.text =
        fmt::format("rank {}{}: {}", first,
                    count == 1 ? "" : fmt::format(" and {} more", count - 1), failure.text);
  throw_shared(std::move(failure));
}

}  // namespace kintsugi
