#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"

namespace kintsugi {

// Why a rank is at fault for a failure.
enum class FaultKind : std::uint8_t {
  Unknown,  // nobody is known to be: no node is avoided
  Error,    // it reported an error of its own
  Lost,     // its process or its node is gone
  Hung      // it was silent, or did not make a call that other ranks wait for
};

// Who is at fault for a failure. Never a rank only because it waited and reported.
struct Blame {
  FaultKind fault = FaultKind::Unknown;
  std::vector<int> ranks = {};
  std::string node = {};  // of these ranks; empty: unknown, or several

  int rank() const { return ranks.empty() ? -1 : ranks.front(); }
  bool operator==(const Blame&) const = default;
};
// Those that hang, if there are any.
inline Blame hung_ranks(std::vector<int> ranks) {
  if (ranks.empty()) return {};
  return {.fault = FaultKind::Hung, .ranks = std::move(ranks)};
}

// A call between ranks failed or did not finish.
class CommunicationFailure : public Failure {
 public:
  CommunicationFailure(const std::string& text, Blame blame)
      : Failure(text), blame_(std::move(blame)) {}
  const Blame& blame() const { return blame_; }

 private:
  Blame blame_;
};

}  // namespace kintsugi
