#pragma once

#include <set>
#include <string>
#include <vector>

namespace YAML {
class Node;
}

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

// A value of an axis as given with --set, and a short name for it: "tp-2". `index` is its number in
// the axis, which stands for a value without a name.
std::string override_of(const std::string& key, const YAML::Node& value);
std::string label_for(const std::string& key, const YAML::Node& value, std::size_t index);
// Whether two keys set the same values: layout and layout.tp.
bool keys_overlap(const std::string& a, const std::string& b);
// The name of a directory: of labels, which are joined; unlike those of `names`, to which it is
// added.
std::string cell_name(const std::vector<std::string>& labels, std::set<std::string>& names);

// UserError if an override of the user sets what the matrix varies.
void check_overrides(const Matrix& matrix, const std::vector<std::string>& overrides);

}  // namespace kintsugi
