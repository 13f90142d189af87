#pragma once

#include <filesystem>
#include <functional>

namespace kintsugi {

// Where a model, an adapter or a tokenizer is expected, a run directory stands for its latest
// checkpoint. Returns `path` itself if it `holds` what is looked for; for a run directory or its
// folder of checkpoints, the latest checkpoint; any other path unchanged. UserError for a run
// without a checkpoint.
std::filesystem::path resolve_run_directory(
    const std::filesystem::path& path,
    const std::function<bool(const std::filesystem::path& directory)>& holds);

}  // namespace kintsugi
