#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace kintsugi {

// An adapter that was made for other weights than those it is used with.
struct OtherBase {
  bool certain = false;  // the checkpoint recorded the fingerprint of its base; otherwise a name
  std::string text;
};

// Compares the PEFT directory `adapter` with the model directory `base`: by the fingerprint in its
// trainer.json, or by the name in its adapter_config.json. Nothing: it is the same base, or
// unknown.
std::optional<OtherBase> other_base(const std::filesystem::path& adapter,
                                    const std::filesystem::path& base);

}  // namespace kintsugi
