#pragma once

#include <string>
#include <vector>

namespace kintsugi {

// The names in Slurm's form: "login1,nid[001-003,007]".
std::string host_list(std::vector<std::string> names);

}  // namespace kintsugi
