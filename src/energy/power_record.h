#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kintsugi {

// A file of this node that exists while a GPU has a power limit of ours: if the process is killed,
// the next one restores the former limit. Watts.
struct PowerRecord {
  double former_w = 0;
  double present_w = 0, next_w = 0;  // before and after the last change
};

// tmp/kintsugi-power-UID-PCI below the root.
std::filesystem::path power_record_file(const std::filesystem::path& root, const std::string& pci);

// Empty if there is none, or if the file is not a record that this user wrote.
std::optional<PowerRecord> read_power_record(const std::filesystem::path& file);
// Returns the reason if it could not be written, otherwise "". Never follows a link.
std::string write_power_record(const std::filesystem::path& file, const PowerRecord& record);
void remove_power_record(const std::filesystem::path& file);

}  // namespace kintsugi
