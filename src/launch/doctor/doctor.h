#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "comm/rank_failure.h"
#include "launch/doctor/judge.h"
#include "launch/doctor/measure.h"

namespace kintsugi {

// What is checked, on which scale. Every rank gives its own values of the first group.
struct DoctorOptions {
  std::string node;  // the name of this rank's node
  int threads = 1;
  std::string gpu = {};  // PCI id; empty: none

  bool share_gpu = false;
  DoctorLimits limits = {};
  ExpectedRates expected = {};
  DeviceLoad device = {};
  LinkLoad links = {};  // only with several ranks
  bool all_reduce = true;
  bool hosts = true;              // clocks, environment and libraries of GPUs
  std::string undriven_amd = {};  // why this program cannot use GPUs of AMD; empty: it can
  std::optional<std::string> network = {};  // of the library; empty: not known; none: not used
  std::string network_library = "NCCL";     // or RCCL
  bool allow_sockets = false;
  std::filesystem::path directory = {};  // or the part of it that exists; empty: not checked
  std::int64_t file_bytes = 4 << 20;
  double needed_bytes = 0, wanted_bytes = 0;  // of the next checkpoint, and of all of them
  double budget_s = 5;                        // links are not measured when it is used up
  double limit_s = 60;  // of one check on one rank; longer: on_hang ends the job
  std::function<void(const RankFailure&)> on_hang = {};
  std::filesystem::path root = "/";  // contains sys, dev and opt
  Environment environment = process_environment();
  SecondsClock now = steady_seconds;
};

// Facts and findings are on rank 0 only.
struct Diagnosis {
  std::vector<RankFacts> ranks;
  Findings findings;
  std::vector<std::pair<std::string, double>> seconds;  // by check

  std::size_t count(Severity severity) const;
  // The nodes at fault in errors, each once.
  std::vector<std::string> bad_nodes() const;
};

// All ranks call it. `devices` has the ranks of `hosts`, for tensors of the backend.
Diagnosis diagnose(World& hosts, World& devices, Backend& backend, const DoctorOptions& options);

// All ranks call it: if rank 0 has found errors, all throw the same SharedUserError (the first is a
// mistake of the user) or SharedFailure, with the text of the first error.
void refuse_errors(Communicator& group, const Diagnosis& diagnosis, const std::string& prefix);

// Adds the nodes at fault in errors to a ledger. Returns their names.
std::vector<std::string> exclude_bad_nodes(const Diagnosis& diagnosis, const NodeLedger& ledger,
                                           std::time_t now, double days);

// A table by node, the findings and one line with the verdict.
std::string report_text(const Diagnosis& diagnosis, const DoctorOptions& options);
std::string report_json(const Diagnosis& diagnosis);

}  // namespace kintsugi
