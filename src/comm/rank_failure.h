#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace kintsugi {

// Why a run failed.
enum class FailureKind : std::uint8_t {
  Unknown,
  Mistake,      // of the user
  Error,        // that a rank reported itself
  DamagedFile,  // a file is missing, or is not as it was written
  Misread,      // a file is damaged only for some ranks: it is intact on another node
  Diverged,     // the weights are no longer usable
  Lost,         // a process or its node is gone
  Silent,       // a rank gives no sign of life
  Stuck         // a rank is alive, but does not make a call that others wait for
};
std::string_view to_string(FailureKind kind);  // as in status.json

struct Culprit {
  int rank = -1;
  std::string node = {};  // empty: unknown
  bool operator==(const Culprit&) const = default;
};

// What ended a run. It is made where a failure is noticed, and reaches the other ranks, the
// supervisor, the node ledger and the files of the run as it is. Only people read its text.
struct RankFailure {
  FailureKind kind = FailureKind::Unknown;
  // Those at fault; empty if they are unknown, or if it is no rank's fault. Never a rank only
  // because it waited and reported.
  std::vector<Culprit> culprits = {};
  std::string file = {};  // that is damaged
  std::string text = {};

  int exit_code() const;  // core/error.h
  int rank() const { return culprits.empty() ? -1 : culprits.front().rank; }
  std::string node() const;  // of all culprits; empty if it is unknown, or if there are several
  bool operator==(const RankFailure&) const = default;
};

// For another process. Long texts and lists of culprits are cut.
std::string to_message(const RankFailure& failure);
RankFailure failure_from_message(const std::string& message);

// Why a run stopped before its last step.
enum class StopCause : std::uint8_t { None, Signal, Request, File, WallTime };

// How a run ended, as rank 0 tells its supervisor.
struct RunEnd {
  int exit_code = exit_code::kFailure;
  RankFailure failure = {};
  StopCause stop = StopCause::None;
  bool operator==(const RunEnd&) const = default;
};

template <class Error>
class WithFailure : public Error {
 public:
  explicit WithFailure(RankFailure failure) : Error(failure.text), failure_(std::move(failure)) {}
  const RankFailure& failure() const { return failure_; }

 private:
  RankFailure failure_;
};

// A call between ranks failed or did not finish.
class CommunicationFailure : public WithFailure<Failure> {
 public:
  using WithFailure::WithFailure;
};

// Errors that all ranks throw together, so that no rank has to report them to the others.
class SharedUserError : public WithFailure<UserError> {
 public:
  using WithFailure::WithFailure;
  explicit SharedUserError(std::string text)
      : WithFailure({.kind = FailureKind::Mistake, .text = std::move(text)}) {}
};
class SharedFailure : public WithFailure<Failure> {
 public:
  using WithFailure::WithFailure;
  explicit SharedFailure(std::string text)
      : WithFailure({.kind = FailureKind::Error, .text = std::move(text)}) {}
};
// Throws the one that fits its exit code.
[[noreturn]] void throw_shared(RankFailure failure);

// The failure that an error carries, or else one of the rank `here`.
RankFailure failure_of(const std::exception& error, const Culprit& here);

}  // namespace kintsugi
