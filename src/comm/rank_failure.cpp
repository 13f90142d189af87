#include "comm/rank_failure.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace kintsugi {
namespace {

// A message fits in one frame of a socket (64 KiB).
constexpr std::size_t kMostTextBytes = 8 << 10, kMostCulprits = 1000;

constexpr std::array<std::string_view, 9> kKinds = {"unknown",      "mistake",      "error",
                                                    "damaged file", "misread file", "diverged",
                                                    "lost",         "silent",       "stuck"};

}  // namespace

std::string_view to_string(FailureKind kind) { return kKinds.at(static_cast<std::size_t>(kind)); }

int RankFailure::exit_code() const {
  switch (kind) {
    case FailureKind::Mistake:
    case FailureKind::DamagedFile:
      return exit_code::kMistake;
    case FailureKind::Diverged:
      return exit_code::kDiverged;
    default:
      return exit_code::kFailure;
  }
}

std::string RankFailure::node() const {
  const bool one = std::ranges::all_of(
      culprits, [this](const Culprit& culprit) { return culprit.node == culprits.front().node; });
  return one && !culprits.empty() ? culprits.front().node : "";
}

std::string to_message(const RankFailure& failure) {
  nlohmann::json json{{"kind", static_cast<int>(failure.kind)},
                      {"ranks", nlohmann::json::array()},
                      {"nodes", nlohmann::json::array()},
                      {"file", failure.file},
                      {"text", failure.text.substr(0, kMostTextBytes)}};
  for (std::size_t i = 0; i < std::min(failure.culprits.size(), kMostCulprits); ++i) {
    json["ranks"].push_back(failure.culprits[i].rank);
    json["nodes"].push_back(failure.culprits[i].node);
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankFailure failure_from_message(const std::string& message) {
  const nlohmann::json json = nlohmann::json::parse(message, nullptr, false);
  if (!json.is_object()) return {.text = message};
  RankFailure failure{.kind = static_cast<FailureKind>(json.at("kind").get<int>()),
                      .file = json.at("file"),
                      .text = json.at("text")};
  const nlohmann::json &ranks = json.at("ranks"), &nodes = json.at("nodes");
  for (std::size_t i = 0; i < ranks.size(); ++i)
    failure.culprits.push_back({.rank = ranks[i], .node = nodes.at(i)});
  return failure;
}

void throw_shared(RankFailure failure) {
  if (failure.exit_code() == exit_code::kMistake) throw SharedUserError(std::move(failure));
  throw SharedFailure(std::move(failure));
}

RankFailure failure_of(const std::exception& error, const Culprit& here) {
  if (const auto* known = dynamic_cast<const WithFailure<Failure>*>(&error))
    return known->failure();
  if (const auto* known = dynamic_cast<const WithFailure<UserError>*>(&error))
    return known->failure();
  RankFailure failure{.kind = FailureKind::Error, .culprits = {here}, .text = error.what()};
  if (dynamic_cast<const UserError*>(&error) != nullptr) failure.kind = FailureKind::Mistake;
  if (const auto* damaged = dynamic_cast<const DamagedFile*>(&error)) {
    failure.kind = FailureKind::DamagedFile;
    failure.file = damaged->file();
  }
  return failure;
}

}  // namespace kintsugi
