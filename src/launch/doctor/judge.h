#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/doctor/facts.h"
#include "launch/node_ledger.h"

namespace kintsugi {

// Verdicts over the facts of all ranks: pure functions.

enum class Severity : std::uint8_t { Note, Warning, Error };
std::string_view to_string(Severity severity);

struct Finding {
  Severity severity = Severity::Note;
  std::string check = {};               // "binding", "device", "links", …
  std::string text = {};                // one line with rank, node and remedy
  std::vector<std::string> nodes = {};  // those at fault, which jobs should avoid; often none
  NodeTrouble kind = NodeTrouble::Sick;
  bool mistake = false;         // of the user: another attempt fails in the same way
  std::vector<int> ranks = {};  // that it names; often none
};
using Findings = std::vector<Finding>;

struct DoctorLimits {
  double slow = 0.85;        // of the others' rate: below it a warning
  double failed = 0.85;      // of the others' rate: below it an error
  double machine = 0.5;      // of the rates in the machine description: below it a warning
  double free_memory = 0.9;  // of the others' free GPU memory: below it a warning
  double clock_s = 1;        // offset of clocks: above it a warning
};

// What a machine description promises, per rank; 0: nothing.
struct ExpectedRates {
  double flops_per_s = 0;
  double node_bytes_per_s = 0, network_bytes_per_s = 0;
  bool equal_links = true;  // all pairs of GPUs in a node have the same link
};

// Facts are in rank order.
Findings judge_binding(const std::vector<RankFacts>& ranks, bool share_gpu);
Findings judge_devices(const std::vector<RankFacts>& ranks, const DoctorLimits& limits,
                       const ExpectedRates& expected);
Findings judge_links(const std::vector<RankFacts>& ranks, const DoctorLimits& limits,
                     const ExpectedRates& expected);
// `needed_bytes`: of the next checkpoint; `wanted_bytes`: of all that the run will keep.
Findings judge_directory(const std::vector<RankFacts>& ranks, const std::string& directory,
                         double needed_bytes, double wanted_bytes);
Findings judge_hosts(const std::vector<RankFacts>& ranks, const DoctorLimits& limits);
// `undriven`: why this program cannot use GPUs of AMD; empty: it can, or need not.
Findings judge_amd(const std::vector<RankFacts>& ranks, const std::string& undriven);
// `network`: what `library` (NCCL or RCCL) uses between nodes; empty: it does not say.
Findings judge_network(const std::optional<std::string>& network, bool allow_sockets,
                       const std::string& library = "NCCL");

// Whether the ranks of this rank's node have more threads than cores: their rates say nothing.
bool oversubscribed(const std::vector<RankFacts>& ranks, const std::string& node);

}  // namespace kintsugi
