#pragma once

#include <cstdint>
#include <string>

namespace kintsugi {

// Kills curations and deduplications at random moments, in one process and as job arrays whose
// size changes, and lets disks fill up. Each is then repeated, and must have the files of an
// undisturbed one. Of the kinds whose names have the text `only`; returns the number of
// disturbances, 0 if there is no such kind. Throws Failure.
int kill_data_commands(int disturbances, std::uint64_t seed, const std::string& only);

}  // namespace kintsugi
