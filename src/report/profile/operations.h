#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/profile/profile.h"

namespace kintsugi {

// All calls of one name. Figures are per step and rank.
struct OperationTotal {
  std::string name = {};
  WorkKind work = WorkKind::Unknown;
  std::string dtype = {};
  double calls = 0;
  double seconds = 0;  // of the device
  double flops = 0;
  double bytes = 0;
  std::map<std::string, double> phases = {};  // seconds by kind of phase: "forward"

  std::string main_phase() const;  // the one with most time; empty: none is known
  double flops_per_s() const { return seconds > 0 ? flops / seconds : 0; }
  double bytes_per_s() const { return seconds > 0 ? bytes / seconds : 0; }
  double intensity() const { return bytes > 0 ? flops / bytes : 0; }  // FLOP per byte
};

// The highest rate of an operation on the device: FLOP/s of a matmul or an attention, which is the
// smaller of its peak and its memory bandwidth x the intensity; otherwise bytes/s. 0: not known.
double attainable(const OperationTotal& operation, const ProfileFacts& facts);
// The achieved rate divided by the attainable one. 0: not known.
double efficiency(const OperationTotal& operation, const ProfileFacts& facts);

// All operations of one layer, of another part of the model, or of one kind of phase.
struct PartTotal {
  std::string name = {};  // "embedding", "layer 3", "head", "forward"; empty: outside of all
  double calls = 0;
  double seconds = 0;
  std::map<std::string, double> phases = {};  // of a layer
};

struct OperationTotals {
  std::vector<OperationTotal> operations;  // longest first
  std::vector<PartTotal> layers;           // in order of the model
  std::vector<PartTotal> phases;           // longest first

  double seconds() const;
};

// Sums the operations of all steps by name. The time of an operation is that of its kernels and
// copies where they are known. Kernels and copies of no operation are listed with their own names.
OperationTotals operation_totals(const Profile& profile);

// "forward" of "forward 3"
std::string phase_kind(const std::string& phase);

}  // namespace kintsugi
