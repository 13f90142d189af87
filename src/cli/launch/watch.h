#pragma once

#include <filesystem>

namespace kintsugi {

// --status and --cancel: of a run, or of all runs of a matrix if `directory` is its root. One run
// of a matrix that cannot be read does not prevent the others.
void show_runs(const std::filesystem::path& directory);
// Asks jobs to save and stop; `now`: ends them without a save.
void cancel_runs(const std::filesystem::path& directory, bool now);

// Prints log.txt and the output of the job as they grow, until the job ends. Needs only the file
// system. Ctrl-C ends it and leaves the job alone.
void follow_run(const std::filesystem::path& run_dir);

}  // namespace kintsugi
