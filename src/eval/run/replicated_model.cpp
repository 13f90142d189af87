#include "eval/run/replicated_model.h"

#include <cstring>

#include "comm/exchange.h"
#include "core/error.h"

namespace kintsugi {
namespace {

// Results as bytes, between ranks of one program.
void append_result(std::string& bytes, const ContinuationScore& score) {
  char value[sizeof(double)];
  std::memcpy(value, &score.log_probability, sizeof value);
  bytes.append(value, sizeof value).push_back(score.is_greedy ? 1 : 0);
}
void append_result(std::string& bytes, const std::string& text) {
  const std::uint64_t size = text.size();
  char value[sizeof size];
  std::memcpy(value, &size, sizeof value);
  bytes.append(value, sizeof value).append(text);
}
void take_result(std::string_view& bytes, ContinuationScore& score) {
  std::memcpy(&score.log_probability, bytes.data(), sizeof(double));
  score.is_greedy = bytes[sizeof(double)] != 0;
  bytes.remove_prefix(sizeof(double) + 1);
}
void take_result(std::string_view& bytes, std::string& text) {
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  text = bytes.substr(sizeof size, size);
  bytes.remove_prefix(sizeof size + size);
}

template <class Result, class Request, class Cost, class Compute>
std::vector<Result> computed(Communicator& replicas, std::span<const Request> requests, Cost&& cost,
                             Compute&& compute, const ScoringProgress& progress) {
  const auto ranks = static_cast<std::size_t>(replicas.size());
  const ScoringProgress of_all = [&](std::size_t count) {
    if (progress) progress(count * ranks);  // the ranks advance alike
  };
  std::string bytes;
  together(replicas, [&] {
    const RequestRange range = range_of(requests.size(), replicas.rank(), replicas.size(), cost);
    if (range.begin == range.end) return;
    for (const Result& result :
         compute(requests.subspan(range.begin, range.end - range.begin), of_all))
      append_result(bytes, result);
  });
  std::vector<Result> results;
  for (const std::string& part : gather_texts(replicas, bytes))
    for (std::string_view left = part; !left.empty();) take_result(left, results.emplace_back());
  KINTSUGI_CHECK(results.size() == requests.size(), "{} results of {} requests", results.size(),
                 requests.size());
  return results;
}

}  // namespace

std::vector<ContinuationScore> ReplicatedModel::score(std::span<const TokenPair> pairs,
                                                      const ScoringProgress& progress) {
  return computed<ContinuationScore>(
      replicas_, pairs,
      [&](std::size_t i) { return pairs[i].context.size() + pairs[i].continuation.size(); },
      [&](auto some, const ScoringProgress& count) { return own_.score(some, count); }, progress);
}

std::vector<std::string> ReplicatedModel::generate(std::span<const TextRequest> requests,
                                                   const ScoringProgress& progress) {
  return computed<std::string>(
      replicas_, requests,
      [&](std::size_t i) {
        return requests[i].prompt.size() +
               static_cast<std::size_t>(requests[i].options.max_gen_toks);
      },
      [&](auto some, const ScoringProgress& count) { return own_.generate(some, count); },
      progress);
}

}  // namespace kintsugi
