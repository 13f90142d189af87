#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// `matrix:` in a configuration: several runs that differ in some keys.
//
//   matrix:
//     model: [llama-tiny, gpt2-tiny]        # presets, or maps as under model:
//     layout.tp: [1, 2]
//
// Every combination of values is a cell, which is trained in its own directory below run.dir.
struct MatrixCell {
  std::string name = {};                    // of its directory; empty: there is no matrix
  std::vector<std::string> overrides = {};  // as given with --set
};

struct Matrix {
  std::string text = {};  // the configuration without `matrix`, with the same line numbers
  std::vector<std::string> keys = {};
  std::vector<MatrixCell> cells = {};  // one without a matrix
};

inline constexpr std::size_t kMostCells = 1000;

// UserError that names `source` and the line. Values are not checked: parse_run_config does.
Matrix read_matrix(const std::string& text, const std::string& source);

// UserError if an override of the user sets what the matrix varies.
void check_overrides(const Matrix& matrix, const std::vector<std::string>& overrides);

}  // namespace kintsugi
