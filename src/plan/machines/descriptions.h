#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/yaml_reader.h"

namespace kintsugi {

// A file of machines/ or uncertainty/, compiled in by cmake/embed_presets.cmake.
struct EmbeddedDescription {
  std::string name;
  std::string yaml;
};
using Descriptions = std::vector<EmbeddedDescription>;
const Descriptions& embedded_machines();
const Descriptions& embedded_intervals();

std::vector<std::string> names_of(const Descriptions& descriptions);

// Reads a described struct from a whole document.
template <Described T>
void read_document(const YamlDocument& document, T& value) {
  YamlKeys keys;
  describe(keys, value);
  YamlReader(document, keys.keys()).read(value);
}

// A built-in description or a file, and what to call it in messages. UserError if there is none;
// `hint` says which command lists the built-in ones.
struct DescriptionText {
  std::string yaml;
  std::string source;  // "machine lumi-g", or the file
};
DescriptionText find_description(const std::string& kind, const Descriptions& built_in,
                                 const std::string& name_or_path, const std::string& hint);
// The user's file of keys that replace those of built-in machines: KINTSUGI_MACHINES, or
// kintsugi/machines.yaml in XDG_CONFIG_HOME (~/.config). nullopt if there is none; UserError if
// KINTSUGI_MACHINES names none.
std::optional<DescriptionText> site_machines();
inline constexpr const char* kMachineHint = "kintsugi plan machines lists the built-in machines";

}  // namespace kintsugi
