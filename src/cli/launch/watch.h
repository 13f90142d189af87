#pragma once

#include <filesystem>

namespace kintsugi {

void show_run(const std::filesystem::path& run_dir);  // --status
// Asks a job to save and stop; `now`: ends it without a save.
void cancel_run(const std::filesystem::path& run_dir, bool now);
// Prints log.txt and the output of the job as they grow, until the job ends. Needs only the file
// system. Ctrl-C ends it and leaves the job alone.
void follow_run(const std::filesystem::path& run_dir);

}  // namespace kintsugi
