#include "train/checkpoint/adapter_base.h"

#include "core/error.h"
#include "core/file.h"
#include "model/adapter/peft_config.h"
#include "model/files/fingerprint.h"
#include "train/checkpoint/checkpoint.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

// The fingerprint in trainer.json; empty: no run wrote the directory.
std::string recorded_base(const fs::path& adapter) {
  const fs::path path = adapter / "trainer.json";
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return "";
  return state_from_json(read_text_file(path), path.string()).base;
}

bool have_same_weights(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  if (fs::equivalent(a, b, ignored)) return true;
  const SafetensorsModel first(a), second(b);
  return is_same_model(fingerprint_of(first).text(), fingerprint_of(second), second);
}

// Of a name on the hub ("meta-llama/Llama-3.1-8B") only its last part is expected in the path.
bool is_named(const fs::path& base, const std::string& name) {
  fs::path last = fs::path(name);
  if (!last.has_filename()) last = last.parent_path();
  return fs::absolute(base).string().find(last.filename().string()) != std::string::npos;
}

}  // namespace

std::optional<OtherBase> other_base(const fs::path& adapter, const fs::path& base) {
  if (const std::string recorded = recorded_base(adapter); !recorded.empty()) {
    const SafetensorsModel files(base);
    if (is_same_model(recorded, fingerprint_of(files), files)) return std::nullopt;
    return OtherBase{true,
                     fmt::format("the adapter {} was trained on other weights than those in {}",
                                 adapter.string(), base.string())};
  }
  const std::string name = read_peft_config(adapter).base;
  if (name.empty()) return std::nullopt;
  std::error_code ignored;
  for (const fs::path& path : {fs::path(name), adapter / name})
    if (fs::is_directory(path, ignored)) {
      try {
        if (have_same_weights(model_directory(path), base)) return std::nullopt;
      } catch (const UserError&) {
        continue;  // no weights there to compare with
      }
      return OtherBase{false, fmt::format("the adapter {} names {} as its base, whose weights are "
                                          "not those in {}",
                                          adapter.string(), path.string(), base.string())};
    }
  if (is_named(base, name)) return std::nullopt;
  return OtherBase{false, fmt::format("the adapter {} names '{}' as its base: make sure that {} "
                                      "has the same weights",
                                      adapter.string(), name, base.string())};
}

}  // namespace kintsugi
