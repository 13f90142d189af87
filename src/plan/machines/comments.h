#pragma once

#include <map>
#include <string>

namespace kintsugi {

// What a machine file says of its values: the comment behind each key, "" if there is none. Keys
// are dotted, as in launch.environment.NCCL_NET; items of lists have their position:
// launch.limits[0].
using MachineComments = std::map<std::string, std::string>;

// UserError if the text is no YAML.
MachineComments parse_comments(const std::string& text, const std::string& source);
// Of a built-in machine or a file, as load_machine finds it.
MachineComments machine_comments(const std::string& name_or_path);

}  // namespace kintsugi
