#pragma once

#include <string>
#include <vector>

#include "plan/search/csv.h"

namespace kintsugi {

// Whether the table has the columns of memory.csv: measured memory of one rank. A row has
// Megatron's arguments and torch's peak, or else the bytes of parameters and optimizer and of
// activations.
bool is_memory_table(const CsvTable& table);

struct MemoryPrediction {
  double peak = 0, states = 0, activations = 0;  // bytes
  std::string why = {};                          // why there is no prediction
};
MemoryPrediction predict_memory(const CsvTable& table, std::size_t row);

// The rows with the added columns predicted_bytes and predicted_why.
std::string evaluated_memory_csv(const CsvTable& table,
                                 const std::vector<MemoryPrediction>& predictions);
// Errors by dataset, and why rows were left out.
std::string memory_accuracy_table(const CsvTable& table,
                                  const std::vector<MemoryPrediction>& predictions);

}  // namespace kintsugi
